"""SLURM's side of a run, where it needs no SLURM: what a signal comes to, and when. tests/cluster has the rest."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.application import Shape
from launcher.config import content
from launcher.errors import InvalidPlan
from launcher.planning import freeze
from launcher.project import PACKAGES
from launcher.run import launch_record, lifecycle
from launcher.run.folder import metrics_path, read_config, run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RunState, WorkerExit, read_state
from launcher.schedulers.batch import code_snapshot
from launcher.schedulers.batch.scheduler import BatchScheduler
from launcher.schedulers.batch.system import Array, Refusal, Unanswered
from launcher.schedulers.protocol import Order, SchedulerError
from launcher.schedulers.slurm import cluster, system
from launcher.schedulers.slurm.job import SlurmTask
from launcher.worker import worker
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make
from tests.launcher.made import make_run, read_log
from tests.trees import git, write
from tests.waiting import DEADLINE

SHAPE = Shape(memory_gb=1, time_s=60)
KEYS = ("partition", "account", "qos", "constraint", "gpu_type", "max_running", "max_array", "sbatch")
SETTINGS = {**dict.fromkeys(KEYS), "poll_s": 0, "signal_delay_s": 5, "setup": []}


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def array(folder: Path, *command: str, settings=SETTINGS, shape=SHAPE, **more) -> Array:
    return Array("rlsweep-0-0", command, 1, shape, folder, folder, settings, **more)


def test_a_job_lives_through_a_signal_that_comes_before_it_can_heed_it(tmp_path, monkeypatch):
    """The first signal comes before the task ignores it, and ends it."""
    first = f"[ -e {tmp_path}/came ] || {{ touch {tmp_path}/came; sh -c 'kill -USR2 $$'; exit $?; }}"
    program(tmp_path / "srun", f'{first}\nwhile [ $1 != sh ]; do shift; done\nexec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(3)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = system._command(array(tmp_path, sys.executable, "-u", "-c", code))
    job = subprocess.Popen(command, shell=True, **pipes)
    os.kill(int(job.stdout.readline()), signal.SIGUSR2)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == 3 and (tmp_path / "came").exists()


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
    settings = {**SETTINGS, "signal_delay_s": 59}
    task = SlurmTask(folder, launch_record.write(tmp_path, launch), SHAPE, settings)
    task.warn(signal.SIGUSR2)
    assert task.execute() != 0
    state = read_state(folder)
    assert (state.state, state.failure_kind, state.attempt) == ("failed", "time_out", 0)
    assert state.message == "the time limit of its job 12_3, 60 s, expired, before the run began"


@pytest.fixture
def submitting(tmp_path, monkeypatch):
    """A scheduler with one run to submit, and a fake SLURM: squeue and sacct print the files of their names."""
    programs, launch = tmp_path / "bin", Launch()
    programs.mkdir()
    scripts = {"squeue": "/bin/cat {}", "sacct": "/bin/cat {}", "scancel": 'echo "$@" >> {}', "srun": ""}
    for name, script in scripts.items():
        (tmp_path / name).touch()
        program(programs / name, script.format(tmp_path / name))
    monkeypatch.setenv("PATH", str(programs))
    folder = make_run(tmp_path, "ab12", RunState.SUBMITTED, steps=0)
    record = launch_record.write(tmp_path, launch)
    scheduler = BatchScheduler(system, record, SETTINGS, {"ab12": SHAPE}, tmp_path, largest=10)
    scheduler.submit(folder)
    return scheduler


def test_jobs_are_read_with_what_slurm_says_of_them(tmp_path, submitting):
    lines = {
        "7_0|rlsweep-0-0|PENDING||Priority": ("waiting", "lost"),
        "7_1|rlsweep-0-0|PENDING||launch failed requeued held": ("stuck", "node_failure"),
        "7_2|rlsweep-0-0|COMPLETING|n1|None": ("ending", "lost"),
        "7_3|rlsweep-0-0|FAILED|n1|NonZeroExitCode": ("failed", "lost"),
        "7_4|rlsweep-0-0|CANCELLED|n1|None": ("ended", "revoked"),
        "7_5|rlsweep-0-0|SUSPENDED|n1|None": ("running", "lost"),
        "7_6|rlsweep-0-0|PENDING||PartitionTimeLimit": ("held", "lost"),
        "8|other|RUNNING|n1|None": None,
    }
    (tmp_path / "squeue").write_text("\n".join(lines))
    jobs = system.jobs("rlsweep-")
    assert [(job.phase, job.failure_kind) for job in jobs.values()] == [*lines.values()][:-1]
    assert [(job.id, job.index) for job in jobs.values()] == [(f"7_{place}", place) for place in range(7)]
    assert (jobs["7_3"].state, jobs["7_3"].node) == ("FAILED (NonZeroExitCode)", "n1")
    past = "7_4|rlsweep-0-0|CANCELLED by 0|n1|0:15\n7_5|rlsweep-9-9|FAILED|n1|1:0\n7_[6-9]|rlsweep-0-0|PENDING||0:0\n"
    (tmp_path / "sacct").write_text(past)
    past = system.ended({"7_4": "rlsweep-0-0", "7_5": "rlsweep-0-0"})
    assert [(job.id, job.state) for job in past.values()] == [("7_4", "scancel")]


def test_jobs_are_cancelled_by_id_and_name(tmp_path, submitting):
    """scancel itself would cancel a whole array for one of its waiting jobs if it were given a name or a state."""
    states = {"7_0": "PENDING", "7_1": "PENDING", "7_2": "RUNNING", "8": "RUNNING", "9": "COMPLETED"}
    lines = [f"{id}|rlsweep-0-{int('_' not in id)}|{state}||None" for id, state in states.items()]
    (tmp_path / "squeue").write_text("\n".join(lines))
    names = {"7_0": "rlsweep-0-0", "7_1": "rlsweep-0-9", "7_2": "rlsweep-0-0", "8": "rlsweep-0-1", "9": "rlsweep-0-1"}
    system.cancel(names, waiting=True)
    system.cancel({"8": "rlsweep-0-1", "9": "rlsweep-0-1"}, waiting=False)
    system.cancel({"6": "rlsweep-0-1"}, waiting=False)
    assert (tmp_path / "scancel").read_text().splitlines() == ["7_0", "8"]


# It puts the job into squeue's file, and then does what {end} says.
SBATCH = """
[ ! -f "$1" ] || exec < "$1"
while read -r line; do case "$line" in "#SBATCH --job-name="*) name="${{line#*=}}";; esac; done
[ -z "$name" ] || echo "9|$name|PENDING||None" > {squeue}
{end}"""


def fake_sbatch(tmp_path: Path, end: str) -> None:
    program(tmp_path / "bin/sbatch", SBATCH.format(squeue=tmp_path / "squeue", end=end))


@pytest.mark.parametrize(
    "end",
    [
        "/bin/sleep 600",  # the child holds the pipe when the script is gone
        "trap '' TERM; while :; do /bin/sleep 1; done",
        "echo Submitted batch job 9; exec /bin/sleep 600",
    ],
)
def test_an_sbatch_that_accepts_and_does_not_return_is_ended_and_its_job_adopted(
    tmp_path, submitting, monkeypatch, capfd, end
):
    monkeypatch.setattr(system, "LIMIT_S", 0.5)
    monkeypatch.setattr(system, "TELL_S", 0.1)
    fake_sbatch(tmp_path, end)
    # Not five seconds from SIGTERM to SIGKILL, as in `timeout -k 5 LIMIT sbatch ...`.
    program(tmp_path / "bin/timeout", '[ "$1 $2" = "-k 5" ] && shift 2 && exec /usr/bin/timeout -k 0.1 "$@"')
    assert submitting.poll(0) == [] and submitting.jobs == ["9"]
    said = capfd.readouterr().err
    assert "waiting for sbatch, which has not returned for 0.1 s; it is ended after 0.5 s" in said
    assert "sbatch did not return within 0.5 s" in said and "ab12 is already job 9" in said and "refused" not in said


def test_an_sbatch_that_submits_nothing_and_does_not_return_is_asked_again(tmp_path, submitting, monkeypatch, capfd):
    monkeypatch.setattr(system, "LIMIT_S", 0.3)
    program(tmp_path / "bin/sbatch", "exec /bin/sleep 600")
    assert submitting.poll(0) == [] and submitting.jobs == []
    fake_sbatch(tmp_path, "echo Submitted batch job 9")
    assert submitting.poll(0) == [] and submitting.jobs == ["9"]
    assert "SLURM answers again" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("exit 3", "SLURM refused: exit code 3 without a message;"),
        ("echo 'Invalid account' >&2; exit 1", "SLURM refused: Invalid account;"),
        ("echo maybe", 'SLURM refused: Could not make sense of sbatch output "maybe"'),
    ],
)
def test_a_refusal_always_has_a_reason(tmp_path, submitting, end, said):
    fake_sbatch(tmp_path, end)
    with pytest.raises(SchedulerError, match=said):
        submitting.poll(0)


def test_a_check_that_sbatch_does_not_answer_is_no_refusal(tmp_path, submitting, monkeypatch):
    monkeypatch.setattr(system, "LIMIT_S", 0.3)
    fake_sbatch(tmp_path, "exec /bin/sleep 600")
    with pytest.raises(Unanswered, match=r"sbatch did not return within 0.3 s"):
        system.refusal(array(tmp_path))
    fake_sbatch(tmp_path, "exit 2")
    assert system.refusal(array(tmp_path)) == "exit code 2 without a message"
    fake_sbatch(tmp_path, "echo 'AssocMaxSubmitJobLimit: Job violates policy (job submit limit, ...)' >&2; exit 1")
    assert system.refusal(array(tmp_path)) is None, "a launch waits until other jobs have ended"


PARTITIONS = """PartitionName=main Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=short Default=NO MaxTime=00:30:00 State=UP
PartitionName=long Default=NO MaxTime=UNLIMITED State=UP"""


@pytest.mark.parametrize(
    ("partition", "longest"),
    [(None, 86400), ("short", 1800), ("short,main", 86400), ("short,long", math.inf), ("no", math.inf)],
)
def test_the_longest_time_of_a_partition_is_asked(tmp_path, submitting, partition, longest):
    program(tmp_path / "bin/scontrol", f"echo '{PARTITIONS}'")
    assert system.longest_s(partition) == longest


def test_what_a_partition_would_never_start_is_refused_and_the_job_of_the_report_is_asked_for_too(tmp_path, submitting):
    program(tmp_path / "bin/scontrol", f'case "$*" in *config) echo "X = 1";; *) echo "{PARTITIONS}"; esac')
    mem = "while read -r line; do case \"$line\" in *--mem=7630M) echo 'too much' >&2; exit 1; esac; done"
    program(tmp_path / "bin/sbatch", mem)
    words = ("method=c0_grpo", "cluster=slurm", "cluster.detach=true", "model.resources.time=02:00:00")
    planned = make(*words, "cluster.partition=short")
    with pytest.raises(InvalidPlan) as refused:
        cluster.check(planned, list(planned.runs))
    late, report = map(str, refused.value.problems)
    assert "model.resources.time = 7200 s: the partition allows 1800 s, so SLURM would never start the runs" in late
    asked = "1 node, on each 1 CPUs and 8 GB, 1800 s"
    assert (
        f"cluster.detach = True: sbatch would refuse the job of the report, which asks for {asked}: too much" in report
    )
    program(tmp_path / "bin/sbatch", "")
    for more in ("cluster.partition=main", "cluster.qos=long"):
        planned = make(*words, "cluster.partition=short", more)
        cluster.check(planned, list(planned.runs))


@pytest.mark.parametrize("job", [True, False])
def test_the_users_options_of_slurms_commands_and_the_launchers_own_job_are_kept_from_them(
    tmp_path, submitting, monkeypatch, capsys, job
):
    """They would replace the options that the launcher gives."""
    end = f"/usr/bin/env >> {tmp_path}/env"
    fake_sbatch(tmp_path, f"{end}; echo Submitted batch job 9")
    for name in ("squeue", "scancel", "sacct"):
        program(tmp_path / "bin" / name, end)
    options = {"SBATCH_QOS", "SBATCH_EXPORT", "SQUEUE_STATES", "SCANCEL_QOS", "SACCT_FORMAT", "SLURM_EXPORT_ENV"}
    names = {*options, "RANK", "SLURM_CONF", "RANKING", *(["SLURM_JOB_ID"] if job else [])}
    for name in names:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("LOGNAME", "another")
    assert system.submit(array(tmp_path)) == ["9"]
    assert system.jobs("rlsweep-") == system.ended({"9": "rlsweep-0-0"}) == {}
    (tmp_path / "squeue").write_text("9|rlsweep-0-0|PENDING||None")
    program(tmp_path / "bin/squeue", f"{end}; /bin/cat {tmp_path}/squeue")
    system.cancel({"9": "rlsweep-0-0"}, waiting=True)
    kept = [line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()]
    assert sorted(names.intersection(kept)) == ["RANKING", "SLURM_CONF"] and kept.count("RANKING") == 5
    cluster.check_here(SimpleNamespace(cluster={"sbatch": None, "detach": False}, runs={}), [])
    said = "SBATCH_EXPORT, SBATCH_QOS: not used; give cluster.partition, account, qos, constraint or sbatch instead\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("size", "name"), [(1, "%j.log"), (2, "%A_%a.log")])
def test_a_folder_with_a_percent_sign_is_no_pattern_of_slurm(tmp_path, size, name):
    given = replace(array(tmp_path / "a%j"), size=size)
    log = f"{tmp_path}/a%%j/{name}"
    assert system.parameters(given)["additional_parameters"]["output"] == log and f"--output {log} " in (
        system._command(given)
    )


def test_the_users_excluded_nodes_and_the_bad_ones_are_all_left_out(tmp_path):
    given = array(tmp_path, settings={**SETTINGS, "sbatch": {"exclude": "n[1-3]"}}, exclude=frozenset({"n7", "n5"}))
    assert system.parameters(given)["exclude"] == "n[1-3],n5,n7"
    assert "exclude" not in system.parameters(given)["additional_parameters"]
    assert "exclude" not in system.parameters(array(tmp_path))


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ("AssocMaxSubmitJobLimit: Job violates accounting/QOS policy (job submit limit, ...)", Refusal.TOO_MANY),
        ("QOSMaxWallDurationLimit: Job violates accounting/QOS policy (job submit limit, ...)", Refusal.LIMIT),
        ("Unable to contact slurm controller", Refusal.NOW),
        ("Transport endpoint is not connected", Refusal.NOW),
        ("Invalid account", Refusal.NEVER),
    ],
)  # fmt: skip
def test_sbatchs_words_say_whether_it_may_accept_jobs_later(said, refusal):
    assert system._refusal(said) == refusal


def test_a_job_of_a_closed_launch_begins_no_run(tmp_path):
    launch = Launch()
    folder = make_run(tmp_path, "waits", RunState.SUBMITTED, steps=0, launch_id=launch.token)
    launch_record.closed(launch_record.write(tmp_path, launch)).touch()
    assert worker.execute(folder, launch) == WorkerExit.BUSY
    assert read_state(folder).state == RunState.SUBMITTED and lifecycle.read_claim(folder) is None


# ---------------------------------------------------------------- the copy of the code


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A git tree with a package, of which git ignores a file, and a reward that imports a module beside it; and data
    that git ignores."""
    texts = {
        "copied_pkg/__init__.py": "RATE = len(open(__path__[0] + '/words.txt').read())\n",
        "copied_pkg/words.txt": "words",
        "copied_pkg/big.txt": "x" * (9 << 20),
        ".gitignore": "words.txt\ndata/\n",
        "rewards.py": "import beside\nimport copied_pkg\n\ndef f(*_):\n    return beside.VALUE + copied_pkg.RATE\n",
        "beside.py": "VALUE = 1.0\n",
        "data/x.jsonl": json.dumps({"prompt": "1?", "answer": "1"}) + "\n",
    }
    tree = write(tmp_path / "us er", texts)
    git(tree, "init", "-q")
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
        planned, launch = make("task=file", *words), Launch(train="tests.launcher.steps:rewarded")
        freeze.freeze(planned)
        (run_id,) = planned.runs
        self.folder, record = run_folder(multirun, run_id), launch_record.write(multirun, launch)
        cluster.start(Order(ROOT, planned, [run_id], launch, record))
        self.copy = record.with_suffix("") / "code"
        command = [sys.executable, "-m", "launcher.worker", str(self.folder), "--launch", str(record)]
        self._job = array(self.copy, *command, settings=planned.cluster).script("0")

    def run(self):
        """The state in which the run ends, with its message, and the rewards that it logs."""
        subprocess.run(["sh", "-ec", self._job], capture_output=True)
        state = read_state(self.folder)
        return state.state, state.message, [line["value"] for line in read_log(metrics_path(self.folder)).records]


