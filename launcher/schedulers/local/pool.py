"""A pool of warm worker processes on this machine.

A fork server imports what the application needs, once. Every run is a fork of it, and starts in milliseconds instead
of the seconds that the imports take. By default one run is executed on each core, or on each device, with one thread.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext, ForkServerProcess
from pathlib import Path
from types import ModuleType

from launcher.application import application
from launcher.nodes import ONE, Nodes
from launcher.project import NO_DEVICES, ONE_THREAD, python_path
from launcher.run import lifecycle, stop_request
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import Claim, FailureKind
from launcher.schedulers.protocol import Ended, Scheduler, SchedulerError
from launcher.worker import warm, worker

_DEVICES, _SAFE_PATH = "CUDA_VISIBLE_DEVICES", "PYTHONSAFEPATH"
#: With it, torch counts devices without starting CUDA. A fork of a process that has started CUDA cannot use it.
_COUNT_ALONE = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_GUARD_EVERY_S = 1.0
#: Their threads compute, and a fork has none of them: it waits for them for ever.
_THREADED = frozenset({"jaxlib", "tensorflow"})


def can_fork() -> bool:
    """Whether forks of this process can compute: after imports of JAX, say, or after a start of CUDA, they cannot."""
    torch = sys.modules.get("torch")
    return not (_THREADED & sys.modules.keys() or (torch is not None and torch.cuda.is_initialized()))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def visible_devices(environment: Mapping[str, str] | None = None) -> list[str]:
    """The CUDA devices that runs may use: those that CUDA_VISIBLE_DEVICES lists; without it, all of this machine."""
    environment = os.environ if environment is None else environment
    if _DEVICES in environment:
        return [name for name in environment[_DEVICES].split(",") if name and name != "-1"]
    return [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def slots(count: int | None, devices: int, visible: Sequence[str]) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each slot; None leaves it as it is.

    count: how many slots, or None for as many as fit. devices: how many a run needs. If that is 0, or more than are
    visible, there is one slot for each core. Runs that need none see none, and compute on CPUs.
    """
    if devices == 0:
        return [NO_DEVICES] * (count or cores())
    sets = [",".join(visible[at : at + devices]) for at in range(0, len(visible) - devices + 1, devices)]
    if not sets:
        return [None] * (count or cores())
    return [sets[slot % len(sets)] for slot in range(count or len(sets))]


