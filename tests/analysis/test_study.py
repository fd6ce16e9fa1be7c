"""From runs to comparisons: common ranges, grids, gaps, thresholds, verdicts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data import cells
from analysis.data.run_values import common_range, value_of
from analysis.data.sweep import read_sweep
from analysis.figures.learning_curves import passing, series
from analysis.findings.study import Gap, Ground, Outcome, Reason
from analysis.report.headline import answer
from analysis.stats import t_test
from analysis.tables.comparison import tables
from tests.analysis.conftest import UP, Lines, LinesOf, MakeSweep, block_of, ended, logging, replan, studied, without

REWARD = "analysis/reward_sum_mean"
ALONE = {"primary": {"metric": REWARD, "summary": "final"}}


def height(group: str, seed: int, *_: object) -> float:
    return {"C0": 0.5, "C1": 0.6}[group] + 0.01 * seed + 0.001 * seed * (group == "C1")


level = logging(height, metric=REWARD)


def two(make_sweep: MakeSweep, lines: LinesOf = level, analysis: Mapping[str, Any] = ALONE, **more: Any) -> Path:
    return make_sweep(**{"groups": ("C0", "C1"), "steps": 20, "analysis": analysis, "lines": lines, **more})


def test_every_group_is_compared_with_the_baseline_on_shared_seeds(make_sweep: MakeSweep) -> None:
    block = studied(make_sweep()).primary
    assert [c.group for c in block.comparisons] == ["C1", "asymmetric_clip", "PTRW"]
    first = block.comparisons[0]
    assert (first.seeds, first.outcome, first.ground) == ((0, 1, 2), Outcome.HIGHER, None)
    assert first.contrast.test == "paired_t" and (block.start, block.stop) == (1, 60)
    assert first.difference == pytest.approx(np.mean(first.contrast.a) - np.mean(first.contrast.b))
    assert first.interval == pytest.approx(
        t_test.t_interval(np.subtract(first.contrast.a, first.contrast.b), first.level)
    )


def test_failed_and_missing_runs_leave_gaps_not_smaller_means(make_sweep: MakeSweep) -> None:
    folder = without(ended(make_sweep(), "failed", "C1-1"), "PTRW-2")
    block = studied(folder).primary
    by_group = {c.group: c for c in block.comparisons}
    assert by_group["C1"].seeds == (0, 2) and by_group["PTRW"].seeds == (0, 1)
    assert by_group["C1"].gaps == (Gap(1, (), "C1: no result"),)
    estimates = {e.group: e for e in block.estimates}
    assert len(estimates["C1"].seeds) == 2 and estimates["C1"].planned == 3
    assert estimates["C1"].gaps == (Gap(1, (), "failed (last step 60)"),)
    assert "no run folder" in estimates["PTRW"].gaps[0].why
    assert by_group["asymmetric_clip"].n == 3
    without(folder, "C0-0")  # of the baseline: it costs every group that pair
    assert {c.seeds for c in studied(folder).primary.comparisons} == {(1, 2), (2,), (1,)}
    shutil.rmtree(folder.parent / "runs")
    found = studied(folder)
    none = {(Outcome.NOT_EVALUABLE, Ground(Reason.NO_PAIR))}
    assert {(c.outcome, c.ground) for c in found.primary.comparisons} == none
    assert all(c.adjusted is None and c.p is None for block in found.blocks for c in block.comparisons)


def test_run_that_ends_early_is_excluded_or_carried_and_an_infinite_value_is_a_gap(make_sweep: MakeSweep) -> None:
    def short(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        lines = level(group, seed, cell)[: 12 if (group, seed) == ("C1", 1) else 20]
        lines[6][REWARD] = float("inf") if (group, seed) == ("C1", 0) else lines[6][REWARD]
        return lines

    folder = two(make_sweep, short)
    found = studied(folder)
    assert found.primary.comparisons[0].seeds == (2,)
    infinite, early = found.primary.estimates[1].gaps
    assert infinite == Gap(0, (), "infinite at 7") and f"{REWARD} ends at step 12 of 20" in early.why
    carried = studied(folder, incomplete="carry").primary
    assert carried.comparisons[0].seeds == (1, 2) and "carried forward" in carried.estimates[1].gaps[1].why


LENGTHS = {group: [{"steps": 10}, {"steps": 40}] for group in ("C0", "C1")}


def test_runs_of_several_planned_lengths_are_each_measured_to_their_own_end(make_sweep: MakeSweep) -> None:
    """C0 stays; C1 rises with every step. At the shortest length the final value is the mean of steps 9 and 10."""

    rising = logging(lambda group, seed, _, step: 0.1 * seed + (group == "C1") * 0.01 * step, 40, REWARD)
    folder = two(make_sweep, lambda *at: rising(*at)[: at[2]["steps"]], steps=40, cells=LENGTHS)
    replan(folder, lambda plan: plan["factors"].update({"trainer.steps": {"label": "steps", "levels": [10, 40]}}))
    found = studied(folder)
    values = {run: value.value for run, value in found.primary.values.items()}
    assert values["C1-0-0"] == pytest.approx(0.1) and values["C1-0-1"] == pytest.approx(0.01 * 38.5)
    assert values["C0-2-0"] == values["C0-2-1"] == pytest.approx(0.2)
    (area,) = (block for block in found.blocks if block.measure.summary == "auc")
    assert area.values["C1-0-1"].value == pytest.approx(0.01 * 20.5)
    (comparison,) = found.primary.comparisons
    assert comparison.difference == pytest.approx((0.1 + 0.385) / 2)
    notes = [note for table in tables(found, []) for note in table.notes]
    each = "each level is measured to its own end, from step 10 (steps = 10) to step 40 (steps = 40)"
    assert any(each in note for note in notes) and "Each level is measured" in answer(found).result


def test_a_short_run_is_no_result_of_its_planned_length(make_sweep: MakeSweep) -> None:
    def broken(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        last = 12 if (group, seed, cell["steps"]) == ("C1", 1, 40) else cell["steps"]
        return logging(lambda *_: 0.5 + 0.01 * seed, last, REWARD)(group, seed, cell)

    sweep = read_sweep(two(make_sweep, broken, steps=40, cells=LENGTHS))
    runs = common_range(sweep.runs, REWARD, "exclude", window=20, lengths="steps")
    assert runs.reasons == {"C1-1-1": f"{REWARD} ends at step 12 of 40"}
    assert (runs.stop, runs.end("C0-0-0"), runs.end("C0-0-1")) == (10, 10, 40)
    carried = common_range(sweep.runs, REWARD, "carry", window=20, lengths="steps")
    assert carried.curves["C1-1-1"][0][-1] == 40


def lacking(first: slice, other: slice) -> LinesOf:
    """Lines without the metric in these places of C0 and of C1."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        made = level(group, seed, cell)
        for line in made[other if group == "C1" else first]:
            del line[REWARD]
        return made

    return lines


