"""What a paper's checklist asks: source of variability, method, compute per run and in total, failed attempts too."""

from __future__ import annotations

import json

import pytest

from analysis.report import write
from launcher import files
from launcher.run.folder import find_state, read_provenance, run_folder, write_state
from tests.analysis.conftest import MakeSweep


def spend(multirun, run_id, seconds, **fields):
    folder = run_folder(multirun, run_id)
    write_state(folder, find_state(folder).replace(device_seconds=seconds, attempt=len(seconds), **fields))
    machine = {"cpu_count": 8, "platform": "Linux", "devices": {"gpus": ["NVIDIA H100, 81559 MiB", "NVIDIA H100"]}}
    files.write_json(folder / "provenance.json", {**read_provenance(folder), **machine})


@pytest.fixture
def report(make_sweep: MakeSweep):
    folder = make_sweep(groups=("C0", "C1"), seeds=(0, 1))
    plan = json.loads((folder / "plan.json").read_text())
    first, second, third, fourth = (entry["id"] for entry in plan["runs"])
    spend(folder.parent, first, {"1": 3600.0, "2": 7200.0})
    spend(folder.parent, second, {"1": 3600.0})
    spend(folder.parent, third, {"1": 1800.0})
    spend(folder.parent, fourth, {"1": 900.0}, state="failed", message="no memory")
    return write(folder)


def test_the_cost_of_a_method_has_its_failed_attempts(report):
    (cost,) = [table for table in report.tables if table.name == "cost"]
    keys = ("device_hours_mean", "device_hours_total", "device_hours_unfinished")
    found = {record["group"]: tuple(record[key] for key in keys) for record in cost.records}
    assert found == {"C0": (2.0, 4.0, 1.0), "C1": (0.5, 0.75, 0.25)}
    assert cost.columns[-3:] == ("device-hours a run", "device-hours in all", "of them in unfinished attempts")


def test_the_checklist_answers_in_the_words_of_the_checklist(report):
    (checklist,) = [table for table in report.tables if table.name == "checklist"]
    answers = {record["item"]: record["answer"] for record in checklist.records}
    assert "seeds 0, 1" in answers["factors of variability"]
    assert "differences are paired" in answers["factors of variability"]
    assert "95% intervals over seeds, by the paired t test" in answers["error bars: method and assumptions"]
    assert answers["runs"] == "3 runs done of 4 planned, in 5 attempts"
    assert answers["type of compute workers"] == "GPU: 2 x NVIDIA H100, 81559 MiB"
    assert answers["compute per run"] == "1.5 device-hours (C0 (GRPO) 2.0, C1 (BNTO minimal) 0.50)"
    assert answers["compute in total"].startswith("4.75 device-hours, with 1.25 of attempts that failed or were")
    page = report.index.read_text()
    assert page.index('id="cost"') < page.index('id="checklist"') and "compute in total" in page


def test_runs_of_an_older_version_have_no_compute(make_sweep: MakeSweep):
    tables = {table.name: table for table in write(make_sweep(groups=("C0", "C1"), seeds=(0, 1))).tables}
    assert {"compute per run", "compute in total"}.isdisjoint(row[0] for row in tables["checklist"].rows)
    assert all(row[-3:] == ("-", "-", "-") for row in tables["cost"].rows)


def test_an_import_asserts_nothing_of_its_seeds(make_sweep: MakeSweep):
    folder = make_sweep(groups=("C0", "C1"), seeds=(0, 1))
    plan = json.loads((folder / "plan.json").read_text())
    for pairing, says in (("none", "seeds are not paired"), ("seed", "a seed is declared to be the same under each")):
        asked = {**plan["analysis"], "pairing": pairing}
        files.write_json(folder / "plan.json", {**plan, "imported": True, "analysis": asked})
        (checklist,) = [table for table in write(folder).tables if table.name == "checklist"]
        answer = dict(checklist.rows)["factors of variability"]
        assert "what it fixes is not known" in answer and says in answer
        assert "initial weights" not in answer and "a seed is the same" not in answer
