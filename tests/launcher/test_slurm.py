"""SLURM's side of a run, where it needs no SLURM: what a signal comes to, and when. tests/cluster has the rest."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from submitit.core.utils import FailedJobError

from launcher import files
from launcher.config import content
from launcher.planning import freeze
from launcher.planning.resources import Shape
from launcher.project import PACKAGES
from launcher.run import claim, launch_record
from launcher.run.folder import metrics_path, read_config, read_state, run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RunState, WorkerExit
from launcher.schedulers.protocol import SchedulerError
from launcher.schedulers.registry import Order
from launcher.schedulers.slurm import arrays, cluster, code_snapshot
from launcher.schedulers.slurm.scheduler import Slurm
from launcher.schedulers.slurm.task import Task
from launcher.worker import worker
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make
from tests.launcher.made import make_run, read_log
from tests.waiting import DEADLINE


def test_a_job_lives_through_a_signal_that_comes_before_it_can_heed_it():
    python = arrays.python_of_jobs()
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    job = subprocess.Popen(f'exec {python} -u -c "{code}"', shell=True, **pipes)
    assert job.stdout.readline() == "up\n"
    os.kill(job.pid, signal.SIGUSR2)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == 0


@pytest.fixture
def slurm_job(monkeypatch):
    """A process that is task 3 of a job array, whose own number is the array's, on a machine without SLURM."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    for key, value in {"JOB_ID": "12", "ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3", "RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    monkeypatch.setenv("PATH", "/nonexistent")
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_run_for_which_the_time_limit_leaves_no_time_fails_and_says_so(tmp_path, slurm_job):
    launch = Launch(retry={"time_out": None})
    folder = make_run(tmp_path, "short", RunState.SUBMITTED, steps=0, launch_id=launch.token)
    task = Task(
        str(folder), str(launch_record.write(tmp_path, launch)), "nothing:trains", limit_s=60, signal_delay_s=59
    )
    task._warn(signal.SIGUSR2)
    with pytest.raises(SystemExit):
        task()
    state = read_state(folder)
    assert (state.state, state.failure_kind, state.attempt) == ("failed", "time_out", 0)
    assert state.message == "the time limit of its job 12_3, 60 s, expired, before the run began"


