"""python -m launcher rerun: archive runs, whatever their state, and run them anew from their beginning.

The folders move to multirun/archive; nothing is deleted. Then the experiment's own command runs, and also runs whatever
else is missing. A run that a live process owns, or that the command no longer plans, stays as it is.
Exit codes: 0 fine, 1 some runs failed, 2 no such run or experiment, or an invalid plan, 130 after Ctrl-C, which also
skips the commands that remain.
"""

from __future__ import annotations

import argparse
import sys

from launcher.commands import selection
from launcher.commands.resume import run_again
from launcher.run.folder import run_folder
from launcher.run.lifecycle import archive

HELP = "archive runs and run them anew, with the experiment's own command"
arguments = selection.add


def run(given: argparse.Namespace) -> int:
    """With --json, print rerun (run ids), commands and exit_code; the sweep then prints to standard error."""

    def prepare(run_id: str) -> bool:
        if not run_folder(given.multirun, run_id).is_dir():
            return True  # it has still to run, or an earlier `rerun` has archived it
        if (archived := archive(given.multirun, run_id)) is None:
            print(f"{run_id} stays as it is: a process runs it; cancel it first", file=sys.stderr)
            return False
        print(f"{run_id} archived as {archived}", flush=True)
        return True

    return run_again(given, "rerun", "rerun", prepare)
