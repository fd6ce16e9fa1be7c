"""`cluster=ray`: one Ray task a run, on a cluster that is there or on one started for the launch."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from launcher.errors import InvalidPlan, Problem
from launcher.planning import resources
from launcher.planning.plan import Plan
from launcher.planning.resources import Shape
from launcher.run import claim, lifecycle
from launcher.run import folder as folders
from launcher.schedulers.local import memory
from launcher.schedulers.local.pool import cores, visible_devices
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.schedulers.ray import placement
from launcher.schedulers.ray.placement import Node
from launcher.schedulers.registry import Order, Place

_LOST_S = 5.0
_TASK = "launcher.schedulers.ray.task:run"


def check(plan: Plan, wanted: Sequence[str]) -> None:
    """Refuse what this machine cannot run, where the cluster is to be started here; `start` asks one that is there."""
    if plan.cluster["address"] is None:
        placement.refuse(plan, wanted, [own(plan.cluster)], "the Ray that is started on this machine")


def own(cluster: Mapping[str, Any]) -> dict[str, float]:
    """The resources of a cluster started here, by Ray's names; memory in bytes."""
    return {
        "CPU": cluster["cpus"] or cores(),
        "GPU": len(visible_devices()),
        "memory": max(memory.available() - placement.OBJECTS, memory.GB),
    }


def start(order: Order) -> Place:
    """Connect, or start a cluster; wait until it answers, and refuse what it can never run."""
    cluster = order.plan.cluster
    shapes = {run_id: resources.shape(order.plan.runs[run_id].config) for run_id in order.wanted}
    scheduler = RayCluster(order, shapes)
    address = cluster["address"]
    try:
        scheduler.wait(cluster["start_s"])
        name = "the Ray that is started on this machine" if address is None else f"the Ray cluster at {address}"
        placement.refuse(order.plan, order.wanted, scheduler.nodes, name)
    except BaseException:
        scheduler.close()
        raise
    where = "a Ray started here" if address is None else f"Ray at {address}"
    count = len(scheduler.nodes)
    return Place(scheduler, f"{where}: {count} node{'' if count == 1 else 's'}, output in {scheduler.output}")


