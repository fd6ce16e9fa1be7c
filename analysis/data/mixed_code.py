"""Whether the runs of an experiment were made by the same code and content, from the records of the runs."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from analysis.data.sweep import Cell, Run, Sweep
from launcher.run import code
from launcher.run.code import Code
from launcher.run.folder import read_config, run_folder

_PATH = re.compile(r"\w/|/\w|\.[a-z]+(:|$)")  # also of FILE.py:FUNCTION


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
    records: dict[str, Code] = {}  # those that are not gone and can be read
    for code_id in {code_id for run in runs for code_id in run.code}:
        with contextlib.suppress(ValueError):
            if (record := code.read(sweep.folder.parent, code_id)) is not None:
                records[code_id] = record
    names = code.between(records.values())
    if not names:
        return None
    values = {code_id: record.values() for code_id, record in records.items()}
    known = [run for run in runs if any(code_id in records for code_id in run.code)]
    by_version: dict[tuple[frozenset[str], ...], list[Run]] = {}
    for run in sorted(known, key=lambda run: run.finished or 0.0):
        recorded = [values[code_id] for code_id in run.code if code_id in values]
        version = tuple(frozenset(value[name] for value in recorded if name in value) for name in names)
        by_version.setdefault(version, []).append(run)
    choices = code.choices(sweep.folder)
    times = [max((choice["time"] for choice in choices if name in choice["changes"]), default=None) for name in names]
    accepted = [time for time in times if time is not None]
    return MixedCode(
        names=tuple(names),
        versions=tuple(map(tuple, by_version.values())),
        accepted=max(accepted) if len(accepted) == len(times) else None,
        unknown=len(runs) - len(known),
    )


def unknown_content(sweep: Sweep) -> dict[str, int]:
    """By path of a model, data or reward: of how many done runs an older version did not record its content."""
    counts: Counter[str] = Counter()
    paths: dict[tuple[str, Cell], list[str]] = {}  # reading a configuration takes 2 ms, and seeds do not change it
    for run in {run.id: run for run in sweep.runs if run.done}.values():
        folder, key = run_folder(sweep.folder.parent, run.id), (run.group, run.cell)
        with contextlib.suppress(OSError, ValueError):
            if b"\ninputs:" in (folder / "config.yaml").read_bytes():
                continue
            if key not in paths:
                config = read_config(folder)
                texts = re.findall('"([^"]+)"', json.dumps([config.get(name) for name in ("model", "method", "task")]))
                named = {Path(text.partition(":")[0]).expanduser().absolute() for text in texts if _PATH.search(text)}
                named -= {Path(text).expanduser().absolute() for text in config.get("data", ())}
                paths[key] = [str(path) for path in named if path.exists()]
            counts.update(paths[key])
    return dict(sorted(counts.items()))
