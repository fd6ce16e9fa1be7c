"""Figures that are only drawn: several metrics in one, metrics that begin late, metrics that a group does not have."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from analysis.figures.canvas import Sketch, canvas_of, save, styled
from analysis.figures.figures import figures
from analysis.findings.study import Gap
from analysis.spec.metric_catalog import caveats, describe
from analysis.spec.settings import settings
from tests.analysis.conftest import Lines, MakeSweep, block_of, ended, logging, metrics, reported, studied

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


def drawn(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, tuple[str, Any]]:
    """Caption and canvas of every figure, laid out as it is saved."""
    kept = sketched(monkeypatch, lambda: figures(studied(folder), []))
    return {name: (found.caption, found.canvas) for name, found in kept.items()}


def sketched(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], object]) -> dict[str, Sketch]:
    """Every figure that a function draws, laid out as it is saved."""
    kept: dict[str, Sketch] = {}

    def keep(sketches: Sequence[Sketch]) -> list[Sketch]:
        for sketch in save(sketches):
            sketch.canvas.canvas.draw()
            kept[sketch.name] = sketch
        return []

    monkeypatch.setattr("analysis.figures.figures.save", keep)
    draw()
    return kept


def lines_of(canvas: Any) -> dict[str, Any]:
    return {line.get_gid(): line for line in canvas.axes[0].lines}


def test_figures_come_after_the_metrics_and_none_twice() -> None:
    found = settings(asked("actor/lr", REWARD, [WH, BUDGET], [LAMBDA, WH], metrics=(WH, "actor/grad_norm")))
    assert found.metrics == (REWARD, WH, "actor/grad_norm")
    drawn = [picture.metrics for picture in found.drawn]
    assert drawn == [(REWARD,), (WH, BUDGET), ("actor/grad_norm",), ("actor/lr",), (LAMBDA, WH)]


# ---------------------------------------------------------------- metrics that begin late, or not at all


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
    assert "Incomplete: C1 (BNTO minimal): 2 of 3 seeds; C3: 2 of 3 seeds, not recorded by seed 2; a dotted" in caption
    assert {"cut.1--C1", "end.1--C1"} <= set(lines_of(canvas)) and "cut.2--C3" not in lines_of(canvas)
    both, canvas = found["curve_analysis_wH_per_token__dual_game_B_token"]
    assert "C1 (BNTO minimal): 2 of 3 seeds; entropy budget B, C3: 2 of 3 seeds, not recorded by seed 2" in both
    assert "cut.1--C1" in lines_of(canvas)


# ---------------------------------------------------------------- combined figures


@pytest.mark.parametrize("size", [1e306, 1.7e308])
def test_a_curve_larger_than_any_axis_is_missing_not_an_error(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, size: float
) -> None:
    lines = logging(lambda group, seed, *_: {REWARD: 0.5, USAGE: size if (group, seed) == ("C1", 0) else 1.0}, STEPS)
    folder = make_sweep(("C0", "C1"), analysis=asked(metrics=(USAGE,)), lines=lines)
    assert studied(folder).ranges[USAGE].reasons == {"C1-0": "values too large to add up"}
    assert "2 of 3 seeds" in drawn(monkeypatch, folder)["curve_dual_game_usage_ratio"][0]


@pytest.mark.parametrize(
    ("first", "spike", "scale"), [(1.0, 1e4, "log"), (1.0, 100.0, "linear"), (1e-13, 1e4, "linear")]
)
def test_an_axis_is_logarithmic_where_a_spike_would_hide_all_else(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, first: float, spike: float, scale: str
) -> None:
    values = {1: first, STEPS // 2: spike}
    lines = logging(lambda *at: {REWARD: 0.5, USAGE: values.get(at[-1], 1.0)}, STEPS)
    folder = make_sweep(("C0", "C1"), analysis=asked(USAGE), lines=lines)
    axes = drawn(monkeypatch, folder)["curve_dual_game_usage_ratio"][1].axes[0]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale
    assert all(low < line.get_ydata().min() and line.get_ydata().max() < high for line in axes.lines)
    assert all("$" not in label.get_text() for label in axes.get_yticklabels())


def test_the_ninth_group_has_the_first_ones_colour_with_another_marker(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(["C0", *"123456789"], (0, 1), 20, asked([WH, "actor/ppo_kl"]))
    _, canvas = drawn(monkeypatch, folder)["curve_analysis_wH_per_token__actor_ppo_kl"]
    assert [len(legend.get_texts()) for legend in canvas.legends] == [10, 2]
    first, ninth = (lines_of(canvas)[f"metric1--{group}"] for group in ("C0", "8"))
    assert first.get_color() == ninth.get_color() and first.get_marker() != ninth.get_marker()


def test_caveat_of_two_metrics_stands_only_where_both_are_and_once_for_several() -> None:
    assert caveats([BUDGET]) == [] and len(caveats([WH])) == 1
    assert caveats([BUDGET, WH])[0].startswith("Entropy budget B: it bounds the method's own weighted entropy")
    both = caveats(["analysis/entropy_p50", "analysis/entropy_p90"])
    assert len(both) == 1 and both[0].startswith("Entropy surrogate, median token; entropy surrogate, 90% token: ")


# ---------------------------------------------------------------- the report


def test_report_shows_combined_figures_and_their_methods_toggle(make_sweep: MakeSweep) -> None:
    found = reported(make_sweep(BNTO, analysis=asked([WH, BUDGET], "dual_game/lamda"), lines=dual), "--figures", "png")
    html = found.page
    figure = html[html.index('aria-label="weighted entropy surrogate wH') :]
    figure = figure[: figure.index("</svg>")]
    # of C1: band, three seeds, mean, budget; C0 has no budget
    assert 'fill="currentColor"' in figure[:200]  # the baseline's band on dark paper
    assert figure.count('data-group="C1"') == 6 and figure.count('data-group="C0"') == 5
    assert "No run has recorded <code>dual_game/lamda</code>." in html
    shown = [figure["metrics"] for figure in found.document["settings"]["figures"]]
    assert shown == [[WH, BUDGET], ["dual_game/lamda"]]
    assert {comparison["metric"] for comparison in found.document["comparisons"]} == {REWARD}
    png = (found.report / "figures" / "curve_analysis_wH_per_token__dual_game_B_token.png").read_bytes()
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
