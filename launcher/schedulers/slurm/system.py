"""SLURM as a batch system: sbatch with submitit's scripts, squeue, sacct if there is accounting, and scancel.

slurmctld may not answer for a while, and slurmdbd may not exist. These functions then return None or nothing.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from launcher.application import seconds
from launcher.project import output_of
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.batch.system import Array, Job, Phase, Refusal, Refused, Unanswered
from launcher.text import one_line

NAME = "SLURM"
PROGRAM = "launcher.schedulers.slurm.job"
#: How long sbatch may take: it may submit jobs and not return. After the second time, the user is told.
LIMIT_S, TELL_S = 60.0, 10.0
#: The options of sbatch that `parameters` and submitit set; another value would break the arrays, logs or warnings.
OURS = frozenset(
    {
        *("array", "chdir", "cpus-per-task", "dependency", "error", "export", "gpus-per-node", "job-name", "mem"),
        *("no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal"),
        *("test-only", "time", "wait", "wrap"),
    }
)
# While slurmctld is down, its commands wait for longer than the launcher may.
_ASK_S = 10.0
# Variables that are options of SLURM's commands or tell of a launcher's own job; the others only say where SLURM is.
_OPTIONS = re.compile(
    r"(SBATCH|SCANCEL|SACCT|SCONTROL|SLURM|SLURMD|SQUEUE|SRUN|SUBMITIT)_.*|MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)"
)
_KEPT = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# The exit codes of `timeout`; the last two if it had to kill the command.
_TIMED_OUT = (124, 137, -9)
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
# Why a job waits that somebody has to change before it starts.
_HELD = (
    *("AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "JobHeldAdmin", "JobHeldUser"),
    *("PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed"),
)
# sbatch's words when a user may not have more jobs now.
_LIMITED = ("submit limit", "MaxSubmit", "job count")
# Its words when slurmctld is down, and when it ends during the request: SLURM's own for a message, the system's for a
# connection.
_LATER = (
    *("Unable to contact", "timed out", "temporarily", "standby mode"),
    *("Zero Bytes", "send failure", "receive failure", "connection failure"),
    *map(os.strerror, (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE, errno.EHOSTUNREACH)),
)
# SLURM's names for limits on the number of jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit and others): they
# let jobs in again when others have left, also those of other launches and other users.
_SUBMIT_LIMIT = "SubmitJob"


def submit(array: Array) -> list[str]:
    """Submit jobs; their ids: 12, or 12_3 in an array."""
    script = _script(array)
    (array.logs / f"{array.name}.sh").write_text(script, encoding="utf-8")  # for the user
    said = _sbatch(script)
    if (match := re.search(r"job (\d+)", said)) is None:
        raise Refused(f'Could not make sense of sbatch output "{one_line(said)}"')
    return [f"{match[1]}_{index}" for index in range(array.size)] if array.size > 1 else [match[1]]


def refusal(array: Array) -> str | None:
    """What sbatch says when it would refuse an array, or None if it would accept it, now or when other jobs have ended.

    Submits nothing. Unanswered: it does not return.
    """
    try:
        _sbatch(_script(array), "--test-only")
    except Refused as refused:
        temporary = refused.refusal == Refusal.TOO_MANY or (refused.refusal == Refusal.NOW and limits())
        return None if temporary else str(refused)
    return None


def jobs(prefix: str) -> dict[str, Job] | None:
    """By id, the user's jobs whose names begin with `prefix`, for some minutes also ended ones."""
    shown = "--format=%i|%j|%T|%N|%r"
    output = ask(["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", shown])
    if output is None:
        return None
    rows = (line.split("|", 4) for line in output.splitlines())
    return {row[0]: _job(*row) for row in rows if len(row) == 5 and row[1].startswith(prefix)}


def ended(names: Mapping[str, str]) -> dict[str, Job]:
    """How jobs ended that squeue no longer shows, from accounting; empty without slurmdbd.

    A job that accounting takes to be running has lost its end there; it is ignored.
    """
    arrays = ",".join(sorted({job.partition("_")[0] for job in names}))
    columns = "--format=JobID,JobName,State,NodeList,ExitCode"
    output = ask(["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={arrays}", columns]) or ""
    rows = (line.split("|") for line in output.splitlines())
    # The waiting jobs of an array are one row, 12_[3-5].
    rows = (row for row in rows if len(row) == 5 and names.get(row[0]) == row[1])
    past = [_job(row[0], row[1], row[2].split(" ")[0], row[3], f"exit code {row[4]}") for row in rows]
    return {job.id: job for job in past if job.over}


def cancel(names: Mapping[str, str], waiting: bool) -> None:
    """Cancel jobs by id and name. The list is cut, because a command line has a limited length.

    scancel is given ids alone: with --name or --state it cancels all waiting jobs of an array for one of them.
    """
    shown = {id: job for id, job in (jobs("") or {}).items() if job.name == names.get(id) and not job.over}
    ids = [id for id, job in shown.items() if not waiting or job.phase in (Phase.WAITING, Phase.HELD, Phase.STUCK)]
    for at in range(0, len(ids), 500):
        ask(["scancel", *ids[at : at + 500]])


# ---------------------------------------------------------------- sbatch


