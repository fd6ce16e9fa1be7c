"""Snapshots of a distribution: its histogram at the first, the middle and the last step that all runs recorded."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from analysis.data.metric_log import read_histograms
from analysis.figures.canvas import Sketch, counted_label, gap_sentences, legend, panels_of, style_of
from analysis.findings.study import Study
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import DISTRIBUTIONS, Metric, capital
from analysis.spec.registry import figure
from analysis.stats.numbers import Array
from launcher.run.folder import run_folder

_MOST_BINS = 64
_X_LABEL = 26  # letters that fit below one of three panels


@figure("histogram")
def snapshots(study: Study, picture: Picture) -> Sketch | None:
    """Every group's distribution, mean over its runs, one panel for each step; None if no run that ended well recorded
    it."""
    (name,) = picture.metrics
    sweep = study.sweep
    unknown = Metric(name, name)  # as those of imported runs, whose names mean nothing to the catalog
    about = unknown if sweep.plan.get("imported") else DISTRIBUTIONS.get(name, unknown)
    ended = {run.id: run_folder(sweep.folder.parent, run.id) for run in sweep.runs if run.problem is None}
    logs = {run_id: read_histograms(folder, name) for run_id, folder in ended.items()}
    read = {run_id: by_step for run_id, (by_step, _) in logs.items() if by_step}
    shared = sorted(set.intersection(*map(set, read.values()))) if read else []
    if not shared:
        return None
    steps = sorted({shared[0], shared[(len(shared) - 1) // 2], shared[-1]})
    edges = _edges([by_step[step].edges for by_step in read.values() for step in steps])
    canvas, panels = panels_of(7.0, 3.2, len(steps))
    entries: list[tuple[str, Any]] = []
    without: list[str] = []
    short: list[str] = []
    for group in sweep.groups:
        runs, look = sweep.runs_of(group), style_of(sweep.groups, group, False)
        members = [read[run.id] for run in runs if run.id in read]
        if not members:
            without += [sweep.label(group)] if any(run.id in ended for run in runs) else []
            continue
        for axes, step in zip(panels, steps, strict=True):
            mean, gid = np.mean([by_step[step].density(edges) for by_step in members], axis=0), f"histogram--{group}"
            ends = edges, np.append(mean, mean[-1])
            axes.step(*ends, where="post", linewidth=1.5, gid=gid, label="mean over runs", **look)
        label = counted_label(sweep.label(group), len(members), len(runs), "runs", short)
        entries.append((label, {**look, "linewidth": 1.9}))
    for axes, step in zip(panels, steps, strict=True):
        axes.set_title(f"step {step}", fontsize=9, loc="left")
        axes.set_xlabel(textwrap.fill(about.axis, _X_LABEL))
        axes.margins(x=0.01)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("density")
    canvas.set_figheight(3.0 + 0.2 * legend(canvas, "upper", entries))
    texts = [
        f"Histogram of {about.label} at the first, middle and last step that every run recorded, as a density: the "
        "mean over the runs of each method."
    ]
    texts += gap_sentences(without, short)
    if bad := sum(bad for _, bad in logs.values()):
        texts.append(f"{bad} bad {'line' if bad == 1 else 'lines'} left out.")
    if about.caveat:
        texts.append(f"{capital(about.label)}: {about.caveat}.")
    return Sketch(picture.name, f"{capital(about.label)}, histogram", " ".join(texts), canvas)


def _edges(each: list[Array]) -> Array:
    """Common bins for histograms with these edges: their own if they share them."""
    if all(np.array_equal(edges, each[0]) for edges in each):
        return each[0]
    low, high = min(edges[0] for edges in each), max(edges[-1] for edges in each)
    return np.linspace(low, high, min(_MOST_BINS, max(edges.size for edges in each) - 1) + 1)