def test_common_range_follows_a_metric_that_begins_late_in_one_group(make_sweep: MakeSweep) -> None:
    block = studied(two(make_sweep, lacking(slice(0), slice(4)))).primary
    assert (block.start, block.stop) == (5, 20) and block.comparisons[0].n == 3


def test_a_run_that_begins_where_others_have_ended_has_no_summary(make_sweep: MakeSweep) -> None:
    runs = read_sweep(two(make_sweep, lacking(slice(12), slice(8, None)))).runs
    common = common_range(runs, REWARD, "exclude", window=20)
    said = {"C0": f"{REWARD} begins at step 13, and the shortest run ends at 8", "C1": None}
    for summary in ("auc", "best", "mean", "slope"):
        found = {run.id: value_of(common, run.id, summary, "higher") for run in runs}
        assert {run.id: found[run.id].reason for run in runs} == {run.id: said[run.group] for run in runs}
        assert all((found[run.id].value is None) == (run.group == "C0") for run in runs)


def test_a_mistyped_primary_metric_is_named_with_the_one_that_was_meant(make_sweep: MakeSweep) -> None:
    asked = {"primary": {"metric": "analysis/reward_sum_men"}}
    said = answer(studied(make_sweep(groups=("C0", "C1"), steps=20, analysis=asked)))
    meant = "No run has recorded analysis/reward_sum_men; did you mean analysis/reward_sum_mean?"
    assert said.certainty.startswith(meant)
    assert not any("0 pairs" in line for line in said.limits)


def test_level_that_diverges_in_every_seed_is_named_and_takes_no_other_with_it() -> None:
    planned = [(("lr", lr), ("k", k)) for lr in (0.1, 0.2) for k in (0, 1, 2)]
    kept = cells.keep({(seed, cell): None if dict(cell)["lr"] == 0.2 else 1.0 for seed in (0, 1) for cell in planned})
    assert set(kept.seeds) == {0, 1} and not kept.lost and kept.left_out == "lr = 0.2"
    none = cells.keep({(seed, cell): None for seed in (0, 1) for cell in planned})
    assert not none.seeds and none.lost == {0: "no result", 1: "no result"}
    assert cells.named([planned[0], planned[1], planned[4]], planned) == "k = 1; lr = 0.1, k = 0"
    larger = [(("a", a), ("b", b)) for a in range(4) for b in range(4)]
    assert cells.named(larger[::5], larger) == "a = 0, b = 0; a = 1, b = 1; a = 2, b = 2; and 1 more"


