"""`runs`, and plans that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from launcher import files
from launcher.__main__ import main
from launcher.run import catalog, launch_record
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, find_state
from launcher.tracking.settings import labels
from tests.launcher.conftest import ROOT
from tests.launcher.made import make_plan, make_run


@pytest.fixture
def multirun(tmp_path):
    """Two groups, one with a factor; the runs of an array of jobs; a run in two experiments, and one in none."""
    make_run(tmp_path, "a1", RunState.DONE, steps=10)
    make_run(tmp_path, "a2", RunState.FAILED, steps=3, message="no", failure_kind="exception", launch_id="ab12")
    make_run(tmp_path, "b1", RunState.SUBMITTED, steps=0, launch_id="ab12")
    make_run(tmp_path, "b2", RunState.PREEMPTED, steps=4)
    make_run(tmp_path, "cc", RunState.DONE)
    make_plan(tmp_path, "study", {"A": ["a1", "a2"], "B": ["b1", "b2", "b3"]})
    make_plan(tmp_path, "again", {"A": ["a1"]})
    path = tmp_path / "study/plan.json"
    plan = json.loads(path.read_text())
    plan["factors"] = {"method.sigma": {"label": "sigma", "levels": [0.2, 0.4]}}
    for entry in plan["runs"]:
        if entry["group"] == "B":
            entry["factors"] = {"sigma": 0.2 if entry["id"] != "b2" else 0.4}
    files.write_json(path, plan)
    launch_record.add_jobs(tmp_path / "launches/ab12.json", {"a2": "77_0", "b1": "77_1"})
    return tmp_path


def listed(multirun, capsys, *words):
    assert main(["runs", *words, "--json", "--multirun", str(multirun)]) == 0
    return json.loads(capsys.readouterr().out)["runs"]


def ids(multirun, capsys, *words):
    return [run["id"] for run in listed(multirun, capsys, *words)]


def test_a_run_has_its_place_state_job_step_and_folder(multirun, capsys):
    runs = {run["id"]: run for run in listed(multirun, capsys, "study")}
    assert list(runs) == ["a1", "a2", "b1", "b2", "b3"]
    assert runs["b1"] == {
        "id": "b1",
        "experiment": "study",
        "group": "B",
        "factors": {"sigma": 0.2},
        "seed": 0,
        "state": "submitted",
        "kind": None,
        "cause": None,
        "job": "77_1",
        "step": 0,
        "folder": str(run_folder(multirun, "b1")),
    }
    assert (runs["a2"]["cause"], runs["a2"]["kind"], runs["a2"]["job"]) == ("no", "exception", "77_0")
    assert (runs["a1"]["step"], runs["a1"]["job"], runs["b3"]["state"]) == (10, None, "new")


def test_a_run_of_several_experiments_that_is_named_by_its_id_is_listed_once(multirun, capsys):
    assert ids(multirun, capsys, "a1") == ["a1"]
    assert sorted(ids(multirun, capsys)) == ["a1", "a1", "a2", "b1", "b2", "b3"]


def test_all_lists_the_runs_that_no_plan_names(multirun, capsys):
    assert "cc" not in ids(multirun, capsys)
    assert ids(multirun, capsys, "--all")[-1] == "cc"
    assert ids(multirun, capsys, "again", "--all") == ["a1", "cc"]
    assert main(["runs", "--all", "--multirun", str(multirun)]) == 0
    assert "cc " in capsys.readouterr().out


DAMAGED = {
    "a list": "[]", "empty": "", "torn": '{"format": 1, "runs": [', "zeros": "\0" * 50,
    "another format": '{"format": 9}',
    "no steps": '{"format": 1, "experiment": "again", "analysis": {}, "runs": []}', "deep": "[" * 10**5,
    "an entry": '{"format": 1, "experiment": "again", "steps": 1, "analysis": {}, "runs": [3]}',
    "an analysis": '{"format": 1, "experiment": "again", "steps": 1, "analysis": {"primary": []}, "runs": [{"id": 1}]}',
    "bytes": b"\xff\xfe", "a folder": None,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_plan_that_cannot_be_read_is_named_and_the_others_work(multirun, capsys, damage):
    path, content = multirun / "again/plan.json", DAMAGED[damage]
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    catalog.warn.cache_clear()
    for words in (["status"], ["runs"], ["logs", "study"], ["logs", "a2"], ["gc"], ["status", "study"]):
        assert main([*words, "--multirun", str(multirun)]) in ((1,) if words[0] == "status" else (0,)), words
        said = capsys.readouterr()
        assert "Traceback" not in said.err and (words[0] == "gc" or "study" in said.out or "a2" in said.out)
        assert said.err.count("left out: ") == (words == ["status"])  # once in a process
    for words in (["status", "again"], ["runs", "again"], ["logs", "again"], ["cancel", "again"]):
        assert main([*words, "--multirun", str(multirun)]) == 2
        assert "again/plan.json" in (said := capsys.readouterr().err) and "Fix: repeat its command" in said
    assert set(labels(multirun)) == {"a1", "a2", "b1", "b2", "b3"}


def test_people_read_a_line_for_each_run(multirun, capsys):
    assert main(["runs", "study", "--multirun", str(multirun)]) == 0
    heading, *lines, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["id", "group", "factors", "seed", "state", "job", "step", "folder"]
    assert lines[2].split() == ["b1", "B", "sigma=0.2", "0", "queued", "77_1", "0", str(run_folder(multirun, "b1"))]
    assert last == "5 runs"
    main(["runs", "--multirun", str(multirun)])
    assert "experiment" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["a1", "a1", "a2", "b1", "b2", "b3"]),
        (["again"], ["a1"]),
        (["cc"], ["cc"]),
        (["study", "study", "a1"], ["a1", "a2", "b1", "b2", "b3", "a1"]),
    ],
)
def test_names_choose_the_runs(multirun, capsys, words, expected):
    assert ids(multirun, capsys, *words) == expected


def test_status_names_the_jobs_and_says_queued(multirun, capsys):
    main(["status", "study", "--multirun", str(multirun)])
    out = capsys.readouterr().out
    assert "1 queued" in out.splitlines()[0] and "jobs: 77 (1 queued)" in out and "submitted" not in out
    main(["status", "study", "--json", "--multirun", str(multirun)])
    document = json.loads(capsys.readouterr().out)["study"]
    assert document["jobs"] == {"77": {"submitted": 1}} and document["states"]["submitted"] == 1


def test_a_choice_of_code_needs_the_runs_that_it_is_for(multirun, capsys):
    assert main(["resume", "accept_code=true", "--multirun", str(multirun)]) == 2
    assert "accept_code=true: no experiment or run is named" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.train
def test_rerun_archives_a_done_run_and_runs_it_anew(sweeps):
    words = ("method=c0_grpo", "seed=0,1", "trainer.steps=2", "task.warm_start.steps=1", "cluster.slots=2")
    code, output = sweeps.run(*words)
    assert code == 0, output
    first, second = sorted(sweeps.states())
    before = sweeps.states()
    # The command of the plan trains with verl; a step that fails there has still been archived and begun anew.
    words = ["rerun", first, "accept_code=true", "--json", "--multirun", str(sweeps.multirun)]
    done = subprocess.run([sys.executable, "-m", "launcher", *words], cwd=ROOT, capture_output=True, text=True)
    document = json.loads(done.stdout)
    (again,) = document["rerun"]
    assert again == first and sweeps.states()[second] == before[second]
    archived = sweeps.multirun / "archive" / f"{again}.1"
    assert json.loads((archived / "state.json").read_text()) == before[again]
    assert find_state(run_folder(sweeps.multirun, again)) is not None
    assert sweeps.states()[again]["created"] > before[again]["created"]