def test_a_queued_run_has_the_data_of_the_launchs_folder_and_the_code_before_any_edit(users, tmp_path):
    queued = Queued(tmp_path / "m", "task.train_path=data/x.jsonl", "task.reward=rewards.py:f")
    assert read_config(queued.folder)["task"]["train_path"] == str(users / "data/x.jsonl")
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


def test_a_copy_of_the_project_has_neither_large_nor_ignored_files(tmp_path, monkeypatch):
    small = dict.fromkeys(("launcher/__init__.py", "data/x.bin", "new.py", "multirun/r"), "x" * 10)
    tree = write(tmp_path / "tree", {**small, "large.jsonl": "x" * (9 << 20), ".gitignore": "data/\n"})
    git(tree, "init", "-q")
    copy = code_snapshot.copy(tree, tmp_path / "copy", tree / "multirun")
    assert {path.name for path in copy.iterdir()} == {"launcher", "large.jsonl", "new.py", ".gitignore"}
    assert (copy / "large.jsonl").resolve() == tree / "large.jsonl"
    monkeypatch.setattr(code_snapshot, "LARGEST_SUM", 25)
    copy = code_snapshot.copy(tree, tmp_path / "again", tree / "multirun")
    assert (copy / "new.py").is_symlink() and not (copy / "launcher" / "__init__.py").is_symlink()
    plain = write(tmp_path / "plain", dict.fromkeys(("analysis.py", "launcher/x.py", "other.py"), ""))  # no git's
    copy = code_snapshot.copy(plain, tmp_path / "third", plain / "multirun")
    assert {path.name for path in copy.iterdir()} == {"analysis.py", "launcher"}
