"""The program of a SLURM job: it executes a run, asks SLURM why a signal came, and requeues the job to go on later."""

from __future__ import annotations

import os
import signal
import sys
import time

from launcher.application import seconds
from launcher.run import lifecycle, stop_request
from launcher.run.lifecycle import FailureKind, read_state
from launcher.schedulers.batch import job
from launcher.schedulers.slurm import system

_CHECK_S = 1.0  # between two looks at a worker that is to stop
# How long to ask for a requeue, and then to wait until SLURM kills the job, which it does at once; and the time between
# two requests while slurmctld does not answer.
_REQUEUE_S = 60.0
_ASK_AGAIN_S = 5.0


class SlurmTask(job.Task):
    """A run to execute in a job of SLURM."""

    @property
    def job(self) -> str:
        return f"its job {_job_id()}"

    def prepare(self) -> None:
        """After a requeue, stop the worker of the earlier start if it still runs, and write its end if it could not."""
        if not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
            return
        witness, asked = lifecycle.Witness(), False
        while self.warning is None and read_state(self.folder).launch_id == self.token:
            if (owner := witness.owner(self.folder)) is None:
                break
            if not asked:
                asked = True
                message = f"SLURM started {self.job} again elsewhere while it was still running"
                with lifecycle.locked(self.folder):
                    stop_request.send(self.folder, owner, FailureKind.NODE_FAILURE, message)
            time.sleep(_CHECK_S)
        reason = system.last_end(_job_id())
        kind = FailureKind.PREEMPTED if reason == "PREEMPTED" else FailureKind.NODE_FAILURE
        self.end_if_silent(witness, kind, f"SLURM started {self.job} again ({reason or 'without saying why'})")

    def reason(self, number: int) -> tuple[FailureKind, str]:
        fields = system.show(_job_id()) or {}
        if fields.get("PreemptTime", "None") not in ("None", "Unknown"):
            return FailureKind.PREEMPTED, f"SLURM preempted {self.job} in {fields.get('Partition')}"
        # SLURM's time limit includes what came before this process, such as `setup`; so does its RunTime.
        ran_s = seconds(fields.get("RunTime", "")) or time.monotonic() - self.began
        ending = fields.get("JobState") in ("COMPLETING", "CANCELLED") and number == signal.SIGTERM
        if ending and ran_s < self.shape.time_s:
            return FailureKind.EXTERNALLY_CANCELLED, f"{self.job} was cancelled (scancel)"
        return self.time_out(ran_s) or super().reason(number)

    def requeue(self) -> None:
        """Requeue this job, and wait to be killed. SLURM would report a preempted job that exits as timed out."""
        deadline = time.monotonic() + _REQUEUE_S
        while time.monotonic() < deadline:
            if system.ask(["scontrol", "requeue", _job_id()]) is not None:
                time.sleep(_REQUEUE_S)  # SLURM kills it
                return
            time.sleep(_ASK_AGAIN_S)


def _job_id() -> str:
    """This job's id as squeue shows it: 12, or 12_3 in an array, where SLURM_JOB_ID may be the whole array's."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


if __name__ == "__main__":
    sys.exit(job.main(SlurmTask))