@contextmanager
def without_main() -> Iterator[None]:
    """Keep multiprocessing from importing this program's main module again in the processes started in the block.

    A run does not need it, and with Hydra that import takes longer than the rest of a start.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclass
class _Running:
    """One worker. `asked`: when it was asked to stop, on the monotonic clock."""

    process: ForkServerProcess
    folder: Path
    slot: int
    since: float
    asked: float | None = None

    def ask(self) -> None:
        self.asked = self.asked or time.monotonic()
        self.process.terminate()

    def claim(self) -> Claim | None:
        """Its claim on the run; None before it has started, and after it has ended."""
        owner = lifecycle.read_claim(self.folder)
        return owner if owner is not None and owner.pid == self.process.pid else None


class Pool(Scheduler):
    """A scheduler over forks of one warm server. A process can have one pool: its server imports its modules once."""

    def __init__(
        self,
        slots: Sequence[str | None],
        root: Path,
        launch: Launch,
        limit_s: float | None = None,
        grace_s: float = 60.0,
        orphaned: Callable[[], worker.Reason] = worker.launcher_gone,
        nodes: Nodes = ONE,
        forks: bool = False,
    ) -> None:
        """slots: see `slots`; nodes: those of each run; forks: whether workers are forks of this process.

        limit_s: the seconds of an attempt; grace_s: those between the request to stop and the kill.
        """
        self._slots = list(slots)
        self._execute = partial(worker.execute, launch=launch, orphaned=orphaned, nodes=nodes)
        self._limit_s, self._grace_s = limit_s, grace_s
        self._running: dict[int, _Running] = {}
        self._next_guard = 0.0
        self._forks = forks
        os.environ.update({**ONE_THREAD, **_COUNT_ALONE})  # also for a server that Python starts in place of a dead one
        if forks:
            self._context: BaseContext = multiprocessing.get_context("fork")
            return
        work = (launch.train or application().work).partition(":")[0]
        # Every fork imports this module, with the worker.
        os.environ[warm.MODULES] = ",".join((__name__, *application().warm, "omegaconf", work))
        # The server has an import path of its own, which must contain the project.
        os.environ["PYTHONPATH"] = python_path(root)
        self._context = context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["launcher.worker.warm"])
        hidden = {_SAFE_PATH: "1"}  # the server imports from `root`, whatever is in the working directory
        if set(self._slots) == {NO_DEVICES}:
            hidden[_DEVICES] = NO_DEVICES  # libraries decide at their import
        # This returns at once. The server imports while this process plans and freezes.
        from multiprocessing.forkserver import ensure_running

        before = {name: os.environ[name] for name in hidden if name in os.environ}
        os.environ.update(hidden)
        try:
            ensure_running()
        finally:
            for name in hidden:
                del os.environ[name]
            os.environ.update(before)

    def capacity(self) -> int:
        return len(self._slots) - len(self._running)

    def submit(self, folder: Path) -> None:
        """Fork a worker for a run; the first call waits until the server has imported its modules."""
        slot = min(set(range(len(self._slots))) - {running.slot for running in self._running.values()})
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_work, args=(self._execute, folder, self._slots[slot]), name=folder.name
        )
        try:
            with nullcontext() if self._forks else without_main():
                process.start()
        except (EOFError, OSError) as error:
            why = f"the server of warm workers died while it started ({error!r}); see its output above"
            raise SchedulerError(why) from error
        # The children that a fork's run has forked keep its sentinel open.
        end = os.pidfd_open(process.pid) if self._forks else os.dup(process.sentinel)
        self._running[end] = _Running(process, folder, slot, time.monotonic())

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Workers that ended since the last call. Those over the time limit are asked to stop, and later killed."""
        self._guard()
        ready = multiprocessing.connection.wait(list(self._running), timeout)
        ended: list[Ended] = []
        for end in ready:
            assert isinstance(end, int)
            running = self._running.pop(end)
            os.close(end)
            running.process.join()
            _end_group(running.process)
            ended.append(Ended(running.folder, running.process.exitcode))
            running.process.close()
        return ended

    def cancel(self, kill: bool = False) -> None:
        """SIGTERM (save a checkpoint and stop) or SIGKILL to every worker."""
        for running in self._running.values():
            if kill:
                running.process.kill()
            else:
                running.ask()

    def close(self) -> None:
        """Ask the remaining workers to stop, wait for them, and kill those that do not."""
        self.cancel()
        for end, running in self._running.items():
            if not multiprocessing.connection.wait([end], self._grace_s):
                running.process.kill()
            running.process.join()
            os.close(end)
            _end_group(running.process)
        self._running.clear()

    def _guard(self) -> None:
        """Every second: apply the time limit to the runs, and notice requests of others to stop one."""
        now = time.monotonic()
        if now < self._next_guard:
            return
        self._next_guard = now + _GUARD_EVERY_S
        for running in self._running.values():
            requested = running.asked is None and (running.folder / stop_request.NAME).exists()
            if requested and stop_request.find(running.folder, running.claim()) is not None:
                running.ask()
            if running.asked is not None and now - running.asked > self._grace_s:
                running.process.kill()
            if running.asked is None and self._limit_s is not None and now - running.since > self._limit_s:
                self._stop_late(running, f"over the limit of {self._limit_s:g} s for an attempt")

    def _stop_late(self, running: _Running, message: str) -> None:
        if (owner := running.claim()) is None:
            return  # it has not started yet, or has ended
        with suppress(lifecycle.Locked):  # tried again after the next second
            with lifecycle.locked(running.folder, lifecycle.PATIENCE_S):
                stop_request.ask(running.folder, owner, FailureKind.TIME_OUT, message)
            running.ask()


def _end_group(process: ForkServerProcess) -> None:
    """Kill the processes that a worker left in its group.

    A worker whose server died is still running; it keeps them.
    """
    assert process.pid
    if lifecycle.process_start(process.pid) is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _work(execute: Callable[[Path], int], folder: Path, devices: str | None) -> None:
    """In the fork: execute one run and leave with its exit code."""
    # The launcher handles Ctrl-C. The processes that the run starts are in its group, and end with it.
    os.setsid()
    os.environ.pop(_SAFE_PATH, None)
    with suppress(OSError):  # if memory runs out, the kernel kills a run, and not the launcher
        Path("/proc/self/oom_score_adj").write_text("500")
    if devices is not None:
        os.environ[_DEVICES] = devices  # CUDA reads it when it is first used
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server ignores it; the run's own handler comes later
    worker.leave(execute(folder))
