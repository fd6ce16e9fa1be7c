"""python -m launcher retry: failed, diverged and cancelled runs again, from their newest checkpoint.

They become planned, and then the experiment's own command runs, with whatever else it has to run. A run that this
command plans no more, for conf/ has changed, stays as it is. Exit codes: that command's: 0 fine, 1 some runs failed, 2
no such run or experiment, or an invalid plan; 130 after Ctrl-C, which also ends the commands that would follow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands import completion
from launcher.errors import InvalidPlan, Usage, print_problems
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED, EXIT_USAGE, ROOT
from launcher.run import catalog, claim, lifecycle
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.secrets import MASK
from launcher.text import counted

if TYPE_CHECKING:
    from launcher.planning.plan import Plan

HELP = "take failed, diverged and cancelled runs again, then run the experiment's own command"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiments and runs, and the cause."""
    words = parser.add_argument("names", nargs="+", metavar="EXPERIMENT|RUN", help="an experiment, or a run's id")
    completion.completes(words, completion.experiments_and_runs)
    parser.add_argument(
        "--kind", choices=lifecycle.CAUSES, metavar="CAUSE", help=f"only: {', '.join(lifecycle.CAUSES)}"
    )


def run(given: argparse.Namespace) -> int:
    """JSON, after the sweep, whose own output then goes to standard error: retried (ids), commands, exit_code."""
    found = [catalog.named(given.multirun, word) for word in given.names]
    ids = list(dict.fromkeys(run_id for named in found for run_id in named.ids))
    commands = _commands(given.multirun, [named.experiment for named in found if named.experiment], ids)
    wanted = [run_id for run_id in ids if _is_wanted(given.multirun, run_id, given.kind)]
    taken: list[str] = []
    with _aside() if given.json else contextlib.nullcontext():
        try:
            plans = _plans(commands) if wanted else []
            taken = _reset_planned(given.multirun, wanted, plans, given.kind)
            print(f"{', '.join(given.names)}: {counted(len(taken), 'run')} to retry", flush=True)
            code = EXIT_FINE if len(taken) == len(wanted) else EXIT_FAILED
            if taken:
                code = max(code, _sweep_all(commands, plans))
        except InvalidPlan as invalid:
            where = f"{len(taken)} of the runs wait to be run" if taken else "nothing was written or run"
            print_problems(invalid, where)
            code = EXIT_USAGE
    if given.json:
        spelled = [shlex.join(["python", "launch.py", "-m", *words]) for words in commands]
        print(json.dumps({"retried": taken, "commands": spelled if taken else [], "exit_code": code}, indent=1))
    return code


def _plans(commands: Sequence[Sequence[str]]) -> list[Plan]:
    """What the commands plan today. Raises InvalidPlan before any run was touched."""
    from launcher.planning import planner

    return [planner.make(ROOT, words) for words in commands]


def _reset_planned(multirun: Path, ids: Sequence[str], plans: Sequence[Plan], kind: str | None) -> list[str]:
    """Reset the runs that the plans hold, and return their ids; of each other one, say why not."""
    taken = []
    for run_id in ids:
        if not any(run_id in plan.runs for plan in plans):
            print(f"{run_id} stays as it is: conf/ has changed, and its experiment plans it no more", file=sys.stderr)
            continue
        try:
            if reset(multirun, run_id, kind):
                taken.append(run_id)
        except claim.Locked as error:
            print(f"{run_id} stays as it is: {error}; say it again", file=sys.stderr)
    return taken


def _sweep_all(commands: Sequence[Sequence[str]], plans: Sequence[Plan]) -> int:
    """Run the commands one after another, until Ctrl-C; the highest exit code."""
    code = EXIT_FINE
    for words, plan in zip(commands, plans, strict=True):
        code = max(code, _sweep(words, plan))
        if code == EXIT_INTERRUPTED:
            break
    return code


def _sweep(words: Sequence[str], plan: Plan) -> int:
    """Run an experiment's command: here, or, with another launcher of Hydra's, as it was said."""
    from launcher.execution import sweep
    from launcher.planning.overrides import is_hydras

    if any(is_hydras(word) for word in words):
        return subprocess.run([sys.executable, str(ROOT / "launch.py"), "-m", *words], check=False).returncode
    return sweep.reconcile(ROOT, plan)


def _commands(multirun: Path, experiments: Sequence[str], ids: Sequence[str]) -> list[list[str]]:
    """The overrides of the named experiments' commands, and of one that plans each run of no named experiment."""
    plans = {name: catalog.read_plan(multirun, name) for name in catalog.experiments(multirun)}
    chosen = list(dict.fromkeys(experiments))
    for run_id in ids:
        planning = [name for name, plan in plans.items() if run_id in catalog.entries(plan)]
        if not planning:
            raise Usage(f"run {run_id}: no plan in {multirun} names it, so no command would run it")
        if not set(planning) & set(chosen):
            chosen.append(planning[0])
    return list(
        {plans[name]["command"]: _overrides(multirun, name, plans[name]["command"]) for name in chosen}.values()
    )


def _overrides(multirun: Path, name: str, command: str) -> list[str]:
    """What stands after -m in an experiment's command, for this multirun folder."""
    words = shlex.split(command)
    if not {"launch.py", "-m"} <= set(words):  # imported, say
        raise Usage(f"{multirun / name / 'plan.json'}: command = {command}: no `launch.py -m ...`; plan it again")
    if MASK in command:
        raise Usage(f"{multirun / name / 'plan.json'}: command = {command}: {MASK} hides a secret; say it yourself")
    words = [word for word in words[words.index("-m") + 1 :] if not word.startswith("multirun=")]
    if multirun.resolve() == (ROOT / "multirun").resolve():
        return words
    from hydra.core.override_parser.types import Quote, QuotedString

    # The folder may have moved since.
    return [*words, f"multirun={QuotedString(str(multirun.resolve()), Quote.single).with_quotes()}"]


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Send what this process and its children write to standard output to standard error for the time of the block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def reset(multirun: Path, run_id: str, kind: str | None = None) -> bool:
    """Make a failed, diverged or cancelled run planned again, or only one that ended for that cause.

    Its attempts and checkpoints stay. claim.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = folders.run_folder(multirun, run_id)
    if not folder.is_dir():
        return False
    with claim.locked(folder, claim.PATIENCE_S):
        state = folders.find_state(folder)
        if state is None or not _is_over(state, kind):
            return False
        folders.write_state(folder, lifecycle.planned_again(state))
    return True


def _is_wanted(multirun: Path, run_id: str, kind: str | None) -> bool:
    state = folders.find_state(folders.run_folder(multirun, run_id))
    return state is not None and _is_over(state, kind)


def _is_over(state: State, kind: str | None) -> bool:
    return state.state in folders.RETRYABLE and kind in (None, state.kind)
