"""What a SLURM job executes: one frozen run, in a worker of its own, with SLURM's warnings passed on to it.

submitit starts this on the node. The worker's process tree gets SLURM's signals too, but they do not say why they come:
this asks SLURM, leaves the cause in the run's folder, and takes the job's place in the queue again where the run is to
go on. It needs no launcher that lives.
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
from launcher.run import claim, launch_record, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.schedulers.slurm import queue
from launcher.worker import process, worker

_LOOK_S = 1.0
# A requeued job is killed at once; how long to wait for that, and how often to ask while slurmctld is away.
_REQUEUE_S = 60.0
_ASK_AGAIN_S = 5.0
# SLURM may warn up to a minute too early.
_EARLY_S = 60.0


@dataclass
class Task:
    """A run to do. `record` is the launch's file, `limit_s` the job's time limit, both times in seconds."""

    folder: str
    record: str
    train: str
    limit_s: float
    signal_delay_s: float
    _began: float = field(default=0.0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _warned: tuple[str, str] | None = field(default=None, init=False)

    def __call__(self) -> int:
        """Do it. SystemExit carries the worker's exit code where that is not 0, so that SLURM shows it."""
        self._began = time.monotonic()
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda got, _: self._warn(got))
        code = self._do()
        self._never_began()
        if self._goes_on():
            self._requeue()
        if code not in (worker.EXIT_DONE, worker.EXIT_BUSY):  # of a busy run the job has nothing to say
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

    def _do(self) -> int:
        if int(os.environ.get("SLURM_RESTART_COUNT", 0)):
            self._follow_up()
        if self._closed or self._warned is not None:
            return worker.EXIT_PREEMPTED
        self._process = process.start(self._run, Path(self.record), self._token, self.train)
        code = self._process.wait()
        self._settle(code)
        return code

    # ------------------------------------------------------------ signals

    def _warn(self, number: int) -> None:
        """Pass a signal of SLURM's on, with its cause. Runs in a signal handler: the first one counts."""
        if self._warned is not None:
            return
        self._warned = (lifecycle.PREEMPTED, f"signal {number} ({signal.Signals(number).name})")
        self._warned = self._why(number)
        if self._process is None or self._process.poll() is not None:
            return
        owner = claim.read_claim(self._run)
        if owner is not None and claim.is_here(owner) and owner.pid == self._process.pid:
            stop_request.send(self._run, owner, *self._warned)
        else:
            self._process.terminate()  # not begun yet

    def _why(self, number: int) -> tuple[str, str]:
        name = f"signal {number} ({signal.Signals(number).name})"
        if self._closed:
            return lifecycle.PREEMPTED, "its launcher was interrupted"
        job = queue.show(_job_id())
        if job is not None and job.get("PreemptTime", "None") not in ("None", "Unknown"):
            return lifecycle.PREEMPTED, f"SLURM preempted its job {_job_id()} in {job.get('Partition')}"
        # SLURM also counts what was before this process, as `setup`.
        ran = resources.seconds(job.get("RunTime", "")) if job is not None else None
        left = self.limit_s - (ran or time.monotonic() - self._began)
        ended = job is not None and job.get("JobState") in ("COMPLETING", "CANCELLED") and number == signal.SIGTERM
        if ended and left > 0:
            return lifecycle.REVOKED, f"its job {_job_id()} was cancelled (scancel)"
        if left < self.signal_delay_s + _EARLY_S:
            return lifecycle.TIME_OUT, f"the time limit of {self.limit_s:g} s of its job {_job_id()}"
        return lifecycle.PREEMPTED, f"{name} from SLURM"

    # ------------------------------------------------------------ an earlier start of this job

    def _follow_up(self) -> None:
        """After a requeue: let an orphan of the earlier start stop, and say how that ended where it could not."""
        witness = claim.Witness()
        asked = False
        while self._warned is None and folders.read_state(self._run).job == self._token:
            owner = witness.owner(self._run)
            if owner is None:
                break
            if not asked:
                asked = True
                cause = f"SLURM started its job {_job_id()} again elsewhere while it was still running"
                with claim.locked(self._run):
                    stop_request.send(self._run, owner, lifecycle.NODE_FAILURE, cause)
            time.sleep(_LOOK_S)
        said = queue.before(_job_id())
        kind = lifecycle.PREEMPTED if said == "PREEMPTED" else lifecycle.NODE_FAILURE
        self._speak_for(witness, kind, f"SLURM started its job {_job_id()} again ({said or 'without saying why'})")

    def _settle(self, code: int) -> None:
        """Say how the worker ended, where it could not."""
        if code == worker.EXIT_BUSY:
            return
        kind, cause = lifecycle.of_exit(code, oom_killed=False)
        if self._warned is not None:
            self._explain(*self._warned)
            kind, cause = self._warned[0], f"{self._warned[1]}; {cause}"
        elif code == worker.EXIT_DISK_FULL:
            kind, cause = lifecycle.DISK_FULL, "no space left, not even for the run's state"
        self._speak_for(claim.Witness(), kind, cause)

    def _explain(self, kind: str, cause: str) -> None:
        """Of a worker that SLURM's own signal has stopped before this had asked SLURM: put its cause into the state."""
        with claim.locked(self._run):
            state = folders.read_state(self._run)
            mine = state.job == self._token and claim.live_claim(self._run) is None
            if not mine or state.state != folders.PREEMPTED or not (state.cause or "").startswith("signal "):
                return
            ends = {**state.ends, lifecycle.PREEMPTED: state.ends.get(lifecycle.PREEMPTED, 1) - 1}
            before = state.but(ends={name: count for name, count in ends.items() if count})
            rules = launch_record.read(Path(self.record)).retry
            further = lifecycle.progressed(self._run, state)
            folders.write_state(self._run, lifecycle.ended(before, kind, cause, rules, further))

    def _speak_for(self, witness: claim.Witness, kind: str, cause: str) -> None:
        with claim.locked(self._run):
            state = folders.read_state(self._run)
            if state.state != folders.RUNNING or state.job != self._token or witness.owner(self._run) is not None:
                return
            rules = launch_record.read(Path(self.record)).retry
            further = lifecycle.progressed(self._run, state)
            folders.write_state(self._run, lifecycle.ended(state, kind, cause, rules, further))
            claim.discard(self._run)

    def _never_began(self) -> None:
        """End a run for which the time limit leaves no time: in the queue again, it would come to this for ever."""
        if self._warned is None or self._warned[0] != lifecycle.TIME_OUT:
            return
        with claim.locked(self._run):
            state = folders.read_state(self._run)
            if state.state == folders.SUBMITTED and claim.live_claim(self._run) is None:
                cause = f"{self._warned[1]}, before the run began"
                rules = launch_record.read(Path(self.record)).retry
                folders.write_state(
                    self._run, lifecycle.ended(state, lifecycle.TIME_OUT, cause, rules, progressed=False)
                )

    # ------------------------------------------------------------ going on

    def _goes_on(self) -> bool:
        """Whether this job, which SLURM wants to end, is to take the run up again later."""
        if self._warned is None or self._warned[0] not in (lifecycle.PREEMPTED, lifecycle.TIME_OUT) or self._closed:
            return False
        state: State = folders.read_state(self._run)
        return state.state in (folders.PREEMPTED, folders.SUBMITTED)

    def _requeue(self) -> None:
        """Wait in SLURM's queue again: of a job that ends while it is preempted SLURM says that it timed out."""
        end = time.monotonic() + _REQUEUE_S
        while time.monotonic() < end:
            if queue.ask(["scontrol", "requeue", _job_id()]) is not None:
                time.sleep(_REQUEUE_S)  # SLURM kills it
                return
            time.sleep(_ASK_AGAIN_S)


@dataclass(frozen=True)
class Report:
    """The reports of experiments, by their folders; run once their runs are over."""

    experiments: list[str]

    def __call__(self) -> int:
        """Write them all. SystemExit: one could not be written."""
        command = [sys.executable, "-m", "analysis", "report"]
        codes = [subprocess.run([*command, folder], check=False).returncode for folder in self.experiments]
        if any(codes):
            raise SystemExit(max(codes))
        return 0


def _job_id() -> str:
    """12, or 12_3 of an array, as squeue shows it. SLURM_JOB_ID of one task is the array's own, and means them all."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
