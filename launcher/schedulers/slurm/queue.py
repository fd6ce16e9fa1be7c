"""What SLURM knows of jobs: from squeue, and from sacct if there is accounting.

slurmctld may not answer for a while, and slurmdbd may not exist. These functions then return None or nothing, and only
the run folders tell how the runs are.
"""

from __future__ import annotations

import getpass
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.run.lifecycle import FailureKind

# While slurmctld is down, its commands wait for longer than the launcher may.
_ASK_S = 10.0
# In these states a job has ended for good.
_OVER = {
    "BOOT_FAIL": FailureKind.NODE_FAILURE,
    "CANCELLED": FailureKind.EXTERNALLY_CANCELLED,
    "COMPLETED": FailureKind.LOST,
    "DEADLINE": FailureKind.TIME_OUT,
    "FAILED": FailureKind.LOST,
    "NODE_FAIL": FailureKind.NODE_FAILURE,
    "OUT_OF_MEMORY": FailureKind.OUT_OF_MEMORY,
    "PREEMPTED": FailureKind.PREEMPTED,
    "REVOKED": FailureKind.EXTERNALLY_CANCELLED,
    "TIMEOUT": FailureKind.TIME_OUT,
}


@dataclass(frozen=True)
class Job:
    """One job or array task: `id` is 12 or 12_3; `node` is where it ran last, or empty."""

    id: str
    name: str
    state: str
    node: str
    reason: str

    @property
    def index(self) -> int:
        """The task's place in its array; 0 for a single job."""
        return int(self.id.partition("_")[2] or 0)

    @property
    def over(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in _OVER

    @property
    def ending(self) -> bool:
        """Whether its processes are being ended. It has then ended, or waits again; SLURM does not say which."""
        return self.state == "COMPLETING"

    @property
    def stuck(self) -> bool:
        """Whether SLURM could not start it, and holds it until a person releases it."""
        return self.state == "PENDING" and "launch failed" in self.reason

    @property
    def failure_kind(self) -> FailureKind:
        """The failure kind of its state, used if the run itself recorded no reason."""
        return FailureKind.NODE_FAILURE if self.stuck else _OVER.get(self.state, FailureKind.LOST)


def ask(command: Sequence[str], timeout: float = _ASK_S) -> str | None:
    """The output of one of SLURM's commands; None when it failed or did not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def mine(prefix: str) -> dict[str, Job] | None:
    """By id, the user's jobs whose names begin with `prefix`: waiting and running ones, and for some minutes ended
    ones."""
    shown = "--format=%i|%j|%T|%N|%r"
    output = ask(["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", shown])
    if output is None:
        return None
    rows = (line.split("|", 4) for line in output.splitlines())
    return {row[0]: Job(*row) for row in rows if len(row) == 5 and row[1].startswith(prefix)}


def ended(names: Mapping[str, str]) -> dict[str, Job]:
    """How jobs ended that squeue no longer shows, from accounting; empty without slurmdbd. `names`: by job id.

    slurmctld may use an id again, so a job of another name is ignored. A job that accounting takes to be running has
    lost its end there; it is ignored too.
    """
    if not names:
        return {}
    arrays = ",".join(sorted({job.partition("_")[0] for job in names}))
    columns = "--format=JobID,JobName,State,NodeList,ExitCode"
    output = ask(["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={arrays}", columns]) or ""
    jobs = {}
    for line in output.splitlines():
        job, name, state, node, code = [*line.split("|"), "", "", "", "", ""][:5]
        jobs[job] = Job(job, name, state.split(" ")[0], node, f"exit code {code}")
    return {job.id: job for job in jobs.values() if job.over and names.get(job.id) == job.name}


def show(job: str, timeout: float = 5.0) -> Mapping[str, str] | None:
    """The fields of `scontrol show job`. `job`: 12_3 for an array's task; its own number may mean the whole array."""
    output = ask(["scontrol", "--oneliner", "show", "job", job], timeout)
    return None if output is None else dict(re.findall(r"(\S+?)=(\S*)", output))


def last_end(job: str) -> str | None:
    """How the last start of a requeued job ended, from accounting; None if it is not known."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--duplicates", f"--jobs={job}", "--format=State"]
    states = [line.split(" ")[0] for line in (ask(command) or "").splitlines()]
    known = [state for state in states if state in _OVER or state == "REQUEUED"]
    return known[-1] if known else None


def limits() -> Mapping[str, str]:
    """slurmctld's configuration, by key; empty if it does not answer."""
    output = ask(["scontrol", "show", "config"]) or ""
    return dict(re.findall(r"^(\S+)\s*= (.*)$", output, re.MULTILINE))
