"""A launch's own Ray driver, a process beside the launcher: Ray ends a driver whose cluster dies, and not the launcher.

    python -m launcher.schedulers.ray.driver DESCRIPTOR

The descriptor is one end of a pipe whose other end `ray_cluster.RayCluster` holds; messages are JSON. Its standard
output and error, Ray's own lines and what the Ray workers of all nodes print go to a file that the launcher opened.
When the pipe closes, the driver asks what runs to stop, waits for it, and leaves; a Ray that it started ends with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from launcher.planning.resources import Shape
from launcher.run import claim, lifecycle, stop_request
from launcher.schedulers.ray import task
from launcher.schedulers.ray.placement import OBJECTS, bundle
from launcher.text import one_line

_NODES_EVERY_S = 5.0
_REACH_S = 5.0  # for a node to accept a connection
_LAST_S = 5.0  # after the grace of the runs, for Ray to say that they ended


class Driver:
    """The connection to one cluster, and the tasks under way there."""

    def __init__(self, connection: Connection, work: task.Work) -> None:
        import ray

        module, _, function = work.task.partition(":")
        task = getattr(importlib.import_module(module), function)
        self._ray, self._connection, self._work = ray, connection, work
        self._task = ray.remote(max_calls=0, max_retries=0)(task)  # its worker is kept; the rules retry
        self._lock = threading.Lock()
        self._refs: dict[str, Any] = {}
        self._nodes: list[dict[str, float]] = []

    def say(self, message: Mapping[str, Any]) -> None:
        """Send to the launcher, from any thread; one that is gone hears nothing."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(message).encode())

    def serve(self) -> None:
        """Do what the launcher says until it is gone."""
        self._look()
        threading.Thread(target=self._watch, name="ray-nodes", daemon=True).start()
        while True:
            try:
                message = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            if "submit" in message:
                self._submit(**message["submit"])
            elif "cancel" in message:
                self._cancel(message["cancel"])
        self._leave()

    def _watch(self) -> None:
        while True:
            time.sleep(_NODES_EVERY_S)
            self._look()

    def _look(self) -> None:
        """Tell the launcher the nodes whenever they change."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if nodes != self._nodes:
            self._nodes = nodes
            self.say({"nodes": nodes})

    def _submit(self, folder: str, job: str, shape: Mapping[str, Any]) -> None:
        asked = Shape(**shape)
        part = bundle(asked)
        options: dict[str, Any] = {"name": Path(folder).name}
        options |= {"num_cpus": part["CPU"], "num_gpus": part.get("GPU", 0)}
        if "memory" in part:
            options["memory"] = part["memory"]
        group = None
        if asked.nodes > 1:
            from ray.util.placement_group import placement_group
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            group = placement_group([part] * asked.nodes, strategy="STRICT_SPREAD")
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, 0)
        ref = self._task.options(**options).remote(folder, job, self._work)
        self._refs[folder] = ref
        ref.future().add_done_callback(lambda future: self._ended(folder, future, group))

    def _ended(self, folder: str, future: Any, group: Any) -> None:
        """In a thread of Ray's: tell the launcher how a task ended."""
        error = future.exception()
        kind, cause = _account(error) if error is not None else (None, None)
        code = None if error is not None else future.result()
        self._refs.pop(folder, None)
        self.say({"ended": {"folder": folder, "exit_code": code, "kind": kind, "cause": cause}})
        if group is not None:
            from ray.util.placement_group import remove_placement_group

            # Not here: it waits for an answer, which this thread of Ray's would have to hear.
            threading.Thread(target=remove_placement_group, args=(group,), daemon=True).start()

    def _cancel(self, force: bool) -> None:
        for ref in list(self._refs.values()):
            self._ray.cancel(ref, force=force)

    def _leave(self) -> None:
        """The launcher is gone: its runs save a checkpoint and stop."""
        for folder in map(Path, list(self._refs)):
            with claim.locked(folder):
                owner = claim.live_claim(folder)
                if owner is not None:
                    stop_request.send(folder, owner, lifecycle.PREEMPTED, "launcher gone")
        self._cancel(force=False)
        end = time.monotonic() + float(self._work.cluster.get("grace_s") or 0.0) + _LAST_S
        while self._refs and time.monotonic() < end:
            time.sleep(0.1)


def _account(error: BaseException) -> tuple[str | None, str | None]:
    """The kind and cause of a task that Ray says has failed; None where only the run's state knows."""
    from ray import exceptions

    if isinstance(error, exceptions.TaskCancelledError):
        return None, None
    said = one_line(str(error))
    if isinstance(error, exceptions.OutOfMemoryError):
        return lifecycle.OUT_OF_MEMORY, f"Ray killed its worker because the node ran out of memory: {said}"
    if isinstance(error, exceptions.LocalRayletDiedError | exceptions.NodeDiedError):
        return lifecycle.NODE_FAILURE, f"Ray lost the node: {said}"
    if isinstance(error, exceptions.WorkerCrashedError):
        return lifecycle.LOST, f"the Ray worker died: {said}"
    if isinstance(error, exceptions.RayTaskError):  # our own code, on a node that lacks it or its packages
        return lifecycle.EXCEPTION, f"the Ray worker could not start the run: {said}"
    return lifecycle.LOST, f"{type(error).__name__}: {said}"


@contextlib.contextmanager
def connected(cluster: Mapping[str, Any], root: str, own: Mapping[str, float]) -> Iterator[None]:
    """Join the cluster at `cluster["address"]`, or start one here with the resources `own`, and leave or end it."""
    if cluster["address"] is None:
        _alone()
    import ray

    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", root), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    options: dict[str, Any] = {"runtime_env": {"env_vars": environment}, "log_to_driver": True}
    if cluster["address"] is not None:
        ray.init(cluster["address"], **options)
        yield
        ray.shutdown()
        return
    folder = tempfile.mkdtemp(prefix="rlsweep-ray-")  # for this user alone; Ray's own is everybody's
    ray.init(
        address="local",
        num_cpus=int(own["CPU"]),
        num_gpus=int(own["GPU"]),
        _memory=int(own["memory"]),
        object_store_memory=OBJECTS,
        include_dashboard=False,
        _temp_dir=folder,
        **options,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def unreachable(address: str) -> str | None:
    """Why no Ray can be at `cluster.address`, where that is so; ray.init would wait for minutes."""
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


def _alone() -> None:
    """Before Ray is imported: what it starts here listens on loopback alone, and to those who have the token."""
    # Ray's own switch between one machine and a cluster; off is what it is by default on macOS and Windows.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.pop("RAY_AUTH_TOKEN_PATH", None)


def main() -> int:
    """Serve the launcher at the other end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    started = json.loads(connection.recv_bytes())
    work = task.Work(**started["work"])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = work.cluster["address"]
    why = unreachable(address) if address is not None else None
    if why is not None:
        connection.send_bytes(json.dumps({"unreachable": why}).encode())
        return 1
    try:
        with connected(work.cluster, work.root, started["own"]):
            Driver(connection, work).serve()
    except Exception as error:  # whatever Ray raises: the launcher says it
        with contextlib.suppress(OSError):
            connection.send_bytes(json.dumps({"failed": f"{type(error).__name__}: {one_line(str(error))}"}).encode())
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
