"""The Ray driver of a launch. It is its own process, because Ray ends the driver when the cluster dies.

    python -m launcher.schedulers.ray.driver DESCRIPTOR

The descriptor is one end of a pipe; cluster.RayCluster has the other one. The launcher opened the file that gets the
driver's output, Ray's own lines and what the Ray workers of all nodes print. When the pipe closes, the driver asks the
runs to stop, waits for them, and ends; a Ray that it started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from launcher.application import Shape
from launcher.project import ONE_THREAD
from launcher.run import lifecycle, stop_request
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.protocol import Ended
from launcher.schedulers.ray.placement import OBJECTS, bundle
from launcher.schedulers.ray.task import Work
from launcher.text import one_line

_NODES_EVERY_S = 5.0
_REACH_S = 5.0  # for a node to accept a connection
_LAST_S = 5.0  # after the grace of the runs, for Ray to report that they ended
_ENDED_S = 15.0  # for the processes of a Ray to end after it


class Driver:
    """The connection to one cluster, and its running tasks."""

    def __init__(self, connection: Connection, work: Work, run: Callable[..., int | None]) -> None:
        import ray

        self._ray, self._connection, self._work = ray, connection, work
        self._task = ray.remote(max_calls=0, max_retries=0)(run)  # its worker is kept; the launcher decides on retries
        self._lock = threading.Lock()
        self._refs: dict[Path, Any] = {}
        self._nodes: list[dict[str, float]] = []

    def send(self, kind: str, value: Any) -> None:
        """Send to the launcher, from any thread. A launcher that is gone is ignored."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((kind, value))

    def serve(self) -> None:
        """Execute the launcher's messages until it is gone."""
        self._report_nodes()
        threading.Thread(target=self._watch, name="ray-nodes", daemon=True).start()
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            match message:
                case "submit", folder, shape:
                    self._submit(folder, shape)
                case "cancel", force:
                    self._cancel(force)
        self._leave()

    def _watch(self) -> None:
        while True:
            time.sleep(_NODES_EVERY_S)
            self._report_nodes()

    def _report_nodes(self) -> None:
        """Send the nodes to the launcher if they have changed."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if nodes != self._nodes:
            self._nodes = nodes
            self.send("nodes", nodes)

    def _submit(self, folder: Path, requested: Shape) -> None:
        part = bundle(requested)
        options: dict[str, Any] = {"name": folder.name, "num_cpus": 0, "num_gpus": 0}
        group = None
        joined: list[str] = []
        if requested.nodes > 1 or requested.joins_ray:
            from ray.util.placement_group import placement_group
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            # All of it or nothing: two runs that each hold a part cannot wait for each other.
            group = placement_group([part] * requested.nodes, strategy="STRICT_SPREAD", name=folder.name)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, 0)
        if requested.joins_ray:
            assert group is not None
            joined = [group.id.hex()]  # the task holds none of what the run's own processes need
        else:
            options |= {"num_cpus": part["CPU"], "num_gpus": part.get("GPU", 0)}
            if "memory" in part:
                options["memory"] = part["memory"]
        ref = self._task.options(**options).remote(folder, self._work, requested.devices, *joined)
        self._refs[folder] = ref
        ref.future().add_done_callback(lambda future: self._ended(folder, future, group))

    def _ended(self, folder: Path, future: Any, group: Any) -> None:
        """Tell the launcher how a task ended. A thread of Ray calls it."""
        error = future.exception()
        ended = Ended(folder, future.result()) if error is None else Ended(folder, None, *_reason(error))
        if group is None:
            self._report_end(ended)
        else:
            # In another thread: it waits for an answer, which this thread of Ray would have to receive.
            threading.Thread(target=self._remove, args=(group, ended), daemon=True).start()

    def _remove(self, group: Any, ended: Ended) -> None:
        """Remove the placement group of a task before the run may be submitted again; what is in it ends too."""
        from ray.util.placement_group import remove_placement_group

        try:
            remove_placement_group(group)
        finally:
            self._report_end(ended)

    def _report_end(self, ended: Ended) -> None:
        self._refs.pop(ended.folder, None)
        self.send("ended", ended)

    def _cancel(self, force: bool) -> None:
        for ref in list(self._refs.values()):
            self._ray.cancel(ref, force=force)

    def _leave(self) -> None:
        """Make the runs of a launcher that is gone save a checkpoint and stop."""
        for folder in list(self._refs):
            with lifecycle.locked(folder):
                stop_request.send_to_owner(folder, FailureKind.PREEMPTED, "launcher gone")
        self._cancel(force=False)
        end = time.monotonic() + float(self._work.cluster.get("grace_s") or 0.0) + _LAST_S
        while self._refs and time.monotonic() < end:
            time.sleep(0.1)


def _reason(error: BaseException) -> tuple[FailureKind | None, str | None]:
    """Kind and message for a task that Ray reports as failed; None if only the run's state has them."""
    from ray import exceptions

    if isinstance(error, exceptions.TaskCancelledError):
        return None, None
    details = one_line(str(error))
    if isinstance(error, exceptions.OutOfMemoryError):
        return FailureKind.OUT_OF_MEMORY, f"Ray killed its worker because the node ran out of memory: {details}"
    if isinstance(error, exceptions.LocalRayletDiedError | exceptions.NodeDiedError):
        return FailureKind.NODE_FAILURE, f"Ray lost the node: {details}"
    if isinstance(error, exceptions.WorkerCrashedError):
        return FailureKind.LOST, f"the Ray worker died: {details}"
    if isinstance(error, exceptions.RayTaskError):  # the node lacks the launcher's code or its packages
        return FailureKind.EXCEPTION, f"the Ray worker could not start the run: {details}"
    return FailureKind.LOST, f"{type(error).__name__}: {details}"


