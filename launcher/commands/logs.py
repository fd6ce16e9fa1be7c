"""python -m launcher logs: why a run failed, and the end of what its attempt wrote.

Of an experiment: the failed runs, the newest first, as many as fit on a screen, with the end of each traceback once.
Exit codes: 0 fine, 2 no such run or experiment. `--follow` ends when the run has ended, and with Ctrl-C.
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

from launcher import text
from launcher.commands import completion
from launcher.errors import Usage
from launcher.project import EXIT_FINE
from launcher.run import catalog
from launcher.run import folder as folders
from launcher.run.folder import State

HELP = "why a run failed, and the end of its output"
_EVERY_S = 0.3
_LINES = 20
_BLOCK = 4096
_END_LINES = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and which part of what it wrote."""
    word = parser.add_argument("run", metavar="RUN|EXPERIMENT", help="a run's id, its beginning, or an experiment")
    completion.completes(word, completion.experiments_and_runs)
    parser.add_argument("--attempt", type=int, metavar="N", help="default: the last one")
    parser.add_argument("--stdout", action="store_true", help="standard output instead of standard error")
    parser.add_argument("--follow", "-f", action="store_true", help="go on printing what a running run writes")
    parser.add_argument("-n", "--lines", type=int, default=_LINES, help=f"the last lines of it; default {_LINES}")


def run(given: argparse.Namespace) -> int:
    """JSON: by run id name, state, attempt, attempts, kind, cause, error, log (its path), lines."""
    if given.lines < 0:
        raise Usage(f"-n = {given.lines}: a number of lines, 0 or more")
    named = catalog.named(given.multirun, given.run)
    if named.experiment is not None:
        if given.follow or given.attempt is not None:
            raise Usage(f"--follow and --attempt are for one run, and {given.run} is an experiment; give a run's id")
        return _of_experiment(given.multirun, named.experiment, named.ids, given)
    folder = folders.run_folder(given.multirun, named.ids[0])
    state = folders.read_state(folder)
    attempt = _attempt(folder, state, given.attempt)
    name = catalog.titles(given.multirun).get(folder.name, "")
    if given.json:
        if given.follow:
            raise Usage("--follow prints lines as they come, and no object: leave out --json")
        print(json.dumps({folder.name: _document(folder, name, state, attempt, given)}, indent=1))
        return EXIT_FINE
    for line in _shown(folder, name, state, attempt, given):
        print(text.clean(line))
    if given.follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(folder, name, attempt, given.stdout)
    return EXIT_FINE


# ---------------------------------------------------------------- one run


def _attempt(folder: Path, state: State, wanted: int | None) -> int:
    there = attempts(folder)
    if wanted is not None and wanted not in there:
        listed = ", ".join(map(str, there)) or "none"
        raise Usage(f"--attempt = {wanted}: run {folder.name} has no such attempt; there is: {listed}")
    return state.attempt if wanted is None else wanted


def attempts(folder: Path) -> list[int]:
    """The attempts that left a folder, in their order."""
    try:
        names = os.listdir(folder / "attempts")
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def _log(folder: Path, attempt: int, stdout: bool) -> Path:
    return folders.attempt_folder(folder, attempt) / f"{'stdout' if stdout else 'stderr'}.log"


def _document(folder: Path, name: str, state: State, attempt: int, given: argparse.Namespace) -> dict[str, Any]:
    log = _log(folder, attempt, given.stdout)
    return {
        "name": name,
        "state": catalog.true_state(folder, state.state),
        "attempt": attempt,
        "attempts": attempts(folder),
        "kind": state.kind,
        "cause": state.cause,
        "error": state.error,
        "log": str(log),
        "lines": last_lines(log, given.lines),
    }


def _shown(folder: Path, name: str, state: State, attempt: int, given: argparse.Namespace) -> Iterator[str]:
    """What the run is and why it ended, its traceback, and the end of the log without that traceback again."""
    yield _title(folder, name, state)
    error = state.error if attempt == state.attempt else None
    traceback = _traceback(error)
    yield from traceback
    log = _log(folder, attempt, given.stdout)
    lines = last_lines(log, given.lines + len(traceback))
    kept = _without(lines, traceback)[-given.lines :] if given.lines else []
    yield f"--- {log}{'' if kept else ': nothing else' if traceback else ': nothing'}"
    yield from kept


def _title(folder: Path, name: str, state: State, brief: bool = False) -> str:
    """The run's id and name, its present state, and why; `brief` leaves out its attempt and host."""
    present = catalog.true_state(folder, state.state)
    kind = f" ({state.kind})" if state.kind and state.kind != present else ""
    cause = f": {state.cause}" if state.cause else ""
    attempt = "" if brief else f", attempt {state.attempt}{f' on {state.host}' if state.host else ''}"
    return f"{' '.join(filter(None, [folder.name, name]))}: {present}{kind}{attempt}{cause}"


