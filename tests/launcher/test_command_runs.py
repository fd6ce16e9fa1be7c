"""`runs`, `status` and `logs`: what they count, list and show of failures, also for plans that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from launcher import files
from launcher.__main__ import main
from launcher.commands.logs import last_lines
from launcher.run import catalog, launch_record, lifecycle
from launcher.run.catalog import read_plan
from launcher.run.folder import attempt_folder, run_folder
from launcher.run.lifecycle import RunState, find_state, read_state, write_state
from launcher.status.standing import Index, RunningRun, stand
from launcher.text import clean, duration
from launcher.tracking.settings import labels
from tests.launcher.conftest import ROOT, Sweeps
from tests.launcher.made import METRIC, make_plan, make_run


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


@pytest.fixture
def ids(multirun, said):
    """ids(WORDS) -> the ids that `runs` lists."""
    return lambda words: [run["id"] for run in json.loads(said(f"runs {words} --json", multirun))["runs"]]


def test_a_run_has_its_place_state_job_step_and_folder(multirun, said):
    runs = {run["id"]: run for run in json.loads(said("runs study --json", multirun))["runs"]}
    assert list(runs) == ["a1", "a2", "b1", "b2", "b3"]
    place = {"experiment": "study", "group": "B", "factors": {"sigma": 0.2}, "seed": 0}
    ended = {"state": "submitted", "kind": None, "cause": None, "job": "77_1", "step": 0}
    assert runs["b1"] == {"id": "b1", **place, **ended, "folder": str(run_folder(multirun, "b1"))}
    assert (runs["a2"]["cause"], runs["a2"]["kind"], runs["a2"]["job"]) == ("no", "exception", "77_0")
    assert (runs["a1"]["step"], runs["a1"]["job"], runs["b3"]["state"]) == (10, None, "new")


def test_all_lists_the_runs_that_no_plan_names(multirun, ids, said):
    assert ids("--all")[-1] == "cc" and ids("again --all") == ["a1", "cc"]
    assert "cc " in said("runs --all", multirun)


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
    for words in ("status", "runs", "logs study", "logs a2", "gc", "status study"):
        assert main([*words.split(), "--multirun", str(multirun)]) == ("status" in words), words
        said = capsys.readouterr()
        assert "Traceback" not in said.err and (words == "gc" or "study" in said.out or "a2" in said.out)
        assert said.err.count("left out: ") == (words == "status")  # once in a process
    for command in ("status", "runs", "logs", "cancel"):
        assert main([command, "again", "--multirun", str(multirun)]) == 2
        assert "again/plan.json" in (said := capsys.readouterr().err) and "Fix: repeat its command" in said
    assert set(labels(multirun)) == {"a1", "a2", "b1", "b2", "b3"}


def test_people_read_a_line_for_each_run(multirun, said):
    heading, *lines, last = said("runs study", multirun).splitlines()
    assert heading.split() == ["id", "group", "factors", "seed", "state", "job", "step", "folder"]
    assert lines[2].split() == ["b1", "B", "sigma=0.2", "0", "queued", "77_1", "0", str(run_folder(multirun, "b1"))]
    assert last == "5 runs"
    assert "experiment" in said("runs", multirun).splitlines()[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("", "a1 a1 a2 b1 b2 b3"), ("again", "a1"), ("cc", "cc"), ("study study a1", "a1 a2 b1 b2 b3 a1")],
)
def test_names_choose_the_runs(ids, words, expected):
    assert ids(words) == expected.split()


def test_status_names_the_jobs_and_says_queued(multirun, said):
    out = said("status study", multirun, code=1)
    assert "1 queued" in out.splitlines()[0] and "jobs: 77 (1 queued)" in out and "submitted" not in out
    document = json.loads(said("status study --json", multirun, code=1))["study"]
    assert document["jobs"] == {"77": {"submitted": 1}} and document["states"]["submitted"] == 1


def test_a_choice_of_code_needs_the_runs_that_it_is_for(multirun, capsys):
    assert main(["resume", "accept_code=true", "--multirun", str(multirun)]) == 2
    assert "accept_code=true: no experiment or run is named" in capsys.readouterr().err


def test_a_plan_in_the_folder_of_another_is_not_resumed(multirun, capsys):
    path = multirun / "again" / "plan.json"
    path.write_bytes((multirun / "study" / "plan.json").read_bytes())
    assert main(["resume", "again", "--multirun", str(multirun)]) == 2
    assert f"{path}: this is the plan of study. Fix: repeat the command of again" in capsys.readouterr().err
    path = multirun / "quickstart" / "plan.json"
    path.parent.mkdir()
    path.write_text("{")
    assert main(["resume", "quickstart", "--multirun", str(multirun)]) == 2
    assert f"experiment=quickstart multirun={multirun}" in capsys.readouterr().err


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


SMALL = ("method=c0_grpo", "trainer.steps=12", "trainer.checkpoint_every=4")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A sweep whose seeds 1 and 2 have failed and diverged at their third step."""
    sweep = Sweeps(tmp_path_factory.mktemp("ended") / "multirun")
    code, output = sweep.run(*SMALL, "seed=0,1,2", "cluster.slots=2", STEPS_END='{"1": "raise", "2": "diverge"}')
    assert code == 1, output
    return sweep


