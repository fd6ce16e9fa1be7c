"""python -m launcher cancel: take runs out of what is wanted.

A waiting run is cancelled at once; a running one, on any host, is asked to save a checkpoint and stop. `retry` takes
both up again. Exit codes: 0 fine, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

from launcher import completion, lookup
from launcher.sweeper import EXIT_FINE

HELP = "cancel an experiment's runs, or some: waiting ones at once, running ones after a checkpoint"
_LISTED = 20
# What launcher.cancel answers of a run that goes on until its checkpoint.
_SAID = {"asked": "asked to save a checkpoint and stop"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiments and runs."""
    words = parser.add_argument("names", nargs="+", metavar="EXPERIMENT|RUN", help="an experiment, or a run's id")
    completion.completes(words, completion.experiments_and_runs)


def run(given: argparse.Namespace) -> int:
    """JSON: by run id `cancelled`, `asked`, or the state in which the run had ended before."""
    from launcher.cancel import cancel

    # Every word is looked up before the first run is touched.
    ids = dict.fromkeys(run_id for word in given.names for run_id in lookup.named(given.multirun, word).ids)
    there = set(lookup.run_ids(given.multirun))
    answers = {run_id: cancel(given.multirun, run_id) for run_id in ids if run_id in there}
    if given.json:
        print(json.dumps(answers, indent=1))
        return EXIT_FINE
    changed = {run_id: answer for run_id, answer in answers.items() if answer in ("cancelled", "asked")}
    for run_id, answer in list(changed.items() if len(answers) > _LISTED else answers.items())[:_LISTED]:
        print(f"{run_id} {_SAID.get(answer, answer)}")
    counts = Counter(_SAID.get(answer, answer) for answer in answers.values())
    print(f"{len(answers)} runs: {', '.join(f'{count} {said}' for said, count in counts.items()) or 'none is there'}")
    return EXIT_FINE