@pytest.fixture
def adopting(tmp_path, monkeypatch):
    """A scheduler with one run whose job 7 another launch submitted, that launch's token, and a fake SLURM.

    squeue and sacct print the files of their names; scancel appends its arguments to one.
    """
    programs, earlier, launch = tmp_path / "bin", Launch(), Launch()
    programs.mkdir()
    for name, script in (("squeue", "/bin/cat {}"), ("sacct", "/bin/cat {}"), ("scancel", 'echo "$@" >> {}')):
        (tmp_path / name).touch()
        (programs / name).write_text(f"#!/bin/sh\n{script.format(tmp_path / name)}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    kept = launch_record.write(tmp_path, earlier).with_suffix("")
    (kept / "arrays").mkdir(parents=True)
    (kept / "jobs").mkdir()
    files.write_json(kept / "arrays" / "0.json", ["ab12"])
    folder = make_run(tmp_path, "ab12", RunState.SUBMITTED, steps=0)
    settings = {"poll_s": 0, "max_running": None, "signal_delay_s": 5}
    shapes = {"ab12": Shape(nodes=1, devices=0, cpus=1, memory_gb=1, time_s=60)}
    record = launch_record.write(tmp_path, launch)
    scheduler = Slurm(record, settings, shapes, lambda shape: {}, "nothing:trains", largest=10)
    scheduler.submit(folder, launch.token)
    return scheduler, earlier.token


def test_a_job_that_is_just_ending_is_neither_adopted_nor_doubled(tmp_path, adopting):
    """SLURM shows that for moments only; here squeue shows it for as long as needed."""
    scheduler, token = adopting
    (tmp_path / "squeue").write_text(f"7|rlsweep-{token}-0|COMPLETING|n1|None\n")
    assert scheduler.poll(0) == [] and scheduler.jobs == []
    (tmp_path / "squeue").write_text(f"7|rlsweep-{token}-0|PENDING||BeginTime\n")
    assert scheduler.poll(0) == [] and scheduler.jobs == ["7"]


def test_a_job_that_has_only_the_same_id_is_neither_believed_nor_cancelled(tmp_path, adopting):
    scheduler, token = adopting
    (tmp_path / "squeue").write_text(f"7|rlsweep-{token}-0|PENDING||Priority\n")
    assert scheduler.poll(0) == [] and scheduler.jobs == ["7"]
    (tmp_path / "squeue").write_text("7|rlsweep-0123-0|FAILED|n1|NonZeroExitCode\n")
    (tmp_path / "sacct").write_text("7|rlsweep-0123-0|FAILED|n1|1:0\n")
    assert scheduler.poll(0) == []
    (ended,) = scheduler.poll(0)
    assert ended.failure_kind == "revoked" and ended.message == "its job 7 was cancelled before it began (scancel)"


def test_jobs_are_cancelled_by_id_and_name(tmp_path, adopting):
    scheduler, token = adopting
    (tmp_path / "squeue").write_text(f"7|rlsweep-{token}-0|PENDING||Priority\n")
    scheduler.poll(0)
    assert scheduler.withdraw() == 1
    assert (tmp_path / "scancel").read_text() == f"--name=rlsweep-{token}-0 --state=PENDING 7\n"


@pytest.mark.parametrize(("limit", "waits"), [("AssocMaxSubmitJobLimit", True), ("QOSMaxWallDurationLimit", False)])
def test_a_single_run_is_refused_for_good_only_by_a_limit_that_no_other_job_lifts(
    tmp_path, adopting, monkeypatch, limit, waits
):
    """SLURM counts a job for some seconds after its run has ended: also a last job's refusal may be temporary."""
    scheduler, _ = adopting

    def submit(*_: object) -> None:
        raise FailedJobError(f"sbatch: error: {limit}\nJob violates accounting/QOS policy (job submit limit, ...)")

    now = [1000.0]
    monkeypatch.setattr(scheduler._arrays, "submit", submit)
    monkeypatch.setattr("launcher.schedulers.slurm.scheduler.time.monotonic", lambda: now[0])
    assert scheduler.poll(0) == []
    now[0] += 59
    assert scheduler.poll(0) == []
    now[0] += 2
    if waits:
        assert scheduler.poll(0) == [] and scheduler.withdraw_collected() == 1
    else:
        with pytest.raises(SchedulerError, match=r"QOSMaxWallDurationLimit.*request less time or fewer devices"):
            scheduler.poll(0)
        (folder,) = tmp_path.glob("**/ab12")
        assert read_state(folder).state == RunState.PLANNED


# It puts the job into squeue's file, and then does what {end} says.
SBATCH = """#!/bin/sh
for file in "$@"; do :; done
while read -r line; do case "$line" in "#SBATCH --job-name="*) name="${{line#*=}}";; esac; done < "$file"
[ -z "$name" ] || echo "9|$name|PENDING||None" > {squeue}
{end}
"""


def fake_sbatch(tmp_path: Path, end: str) -> None:
    for name, text in (("sbatch", SBATCH.format(squeue=tmp_path / "squeue", end=end)), ("srun", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)


@pytest.mark.parametrize(
    "end",
    [
        "exec /bin/sleep 600",
        "/bin/sleep 600",  # the child holds the pipe when the script is gone
        "trap '' TERM; while :; do /bin/sleep 1; done",
        "echo Submitted batch job 9; exec /bin/sleep 600",
    ],
)
def test_an_sbatch_that_accepts_and_does_not_return_is_ended_and_its_job_adopted(
    tmp_path, adopting, monkeypatch, capfd, end
):
    scheduler, _ = adopting
    monkeypatch.setattr(arrays, "LIMIT_S", 1.0)
    monkeypatch.setattr(arrays, "TELL_S", 0.2)
    fake_sbatch(tmp_path, end)
    assert scheduler.poll(0) == [] and scheduler.jobs == ["9"]
    said = capfd.readouterr().err
    assert "waiting for sbatch, which has not returned for 0.2 s; it is ended after 1 s" in said
    assert "sbatch did not return within 1 s" in said and "ab12 is already job 9" in said and "refused" not in said
    assert len(list(tmp_path.glob("launches/*/jobs/9_submitted.pkl"))) == 1  # what the job executes


def test_an_sbatch_that_submits_nothing_and_does_not_return_is_asked_again(tmp_path, adopting, monkeypatch, capfd):
    scheduler, _ = adopting
    monkeypatch.setattr(arrays, "LIMIT_S", 0.5)
    fake_sbatch(tmp_path, "exec /bin/sleep 600")
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    assert scheduler.poll(0) == [] and scheduler.jobs == []
    fake_sbatch(tmp_path, "echo Submitted batch job 9")
    assert scheduler.poll(0) == [] and scheduler.jobs == ["9"]
    assert "SLURM answers again" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("exit 3", "sbatch refused: exit code 3 without a message;"),
        ("echo 'Invalid account' >&2; exit 1", "sbatch refused: Invalid account;"),
        ("echo", "sbatch refused: Could not make sense of sbatch output"),
    ],
)
def test_a_refusal_always_has_a_reason(tmp_path, adopting, end, said):
    scheduler, _ = adopting
    fake_sbatch(tmp_path, end)
    with pytest.raises(SchedulerError, match=said):
        scheduler.poll(0)


def test_a_check_that_sbatch_does_not_answer_is_no_refusal(tmp_path, adopting, monkeypatch):
    monkeypatch.setattr(arrays, "LIMIT_S", 0.5)
    fake_sbatch(tmp_path, "exec /bin/sleep 600")
    with pytest.raises(SchedulerError, match="`sbatch --test-only` did not return within"):
        arrays.refusal({}, tmp_path / "test")
    fake_sbatch(tmp_path, "exit 2")
    assert arrays.refusal({}, tmp_path / "test") == "exit code 2 without a message"


