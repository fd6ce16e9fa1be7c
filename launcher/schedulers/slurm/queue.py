"""What SLURM says of jobs: squeue first, then sacct where there is accounting. It may say nothing for a while.

slurmctld may be away, slurmdbd may be away or may never have been there; then these functions return None, and what is
known stays what the run folders say.
"""

from __future__ import annotations

import getpass
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.run import lifecycle

# Away, slurmctld lets its callers wait for longer than one who watches runs may.
_ASK_S = 10.0
# Of a job in one of these nothing runs or will run again.
_OVER = {
    "BOOT_FAIL": lifecycle.NODE_FAILURE,
    "CANCELLED": lifecycle.REVOKED,
    "COMPLETED": lifecycle.LOST,
    "DEADLINE": lifecycle.TIME_OUT,
    "FAILED": lifecycle.LOST,
    "NODE_FAIL": lifecycle.NODE_FAILURE,
    "OUT_OF_MEMORY": lifecycle.OUT_OF_MEMORY,
    "PREEMPTED": lifecycle.PREEMPTED,
    "REVOKED": lifecycle.REVOKED,
    "TIMEOUT": lifecycle.TIME_OUT,
}


@dataclass(frozen=True)
class Job:
    """One job or array task, as SLURM shows it: `id` is 12 or 12_3; `node` is where it ran last, or empty."""

    id: str
    name: str
    state: str
    node: str
    reason: str

    @property
    def array(self) -> str:
        """The id of the job that the task belongs to."""
        return self.id.partition("_")[0]

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
        """Whether its processes are being ended; it is then over, or waits again, and SLURM does not say which."""
        return self.state == "COMPLETING"

    @property
    def stuck(self) -> bool:
        """Whether SLURM could not start it and holds it until somebody looks."""
        return self.state == "PENDING" and "launch failed" in self.reason

    @property
    def kind(self) -> str:
        """The cause (lifecycle.CAUSES) that its state stands for, where the run says none."""
        return lifecycle.NODE_FAILURE if self.stuck else _OVER.get(self.state, lifecycle.LOST)


def ask(command: Sequence[str], timeout: float = _ASK_S) -> str | None:
    """The output of one of SLURM's commands; None when it failed or did not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def mine(prefix: str) -> dict[str, Job] | None:
    """The user's jobs whose name begins so, by id: waiting, running, and for some minutes those that ended."""
    shown = "--format=%i|%j|%T|%N|%r"
    said = ask(["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", shown])
    if said is None:
        return None
    found = {}
    for line in said.splitlines():
        parts = line.split("|", 4)
        if len(parts) == 5 and parts[1].startswith(prefix):
            found[parts[0]] = Job(*parts)
    return found


def ended(ids: Iterable[str]) -> dict[str, Job]:
    """How accounting says that jobs ended which squeue has forgotten; empty without slurmdbd.

    Of one that it takes to be running still, it has lost the end: squeue knows better.
    """
    arrays = ",".join(sorted({one.partition("_")[0] for one in ids}))
    if not arrays:
        return {}
    wanted = "--format=JobID,JobName,State,NodeList,ExitCode"
    said = ask(["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={arrays}", wanted]) or ""
    found = {}
    for line in said.splitlines():
        name, title, state, node, code = [*line.split("|"), "", "", "", "", ""][:5]
        found[name] = Job(name, title, state.split(" ")[0], node, f"exit code {code}")
    return {name: job for name, job in found.items() if job.over}


def show(job: str, timeout: float = 5.0) -> Mapping[str, str] | None:
    """The fields of `scontrol show job`. Of an array's task, give 12_3: its own number may mean the whole array."""
    said = ask(["scontrol", "--oneliner", "show", "job", job], timeout)
    return None if said is None else dict(re.findall(r"(\S+?)=(\S*)", said))


def before(job: str) -> str | None:
    """How accounting says that a requeued job's last start ended; None when it does not say."""
    said = ask(
        ["sacct", "--allocations", "--noheader", "--parsable2", "--duplicates", f"--jobs={job}", "--format=State"]
    )
    states = [line.split(" ")[0] for line in (said or "").splitlines()]
    known = [state for state in states if state in _OVER or state == "REQUEUED"]
    return known[-1] if known else None


def limits() -> Mapping[str, str]:
    """slurmctld's configuration, by key; empty when it does not answer."""
    said = ask(["scontrol", "show", "config"]) or ""
    return dict(re.findall(r"^(\S+)\s*= (.*)$", said, re.MULTILINE))
