"""The files of verl's `file` logger (trainer.logger=[console,file]): PROJECT/EXPERIMENT.jsonl, a line for each step.

Such a file does not contain the configuration of its run, when its lines were written, or how the run ended. The
configuration is taken from the file that Hydra leaves beside it, if there is one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.importing.found import BadImport, Found, configuration_in, stage

KIND = "verl"
_KEYS = {"step", "data"}


def find(source: Path) -> list[tuple[str, Path]]:
    """The files of verl's logger below a folder, or the file itself, and their names.

    A name is the path from the last part of `source`, without the ending. A .jsonl file below a folder that
    begins with a line of another program is left out; so is an empty one.
    """
    if source.is_file():
        file = source.resolve()
        return [(f"{file.parent.name}/{file.stem}", file)]
    root = source.resolve()
    files = [path for path in sorted(root.rglob("*.jsonl")) if path.is_file() and _is_ours(path)]
    return [(str(path.relative_to(root.parent).with_suffix("")), path) for path in files]


def read(files: Sequence[tuple[str, Path]], stage_in: Path) -> Iterator[Found]:
    """The runs of these files. A last line without an end, which a crash leaves, is left out.

    Raises BadImport with every line that is not one of verl's, and for a configuration file that is not YAML.
    """
    problems: list[str] = []
    logged = [(name, path, _rows(path, problems)) for name, path in files]
    if problems:
        raise BadImport("\n".join(problems))
    together = Counter(path.parent for _, path in files)
    for number, (name, path, rows) in enumerate(logged):
        if not rows:
            continue
        own = path.with_suffix("")
        # a folder's configuration says nothing where the folder holds the files of several runs
        config = configuration_in([own, path.parent] if together[path.parent] == 1 else [own])
        yield Found.in_files(KIND, name, config, stage(stage_in / f"verl-{number}", rows, ()))


def _is_ours(path: Path) -> bool:
    """Whether the first line that is JSON is one of verl's logger."""
    with path.open("rb") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            return isinstance(line, dict) and set(line) == _KEYS
    return False


def _rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The numbers of each line; what else it has is left out."""
    rows = []
    *lines, last = path.read_bytes().split(b"\n")
    if last:
        with suppress(ValueError):  # a crash cut it off: verl writes each line with its end at once
            json.loads(last)
            lines.append(last)
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
        except ValueError as error:
            problems.append(f"{path}: line {number}: not JSON ({error}); fix: remove this line, or move the file away")
            continue
        if not isinstance(line, dict) or set(line) != _KEYS or not isinstance(line["data"], dict):
            shape = 'must be {"step": NUMBER, "data": {METRIC: NUMBER, ...}}'
            problems.append(f"{path}: line {number}: {shape}; fix: give files of verl's logger `file` alone as SOURCE")
            continue
        step = line["step"]
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            problems.append(
                f"{path}: line {number}: step = {step!r}: must be a whole number, 0 or more; fix: remove this line"
            )
            continue
        rows.append({"step": step, "attempt": 1, "time": None, **_numbers(line["data"])})
    return rows


def _numbers(data: dict[str, Any]) -> dict[str, float]:
    # orjson, with which verl writes, has no word for what is not a number, or infinite, but null
    values = {key: math.nan if value is None else value for key, value in data.items()}
    return {key: float(value) for key, value in values.items() if isinstance(value, (int, float))}
