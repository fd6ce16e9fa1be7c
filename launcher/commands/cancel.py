"""python -m launcher cancel: runs that are no longer wanted are stopped, and not resumed.

A waiting run is cancelled at once; a running one, on any host, is asked to save a checkpoint and stop. `resume` runs
both again. Exit codes: 0 fine, 1 another process held a run's lock, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.commands import output, selection
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog, lifecycle
from launcher.run.folder import run_folder
from launcher.run.lifecycle import find_state
from launcher.run.stop_request import ASKED, cancel
from launcher.text import counted

HELP = "cancel an experiment's runs, or some of them: waiting ones at once, running ones after a checkpoint"
arguments = selection.add
_LISTED = 20
_LOCKED = "locked"
_WORDS = {
    ASKED: "asked to save a checkpoint and stop",
    _LOCKED: "not cancelled: another process holds the run's lock (SIGCONT wakes a stopped one); repeat this command",
}


def run(given: argparse.Namespace) -> int:
    """JSON: by run id `cancelled`, `asked`, `locked`, or the state in which the run had ended before."""
    # All names are resolved, and all states read, before the first run is changed.
    ids = catalog.resolve(given.multirun, given.names)
    present = [run_id for run_id in ids if find_state(run_folder(given.multirun, run_id)) is not None]
    answers = {run_id: _cancel(given.multirun, run_id) for run_id in present}
    output(given, answers, _lines(answers))
    return EXIT_FAILED if _LOCKED in answers.values() else EXIT_FINE


def _lines(answers: Mapping[str, str]) -> Iterator[str]:
    for run_id, answer in list(answers.items())[:_LISTED]:
        yield f"{run_id} {_WORDS.get(answer, answer)}"
    counts = Counter(_WORDS.get(answer, answer) for answer in answers.values())
    summary = ", ".join(f"{count} {answer}" for answer, count in counts.items()) or "no run has a folder yet"
    yield f"{counted(len(answers), 'run')}: {summary}"


def _cancel(multirun: Path, run_id: str) -> str:
    try:
        return cancel(multirun, run_id)
    except lifecycle.Locked:
        return _LOCKED
