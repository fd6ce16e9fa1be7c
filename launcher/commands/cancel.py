"""python -m launcher cancel: take runs out of what is wanted.

A waiting run is cancelled at once; a running one, on any host, is asked to save a checkpoint and stop. `retry` takes
both up again. Exit codes: 0 fine, 1 another process held a run's lock, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from launcher.commands import completion
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog, claim, folder
from launcher.run.lifecycle import cancel
from launcher.text import counted

HELP = "cancel an experiment's runs, or some: waiting ones at once, running ones after a checkpoint"
_LISTED = 20
_LOCKED = "locked"
_SAID = {
    "asked": "asked to save a checkpoint and stop",
    _LOCKED: "not cancelled, for a process that may be stopped holds the run's lock (SIGCONT wakes it); say it again",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiments and runs."""
    words = parser.add_argument("names", nargs="+", metavar="EXPERIMENT|RUN", help="an experiment, or a run's id")
    completion.completes(words, completion.experiments_and_runs)


def run(given: argparse.Namespace) -> int:
    """JSON: by run id `cancelled`, `asked`, `locked`, or the state in which the run had ended before."""
    # Every word is looked up, and every state read, before the first run is touched.
    ids = dict.fromkeys(run_id for word in given.names for run_id in catalog.named(given.multirun, word).ids)
    there = [one for one in ids if folder.find_state(folder.run_folder(given.multirun, one)) is not None]
    answers = {run_id: _cancel(given.multirun, run_id) for run_id in there}
    code = EXIT_FAILED if _LOCKED in answers.values() else EXIT_FINE
    if given.json:
        print(json.dumps(answers, indent=1))
        return code
    changed = {run_id: answer for run_id, answer in answers.items() if answer in (folder.CANCELLED, *_SAID)}
    for run_id, answer in list(changed.items() if len(answers) > _LISTED else answers.items())[:_LISTED]:
        print(f"{run_id} {_SAID.get(answer, answer)}")
    counts = Counter(_SAID.get(answer, answer) for answer in answers.values())
    said = ", ".join(f"{count} {answer}" for answer, count in counts.items()) or "none is there"
    print(f"{counted(len(answers), 'run')}: {said}")
    return code


def _cancel(multirun: Path, run_id: str) -> str:
    try:
        return cancel(multirun, run_id)
    except claim.Locked:
        return _LOCKED
