"""python -m launcher logs: why a run failed, and the end of what it printed on standard error.

For an experiment, or several runs: the failed ones, the newest first, as many as fit on a screen, with the end of each
traceback once. Exit codes: 0 fine, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files, text
from launcher.commands import output, selection
from launcher.project import EXIT_FINE
from launcher.run import catalog, lifecycle, whole
from launcher.run.folder import attempt_folder, run_folder
from launcher.run.lifecycle import RETRYABLE, RunState, State, known_state, read_state
from launcher.status.standing import UNREADABLE, Index

HELP = "show why a run failed, and the end of its output"
arguments = selection.add
_LINES = 20
_BYTES_A_LINE = 4096
_END_LINES = 3


def run(given: argparse.Namespace) -> int:
    """JSON: by run id name, state, attempt, attempts, kind, cause, error, log (its path), lines."""
    multirun: Path = given.multirun
    ids, titles = catalog.resolve(multirun, given.names), catalog.titles(multirun)
    if len(ids) == 1 and given.names[0] not in catalog.experiments(multirun):
        folder = catalog.find_run(multirun, ids[0])
        state = read_state(folder)
        runs = [_Run(folder, titles.get(folder.name, ""), state, whole.problem(folder, state))]
        lines = _shown(runs[0])
    else:
        runs = _failed(multirun, ids, titles)
        lines = _ends(runs, given)
    output(given, {run.folder.name: run.document() for run in runs}, map(text.clean, lines))
    return EXIT_FINE


@dataclass(frozen=True)
class _Run:
    folder: Path
    title: str
    state: State
    damage: str | None  # which file is not as it was when the run was done

    @property
    def present(self) -> str:
        return UNREADABLE if self.damage else lifecycle.true_state(self.folder, self.state.state)

    @property
    def cause(self) -> str | None:
        return self.damage or self.state.message

    @property
    def log(self) -> Path:
        return attempt_folder(self.folder, self.state.attempt) / "stderr.log"

    @property
    def traceback(self) -> list[str]:
        return (self.state.error or {}).get("traceback", "").splitlines()

    def heading(self, brief: bool = False) -> str:
        """The run's id and title, its present state, and why; `brief` omits its attempt and host."""
        state, present = self.state, self.present
        kind = f" ({state.failure_kind})" if state.failure_kind and state.failure_kind != present else ""
        message = f": {self.cause}" if self.cause else ""
        attempt = "" if brief else f", attempt {state.attempt}{f' on {state.host}' if state.host else ''}"
        return f"{' '.join(filter(None, [self.folder.name, self.title]))}: {present}{kind}{attempt}{message}"

    def document(self) -> dict[str, Any]:
        state = self.state
        return {
            "name": self.title,
            "state": self.present,
            "attempt": state.attempt,
            "attempts": sorted(int(place.name) for place in self.log.parent.parent.glob("[0-9]*")),
            "kind": state.failure_kind,
            "cause": self.cause,
            "error": state.error,
            "log": str(self.log),
            "lines": last_lines(self.log, _LINES),
        }


def _shown(run: _Run) -> Iterator[str]:
    """The run and why it ended, its traceback, and the end of the log without a copy of that traceback."""
    yield run.heading()
    traceback = run.traceback
    yield from traceback
    lines = _without(last_lines(run.log, _LINES + len(traceback)), traceback)[-_LINES:]
    yield f"--- {run.log}{'' if lines else ': nothing else' if traceback else ': nothing'}"
    yield from lines


def _without(lines: Sequence[str], traceback: Sequence[str]) -> list[str]:
    """The lines without their last copy of the traceback: a worker prints what its state contains."""
    size = len(traceback)
    for start in range(len(lines) - size, -1, -1) if size else ():
        if list(lines[start : start + size]) == list(traceback):
            return [*lines[:start], *(line for line in lines[start + size :] if line)]
    return list(lines)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file, without their ends; none of an absent one. Bytes that are not UTF-8 are replaced.

    At most 4 KiB a line are read; of a longer line, such as that of a progress bar, the end is kept.
    """
    data = files.read_from(path, -(count + 1) * _BYTES_A_LINE)
    lines = data.decode("utf-8", errors="replace").rstrip("\n").split("\n")
    return lines[-count:] if count and data else []


def _failed(multirun: Path, ids: Sequence[str], titles: Mapping[str, str]) -> list[_Run]:
    """Those of these runs that failed, the newest first."""
    runs = []
    for run_id, row in Index(multirun).refresh(ids).items():
        damage = row.message if row.state == UNREADABLE else None
        folder = run_folder(multirun, run_id)
        state = known_state(folder) or State(run_id, RunState.FAILED)  # lost
        runs.append(_Run(folder, titles.get(run_id, ""), state, damage))
    failed = [run for run in runs if run.present in (*RETRYABLE, RunState.LOST, UNREADABLE)]
    return sorted(failed, key=lambda run: -(run.state.finished or 0.0))


def _ends(failed: Sequence[_Run], given: argparse.Namespace) -> Iterator[str]:
    """As many runs as fit on a screen; the end of each traceback once."""
    if not failed:
        yield f"{' '.join(given.names)}: no run has failed; give a run's id to see its output"
        return
    screen = shutil.get_terminal_size().lines - 2
    used = shown = 0
    printed: set[tuple[str, ...]] = set()
    for run in failed:
        end = tuple(_end(run))
        lines = [run.heading(brief=True), *(f"    {line}" for line in end if end not in printed)]
        if shown and used + len(lines) > screen:
            break
        printed.add(end)
        shown, used = shown + 1, used + len(lines)
        yield from lines
    more = f"{len(failed) - shown} more failed; " if shown < len(failed) else ""
    yield f"{more}all details of one run: {catalog.command(given.multirun, 'logs', failed[0].folder.name)}"


def _end(run: _Run) -> list[str]:
    """Where the error was raised and its message, or the last lines of a run whose state has no error."""
    lines = [line for line in run.traceback if line.strip("^~ ")]
    return lines[-_END_LINES:] or last_lines(run.log, _END_LINES)