def one(sweep, state):
    (run_id,) = [run_id for run_id, own in sweep.states().items() if own["state"] == state]
    return run_id


@pytest.mark.processes
def test_of_a_failed_run_the_cause_comes_first_then_the_traceback_once(ended, said):
    run_id = one(ended, "failed")
    output = said(f"logs {run_id[:6]}", ended.multirun)
    first, *rest = output.splitlines()
    assert first.startswith(f"{run_id} c0_grpo seed 1: failed (exception), attempt 1 on ")
    assert first.endswith(": ValueError: seed 1 ends here")
    assert rest[0] == "Traceback (most recent call last):"
    assert output.count("Traceback") == 1 and output.count("ValueError: seed 1 ends here") == 2
    told = json.loads(said(f"logs {run_id} --json", ended.multirun))[run_id]
    assert (told["name"], told["state"], told["kind"]) == ("c0_grpo seed 1", "failed", "exception")
    assert told["error"]["type"] == "ValueError" and "ValueError: seed 1 ends here" in "".join(told["lines"])
    assert told["log"].endswith("/attempts/1/stderr.log")


@pytest.mark.processes
def test_of_an_experiment_the_failed_runs_are_shown_on_one_screen(ended, said, monkeypatch):
    output = said("logs adhoc", ended.multirun)
    not_done = {one(ended, "failed"), one(ended, "diverged")}
    assert all(run_id in output for run_id in not_done) and one(ended, "done") not in output
    assert "ValueError: seed 1 ends here" in output
    assert json.loads(said("logs adhoc --json", ended.multirun)).keys() == not_done
    monkeypatch.setenv("LINES", "8")
    short = said("logs adhoc", ended.multirun)
    assert len(short.splitlines()) <= 8 and "1 more failed" in short


def test_a_traceback_that_many_runs_share_is_shown_once(tmp_path, said):
    same = {"type": "E", "message": "x", "traceback": 'File "a.py", line 1\n    f()\n    ^^^\nE: x'}
    for run_id, error in (("f1", same), ("f2", same), ("f3", {**same, "traceback": "E: another"})):
        make_run(tmp_path, run_id, RunState.FAILED, message="E: x", error=error, finished=1.0)
    make_plan(tmp_path, "study", {"A": ["f1", "f2", "f3"]})
    output = said("logs study", tmp_path)
    assert output.count('File "a.py", line 1') == 1 and "^^^" not in output and "E: another" in output
    assert all(f"{run_id} A seed {seed}: failed" in output for seed, run_id in enumerate(("f1", "f2", "f3")))


def test_the_newest_failure_comes_first(tmp_path, said):
    for number in (1, 3, 2):
        make_run(tmp_path, f"f{number}", RunState.FAILED, message=f"E: {number}", finished=float(number))
    make_plan(tmp_path, "study", {"A": ["f1", "f2", "f3"]})
    lines = said("logs study", tmp_path).splitlines()
    assert [line.split()[0] for line in lines if ": failed: E" in line] == ["f3", "f2", "f1"]
    make_run(tmp_path, "a1", RunState.DONE)
    make_plan(tmp_path, "fine", {"A": ["a1"]})
    assert "no run has failed" in said("logs fine", tmp_path)


def test_the_last_attempt_is_shown_and_its_traceback_once(tmp_path, said):
    error = {"type": "E", "message": "2", "traceback": "Traceback of 2"}
    folder = make_run(tmp_path, "f1", RunState.FAILED, attempt=2, message="E: 2", error=error)
    for attempt in (1, 2):
        place = attempt_folder(folder, attempt)
        place.mkdir(parents=True)
        (place / "stderr.log").write_text(f"words of {attempt}\nTraceback of {attempt}\n")
    shown = ["Traceback of 2", f"--- {attempt_folder(folder, 2)}/stderr.log", "words of 2"]
    assert said("logs f1", tmp_path).splitlines()[1:] == shown


@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        (b"", 5, []),
        (b"a\nb\nc", 2, ["b", "c"]),
        (b"a\n", 0, []),
        (b"\xff\xfe\n", 1, ["\N{REPLACEMENT CHARACTER}" * 2]),
        (b"x" * 200_000 + b"\nend\n", 1, ["end"]),
        (b"first\n" + b"x" * 1_000_000 + b"end", 1, ["x" * 8189 + "end"]),
        (b"".join(b"line %d\n" % number for number in range(50_000)), 2, ["line 49998", "line 49999"]),
    ],
)
def test_the_last_lines_of_a_file(tmp_path, content, count, lines):
    path = tmp_path / "log"
    path.write_bytes(content)
    assert last_lines(path, count) == lines
    assert last_lines(tmp_path / "absent", count) == []


