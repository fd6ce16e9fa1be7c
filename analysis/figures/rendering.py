"""Drawings in every format: rendered on all cores where that is faster, and not at all where their files are there."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING

from analysis.figures.kept import Files, Kept, fingerprint
from analysis.figures.style import styled
from analysis.figures.traces import Traces, to_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DPI = 160  # of a PNG, and of what is an image in the other formats
_MUCH = 200_000  # points of all drawings: fewer are drawn before another process has begun


class Drawing:
    """A drawing that has been laid out, with the values behind it, and its files."""

    def __init__(self, canvas: Canvas, traces: Traces) -> None:
        self._canvas, self.traces = canvas, traces
        self._pictures: Callable[[], Files] | None = None

    @cached_property
    def files(self) -> Files:
        """By suffix: svg, pdf and png, which are waited for if they are being rendered, and the values as csv."""
        if self._pictures is None:
            render({"": self})
        assert self._pictures is not None
        return {**self._pictures(), "csv": to_csv(self.traces).encode()}


def render(drawings: Mapping[str, Drawing], kept: Kept | None = None) -> None:
    """Begin to render drawings, by their names. Those whose files are kept are not rendered, and the others are kept
    from now on."""
    left = []
    with styled():
        for name, drawing in drawings.items():
            told = kept.told(name, fingerprint(drawing._canvas)) if kept is not None else None
            if told is not None:
                drawing.files = told
            else:
                left.append(drawing)
        points = sum(trace.x.size for drawing in left for trace in drawing.traces.traces)
        for drawing, pictures in zip(left, rendering([one._canvas for one in left], points), strict=True):
            drawing._pictures = pictures


def rendering(canvases: Sequence[Canvas], points: int) -> list[Callable[[], Files]]:
    """For each canvas a function that returns its files; with many points they are rendered by other processes
    meanwhile.

    These are forks, which have the canvases already: sending a large one would take longer than rendering it.
    """
    workers = min(len(canvases), os.cpu_count() or 1)
    if points < _MUCH or workers < 2 or sys.platform != "linux":
        return [partial(dict, rendered(canvas)) for canvas in canvases]
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, fork, initializer=_inherit, initargs=(canvases,))
    results: list[Callable[[], Files]] = [pool.submit(_rendered, number).result for number in range(len(canvases))]
    pool.shutdown(wait=False)
    return results


def rendered(canvas: Canvas) -> Files:
    """SVG, PDF and PNG of a canvas that has been laid out. No dates: same input, same bytes."""
    files = {}
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("pdf", {"CreationDate": None}), ("png", {})):
        out = io.BytesIO()
        canvas.patch.set_alpha(float(suffix == "png"))  # white paper: what shows a PNG may have a dark one
        canvas.savefig(out, format=suffix, metadata=metadata, dpi=DPI)
        files[suffix] = out.getvalue()
    return files


_inherited: Sequence[Canvas] = ()


def _inherit(canvases: Sequence[Canvas]) -> None:
    global _inherited
    _inherited = canvases


def _rendered(number: int) -> Files:
    return rendered(_inherited[number])
