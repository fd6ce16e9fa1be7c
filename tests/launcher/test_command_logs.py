"""logs: the reason of a failure first, then the end of the output."""

from __future__ import annotations

import json

import pytest

from launcher.__main__ import main
from launcher.commands.logs import last_lines
from launcher.run.folder import attempt_folder
from launcher.run.lifecycle import RunState
from tests.launcher.conftest import Sweeps
from tests.launcher.made import make_plan, make_run

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


def logs(multirun, capsys, *words):
    code = main(["logs", *words, "--multirun", str(multirun)])
    return code, capsys.readouterr().out


@pytest.mark.processes
def test_of_a_failed_run_the_cause_comes_first_then_the_traceback_once(ended, capsys):
    run_id = one(ended, "failed")
    code, output = logs(ended.multirun, capsys, run_id[:6])
    first, *rest = output.splitlines()
    assert code == 0
    assert first.startswith(f"{run_id} c0_grpo seed 1: failed (exception), attempt 1 on ")
    assert first.endswith(": ValueError: seed 1 ends here")
    assert rest[0] == "Traceback (most recent call last):"
    assert output.count("Traceback") == 1 and output.count("ValueError: seed 1 ends here") == 2
    _, document = logs(ended.multirun, capsys, run_id, "--json")
    told = json.loads(document)[run_id]
    assert (told["name"], told["state"], told["kind"]) == ("c0_grpo seed 1", "failed", "exception")
    assert told["error"]["type"] == "ValueError" and "ValueError: seed 1 ends here" in "".join(told["lines"])
    assert told["log"].endswith("/attempts/1/stderr.log")


@pytest.mark.processes
def test_of_an_experiment_the_failed_runs_are_shown_on_one_screen(ended, capsys, monkeypatch):
    _, output = logs(ended.multirun, capsys, "adhoc")
    assert one(ended, "failed") in output and one(ended, "diverged") in output and one(ended, "done") not in output
    assert "ValueError: seed 1 ends here" in output
    assert json.loads(logs(ended.multirun, capsys, "adhoc", "--json")[1]).keys() == {
        one(ended, "failed"),
        one(ended, "diverged"),
    }
    monkeypatch.setenv("LINES", "8")
    _, short = logs(ended.multirun, capsys, "adhoc")
    assert len(short.splitlines()) <= 8 and "1 more failed" in short


def test_a_traceback_that_many_runs_share_is_shown_once(tmp_path, capsys):
    same = {"type": "E", "message": "x", "traceback": 'File "a.py", line 1\n    f()\n    ^^^\nE: x'}
    for run_id, error in (("f1", same), ("f2", same), ("f3", {**same, "traceback": "E: another"})):
        make_run(tmp_path, run_id, RunState.FAILED, message="E: x", error=error, finished=1.0)
    make_plan(tmp_path, "study", {"A": ["f1", "f2", "f3"]})
    _, output = logs(tmp_path, capsys, "study")
    assert output.count('File "a.py", line 1') == 1 and "^^^" not in output and "E: another" in output
    assert all(f"{run_id} A seed {seed}: failed" in output for seed, run_id in enumerate(("f1", "f2", "f3")))


def test_the_newest_failure_comes_first(tmp_path, capsys):
    for number in (1, 3, 2):
        make_run(tmp_path, f"f{number}", RunState.FAILED, message=f"E: {number}", finished=float(number))
    make_plan(tmp_path, "study", {"A": ["f1", "f2", "f3"]})
    _, output = logs(tmp_path, capsys, "study")
    assert [line.split()[0] for line in output.splitlines() if ": failed: E" in line] == ["f3", "f2", "f1"]
    make_run(tmp_path, "a1", RunState.DONE)
    make_plan(tmp_path, "fine", {"A": ["a1"]})
    assert "no run has failed" in logs(tmp_path, capsys, "fine")[1]


def test_the_last_attempt_is_shown_and_its_traceback_once(tmp_path, capsys):
    error = {"type": "E", "message": "2", "traceback": "Traceback of 2"}
    folder = make_run(tmp_path, "f1", RunState.FAILED, attempt=2, message="E: 2", error=error)
    for attempt in (1, 2):
        place = attempt_folder(folder, attempt)
        place.mkdir(parents=True)
        (place / "stderr.log").write_text(f"words of {attempt}\nTraceback of {attempt}\n")
    assert logs(tmp_path, capsys, "f1")[1].splitlines()[1:] == [
        "Traceback of 2",
        f"--- {attempt_folder(folder, 2)}/stderr.log",
        "words of 2",
    ]


@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        (b"", 5, []),
        (b"a\nb\nc\n", 2, ["b", "c"]),
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
