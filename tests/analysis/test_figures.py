"""Figures that are only drawn: several metrics in one, metrics that begin late, metrics that a group does not have."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from analysis.__main__ import main
from analysis.figures.canvas import Sketch, canvas_of, lay_out, save, styled
from analysis.figures.figures import figures
from analysis.figures.learning_curves import series
from analysis.findings.outcomes import Gap
from analysis.spec.metric_catalog import caveats, describe
from analysis.spec.settings import settings
from analysis.tables.comparison import tables
from launcher import files
from tests.analysis.conftest import Lines, MakeSweep, block_of, ended, metrics, studied, without

ROOT = Path(__file__).parents[2]
WH, BUDGET, USAGE, LAMBDA = "analysis/wH_per_token", "dual_game/B_token", "dual_game/usage_ratio", "dual_game/lambda"
REWARD = "analysis/reward_sum_mean"
BNTO = ("C0", "C1", "C3")
STEPS = 60


def begins(group: str, seed: int) -> int:
    """C1 has a budget after its warm-up, C3 (KL-gated) later and at another step in every seed."""
    return {"C1": 11, "C3": 20 + 7 * seed}[group]


def dual(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    lines = metrics(group, seed, STEPS)
    for line in lines if group != "C0" else []:
        step = line["step"]
        line |= {LAMBDA: 0.1 * step, "dual_game/beta": 0.001}
        if step >= begins(group, seed):
            line |= {BUDGET: 0.05 + 0.001 * step, USAGE: 0.5 + 0.01 * seed}
    return lines


def asked(*figures: Any, metrics: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"metrics": list(metrics), "figures": list(figures)}


def drawn(monkeypatch: pytest.MonkeyPatch, folder: Path, all_of_them: bool = False) -> dict[str, tuple[str, Any]]:
    """Caption and canvas of every figure, that of differences only if asked for, laid out as it is saved."""
    kept = sketched(monkeypatch, lambda: figures(studied(folder)))
    return {name: (found.caption, found.canvas) for name, found in kept.items() if all_of_them or name != "differences"}


def sketched(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], object]) -> dict[str, Sketch]:
    """Every figure that a function draws, laid out as it is saved."""
    kept: dict[str, Sketch] = {}

    def keep(sketches: Sequence[Sketch]) -> list[Sketch]:
        for sketch in sketches:
            lay_out(sketch.canvas)
            sketch.canvas.canvas.draw()
            kept[sketch.name] = sketch
        return []

    monkeypatch.setattr("analysis.figures.figures.save", keep)
    draw()
    return kept


def lines_of(canvas: Any) -> dict[str, Any]:
    return {line.get_gid(): line for line in canvas.axes[0].lines}


# ---------------------------------------------------------------- what is asked for


def test_figures_come_after_the_metrics_and_none_twice() -> None:
    found = settings(asked("actor/lr", REWARD, [WH, BUDGET], [LAMBDA, WH], metrics=(WH, "actor/grad_norm")))
    assert found.metrics == (REWARD, WH, "actor/grad_norm")
    drawn = [picture.metrics for picture in found.drawn]
    assert drawn == [(REWARD,), (WH, BUDGET), ("actor/grad_norm",), ("actor/lr",), (LAMBDA, WH)]


# ---------------------------------------------------------------- metrics that begin late, or not at all


def test_every_group_is_drawn_from_where_all_its_seeds_have_the_metric(make_sweep: MakeSweep) -> None:
    found = {s.group: s for s in series(studied(make_sweep(BNTO, analysis=asked(BUDGET), lines=dual)), BUDGET)}
    assert not found["C0"].recorded and not found["C0"].short
    for group, begin in (("C1", 11), ("C3", 34)):
        s = found[group]
        assert s.steps[0] == begin and s.steps[-1] == STEPS and s.whole.shape == (3, STEPS - begin + 1)
        assert np.isfinite(s.whole).all() and not s.partial and not s.short


def test_tables_compare_from_where_every_run_has_the_metric(make_sweep: MakeSweep) -> None:
    found = studied(make_sweep(("C1", "C3"), analysis=asked(metrics=(USAGE,)), lines=dual))
    block = block_of(found, USAGE, "auc")
    assert block.start == 34 and block.comparisons[0].result.n == 3
    assert "Use of the entropy budget, wH / B: the area is from step 34" in " ".join(tables(found)[1].notes)


def without_head(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    return dual(group, seed, cell)[20 if (group, seed) == ("C1", 1) else 0 :]


def latecomer(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    lines = dual(group, seed, cell)
    for line in lines[:57] if (group, seed) == ("C1", 1) else []:
        line.pop(USAGE, None)
    return lines


@pytest.mark.parametrize(("lines", "begin"), [(without_head, 21), (latecomer, 58)])
def test_run_without_its_first_lines_or_a_whole_final_value_is_left_out(
    make_sweep: MakeSweep, lines: Any, begin: int
) -> None:
    found = studied(make_sweep(("C0", "C1"), analysis=asked(metrics=(USAGE,)), lines=lines))
    block = block_of(found, USAGE, "final")
    assert block.start == 11
    assert block.estimates[1].gaps == (Gap(1, (), f"{USAGE} begins at step {begin}, others at 11"),)


def test_group_without_the_metric_is_named_once_and_is_no_gap(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(BNTO, analysis=asked(BUDGET, metrics=(USAGE,)), lines=dual)
    without(folder, "C0-2")
    caption, canvas = drawn(monkeypatch, folder)["curve_dual_game_B_token"]
    assert caption.count("C0 (GRPO)") == 1 and "Not recorded by C0 (GRPO)." in caption
    assert "Missing" not in caption and "dotted" not in caption
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["C1 (BNTO minimal)", "C3"]
    found = studied(folder)
    table = tables(found)[1]
    mine = [row for row in table.rows if "entropy budget" in row[0]]
    assert {row[-1] for row in mine} == {"baseline", "not recorded by C0 (GRPO)"}
    assert [row[2:4] for row in mine if row[1] == "C0 (GRPO)"] == [("-", "-")] * 2
    assert "Use of the entropy budget, wH / B: not recorded by C0 (GRPO)." in table.notes
    assert [note for note in table.notes if "seed" in note] == [
        "C0 (GRPO): seed 2: not started: there is no run folder."
    ]


def test_group_whose_runs_all_failed_is_missing_not_without_the_metric(make_sweep: MakeSweep) -> None:
    folder = make_sweep(("C0", "C1"), analysis=asked(metrics=(USAGE,)), lines=lambda g, s, c: dual(g, s, c)[:5])
    for seed in range(3):
        ended(folder, "failed", f"C1-{seed}")
    block = block_of(studied(folder), USAGE, "final")
    by_group = {estimate.group: estimate for estimate in block.estimates}
    assert not by_group["C0"].recorded and by_group["C1"].recorded
    assert by_group["C1"].gaps[0] == Gap(0, (), "failed (last step 5)")


def test_missing_seeds_and_a_seed_that_never_began_are_told_apart(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        made = dual(group, seed, cell)
        for line in made if (group, seed) == ("C3", 2) else []:
            line.pop(BUDGET, None)
        return made[: 30 if (group, seed) == ("C1", 1) else STEPS]

    folder = make_sweep(BNTO, analysis=asked([WH, BUDGET], BUDGET), lines=lines)
    ended(folder, "failed", "C1-1")
    found = drawn(monkeypatch, folder)
    caption, canvas = found["curve_dual_game_B_token"]
    assert "Missing: C1 (BNTO minimal): 2 of 3 seeds; C3: 2 of 3 seeds, not recorded by seed 2; a dotted" in caption
    assert {"cut.1--C1", "end.1--C1"} <= set(lines_of(canvas)) and "cut.2--C3" not in lines_of(canvas)
    both, canvas = found["curve_analysis_wH_per_token__dual_game_B_token"]
    assert "C1 (BNTO minimal): 2 of 3 seeds; entropy budget B, C3: 2 of 3 seeds, not recorded by seed 2" in both
    assert "cut.1--C1" in lines_of(canvas)


# ---------------------------------------------------------------- combined figures


def test_combined_figure_draws_further_metrics_as_means_in_their_own_line_style(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(BNTO, analysis=asked([WH, BUDGET], metrics=(WH,)), lines=dual)
    found = drawn(monkeypatch, folder)
    assert set(found) == {"curve_analysis_reward_sum_mean", "curve_analysis_wH_per_token__dual_game_B_token"}
    caption, canvas = found["curve_analysis_wH_per_token__dual_game_B_token"]
    lines = lines_of(canvas)
    assert {f"{part}--C0" for part in ("seed.0", "seed.1", "seed.2", "mean")} <= set(lines)
    assert [gid for gid in lines if gid.startswith("metric")] == ["metric1--C1", "metric1--C3"]
    assert lines["metric1--C1"].get_xdata()[0] == 11 and lines["metric1--C3"].get_xdata()[0] == 34
    for group in ("C1", "C3"):
        first, second = lines[f"mean--{group}"], lines[f"metric1--{group}"]
        assert first.get_color() == second.get_color() and first.get_linestyle() != second.get_linestyle()
    axes, points = canvas.axes[0], [line.get_ydata() for line in lines.values()]
    low, high = axes.get_ylim()  # the budget lies above every wH
    assert low < min(map(np.nanmin, points)) and high > max(map(np.nanmax, points)) > 0.1
    assert axes.get_ylabel() == "nats a token"
    names = [text.get_text() for text in canvas.legends[1].get_texts()]
    assert names == ["weighted entropy surrogate wH", "entropy budget B"]
    assert len({line.get_color() for line in canvas.legends[1].get_lines()} | {"#000000"}) == 2
    assert "Entropy budget B: not recorded by C0 (GRPO)." in caption and "Missing" not in caption
    assert "unless the weight is KL-gated (then see dual_game/usage_ratio)" in caption


def test_axis_names_every_metric_where_units_differ(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sweep(BNTO, analysis=asked([USAGE, BUDGET], [LAMBDA, "dual_game/beta"]), lines=dual)
    labels = [canvas.axes[0].get_ylabel().replace("\N{NO-BREAK SPACE}", " ") for _, canvas in
              list(drawn(monkeypatch, folder).values())[1:]]  # fmt: skip
    assert labels == [
        "use of the entropy budget, wH / B;\nentropy budget B (nats a token)",
        "dual variable lambda;\nKL weight beta",
    ]


@pytest.mark.parametrize("size", [1e306, 1.7e308])
def test_a_curve_larger_than_any_axis_is_missing_not_an_error(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, size: float
) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        return [line | {USAGE: size if (group, seed) == ("C1", 0) else 1.0} for line in metrics(group, seed, STEPS)]

    folder = make_sweep(("C0", "C1"), analysis=asked(metrics=(USAGE,)), lines=lines)
    found = studied(folder)
    assert found.ranges[USAGE].reasons == {run.id: "values too large to add up" for run in found.sweep.runs
                                           if (run.group, run.seed) == ("C1", 0)}  # fmt: skip
    drawings = drawn(monkeypatch, folder)
    assert any("2 of 3 seeds" in caption for caption, _ in drawings.values())


@pytest.mark.parametrize(
    ("first", "spike", "scale"), [(1.0, 1e4, "log"), (1.0, 100.0, "linear"), (1e-13, 1e4, "linear")]
)
def test_an_axis_is_logarithmic_where_a_spike_would_hide_all_else(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, first: float, spike: float, scale: str
) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        values = {1: first, STEPS // 2: spike}
        return [line | {USAGE: values.get(line["step"], 1.0)} for line in metrics(group, seed, STEPS)]

    folder = make_sweep(("C0", "C1"), analysis=asked(USAGE), lines=lines)
    axes = drawn(monkeypatch, folder)["curve_dual_game_usage_ratio"][1].axes[0]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale
    assert all(low < line.get_ydata().min() and line.get_ydata().max() < high for line in axes.lines)
    assert all("$" not in label.get_text() for label in axes.get_yticklabels())


def test_legends_fit_and_leave_the_axes_alone_with_many_groups(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ["C0", *(f"G{i} with a name of some length" for i in range(9))]
    three = [WH, "actor/ppo_kl", "analysis/entropy_per_token_mean"]
    folder = make_sweep(groups, seeds=(0, 1), steps=20, analysis=asked(three))
    _, canvas = drawn(monkeypatch, folder)["curve_" + "__".join(key.replace("/", "_") for key in three)]
    axes = canvas.axes[0].get_tightbbox()
    boxes = [legend.get_window_extent() for legend in canvas.legends]
    assert [len(legend.get_texts()) for legend in canvas.legends] == [10, 3]
    for box in (*boxes, axes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= canvas.bbox.width and box.y1 <= canvas.bbox.height
    assert boxes[0].y0 >= axes.y1 and boxes[1].y1 <= axes.y0
    assert canvas.axes[0].get_window_extent().height > 0.35 * canvas.bbox.width
    lines = lines_of(canvas)  # the ninth group has the first one's colour again
    first, ninth = lines["metric1--C0"], lines[f"metric1--{groups[8]}"]
    assert first.get_color() == ninth.get_color() and first.get_marker() != ninth.get_marker()


def test_captions_say_which_intervals_are_cut_or_not_there(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(("C0", "C1"), steps=20, analysis=asked(metrics=(WH,)))
    caption = drawn(monkeypatch, folder)["curve_analysis_wH_per_token"][0]
    assert "its simultaneous 95% band, " in caption and "bands that go beyond it are cut" in caption
    assert "A band holds the whole true curve that its mean estimates, if luck is nearly normal" in caption
    for seed in (1, 2):
        without(folder, f"C1-{seed}")
    caption = drawn(monkeypatch, folder)["curve_analysis_wH_per_token"][0]
    assert "its simultaneous 95% band, " in caption and "One seed has no band: C1 (BNTO minimal)." in caption
    for seed in (1, 2):
        without(folder, f"C0-{seed}")
    caption = drawn(monkeypatch, folder)["curve_analysis_wH_per_token"][0]
    assert "95%" not in caption and "One seed has no band." in caption and "cut" not in caption


def test_difference_curves_are_paired_by_seed_with_a_simultaneous_band(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1 lacks seed 2, and C3 runs on other steps; the luck of a seed cancels, so the band is narrow."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        luck, gain = 10.0 * seed, {"C0": 0.0, "C1": 1.0, "C3": 2.0}[group]
        steps = range(2, 61, 3) if group == "C3" else range(1, 61)
        return [{"step": s, "attempt": 1, WH: luck + 0.1 * s + gain + 0.01 * seed * (group == "C3")} for s in steps]

    folder = make_sweep(BNTO, steps=60, analysis=asked({"difference": WH}), lines=lines)
    without(folder, "C1-2")
    caption, canvas = drawn(monkeypatch, folder)["difference_analysis_wH_per_token"]
    assert "minus that of C0 (GRPO) in the same seed" in caption and "its simultaneous 95% band, " in caption
    assert "interpolated onto common steps" in caption and "Not drawn" not in caption
    shown = lines_of(canvas)
    assert [name for name in shown if name and name.endswith("--C1")] == ["seed.0--C1", "seed.1--C1", "mean--C1"]
    np.testing.assert_allclose(shown["mean--C1"].get_ydata(), 1, atol=1e-9)
    np.testing.assert_allclose(shown["mean--C3"].get_ydata(), 2.01, atol=1e-9)
    assert "C1 (BNTO minimal), 2 of 3 seeds" in [text.get_text() for text in canvas.legends[0].get_texts()]
    low, high = canvas.axes[0].get_ylim()
    assert low < 0 < 2.02 < high < 5  # the zero line is inside, and 20 of luck is gone


def test_a_method_on_other_levels_than_the_baseline_has_no_difference_curve(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {"C0": [{"lr": 1}, {"lr": 2}], "C1": [{"lr": 1}, {"lr": 3}], "C3": [{"lr": 1}, {"lr": 2}]}
    folder = make_sweep(BNTO, steps=20, analysis=asked({"difference": WH}), cells=cells)
    caption, canvas = drawn(monkeypatch, folder)["difference_analysis_wH_per_token"]
    assert "Not drawn, without a seed or step in common, or of other levels: C1 (BNTO minimal)." in caption
    assert {name.partition("--")[2] for name in lines_of(canvas) if name} == {"C3"}


def test_methods_that_never_reach_a_threshold_are_named(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        top = {"C0": 2.0, "C1": 1.0, "C3": 0.5}[group]
        return [{"step": step, "attempt": 1, REWARD: top * step / 20} for step in range(1, 21)]

    analysis = {"primary": {"metric": REWARD}, "time_to": [{"at": 1.0}], "window": 2}
    folder = make_sweep(("C0", "C1", "C3"), steps=20, analysis=analysis, lines=lines)
    caption = drawn(monkeypatch, folder)["reach_1"][0]
    assert "No run of C1 (BNTO minimal), C3 has reached it, so their lines coincide." in caption


def test_long_labels_stay_inside_figures(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ["C0", "a_name_without_a_space_" * 6, "words and words " * 8]
    analysis = {**asked(metrics=(WH,)), "time_to": [{"baseline_final": 0.9}]}
    folder = make_sweep(groups, seeds=(0, 1), steps=20, analysis=analysis)
    plan = json.loads((folder / "plan.json").read_text())
    plan["groups"]["C0"]["label"] = "a baseline of many words " * 4
    files.write_json(folder / "plan.json", plan)
    found = drawn(monkeypatch, folder, all_of_them=True)
    for name in ("differences", "reach_1", "curve_analysis_wH_per_token"):
        canvas = found[name][1]
        box = canvas.get_tightbbox()
        width, height = canvas.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, name
        assert canvas.axes[0].get_window_extent().width > 0.4 * canvas.bbox.width


def test_caveat_of_two_metrics_stands_only_where_both_are_and_once_for_several() -> None:
    assert caveats([BUDGET]) == [] and len(caveats([WH])) == 1
    assert caveats([BUDGET, WH])[0].startswith("Entropy budget B: it bounds the method's own weighted entropy")
    both = caveats(["analysis/entropy_p50", "analysis/entropy_p90"])
    assert len(both) == 1 and both[0].startswith("Entropy surrogate, median token; entropy surrogate, 90% token: ")


# ---------------------------------------------------------------- the report


def test_report_shows_combined_figures_and_their_methods_toggle(make_sweep: MakeSweep) -> None:
    folder = make_sweep(BNTO, analysis=asked([WH, BUDGET], "dual_game/lamda"), lines=dual)
    assert main(["report", str(folder), "--figures", "png"]) == 0
    html = (folder / "report" / "index.html").read_text()
    figure = html[html.index('aria-label="weighted entropy surrogate wH') :]
    figure = figure[: figure.index("</svg>")]
    # of C1: band, three seeds, mean, budget; C0 has no budget
    assert 'fill="currentColor"' in figure[:200]  # the baseline's band on dark paper
    assert figure.count('data-group="C1"') == 6 and figure.count('data-group="C0"') == 5
    assert "No run has recorded <code>dual_game/lamda</code>." in html
    document = json.loads((folder / "report" / "report.json").read_text())
    figures = [figure["metrics"] for figure in document["settings"]["figures"]]
    assert figures == [[WH, BUDGET], ["dual_game/lamda"]]
    assert {comparison["metric"] for comparison in document["comparisons"]} == {REWARD}
    png = (folder / "report" / "figures" / "curve_analysis_wH_per_token__dual_game_B_token.png").read_bytes()
    pixels = matplotlib.image.imread(io.BytesIO(png), format="png")
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()


def test_every_documented_metric_has_a_label() -> None:
    documented = [
        line.split("`")[1] for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if line.startswith("| `")
    ]
    assert len(documented) > 30
    assert [key for key in documented if describe(key).label == key] == []


def test_a_label_is_shown_as_it_is_written() -> None:
    with styled():
        canvas, axes = canvas_of(3.0, 2.0)
        axes.set_title("$\\nosuch$ is $5$")
        (figure,) = save([Sketch("f", "F", "", canvas)])
    assert b">$\\nosuch$ is $5$<" in figure.svg
