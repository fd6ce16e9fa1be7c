"""python -m launcher logs: why a run failed, and the end of its attempt's output.

For an experiment, or several runs: the failed ones, the newest first, as many as fit on a screen, with the end of each
traceback once. Exit codes: 0 fine, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files, text
from launcher.commands import output, selection
from launcher.errors import Usage
from launcher.project import EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import attempt_folder, find_state, read_state, run_folder
from launcher.run.lifecycle import RETRYABLE, RunState
from launcher.run.records import State

HELP = "show why a run failed, and the end of its output"
_LINES = 20
_BYTES_A_LINE = 4096
_END_LINES = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and which part of its output."""
    selection.add(parser)
    parser.add_argument("--attempt", type=int, metavar="N", help="default: the last one")
    parser.add_argument("--stdout", action="store_true", help="standard output instead of standard error")
    parser.add_argument("-n", "--lines", type=int, default=_LINES, help=f"how many of the last lines; default {_LINES}")


def run(given: argparse.Namespace) -> int:
    """JSON: by run id name, state, attempt, attempts, kind, cause, error, log (its path), lines."""
    if given.lines < 0:
        raise Usage(f"-n = {given.lines}: must be 0 or more; give the number of lines")
    ids = catalog.resolve(given.multirun, given.names)
    titles = catalog.titles(given.multirun)
    if len(ids) != 1 or given.names[0] in catalog.experiments(given.multirun):
        if given.attempt is not None:
            raise Usage(f"--attempt needs one run, but {' '.join(given.names)} is not one; give a run's id")
        failed = _failed(given.multirun, ids, titles)
        documents = {run.folder.name: _document(run, run.state.attempt, given) for run in failed}
        output(given, documents, map(text.clean, _ends(failed, given)))
        return EXIT_FINE
    folder = run_folder(given.multirun, ids[0])
    run = _Run(folder, titles.get(folder.name, ""), read_state(folder))
    attempt = _attempt(run, given.attempt)
    output(given, {folder.name: _document(run, attempt, given)}, map(text.clean, _shown(run, attempt, given)))
    return EXIT_FINE


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class _Run:
    folder: Path
    title: str
    state: State

    @property
    def present(self) -> str:
        return catalog.true_state(self.folder, self.state.state)

    def heading(self, brief: bool = False) -> str:
        """The run's id and title, its present state, and why; `brief` omits its attempt and host."""
        state, present = self.state, self.present
        kind = f" ({state.failure_kind})" if state.failure_kind and state.failure_kind != present else ""
        message = f": {state.message}" if state.message else ""
        attempt = "" if brief else f", attempt {state.attempt}{f' on {state.host}' if state.host else ''}"
        return f"{' '.join(filter(None, [self.folder.name, self.title]))}: {present}{kind}{attempt}{message}"

    def traceback(self, attempt: int) -> list[str]:
        """The lines of the traceback of the last attempt's error; empty for an earlier attempt."""
        error = self.state.error if attempt == self.state.attempt else None
        return (error or {}).get("traceback", "").splitlines()


def _attempt(run: _Run, chosen: int | None) -> int:
    existing = attempts(run.folder)
    if chosen is not None and chosen not in existing:
        listed = ", ".join(map(str, existing)) or "none"
        raise Usage(f"--attempt = {chosen}: run {run.folder.name} has no such attempt; its attempts are: {listed}")
    return run.state.attempt if chosen is None else chosen


def attempts(folder: Path) -> list[int]:
    """The attempts that have a folder, in order."""
    try:
        names = os.listdir(folder / "attempts")
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def _log(folder: Path, attempt: int, stdout: bool) -> Path:
    return attempt_folder(folder, attempt) / f"{'stdout' if stdout else 'stderr'}.log"


def _document(run: _Run, attempt: int, given: argparse.Namespace) -> dict[str, Any]:
    log = _log(run.folder, attempt, given.stdout)
    return {
        "name": run.title,
        "state": run.present,
        "attempt": attempt,
        "attempts": attempts(run.folder),
        "kind": run.state.failure_kind,
        "cause": run.state.message,
        "error": run.state.error,
        "log": str(log),
        "lines": last_lines(log, given.lines),
    }


def _shown(run: _Run, attempt: int, given: argparse.Namespace) -> Iterator[str]:
    """The run and why it ended, its traceback, and the end of the log without a copy of that traceback."""
    yield run.heading()
    traceback = run.traceback(attempt)
    yield from traceback
    log = _log(run.folder, attempt, given.stdout)
    lines = last_lines(log, given.lines + len(traceback))
    kept = _without(lines, traceback)[-given.lines :] if given.lines else []
    yield f"--- {log}{'' if kept else ': nothing else' if traceback else ': nothing'}"
    yield from kept


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


# ---------------------------------------------------------------- several runs


def _failed(multirun: Path, ids: Sequence[str], titles: Mapping[str, str]) -> list[_Run]:
    """Those of these runs that failed, the newest first."""
    states = ((run_folder(multirun, run_id), titles.get(run_id, "")) for run_id in ids)
    runs = [_Run(folder, title, state) for folder, title in states if (state := find_state(folder)) is not None]
    failed = [run for run in runs if run.present in (*RETRYABLE, RunState.LOST)]
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
        end = tuple(_end(run, given.stdout))
        lines = [run.heading(brief=True), *(f"    {line}" for line in end if end not in printed)]
        if shown and used + len(lines) > screen:
            break
        printed.add(end)
        shown, used = shown + 1, used + len(lines)
        yield from lines
    more = f"{len(failed) - shown} more failed; " if shown < len(failed) else ""
    yield f"{more}all details of one run: {catalog.command(given.multirun, 'logs', failed[0].folder.name)}"


def _end(run: _Run, stdout: bool) -> list[str]:
    """Where the error was raised and its message, or the last lines of a run whose state has no error."""
    lines = [line for line in run.traceback(run.state.attempt) if line.strip("^~ ")]
    return lines[-_END_LINES:] or last_lines(_log(run.folder, run.state.attempt, stdout), _END_LINES)
