"""Job arrays: runs of one resource shape, submitted together through submitit.

    multirun/launches/<token>/arrays/<n>.json    the runs of array n in their order, written before sbatch

An array's name has the launch's token and n; that of an array with a single run also has the run's id. Therefore the
run of a job in the queue is known even if the launcher that submitted it died before it could write down the job's id.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from submitit.core.utils import (
    DelayedSubmission,
    FailedJobError,
    FailedSubmissionError,
    JobPaths,
    temporary_save_path,
)
from submitit.helpers import clean_env
from submitit.slurm.slurm import SlurmExecutor

from launcher import files
from launcher.planning import resources
from launcher.planning.plan import Plan
from launcher.planning.resources import Shape
from launcher.project import PACKAGES
from launcher.run import launch_record
from launcher.schedulers.protocol import SchedulerError
from launcher.schedulers.slurm.task import Report, Task
from launcher.text import one_line

PREFIX = "rlsweep-"
#: What submitit raises if sbatch refuses.
REFUSED = (FailedJobError, FailedSubmissionError, OSError)
#: How long sbatch may take: it may submit jobs and not return. After the second time, the user is told.
LIMIT_S, TELL_S = 60.0, 10.0
# The exit codes of `timeout`; the last two if it had to kill the command.
_TIMED_OUT = (124, 137, -9)
_NAME = re.compile(rf"{PREFIX}([0-9a-f]+)-(\d+)(-[0-9a-f]+)?")
# The launcher sets these itself; another value would break its arrays, logs or warnings.
OURS = frozenset(
    {
        *("array", "chdir", "cpus-per-task", "dependency", "error", "export", "gpus-per-node", "job-name", "mem"),
        *("no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal"),
        *("test-only", "time", "wait", "wrap"),
    }
)


def shapes(plan: Plan, run_ids: Sequence[str]) -> dict[Shape, list[str]]:
    """These runs by their resources, in the plan's order."""
    runs: dict[Shape, list[str]] = {}
    for run_id in run_ids:
        runs.setdefault(resources.shape(plan.runs[run_id].config), []).append(run_id)
    return runs


def parameters(settings: Mapping[str, Any], shape: Shape, code: Path) -> dict[str, Any]:
    """submitit's parameters for one shape; `settings` is the plan's section `cluster`."""
    extras = {key: value for key, value in (settings["sbatch"] or {}).items() if value is not False}
    given = {key: settings[key] for key in ("partition", "account", "qos", "constraint") if settings[key] is not None}
    if shape.devices:
        kind = f"{settings['gpu_type']}:" if settings["gpu_type"] else ""
        given["gpus_per_node"] = f"{kind}{shape.devices}"
    if shape.memory_gb:
        given["mem"] = f"{math.ceil(shape.memory_gb * 1e9 / 2**20)}M"
    return {
        **given,
        "nodes": shape.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": shape.cpus,
        "time": math.ceil(shape.time_s / 60),
        "signal_delay_s": settings["signal_delay_s"],
        "stderr_to_stdout": True,
        "setup": [*settings["setup"], f"export PYTHONPATH=$PWD:$PWD/{PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}}"],
        # One process starts the run, on the first node. What it starts on the other nodes shares its devices.
        "srun_args": ["--nodes=1", "--ntasks=1", "--overlap"],
        "additional_parameters": {**extras, "chdir": str(code), "requeue": True},
    }


def refusal(given: Mapping[str, Any], folder: Path) -> str | None:
    """What sbatch says when it would refuse a request, or None if it would accept it. Submits nothing.

    SchedulerError: it does not return.
    """
    executor = _executor(folder)
    executor.update_parameters(**given, job_name=f"{PREFIX}test")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(executor._make_submission_file_text("true", "test"))
        file.flush()
        with _telling():
            done = subprocess.run([*_sbatch(), "--test-only", file.name], capture_output=True, text=True, check=False)
    if done.returncode in _TIMED_OUT:
        fix = "try again when `sbatch --test-only` returns, or choose another cluster"
        raise SchedulerError(f"`sbatch --test-only` did not return within {LIMIT_S:g} s. Fix: {fix}")
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode} without a message"


def _sbatch() -> list[str]:
    """sbatch, which is ended after LIMIT_S, with what it has started."""
    program = shutil.which("timeout", path=f"{os.environ.get('PATH', '')}:{os.defpath}")
    return [program, "-k", "5", str(LIMIT_S), "sbatch"] if program else ["sbatch"]


