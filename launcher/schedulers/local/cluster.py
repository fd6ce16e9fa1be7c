"""`cluster=local`: a pool on this machine, with as many slots as the plan and the machine allow."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.planning.plan import Plan
from launcher.planning.resources import shape
from launcher.schedulers.local.limits import limits
from launcher.schedulers.local.pool import Pool, slots, visible_devices
from launcher.schedulers.registry import Order, StartedScheduler
from launcher.text import counted


def check(plan: Plan, run_ids: Sequence[str]) -> None:
    """Accept every plan, because any run may be tried on this machine."""


def start(order: Order) -> StartedScheduler:
    """A pool with no more slots than there are runs."""
    configs = [order.plan.runs[run_id].config for run_id in order.run_ids]
    devices = max((shape(config).devices for config in configs), default=0)
    used = slots(order.plan.cluster.get("slots"), devices, visible_devices())[: len(order.run_ids)]
    pool = Pool(used, order.root, order.train, order.launch, limits(order.plan.cluster))
    starting = "starting: one process loads torch and verl for all workers, which takes some seconds"
    return StartedScheduler(pool, counted(len(used), "worker"), len(used), starting=starting)