@pytest.fixture
def counted(tmp_path):
    """Two groups: what is done took 2 s a step, of 10 steps a run."""
    make_run(tmp_path, "a1", RunState.DONE, steps=10, value=0.25)
    make_run(tmp_path, "a2", RunState.DONE, steps=10, value=0.75)
    make_run(tmp_path, "b1", RunState.PREEMPTED, steps=4, value=0.5)
    make_run(tmp_path, "b2", RunState.PLANNED, steps=0)
    make_plan(tmp_path, "study", {"A": ["a1", "a2"], "B": ["b1", "b2", "b3"]})
    return tmp_path


def test_states_metric_and_work_left_are_counted_by_group(counted, said, worded):
    study = json.loads(said("status study --json", counted))["study"]
    assert study["total"] == 5
    assert study["states"] == {"new": 1, "planned": 1, "done": 2, "preempted": 1}
    assert study["groups"] == {"A": {"done": 2}, "B": {"new": 1, "planned": 1, "preempted": 1}}
    assert study["metric"]["name"] == METRIC and study["metric"]["last"] == {"A": 0.5, "B": 0.5}
    # Six steps of b1 and ten each of b2 and b3, at 2 s; nobody is at it, so nobody knows until when.
    assert (study["work_seconds"], study["remaining_seconds"]) == (52.0, None)
    worded(said("status study", counted))


def test_a_run_that_says_running_but_has_no_owner_is_lost(counted, said):
    folder = run_folder(counted, "b1")
    write_state(folder, read_state(folder).replace(state=RunState.RUNNING, attempt=2))
    study = json.loads(said("status study --json", counted))["study"]
    assert study["states"]["lost"] == 1
    (failure,) = study["failures"]
    assert (failure["state"], failure["example"], failure["runs"]) == ("lost", "b1", 1)


def test_a_running_run_has_its_own_number_of_steps(tmp_path):
    folder = make_run(tmp_path, "c1", RunState.RUNNING, steps=3)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("steps: 10", "steps: 6"))
    make_plan(tmp_path, "study", {"C": ["c1"]})
    with lifecycle.locked(folder):
        assert lifecycle.acquire(folder, 1) is not None
    now = stand(tmp_path, read_plan(tmp_path, "study"), Index(tmp_path))
    assert now.running == {"c1": RunningRun(3, 6, 6.0)}  # the longest run of the experiment has 10


def test_failures_are_grouped_by_cause_and_name_the_command_that_shows_more(counted, said, worded):
    for number in range(3):
        failed = {"failure_kind": "exception", "message": f"ValueError: batch of {number} at 0x7f{number}"}
        make_run(counted, f"f{number}", RunState.FAILED, finished=float(number), **failed)
    make_run(counted, "g0", RunState.DIVERGED, message="Diverged: value is not finite", failure_kind="diverged")
    make_plan(counted, "bad", {"F": ["f0", "f1", "f2", "g0"]})
    first, second = json.loads(said("status bad --json", counted, code=1))["bad"]["failures"]
    assert (first["runs"], first["kind"], first["example"]) == (3, "exception", "f2")
    assert (second["runs"], second["state"], second["example"]) == (1, "diverged", "g0")
    worded(said("status bad", counted, code=1))


def test_without_a_name_each_experiment_is_a_row(counted, said, worded):
    make_plan(counted, "other", {"A": ["a1"]})
    assert set(json.loads(said("status --json", counted))) == {"study", "other"}
    worded(said("status", counted))
    (counted / "empty").mkdir()
    worded(said("status", counted / "empty"))
    assert json.loads(said("status --json", counted / "empty")) == {}


@pytest.mark.parametrize("name", ["missing", "study/plan.json"])
@pytest.mark.parametrize("command", ["status", "runs", "gc --delete"])
def test_a_folder_that_is_not_there_is_no_empty_one(multirun, capsys, command, name):
    assert main([*command.split(), "--multirun", str(multirun / name)]) == 2
    assert f"--multirun = {multirun / name}: there is no such folder" in capsys.readouterr().err


def test_of_a_hundred_groups_the_done_ones_are_only_counted(tmp_path, said, worded):
    groups = {f"G{number:03d}": [f"r{number:03d}"] for number in range(100)}
    for (run_id,) in groups.values():
        make_run(tmp_path, run_id, RunState.PLANNED if run_id == "r050" else RunState.DONE)
    make_plan(tmp_path, "wide", groups)
    worded(said("status wide", tmp_path))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.4, "0 s"), (59, "59 s"), (300, "5 min"), (7500, "2 h 5 min"), (86400 * 2 + 3600, "2 d 1 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_what_others_wrote_cannot_steer_a_terminal():
    assert clean("\x1b[2J\x1b]0;title\x07red \x1b[31mtext\x1b[0m\n") == "red text"
    assert clean("10%\r50%\r100% of it\r\n") == "100% of it"
    assert clean("a\x08b\x00") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