def _traceback(error: Mapping[str, str] | None) -> list[str]:
    return (error or {}).get("traceback", "").splitlines()


def _without(lines: Sequence[str], traceback: Sequence[str]) -> list[str]:
    """The lines less the last place where they repeat the traceback: a worker prints what its state holds."""
    size = len(traceback)
    for start in range(len(lines) - size, -1, -1) if size else ():
        if list(lines[start : start + size]) == list(traceback):
            return [*lines[:start], *(line for line in lines[start + size :] if line)]
    return list(lines)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file, without their ends; none of an absent one. What is no UTF-8 is replaced.

    No more than 4 KiB a line are read: of a line of megabytes, as a progress bar leaves one, there is the end.
    """
    blocks: list[bytes] = []
    newlines = 0
    try:
        with open(path, "rb") as file:
            position = file.seek(0, os.SEEK_END)
            while position > 0 and newlines <= count and len(blocks) <= count:
                size = min(_BLOCK, position)
                position -= size
                file.seek(position)
                blocks.append(file.read(size))
                newlines += blocks[-1].count(b"\n")
    except FileNotFoundError:
        return []
    tail = b"".join(reversed(blocks))
    lines = tail.decode("utf-8", errors="replace").rstrip("\n").split("\n")
    return lines[-count:] if count and tail else []


def _follow(folder: Path, name: str, attempt: int, stdout: bool) -> None:
    """Print what is appended to the log, of later attempts too, until the run has ended."""
    position = _size(_log(folder, attempt, stdout))
    while True:
        state = folders.read_state(folder)
        ended = catalog.true_state(folder, state.state) not in (folders.RUNNING, folders.SUBMITTED)
        log = _log(folder, attempt, stdout)
        if _size(log) > position:
            with open(log, "rb") as file:
                file.seek(position)
                new = file.read()
            whole = len(new) if ended else new.rfind(b"\n") + 1
            position += whole
            for line in new[:whole].decode("utf-8", errors="replace").splitlines():
                print(text.clean(line), flush=True)
        if state.attempt > attempt:
            attempt, position = state.attempt, 0
            print(f"--- {_log(folder, attempt, stdout)}", flush=True)
        elif ended:
            print(f"--- {text.clean(_title(folder, name, state))}", flush=True)
            return
        else:
            time.sleep(_EVERY_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# ---------------------------------------------------------------- an experiment


def _of_experiment(multirun: Path, name: str, ids: Sequence[str], given: argparse.Namespace) -> int:
    """The failed runs, the newest first."""
    entries = catalog.entries(catalog.read_plan(multirun, name))
    failed: list[tuple[Path, State]] = []
    for run_id in ids:
        folder = folders.run_folder(multirun, run_id)
        state = folders.find_state(folder)
        if state is not None and catalog.true_state(folder, state.state) in (*folders.RETRYABLE, folders.LOST):
            failed.append((folder, state))
    failed.sort(key=lambda one: -(one[1].finished or 0.0))
    if given.json:
        documents = {
            folder.name: _document(folder, catalog.title(entries[folder.name]), state, state.attempt, given)
            for folder, state in failed
        }
        print(json.dumps(documents, indent=1))
        return EXIT_FINE
    if not failed:
        print(f"{name}: no run has failed; give a run's id to see its output")
        return EXIT_FINE
    screen = shutil.get_terminal_size().lines - 2
    used = shown = 0
    said: set[tuple[str, ...]] = set()
    for folder, state in failed:
        end = tuple(_end(folder, state, given.stdout))
        lines = [_title(folder, catalog.title(entries[folder.name]), state, brief=True)]
        lines += [f"    {line}" for line in end if end not in said]
        if shown and used + len(lines) > screen:
            break
        said.add(end)
        shown, used = shown + 1, used + len(lines)
        print("\n".join(map(text.clean, lines)))
    more = f"{len(failed) - shown} more failed; " if shown < len(failed) else ""
    print(f"{more}all of one: {catalog.command(multirun, 'logs', failed[0][0].name)}")
    return EXIT_FINE


def _end(folder: Path, state: State, stdout: bool) -> list[str]:
    """Where the error was raised and what it says, or the last lines of a run that could not say."""
    lines = [line for line in _traceback(state.error) if line.strip("^~ ")]
    return lines[-_END_LINES:] or last_lines(_log(folder, state.attempt, stdout), _END_LINES)
