"""Experiments that a test writes by hand, in the folder format: their states matter, and not how they came about."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import folder as folders
from launcher.run.folder import State

METRIC = "analysis/reward_sum_mean"


def make_run(multirun: Path, run_id: str, state: str, steps: int = 4, value: float = 0.5, **fields: Any) -> Path:
    """A run folder with a metric line for each of its steps, two seconds apart."""
    folder = folders.run_folder(multirun, run_id)
    folder.mkdir(parents=True)
    config = {"format": folders.FORMAT, "id": run_id, "base": "b0", "seed": 0, "trainer": {"steps": 10}}
    files.write_atomic(folder / "config.yaml", files.dump_yaml(config))
    if steps:
        lines = [{"step": step, "attempt": 1, "time": 1e9 + 2 * step, METRIC: value} for step in range(1, steps + 1)]
        folders.metrics_path(folder).write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempt = fields.pop("attempt", 1 if steps else 0)
    folders.write_state(folder, State(run_id, state, attempt=attempt, **fields))
    return folder


def make_plan(multirun: Path, name: str, groups: dict[str, list[str]], command: str = "python launch.py -m") -> None:
    """A plan.json of 10 steps that names these runs by group."""
    entries = [
        {"id": run_id, "group": group, "seed": seed, "factors": {}}
        for group, ids in groups.items()
        for seed, run_id in enumerate(ids)
    ]
    analysis = {"primary": {"metric": METRIC, "summary": "final"}}
    document = {"format": 1, "experiment": name, "command": command, "steps": 10, "analysis": analysis, "runs": entries}
    (multirun / name).mkdir(parents=True, exist_ok=True)
    files.write_json(multirun / name / "plan.json", document)


def make_checkpoint(folder: Path, step: int, size: int = 1000) -> Path:
    """A complete checkpoint of that many bytes."""
    path = folders.checkpoints_folder(folder) / folders.checkpoint_name(step)
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"w" * size)
    return path


def age(path: Path, seconds: float = 7200.0) -> Path:
    """Set a file's or folder's time back."""
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path
