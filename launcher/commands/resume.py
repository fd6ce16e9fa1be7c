"""python -m launcher resume: run what is not done, from the newest checkpoints.

Failed, diverged and cancelled runs become planned again. Then the experiment's own command runs them, and all other
runs that it still has to run. A run that this command no longer plans, because conf/ has changed, stays as it is.
Exit codes are those of that command: 0 fine, 1 some runs failed, 2 no such run or experiment, or an invalid plan; 130
after Ctrl-C, which also skips further commands.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import application, project
from launcher.commands import selection
from launcher.errors import Diagnostics, InvalidPlan, Usage, print_problems
from launcher.files import BadRunFolder
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED, EXIT_USAGE, ROOT, root
from launcher.run import catalog, lifecycle
from launcher.run.folder import read_config, run_folder
from launcher.run.lifecycle import RETRYABLE, find_state, is_done, known_state, write_state
from launcher.secrets import MASK
from launcher.text import counted

if TYPE_CHECKING:
    from launcher.planning.plan import Plan

HELP = "run what is not done, failed and cancelled runs too, with the experiment's own command"
arguments = selection.add


def run(given: argparse.Namespace) -> int:
    """Resume the named runs that are not done; the exit code. With --json, print retried (run ids), commands and
    exit_code; the sweep then prints to standard error."""
    return run_again(given, "resume", "retried", lambda run_id: reset(given.multirun, run_id))


def run_again(given: argparse.Namespace, verb: str, done: str, prepare: Callable[[str], bool]) -> int:
    """Prepare the named runs, and run their experiments' commands; the exit code.

    `prepare` makes a run planned again, and returns whether it did. verb: "resume", which leaves out done runs, or
    "rerun" if runs begin anew; done: the key of the prepared runs in the JSON object. `rerun=changed` and
    `accept_code=true` among the names are added to the commands, as each spells them. Usage: a name is unknown, or a
    command cannot be repeated.
    """
    from launcher.execution import checks
    from launcher.planning import freeze
    from launcher.planning.overrides import is_code_choice

    choices = [name for name in given.names if is_code_choice(name)]
    names = [name for name in given.names if name not in choices]
    if not names:
        raise Usage(f"{' '.join(choices)}: no experiment or run is named. Fix: name those that it is for")
    multirun: Path = given.multirun
    ids = catalog.resolve(multirun, names)
    commands = _commands(multirun, names, ids, choices)
    chosen = [run_id for run_id in ids if verb == "rerun" or not is_done(find_state(run_folder(multirun, run_id)))]
    prepared: list[str] = []
    with _stdout_to_stderr() if given.json else contextlib.nullcontext():
        try:
            plans = [command.plan() for command in commands] if chosen else []
            anew, resumed = (chosen, []) if verb == "rerun" else ([], chosen)
            for plan in plans:  # before any run is changed: InvalidPlan if code differs, or a record is damaged
                freeze.check_declarations(plan, problems := Diagnostics())
                problems.raise_any()
                # a run that begins anew need not have a state that can be read
                folders = {run_id: run_folder(plan.multirun, run_id) for run_id in plan.runs}
                states = {run_id: (known_state if run_id in anew else find_state)(at) for run_id, at in folders.items()}
                checks.decide(plan, states, resumed, anew)
            for run_id in chosen:
                if not any(run_id in plan.runs for plan in plans):
                    why = "conf/ has changed, and its experiment no longer plans it"
                    print(f"{run_id} stays as it is: {why}", file=sys.stderr)
                    continue
                try:
                    prepared += [run_id] if prepare(run_id) else []
                except lifecycle.Locked as error:
                    print(f"{run_id} stays as it is: {error}; repeat this command", file=sys.stderr)
            print(f"{', '.join(given.names)}: {counted(len(prepared), 'run')} to {verb}", flush=True)
            code = EXIT_FINE if len(prepared) == len(chosen) else EXIT_FAILED
            for command, checked in zip(commands, plans, strict=True) if prepared else ():
                code = max(code, command.run(checked))
                if code == EXIT_INTERRUPTED:
                    break
        except InvalidPlan as invalid:
            again = f"{counted(len(prepared), 'run')} to {verb}, none has run"
            print_problems(invalid, again if prepared else "nothing was written or run")
            code = EXIT_USAGE
    if given.json:
        spelled = [command.spelled for command in commands]
        print(json.dumps({done: prepared, "commands": spelled if prepared else [], "exit_code": code}, indent=1))
    return code


@dataclass(frozen=True)
class Command:
    """An experiment's command, `spelled` for a shell. words: the overrides for launch.py; None: it starts another
    program."""

    spelled: str
    words: Sequence[str] | None

    def plan(self) -> Plan:
        """The plan of what the command would run. Raises InvalidPlan; Usage: it starts a program that plans nothing."""
        from launcher.commands import hydra_sweep
        from launcher.planning import planner

        return hydra_sweep.plan(self.spelled, root()) if self.words is None else planner.make(root(), self.words)

    def run(self, plan: Plan) -> int:
        """Run the command, in this process if that is possible; the exit code. plan: what `plan` returned."""
        from launcher.commands import hydra_sweep
        from launcher.execution import sweep
        from launcher.planning.overrides import is_hydras

        if self.words is None:
            environment = hydra_sweep.environment()
            return subprocess.run(self.spelled, shell=True, cwd=root(), env=environment, check=False).returncode
        if any(map(is_hydras, self.words)):
            return subprocess.run([sys.executable, str(ROOT / "launch.py"), "-m", *self.words], check=False).returncode
        return sweep.sweep(ROOT, plan).code


def _commands(multirun: Path, names: Sequence[str], ids: Sequence[str], choices: Sequence[str]) -> list[Command]:
    """The commands of the named experiments, and of one for each of the runs `ids` that none of these plans, each once.
    choices: words to add to them. Usage: no plan has a run, or a command cannot be repeated."""
    plans = catalog.plans(multirun)
    chosen = [name for name in names if name in plans]
    for run_id in ids:
        planning = [name for name, plan in plans.items() if run_id in catalog.entries(plan)]
        if not planning:
            raise Usage(f"run {run_id}: no plan in {multirun} contains it, so no command would run it")
        if not set(planning) & set(chosen):
            chosen.append(planning[0])
    for name in chosen:
        if (other := plans[name]["experiment"]) != name:
            path = multirun / name / "plan.json"
            raise Usage(f"{path}: this is the plan of {other}. Fix: repeat the command of {name}, which writes its own")
    return list({plans[name]["command"]: _command(multirun, plans[name], choices) for name in chosen}.values())


def _command(multirun: Path, plan: Mapping[str, Any], choices: Sequence[str]) -> Command:
    """The command in an experiment's plan, with `choices`. Usage: it cannot be repeated."""
    from launcher.planning.plan import CodeChoice

    command = plan["command"]
    words = shlex.split(command)
    file = f"{multirun / plan['experiment'] / 'plan.json'}: command = {command}"
    if MASK in command:
        raise Usage(f"{file}: {MASK} stands for a secret, which is not recorded; repeat the command yourself")
    archived = lifecycle.archived(multirun)
    runs = [(run_folder(multirun, run_id), *archived.get(run_id, ())) for run_id in catalog.entries(plan)]
    first = next((at for folders in runs for at in folders if (at / "config.yaml").is_file()), None)
    of_program = not {"launch.py", "-m"} <= set(words)
    with contextlib.suppress(BadRunFolder):  # a program may have the name of ours
        of_program = of_program or (first is not None and application.KEY in read_config(first))
    for choice in (CodeChoice.RERUN, CodeChoice.ACCEPT):
        spelled = choice.key if of_program else choice.word
        choices = [spelled if word in (choice.key, choice.word) else word for word in choices]
    if not of_program:
        overrides = [*_overrides(multirun, words), *choices]
        return Command(shlex.join(["python", "launch.py", "-m", *overrides]), overrides)
    if first is None or application.KEY not in read_config(first):  # such as of an imported experiment
        raise Usage(f"{file}: only a command `launch.py -m ...` can be repeated")
    elsewhere = multirun.resolve() != project.multirun().resolve()
    exported = f"export RLSWEEP_MULTIRUN={shlex.quote(str(multirun.resolve()))}; " if elsewhere else ""
    return Command(f"{exported}{' '.join([command, *map(shlex.quote, choices)])}", None)


def _overrides(multirun: Path, words: Sequence[str]) -> list[str]:
    """The words after -m of an experiment's command, with this multirun folder in place of theirs."""
    words = [word for word in words[words.index("-m") + 1 :] if not word.startswith("multirun=")]
    if multirun.resolve() == (root() / "multirun").resolve():
        return words
    from launcher.config.hydra_compose import as_override

    return [*words, as_override("multirun", str(multirun.resolve()))]  # the folder may have been moved since


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send the standard output of this process and its children to standard error for the time of the block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def reset(multirun: Path, run_id: str) -> bool:
    """Make a failed, diverged or cancelled run planned again; returns whether a run, in any state, is still to run.

    Its attempts and checkpoints stay. lifecycle.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = run_folder(multirun, run_id)
    if not folder.is_dir():
        return True
    with lifecycle.locked(folder, lifecycle.PATIENCE_S):
        state = find_state(folder)
        if state is not None and state.state in RETRYABLE:
            write_state(folder, lifecycle.retried(state))
        return not is_done(state)
