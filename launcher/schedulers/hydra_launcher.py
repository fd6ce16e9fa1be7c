"""Any of Hydra's launcher plugins (`hydra/launcher=joblib`, `submitit_local`, ...) as a scheduler.

A job gets the id of a frozen run and the path of the launch's record, and no overrides: Hydra composes the root
configuration on the node, but nothing reads it. The job starts the same worker as every scheduler does, in a process,
because a plugin may use one process for several jobs. The job's exit status is ignored; only state.json counts. A
plugin blocks until its whole batch has ended, so it is called in a thread, and the runs are watched meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

from launcher.run import launch_record, lifecycle, stop_request
from launcher.run.folder import run_folder
from launcher.run.lifecycle import FailureKind, RunState, read_state
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.text import one_line
from launcher.worker import process as worker_process

#: The key under which a job finds its run; it is not a key of the root configuration.
KEY = "rlsweep_job"
_BATCH = 100_000
_CHECK_S = 1.0
_UNFINISHED = (RunState.SUBMITTED, RunState.RUNNING)


class HydraLauncher:
    """A scheduler over one of Hydra's launchers. Runs are launched in batches, one batch at a time."""

    def __init__(self, plugin: Any, record: Path) -> None:
        """plugin: set up by Hydra; record: the file of the launch."""
        self._plugin, self._record = plugin, record
        self._collected: list[Path] = []
        self._running: list[Path] = []
        self._thread = ThreadPoolExecutor(1, "hydra-launcher")
        self._batch: Future[Any] | None = None
        self._launched = 0
        self._last_check = 0.0

    def capacity(self) -> int:
        """The free places in the next batch; 0 while a batch is running."""
        return 0 if self._batch is not None else _BATCH - len(self._collected)

    def submit(self, folder: Path) -> None:
        """Put a run into the next batch, which the next `poll` launches."""
        self._collected.append(folder)

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Runs of the batch that ended since the last call. SchedulerError: the plugin itself failed."""
        if self._batch is None:
            if not self._collected:
                return []
            self._running, self._collected = self._collected, []
            batch = list(map(self._overrides, self._running))
            self._batch = self._thread.submit(self._plugin.launch, batch, initial_job_idx=self._launched)
            self._launched += len(batch)
        over = bool(wait([self._batch], timeout).done)
        if not over and time.monotonic() < self._last_check + _CHECK_S:
            return []
        self._last_check = time.monotonic()
        stopped = [folder for folder in self._running if over or read_state(folder).state not in _UNFINISHED]
        ended = [folder for folder in stopped if over or lifecycle.live_claim(folder) is None]
        self._running = [folder for folder in self._running if folder not in ended]
        if over:
            error, self._batch = self._batch.exception(), None
            if error is not None:
                for folder in ended:
                    lifecycle.withdraw(folder)
                why = one_line(str(error)) or repr(error)
                fix = "change hydra.launcher.*, and repeat the command"
                raise SchedulerError(f"the launcher {type(self._plugin).__name__} failed: {why}. Fix: {fix}") from error
        return [Ended(folder, None) for folder in ended]

    def withdraw(self) -> int:
        """Keep the waiting runs of the batch from starting."""
        launch_record.closed(self._record).touch()
        return sum(map(lifecycle.withdraw, self._running))

    def cancel(self, kill: bool = False) -> None:
        """Ask the running runs, on whatever host, to save a checkpoint and stop; keep the waiting ones from starting.

        kill: end those on this host. For the others, the plugin gives no handle.
        """
        self.withdraw()
        for folder in self._running:
            with suppress(lifecycle.Locked), lifecycle.locked(folder, lifecycle.PATIENCE_S):
                owner = stop_request.send_to_owner(folder, FailureKind.PREEMPTED, "interrupted")
                if kill and owner is not None:
                    lifecycle.kill_owner(owner)

    def close(self) -> None:
        """Ask the remaining runs to stop, and wait until the plugin returns."""
        if self._running:
            self.cancel()
        self._thread.shutdown()
        launch_record.closed(self._record).unlink(missing_ok=True)

    def _overrides(self, folder: Path) -> list[str]:
        """Quoted, because Hydra would read the id 12345678e0123456 as a number."""
        from launcher.config.hydra_compose import as_override

        values = {"run": folder.name, "record": str(self._record)}
        return [as_override(f"+{KEY}.{key}", value) for key, value in values.items()]


def work(config: Mapping[str, Any]) -> int:
    """The job that the plugin executes for each run, here or on another host; the worker's exit code.

    RuntimeError: the worker's exit code is not 0. Plugins that check for errors then notice it.
    """
    if (job := config.get(KEY)) is None:
        raise SystemExit("hydra.mode must be MULTIRUN, also for a single run. Fix: remove hydra.mode")
    record = Path(job["record"])
    if launch_record.closed(record).exists():
        return 0
    folder = run_folder(record.parent.parent, job["run"])
    try:
        process = worker_process.start(folder, record)
    except Exception as error:  # plugins do not print what a job raises
        print(f"{folder}: no worker could be started: {error!r}", file=sys.stderr, flush=True)
        raise
    in_main_thread = threading.current_thread() is threading.main_thread()  # some plugins run jobs there
    forward = worker_process.handling((SIGTERM, SIGINT), lambda number, _: process.send_signal(number))
    with forward if in_main_thread else nullcontext():
        code = process.wait()
    if code:
        message = f"{folder}: the worker's exit code is {code}; see state.json there"
        print(message, file=sys.stderr, flush=True)
        raise RuntimeError(message)
    return code
