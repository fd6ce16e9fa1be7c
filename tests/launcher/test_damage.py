"""Damaged run folders: no run is done with other numbers, nothing ends in a traceback, and each message has a remedy."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.data.sweep import read_sweep
from launcher.__main__ import main
from launcher.execution.sweeper import without_traceback
from launcher.planning import freeze
from launcher.run import evaluations
from launcher.run.folder import histograms_path, metrics_path, responses_path, run_folder
from launcher.run.launch_record import Launch
from launcher.worker import worker
from tests.launcher.experiments import make
from tests.launcher.made import read_log

STEPS, SNAPSHOTS = 12, (3, 5, 8, 10, 11)
CASES = 300
COPIES: Path | None = None  # where `train` leaves the run's folder as a crash after a step would


class Preempted(Exception):
    pass


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
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker, "_redirect", lambda _: None)
        return worker.execute(folder_of(planned), f"{__name__}:train", Launch(record={"commit": None}))


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
    evaluated = {step: evaluations.read(folder, step) for step in evaluations.steps(folder)}
    return logs, evaluated, json.loads((folder / "summary.json").read_text())


def seen(planned) -> tuple[str, str]:
    """What the commands print of the run, and what a report says of it: empty if it counts."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        for words in (["status"], ["status", "--json"], ["runs"], ["logs", "damaged"], ["logs", *planned.runs], ["gc"]):
            assert main([*words, "--multirun", str(planned.multirun)]) in (0, 1, 2)
    (run,) = read_sweep(planned.multirun / "damaged").runs
    return printed.getvalue(), run.problem or ""


def launch(planned) -> str:
    """What a launch of the same command prints."""
    printed = StringIO()

    def reconcile() -> int:
        freeze.freeze(planned)
        return execute(planned) if freeze.missing(planned) else 0

    with redirect_stdout(printed), redirect_stderr(printed):
        without_traceback(reconcile)
    return printed.getvalue()


# ---------------------------------------------------------------- ways to damage a file


def cut(share: float) -> Callable[[bytes, bytes, random.Random], bytes]:
    return lambda data, _old, _chance: data[: int(share * len(data))]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes, bytes, random.Random], bytes]:
    return lambda data, _old, _chance: b"".join(change(data.splitlines(keepends=True)))


def zeroed(data: bytes, _old: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data))
    end = min(len(data), begin + 1 + chance.randrange(4096))
    return data[:begin] + bytes(end - begin) + data[end:]


DAMAGES: dict[str, Callable[[bytes, bytes, random.Random], bytes | None]] = {
    "empty": cut(0),
    "half": cut(0.5),
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


def damage(path: Path, how: str, old: Path, chance: random.Random) -> bool:
    """Change a file; whether its content is another one."""
    data = path.read_bytes()
    changed = DAMAGES[how](data, old.read_bytes() if old.exists() else data, chance)
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    return changed != data


def cases() -> Iterator[tuple[int, int, random.Random]]:
    for number in range(CASES):
        chance = random.Random(number)
        yield number, chance.choice((STEPS, STEPS, 11, 11, 8, 10)), chance


@pytest.mark.parametrize(("number", "step", "chance"), cases())
def test_of_a_damaged_run_no_other_number_counts(planned, snapshots, number, step, chance):
    folder = restore(planned, snapshots, step)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    paths = [path for path in paths if path.relative_to(folder).parts[0] != "attempts"]
    path = chance.choice(paths)
    old = snapshots / str(chance.choice(SNAPSHOTS[:3])) / path.relative_to(folder)
    how = chance.choice(sorted(DAMAGES))
    what = f"{how}: {path.relative_to(folder)} after step {step}"
    changed = damage(path, how, old, chance)
    printed, problem = seen(planned)
    first = printed + problem
    assert "Traceback" not in printed, what
    said = launch(planned)
    assert "Traceback" not in said, f"{what}\n{said}"
    printed, problem = seen(planned)
    assert "Traceback" not in printed, f"{what}\n{printed}"
    print(what, changed, "|", problem, "|", said[:300])
    if problem:
        assert "Fix: " in said + printed and "runs/" in problem + said, f"{what}\n{printed}\n{said}\n{problem}"
    else:
        assert values(folder) == values(snapshots / str(STEPS)), what
