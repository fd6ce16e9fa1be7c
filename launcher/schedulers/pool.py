"""This machine: a pool of warm worker processes.

A fork server imports torch and verl once; every run is a fork of it, and starts in milliseconds instead of the 6 to 10
seconds that the imports take. One run a core by default, each with one thread: more threads make small models slower,
and sums come out differently with their number.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from launcher import warm, worker
from launcher.schedulers import Ended, SchedulerError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_STOP_S = 60.0


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Pool:
    """A scheduler over forks of one warm server. One pool a process: the server's modules are fixed when it starts."""

    def __init__(
        self, slots: int | None, root: Path, train: str = worker.TRAIN, provenance: Mapping[str, Any] | None = None
    ) -> None:
        self._slots = slots or cores()
        self._train = train
        self._provenance = provenance
        self._running: dict[int, tuple[ForkServerProcess, Path]] = {}
        for name in _THREADS:
            os.environ[name] = "1"
        modules = ("launcher.worker", "launcher.base", "omegaconf", train.partition(":")[0])
        os.environ[warm.MODULES] = ",".join(modules)
        # The server starts with an import path of its own: without the root it would find neither launcher nor
        # trainer_ext.
        paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["launcher.warm"])
        # Returns at once; the imports go on in the server while this process plans and freezes.
        from multiprocessing.forkserver import ensure_running

        ensure_running()

    def capacity(self) -> int:
        """Free slots."""
        return self._slots - len(self._running)

    def submit(self, folder: Path) -> str:
        """Fork a worker for a run; the first call waits until the server has imported its modules."""
        name = f"pool-{os.getpid()}"
        process = self._context.Process(
            target=_work, args=(folder, self._train, self._provenance, name), name=folder.name
        )
        try:
            process.start()
        except (EOFError, OSError) as error:
            raise SchedulerError(
                f"the server of warm workers died while it started ({error!r}); see its output above"
            ) from error
        self._running[process.sentinel] = (process, folder)
        return name

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Workers that ended since the last call."""
        ready = multiprocessing.connection.wait(list(self._running), timeout)
        ended: list[Ended] = []
        for sentinel in ready:
            assert isinstance(sentinel, int)
            process, folder = self._running.pop(sentinel)
            process.join()
            ended.append(Ended(folder, process.exitcode))
            process.close()
        return ended

    def cancel(self, kill: bool = False) -> None:
        """SIGTERM (checkpoint and stop) or SIGKILL to every worker."""
        for process, _ in self._running.values():
            if kill:
                process.kill()
            else:
                process.terminate()

    def close(self) -> None:
        """Ask the remaining workers to stop, wait for them, and kill those that do not."""
        self.cancel()
        for process, _ in self._running.values():
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._running.clear()


def _work(folder: Path, train: str, provenance: Mapping[str, Any] | None, job: str) -> None:
    """In the fork: execute one run and leave with its exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ignored by the server; until the run's own handler stands
    if warm.failure is not None:
        print(
            f"the warm server could not import a module, so this worker imports it again:\n{warm.failure}",
            file=sys.stderr,
        )
    sys.exit(worker.execute(folder, train, provenance, job))
