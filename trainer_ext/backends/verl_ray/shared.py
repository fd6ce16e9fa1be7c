"""What differs in a Ray that the run shares with others (`cluster=ray`).

The launcher has reserved a placement group for the run, with one bundle on each of its nodes. Everything that the run
starts is placed in it, and requests no CPU of its own: the bundle holds what the run was planned with. The names of its
actors are in a namespace of its own. Ray removes the actors when the run's driver or its placement group ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainer_ext.backends.verl_ray import node

#: What a run's processes need of the environment of its driver; the rest is that of the Ray's nodes.
ENVIRONMENT = ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", *node.ENVIRONMENT)


class Share:
    """The placement group of a run."""

    def __init__(self, group: str):
        """group: the id in hexadecimal digits."""
        self.group = PlacementGroup(PlacementGroupID(bytes.fromhex(group)))
        places = placement_group_table(self.group)["bundles_to_node_id"]
        self.nodes: list[str] = [places[index] for index in sorted(places)]

    def bundle(self, index: int) -> PlacementGroupSchedulingStrategy:
        """Places a task or an actor on one node of the run, by the node's place in `nodes`."""
        return PlacementGroupSchedulingStrategy(self.group, index)


@dataclass(frozen=True)
class BundlePart:
    """One bundle, to verl a placement group with a bundle for each of its ranks."""

    share: Share
    index: int
    bundle_count: int

    @property
    def id(self) -> Any:
        """Ray's id of the whole group."""
        return self.share.group.id


def _of_part(placement_group: BundlePart, placement_group_bundle_index: int) -> PlacementGroupSchedulingStrategy:
    """Takes the place of the class in verl: all ranks of a node share its bundle."""
    return placement_group.share.bundle(placement_group.index)


class _Placed:
    """An actor class. Its actors are placed on the nodes of a share in turn, wherever the caller wants them."""

    def __init__(self, share: Share, actor_class: Any):
        self._share, self._class, self._turn = share, actor_class, count()

    def options(self, name: str, **given: Any) -> Any:
        """As the actor class's own. The name is known in the run's namespace only."""
        kept = {key: value for key, value in given.items() if key not in ("namespace", "scheduling_strategy")}
        place = self._share.bundle(next(self._turn) % len(self._share.nodes))
        return self._class.options(name=name, num_cpus=0, scheduling_strategy=place, **kept)


_own: Share | None = None


def join(group: str) -> None:
    """Place all that this process starts in this placement group, with names of its own. Ray is initialised."""
    from transfer_queue import interface
    from transfer_queue.storage.bootstrap import simple_storage_bootstrap
    from verl.single_controller.ray import base

    global _own
    _own = Share(group)
    node.in_shared_ray()
    base.PlacementGroupSchedulingStrategy = _of_part
    interface.TransferQueueController = placed(interface.TransferQueueController)
    simple_storage_bootstrap.SimpleStorageUnit = placed(simple_storage_bootstrap.SimpleStorageUnit)


def own() -> Share | None:
    """The share of this process's run; None: its Ray is the run's alone."""
    return _own


def placed(actor_class: Any) -> Any:
    """An actor class whose actors are in the run's share, if it has one."""
    return actor_class if _own is None else _Placed(_own, actor_class)


def nodes() -> list[str]:
    """Ray's ids of the run's nodes, in one order for all who ask."""
    if _own is not None:
        return _own.nodes
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def on_node(node: str) -> NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy:
    """Places a task or an actor on the node of the run with this id of Ray's."""
    return NodeAffinitySchedulingStrategy(node, soft=False) if _own is None else _own.bundle(_own.nodes.index(node))
