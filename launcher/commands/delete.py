"""python -m launcher delete EXPERIMENT: its plan and report, and its runs that no other plan names.

It asks before it deletes, unless --yes is given. Exit codes: 0 fine, 1 some of its own runs could not be deleted, 2
usage, no such experiment, a run that is queued or running, or no answer.
"""

from __future__ import annotations

import argparse
import math
import sys

from launcher.commands import gc, output
from launcher.errors import Usage
from launcher.files import size_of
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState
from launcher.text import byte_size, clean, counted

HELP = "delete an experiment, with the runs that no other experiment has"
_BUSY = (RunState.SUBMITTED, RunState.RUNNING)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiment."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="the experiment to delete")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(given: argparse.Namespace) -> int:
    """JSON: deleted and kept, the ids of its runs."""
    multirun, name = given.multirun, given.experiment
    ids, plans = list(catalog.entries(catalog.read_plan(multirun, name))), catalog.plans(multirun)
    if len(plans) < len(catalog.experiments(multirun)):
        raise Usage(f"delete {name}: another plan cannot be read, and may name the same runs. Fix: restore it first")
    shared = {run_id for other, plan in plans.items() if other != name for run_id in catalog.entries(plan)}
    removable = [run_id for run_id in ids if run_id not in shared and run_folder(multirun, run_id).exists()]
    busy = [run_id for run_id in removable if catalog.present_state(run_folder(multirun, run_id)) in _BUSY]
    if busy:
        cancel = catalog.command(multirun, "cancel", name)
        raise Usage(f"delete {name}: {counted(len(busy), 'run')} queued or running, such as {busy[0]}. Fix: {cancel}")
    size = sum(map(size_of, (multirun / name, *(run_folder(multirun, run_id) for run_id in removable))))
    what = f"{multirun / name} and {counted(len(removable), 'run')} that no other plan names ({byte_size(size)})"
    if not given.yes and not sys.stdin.isatty():
        raise Usage(f"delete {name}: this deletes {what}. Fix: add --yes")
    if not given.yes and input(f"Delete {clean(what)}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Usage("nothing was deleted")
    policy = gc.Policy(orphans=True, old=-math.inf)
    (multirun / name / "plan.json").unlink()  # from here on, gc --orphans goes on with what is left
    planned = gc.planned_ids(multirun)
    items = [item for run_id in ids for item in gc.of_run(multirun, run_id, planned, policy)]
    gone = gc.delete(multirun, [item for item in items if item.what in (gc.NEVER_RUN, gc.ORPHAN)], policy)
    deleted = [item.run for item in gone]
    gc.remove(multirun / name)
    kept = [run_id for run_id in ids if run_id not in deleted]
    line = f"{name}: deleted, with {counted(len(deleted), 'run')}; {counted(len(kept), 'run')} kept"
    output(given, {"deleted": deleted, "kept": kept}, [line])
    for run_id in (left := [run_id for run_id in removable if run_id not in deleted]):
        print(f"{run_id}: not deleted: it cannot be read, or a process has it", file=sys.stderr)
    return EXIT_FAILED if left else EXIT_FINE
