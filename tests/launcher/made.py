"""Experiments that a test writes by hand, in the folder format: their states matter, and not how they came about."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher import files
from launcher.run.folder import FORMAT, checkpoint_name, checkpoints_folder, metrics_path, run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import State, write_state
from launcher.worker import worker

METRIC = "analysis/reward_sum_mean"


@dataclass(frozen=True)
class Log:
    """The complete lines of a .jsonl file, and how many were torn."""

    records: list[dict[str, Any]]
    torn: int


def read_log(path: Path) -> Log:
    lines = list(files.parse_lines(path.read_bytes().splitlines(keepends=True))) if path.exists() else []
    records = [record for record in lines if record is not None]
    return Log(records, len(lines) - len(records))


def make_run(multirun: Path, run_id: str, state: str, steps: int = 4, value: float = 0.5, **fields: Any) -> Path:
    """A run folder with a metric line for each of its steps, two seconds apart."""
    folder = run_folder(multirun, run_id)
    folder.mkdir(parents=True)
    config = {"format": FORMAT, "id": run_id, "base": "b0", "seed": 0, "trainer": {"steps": 10}}
    files.write_atomic(folder / "config.yaml", files.dump_yaml(config))
    if steps:
        lines = [{"step": step, "attempt": 1, "time": 1e9 + 2 * step, METRIC: value} for step in range(1, steps + 1)]
        metrics_path(folder).write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt = fields.pop("attempt", 1 if steps else 0)
    write_state(folder, State(run_id, state, attempt=attempt, **fields))
    return folder


def execute(folder: Path, train: str) -> int:
    """Do one attempt at a frozen run in this process, whose output stays where it goes; the exit code of a worker."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker, "_redirect", lambda _: None)
        return worker.execute(folder, Launch(record={"commit": None}, train=train))


def make_plan(
    multirun: Path, name: str, groups: dict[str, list[str]], /, command: str = "python launch.py -m", **more: Any
) -> None:
    """A plan.json of 10 steps that names these runs by group, with further keys."""
    entries = [
        {"id": run_id, "group": group, "seed": seed, "factors": {}}
        for group, ids in groups.items()
        for seed, run_id in enumerate(ids)
    ]
    analysis = {"primary": {"metric": METRIC, "summary": "final"}}
    document = {"format": 1, "experiment": name, "command": command, "steps": 10, "analysis": analysis, "runs": entries}
    document |= more
    (multirun / name).mkdir(parents=True, exist_ok=True)
    files.write_json(multirun / name / "plan.json", document)


def make_checkpoint(folder: Path, step: int, size: int = 1000) -> Path:
    """A complete checkpoint of that many bytes."""
    path = checkpoints_folder(folder) / checkpoint_name(step)
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"w" * size)
    return path


def age(path: Path, seconds: float = 7200.0) -> Path:
    """Set a file's or folder's time back."""
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path
