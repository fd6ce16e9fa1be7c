"""`cluster=slurm`: refuses what SLURM would refuse, before anything is written, and starts the scheduler."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.application import Shape
from launcher.errors import Diagnostics, InvalidPlan, Objection
from launcher.planning.plan import Plan
from launcher.schedulers.batch import cluster
from launcher.schedulers.batch.scheduler import PREFIX
from launcher.schedulers.batch.system import Array, Unanswered
from launcher.schedulers.protocol import Order, SchedulerError, StartedScheduler
from launcher.schedulers.slurm import system

_FILE = "conf/cluster/slurm.yaml"
# Options of sbatch that cluster.sbatch may not have, apart from `exclude`, to which the launcher adds bad nodes.
_TAKEN = (*sorted(system.OURS), "account", "constraint", "exclude", "partition", "qos")
_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")


def check_here(plan: Plan, run_ids: Sequence[str]) -> None:
    """Refuse options and time limits that no SLURM accepts. Raises InvalidPlan."""
    if ignored := sorted(name for name in os.environ if name.startswith("SBATCH_")):
        keys = "cluster.partition, account, qos, constraint or sbatch"
        print(f"{', '.join(ignored)}: not used; give {keys} instead", file=sys.stderr, flush=True)
    Diagnostics(_problems(plan, run_ids)).raise_any()


def check(plan: Plan, run_ids: Sequence[str]) -> None:
    """Ask sbatch, too, whether it would accept the resources of every run. Raises InvalidPlan."""
    if absent := [name for name in _COMMANDS if shutil.which(name) is None]:
        rule = f"needs SLURM's commands; {', '.join(absent)} cannot be found on PATH"
        fix = "start it on a host with sbatch, or choose cluster=local"
        raise InvalidPlan([Objection("cluster.name", "slurm", rule, fix, _FILE)])
    check_here(plan, run_ids)
    Diagnostics(_refusals(plan, run_ids)).raise_any()


def start(order: Order) -> StartedScheduler:
    # SLURM's MaxArraySize is one more than the largest index, and indices begin at 0.
    size = re.match(r"\d+", system.limits().get("MaxArraySize", ""))
    largest = max(1, int(size.group())) if size else 1000
    return cluster.start(order, system, largest, _report(order.plan))


def _problems(plan: Plan, run_ids: Sequence[str]) -> Iterator[Objection]:
    for key, value in sorted((plan.cluster["sbatch"] or {}).items()):
        option = next((option for option in _TAKEN if option.startswith(key)), key)  # sbatch takes abbreviations
        if option not in _TAKEN or key in ("exclude", "gpus"):
            continue
        rule = "the launcher sets this option itself"
        fix = "remove it; resources are model.resources.*, the warning is cluster.signal_delay_s"
        if option not in system.OURS:
            rule = "this option has a key of its own"
            fix = f"give cluster.{'sbatch.' if option == 'exclude' else ''}{option}"
        if option != key:
            rule = f"sbatch takes it for {option}"
        yield Objection(f"cluster.sbatch.{key}", value, rule, fix, _FILE)
    yield from cluster.problems(plan, run_ids, _FILE)
    for shape, runs in cluster.shapes(plan, run_ids).items():
        if not shape.time_s:
            rule, fix = "SLURM needs a time limit", "give one, such as 24:00:00 or 2-00:00:00"
            yield Objection("model.resources.time", None, rule, fix, cluster.files(plan, runs))
        elif plan.cluster["signal_delay_s"] >= shape.time_s:
            rule = f"the time limit is {shape.time_s} s, so no time would be left for the run"
            fix = "give fewer seconds, or more model.resources.time"
            yield Objection("cluster.signal_delay_s", plan.cluster["signal_delay_s"], rule, fix, _FILE)


def _refusals(plan: Plan, run_ids: Sequence[str]) -> Iterator[Objection]:
    # SLURM may accept a time limit above a partition's, and never start the job; a QOS may lift it.
    longest = system.longest_s(plan.cluster["partition"]) if plan.cluster["qos"] is None else math.inf
    for shape, runs in cluster.shapes(plan, run_ids).items():
        if shape.time_s > longest:
            rule = f"the partition allows {longest:.0f} s, so SLURM would never start the runs"
            fix = "give less time, another cluster.partition, or the cluster.qos that allows more"
            yield Objection("model.resources.time", f"{shape.time_s} s", rule, fix, cluster.files(plan, runs))
        elif (why := _refusal(plan, shape)) is not None:
            fix = "change model.resources.*, or cluster.partition and the other options"
            rule = f"sbatch would refuse it: {why}"
            yield Objection("model.resources", shape, rule, fix, cluster.files(plan, runs))
    if plan.cluster["detach"] and (why := _refusal(plan, report := _report(plan))) is not None:
        rule = f"sbatch would refuse the job of the report, which asks for {report}: {why}"
        fix = "change cluster.partition and the other options, or wait for the runs: cluster.detach=false"
        yield Objection("cluster.detach", True, rule, fix, _FILE)


def _report(plan: Plan) -> Shape:
    """What the job of a detached launch's report asks for: no more time than the partition allows."""
    longest = system.longest_s(plan.cluster["partition"])
    return replace(cluster.REPORT, time_s=int(min(cluster.REPORT.time_s, longest)))


def _refusal(plan: Plan, shape: Shape) -> str | None:
    """Why sbatch would refuse a job, or None. Raises InvalidPlan if SLURM does not answer, SchedulerError if sbatch."""
    here = Path("/")
    try:
        refusal = system.refusal(Array(f"{PREFIX}test", ["true"], 1, shape, here, here, plan.cluster))
    except Unanswered as error:
        fix = "try again when `sbatch --test-only` returns, or choose another cluster"
        raise SchedulerError(f"{error}. Fix: {fix}") from error
    if refusal is not None and not system.limits():
        rule = f"SLURM's controller, slurmctld, does not answer; sbatch says: {refusal}"
        fix = "try again when `scontrol ping` says UP, correct $SLURM_CONF, or choose another cluster"
        raise InvalidPlan([Objection("cluster.name", "slurm", rule, fix, _FILE)])
    return refusal
