"""What the runs of a multirun folder have come to, read from their files as they are: a doubled or torn line shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def states(multirun: Path) -> dict[str, dict[str, Any]]:
    """id -> state."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(multirun.glob("runs/*/state.json"))}


def only_state(multirun: Path) -> dict[str, Any]:
    """The state of the only run."""
    (state,) = states(multirun).values()
    return state


def logged(folder: Path) -> list[Line]:
    """The lines of metrics.jsonl of a run."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def walked(multirun: Path) -> dict[str, list[tuple[int, int]]]:
    """id -> (step, value) of every line that tests/launcher/steps.py has logged."""
    runs = {path.parent.name: logged(path.parent) for path in sorted(multirun.glob("runs/*/metrics.jsonl"))}
    return {name: [(line["step"], line["value"]) for line in lines] for name, lines in runs.items()}


def reproducible(lines: list[Line]) -> list[Line]:
    """Lines without what a clock, the machine or an interruption decides."""
    ends = ("_seconds", "time", "attempt", "cost/peak_memory_bytes")
    return [{key: value for key, value in line.items() if not key.endswith(ends)} for line in lines]


def learned(multirun: Path) -> dict[str, list[Line]]:
    """id -> what every step of a run has logged that must be the same in each repetition."""
    return {path.parent.name: reproducible(logged(path.parent)) for path in multirun.glob("runs/*/metrics.jsonl")}


def tensors(folder: Path) -> dict[str, bytes]:
    """The weights and optimizers of a checkpoint, by file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def digests(folder: Path) -> dict[str, str]:
    """The content of every file, in short."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
