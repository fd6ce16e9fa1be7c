"""`cluster=ray`: one Ray task for each run, on an existing cluster or on one that is started for the launch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import psutil

from launcher.application import Shape, shape
from launcher.errors import InvalidPlan, Objection
from launcher.planning.plan import Plan
from launcher.project import python_path
from launcher.run import lifecycle
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.batch import code_snapshot
from launcher.schedulers.local.pool import cores, visible_devices
from launcher.schedulers.protocol import Ended, Order, Scheduler, SchedulerError, StartedScheduler
from launcher.schedulers.ray import placement, task
from launcher.schedulers.ray.placement import Node
from launcher.schedulers.ray.task import Work
from launcher.text import counted

_LOST_S = 5.0  # seconds for the driver to end after its pipe has closed


def check_here(plan: Plan, run_ids: Sequence[str]) -> None:
    """Raise InvalidPlan for runs too large for this machine, if Ray is to start here; `start` checks a running one."""
    if plan.cluster["address"] is None:
        placement.refuse(plan, run_ids, [resources_here(plan.cluster)], "the Ray that is started on this machine")


check = check_here


def resources_here(cluster: Mapping[str, Any]) -> dict[str, float]:
    """What a Ray that is started here offers, by Ray's names; memory in bytes. cluster: the section of a plan."""
    return {
        "CPU": cluster["cpus"] or cores(),
        "GPU": len(visible_devices()),
        "memory": max(psutil.virtual_memory().available - placement.OBJECTS, placement.GB),
    }


def start(order: Order) -> StartedScheduler:
    """Connect to the cluster or start one, and wait until it answers.

    SchedulerError: it failed, or did not answer in time. InvalidPlan: no Ray is at the address, or a run never fits.
    """
    cluster = order.plan.cluster
    if order.plan.of_program:
        order = replace(order, root=code_snapshot.of_launch(order))  # later edits do not change its runs
    scheduler = RayCluster(order)
    address = cluster["address"]
    try:
        scheduler.wait(cluster["start_s"])
        name = "the Ray that is started on this machine" if address is None else f"the Ray cluster at {address}"
        placement.refuse(order.plan, order.run_ids, scheduler.nodes, name)
    except BaseException:
        scheduler.close()
        raise
    where = "a Ray started here" if address is None else f"Ray at {address}"
    name = f"{where}: {counted(len(scheduler.nodes), 'node')}, output in {scheduler.output}"
    return StartedScheduler(scheduler, name)


class RayCluster(Scheduler):
    """A scheduler that talks to a driver process (driver.py): if the cluster dies, Ray ends that, not the launcher.

    nodes: those alive, none before the driver has reported; output: the file of the driver's output.
    """

    def __init__(self, order: Order, run: Callable[..., int | None] = task.run) -> None:
        """Start the driver. run: the function that Ray tasks execute."""
        self.nodes: list[Node] = []
        self.output = order.record.with_suffix(".ray.log")
        self._shapes = {run_id: shape(order.plan.runs[run_id].config) for run_id in order.run_ids}
        self._cluster = order.plan.cluster
        self._running: dict[Path, Shape] = {}
        self._gone: str | None = None
        self._connection, driver_end = Pipe()
        with driver_end, open(self.output, "ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "launcher.schedulers.ray.driver", str(driver_end.fileno())],
                cwd=order.root,
                env={**os.environ, "PYTHONPATH": python_path(order.root)},
                pass_fds=[driver_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # the launcher handles Ctrl-C
            )
        work = Work(order.root, order.record.absolute(), dict(self._cluster))
        self._send(work, run, resources_here(self._cluster))

    def wait(self, seconds: float) -> None:
        """Wait until the driver has reported the nodes.

        SchedulerError: it failed, or took longer. InvalidPlan: there is no Ray at `cluster.address`.
        """
        end = time.monotonic() + seconds
        while not self.nodes:
            self._receive(max(0.0, end - time.monotonic()))
            if self._gone is not None:
                raise SchedulerError(f"Ray: {self._gone}; see {self.output}")
            if not self.nodes and time.monotonic() > end:
                raise SchedulerError(f"Ray did not answer within {seconds:g} s (cluster.start_s); see {self.output}")

    def capacity(self) -> int:
        """How many more runs `max_running` allows; without it, 1 if another fits, else 0. SchedulerError: the cluster
        is gone, and all of its runs were reported."""
        if self._gone is not None:
            if self._running:
                return 0
            raise SchedulerError(f"{self._gone}; see {self.output}. Repeat the command to continue")
        if (limit := self._cluster["max_running"]) is not None:
            return int(limit) - len(self._running)
        # A run takes 1 / room of the cluster. One that has no room since nodes were lost takes all of it, and waits.
        taken = sum(1 / max(1, placement.room(asked, self.nodes)) for asked in self._running.values())
        return int(taken < 1 - 1e-9)

    def submit(self, folder: Path) -> None:
        asked = self._running[folder] = self._shapes[folder.name]
        self._send("submit", folder, asked)

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Tasks that ended since the last call, and all once the cluster is gone; waits at most `timeout` seconds."""
        if self._gone is None:
            ended = self._receive(timeout)
            if self._gone is None or ended:
                return ended
        lost = [Ended(folder, None, FailureKind.NODE_FAILURE, self._gone) for folder in self._running]
        self._running.clear()
        if not lost:
            time.sleep(timeout)
        return lost

    def cancel(self, kill: bool = False) -> None:
        """Ask every run to save a checkpoint and stop. kill: kill those on this host, and all Ray workers of runs."""
        for folder in self._running:
            with lifecycle.locked(folder):
                if (owner := lifecycle.live_claim(folder)) is None:
                    lifecycle.withdraw_unowned(folder)
                elif kill:
                    lifecycle.kill_owner(owner)
        self._send("cancel", kill)

    def close(self) -> None:
        """Disconnect from the driver, which then asks the remaining runs to stop, and wait for its end, or kill it.

        A Ray that it started ends with it.
        """
        self._connection.close()
        if not self.nodes:  # it does not read the pipe before it is connected to Ray, which may take long
            self._driver.terminate()
        grace = float(self._cluster["grace_s"] or 0.0)
        try:
            self._driver.wait(grace + 60.0)
        except subprocess.TimeoutExpired:
            self._driver.kill()  # the processes of Ray end with it
            self._driver.wait()

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # `_receive` notices that the driver is gone
            self._connection.send(message)

    def _receive(self, timeout: float) -> list[Ended]:
        """Read all messages of the driver, and return the tasks that ended; waits at most `timeout` seconds for the
        first message. InvalidPlan: there is no Ray at `cluster.address`."""
        ended: list[Ended] = []
        try:
            while self._connection.poll(timeout):
                timeout = 0.0
                match self._connection.recv():
                    case "nodes", nodes:
                        self.nodes = nodes
                    case "ended", end:
                        del self._running[end.folder]
                        ended.append(end)
                    case "failed", why:
                        self._gone = why
                    case "unreachable", why:
                        fix = (
                            "start a cluster (ray start --head --port=6379), or give the address of a running one: "
                            "HOST:PORT, as `ray status` shows it on one of its nodes, or ray://HOST:10001; null starts "
                            "a Ray for this launch"
                        )
                        address = self._cluster["address"]
                        raise InvalidPlan([Objection("cluster.address", address, why, fix, "conf/cluster/ray.yaml")])
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._driver.wait(_LOST_S)
            code = self._driver.returncode
            how = "its driver hangs" if code is None else f"its driver ended with code {code}"
            self._gone = self._gone or f"the Ray cluster is gone ({how})"
        return ended
