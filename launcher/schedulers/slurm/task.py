"""What a SLURM job executes: one frozen run, in a worker process, with SLURM's warnings passed on to it.

submitit starts this on the node. SLURM's signals reach the worker too, but they do not carry a reason. This process
asks SLURM for it, leaves the reason in the run's folder, and requeues its job if the run is to continue. No launcher is
needed for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from launcher.planning import resources
from launcher.run import claim, launch_record, lifecycle, stop_request, transitions
from launcher.run.folder import read_state, write_state
from launcher.run.lifecycle import FailureKind, RunState, WorkerExit
from launcher.run.records import State
from launcher.schedulers.slurm import queue
from launcher.worker import process

_CHECK_S = 1.0
# A requeued job is killed at once. How long to wait for that, and how often to ask while slurmctld is down.
_REQUEUE_S = 60.0
_ASK_AGAIN_S = 5.0
# SLURM may warn up to a minute too early.
_EARLY_S = 60.0


@dataclass
class Task:
    """A run to execute. `record` is the launch's file; `limit_s` is the job's time limit. Times are in seconds.

    devices: how many the job has asked for on each node, None in a job of a launcher that did not say so.
    """

    folder: str
    record: str
    train: str
    limit_s: float
    signal_delay_s: float
    devices: int | None = None
    _began: float = field(default=0.0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _warning: tuple[FailureKind, str] | None = field(default=None, init=False)

    def __call__(self) -> int:
        """Execute it. SystemExit has the worker's exit code if that is not 0, so that SLURM shows it."""
        self._began = time.monotonic()
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda received, _: self._warn(received))
        code = self._execute()
        self._fail_if_never_started()
        if self._is_to_continue():
            self._requeue()
        if code not in (WorkerExit.DONE, WorkerExit.BUSY):  # if the run is busy, the job has not failed
            raise SystemExit(code)
        return code

    @property
    def _run(self) -> Path:
        return Path(self.folder)

    @property
    def _token(self) -> str:
        return Path(self.record).stem

    @property
    def _closed(self) -> bool:
        return launch_record.closed(Path(self.record)).exists()

    def _execute(self) -> int:
        if int(os.environ.get("SLURM_RESTART_COUNT", 0)):
            self._finish_earlier_start()
        if self._closed or self._warning is not None:
            return WorkerExit.PREEMPTED
        nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
        self._process = process.start(self._run, Path(self.record), self._token, self.train, nodes, self.devices)
        code = self._process.wait()
        if code != WorkerExit.BUSY:
            kind, message = lifecycle.of_exit(code, oom_killed=False)
            if self._warning is not None:
                self._replace_reason(*self._warning)
                kind, message = self._warning[0], f"{self._warning[1]}; {message}"
            self._end_if_silent(claim.Witness(), kind, message)
        return code

    # ------------------------------------------------------------ signals

    def _warn(self, number: int) -> None:
        """Pass a signal of SLURM on, with its reason. This is a signal handler; only the first signal counts."""
        if self._warning is not None:
            return
        self._warning = (FailureKind.PREEMPTED, lifecycle.signal_name(number))
        self._warning = self._reason(number)
        if self._process is None or self._process.poll() is not None:
            return
        owner = claim.read_claim(self._run)
        if owner is not None and claim.is_here(owner) and owner.pid == self._process.pid:
            stop_request.send(self._run, owner, *self._warning)
        else:
            self._process.terminate()  # it has not claimed the run yet

    def _reason(self, number: int) -> tuple[FailureKind, str]:
        if self._closed:
            return FailureKind.PREEMPTED, "its launcher was interrupted"
        job = queue.show(_job_id())
        if job is not None and job.get("PreemptTime", "None") not in ("None", "Unknown"):
            return FailureKind.PREEMPTED, f"SLURM preempted its job {_job_id()} in {job.get('Partition')}"
        # SLURM also counts the time before this process started, such as that of `setup`.
        ran = resources.seconds(job.get("RunTime", "")) if job is not None else None
        left = self.limit_s - (ran or time.monotonic() - self._began)
        ended = job is not None and job.get("JobState") in ("COMPLETING", "CANCELLED") and number == signal.SIGTERM
        if ended and left > 0:
            return FailureKind.EXTERNALLY_CANCELLED, f"its job {_job_id()} was cancelled (scancel)"
        if left < self.signal_delay_s + _EARLY_S:
            return FailureKind.TIME_OUT, f"the time limit of its job {_job_id()}, {self.limit_s:g} s, expired"
        return FailureKind.PREEMPTED, f"{lifecycle.signal_name(number)} from SLURM"

    # ------------------------------------------------------------ the state of the run

    def _finish_earlier_start(self) -> None:
        """After a requeue: stop a worker of the earlier start that still runs, and write its end if it could not."""
        witness = claim.Witness()
        asked = False
        while self._warning is None and read_state(self._run).launch_id == self._token:
            owner = witness.owner(self._run)
            if owner is None:
                break
            if not asked:
                asked = True
                message = f"SLURM started its job {_job_id()} again elsewhere while it was still running"
                with claim.locked(self._run):
                    stop_request.send(self._run, owner, FailureKind.NODE_FAILURE, message)
            time.sleep(_CHECK_S)
        reason = queue.last_end(_job_id())
        kind = FailureKind.PREEMPTED if reason == "PREEMPTED" else FailureKind.NODE_FAILURE
        message = f"SLURM started its job {_job_id()} again ({reason or 'without saying why'})"
        self._end_if_silent(witness, kind, message)

    def _replace_reason(self, kind: FailureKind, message: str) -> None:
        """Put SLURM's reason into the state of a worker that SLURM's signal stopped before this process had asked."""
        with claim.locked(self._run):
            state = read_state(self._run)
            ours = state.launch_id == self._token and claim.live_claim(self._run) is None
            if ours and state.state == RunState.PREEMPTED and (state.message or "").startswith("signal "):
                counts = dict(state.failure_counts)
                counts[FailureKind.PREEMPTED] = counts.get(FailureKind.PREEMPTED, 1) - 1
                counts = {name: count for name, count in counts.items() if count}
                before = state.replace(failure_counts=counts)
                self._write_end(before, kind, message, transitions.progressed(self._run, state))

    def _end_if_silent(self, witness: claim.Witness, kind: FailureKind, message: str) -> None:
        """End a run of this job whose worker died before it could write a state."""
        with claim.locked(self._run):
            state = read_state(self._run)
            ours = state.launch_id == self._token and witness.owner(self._run) is None
            if ours and state.state == RunState.RUNNING:
                state = transitions.with_lost_attempt(self._run, state)  # it may have died long ago
                self._write_end(state, kind, message, transitions.progressed(self._run, state))
                claim.discard(self._run)

    def _fail_if_never_started(self) -> None:
        """If the time limit expires before training starts, the run fails; requeued, that would repeat for ever."""
        if self._warning is None or self._warning[0] != FailureKind.TIME_OUT:
            return
        with claim.locked(self._run):
            state = read_state(self._run)
            if state.state == RunState.SUBMITTED and claim.live_claim(self._run) is None:
                message = f"{self._warning[1]}, before the run began"
                self._write_end(state, FailureKind.TIME_OUT, message, progressed=False)

    def _write_end(self, state: State, kind: FailureKind, message: str, progressed: bool) -> None:
        rules = launch_record.read(Path(self.record)).retry
        write_state(self._run, transitions.ended(state, kind, message, rules, progressed))

    # ------------------------------------------------------------ requeueing

    def _is_to_continue(self) -> bool:
        """Whether this job, which SLURM is about to end, is to resume the run later."""
        if self._warning is None or self._closed:
            return False
        if self._warning[0] not in (FailureKind.PREEMPTED, FailureKind.TIME_OUT):
            return False
        return read_state(self._run).state in (RunState.PREEMPTED, RunState.SUBMITTED)

    def _requeue(self) -> None:
        """Requeue this job. If it ended instead while it is preempted, SLURM would report that it timed out."""
        end = time.monotonic() + _REQUEUE_S
        while time.monotonic() < end:
            if queue.ask(["scontrol", "requeue", _job_id()]) is not None:
                time.sleep(_REQUEUE_S)  # SLURM kills it
                return
            time.sleep(_ASK_AGAIN_S)


@dataclass(frozen=True)
class Report:
    """The reports on experiments, by their folders; executed after their runs."""

    experiments: list[str]

    def __call__(self) -> int:
        """Write them all. SystemExit: one could not be written."""
        command = [sys.executable, "-m", "analysis", "report", "--judge"]
        codes = [subprocess.run([*command, folder], check=False).returncode for folder in self.experiments]
        if any(codes):
            raise SystemExit(max(codes))
        return 0


def _job_id() -> str:
    """12, or 12_3 of an array, as squeue shows it. SLURM_JOB_ID of one task is the array's id, and means all tasks."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
