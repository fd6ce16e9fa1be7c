"""Rows of a data set: of a local file, or of a name on the Hugging Face hub. Not a task itself.

The functions that tasks of data have in common are here, too.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trainer_ext.objection import Objection
from trainer_ext.scoring import rewards
from trainer_ext.scoring.rewards import unit_tests
from trainer_ext.scoring.tasks import TEST, Row, bad_row

_LOCAL = (".jsonl", ".jsonl.gz", ".parquet")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character in two parts, in JSON; alone, it is none
_FOLDER = re.compile(r"(\w[\w.-]*/[\w.-]+)/(.+)")  # a folder of a data set on the hub
#: What a task makes of a line: (where it stands, its columns, its split) -> a row, or None to leave it out.
Make = Callable[[str, Mapping[str, Any], str | None], Row | None]


def rows(task: Mapping[str, Any], make: Make, columns: Sequence[str] = ()) -> list[Row]:
    """The prompts of `task.train_path`, and those of the test data if there are any.

    `task.train_path`: a hub name, perhaps with a folder, whose split `task.hub_test_split` comes with it, or a local
    file. `task.test_path`: such a file, or null. `task.hub_subset`: the hub's configuration of the data set, or null.
    `task.limit`: how many lines of each are read, the first ones; null, or no such key: all. columns: which have text
    in each line. Objection names a line.
    """
    path, subset = task["train_path"], task["hub_subset"]
    parts: list[tuple[str, str, str | None]] = [(path, "train", None)]
    if task["test_path"] is not None:
        parts.append((task["test_path"], "train", TEST))
    elif not is_local(path):
        parts.append((path, task["hub_test_split"], TEST))
    found = []
    for place, of_hub, split in parts:
        read = islice(lines_with(columns, place, of_hub, subset), task.get("limit"))
        found += [row for at in read if (row := make(*at, split)) is not None]
    return found


def lines(path: str, of_hub: str, subset: str | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each line's columns, with the place of it for errors. of_hub, subset: which split of a hub's data.

    Objection: a line is not a mapping in JSON, or the file cannot be read.
    """
    if not is_local(path):
        for number, row in enumerate(_of_hub(path, of_hub, subset), 1):
            yield f"{path}, split {of_hub}, row {number}", row
        return
    file = Path(path).expanduser()
    try:
        yield from _of_file(file)
    except Objection:
        raise
    except Exception as error:  # of gzip and pyarrow
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        rule = f"it cannot be read as {file.suffix}: {why}"
        raise Objection("rows", None, rule, "write the file again, or name another", str(file)) from error


def _of_file(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(file).iter_batches()
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield f"{file}, row {number}", row
        return
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as raw_lines:
        for number, raw in enumerate(raw_lines, 1):
            where = f"{file}, line {number}"
            if not raw.strip():
                continue
            try:
                text = raw.decode()
                line = json.loads(text)
                if _HALF.search(text):
                    json.dumps(line, ensure_ascii=False).encode()
            except ValueError as error:
                fix = "correct the line, or save the file in UTF-8 without a byte order mark"
                raise bad_row(where, f"not JSON in UTF-8: {error}", fix) from error
            if not isinstance(line, dict):
                raise bad_row(where, 'must be a mapping such as {"prompt": "...", "answer": "..."}')
            yield where, line


def _of_hub(path: str, split: str, subset: str | None) -> Iterable[Mapping[str, Any]]:
    """The rows of a split; path: a name, OWNER/NAME, or a folder of it, OWNER/NAME/FOLDER. Of a data set with a script,
    which datasets no longer runs, those of its file SPLIT.jsonl.

    Objection: it has a script and no such file.
    """
    import datasets
    from huggingface_hub import errors, hf_hub_download

    inside = _FOLDER.fullmatch(path)
    name, folder = inside.groups() if inside else (path, None)
    try:
        return datasets.load_dataset(name, subset, data_dir=folder, split=split)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
    try:
        file = hf_hub_download(path, f"{split}.jsonl", repo_type="dataset")
    except (errors.EntryNotFoundError, errors.HFValidationError) as error:
        rule = f"this data set has a script, which datasets no longer runs, and no file {split}.jsonl"
        fix = f"download its files (hf download {path} --repo-type dataset) and name a .jsonl or .parquet file"
        raise Objection("task.train_path", path, rule, f"{fix} in task.train_path and task.test_path") from error
    return (row for _, row in lines(file, split))


def lines_with(
    columns: Sequence[str], path: str, of_hub: str, subset: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`lines` that have text in all these columns. Objection: one has not."""
    for where, line in lines(path, of_hub, subset):
        if missing := [column for column in columns if not isinstance(line.get(column), str)]:
            rule = f"each row has text in the columns {', '.join(columns)}"
            raise bad_row(where, f"no text in {', '.join(missing)}; {rule}; this one has {', '.join(line)}")
        yield where, line


def is_local(path: str) -> bool:
    """Whether a path names a file; other names are a hub's."""
    return path.endswith(_LOCAL)


def files(task: Mapping[str, Any]) -> list[Path]:
    """The local files that the keys `*_path` of the section `task` name."""
    paths = (value for key, value in task.items() if key.endswith("_path"))
    return [Path(path).expanduser() for path in paths if path is not None and is_local(path)]


def text_at(line: Mapping[str, Any], column: str, where: str) -> str:
    """The text of a column. Objection: there is none."""
    value = line.get(column)
    if not isinstance(value, str):
        raise bad_row(where, f"{column} must be text; it is {value!r:.100}, and the columns are {', '.join(line)}")
    return value


def reward(task: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that `task.reward` names."""
    return unit_tests.reward(task) if task["reward"] == unit_tests.NAME else rewards.function(task["reward"])


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The row's worked answer, or with probability `random_fraction` an empty one."""
    return "" if generator.random() < random_fraction else row.worked_answer


def preference(ground_truth: str, generator: random.Random, extra_info: Mapping[str, Any]) -> tuple[str, str]:
    """The data's own pair of responses, `chosen` and `rejected`. ValueError: the prompt has none."""
    chosen, rejected = extra_info.get("chosen"), extra_info.get("rejected")
    if chosen is None or rejected is None:
        raise ValueError("method.dpo_pairs=data: the data have prompts without a pair; set method.dpo_pairs=group")
    return chosen, rejected
