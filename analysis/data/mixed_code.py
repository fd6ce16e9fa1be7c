"""Whether the runs of an experiment were made by the same code, from the records in multirun/code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.data.sweep import Run, Sweep
from launcher.run import code
from launcher.run.code import Code


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
        own = [values[code_id] for code_id in run.code if code_id in values]
        version = tuple(frozenset(value[name] for value in own if name in value) for name in names)
        by_version.setdefault(version, []).append(run)
    return MixedCode(
        names=tuple(names),
        versions=tuple(map(tuple, by_version.values())),
        accepted=_accepted(sweep, names),
        unknown=len(runs) - len(known),
    )


def _accepted(sweep: Sweep, names: Sequence[str]) -> float | None:
    """When the last of these differences was accepted; None if one was not."""
    choices = code.choices(sweep.folder)
    times = [max((choice["time"] for choice in choices if name in choice["changes"]), default=None) for name in names]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
