"""Like with like: two sweeps are compared at the levels of factors that both have, and the page names the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.data.sweep import read_sweep
from analysis.findings import common_cells
from analysis.findings.common_cells import NOT_RECORDED, LeftOutBecause
from analysis.findings.outcomes import Outcome, Reason
from analysis.findings.sweep_comparison import SweepComparison, compare_sweeps
from analysis.report.sweep_comparison import comparison, write_comparison
from analysis.spec.settings import REWARD, settings
from launcher import files
from launcher.run.folder import run_folder
from tests.analysis.conftest import Lines, sweeps_in

KEY = "verl.actor_rollout_ref.actor.optim.lr"
LOW, HIGH, OTHER = 0.0001, 0.5, 0.0002
ALONE = {"primary": {"metric": REWARD, "summary": "final"}, "metrics": []}


def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """A reward that stands at 0.46, with the seed's luck, and at 0 where the rate is HIGH."""
    height = 0.0 if cell["lr"] == HIGH else 0.46 + 0.01 * seed + cell.get("gain", 0.0)
    return [{"step": step, "attempt": 1, "time": 1.0, REWARD: height + 0.001 * (step % 2)} for step in range(1, 21)]


def sweep(
    root: Path,
    name: str,
    rates: Sequence[float],
    seeds: Sequence[int] = (0, 1),
    gain: float = 0.0,
    label: str = "lr",
    where: str = "config",
) -> Path:
    """One group, C0, at these learning rates: a factor if there are several, else a fixed setting of the configuration,
    or of the base that it names."""
    cells = [{"lr": rate, "gain": gain} for rate in rates]
    folder = sweeps_in(root / name)(("C0",), seeds, 20, ALONE, {"C0": cells}, name, lines=lines)
    plan = json.loads((folder / "plan.json").read_text())
    if len(rates) > 1:
        plan["factors"] = {KEY: {"label": label, "levels": list(rates)}}
    for run in plan["runs"]:
        old, rate = run["id"], run["factors"]["lr"]
        run["id"] = f"C0-{run['seed']}-{rate}-{gain}"  # the same for the same configuration and code
        run["factors"] = {label: rate} if len(rates) > 1 else {}
        path = run_folder(folder.parent, run["id"])
        run_folder(folder.parent, old).rename(path)
        config: dict[str, Any] = {"format": 1, "id": run["id"], "seed": run["seed"], "base": "tree", "verl": {}}
        tree = {"actor_rollout_ref": {"actor": {"optim": {"lr": rate}}}}
        if where == "config":
            config["verl"] = tree
        (folder.parent / "bases").mkdir(exist_ok=True)
        (folder.parent / "bases" / "tree.yaml").write_text(yaml.safe_dump(tree if where == "base" else {}))
        if where != "nowhere":
            (path / "config.yaml").write_text(yaml.safe_dump(config))
    files.write_json(folder / "plan.json", plan)
    return folder


def compared(a: Path, b: Path) -> SweepComparison:
    first, second = read_sweep(a), read_sweep(b)
    return compare_sweeps(first, second, settings(first.plan["analysis"]))


def test_what_does_not_vary_is_no_part_of_a_cell() -> None:
    assert common_cells._without((("lr", LOW), ("n", 2)), {"lr"}) == (("n", 2),)


@pytest.mark.usefixtures("without_pdfs")
def test_a_level_that_one_sweep_has_is_not_averaged_in(tmp_path: Path) -> None:
    """The runs at LOW are bit for bit the same, and nothing else is in both: there is no difference to report."""
    a, b = sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (LOW,))
    found = compared(a, b)
    (pair,) = found.study.primary.comparisons
    assert pair.ground is not None and pair.ground.reason is Reason.SAME_RUNS and pair.result.mean_difference is None
    (out,) = found.left_out
    assert out.why is LeftOutBecause.ONLY_A and out.cells == ((("lr", HIGH),),)
    page, printed = write_comparison(a, b)
    assert printed[1:] == ["C0 (GRPO): the same runs.", "Not compared, only in A: lr = 0.5 (C0 (GRPO))."]
    assert "Not compared, only in A: lr = 0.5 (C0 (GRPO))." in page.read_text()
    document = json.loads(page.with_name("report.json").read_text())
    assert document["left_out"] == [
        {"group": "C0", "why": "only_a", "cells": [[["lr", HIGH]]], "planned": [[["lr", LOW]], [["lr", HIGH]]]}
    ]
    assert compared(b, a).left_out[0].why is LeftOutBecause.ONLY_B


