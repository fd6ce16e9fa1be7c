"""Whether the runs of an experiment were made by the same code and content, from the records of the runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.data.sweep import Cell, Run, Sweep
from launcher.run import code
from launcher.run.code import Code
from launcher.run.folder import read_config, run_folder


@dataclass(frozen=True)
class MixedCode:
    """Done runs that differ in code. `names`: the modules, data files and libraries that are not the same in all.

    `versions`: the runs by the versions of these that they were made by, in the order in which they ended first.
    `accepted`: when a user accepted the difference with accept_code=true, in unix seconds; None: nobody did.
    `unknown`: how many other runs have no record, because an older version of this program made them.
    """

    names: tuple[str, ...]
    versions: tuple[tuple[Run, ...], ...]
    accepted: float | None
    unknown: int


def mixed_code(sweep: Sweep) -> MixedCode | None:
    """How the done runs of an experiment mix code; None: every run that has a record was made by the same code."""
    runs = [run for run in sweep.runs if run.done]
    found = ((code_id, _read(sweep, code_id)) for code_id in {code_id for run in runs for code_id in run.code})
    records = {code_id: record for code_id, record in found if record is not None}
    names = code.between(records.values())
    if not names:
        return None
    values = {code_id: record.values() for code_id, record in records.items()}
    known = [run for run in runs if any(code_id in records for code_id in run.code)]
    by_version: dict[tuple[frozenset[str], ...], list[Run]] = {}
    for run in sorted(known, key=lambda run: run.finished or 0.0):
        own = [values[code_id] for code_id in run.code if code_id in values]
        version = tuple(frozenset(value[name] for value in own if name in value) for name in names)
        by_version.setdefault(version, []).append(run)
    return MixedCode(
        names=tuple(names),
        versions=tuple(map(tuple, by_version.values())),
        accepted=_accepted(sweep, names),
        unknown=len(runs) - len(known),
    )


def unknown_content(sweep: Sweep) -> dict[str, int]:
    """By path of a model, data or reward: of how many done runs an older version did not record its content."""
    counts: Counter[str] = Counter()
    paths: dict[tuple[str, Cell], list[str]] = {}  # reading a configuration takes 2 ms, and seeds do not change it
    for run in {run.id: run for run in sweep.runs if run.done}.values():
        folder, key = run_folder(sweep.folder.parent, run.id), (run.group, run.cell)
        with suppress(OSError, ValueError):
            if b"\ninputs:" in (folder / "config.yaml").read_bytes():
                continue
            if key not in paths:
                config = read_config(folder)
                paths[key] = sorted({*_local([config.get(name) for name in ("model", "method", "task")])})
                paths[key] = [path for path in paths[key] if path not in config.get("data", ())]
            counts.update(paths[key])
    return dict(sorted(counts.items()))


def _local(value: Any) -> Iterator[str]:
    """The absolute paths of the files and folders that a part of a configuration names, also as FILE.py:FUNCTION."""
    if isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _local(item)
    elif isinstance(value, str) and re.search(r"\w/|/\w|\.[a-z]+(:|$)", value):
        path = Path(value.partition(":")[0]).expanduser().absolute()
        if path.exists():
            yield str(path)


def _read(sweep: Sweep, code_id: str) -> Code | None:
    """A record, or None if it is gone or cannot be read."""
    try:
        return code.read(sweep.folder.parent, code_id)
    except ValueError:
        return None


def _accepted(sweep: Sweep, names: Sequence[str]) -> float | None:
    """When the last of these differences was accepted; None if one was not."""
    choices = code.choices(sweep.folder)
    times = [max((choice["time"] for choice in choices if name in choice["changes"]), default=None) for name in names]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