class RayCluster:
    """A scheduler that speaks with a driver of its own (driver.py), so that it outlives the cluster."""

    def __init__(self, order: Order, shapes: Mapping[str, Shape], task: str = _TASK) -> None:
        """Start the driver; `shapes`: what each run asks for, by its id; `task`: what Ray's tasks call."""
        self.nodes: list[Node] = []
        self.output = order.record.with_suffix(".ray.log")
        self._shapes = shapes
        self._cluster = order.plan.cluster
        self._running: dict[Path, Shape] = {}
        self._gone: str | None = None
        ours, theirs = socket.socketpair()
        with theirs, open(self.output, "ab") as output:
            paths = [str(order.root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "launcher.schedulers.ray.driver", str(theirs.fileno())],
                cwd=order.root,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the launcher's to handle
            )
        self._connection = Connection(ours.detach())
        work = {"root": str(order.root), "record": str(order.record.resolve()), "train": order.train, "task": task}
        self._send({"work": {**work, "cluster": dict(self._cluster)}, "own": own(self._cluster)})

    def wait(self, seconds: float) -> None:
        """Until the driver has told the nodes. SchedulerError: it failed, or took longer. InvalidPlan: none there."""
        end = time.monotonic() + seconds
        while not self.nodes:
            self._hear(max(0.0, end - time.monotonic()))
            if self._gone is not None:
                raise SchedulerError(f"Ray: {self._gone}; see {self.output}")
            if not self.nodes and time.monotonic() > end:
                raise SchedulerError(f"Ray did not answer within {seconds:g} s (cluster.start_s); see {self.output}")

    def capacity(self) -> int:
        """1 while another run fits, 0 else. SchedulerError: the cluster is gone, and so are its runs here."""
        if self._gone is not None:
            if self._running:
                return 0
            raise SchedulerError(f"{self._gone}; see {self.output}. The same command goes on")
        most = self._cluster["max_running"]
        if most is not None:
            return int(most) - len(self._running)
        # Each run takes its share of the whole; a cluster that has shrunk below a shape still gets its runs, to wait.
        taken = sum(1 / max(1, placement.room(shape, self.nodes)) for shape in self._running.values())
        return int(taken < 1 - 1e-9)

    def submit(self, folder: Path, job: str) -> None:
        """Hand a run to Ray."""
        shape = self._shapes[folder.name]
        self._running[folder] = shape
        self._send({"submit": {"folder": str(folder.resolve()), "job": job, "shape": dataclasses.asdict(shape)}})

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Tasks that ended since the last call; all of them, once the cluster is gone."""
        if self._gone is None:
            ended = self._hear(timeout)
            if self._gone is None or ended:
                return ended
        lost = [Ended(folder, None, lifecycle.NODE_FAILURE, self._gone) for folder in self._running]
        self._running.clear()
        if not lost:
            time.sleep(timeout)
        return lost

    def withdraw(self) -> int:
        """None: no more tasks are submitted than begin at once."""
        return 0

    def cancel(self, kill: bool = False) -> None:
        """Ask every run to checkpoint and stop; killed are those on this host, elsewhere their Ray workers."""
        for folder in self._running:
            with claim.locked(folder):
                owner, state = claim.live_claim(folder), folders.read_state(folder)
                if owner is None and state.state == folders.SUBMITTED:  # it has not begun
                    folders.write_state(folder, state.but(state=folders.PLANNED))
                if kill and owner is not None and claim.is_here(owner):
                    with suppress(ProcessLookupError):
                        os.kill(owner.pid, signal.SIGKILL)
        self._send({"cancel": kill})

    def close(self) -> None:
        """Let the driver go, which asks what still runs to stop; a Ray that it started ends with it."""
        self._connection.close()
        if not self.nodes:  # it does not listen yet, and Ray may wait for long
            self._driver.terminate()
        grace = float(self._cluster["grace_s"] or 0.0)
        try:
            self._driver.wait(grace + 60.0)
        except subprocess.TimeoutExpired:
            self._driver.kill()  # what Ray started ends with its driver
            self._driver.wait()

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # a driver that is gone is noticed when it is listened to
            self._connection.send_bytes(json.dumps(message).encode())

    def _hear(self, timeout: float) -> list[Ended]:
        """Read what the driver has said; waits at most `timeout` seconds for the first of it."""
        ended: list[Ended] = []
        try:
            while self._connection.poll(0.0 if ended else timeout):
                message = json.loads(self._connection.recv_bytes())
                timeout = 0.0
                if "nodes" in message:
                    self.nodes = message["nodes"]
                elif "unreachable" in message:
                    raise InvalidPlan([self._unreachable(message["unreachable"])])
                elif "failed" in message:
                    self._gone = message["failed"]
                elif "ended" in message:
                    found = message["ended"]
                    folder = self._own(found["folder"])
                    ended.append(Ended(folder, found["exit_code"], found["kind"], found["cause"]))
        except (EOFError, OSError):
            self._gone = self._gone or f"the Ray cluster is gone ({self._last()})"
        return ended

    def _unreachable(self, why: str) -> Problem:
        fix = (
            "start one (ray start --head --port=6379) or name one that runs, HOST:PORT from a node of it, as of"
            " `ray status`, or ray://HOST:10001; null starts one for this launch"
        )
        return Problem("conf/cluster/ray.yaml", "cluster.address", self._cluster["address"], why, fix)

    def _own(self, resolved: str) -> Path:
        folder = next(folder for folder in self._running if folder.name == Path(resolved).name)
        del self._running[folder]
        return folder

    def _last(self) -> str:
        """How the driver ended."""
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(_LOST_S)
        code = self._driver.returncode
        return "its driver hangs" if code is None else f"its driver ended with code {code}"
