"""`cluster=local`: the pool of this machine, as wide as the plan and the machine allow."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.planning.plan import Plan
from launcher.planning.resources import shape
from launcher.schedulers.local.limits import limits
from launcher.schedulers.local.pool import Pool, slots, visible_devices
from launcher.schedulers.registry import Order, Place


def check(plan: Plan, wanted: Sequence[str]) -> None:
    """Any run may be tried here."""


def start(order: Order) -> Place:
    """A pool with no more slots than there are runs."""
    configs = [order.plan.runs[run_id].config for run_id in order.wanted]
    devices = max((shape(config).devices for config in configs), default=0)
    places = slots(order.plan.cluster.get("slots"), devices, visible_devices())[: len(order.wanted)]
    pool = Pool(places, order.root, order.train, order.launch, limits(order.plan.cluster))
    return Place(pool, f"{len(places)} workers", len(places))