def test_a_job_of_a_closed_launch_begins_no_run(tmp_path):
    launch = Launch()
    folder = make_run(tmp_path, "waits", RunState.SUBMITTED, steps=0, launch_id=launch.token)
    launch_record.closed(launch_record.write(tmp_path, launch)).touch()
    assert worker.execute(folder, "nothing:trains", launch, launch.token) == WorkerExit.BUSY
    assert read_state(folder).state == RunState.SUBMITTED and claim.read_claim(folder) is None


# ---------------------------------------------------------------- the copy of the code


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A git tree with a package, of which git ignores a file, and a reward that imports a module beside it; and data
    that git ignores."""
    tree = tmp_path / "us er"
    texts = {
        "copied_pkg/__init__.py": "RATE = len(open(__path__[0] + '/words.txt').read())\n",
        "copied_pkg/words.txt": "words",
        "copied_pkg/big.txt": "x" * (9 << 20),
        ".gitignore": "words.txt\ndata/\n",
        "rewards.py": "import beside\nimport copied_pkg\n\ndef f(*_):\n    return beside.VALUE + copied_pkg.RATE\n",
        "beside.py": "VALUE = 1.0\n",
        "data/x.jsonl": json.dumps({"prompt": "1?", "answer": "1"}) + "\n",
    }
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    monkeypatch.syspath_prepend(tree)
    monkeypatch.setenv("PYTHONPATH", str(tree))
    monkeypatch.chdir(tree)
    yield tree
    for name in ("copied_pkg", "beside"):
        sys.modules.pop(name, None)


class Queued:
    """A submitted launch of one run: its folder, the copy of the code, and its job, which begins with `run`."""

    def __init__(self, multirun, *words):
        own = ("method=c0_grpo", "experiment.name=queued", "model=qwen2_5_0_5b", "model.resources.devices=0")
        words = (*own, "trainer.steps=1", "trainer.eval_every=0", "cluster=slurm", f"multirun={multirun}", *words)
        planned, launch, train = make("task=file", *words), Launch(), "tests.launcher.steps:rewarded"
        freeze.freeze(planned)
        (run_id,) = planned.runs
        self.folder, record = run_folder(multirun, run_id), launch_record.write(multirun, launch)
        cluster.start(Order(ROOT, planned, [run_id], train, launch, record))
        self.copy = record.with_suffix("") / "code"
        shape = Shape(nodes=1, devices=0, cpus=1, memory_gb=1, time_s=60)
        command = [sys.executable, "-m", "launcher.worker", str(self.folder), "--train", train]
        self._job = [*arrays.parameters(planned.cluster, shape, self.copy)["setup"], shlex.join(command)]

    def run(self):
        """The state in which the run ends, with its message, and the rewards that it logs."""
        subprocess.run(["sh", "-ec", "\n".join(self._job)], cwd=self.copy, capture_output=True)
        state = read_state(self.folder)
        return state.state, state.message, [line["value"] for line in read_log(metrics_path(self.folder)).records]


def test_an_edit_of_the_users_code_after_submission_changes_no_queued_run(users, tmp_path):
    queued = Queued(tmp_path / "m", f"task.train_path={users}/data/x.jsonl", f"task.reward={users}/rewards.py:f")
    for name in ("copied_pkg/__init__.py", "rewards.py", "beside.py"):
        (users / name).write_text("RATE = VALUE = 70.0\n\ndef f(*_):\n    return VALUE\n")
    assert queued.run() == (RunState.DONE, None, [6.0])
    (kept,) = (tmp_path / "m/code").glob("*.json")
    modules = json.loads(kept.read_text())["modules"]
    assert "copied_pkg/__init__.py" in modules
    assert not any(".outside" in name or "rewards.py" in name for name in modules)
    place = queued.copy / PACKAGES / "copied_pkg"
    assert (place / "big.txt").is_symlink() and (place / "words.txt").is_symlink()
    with pytest.raises(ValueError, match="other content"):
        content.check(read_config(queued.folder))  # without the copy, the run is refused


def test_a_queued_run_finds_its_data_in_the_folder_of_the_launch(users, tmp_path):
    queued = Queued(tmp_path / "m", "task.train_path=data/x.jsonl", "task.reward=rewards.py:f")
    assert queued.run() == (RunState.DONE, None, [6.0])
    assert read_config(queued.folder)["task"]["train_path"] == str(users / "data/x.jsonl")


def test_a_copy_of_the_project_has_neither_large_nor_ignored_files(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    for name in ("launcher/__init__.py", "data/x.bin", "large.jsonl", "new.py", "multirun/r"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x" * (9 << 20 if name == "large.jsonl" else 10))
    (tree / ".gitignore").write_text("data/\n")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    copy = code_snapshot.copy(tree, tmp_path / "copy", tree / "multirun")
    assert {path.name for path in copy.iterdir()} == {"launcher", "large.jsonl", "new.py", ".gitignore"}
    assert (copy / "large.jsonl").resolve() == tree / "large.jsonl"
    monkeypatch.setattr(code_snapshot, "LARGEST_SUM", 25)
    copy = code_snapshot.copy(tree, tmp_path / "again", tree / "multirun")
    assert (copy / "new.py").is_symlink() and not (copy / "launcher" / "__init__.py").is_symlink()
