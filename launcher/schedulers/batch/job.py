"""What a job of a batch system executes: one frozen run, in a worker process that gets the system's signals.

    python -m launcher.schedulers.batch.job FILE

FILE describes the job's array (scheduler.py); the environment variable INDEX tells the job's place in it. The system's
signals reach the worker too, but they do not carry a reason: this process leaves the reason in the run's folder. No
launcher is needed for that. A system whose jobs can say more about their signals, or return to its queue, has a program
of its own with a subclass of Task.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.application import Shape
from launcher.run import launch_record, lifecycle, stop_request
from launcher.run.folder import run_folder
from launcher.run.lifecycle import FailureKind, RunState, State, WorkerExit, read_state, write_state
from launcher.schedulers.batch.system import INDEX
from launcher.worker import process

# A system may warn up to a minute too early.
_EARLY_S = 60.0


@dataclass
class Task:
    """A run to execute. `record` is the launch's file, `settings` the section `cluster` of its plan.

    The job has asked for `shape`; `began` is on the monotonic clock.
    """

    folder: Path
    record: Path
    shape: Shape
    settings: Mapping[str, Any]
    began: float = field(default_factory=time.monotonic)
    warning: tuple[FailureKind, str] | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def execute(self) -> int:
        """Execute it; the exit code of this job, by which the system shows whether the run has failed."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda received, _: self.warn(received))
        self.prepare()
        code = WorkerExit.PREEMPTED if self.closed or self.warning is not None else self._work()
        self._fail_if_never_started()
        if self._is_to_continue():
            self.requeue()
        return WorkerExit.DONE if code == WorkerExit.BUSY else code  # if the run is busy, the job has not failed

    # ------------------------------------------------------------ what a system may know better

    @property
    def job(self) -> str:
        """What messages call this job."""
        return "its job"

    def prepare(self) -> None:
        """Called before the run is started: finish what an earlier start of this job left."""

    def reason(self, number: int) -> tuple[FailureKind, str]:
        """Why the system sent this signal."""
        sent = f"{lifecycle.signal_name(number)} from the batch system"
        return self.time_out(time.monotonic() - self.began) or (FailureKind.PREEMPTED, sent)

    def requeue(self) -> None:
        """Return this job to the queue, to continue its run later. Otherwise the launcher submits the run again."""

    # ------------------------------------------------------------ for these

    @property
    def token(self) -> str:
        return self.record.stem

    @property
    def closed(self) -> bool:
        """Whether no further run of the launch may start."""
        return launch_record.closed(self.record).exists()

    def time_out(self, ran_s: float) -> tuple[FailureKind, str] | None:
        """The reason of a signal if the time limit expires; None if that is far away. ran_s: seconds of this job."""
        limit = self.shape.time_s
        if not limit or limit - ran_s >= self.settings.get("signal_delay_s", 0) + _EARLY_S:
            return None
        return FailureKind.TIME_OUT, f"the time limit of {self.job}, {limit} s, expired"

    def end_if_silent(self, witness: lifecycle.Witness, kind: FailureKind, message: str) -> None:
        """End a run of this job whose worker died before it could write a state."""
        with lifecycle.locked(self.folder):
            state = read_state(self.folder)
            ours = state.launch_id == self.token and witness.owner(self.folder) is None
            if ours and state.state == RunState.RUNNING:
                state = lifecycle.with_lost_attempt(self.folder, state)  # it may have died long ago
                self._write_end(state, kind, message, lifecycle.progressed(self.folder, state))
                lifecycle.discard_claim(self.folder)

    def warn(self, number: int) -> None:
        """Pass a signal of the system on, with its reason. This is a signal handler; only the first signal counts."""
        if self.warning is not None:
            return
        self.warning = (FailureKind.PREEMPTED, lifecycle.signal_name(number))
        interrupted = FailureKind.PREEMPTED, "its launcher was interrupted"
        self.warning = interrupted if self.closed else self.reason(number)
        if self._process is None or self._process.poll() is not None:
            return
        owner = lifecycle.read_claim(self.folder)
        if owner is not None and lifecycle.is_here(owner) and owner.pid == self._process.pid:
            stop_request.send(self.folder, owner, *self.warning)
        else:
            self._process.terminate()  # it has not claimed the run yet

    # ------------------------------------------------------------ the run

    def _work(self) -> int:
        self._process = process.start(self.folder, self.record, self.shape.nodes, self.shape.devices)
        code = self._process.wait()
        if code != WorkerExit.BUSY:
            kind, message = lifecycle.of_exit(code, oom_killed=False)
            if self.warning is not None:
                self._replace_reason(*self.warning)
                kind, message = self.warning[0], f"{self.warning[1]}; {message}"
            self.end_if_silent(lifecycle.Witness(), kind, message)
        return code

    def _replace_reason(self, kind: FailureKind, message: str) -> None:
        """Put the reason into the state of a worker that the system's signal stopped before this process asked it."""
        with lifecycle.locked(self.folder):
            state = read_state(self.folder)
            ours = state.launch_id == self.token and lifecycle.live_claim(self.folder) is None
            if ours and state.state == RunState.PREEMPTED and (state.message or "").startswith("signal "):
                counts = Counter(state.failure_counts) - Counter([FailureKind.PREEMPTED])
                before = state.replace(failure_counts=dict(counts))
                self._write_end(before, kind, message, lifecycle.progressed(self.folder, state))

    def _fail_if_never_started(self) -> None:
        """If the time limit expires before training starts, the run fails; requeued, that would repeat for ever."""
        if self.warning is None or self.warning[0] != FailureKind.TIME_OUT:
            return
        with lifecycle.locked(self.folder):
            state = read_state(self.folder)
            if state.state == RunState.SUBMITTED and lifecycle.live_claim(self.folder) is None:
                message = f"{self.warning[1]}, before the run began"
                self._write_end(state, FailureKind.TIME_OUT, message, progressed=False)

    def _write_end(self, state: State, kind: FailureKind, message: str, progressed: bool) -> None:
        rules = launch_record.read(self.record).retry
        write_state(self.folder, lifecycle.ended(state, kind, message, rules, progressed))

    def _is_to_continue(self) -> bool:
        """Whether this job, which the system is about to end, is to resume the run later."""
        kind = self.warning and self.warning[0]
        if self.closed or kind not in (FailureKind.PREEMPTED, FailureKind.TIME_OUT):
            return False
        return read_state(self.folder).state in (RunState.PREEMPTED, RunState.SUBMITTED)


def main(kind: type[Task] = Task) -> int:
    """Execute the run of this job; the exit code."""
    began = time.monotonic()
    path = Path(sys.argv[1])
    array = json.loads(path.read_text(encoding="utf-8"))
    record = path.parent.parent.with_suffix(".json")
    folder = run_folder(record.parent.parent, array["runs"][int(os.environ[INDEX])])
    return kind(folder, record, Shape(**array["shape"]), array["settings"], began=began).execute()


if __name__ == "__main__":
    sys.exit(main())
