"""Runs that were made by other code than the present one, and what the user has decided about them.

Only finished steps count: those of done runs, and of runs that would be resumed from a checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run import code
from launcher.run.folder import find_state, latest_checkpoint, run_folder
from launcher.run.lifecycle import RunState

_NAMED = 4


@dataclass(frozen=True)
class OtherCode:
    """Runs of one experiment whose code has changed in the same way since.

    `codes` are the ids of their records, `changes` the names and both values of what changed (code.changes),
    `accepted` whether a user accepted this difference. `done`: how many of the runs are done.
    """

    runs: tuple[str, ...]
    done: int
    codes: tuple[str, ...]
    changes: Mapping[str, tuple[str, str]]
    accepted: bool

    @property
    def difference(self) -> str:
        """The hash of the difference."""
        return code.digest_of(self.changes)

    def sentence(self) -> str:
        """`4 done by other code: my_methods/ratio.py changed since`."""
        names = [code.said(name, value) for name, value in self.changes.items()]
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        waiting = len(self.runs) - self.done
        counts = [f"{self.done} done"] if self.done else []
        counts += [f"{waiting} with a checkpoint"] if waiting else []
        accepted = " (accepted)" if self.accepted else ""
        return f"{' and '.join(counts)} by other code: {listed} changed since{accepted}"

    def document(self) -> dict[str, Any]:
        """The JSON object of `plan --json` and `status --json`."""
        changes = {name: {"then": then, "now": now} for name, (then, now) in self.changes.items()}
        return {
            "runs": list(self.runs),
            "done": self.done,
            "changes": changes,
            "difference": self.difference,
            "accepted": self.accepted,
        }


def of_runs(
    multirun: Path, experiment: str, run_ids: Iterable[str], prefixes: Mapping[str, str] | None = None
) -> list[OtherCode]:
    """The runs of an experiment with other code, read from their folders. prefixes: by run, which one it continues."""
    states = ((run_id, find_state(run_folder(multirun, run_id))) for run_id in run_ids)
    runs = {run_id: (one.state, one.code_ids()) for run_id, one in states if one}
    taken_over = {
        run_id: (runs[run_id][0] if run_id in runs else RunState.PLANNED, before.code_ids())
        for run_id, prefix in (prefixes or {}).items()
        if not runs.get(run_id, ("", ()))[1] and (before := find_state(run_folder(multirun, prefix))) is not None
    }
    return of_codes(multirun, experiment, {**runs, **taken_over}, taken_over)


def of_codes(
    multirun: Path,
    experiment: str,
    runs: Mapping[str, tuple[str, Sequence[str]]],
    taken_over: Collection[str] = (),
) -> list[OtherCode]:
    """The runs of an experiment with other code. `runs`: the state of each, and the ids of its records of code.

    A run without a record, of an older version or without a step, has no known code. `taken_over`: the runs that have
    no step of their own yet, but will take over those of runs with these records.
    """
    changed: dict[str, Mapping[str, tuple[str, str]]] = {}
    differences: dict[str, Mapping[str, tuple[str, str]]] = {}
    by_difference: dict[str, list[str]] = {}
    for run_id, (state, code_ids) in runs.items():
        counts = state == RunState.DONE or run_id in taken_over
        if not code_ids or not (counts or latest_checkpoint(run_folder(multirun, run_id)) is not None):
            continue
        different: dict[str, tuple[str, str]] = {}
        for code_id in code_ids:
            if code_id not in changed:
                record = code.read(multirun, code_id)
                changed[code_id] = code.changes(record) if record is not None else {}
            different |= changed[code_id]
        if different:
            digest = code.digest_of(different)
            differences[digest] = different
            by_difference.setdefault(digest, []).append(run_id)
    choices = code.choices(multirun / experiment) if by_difference else []
    known = {choice.get("difference") for choice in choices}
    return [
        OtherCode(
            runs=tuple(ids),
            done=sum(runs[run_id][0] == RunState.DONE for run_id in ids),
            codes=tuple(sorted({code_id for run_id in ids for code_id in runs[run_id][1]})),
            changes=differences[digest],
            accepted=digest in known,
        )
        for digest, ids in by_difference.items()
    ]


def accept(multirun: Path, experiment: str, others: Sequence[OtherCode], command: str) -> None:
    """Append a line for each of these differences that is not accepted yet."""
    path = code.choices_path(multirun / experiment)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        for other in others:
            if not other.accepted:
                line = {
                    "time": time.time(),
                    "difference": other.difference,
                    "changes": {name: list(value) for name, value in other.changes.items()},
                    "codes": list(other.codes),
                    "runs": list(other.runs),
                    "command": command,
                }
                file.write(json.dumps(line) + "\n")
