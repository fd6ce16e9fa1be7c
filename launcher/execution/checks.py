"""What a launch checks and decides before it writes anything; a dry run (`plan`) makes the same checks.

With runs that were made by other code it does what the user chose: it refuses to add runs to them, runs them anew, or
accepts them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from launcher.errors import Diagnostics, InvalidPlan, Objection, missing
from launcher.planning import freeze
from launcher.planning.plan import CodeChoice, Plan
from launcher.run import code, lifecycle
from launcher.run.code import OtherCode
from launcher.run.folder import latest_checkpoint, run_folder
from launcher.run.lifecycle import RunState, State, archive, archive_folder, find_state, is_missing
from launcher.schedulers import protocol
from launcher.schedulers.protocol import Cluster
from launcher.text import counted

#: Settings that need a package of an extra: their section, key and value, and the package.
_PACKAGES = (
    ("cluster", "name", "ray", "ray"),
    ("tracking", "wandb", "online", "wandb"),
    ("tracking", "tensorboard", True, "tensorboard"),
)


def check_folder(multirun: Path, create: bool = False) -> None:
    """Raises InvalidPlan if runs cannot be written to a folder, which this creates if `create`."""
    try:
        place = next(folder for folder in (multirun, *multirun.resolve().parents) if folder.exists())
        why = None
        if not place.is_dir():
            why = f"cannot be created: {place} is a file"
        elif not os.access(place, os.W_OK | os.X_OK):
            why = "is not writable" if place == multirun else f"cannot be created: {place} is not writable"
        elif create:
            multirun.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be created ({error.strerror})"
    if why is not None:
        fix = "name another: multirun=FOLDER"
        raise InvalidPlan([Objection("multirun", multirun, f"this folder {why}", fix, "configuration")])


def refuse(plan: Plan, run_ids: Sequence[str], plugin: bool) -> Cluster | None:
    """The cluster that executes these runs; None: a launcher of Hydra does (`plugin`).

    Raises InvalidPlan with the reasons why a launch cannot run them. It asks the cluster, too.
    """
    if (cluster := _cluster(plan, plugin)) is not None:
        protocol.blamed(cluster, "check", plan, run_ids)
    return cluster


def refuse_dry(plan: Plan, plugin: bool = False, run_ids: Sequence[str] | None = None) -> None:
    """`check_folder` and `refuse`, without a question to the cluster. None: the runs that a launch would execute."""
    check_folder(plan.multirun)
    if (cluster := _cluster(plan, plugin)) is not None:
        protocol.blamed(cluster, "check_here", plan, freeze.missing(plan) if run_ids is None else run_ids)


def _cluster(plan: Plan, plugin: bool) -> Cluster | None:
    """What `refuse` returns. Raises InvalidPlan if a package is not installed."""
    sections = {"tracking": plan.tracking, **({} if plugin else {"cluster": plan.cluster})}
    problems = Diagnostics()
    for section, key, value, package in _PACKAGES:
        if sections.get(section, {}).get(key) == value and (absent := missing(package)) is not None:
            problems.add("configuration", f"{section}.{key}", str(value), *absent)
    problems.raise_any()
    return None if plugin else protocol.find(plan)


# ---------------------------------------------------------------- runs of other code

#: The runs of other code, by experiment.
Others = Mapping[str, Sequence[OtherCode]]


def other_code(plan: Plan, states: Mapping[str, State | None]) -> Others:
    """The runs of other code in each of the plan's experiments that has any. states: of the plan's runs, by id."""
    by_experiment = {}
    for experiment in plan.experiments:
        runs = {}  # those with finished steps
        for run_id in experiment.members:
            state, folder = states[run_id], run_folder(plan.multirun, run_id)
            if state is not None and state.code_ids():
                if state.state == RunState.DONE or latest_checkpoint(folder) is not None:
                    runs[run_id] = (state.state, state.code_ids())
            elif run_id in plan.prefixes:  # it has no step of its own yet, and will take over those of this one
                before = find_state(run_folder(plan.multirun, plan.prefixes[run_id].run))
                if before is not None:
                    runs[run_id] = (RunState.PLANNED if state is None else state.state, before.code_ids())
        by_experiment[experiment.name] = code.others(plan.multirun, experiment.name, runs)
    return {name: others for name, others in by_experiment.items() if others}


def decide(
    plan: Plan, states: Mapping[str, State | None], resumed: Collection[str] = (), anew: Collection[str] = ()
) -> Others:
    """The runs of other code that the launch runs anew or accepts, as the plan's `code_choice` says. It writes nothing,
    and prints which runs of other code stay in an experiment that is complete.

    `states`: of the plan's runs, by id; `resumed`: runs that will run although they are not missing now; `anew`: those
    that will run from their beginning.

    Raises InvalidPlan if runs would be added to runs of other code, and the user has not chosen.
    """
    others = other_code(plan, states)
    if plan.code_choice != CodeChoice.REFUSE:
        return others
    problems = Diagnostics()
    missing = {*resumed, *anew, *(run_id for run_id, state in states.items() if is_missing(state))}
    for experiment in plan.experiments:
        waiting = experiment.members.keys() & missing
        choice, otherwise = plan.spelled(CodeChoice.RERUN), plan.spelled(CodeChoice.ACCEPT)
        for other in others.get(experiment.name, ()):
            if other.accepted or {*other.runs} <= {*anew}:
                continue
            if not waiting:
                said = f"{other.sentence()}. They stay as they are; {choice} runs them anew"
                print(f"{experiment.name}: {said}", flush=True)
                continue
            rule = f"{other.sentence()}; {counted(len(waiting), 'run')} to run would be compared with them"
            them = "it" if len(other.runs) == 1 else "them"
            fix = f"add {choice}, which archives {them} and runs {them} anew, or {otherwise}, which records the "
            fix += "difference; or restore the code"
            problems.add(str(plan.multirun / experiment.name), "code", None, rule, fix)
    problems.raise_any()
    return {}


def run_anew(plan: Plan, others: Others) -> list[str]:
    """The runs of other code that the user wants to archive and run anew."""
    runs = dict.fromkeys(run_id for listed in others.values() for other in listed for run_id in other.runs)
    return list(runs) if plan.code_choice == CodeChoice.RERUN else []


def carry_out(plan: Plan, others: Others) -> None:
    """Archive or record what `decide` returned, and what is left of runs whose state was lost, and say so. A run that a
    live process owns, or has locked, stays."""
    folders = (run_folder(plan.multirun, run_id) for run_id in plan.runs)
    lost = [at.name for at in folders if (at / "attempts").exists() and not (at / "state.json").exists()]
    for run_id in lost:  # nobody knows whether it was done
        print(f"{run_id}: its state.json was lost, so it is run anew", flush=True)
    archived = 0
    for run_id in [*lost, *run_anew(plan, others)]:
        try:
            archived += archive(plan.multirun, run_id) is not None
        except lifecycle.Locked as error:
            print(f"{run_id} is not run anew: {error}", flush=True)
    if archived:
        print(f"{counted(archived, 'run')} archived in {archive_folder(plan.multirun)}, and planned anew", flush=True)
    for experiment in plan.experiments if plan.code_choice == CodeChoice.ACCEPT else ():
        for other in (other for other in others.get(experiment.name, ()) if not other.accepted):
            code.accept(plan.multirun / experiment.name, other, experiment.command)
            print(f"{experiment.name}: {other.sentence()}; accepted as difference {other.difference}", flush=True)
