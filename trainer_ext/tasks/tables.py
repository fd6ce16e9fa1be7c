"""Rows of files and of the hub's data, with the place of each for errors."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_ext.tasks import BadData

_LOCAL = (".jsonl", ".jsonl.gz", ".parquet")


def is_local(path: str) -> bool:
    """Whether a path names a file; other texts are names on a hub."""
    return path.endswith(_LOCAL)


def local_files(task: Mapping[str, Any]) -> list[Path]:
    """The local files that the keys `*_path` of the section `task` name."""
    paths = (value for key, value in task.items() if key.endswith("_path"))
    return [Path(path).expanduser() for path in paths if path is not None and is_local(path)]


def read_table(
    path: str, of_hub: str, columns: Sequence[str], config: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a local file, or of a hub's data, each with its place; columns: which each of them has as text.

    of_hub, config: the split and the configuration of a hub's data. BadData: a row has no such column.
    """
    if is_local(path):
        rows = read_file(Path(path).expanduser())
    else:
        import datasets

        data = datasets.load_dataset(path, config, split=of_hub)
        rows = ((f"{path}, {of_hub}, row {number}", row) for number, row in enumerate(data, 1))
    for where, row in rows:
        if missing := [column for column in columns if not isinstance(row.get(column), str)]:
            rule = f"each row has text in the columns {', '.join(columns)}"
            raise BadData(f"{where}: no text in {', '.join(missing)}; {rule}; this one has {', '.join(row)}")
        yield where, row


def read_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The lines of a .jsonl or .jsonl.gz file, or the rows of a .parquet file, each with its place.

    BadData: a line is not a JSON mapping.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        for number, row in enumerate(pq.read_table(path).to_pylist(), 1):
            yield f"{path}, row {number}", row
        return
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            where = f"{path}, line {number}"
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise BadData(f"{where}: not JSON: {error}") from error
            if not isinstance(line, dict):
                raise BadData(f'{where}: must be a mapping such as {{"prompt": "...", "answer": "..."}}')
            yield where, line
