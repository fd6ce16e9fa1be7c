"""Any of Hydra's launcher plugins (`hydra/launcher=joblib`, `submitit_local`, ...) as a scheduler.

A job gets the id of a frozen run and the path of the launch's record, never overrides to compose again: Hydra composes
the root configuration on the node, and nothing reads it. The job starts the same worker as every scheduler does, in a
process of its own, for a plugin may keep its processes for several jobs. What the plugin says of a job's end is not
believed: the state file is the truth. A plugin blocks until its whole batch is over, so it is called in a thread, and
the runs are looked at as they end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.run import claim, launch_record, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.worker import process as child

#: The key under which a job finds what it is to do; no key of the root configuration.
KEY = "rlsweep_job"
_BATCH = 100_000
_LOOK_S = 1.0


class HydraLauncher:
    """A scheduler over one of Hydra's launchers; runs are launched in batches, a batch at a time."""

    def __init__(self, plugin: Any, record: Path) -> None:
        """plugin: set up by Hydra; record: what `Launch.write` returned."""
        self._plugin, self._record = plugin, record
        self._collected: list[tuple[Path, str]] = []
        self._running: list[Path] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._launched = 0
        self._looked = 0.0

    def capacity(self) -> int:
        """Everything, unless a batch is under way."""
        return 0 if self._thread is not None else _BATCH - len(self._collected)

    def submit(self, folder: Path, job: str) -> None:
        """Put a run into the next batch, which the next `poll` launches."""
        self._collected.append((folder, job))

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Runs of the batch that ended since the last call. SchedulerError: the plugin itself failed."""
        if self._thread is None:
            if not self._collected:
                return []
            self._running = [folder for folder, _ in self._collected]
            batch = [self._overrides(folder, job) for folder, job in self._collected]
            self._collected = []
            self._thread = threading.Thread(target=self._launch, args=(batch,), name="hydra-launcher", daemon=True)
            self._thread.start()
        self._thread.join(timeout)
        over = not self._thread.is_alive()
        if over:
            self._thread = None
        elif time.monotonic() < self._looked + _LOOK_S:
            return []
        self._looked = time.monotonic()
        ended = self._running if over else [folder for folder in self._running if _is_over(folder)]
        self._running = [folder for folder in self._running if folder not in ended]
        if self._error is not None:
            error, self._error = self._error, None
            raise SchedulerError(f"the launcher {type(self._plugin).__name__} failed: {error!r}") from error
        return [Ended(folder, None) for folder in ended]

    def withdraw(self) -> int:
        """Keep the waiting runs of the batch from beginning."""
        launch_record.closed(self._record).touch()
        count = 0
        for folder in self._running:
            with suppress(claim.Locked), claim.locked(folder, claim.PATIENCE_S):
                state = folders.read_state(folder)
                if state.state == folders.SUBMITTED and claim.live_claim(folder) is None:
                    folders.write_state(folder, state.but(state=folders.PLANNED))
                    count += 1
        return count

    def cancel(self, kill: bool = False) -> None:
        """Ask the running runs to checkpoint and stop, on whatever host they are, and keep the waiting ones from it.

        Killed are only those on this host: of others the plugin gives no handle.
        """
        self.withdraw()
        for folder in self._running:
            with suppress(claim.Locked), claim.locked(folder, claim.PATIENCE_S):
                owner = claim.live_claim(folder)
                if owner is None:
                    continue
                stop_request.send(folder, owner, lifecycle.PREEMPTED, "interrupted")
                if kill and claim.is_here(owner):
                    with suppress(ProcessLookupError):
                        os.kill(owner.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ask what still runs to stop, and wait for the plugin's return."""
        if self._running:
            self.cancel()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        launch_record.closed(self._record).unlink(missing_ok=True)

    def _overrides(self, folder: Path, job: str) -> list[str]:
        """Quoted, for Hydra reads a value that looks like a number as one: the token 12345678e012 would be infinite."""
        from hydra.core.override_parser.types import Quote, QuotedString

        values = {"run": folder.name, "record": str(self._record), "job": job}
        return [f"+{KEY}.{key}={QuotedString(value, Quote.single).with_quotes()}" for key, value in values.items()]

    def _launch(self, batch: list[list[str]]) -> None:
        try:
            self._plugin.launch(batch, initial_job_idx=self._launched)
        except BaseException as error:  # whatever a plugin raises ends the batch
            self._error = error
        self._launched += len(batch)


def _is_over(folder: Path) -> bool:
    state = folders.read_state(folder)
    return state.state not in (folders.SUBMITTED, folders.RUNNING) and claim.live_claim(folder) is None


def work(config: Mapping[str, Any]) -> int:
    """What the plugin calls for each run, here or on another host: the worker's exit code.

    RuntimeError: the worker's exit code is not 0, so that a plugin that looks at it knows.
    """
    wanted = config.get(KEY)
    if wanted is None:
        raise SystemExit("hydra.mode must stay MULTIRUN: one run is a plan of one run")
    record = Path(wanted["record"])
    if launch_record.closed(record).exists():
        return 0
    folder = folders.run_folder(record.parent.parent, wanted["run"])
    try:
        process = child.start(folder, record, wanted["job"])
    except Exception as error:  # plugins keep what a job raises to themselves
        print(f"{folder}: no worker could be started: {error!r}", file=sys.stderr, flush=True)
        raise
    with _forwarding(process):
        code = process.wait()
    if code:
        print(f"{folder}: the worker's exit code is {code}", file=sys.stderr, flush=True)
        raise RuntimeError(f"{folder}: the worker's exit code is {code}; see state.json there")
    return code


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals to end on to the worker, where a plugin runs jobs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda got, _: process.send_signal(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
