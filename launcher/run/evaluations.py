"""The rewards of a run's evaluations, one for each response: multirun/runs/<id>/evaluations/<step>.parquet.

A metric is a mean over prompts and responses. With these files an analysis can tell how much of a difference comes from
the choice of prompts and how much from the seeds of the runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.files import ASIDE, BadRunFolder, fsync_folder
from launcher.run.records import Record

_OWN = ("prompt", "split", "sample", "reward")
_NAME = re.compile(r"(\d+)\.parquet")


@dataclass(frozen=True)
class EvaluationRow(Record):
    """A row of evaluations/<step>.parquet, one a response. `prompt` is its id, as in responses.jsonl.

    `split`: train, validation or test. `sample`: the number of the response among those drawn for the prompt, from 0;
    null for the greedy response. `numbers`: further ones by name, a column each; a response that has none lacks them.
    """

    prompt: str
    split: str
    sample: int | None
    reward: float
    numbers: Mapping[str, float] = field(default_factory=dict)


def evaluations_folder(folder: Path) -> Path:
    """A file for each step with an evaluation, as 000040.parquet."""
    return folder / "evaluations"


def write(folder: Path, step: int, rows: Iterable[EvaluationRow]) -> None:
    """Replace the file of a step atomically; it then survives a power cut."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    further = dict.fromkeys(name for row in rows for name in row.numbers)
    columns = {"prompt": pa.string(), "split": pa.string(), "sample": pa.int32(), "reward": pa.float64()}
    schema = pa.schema({**columns, **dict.fromkeys(further, pa.float64())})
    lines = [{**{name: getattr(row, name) for name in columns}, **row.numbers} for row in rows]
    name = f"{step:06d}.parquet"
    parent, aside = evaluations_folder(folder), folder / f"{ASIDE}{name}-{os.getpid()}"
    parent.mkdir(exist_ok=True)
    try:
        with open(aside, "wb") as file:
            pq.write_table(pa.Table.from_pylist(lines, schema=schema), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, parent / name)
    finally:
        aside.unlink(missing_ok=True)
    fsync_folder(parent)


def read(folder: Path, step: int) -> list[EvaluationRow]:
    """The rows of a step's evaluation. FileNotFoundError: there is none; BadRunFolder: the file cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = evaluations_folder(folder) / f"{step:06d}.parquet"
    try:
        lines = pq.read_table(path).to_pylist()
        rows = [{name: line.pop(name) for name in _OWN if name in line} for line in lines]
        numbers = [{name: value for name, value in line.items() if value is not None} for line in lines]
        return [EvaluationRow(**row, numbers=numbers_of_row) for row, numbers_of_row in zip(rows, numbers, strict=True)]
    except (pa.ArrowInvalid, TypeError) as error:
        raise BadRunFolder(path, f"not an evaluation ({error})") from error


def steps(folder: Path) -> list[int]:
    """The steps with an evaluation, in order."""
    try:
        names = [path.name for path in evaluations_folder(folder).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def supersede(folder: Path, resumed_from: int, moved: Path) -> None:
    """Move the evaluations after a step to the folder `moved`: an attempt that resumes there evaluates again."""
    for step in steps(folder):
        if step > resumed_from:
            moved.mkdir(parents=True, exist_ok=True)
            os.replace(evaluations_folder(folder) / f"{step:06d}.parquet", moved / f"{step:06d}.parquet")
