"""What a SLURM job executes. It asks SLURM for the reason of a signal, and requeues itself if its run shall go on."""

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

_CHECK_S = 1.0
# A requeued job is killed at once. How long to wait for that, and how often to ask while slurmctld is down.
_REQUEUE_S = 60.0
_ASK_AGAIN_S = 5.0


class SlurmTask(job.Task):
    """A run in a job of SLURM."""

    @property
    def job(self) -> str:
        """What messages call this job."""
        return f"its job {_job_id()}"

    def prepare(self) -> None:
        """After a requeue: stop a worker of the earlier start that still runs, and write its end if it could not."""
        if not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
            return
        witness, asked = lifecycle.Witness(), False
        while self.warning is None and read_state(self.folder).launch_id == self.token:
            owner = witness.owner(self.folder)
            if owner is None:
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
        """Why SLURM sent this signal."""
        known = system.show(_job_id()) or {}
        if known.get("PreemptTime", "None") not in ("None", "Unknown"):
            return FailureKind.PREEMPTED, f"SLURM preempted {self.job} in {known.get('Partition')}"
        # SLURM also counts the time before this process started, such as that of `setup`.
        ran = seconds(known.get("RunTime", "")) or time.monotonic() - self.began
        ending = known.get("JobState") in ("COMPLETING", "CANCELLED") and number == signal.SIGTERM
        if ending and ran < self.shape.time_s:
            return FailureKind.EXTERNALLY_CANCELLED, f"{self.job} was cancelled (scancel)"
        return self.time_out(ran) or super().reason(number)

    def requeue(self) -> None:
        """Requeue this job. If it ended instead while it is preempted, SLURM would report that it timed out."""
        end = time.monotonic() + _REQUEUE_S
        while time.monotonic() < end:
            if system.ask(["scontrol", "requeue", _job_id()]) is not None:
                time.sleep(_REQUEUE_S)  # SLURM kills it
                return
            time.sleep(_ASK_AGAIN_S)


def _job_id() -> str:
    """12, or 12_3 of an array, as squeue shows it. SLURM_JOB_ID of one task is the array's id, and means all tasks."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


if __name__ == "__main__":
    sys.exit(job.main(SlurmTask))
