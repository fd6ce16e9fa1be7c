"""`cluster=local`: a pool on this machine, with as many slots as the plan and the machine allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.application import application, shape
from launcher.errors import Diagnostics
from launcher.planning.plan import Plan, one_of_each
from launcher.schedulers.batch import code_snapshot
from launcher.schedulers.local import pool
from launcher.schedulers.local.pool import Pool, can_fork, visible_devices
from launcher.schedulers.protocol import Order, StartedScheduler
from launcher.text import counted


def check_here(plan: Plan, run_ids: Sequence[str]) -> None:
    """Raise InvalidPlan for runs that ask for more GPUs than this machine has."""
    here, problems = len(visible_devices()), Diagnostics()
    configs = [run.config for run in one_of_each(plan.runs[run_id] for run_id in run_ids)]
    asked = {(*application(config).requested_in(config, "devices"), shape(config).devices) for config in configs}
    for file, key, devices in sorted(asked):
        if devices > here:
            rule = f"cluster=local is this machine, which has {counted(here, 'GPU')} for this run"
            value = f"{here}" if here else "0, which computes on the CPU"
            fix = f"set {key}={value}, or choose a cluster that has them, such as cluster=slurm"
            problems.add(file, key, str(devices), rule, fix)
    problems.raise_any()


check = check_here


def slots(plan: Plan) -> int:
    """How many runs the pool executes at a time."""
    return len(_slots(plan, plan.runs))


def start(order: Order) -> StartedScheduler:
    """A pool with no more slots than there are runs."""
    used = _slots(order.plan, order.run_ids)[: len(order.run_ids)]
    name, cluster = counted(len(used), "worker"), order.plan.cluster
    limits = cluster["limit_s"], cluster["grace_s"]
    if order.plan.of_program and can_fork():
        return StartedScheduler(Pool(used, order.root, order.launch, *limits, forks=True), name, len(used))
    root = code_snapshot.of_launch(order) if order.plan.of_program else order.root
    workers = Pool(used, root, order.launch, *limits)
    starting = "starting: one process loads the libraries for all workers, which takes some seconds"
    return StartedScheduler(workers, name, len(used), starting=starting)


def _slots(plan: Plan, run_ids: Iterable[str]) -> list[str | None]:
    runs = one_of_each(plan.runs[run_id] for run_id in run_ids)
    devices = max((shape(run.config).devices for run in runs), default=0)
    return pool.slots(plan.cluster.get("slots"), devices, visible_devices())
