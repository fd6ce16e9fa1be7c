"""python -m launcher logs: why a run failed, and the end of its attempt's output.

For an experiment, or several runs: the failed ones, the newest first, as many as fit on a screen, with the end of each
traceback once. `--follow` ends when the run has ended, and with Ctrl-C. Exit codes: 0 fine, 2 no such run or
experiment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import files, text
from launcher.commands import selection
from launcher.commands.selection import Selection
from launcher.errors import Usage
from launcher.project import EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import attempt_folder, find_state, read_state, run_folder
from launcher.run.lifecycle import RETRYABLE, RunState
from launcher.run.records import State

HELP = "show why a run failed, and the end of its output"
_EVERY_S = 0.3
_LINES = 20
_BYTES_A_LINE = 4096
_END_LINES = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and which part of its output."""
    selection.add(parser, nargs="+")
    parser.add_argument("--attempt", type=int, metavar="N", help="default: the last one")
    parser.add_argument("--stdout", action="store_true", help="standard output instead of standard error")
    parser.add_argument("--follow", "-f", action="store_true", help="continue to print what a running run writes")
    parser.add_argument("-n", "--lines", type=int, default=_LINES, help=f"how many of the last lines; default {_LINES}")


def run(given: argparse.Namespace) -> int:
    """JSON: by run id name, state, attempt, attempts, kind, cause, error, log (its path), lines."""
    if given.lines < 0:
        raise Usage(f"-n = {given.lines}: must be 0 or more; give the number of lines")
    chosen = selection.select(given)
    ids = chosen.ids
    if chosen.experiments or len(ids) != 1:
        if given.follow or given.attempt is not None:
            raise Usage(f"--follow and --attempt need one run, but {' '.join(given.names)} is not one; give a run's id")
        return _print_failures(given.multirun, chosen, given)
    folder = run_folder(given.multirun, ids[0])
    state = read_state(folder)
    attempt = _attempt(folder, state, given.attempt)
    title = catalog.titles(given.multirun).get(folder.name, "")
    if given.json:
        if given.follow:
            raise Usage("--follow prints lines as they come, and --json prints one object; give only one of them")
        print(json.dumps({folder.name: _document(folder, title, state, attempt, given)}, indent=1))
        return EXIT_FINE
    for line in _shown(folder, title, state, attempt, given):
        print(text.clean(line))
    if given.follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(folder, title, attempt, given.stdout)
    return EXIT_FINE


# ---------------------------------------------------------------- one run


def _attempt(folder: Path, state: State, chosen: int | None) -> int:
    existing = attempts(folder)
    if chosen is not None and chosen not in existing:
        listed = ", ".join(map(str, existing)) or "none"
        raise Usage(f"--attempt = {chosen}: run {folder.name} has no such attempt; its attempts are: {listed}")
    return state.attempt if chosen is None else chosen


def attempts(folder: Path) -> list[int]:
    """The attempts that have a folder, in order."""
    try:
        names = os.listdir(folder / "attempts")
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def _log(folder: Path, attempt: int, stdout: bool) -> Path:
    return attempt_folder(folder, attempt) / f"{'stdout' if stdout else 'stderr'}.log"


def _document(folder: Path, title: str, state: State, attempt: int, given: argparse.Namespace) -> dict[str, Any]:
    log = _log(folder, attempt, given.stdout)
    return {
        "name": title,
        "state": catalog.true_state(folder, state.state),
        "attempt": attempt,
        "attempts": attempts(folder),
        "kind": state.failure_kind,
        "cause": state.message,
        "error": state.error,
        "log": str(log),
        "lines": last_lines(log, given.lines),
    }


def _shown(folder: Path, title: str, state: State, attempt: int, given: argparse.Namespace) -> Iterator[str]:
    """The run and why it ended, its traceback, and the end of the log without a copy of that traceback."""
    yield _heading(folder, title, state)
    traceback = _traceback(state.error if attempt == state.attempt else None)
    yield from traceback
    log = _log(folder, attempt, given.stdout)
    lines = last_lines(log, given.lines + len(traceback))
    kept = _without(lines, traceback)[-given.lines :] if given.lines else []
    yield f"--- {log}{'' if kept else ': nothing else' if traceback else ': nothing'}"
    yield from kept


