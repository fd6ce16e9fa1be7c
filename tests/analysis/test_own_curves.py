"""Reports of curves whose truth is known: which run began late, reached the threshold early, or was not finite."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.__main__ import main

pytestmark = pytest.mark.usefixtures("unrendered")
Values = Callable[[int], float]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """Report groups of curves, {group: (steps, value of a step)}; seed s adds s/100. The record, and the text."""

    def made(seeds: int = 6, analysis: Any = None, **groups: tuple[Iterable[int], Values]) -> tuple[Any, str]:
        lines = ["algo,seed,step,acc"]
        lines += [
            f"{group},{seed},{step},{value(step) + seed / 100}"
            for group, (steps, value) in groups.items()
            for seed in range(seeds)
            for step in steps
        ]
        (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
        study = {"paths": [str(tmp_path / "x.csv")], "into": str(tmp_path / "study" / "x"), "group": "algo"}
        study |= {"seed": "seed", "metric": ["acc"], "baseline": "base", "analysis": analysis or {}}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        assert main(["report", str(tmp_path / "study.yaml")]) == 0
        folder = tmp_path / "study" / "x" / "report"
        return json.loads((folder / "report.json").read_text()), (folder / "tables" / "main.md").read_text()

    return made


def measured(record: Any, summary: str, group: str) -> Any:
    """A group's row of the main table."""
    rows = record["tables"]["main"]
    return next(row for row in rows if row["summary"] == summary and row["group"] == group)


def test_a_time_before_the_first_window_of_every_run_is_no_exact_time(report: Any) -> None:
    """A has the threshold when its logs begin, at 500: nothing says that it took longer than the baseline."""
    asked = {"metric": "acc", "at": 0.3, "group": "A"}
    claims = {
        "later": {"claim": "A is later", "kind": "greater", "summary": "time_to", **asked},
        "same": {"claim": "A is as fast", "kind": "ratio", "summary": "efficiency", "at_least": 0.8, **asked},
    }
    record, text = report(
        analysis={"time_to": [{"at": 0.3}], "hypotheses": claims},
        base=(range(0, 1001, 10), lambda step: step / 1000),
        A=(range(500, 1501, 10), lambda step: 0.5 + step / 1000),
    )
    assert [measured(record, "time_to", group)["mean"] for group in ("base", "A")] == [590, 590]  # 10 points from 500
    assert measured(record, "time_to", "A")["p"] is None
    assert {verdict["id"]: verdict["verdict"] for verdict in record["hypotheses"]} == dict.fromkeys(
        claims, "not evaluable"
    )
    assert "12 runs reached it in the first window that every run has, or before" in text


@pytest.mark.parametrize(("points", "base"), [(11, 340), (26, 340), (401, 340)])
def test_times_of_short_logs_are_those_of_their_curves(report: Any, points: int, base: float) -> None:
    """The window is at most a tenth of a log, or the first whole window of a short one would be its end."""
    steps = [round(step) for step in np.linspace(0, 1000, points)]
    record, _ = report(
        analysis={"time_to": [{"at": 0.4}]},
        base=(steps, lambda step: step / 850),
        A=(steps, lambda step: step / 225),
    )
    window = 1000 / (points - 1) * max(1, min(20, points // 10))
    for group, time in (("base", base), ("A", 90)):
        assert measured(record, "time_to", group)["mean"] == pytest.approx(time, abs=25 + window / 2)


def test_where_none_is_declared_the_window_of_each_metric_follows_its_own_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An evaluation at each 50th of 1000 steps has 20 values, whichever metric comes first."""
    for group, slow in (("base", 1.0), ("A", 0.5)):
        for seed in range(3):
            rows = [f"{t},0.5,{'' if t % 50 else t / slow}" for t in range(1, 1001)]
            (log := tmp_path / group / f"seed{seed}" / "metrics.csv").parent.mkdir(parents=True)
            log.write_text("\n".join(["step,acc,score", *rows]) + "\n")
    into = tmp_path / "study" / "x"
    for metrics in (["acc", "score"], ["score", "acc"]):
        asked = {"paths": [str(tmp_path / group) for group in ("base", "A")], "into": str(into), "metric": metrics}
        asked["analysis"] = {"time_to": [{"metric": "score", "at": 500, "direction": "higher"}]}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(asked))
        assert main(["report", str(tmp_path / "study.yaml")]) == 0
        record = json.loads((into / "report" / "report.json").read_text())
        found = {row["group"]: row["mean"] for row in record["tables"]["main"] if row["summary"] == "time_to"}
        assert found == {"base": 525, "A": 275}, metrics  # where the mean of two points is 500
        assert "20 points, or 1/10 of those that a run has" in (into / "report" / "index.html").read_text()


def test_a_group_that_begins_where_the_other_ends_has_no_final_value(report: Any) -> None:
    record, text = report(
        base=(range(0, 1001, 10), lambda step: step / 1000),
        A=(range(1000, 2001, 10), lambda step: step / 1000 - 0.5),
    )
    assert measured(record, "final", "base")["mean"] == pytest.approx(0.955 + 0.025)
    assert measured(record, "final", "A")["mean"] is None
    assert "acc begins at step 1000, and the shortest run ends at 1000" in text


def test_imports_claim_no_check_of_health_and_name_the_last_finite_value(report: Any) -> None:
    record, text = report(
        base=(range(1, 101), lambda step: step / 100),
        A=(range(1, 101), lambda step: step / 100 if step <= 97 else float("nan")),
    )
    assert "checks" not in record["tables"]
    assert "measured to step 97" in text


def test_seeds_that_would_decide_count_those_that_show_equivalence(report: Any, tmp_path: Path) -> None:
    """Of a difference near 0 and a margin, far fewer show that it is below the margin than that it is not 0."""
    claim = {"claim": "A is better", "kind": "greater", "metric": "acc", "group": "A", "margin": 0.5}
    luck, steps = [*np.repeat([0.7, -0.7] * 4, 10)], range(1, 11)
    base, others = iter(luck), iter(luck)
    report(
        8,
        {"hypotheses": {"h": claim}},
        base=(steps, lambda _: next(base)),
        A=(steps, lambda _: next(others) + 0.07),
    )
    said = (tmp_path / "study" / "x" / "report" / "tables" / "hypotheses.md").read_text()
    needed = int(said.partition(" seeds would decide")[0].rpartition("about ")[2])
    assert 8 < needed < 100
