"""This machine: a pool of warm worker processes.

A fork server imports torch and verl once; every run is a fork of it, and starts in milliseconds instead of the 6 to 10
seconds that the imports take. One run a core by default, or one a device, each with one thread: more threads make small
models slower, and sums come out differently with their number.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType

from launcher.run import claim, stop_request
from launcher.run.launch_record import Launch
from launcher.schedulers.local import memory
from launcher.schedulers.local.limits import Job, Limits, has_room, judge
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.worker import warm, worker

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DEVICES = "CUDA_VISIBLE_DEVICES"
_GUARD_EVERY_S = 1.0


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def visible_devices(environment: Mapping[str, str] | None = None) -> list[str]:
    """The CUDA devices that runs may use: those that CUDA_VISIBLE_DEVICES names, else all that this machine shows."""
    environment = os.environ if environment is None else environment
    if _DEVICES in environment:
        return [name for name in environment[_DEVICES].split(",") if name and name != "-1"]
    return [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def slots(wanted: int | None, devices: int, visible: Sequence[str]) -> list[str | None]:
    """What each slot sees as CUDA_VISIBLE_DEVICES; None leaves it alone.

    wanted: how many slots, or None for as many as fit. devices: how many a run asks for; 0 or too few visible: a core.
    """
    sets = [",".join(visible[at : at + devices]) for at in range(0, len(visible) - devices + 1, devices or 1)]
    if devices == 0 or not sets:
        return [None] * (wanted or cores())
    return [sets[slot % len(sets)] for slot in range(wanted or len(sets))]


@contextmanager
def without_main() -> Iterator[None]:
    """Processes started here do not import this program's main module again, as multiprocessing has them do.

    A run needs nothing of it, and with Hydra it takes longer than all the rest of a start.
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


class Pool:
    """A scheduler over forks of one warm server. One pool a process: the server's modules are fixed when it starts."""

    def __init__(
        self,
        slots: Sequence[str | None],
        root: Path,
        train: str = worker.TRAIN,
        launch: Launch | None = None,
        limits: Limits | None = None,
        gone: worker.Gone = worker.launcher_gone,
    ) -> None:
        self._slots = list(slots)
        self._train = train
        self._launch = launch
        self._limits = limits or Limits()
        self._gone = gone
        self._running: dict[int, _Running] = {}
        self._next_guard = 0.0
        for name in _THREADS:
            os.environ[name] = "1"
        modules = (
            "launcher.worker.worker",
            "launcher.config.verl_tree",
            "launcher.worker.provenance",
            "omegaconf",
            train.partition(":")[0],
        )
        os.environ[warm.MODULES] = ",".join(modules)
        # The server starts with an import path of its own: without the root it would find neither launcher nor
        # trainer_ext.
        paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["launcher.worker.warm"])
        # Returns at once; the imports go on in the server while this process plans and freezes.
        from multiprocessing.forkserver import ensure_running

        ensure_running()

    def capacity(self) -> int:
        """Free slots; none while the machine has no memory for another run."""
        free = len(self._slots) - len(self._running)
        return free if free and has_room(len(self._running), memory.available(), self._limits) else 0

    def submit(self, folder: Path, job: str) -> None:
        """Fork a worker for a run; the first call waits until the server has imported its modules."""
        slot = min(set(range(len(self._slots))) - {one.slot for one in self._running.values()})
        process = self._context.Process(
            target=_work,
            args=(folder, self._train, self._launch, job, self._slots[slot], self._gone),
            name=folder.name,
        )
        try:
            with without_main():
                process.start()
        except (EOFError, OSError) as error:
            raise SchedulerError(
                f"the server of warm workers died while it started ({error!r}); see its output above"
            ) from error
        self._running[process.sentinel] = _Running(process, folder, slot, time.monotonic())

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Workers that ended since the last call; those over a limit are asked to stop, or killed."""
        self._guard()
        ready = multiprocessing.connection.wait(list(self._running), timeout)
        ended: list[Ended] = []
        for sentinel in ready:
            assert isinstance(sentinel, int)
            one = self._running.pop(sentinel)
            one.process.join()
            _end_group(one.process)
            ended.append(Ended(one.folder, one.process.exitcode))
            one.process.close()
        return ended

    def withdraw(self) -> int:
        """None: a worker begins at once."""
        return 0

    def cancel(self, kill: bool = False) -> None:
        """SIGTERM (checkpoint and stop) or SIGKILL to every worker."""
        for one in self._running.values():
            if kill:
                one.process.kill()
            else:
                self._ask(one)

    def close(self) -> None:
        """Ask the remaining workers to stop, wait for them, and kill those that do not."""
        self.cancel()
        for one in self._running.values():
            one.process.join(self._limits.grace_s)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            _end_group(one.process)
        self._running.clear()

    def _ask(self, one: _Running) -> None:
        one.asked = one.asked or time.monotonic()
        one.process.terminate()

    def _guard(self) -> None:
        """Now and then: hold the runs to their limits, and pass on what others have asked of them."""
        now = time.monotonic()
        if now < self._next_guard:
            return
        self._next_guard = now + _GUARD_EVERY_S
        limits = self._limits
        for one in self._running.values():
            if one.asked is None and (one.folder / stop_request.NAME).exists() and self._is_asked(one):
                self._ask(one)
            if one.asked is not None and now - one.asked > limits.grace_s:
                one.process.kill()
        jobs = [
            Job(sentinel, now - one.since, self._held(one), one.asked is not None)
            for sentinel, one in self._running.items()
        ]
        for verdict in judge(jobs, memory.available(), limits):
            one = self._running[verdict.name]
            owner = claim.read_claim(one.folder)
            if owner is None or owner.pid != one.process.pid:
                continue  # not begun yet, or over
            with suppress(claim.Locked):  # the next look asks again
                with claim.locked(one.folder, claim.PATIENCE_S):
                    stop_request.ask(one.folder, owner, verdict.kind, verdict.cause)
                self._ask(one)

    def _held(self, one: _Running) -> int:
        """The run's memory; not looked up where nothing depends on it."""
        return memory.held(one.process.pid or 0) if self._limits.memory_gb is not None else 0

    def _is_asked(self, one: _Running) -> bool:
        owner = claim.read_claim(one.folder)
        return (
            owner is not None
            and owner.pid == one.process.pid
            and stop_request.asked(one.folder, owner.token) is not None
        )


def _end_group(process: ForkServerProcess) -> None:
    """Kill what a worker left running: it leads a group of its own. One whose server died lives on, and keeps it."""
    assert process.pid
    if claim.process_start(process.pid) is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _work(folder: Path, train: str, launch: Launch | None, job: str, devices: str | None, gone: worker.Gone) -> None:
    """In the fork: execute one run and leave with its exit code."""
    # Ctrl-C is the launcher's to handle, and what the run starts ends with it.
    os.setsid()
    if devices is not None:
        os.environ[_DEVICES] = devices  # read by CUDA when it is first used
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ignored by the server; until the run's own handler stands
    if warm.failure is not None:
        print(
            f"the warm server could not import a module, so this worker imports it again:\n{warm.failure}",
            file=sys.stderr,
        )
    worker.leave(worker.execute(folder, train, launch, job, gone))