def parameters(array: Array) -> dict[str, Any]:
    """submitit's parameters for an array, apart from the number of its jobs."""
    settings, shape = array.settings, array.shape
    given = {key: settings[key] for key in ("partition", "account", "qos", "constraint") if settings[key] is not None}
    if shape.devices:
        kind = f"{settings['gpu_type']}:" if settings["gpu_type"] else ""
        given["gpus_per_node"] = f"{kind}{shape.devices}"
    if shape.memory_gb:
        given["mem"] = f"{math.ceil(shape.memory_gb * 1e9 / 2**20)}M"
    if array.after:
        given["dependency"] = f"afterany:{':'.join(array.after)}"
    extras = {key: value for key, value in (settings["sbatch"] or {}).items() if value is not False}
    if exclude := [*map(str, filter(None, [extras.pop("exclude", None)])), *sorted(array.exclude)]:
        given["exclude"] = ",".join(exclude)
    return {
        **given,
        "job_name": array.name,
        "nodes": shape.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": shape.cpus,
        "time": math.ceil(shape.time_s / 60),
        "signal_delay_s": settings["signal_delay_s"],
        "stderr_to_stdout": True,
        "array_parallelism": array.throttle,
        "setup": array.preparation("${SLURM_ARRAY_TASK_ID:-0}"),
        "use_srun": False,  # `_command` calls it
        "additional_parameters": {**extras, "output": _log(array), "requeue": True},
    }


def _script(array: Array) -> str:
    """What sbatch is given."""
    executor = SlurmExecutor(array.logs)
    executor.update_parameters(**parameters(array))
    if array.size > 1:
        executor.parameters["map_count"] = array.size
    return executor._make_submission_file_text(_command(array), "")


def _command(array: Array) -> str:
    """The job's command in one process on the first node. What it starts on the others shares its devices.

    It ignores SIGUSR2 until Python handles it: SLURM's early warning would kill a job that is still starting. A task
    that it ends had not come to that yet, and begins again.
    """
    srun = ["srun", "--unbuffered", "--output", _log(array), "--open-mode=append", "--nodes=1", "--ntasks=1"]
    task = shlex.join([*srun, "--overlap", "sh", "-c", 'trap "" USR2; exec "$0" "$@"', *array.command])
    return f"while {task}; code=$?; [ $code -eq {128 + signal.SIGUSR2} ]; do :; done; exit $code"


def _log(array: Array) -> str:
    """A pattern of SLURM, in which %% stands for %."""
    return str(array.logs).replace("%", "%%") + ("/%A_%a.log" if array.size > 1 else "/%j.log")


def _sbatch(script: str, *options: str) -> str:
    """What sbatch says, which is ended after LIMIT_S, with what it has started. Raises Refused and Unanswered."""
    words = f"waiting for sbatch, which has not returned for {TELL_S:g} s; it is ended after {LIMIT_S:g} s"
    timer = threading.Timer(TELL_S, lambda: print(words, file=sys.stderr, flush=True))
    timer.start()
    timeout = shutil.which("timeout", path=f"{os.environ.get('PATH', '')}:{os.defpath}") or "timeout"
    command = [timeout, "-k", "5", str(LIMIT_S), "sbatch", *options]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, env=environment())
    finally:
        timer.cancel()
    if done.returncode in _TIMED_OUT:
        raise Unanswered(f"sbatch did not return within {LIMIT_S:g} s")
    if done.returncode != 0:
        why = one_line(done.stderr) or f"exit code {done.returncode} without a message"
        raise Refused(why, _refusal(why))
    return done.stdout


def _refusal(why: str) -> Refusal:
    if any(word in why for word in _LIMITED):
        return Refusal.TOO_MANY if _SUBMIT_LIMIT in why else Refusal.LIMIT
    return Refusal.NOW if any(word in why for word in _LATER) else Refusal.NEVER


# ---------------------------------------------------------------- what SLURM knows


def _job(id: str, name: str, state: str, node: str, reason: str) -> Job:
    phase = {"PENDING": Phase.WAITING, "COMPLETING": Phase.ENDING, "FAILED": Phase.FAILED}.get(state, Phase.RUNNING)
    kind = _OVER.get(state, FailureKind.LOST)
    if state in _OVER and phase != Phase.FAILED:
        phase = Phase.ENDED
    elif state == "PENDING" and "launch failed" in reason:
        phase, kind = Phase.STUCK, FailureKind.NODE_FAILURE
    elif state == "PENDING" and reason in _HELD:
        phase = Phase.HELD
    detail = f" ({reason})" if reason not in ("", "None") else ""
    words = "scancel" if state == "CANCELLED" else f"{state}{detail}"
    return Job(id, name, int(id.partition("_")[2] or 0), phase, kind, words, node)


def environment() -> dict[str, str]:
    """The variables of SLURM's commands: the user's, without those that would replace the launcher's options."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or not _OPTIONS.fullmatch(name)}


def ask(command: Sequence[str], timeout: float = _ASK_S) -> str | None:
    """The output of one of SLURM's commands; None when it failed or did not answer in time."""
    output = output_of(command, timeout, environment())
    return None if output is None else output.decode()


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


def longest_s(partition: str | None) -> float:
    """The longest time limit of these partitions, or of the default; infinite if there is none, or it is not known."""
    lines = (ask(["scontrol", "--oneliner", "show", "partition"]) or "").splitlines()
    shown = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]
    names = partition.split(",") if partition else [one["PartitionName"] for one in shown if one["Default"] == "YES"]
    times = (seconds(one["MaxTime"]) or math.inf for one in shown if one["PartitionName"] in names)
    return max(times, default=math.inf)


def limits() -> Mapping[str, str]:
    """slurmctld's configuration, by key; empty if it does not answer."""
    return dict(re.findall(r"^(\S+)\s*= (.*)$", ask(["scontrol", "show", "config"]) or "", re.MULTILINE))
