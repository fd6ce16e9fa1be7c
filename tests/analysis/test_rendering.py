"""Figures in every format: the same bytes whichever process renders them, and rendered once."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from analysis.figures.canvas import canvas_of
from analysis.figures.kept import Files, Kept, fingerprint
from analysis.figures.rendering import rendered, rendering
from analysis.figures.style import styled
from analysis.report import write
from tests.analysis.conftest import Reported

MUCH = 10**9


def drawn(colour: str) -> Any:
    canvas, axes = canvas_of(3.0, 2.0)
    axes.plot([0, 1, 2], [0, 1, 4], color=colour, label="a line", gid="curve--C0")
    canvas.draw_without_rendering()
    return canvas


@pytest.mark.parametrize("count", [1, 3])
def test_processes_render_what_one_does_in_the_order_given(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with styled():
        canvases = [drawn(colour) for colour in ("#0072B2", "#D55E00", "#009E73")[:count]]
        aside = rendering(canvases, MUCH)
        assert count == 1 or multiprocessing.active_children()
        here = [files() for files in rendering(canvases, 0)]
    assert [files() for files in aside] == here
    assert set(here[0]) == {"svg", "pdf", "png"} and len({one["svg"] for one in here}) == count


def test_a_label_is_shown_as_it_is_written() -> None:
    with styled():
        canvas = drawn("#0072B2")
        canvas.axes[0].set_title("$\\nosuch$ is $5$")
        (files,) = rendering([canvas], 0)
    assert b">$\\nosuch$ is $5$<" in files()["svg"]


def test_what_fails_in_a_process_is_raised_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with styled():
        good, bad = drawn("#0072B2"), drawn("#D55E00")
        bad.axes[0].set_title("$\\nosuch$").set_parse_math(True)
        first, second = rendering([good, bad], MUCH)
    assert first()["svg"]
    with pytest.raises(ValueError, match="nosuch"):
        second()


# ---------------------------------------------------------------- later reports


def test_a_later_report_renders_those_figures_alone_that_have_changed(
    pictured: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> set[str]:
        svgs.clear()
        write(folder)
        return {path.stem for path in folder.glob("report/figures/*.svg") if path.read_bytes() in svgs}

    def counted(canvas: Any) -> Files:
        files = rendered(canvas)
        svgs.append(files["svg"])
        return files

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.glob("report/**/*") if path.is_file()}

    folder = shutil.copytree(pictured.folder.parent, tmp_path / "multirun") / pictured.folder.name
    svgs: list[bytes] = []
    monkeypatch.setattr("analysis.figures.rendering.rendered", counted)
    before = files()
    assert again() == set() and files() == before
    path = next(folder.parent.glob("runs/*/metrics.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["qstar/alpha_std"] += 1e-3
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert again() == {"band_qstar_alpha_mean__qstar_alpha_std"}


def test_files_count_only_while_they_are_as_they_were_written(tmp_path: Path) -> None:
    def kept() -> Kept:
        return Kept(tmp_path / "record", tmp_path)

    files = {"a": {"svg": b"1", "png": b"2"}, "b": {"svg": b"3"}}
    first = kept()
    assert first.told("a", "x") is None and first.told("b", "y") is None and first.told("c", None) is None
    record = first.record(files)
    for name, own in files.items():
        for suffix, content in own.items():
            (tmp_path / f"{name}.{suffix}").write_bytes(content)
    for torn in (b"", b"{", b"[]", b'{"format": 0}', b'{"format": 1}'):
        (tmp_path / "record").write_bytes(torn)
        assert kept().told("a", "x") is None
    (tmp_path / "record").write_bytes(record)
    assert kept().told("a", "x") == files["a"] and kept().told("a", "other") is None and kept().told("a", None) is None
    later = kept()
    assert later.told("a", "x") and later.told("b", "y") and later.record(files) == record
    (tmp_path / "a.png").write_bytes(b"of somebody")
    (tmp_path / "b.svg").unlink()
    assert kept().told("a", "x") is None and kept().told("b", "y") is None


def test_what_tells_a_drawing() -> None:
    with styled():
        canvas, same, other = drawn("#0072B2"), drawn("#0072B2"), drawn("#D55E00")
        told = fingerprint(canvas)
        assert told is not None and told == fingerprint(same) != fingerprint(other)
        with matplotlib.rc_context({"svg.fonttype": "path"}):
            assert fingerprint(canvas) != told
        same.axes[0].lines[0].set_ydata([0, 1, 4.000000001])
        assert fingerprint(same) != told
        canvas.axes[0].xaxis.set_major_formatter(lambda x, _: f"{x} steps")
        assert fingerprint(canvas) is None, "it is always rendered"


@pytest.mark.processes
def test_every_process_tells_the_same_drawing_alike(pictured: Reported, tmp_path: Path) -> None:
    folder = shutil.copytree(pictured.folder.parent, tmp_path / "multirun") / pictured.folder.name
    record = folder.parent / "cache/figures" / f"{folder.name}.json"
    records = []
    for seed in ("1", "2"):  # of the hashes of texts, which decide the order of sets
        record.unlink()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "analysis", "report", str(folder)]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        records.append(record.read_bytes())
    assert records[0] == records[1] and b"svg" in records[0]