@pytest.mark.parametrize("where", ["config", "base"])
def test_the_difference_is_of_the_cell_that_both_have(tmp_path: Path, where: str) -> None:
    found = compared(sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (LOW,), gain=0.1, where=where))
    (pair,) = found.study.primary.comparisons
    assert pair.result.n == 2 and pair.result.mean_difference == pytest.approx(0.1)
    row = comparison(found).rows[0]
    assert row[3].startswith("0.466 ") and row[4].startswith("0.566 ")
    assert {run.cell for run in found.study.sweep.runs} == {(("lr", LOW),)}


def test_sweeps_without_a_cell_in_common_say_which_cells_they_have(tmp_path: Path) -> None:
    found = compared(sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (OTHER,)))
    (pair,) = found.study.primary.comparisons
    assert pair.outcome is Outcome.NOT_EVALUABLE and pair.ground is not None
    assert pair.ground.reason is Reason.NO_COMMON_CELL
    assert pair.ground.cells == (((("lr", LOW),), (("lr", HIGH),)), ((("lr", OTHER),),))
    row = comparison(found).rows[0]
    assert row[-1] == "no cell is in both: C0 (GRPO) of A has lr = 0.0001 or lr = 0.5; C0 (GRPO) of B has lr = 0.0002"
    assert row[3:5] == ("-", "-") and not found.left_out


def test_a_level_that_no_configuration_tells_is_not_taken_for_another(tmp_path: Path) -> None:
    found = compared(sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (LOW,), gain=0.1, where="nowhere"))
    (pair,) = found.study.primary.comparisons
    assert pair.ground is not None and pair.ground.cells[1] == ((("lr", NOT_RECORDED),),)


def test_a_run_that_was_not_started_has_the_level_of_its_group(tmp_path: Path) -> None:
    a, b = sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (LOW,), gain=0.1)
    (run_folder(b.parent, f"C0-1-{LOW}-0.1") / "config.yaml").unlink()
    assert compared(a, b).study.primary.comparisons[0].result.n == 2


def test_factors_are_matched_by_key_and_not_by_label(tmp_path: Path) -> None:
    a = sweep(tmp_path, "a", (LOW, HIGH))
    b = sweep(tmp_path, "b", (HIGH, LOW), gain=0.1, label="optim.lr")
    found = compared(a, b)
    assert found.common["C0"].cells == ((("lr", LOW),), (("lr", HIGH),)) and not found.left_out
    at = found.by_cell("C0")
    assert at == {(("lr", LOW),): pytest.approx(0.1), (("lr", HIGH),): 0.0}


@pytest.mark.usefixtures("without_pdfs")
def test_a_cell_whose_runs_are_the_same_is_left_out_of_the_difference(tmp_path: Path) -> None:
    """At LOW both have the same runs; at OTHER they were run again, by other code, and gained."""
    a, b = sweep(tmp_path, "a", (LOW, OTHER)), sweep(tmp_path, "b", (LOW, OTHER))
    for seed in (0, 1):
        log = run_folder(b.parent, f"C0-{seed}-{OTHER}-0.0") / "metrics.jsonl"
        gained = lines("C0", seed, {"lr": OTHER, "gain": 0.1})
        log.write_text("".join(json.dumps(line) + "\n" for line in gained))
    found = compared(a, b)
    assert found.study.primary.comparisons[0].result.mean_difference == pytest.approx(0.1)
    assert [(out.why, out.cells) for out in found.left_out] == [(LeftOutBecause.SAME_RUNS, ((("lr", LOW),),))]
    assert "Not compared, the same runs in both: lr = 0.0001 (C0 (GRPO))." in write_comparison(a, b)[1]


@pytest.mark.usefixtures("without_pdfs")
def test_each_cell_has_its_difference_beside_the_mean(tmp_path: Path) -> None:
    a, b = sweep(tmp_path, "a", (LOW, HIGH)), sweep(tmp_path, "b", (LOW, HIGH), gain=0.1)
    assert "C0 (GRPO) by cell: +0.100 at lr = 0.0001, 0 at lr = 0.5." in write_comparison(a, b)[1]