# submitit makes the executor of an array itself, so a subclass would not be asked.
setattr(SlurmExecutor, "_make_submission_command", lambda _, file: [*_sbatch(), str(file)])  # noqa: B010


@contextmanager
def _telling() -> Iterator[None]:
    """Say what the launcher waits for if sbatch takes long."""
    words = f"waiting for sbatch, which has not returned for {TELL_S:g} s; it is ended after {LIMIT_S:g} s"
    timer = threading.Timer(TELL_S, lambda: print(words, file=sys.stderr, flush=True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def timed_out(error: BaseException) -> bool:
    """Whether sbatch did not return. It may have submitted the jobs."""
    return getattr(error.__cause__, "returncode", None) in _TIMED_OUT


def why(error: BaseException) -> str:
    """Why sbatch refused, in one line: what it said, or its exit code."""
    if timed_out(error):
        return f"it did not return within {LIMIT_S:g} s"
    return one_line(str(error)) or f"exit code {getattr(error.__cause__, 'returncode', '?')} without a message"


def _executor(folder: Path) -> SlurmExecutor:
    return SlurmExecutor(folder, python=python_of_jobs())


def python_of_jobs() -> str:
    """The command that starts Python in a job. SIGUSR2 is ignored until Python handles it, because SLURM's early
    warning would kill a job that is still starting."""
    return shlex.join(["sh", "-c", 'trap "" USR2; exec "$0" "$@"', sys.executable])


class Arrays:
    """The arrays of the launch with this record; their files are in multirun/launches/<token>."""

    def __init__(self, record: Path) -> None:
        self._record, self._folder = record, record.with_suffix("")

    def submit(
        self, runs: Sequence[Path], given: Mapping[str, Any], throttle: int, task: Mapping[str, Any]
    ) -> tuple[str, list[str]]:
        """Submit run folders as one array, `throttle` at a time; the jobs' name, and each run's job id.

        One of REFUSED: sbatch did not accept it.
        """
        lists = self._folder / "arrays"
        lists.mkdir(parents=True, exist_ok=True)
        number = len(list(lists.iterdir()))
        files.write_json(lists / f"{number}.json", [folder.name for folder in runs])
        executor = _executor(self._folder / "jobs")
        name = f"{PREFIX}{self._record.stem}-{number}" + (f"-{runs[0].name}" if len(runs) == 1 else "")
        executor.update_parameters(**given, job_name=name, array_parallelism=throttle)
        tasks = [Task(folder=str(folder.absolute()), record=str(self._record), **task) for folder in runs]
        with _outside():
            return name, [str(job.job_id) for job in executor.submit_array(tasks)]

    def complete(self, token: str, job: str, task: Task) -> None:
        """Write the task of an adopted job if its launcher was killed between sbatch and that."""
        path = JobPaths(self._record.with_name(token) / "jobs", job_id=job).submitted_pickle
        if not path.exists():
            submission = DelayedSubmission(task)
            submission.set_timeout(math.ceil(task.limit_s / 60), 0)
            with temporary_save_path(path) as aside:
                submission.dump(aside)

    def report(self, experiments: Sequence[Path], given: Mapping[str, Any], after: Sequence[str]) -> str:
        """Submit a job that reports on these experiments' folders after other jobs have ended; its id."""
        executor = _executor(self._folder / "jobs")
        executor.update_parameters(**given, job_name=f"{PREFIX}report", dependency=f"afterany:{':'.join(after)}")
        with _outside():
            return str(executor.submit(Report([str(folder) for folder in experiments])).job_id)


@contextmanager
def _outside() -> Iterator[None]:
    """Say if sbatch takes long. If the launcher itself runs in a job of SLURM, keep that job's variables from the jobs
    that it submits."""
    configuration = os.environ.get("SLURM_CONF")
    with clean_env() if "SLURM_JOB_ID" in os.environ else nullcontext(), _telling():
        if configuration:
            os.environ["SLURM_CONF"] = configuration
        yield


def run_of(multirun: Path, name: str, index: int) -> tuple[str, str] | None:
    """The launch's token and the run of a job, by its name and its index in the array; None if the job is another's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    path = launch_record.launches_folder(multirun) / match.group(1) / "arrays" / f"{match.group(2)}.json"
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return (match.group(1), str(runs[index])) if index < len(runs) else None
