"""The rewards of a run's evaluations, one for each response: multirun/runs/<id>/evaluations/<step>.json.gz.

A metric is a mean over prompts and responses. With these files an analysis can tell how much of a difference comes from
the choice of prompts and how much from the seeds of the runs.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.files import BadRunFolder, write_atomic
from launcher.run.folder import Record

_OWN = ("prompt", "split", "sample", "reward")
_NAME = re.compile(r"(\d+)\.(json\.gz|parquet)")


@dataclass(frozen=True)
class EvaluationRow(Record):
    """A row of evaluations/<step>.json.gz, one a response. `prompt` is its id, as in responses.jsonl.

    `split`: train, validation or test. `sample`: the number of the response among those drawn for the prompt, from 0;
    null for the greedy response. `numbers`: further ones by name; a response that has none lacks them. The file is one
    JSON object, with a list for each of these and for each further number.
    """

    prompt: str
    split: str
    sample: int | None
    reward: float
    numbers: Mapping[str, float] = field(default_factory=dict)


def evaluations_folder(folder: Path) -> Path:
    """A file for each step with an evaluation, as 000040.json.gz."""
    return folder / "evaluations"


def write(folder: Path, step: int, rows: Iterable[EvaluationRow]) -> None:
    """Replace the file of a step atomically; it then survives a power cut."""
    rows = list(rows)
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _OWN}
    for name in dict.fromkeys(name for row in rows for name in row.numbers):
        columns[name] = [row.numbers.get(name) for row in rows]
    path = evaluations_folder(folder) / f"{step:06d}.json.gz"
    path.parent.mkdir(exist_ok=True)
    content = gzip.compress(json.dumps(columns, default=float).encode(), compresslevel=2, mtime=0)
    write_atomic(path, content, beside=path.parent)


def read(folder: Path, step: int) -> list[EvaluationRow]:
    """The rows of a step's evaluation. FileNotFoundError: there is none; BadRunFolder: the file cannot be read."""
    path = paths(folder).get(step) or evaluations_folder(folder) / f"{step:06d}.json.gz"
    try:
        columns: dict[str, list[Any]]
        if path.suffix == ".parquet":  # of an older version
            import pyarrow.parquet as pq

            columns = pq.read_table(path).to_pydict()
        else:
            columns = json.loads(gzip.decompress(path.read_bytes()))
        lines = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        rows = [{name: line.pop(name) for name in _OWN} for line in lines]
        numbers = [{name: value for name, value in line.items() if value is not None} for line in lines]
        return [EvaluationRow(**row, numbers=numbers_of_row) for row, numbers_of_row in zip(rows, numbers, strict=True)]
    except (AttributeError, KeyError, TypeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRunFolder(path, f"not an evaluation ({error})") from error


def paths(folder: Path) -> dict[int, Path]:
    """The files of evaluations by step, in order."""
    try:
        files = sorted(evaluations_folder(folder).iterdir())
    except FileNotFoundError:
        return {}
    return {int(match[1]): path for path in files if (match := _NAME.fullmatch(path.name))}


def supersede(folder: Path, resumed_from: int, moved: Path) -> None:
    """Move the evaluations after a step to the folder `moved`: an attempt that resumes there evaluates again."""
    for step, path in paths(folder).items():
        if step > resumed_from:
            moved.mkdir(parents=True, exist_ok=True)
            os.replace(path, moved / path.name)