@contextlib.contextmanager
def connected(cluster: Mapping[str, Any], root: Path, resources: Mapping[str, float]) -> Iterator[None]:
    """Join the cluster at `cluster["address"]`, or start one here with these resources; afterwards leave or end it."""
    if cluster["address"] is None:
        # It listens on loopback only, and requires a token. Ray reads this at its import.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    import ray

    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", str(root)), **ONE_THREAD}
    options: dict[str, Any] = {"runtime_env": {"env_vars": environment}, "log_to_driver": True}
    folder = None
    if cluster["address"] is None:
        folder = tempfile.mkdtemp(prefix="rlsweep-ray-")  # for this user alone; Ray's default folder is shared
        options |= {"num_cpus": int(resources["CPU"]), "num_gpus": int(resources["GPU"])}
        options |= {"_memory": int(resources["memory"]), "object_store_memory": OBJECTS}
        options |= {"include_dashboard": False, "_temp_dir": folder}
    ray.init(cluster["address"] or "local", **options)
    yield
    started = [] if folder is None else psutil.Process().children(recursive=True)
    ray.shutdown()
    if folder is not None:
        # On a busy machine Ray kills its raylet, and the workers end only when they notice.
        psutil.wait_procs(started, timeout=_ENDED_S)
        shutil.rmtree(folder, ignore_errors=True)


def unreachable(address: str) -> str | None:
    """Why there can be no Ray at `cluster.address`, or None. ray.init would wait for minutes to find out."""
    from ray._private import services

    address = os.environ.get("RAY_ADDRESS") or "auto" if address == "auto" else address
    try:
        if not address.startswith("ray://"):
            address = services.canonicalize_bootstrap_address_or_die(address)
        host, _, port = address.removeprefix("ray://").rpartition(":")
    except (ConnectionError, ValueError):
        return "no Ray runs here"
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        return f"nothing answers at {host}:{port} ({error.strerror or error})"
    return None


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    work, run, resources = connection.recv()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = work.cluster["address"]
    if address is not None and (why := unreachable(address)) is not None:
        connection.send(("unreachable", why))
        return 1
    try:
        with connected(work.cluster, work.root, resources):
            Driver(connection, work, run).serve()
    except Exception as error:  # the launcher reports whatever Ray raises
        with contextlib.suppress(OSError):
            connection.send(("failed", f"{type(error).__name__}: {one_line(str(error))}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
