"""Damaged run folders: no other number counts, no command ends in a traceback, and each message has a remedy."""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.__main__ import main as analyse
from analysis.data.sweep import read_sweep
from launcher.__main__ import main
from launcher.commands import exit_code, selection, verify
from launcher.errors import Usage
from launcher.execution import sweep
from launcher.planning import freeze
from launcher.run import evaluations
from launcher.run.folder import histograms_path, metrics_path, responses_path, run_folder
from launcher.run.lifecycle import read_state, write_state
from launcher.worker.attempt import Attempt
from tests.launcher import made
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make
from tests.launcher.made import read_log

STEPS, SNAPSHOTS = 12, (3, 5, 8, 10, 11)
CASES = 100
COPIES: Path | None = None  # where `train` leaves the run's folder as a crash after a step would


def train(config: Any, run: Any) -> dict[str, Any]:
    """A walk with histograms, responses and evaluations, which a checkpoint resumes exactly."""
    value, done = 7, 0
    newest = run.latest_checkpoint()
    if newest is not None:
        done, folder = newest
        value = json.loads((folder / "walk.json").read_text())
        assert set((folder / "part/weights").read_bytes()) == {value % 251}
    for step in range(done + 1, STEPS + 1):
        value = (value * 1103515245 + 12345) % 2**31
        run.log(step, {"value": value / 7, "analysis/reward_sum_mean": value % 13})
        run.histogram(step, "entropy", [0.0, 1.0, 2.0], [value % 5, 3])
        if step % 2 == 0:
            run.evaluation(step, [SimpleNamespace(prompt="1+1=", split="test", sample=0, reward=value % 2, numbers={})])
            run.response(step, "1+1=", str(value), float(value % 2), "2")
        if step % 4 == 0:
            with run.checkpoint(step) as folder:
                (folder / "part").mkdir()
                (folder / "part/weights").write_bytes(bytes([value % 251]) * 9000)
                (folder / "walk.json").write_text(json.dumps(value))
        if COPIES is not None and step in SNAPSHOTS:
            shutil.copytree(run.folder, COPIES / str(step))
    return {"steps": STEPS, "samples": value, "train_seconds": 1.0, "warnings": {}}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    multirun = tmp_path_factory.mktemp("damage") / "multirun"
    words = ("method=c0_grpo", "seed=0", f"trainer.steps={STEPS}", "trainer.checkpoint_every=4")
    return make(*words, "experiment.name=damaged", f"multirun={multirun}")


@pytest.fixture(scope="module")
def snapshots(planned, tmp_path_factory):
    """The multirun folder and, by step, the run's folder: as a crash after it leaves them, and at the end."""
    global COPIES
    COPIES = tmp_path_factory.mktemp("copies")
    freeze.freeze(planned)
    execute(planned)
    shutil.copytree(folder_of(planned), COPIES / str(STEPS))
    for copy in COPIES.iterdir():
        (copy / "claim.json").unlink(missing_ok=True)
    shutil.copytree(planned.multirun, COPIES / "multirun")
    copies, COPIES = COPIES, None
    return copies


def folder_of(planned) -> Path:
    return run_folder(planned.multirun, *planned.runs)


def execute(planned) -> int:
    return made.execute(folder_of(planned), f"{__name__}:train")


def restore(planned, snapshots: Path, step: int) -> Path:
    """The run's folder as it was after that step."""
    shutil.rmtree(planned.multirun)
    shutil.copytree(snapshots / "multirun", planned.multirun)
    folder = folder_of(planned)
    shutil.rmtree(folder)
    return Path(shutil.copytree(snapshots / str(step), folder))


def values(folder: Path) -> Any:
    """What an analysis may read of a run, without times and attempts."""
    records = [read_log(path(folder)).records for path in (metrics_path, histograms_path, responses_path)]
    logs = [[{key: row[key] for key in row.keys() - {"time", "attempt"}} for row in rows] for rows in records]
    evaluated = {step: evaluations.read(folder, step) for step in evaluations.paths(folder)}
    return logs, evaluated, json.loads((folder / "summary.json").read_text())


