"""What a Ray task executes: one run, in a fork of the warm server that its Ray worker keeps for the next run.

If the Ray worker dies, the run's process saves a checkpoint, and its state says what died.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.nodes import ONE, Nodes, SharedRay
from launcher.project import NO_DEVICES
from launcher.run import launch_record, lifecycle
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.local.pool import Pool
from launcher.worker.process import handling
from launcher.worker.worker import Reason

_CHECK_S = 0.5


@dataclass(frozen=True)
class Work:
    """What all tasks of one launch share: paths that all nodes see, and the cluster's settings."""

    root: Path
    record: Path
    cluster: Mapping[str, Any]


def run(folder: Path, work: Work, asked_devices: int, group: str | None = None) -> int | None:
    """Do one attempt at a run; the exit code of its process. Cancelling the task asks the run to stop.

    asked_devices: how many the launch asks for on each node; with 0, the run sees none. group: the placement group of
    this task, in hexadecimal digits, if the run's processes are to be in it.
    """
    asked: list[int] = []  # the signals with which Ray has cancelled the task after its start
    with handling((signal.SIGINT,), lambda number, _: asked.append(number)):
        # Ray chooses the devices of each task. The server of warm workers stays.
        devices = os.environ.get("CUDA_VISIBLE_DEVICES") if asked_devices else NO_DEVICES
        nodes = ONE if group is None else _nodes(group)
        launch, limits = launch_record.read(work.record), (work.cluster["limit_s"], work.cluster["grace_s"])
        pool = Pool([devices], work.root, launch, *limits, orphaned, nodes)
        if asked:
            return None
        pool.submit(folder)
        while not (ended := pool.poll(_CHECK_S)):
            if asked:
                pool.cancel()
        return ended[0].exit_code


def _nodes(group: str) -> Nodes:
    """The nodes of this task's placement group."""
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group_table

    table = placement_group_table(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group))))
    places = table["bundles_to_node_id"]
    addresses = {node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in ray.nodes()}  # type: ignore[no-untyped-call]
    raylets = tuple(addresses[places[index]] for index in sorted(places))
    return Nodes(len(raylets), SharedRay(ray.get_runtime_context().gcs_address, group, raylets))


def orphaned() -> Reason:
    """Why a run stops whose Ray worker is gone: whether Ray itself ended on this node."""
    raylet = int(os.environ.get("RAY_RAYLET_PID", 0))
    if raylet and lifecycle.process_start(raylet) is None:
        return FailureKind.NODE_FAILURE, f"Ray ended on this node: its raylet (process {raylet}) is gone"
    return FailureKind.LOST, "the Ray worker that ran it died"
