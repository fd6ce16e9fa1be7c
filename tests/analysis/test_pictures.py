"""Figures that are no plain curves: bands, scatters, histograms, Pareto fronts; and metrics that are sparse.

Golden pictures hold what figures show; python -m tests.analysis.test_pictures writes them.
Look at the figures then: with a FOLDER, the same command also writes their reports there.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.metric_log import Histogram, read_histograms
from analysis.figures.canvas import Sketch
from analysis.figures.figures import figures
from analysis.figures.scatter import front
from analysis.figures.traces import traces_of
from analysis.sections import sections
from launcher.run.folder import histograms_path, run_folder
from tests.analysis import qstar
from tests.analysis.conftest import (
    Lines,
    MakeSweep,
    Reported,
    contents,
    data_of,
    ended,
    logging,
    replan,
    reported,
    studied,
    sweeps_in,
    without,
)
from tests.analysis.foreign_logs import KINDS, make
from tests.analysis.test_figures import BNTO, BUDGET, REWARD, STEPS, USAGE, WH, drawn, dual, lines_of, sketched

X, Y = "qstar/ess_t", "qstar/ess_theta"
SCATTER = "scatter_qstar_ess_t__qstar_ess_theta"
PARETO = "pareto_eval_reward_mean__actor_grad_variance"
BAND = "band_qstar_alpha_mean__qstar_alpha_std"
MANY = "curve_analysis_wH_per_token__actor_ppo_kl__analysis_entropy_per_token_mean"
NAMES = {SCATTER, PARETO, BAND, "histogram_alpha"}

# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize(("seconds", "hours"), [(600.0, False), (360.0 * 120, True)])
def test_a_pareto_over_long_times_is_over_hours(
    seconds: float, hours: bool, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        made = qstar.lines(group, seed, cell)
        return [{**line, "cost/wall_seconds": (1 + 0.1 * seed) * seconds * line["step"] / qstar.STEPS} for line in made]

    analysis = {**qstar.ANALYSIS, "figures": [{"pareto": ["cost/wall_seconds", qstar.EVAL]}], "hypotheses": None}
    folder = make_sweep(("ppo", "q_star"), steps=qstar.STEPS, analysis=analysis, lines=timed)
    caption, canvas = drawn(monkeypatch, folder)["pareto_cost_wall_seconds__eval_reward_mean"]
    axes, unit = canvas.axes[0], "h" if hours else "s"
    assert axes.get_xlabel().startswith(f"wall time ({unit})") and f"wall time ({unit})" in caption
    if hours:
        ticks = list(zip(axes.get_xticks(), (label.get_text() for label in axes.get_xticklabels()), strict=True))
        assert len(ticks) >= 2 and all(float(text) * 3600 == pytest.approx(at) for at, text in ticks)


@pytest.mark.parametrize(("low", "scale"), [(1e-9, "log"), (0.1, "linear"), (0.0, "linear"), (-1.0, "linear")])
def test_scatter_of_values_many_decades_apart_is_logarithmic(
    low: float, scale: str, make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(group: str, seed: int, levels: Mapping[str, Any]) -> Lines:
        every = qstar.lines("q_star", seed, levels)
        return [{**line, Y: low if line["step"] < qstar.STEPS / 2 else 1.0} for line in every]

    analysis = {"figures": [{"scatter": [X, Y]}]}
    folder = make_sweep(("C0", "C1"), steps=qstar.STEPS, lines=lines, analysis=analysis)
    axes = drawn(monkeypatch, folder)[SCATTER][1].axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", scale)
    assert all("$" not in label.get_text() for label in axes.get_yticklabels())


def test_missing_runs_and_bad_lines_are_said(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ended(qstar.two(make_sweep), "failed", "q_star-1")
    with open(histograms_path(run_folder(folder.parent, "q_star-0")), "a") as file:
        file.write('{"step": 130, "name": "alpha", "edges": [0, 0], "counts": [1]}\n{"step": 1')
    found = drawn(monkeypatch, folder)
    for name in (SCATTER, PARETO):
        assert "Incomplete: q_star, 2 of 3 seeds." in found[name][0]
        assert "q_star, 2 of 3 seeds" in [text.get_text() for text in found[name][1].legends[0].get_texts()]
    caption = found["histogram_alpha"][0]
    assert "Incomplete: q_star, 2 of 3 runs." in caption and "2 bad lines left out." in caption
    assert "q_star: 2 of 3 seeds" in found[BAND][0] and "dotted" not in found[BAND][0]


def test_histogram_of_the_entropy_surrogate_is_not_called_an_entropy(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(("C0",), seeds=(0,), analysis={"figures": [{"histogram": "entropy"}]})
    line = {"step": 60, "attempt": 1, "name": "entropy", "edges": [0, 0.2, 0.4], "counts": [3, 1]}
    histograms_path(run_folder(folder.parent, "C0-0")).write_text(json.dumps(line) + "\n")
    ours = drawn(monkeypatch, folder)["histogram_entropy"][0]
    assert "Entropy surrogate of each token: -p log p of a sampled token: not an entropy." in ours
    replan(folder, lambda plan: plan.update(imported=True))
    theirs = drawn(monkeypatch, folder)["histogram_entropy"][0]  # what another tool called so may be one
    assert theirs.startswith("Histogram of entropy at") and "not an entropy" not in theirs


def test_histogram_that_no_run_has_is_named(make_sweep: MakeSweep, unrendered: None) -> None:
    html = reported(make_sweep(("C0", "C1"), analysis={"figures": [{"histogram": "alpha"}, {"scatter": [X, Y]}]})).page
    assert f"No run has recorded <code>alpha</code>, <code>{X}</code>, <code>{Y}</code>." in html
    assert "Trade-offs" not in html


def test_pictures_stand_in_the_page(pictured: Reported) -> None:
    html = pictured.page
    section = html[html.index('id="relations"') : html.index('id="metrics"')]
    assert section.count("<figure>") == 3 and section.count('data-group="q_star"') >= 3 + 1 + 3 + 4
    assert len(html) < 2e6
    assert {path.stem for path in (pictured.report / "figures").iterdir()} >= NAMES
    parts = re.findall(r"<figure>.*?</figure>", html, flags=re.S)
    assert len(parts) > 5
    for part in parts:  # and has values for who does not see it
        assert 'role="img"' in part and "<details><summary>Values drawn: " in part and part.count("<tr>") > 1
    for found in data_of(html).values():
        assert found["traces"] and all(len(found["xs"][entry["x"]]) == len(entry["y"]) for entry in found["traces"])


def test_same_input_gives_the_same_bytes(make_sweep: MakeSweep, tmp_path: Path) -> None:
    folder = qstar.two(make_sweep)
    elsewhere = shutil.copytree(folder.parent, tmp_path / "elsewhere") / folder.name
    first, second = contents(reported(folder).report), contents(reported(elsewhere).report)
    assert first == second and {f"figures/{name}.svg" for name in NAMES} <= {*first}


# ---------------------------------------------------------------- parts


def test_front_keeps_what_no_other_beats_by_both() -> None:
    centres = {"a": (1.0, 1.0), "b": (2.0, 2.0), "c": (2.0, 3.0), "d": (3.0, 9.0), "e": (0.0, 1.0), "f": (1.0, 1.0)}
    assert front(centres, ("higher", "lower")) == ["a", "f", "b", "d"]
    assert front(centres, ("lower", "lower")) == ["e"]


def test_density_keeps_the_mass_in_other_bins() -> None:
    found = Histogram(np.array([0.0, 1.0, 3.0]), np.array([1.0, 1.0]))
    assert found.density(np.array([0.0, 0.5, 1.0, 2.0, 3.0])).tolist() == [0.5, 0.5, 0.25, 0.25]
    assert np.sum(found.density(np.linspace(-1, 4, 6))) == pytest.approx(1)


def test_newest_attempt_supersedes_from_where_it_began(tmp_path: Path) -> None:
    rows = [(1, 1, "alpha", 1), (20, 1, "alpha", 2), (40, 1, "alpha", 3), (20, 2, "entropy", 4), (30, 2, "alpha", 5)]
    with open(histograms_path(tmp_path), "w") as file:
        for step, attempt, name, count in rows:
            line = {"step": step, "attempt": attempt, "name": name, "edges": [0, 1], "counts": [count]}
            file.write(json.dumps(line) + "\n")
    found, bad = read_histograms(tmp_path, "alpha")
    assert {step: int(h.counts[0]) for step, h in found.items()} == {1: 1, 30: 5} and bad == 0
    assert read_histograms(tmp_path / "nowhere", "alpha") == ({}, 0)


def test_histograms_of_different_bins_share_a_grid(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sweep(("C0", "C1"), seeds=(0, 1), analysis={"figures": [{"histogram": "entropy"}]})
    for place, run in enumerate(json.loads((folder / "plan.json").read_text())["runs"]):
        edges = np.linspace(0, 1 + place, 9).tolist()
        record = {"step": 5, "attempt": 1, "name": "entropy", "edges": edges, "counts": [1] * 8}
        histograms_path(run_folder(folder.parent, run["id"])).write_text(json.dumps(record) + "\n")
    _, canvas = drawn(monkeypatch, folder)["histogram_entropy"]
    (axes,) = canvas.axes  # one step, one panel
    for line in axes.lines:
        assert line.get_xdata()[-1] == 4 and np.sum(line.get_ydata()[:-1] * np.diff(line.get_xdata())) == pytest.approx(
            1
        )


def once(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    made = qstar.lines(group, seed, cell)
    for line in made[:-1]:
        line.pop(qstar.EVAL, None)
    return made


def test_metric_recorded_once_is_seen(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sweep(qstar.METHODS, steps=qstar.STEPS, lines=once, analysis={"primary": {"metric": qstar.EVAL}})
    _, canvas = drawn(monkeypatch, folder)["curve_eval_reward_mean"]
    line = lines_of(canvas)["mean--ppo"]
    assert list(line.get_xdata()) == [120] and line.get_marker() == "."


# ---------------------------------------------------------------- golden pictures

GOLDEN = Path(__file__).with_name("pictures")
_SLACK = 3  # hundredths of an inch: the box of a text is a little larger than its letters
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def figures_of(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Sketch]:
    """Every figure of a report, those of its sections too."""
    found = studied(folder)
    return sketched(patch, lambda: (figures(found, []), sections(found)))


def described(sketch: Sketch) -> Iterator[str]:
    """What a figure shows: its texts, and of each line five points, with their intervals."""
    traces = traces_of(sketch.canvas, sketch.names)
    yield f"## {sketch.name}: {sketch.title}"
    yield sketch.caption
    for legend in sketch.canvas.legends:
        yield f"legend: {'; '.join(text.get_text() for text in legend.get_texts())}"
    for number, axes in enumerate(sketch.canvas.axes):
        names = [" ".join(text.split()) for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())]
        yield f"panel {number}: {'; '.join(filter(None, names))}"
    for trace in traces.traces:
        n = trace.x.size
        at = dict.fromkeys([0, n // 4, n // 2, 3 * n // 4, n - 1] if trace.seed is None else [0, n - 1])
        ends = [""] * n
        if trace.about.interval is not None:
            ends = [f" [{low:.4g}, {high:.4g}]" for low, high in zip(*trace.about.interval, strict=True)]
        points = (f"({trace.x[i]:.5g}, {trace.shown[i]:.4g}{ends[i]})" for i in at)
        yield f"panel {trace.panel}, {trace.group}, {trace.what}, {n} points: {' '.join(points)}"


def picture_text(drawings: Mapping[str, Sketch]) -> str:
    return "\n".join(line for sketch in drawings.values() for line in (*described(sketch), "")) + "\n"


def dual_game(make_sweep: MakeSweep) -> Path:
    """Metrics that begin late or that a group lacks, together, and with other units."""
    asked = {"metrics": [WH], "figures": [[WH, BUDGET], [USAGE, BUDGET], BUDGET]}
    return without(make_sweep(BNTO, steps=STEPS, analysis=asked, lines=dual), "C1-2")


MADE: dict[str, Callable[[MakeSweep], Path]] = {
    **{kind: partial(make, kind=kind) for kind in KINDS}, "qstar": qstar.make, "dual": dual_game,
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
def test_figures_are_the_golden_ones(kind: str, make_sweep: MakeSweep) -> None:
    """Texts are equal, numbers nearly: no pixel is compared, so that fonts and versions of matplotlib do not matter."""
    with pytest.MonkeyPatch.context() as patch:
        drawings = figures_of(MADE[kind](make_sweep), patch)
    own, golden = (_NUMBER.split(text) for text in (picture_text(drawings), (GOLDEN / f"{kind}.txt").read_text()))
    assert own[::2] == golden[::2]
    assert list(map(float, own[1::2])) == pytest.approx(list(map(float, golden[1::2])), rel=2e-3, abs=1e-6)
    for name, sketch in drawings.items():
        _is_readable(name, sketch)


def _is_readable(name: str, sketch: Sketch) -> None:
    """Everything is inside the figure, no legend covers a panel, and no two names along an axis overlap."""
    canvas = sketch.canvas
    shown = [axes for axes in canvas.axes if axes.get_visible()]
    legends = [legend.get_window_extent() for legend in canvas.legends]
    panels = [axes.get_tightbbox() for axes in shown]
    for box in (*legends, *panels):
        assert box.x0 >= -_SLACK and box.y0 >= -_SLACK, name
        assert box.x1 <= canvas.bbox.width + _SLACK and box.y1 <= canvas.bbox.height + _SLACK, name
    assert not any(legend.overlaps(panel.padded(-1)) for legend in legends for panel in panels), name
    for axis in (axis for axes in shown for axis in (axes.xaxis, axes.yaxis)):
        boxes = [text.get_window_extent() for text in axis.get_ticklabels() if text.get_text() and text.get_visible()]
        assert not any(a.padded(-0.5).overlaps(b) for a, b in pairwise(boxes)), name


def many_groups(make_sweep: MakeSweep) -> Path:
    groups = ["C0", *(f"G{i} with a name of some length" for i in range(9))]
    return make_sweep(groups, (0, 1), 20, {"figures": [[WH, "actor/ppo_kl", "analysis/entropy_per_token_mean"]]})


def long_names(make_sweep: MakeSweep) -> Path:
    groups = ["C0", "a_name_without_a_space_" * 6, "words and words " * 8]
    folder = make_sweep(groups, (0, 1), 20, {"metrics": [WH], "time_to": [{"baseline_final": 0.9}]})
    return replan(folder, lambda plan: plan["groups"]["C0"].update(label="a baseline of many words " * 4))


def many_levels(make_sweep: MakeSweep, factor: str) -> Path:
    names = [f"{'Crazy' if number % 3 else ''}Climber{number}" for number in range(24)]
    cells = [{factor: name, "lr": lr} for name in names for lr in (0.1, 0.01)]
    made = logging(lambda group, seed, cell, _: names.index(cell[factor]) % 5 + seed * cell["lr"], 5, REWARD)
    return make_sweep(("C0",), (0, 1), 5, {"primary": {"metric": REWARD}}, {"C0": cells}, lines=made)


@pytest.mark.parametrize(
    "make_one",
    [many_groups, long_names, *(partial(many_levels, factor=name) for name in ("a task", "task"))],
    ids=["many groups", "long names", "many levels before the factor lr", "many levels after it"],
)
def test_figures_of_many_or_long_names_are_readable(
    make_one: Callable[[MakeSweep], Path], make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, sketch in figures_of(make_one(make_sweep), monkeypatch).items():
        _is_readable(name, sketch)
        panel, width = sketch.canvas.axes[0].get_window_extent(), sketch.canvas.bbox.width
        assert panel.width > 0.4 * width and (panel.height > 0.35 * width or name != MANY), name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        GOLDEN.mkdir(exist_ok=True)
        for one, make_one in MADE.items():
            made = make_one(sweeps_in(root / one))
            with pytest.MonkeyPatch.context() as unrendered:
                (GOLDEN / f"{one}.txt").write_text(picture_text(figures_of(made, unrendered)))
            if len(sys.argv) > 1:
                reported(made)