def printed_by(planned, *commands: Sequence[str]) -> str:
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        for words in commands:
            assert main([*words, "--multirun", str(planned.multirun)]) in (0, 1, 2)
    return printed.getvalue()


def problem_of(planned) -> str:
    """Why a report does not count the run; empty if it does."""
    (run,) = read_sweep(planned.multirun / "damaged").runs
    return run.problem or ""


def launch(planned) -> str:
    """What a launch of the same command prints."""
    printed = StringIO()

    def reconcile() -> int:
        freeze.freeze(planned)
        return execute(planned) if freeze.missing(planned) else 0

    with redirect_stdout(printed), redirect_stderr(printed):
        exit_code(reconcile)
    return printed.getvalue()


# ---------------------------------------------------------------- ways to damage a file

#: What the file has, what an older version of it had, and chance; None: it is gone.
Change = Callable[[bytes, bytes, random.Random], bytes | None]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    return lambda data, _old, _chance: b"".join(change(data.splitlines(keepends=True)))


def zeroed(data: bytes, _old: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data))
    end = min(len(data), begin + 1 + chance.randrange(4096))
    return data[:begin] + bytes(end - begin) + data[end:]


DAMAGES: dict[str, Change] = {
    "empty": lambda data, _old, _chance: b"",
    "half": lambda data, _old, _chance: data[: len(data) // 2],
    "last byte": lambda data, _old, _chance: data[:-1],
    "first byte": lambda data, _old, _chance: data[:1],
    "last line": lines(lambda rows: rows[:-1]),
    "all NUL": lambda data, _old, _chance: bytes(len(data)),
    "200 NUL at the end": lambda data, _old, _chance: data + bytes(200),
    "last line NUL": lines(lambda rows: [*rows[:-1], bytes(len(rows[-1]) - 1) + b"\n"] if rows else rows),
    "zeroed": zeroed,
    "glued": lines(lambda rows: [*rows[:-2], *(row.rstrip(b"\n") for row in rows[-2:])]),
    "last line twice": lines(lambda rows: [*rows, *rows[-1:]]),
    "swapped": lines(lambda rows: [*rows[:-2], *reversed(rows[-2:])]),
    "older": lambda _data, old, _chance: old,
    "garbage": lambda data, _old, chance: chance.randbytes(len(data)),
    "gone": lambda _data, _old, _chance: None,
}


def damage(path: Path, how: str | Change, old: Path | None = None, chance: random.Random | None = None) -> None:
    data = path.read_bytes() if path.exists() else b""
    change = DAMAGES[how] if isinstance(how, str) else how
    changed = change(data, old.read_bytes() if old and old.exists() else data, chance or random.Random(3))
    path.unlink(missing_ok=True)
    if changed is not None:
        path.write_bytes(changed)


def cases() -> Iterator[Any]:
    for number in range(CASES):
        yield pytest.param(number, marks=[pytest.mark.processes] * (number % 10 > 0))


@pytest.mark.parametrize("number", cases())
def test_of_a_damaged_run_no_other_number_counts(planned, snapshots, number):
    chance = random.Random(number)
    step = chance.choice((STEPS, STEPS, 11, 11, 8, 10))
    folder = restore(planned, snapshots, step)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    chosen = chance.choice([path for path in paths if path.parts[0] not in (".lock", "attempts")])
    older, how = snapshots / str(chance.choice(SNAPSHOTS[:3])) / chosen, chance.choice(sorted(DAMAGES))
    damage(folder / chosen, how, older, chance)
    run_id = folder.name
    said = printed_by(planned, ["status"], ["runs"], ["logs", run_id], ["gc"]) + launch(planned)
    shown, problem = printed_by(planned, ["status"], ["logs", "damaged"]), problem_of(planned)
    what = f"{how}: {chosen} after step {step}\n{said}\n{shown}\n{problem}"
    assert "Traceback" not in said + shown, what
    if problem:
        assert "Fix: " in said + shown and f"{folder}/" in said + shown + problem, what
    else:
        assert values(folder) == values(snapshots / str(STEPS)), what


# ---------------------------------------------------------------- the kinds, one by one


ONE, BOTH = ("step_000008",), ("step_000008", "step_000004")


@pytest.mark.parametrize(
    ("names", "file", "change"),
    [
        (ONE, "part/weights", "half"),
        (ONE, "part/weights", "gone"),
        (BOTH, "part/weights", "zeroed"),
        (ONE, "manifest.json", "half"),
        (BOTH, "manifest.json", lambda *_: b"[]"),
        (ONE, "added", "empty"),
    ],
)
def test_damaged_checkpoints_are_set_aside_and_the_run_goes_on_from_before_them(
    planned, snapshots, names, file, change
):
    folder = restore(planned, snapshots, 11)
    for name in names:
        damage(folder / "checkpoints" / name / file, change)
    with redirect_stderr(StringIO()) as said:
        assert execute(planned) == 0
    state = read_state(folder)
    assert (state.state, state.from_step) == ("done", 0 if names == BOTH else 4)
    assert values(folder) == values(snapshots / str(STEPS)) and not problem_of(planned)
    for name in names:
        assert f"{folder}/checkpoints/{name}/" in said.getvalue()
        aside = folder / f"attempts/2/checkpoints/{name}"
        assert aside.is_dir() and str(aside) in said.getvalue()
    assert f"the run resumes from step {state.from_step}" in state.message
    listed = json.loads(printed_by(planned, ["gc", "--json"]))["items"]
    assert str(folder / "attempts/2/checkpoints") in [item["path"] for item in listed]


OTHER_VALUE = lines(lambda rows: [*rows[:6], rows[6].replace(b'"value": ', b'"value": 9'), *rows[7:]])
#: The last step, whether the checkpoints have manifests (an older version wrote none), and what becomes of the log.
LOGS: dict[str, tuple[int, bool, str | Change]] = {
    "a torn line": (8, True, lines(lambda rows: [*rows[:6], rows[6][:20]])),
    "another value": (11, True, OTHER_VALUE),
    "a line without its end": (11, False, lines(lambda rows: [*rows[:6], rows[6].rstrip(), *rows[7:]])),
    "NUL after step 7": (11, False, lines(lambda rows: [*rows[:7], bytes(200)])),
    "a step twice": (11, False, lines(lambda rows: [*rows[:7], rows[6], *rows[7:]])),
    "the last steps gone": (8, False, lines(lambda rows: rows[:6])),
    "the first step gone": (11, False, lines(lambda rows: rows[1:])),
    "gone": (11, False, "gone"),
}


@pytest.mark.parametrize("case", LOGS)
def test_a_run_whose_log_is_not_that_of_its_checkpoint_goes_on_from_before_it(planned, snapshots, case):
    step, with_manifests, change = LOGS[case]
    folder = restore(planned, snapshots, step)
    damage(metrics_path(folder), change)
    for manifest in [] if with_manifests else folder.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    with redirect_stderr(StringIO()):
        assert execute(planned) == 0
    assert values(folder) == values(snapshots / str(STEPS)) and not problem_of(planned)
    assert str(metrics_path(folder)) in read_state(folder).message


def test_a_run_that_did_not_log_each_step_is_not_done(planned, snapshots, monkeypatch):
    monkeypatch.setattr(Attempt, "log", lambda *_: None)
    folder = restore(planned, snapshots, 3)
    with redirect_stderr(StringIO()):
        assert execute(planned) == 1
    state = read_state(folder)
    assert state.state == "failed" and f"{metrics_path(folder)} lacks step 1. Fix: `resume`" in state.message


@pytest.mark.parametrize(
    ("file", "change"),
    [
        *(("metrics.jsonl", how) for how in ("gone", "swapped", OTHER_VALUE)),
        *((file, "half") for file in ("responses.jsonl", "evaluations/000006.json.gz", "config.yaml")),
        *((file, "gone") for file in ("histograms.jsonl", "manifest.json")),
        ("evaluations/000014.json.gz", "empty"),
        ("summary.json", lambda *_: b'{"steps": 12}'),
        ("provenance.json", "empty"),
    ],
)
def test_what_changed_after_the_end_is_missing_until_it_is_restored(planned, snapshots, file, change):
    folder = restore(planned, snapshots, STEPS)
    assert "1 done" in printed_by(planned, ["status"]) and not problem_of(planned)
    path = folder / file
    whole = path.read_bytes() if path.exists() else None
    damage(path, change)
    command = f"`python -m launcher rerun {folder.name} --multirun {planned.multirun}`"
    shown = json.loads(printed_by(planned, ["status", "--json"]))["damaged"]
    assert shown["states"] == {"unreadable": 1}
    for said in (shown["failures"][0]["cause"], problem_of(planned), printed_by(planned, ["logs", "damaged"])):
        assert f"{path} was " in said and command in said
    assert "checkpoints/step_000012" not in printed_by(planned, ["gc", "--keep", "none"])
    (path.unlink if whole is None else lambda: path.write_bytes(whole))()
    assert "1 done" in printed_by(planned, ["status"]) and not problem_of(planned)


@pytest.mark.parametrize(("file", "line"), [("metrics.jsonl", "x"), ("config.yaml", "zzz: 1")])
def test_a_damaged_run_fails_a_launch_and_its_verification(planned, snapshots, monkeypatch, file, line):
    monkeypatch.setattr(sweep, "report", lambda *_: 0)
    path = restore(planned, snapshots, STEPS) / file
    assert sweep.sweep(ROOT, planned).code == 0
    path.write_text(f"{path.read_text()}{line}\n")
    assert sweep.sweep(ROOT, planned).code == 1
    assert f"{path} was changed" in printed_by(planned, ["logs", path.parent.name])
    assert [f"{path} was changed" in wrong for wrong in verify.check_identity(path.parent)["wrong"]] == [True]


def test_a_report_names_the_damaged_run_first(planned, snapshots, capsys):
    folder = restore(planned, snapshots, STEPS)
    damage(metrics_path(folder), "half")
    assert analyse(["report", str(planned.multirun / "damaged")]) == 0
    assert f"Missing: c0_grpo, seed 0: {metrics_path(folder)} was changed" in capsys.readouterr().out


@pytest.mark.parametrize("pid", [1, None])
def test_a_done_run_of_an_older_version_is_judged_by_its_steps(planned, snapshots, pid):
    folder = restore(planned, snapshots, STEPS)
    write_state(folder, read_state(folder).replace(manifest=None, pid=pid))
    (folder / "manifest.json").unlink()
    assert not problem_of(planned)
    damage(metrics_path(folder), "last line")
    gap = "done, but metrics.jsonl does not have each of its 12 steps once"
    assert problem_of(planned) == (gap if pid else "")  # without a process, another tool may have logged other steps


def test_a_damaged_checkpoint_is_not_evaluated_or_exported(planned, snapshots):
    folder = restore(planned, snapshots, STEPS)
    path = folder / "checkpoints/step_000012/part/weights"
    damage(path, "zeroed")

    def used(step):
        given = argparse.Namespace(multirun=planned.multirun, run=folder.name, checkpoint=step)
        with selection.checkpoint(given) as found:
            return found

    with pytest.raises(Usage, match=f"{path} was changed since it was written. Fix: choose another of"):
        used(None)
    assert used(8) == (folder, 8, folder / "checkpoints/step_000008")
