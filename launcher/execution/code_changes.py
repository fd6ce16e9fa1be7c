"""What a launch does with runs that were made by other code: it refuses to add runs to them, runs them anew, or accepts
them, as the user chose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from launcher.errors import Diagnostics
from launcher.planning import freeze
from launcher.planning.plan import CodeChoice, Plan
from launcher.run import claim
from launcher.run.archive import archive, archive_folder
from launcher.status import other_code
from launcher.status.other_code import OtherCode
from launcher.text import counted


@dataclass(frozen=True)
class Decision:
    """`rerun`: the runs to archive and to run anew; `accept`: by experiment, the runs whose code is accepted."""

    rerun: tuple[str, ...] = ()
    accept: tuple[tuple[str, tuple[OtherCode, ...]], ...] = ()


def find(plan: Plan) -> dict[str, list[OtherCode]]:
    """The runs of other code in each of the plan's experiments that has any."""
    found = {}
    for experiment in plan.experiments:
        ids = list(experiment.members)
        prefixes = {run_id: plan.prefixes[run_id].run for run_id in ids if run_id in plan.prefixes}
        found[experiment.name] = other_code.of_runs(plan.multirun, experiment.name, ids, prefixes)
    return {name: others for name, others in found.items() if others}


def decide(plan: Plan, resumed: Collection[str] = (), anew: Collection[str] = ()) -> Decision:
    """What the plan's `code_choice` means for its runs; writes nothing.

    `resumed`: runs that will run although they are not missing now; `anew`: those that will run from their beginning.

    Raises InvalidPlan if runs would be added to runs of other code, and the user has not chosen.
    """
    found = find(plan)
    if plan.code_choice == CodeChoice.RERUN:
        runs = dict.fromkeys(run_id for others in found.values() for other in others for run_id in other.runs)
        return Decision(rerun=tuple(runs))
    if plan.code_choice == CodeChoice.ACCEPT:
        return Decision(accept=tuple((name, tuple(others)) for name, others in found.items()))
    problems = Diagnostics()
    missing = {*freeze.missing(plan), *resumed, *anew}
    for experiment in plan.experiments:
        waiting = experiment.members.keys() & missing
        others = [other for other in found.get(experiment.name, []) if not other.accepted and {*other.runs} - {*anew}]
        if not waiting or not others:
            continue
        for other in others:
            rule = f"{other.sentence()}; {counted(len(waiting), 'run')} to run would be compared with them"
            fix = (
                f"add rerun=changed, which archives {'it' if len(other.runs) == 1 else 'them'} and runs "
                f"{'it' if len(other.runs) == 1 else 'them'} anew, or accept_code=true, which records the difference; "
                "or restore the code"
            )
            problems.add(str(plan.multirun / experiment.name), "code", None, rule, fix)
    problems.raise_any()
    return Decision()


def carry_out(plan: Plan, decision: Decision) -> None:
    """Archive and record what was decided, and say so. A run that a live process owns, or has locked, stays."""
    archived = 0
    for run_id in decision.rerun:
        try:
            archived += archive(plan.multirun, run_id) is not None
        except claim.Locked as error:
            print(f"{run_id} is not run anew: {error}", flush=True)
    if archived:
        where = archive_folder(plan.multirun)
        print(f"rerun=changed: {counted(archived, 'run')} archived in {where}, and planned anew", flush=True)
    commands = {experiment.name: experiment.command for experiment in plan.experiments}
    for name, others in decision.accept:
        other_code.accept(plan.multirun, name, others, commands[name])
        for other in (other for other in others if not other.accepted):
            print(f"{name}: {other.sentence()}; accepted as difference {other.difference}", flush=True)