def _heading(folder: Path, title: str, state: State, brief: bool = False) -> str:
    """The run's id and title, its present state, and why; `brief` omits its attempt and host."""
    present = catalog.true_state(folder, state.state)
    kind = f" ({state.failure_kind})" if state.failure_kind and state.failure_kind != present else ""
    message = f": {state.message}" if state.message else ""
    attempt = "" if brief else f", attempt {state.attempt}{f' on {state.host}' if state.host else ''}"
    return f"{' '.join(filter(None, [folder.name, title]))}: {present}{kind}{attempt}{message}"


def _traceback(error: Mapping[str, str] | None) -> list[str]:
    return (error or {}).get("traceback", "").splitlines()


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


def _follow(folder: Path, title: str, attempt: int, stdout: bool) -> None:
    """Print what is appended to the log, also by later attempts, until the run has ended."""
    position = files.size_of(_log(folder, attempt, stdout))
    while True:
        state = read_state(folder)
        ended = catalog.true_state(folder, state.state) not in (RunState.RUNNING, RunState.SUBMITTED)
        log = _log(folder, attempt, stdout)
        new = files.read_from(log, position)
        complete = len(new) if ended else new.rfind(b"\n") + 1
        position += complete
        for line in new[:complete].decode("utf-8", errors="replace").splitlines():
            print(text.clean(line), flush=True)
        if state.attempt > attempt:
            attempt, position = state.attempt, 0
            print(f"--- {_log(folder, attempt, stdout)}", flush=True)
        elif ended:
            print(f"--- {text.clean(_heading(folder, title, state))}", flush=True)
            return
        else:
            time.sleep(_EVERY_S)


# ---------------------------------------------------------------- several runs


def _print_failures(multirun: Path, chosen: Selection, given: argparse.Namespace) -> int:
    """Print those of the selected runs that failed, the newest first."""
    titles = {place.run_id: catalog.title(place.entry) if place.entry else "" for place in reversed(chosen.places)}
    failed: list[tuple[Path, State]] = []
    for run_id in chosen.ids:
        folder = run_folder(multirun, run_id)
        state = find_state(folder)
        if state is not None and catalog.true_state(folder, state.state) in (*RETRYABLE, RunState.LOST):
            failed.append((folder, state))
    failed.sort(key=lambda run: -(run[1].finished or 0.0))
    if given.json:
        documents = {
            folder.name: _document(folder, titles[folder.name], state, state.attempt, given) for folder, state in failed
        }
        print(json.dumps(documents, indent=1))
        return EXIT_FINE
    if not failed:
        print(f"{' '.join(given.names)}: no run has failed; give a run's id to see its output")
        return EXIT_FINE
    screen = shutil.get_terminal_size().lines - 2
    used = shown = 0
    printed: set[tuple[str, ...]] = set()
    for folder, state in failed:
        end = tuple(_end(folder, state, given.stdout))
        lines = [_heading(folder, titles[folder.name], state, brief=True)]
        lines += [f"    {line}" for line in end if end not in printed]
        if shown and used + len(lines) > screen:
            break
        printed.add(end)
        shown, used = shown + 1, used + len(lines)
        print("\n".join(map(text.clean, lines)))
    more = f"{len(failed) - shown} more failed; " if shown < len(failed) else ""
    print(f"{more}all details of one run: {catalog.command(multirun, 'logs', failed[0][0].name)}")
    return EXIT_FINE


def _end(folder: Path, state: State, stdout: bool) -> list[str]:
    """Where the error was raised and its message, or the last lines of a run whose state has no error."""
    lines = [line for line in _traceback(state.error) if line.strip("^~ ")]
    return lines[-_END_LINES:] or last_lines(_log(folder, state.attempt, stdout), _END_LINES)
