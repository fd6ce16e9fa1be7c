"""`cluster=slurm`: refuses what SLURM would refuse, before anything is written, and starts the scheduler."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import InvalidPlan, Problem
from launcher.planning.plan import Plan
from launcher.planning.resources import Shape
from launcher.schedulers.protocol import SchedulerError
from launcher.schedulers.registry import Order, StartedScheduler
from launcher.schedulers.slurm import arrays, code_snapshot, queue
from launcher.schedulers.slurm.arrays import OURS, REFUSED, Arrays
from launcher.schedulers.slurm.scheduler import Slurm
from launcher.text import counted, one_line
from launcher.worker import user_code

_FILE = "conf/cluster/slurm.yaml"
_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
_REPORT = Shape(nodes=1, devices=0, cpus=1, memory_gb=8, time_s=3600)


def check_here(plan: Plan, run_ids: Sequence[str]) -> None:
    """Refuse options and time limits that no SLURM accepts. Raises InvalidPlan."""
    if problems := list(_problems(plan, run_ids)):
        raise InvalidPlan(problems)


def check(plan: Plan, run_ids: Sequence[str]) -> None:
    """Ask sbatch, too, whether it would accept the resources of every run. Raises InvalidPlan."""
    absent = [name for name in _COMMANDS if shutil.which(name) is None]
    if absent:
        rule = f"needs SLURM's commands; {', '.join(absent)} cannot be found on PATH"
        fix = "start it on a host with sbatch, or choose cluster=local"
        raise InvalidPlan([Problem(_FILE, "cluster.name", "slurm", rule, fix)])
    check_here(plan, run_ids)
    shapes = arrays.shapes(plan, run_ids).items()
    problems = [problem for shape, runs in shapes for problem in _refusals(plan, shape, runs)]
    if problems:
        raise InvalidPlan(problems)


def _problems(plan: Plan, run_ids: Sequence[str]) -> Iterator[Problem]:
    for key in sorted(OURS & set(plan.cluster["sbatch"] or {})):
        rule = "the launcher sets this option itself"
        fix = "remove it; resources are model.resources.*, the warning is cluster.signal_delay_s"
        yield Problem(_FILE, f"cluster.sbatch.{key}", str(plan.cluster["sbatch"][key]), rule, fix)
    shapes = arrays.shapes(plan, run_ids)
    if plan.cluster["detach"] and len(shapes) > (plan.cluster["max_running"] or len(shapes)):
        rule = (
            f"the runs need {len(shapes)} arrays, one for each shape of resources, and with cluster.detach no launcher "
            "waits to submit the later ones"
        )
        yield Problem(
            _FILE, "cluster.max_running", str(plan.cluster["max_running"]), rule, f"give {len(shapes)} or more"
        )
    for shape, runs in shapes.items():
        if not shape.time_s:
            rule, fix = "SLURM needs a time limit", "give one, such as 24:00:00 or 2-00:00:00"
            yield Problem(_files(plan, runs), "model.resources.time", None, rule, fix)
        elif plan.cluster["signal_delay_s"] >= shape.time_s:
            rule = f"the time limit is {shape.time_s} s, so no time would be left for the run"
            fix = "give fewer seconds, or more model.resources.time"
            yield Problem(_FILE, "cluster.signal_delay_s", str(plan.cluster["signal_delay_s"]), rule, fix)


def _files(plan: Plan, run_ids: Sequence[str]) -> str:
    models = sorted({plan.runs[run_id].config["model"]["name"] for run_id in run_ids})
    return ", ".join(f"conf/model/{name}.yaml" for name in models)


def _refusals(plan: Plan, shape: Shape, run_ids: Sequence[str]) -> Iterator[Problem]:
    with tempfile.TemporaryDirectory() as folder:
        refusal = arrays.refusal(arrays.parameters(plan.cluster, shape, Path(folder)), Path(folder))
    if refusal is not None and not queue.limits():
        last = one_line(refusal.splitlines()[-1])
        rule = f"SLURM's controller, slurmctld, does not answer; sbatch says: {last}"
        fix = "try again when `scontrol ping` says UP, correct $SLURM_CONF, or choose another cluster"
        yield Problem(_FILE, "cluster.name", "slurm", rule, fix)
    elif refusal is not None:
        fix = "change model.resources.*, or cluster.partition and the other options"
        rule = f"sbatch would refuse it: {one_line(refusal)}"
        yield Problem(_files(plan, run_ids), "model.resources", str(shape), rule, fix)


def start(order: Order) -> StartedScheduler:
    """Copy the code, and create the scheduler."""
    settings = order.plan.cluster
    outside = user_code.sources(order.plan.runs[run_id].config for run_id in order.run_ids)
    code = code_snapshot.copy(order.root, order.record.with_suffix("") / "code", order.plan.multirun, outside)
    shape_of = {run_id: shape for shape, runs in arrays.shapes(order.plan, order.run_ids).items() for run_id in runs}
    # SLURM's MaxArraySize is one more than the largest index, and indices begin at 0.
    size = re.match(r"\d+", queue.limits().get("MaxArraySize", ""))
    largest = min(settings["max_array"] or 1_000_000, max(1, int(size.group())) if size else 1000)
    scheduler = Slurm(
        order.record.absolute(),
        settings,
        shape_of,
        lambda shape: arrays.parameters(settings, shape, code.absolute()),
        order.train,
        largest,
    )
    detached = (lambda: _detach(scheduler, order, code.absolute())) if settings["detach"] else None
    shapes = counted(len(set(shape_of.values())), "shape")
    return StartedScheduler(scheduler, f"SLURM, {shapes} of resources", detached=detached)


def _detach(scheduler: Slurm, order: Order, code: Path) -> str:
    """Submit all runs and a job for the reports; a message for the user. SchedulerError: nothing could be submitted."""
    scheduler.poll(0)
    left = scheduler.withdraw_collected()
    jobs = scheduler.jobs
    if not jobs:
        raise SchedulerError("no run could be submitted now; repeat the command to try again")
    given = arrays.parameters(order.plan.cluster, _REPORT, code)
    given.pop("gpus_per_node", None)
    experiments = [(order.plan.multirun / experiment.name).absolute() for experiment in order.plan.experiments]
    try:
        report = Arrays(order.record.absolute()).report(experiments, given, jobs)
    except REFUSED as error:
        raise SchedulerError(
            f"the runs are in the queue, but sbatch refused their report: {arrays.why(error)}"
        ) from error
    more = f"; SLURM did not accept {left} runs; repeat the command later to submit them" if left else ""
    return f"submitted as {', '.join(jobs)}; the report follows them as job {report}{more}"