def test_time_to_counts_those_that_never_reach(make_sweep: MakeSweep) -> None:
    found = studied(make_sweep(steps=150))
    block = block_of(found, REWARD, "time_to")
    assert block.measure.threshold == pytest.approx(0.9 * found.primary.estimate("C0").mean)
    ptrw, comparison = block.estimate("PTRW"), block.comparison("PTRW")
    assert ptrw.reached == (2, 3) and comparison is not None and comparison.p == 0.25
    times = [block.values[run.id].value for run in found.sweep.runs if run.group == "PTRW"]
    assert max(times) == 150 and ptrw.mean == pytest.approx(np.mean(times))


def test_time_to_that_nobody_reaches_compares_nothing(make_sweep: MakeSweep) -> None:
    block = block_of(studied(make_sweep(analysis={**ALONE, "time_to": [{"at": 9.0}]})), REWARD, "time_to")
    for comparison in block.comparisons:
        assert comparison.p is None and comparison.adjusted is None
        assert (comparison.outcome, comparison.ground) == (Outcome.NOT_EVALUABLE, Ground(Reason.NOT_REACHED))


@pytest.mark.parametrize("direction", ["higher", "lower"])
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("rising", [True, False])
def test_a_best_value_is_never_worse_than_the_final_one(
    make_sweep: MakeSweep, rising: bool, every: int, direction: str
) -> None:
    lines = logging(lambda *at: at[-1] if rising else -at[-1], range(every, 31, every))
    asked = {"primary": {"metric": UP, "direction": direction}}
    found = studied(make_sweep(("A", "B"), steps=30, analysis=asked, lines=lines))
    best, final = (block_of(found, UP, summary).estimate("A").mean for summary in ("best", "final"))
    assert best >= final if direction == "higher" else best <= final


# ---------------------------------------------------------------- samples and seconds on the axis


@pytest.mark.parametrize(
    ("axis", "clock", "label"),
    [("samples", "samples/total", "responses generated"), ("seconds", "cost/wall_seconds", "wall time (s)")],
)
def test_samples_and_seconds_are_each_runs_own_and_the_budget_is_what_all_have(
    axis: str, clock: str, label: str, make_sweep: MakeSweep
) -> None:
    def thrifty(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
        """C1 learns as fast by step, on half of the samples; the seed 2 of C1 lost its count."""
        counted = {} if (group, seed) == ("C1", 2) else {clock: step * (100 if group == "C0" else 50)}
        return {REWARD: step / 100 + 0.01 * seed, **counted}

    section = {"primary": {"metric": REWARD}, "time_to": [{"at": 0.8}], "axis": axis, "window": 1}
    found = studied(two(make_sweep, logging(thrifty, 100), section, steps=100))
    assert passing(found) == label
    block = block_of(found, REWARD, "time_to")
    assert block.budget == 5000
    assert (block.values["C0-0"].value, block.values["C0-0"].reached) == (5000, False)  # 8000 responses are too many
    assert (block.values["C1-0"].value, block.values["C1-0"].reached) == (pytest.approx(4000), True)
    assert block.values["C1-2"].reason == f"{clock} is not recorded"
    curves = {s.group: s for s in series(found, REWARD)}
    assert curves["C1"].axis[-1] == 5000 and curves["C0"].axis[-1] == 10000 and len(curves["C1"].whole) == 2


def test_efficiency_is_the_baselines_time_over_the_groups_paired_by_seed(make_sweep: MakeSweep) -> None:
    def risen(group: str, seed: int, _: object, step: int) -> float:
        return (2.0 if group == "C1" else 1.0) * (1 + 0.1 * seed) * (1 + 0.02 * seed * (group == "C1")) * step / 100

    lines = logging(risen, 100, REWARD)
    section = {"primary": {"metric": REWARD}, "time_to": [{"at": 0.5}], "window": 1}
    found = studied(make_sweep(("C0", "C1"), range(6), steps=100, lines=lines, analysis=section))
    (table,) = [table for table in tables(found) if table.name == "efficiency"]
    times = np.array([50 / (1 + 0.1 * seed) for seed in range(6)])
    ratios = np.array([2.0 * (1 + 0.02 * seed) for seed in range(6)])
    record = table.records[1]
    assert record["efficiency"] == pytest.approx(times.mean() / (times / ratios).mean(), rel=1e-6)
    # one of the 32 patterns of signs may be as extreme: all ratios of sums over a subset but the lowest and the highest
    assert (record["low"], record["high"]) == pytest.approx((ratios.min(), ratios.max()), rel=1e-6)
    assert table.rows[0][-1] == "baseline" and table.rows[1][2] == "6 of 6" and record["bound"] is None
