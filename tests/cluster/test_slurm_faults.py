"""What may go wrong on SLURM: afterwards the same command finishes the sweep, and the states say what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.run import lifecycle
from launcher.run.folder import latest_checkpoint, run_folder
from launcher.run.lifecycle import State
from tests.cluster.slurm import Lab, begun, run_on, states, whole
from tests.waiting import ended, until

pytestmark = pytest.mark.slurm


def running(lab: Lab, multirun: Path) -> dict[str, str]:
    """The run that each running job does."""
    return {job: run_on(lab, multirun, job) for job in lab.jobs(multirun, "RUNNING")}


def costs_an_attempt(found: dict[str, State], hit: str, kind: str) -> None:
    """This run alone has been begun again, once, for this reason."""
    for run_id, state in found.items():
        expected = (2, {kind: 1}) if run_id == hit else (1, {})
        assert (state.attempt, dict(state.failure_counts)) == expected, state


def test_scancel_of_one_task(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    wanted = ["seed=0,1,2", "trainer.steps=20"]
    launcher = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 3)
    job, run_id = next(iter(running(slurm, tmp_path / "m").items()))
    slurm.ask("scancel", job)
    gate.unlink()
    said, _ = launcher.communicate(timeout=120)
    state = states(tmp_path / "m")[run_id]
    assert launcher.returncode == 1 and "2 done" in said, said
    assert (state.state, state.failure_kind) == ("preempted", "revoked")
    assert job in state.message and "scancel" in state.message
    saved = latest_checkpoint(run_folder(tmp_path / "m", run_id))
    assert saved is not None and saved[0] >= 3
    slurm.finish(tmp_path / "m", *wanted)
    assert sorted(one.attempt for one in whole(tmp_path / "m", 3, 20).values()) == [1, 1, 2]


def test_preemption(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    wanted = ["seed=0,1", "trainer.steps=20", "cluster.partition=preempt"]
    launcher = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 2)
    slurm.ask("sbatch", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5")
    until(lambda: {state.failure_kind for state in states(tmp_path / "m").values()} == {"preempted"})
    for state in states(tmp_path / "m").values():
        assert state.state == "preempted" and "SLURM preempted its job" in state.message, state
    gate.unlink()
    ended(launcher)
    ends = [(state.attempt, dict(state.failure_counts)) for state in whole(tmp_path / "m", 2, 20).values()]
    assert ends == [(2, {"preempted": 1})] * 2
    assert len(slurm.jobs(tmp_path / "m")) == 2  # the same jobs, requeued: the launcher submitted nothing again


def test_time_limits(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    """Two beside each other: SLURM looks at its limits twice a minute."""
    with ThreadPoolExecutor() as pool:
        tests = [(a_time_limit, gate), (a_warning_that_comes_before_the_run_can_begin,)]
        for over in [pool.submit(test, slurm, tmp_path / test.__name__, *more) for test, *more in tests]:
            over.result()


def a_time_limit(slurm: Lab, multirun: Path, gate: Path) -> None:
    limit = ["model.resources.time='00:01:00'", "cluster.signal_delay_s=20"]
    launcher = slurm.launch(multirun, "seed=0", "trainer.steps=60", *limit, STEPS_GATE=str(gate))
    until(lambda: {state.failure_kind for state in states(multirun).values()} == {"time_out"})
    (state,) = states(multirun).values()
    assert state.state == "preempted" and re.search(r"time limit of its job \d+, 60 s", state.message), state
    gate.unlink()
    ended(launcher)
    (state,) = whole(multirun, 1, 60).values()
    assert set(state.failure_counts) == {"time_out"} and state.attempt == 1 + state.failure_counts["time_out"]
    assert len(slurm.jobs(multirun)) == 1


def a_warning_that_comes_before_the_run_can_begin(slurm: Lab, multirun: Path) -> None:
    limit = ["model.resources.time='00:01:00'", "cluster.signal_delay_s=59"]
    launcher = slurm.launch(multirun, "seed=0", "trainer.steps=2000", *limit, STEPS_SECONDS="0.2")
    until(lambda: {state.failure_kind for state in states(multirun).values()} == {"time_out"})
    (state,) = states(multirun).values()
    assert state.failure_counts == {"time_out": 1} and re.search(r"time limit of its job \d+, 60 s", state.message), (
        state
    )
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate(timeout=60)
    assert "before the run began; see" not in said and "node_failure" not in said, said


def test_signals_while_a_job_begins_harm_nothing(slurm: Lab, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", "seed=0", "trainer.steps=10", STEPS_SECONDS="0.1")
    until(lambda: slurm.jobs(tmp_path / "m", "RUNNING"))
    (job,) = slurm.jobs(tmp_path / "m", "RUNNING")
    for _ in range(15):  # the first ones find no process yet
        subprocess.run(["scancel", "--signal=USR2", job], env=slurm.environment, capture_output=True)
        time.sleep(0.1)
    ended(launcher)
    (state,) = whole(tmp_path / "m", 1, 10).values()
    assert set(state.failure_counts) <= {"preempted"}, state
    assert len(slurm.jobs(tmp_path / "m")) == 1


def test_only_the_task_that_is_warned_waits_again(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    """The number of one of an array's jobs is also that of the array."""
    launcher = slurm.launch(tmp_path / "m", "seed=0,1,2", "trainer.steps=20", STEPS_GATE=str(gate))
    begun(tmp_path / "m", 3)
    listed, own = slurm.ask("squeue", "-h", "-r", "-t", "RUNNING", "-o", "%i %F %A"), slurm.jobs(tmp_path / "m")
    (job,) = [name for name, array, job in map(str.split, listed.splitlines()) if array == job and name in own]
    run_id = run_on(slurm, tmp_path / "m", job)
    slurm.ask("scancel", "--signal=USR2", job)
    until(lambda: states(tmp_path / "m")[run_id].failure_kind == "preempted")
    gate.unlink()
    ended(launcher)
    costs_an_attempt(whole(tmp_path / "m", 3, 20), run_id, "preempted")
    assert len(slurm.jobs(tmp_path / "m")) == 3


@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
def test_a_launcher_elsewhere_does_what_waits_in_the_queue(slurm: Lab, gate: Path, tmp_path: Path, when: str) -> None:
    """The jobs are allowed to begin while the pool runs their runs, or never."""
    wanted = ["seed=0,1", "trainer.steps=40"]
    slurm.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        queued = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
        until(lambda: len(slurm.jobs(tmp_path / "m")) == 2)
        pool = slurm.launch(tmp_path / "m", *wanted, cluster=["cluster=local", "cluster.slots=2"], STEPS_GATE=str(gate))
        begun(tmp_path / "m", 2, steps=1)
        if when == "afterwards":
            gate.unlink()
            said, _ = queued.communicate(timeout=120)
            assert not slurm.jobs(tmp_path / "m", "PENDING")
    finally:
        slurm.ask("scontrol", "update", "PartitionName=main", "State=UP")
    if when == "meanwhile":
        until(lambda: not slurm.jobs(tmp_path / "m", "PENDING"))
        assert {state.state for state in states(tmp_path / "m").values()} == {"running"}
        gate.unlink()
        said, _ = queued.communicate(timeout=120)
    assert queued.returncode == 0, said
    said = ended(pool)
    assert "2 done" in said, said
    assert {state.attempt for state in whole(tmp_path / "m", 2, 40).values()} == {1}
    how = {"COMPLETED"} if when == "meanwhile" else {"CANCELLED"}
    until(lambda: {state for state, _ in slurm.jobs(tmp_path / "m").values()} <= how)


def fail_node(lab: Lab, multirun: Path, *how: str) -> str:
    """Kill the node of a running job, and tell SLURM; the run that it did."""
    job, run_id = next(iter(running(lab, multirun).items()))
    node = lab.jobs(multirun)[job][1]
    lab.script("kill_node.sh", node, *how)
    lab.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")
    return run_id


@pytest.mark.parametrize("lab", ["accounted", "plain"])
def test_a_node_dies(lab: str, gate: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    slurm: Lab = request.getfixturevalue(lab)
    wanted = ["seed=0,1", "trainer.steps=20", "model.resources.cpus=40"]
    launcher = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 2)
    hit = fail_node(slurm, tmp_path / "m")
    gate.unlink()
    said, _ = launcher.communicate(timeout=200)
    slurm.script("start.sh")
    assert launcher.returncode == 0, said
    costs_an_attempt(whole(tmp_path / "m", 2, 20), hit, "node_failure")


def test_a_node_dies_and_its_step_lives_on(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", "seed=0", "trainer.steps=20", STEPS_GATE=str(gate))
    begun(tmp_path / "m", 1)
    hit = fail_node(slurm, tmp_path / "m", "--keep-jobs")
    orphan = lifecycle.read_claim(run_folder(tmp_path / "m", hit))
    time.sleep(3)
    assert orphan is not None and lifecycle.process_start(orphan.pid) == orphan.process_start
    until(lambda: states(tmp_path / "m")[hit].attempt == 2)
    gate.unlink()
    said, _ = launcher.communicate(timeout=200)
    slurm.script("start.sh")
    assert launcher.returncode == 0, said
    found = whole(tmp_path / "m", 1, 20)
    costs_an_attempt(found, hit, "node_failure")
    state = found[hit]
    assert state.from_step is not None and state.from_step >= 3  # nothing of the orphan's work is lost


def test_slurmctld_dies_and_comes_back(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", "seed=0,1,2", "trainer.steps=20", STEPS_GATE=str(gate))
    begun(tmp_path / "m", 3)
    os.kill(int((slurm.state / "run" / "slurmctld.pid").read_text()), signal.SIGKILL)
    gate.unlink()
    until(lambda: "done" in {state.state for state in states(tmp_path / "m").values()})
    slurm.script("start.sh")
    ended(launcher)
    assert {state.attempt for state in whole(tmp_path / "m", 3, 20).values()} == {1}


@pytest.mark.parametrize("how", ["before", "after"])
def test_slurmctld_goes_while_it_takes_a_job(slurm: Lab, tmp_path: Path, how: str) -> None:
    path = wrapper(tmp_path, SILENT_BEFORE if how == "before" else SILENT_AFTER, slurm)
    launcher = slurm.launch(tmp_path / "m", "seed=0,1", "trainer.steps=3", path=path)
    said = ended(launcher)
    assert "the other runs wait" in said, said
    assert (tmp_path / "killed").exists() and said.count("waits for that job") == (2 if how == "after" else 0), said
    assert {state.attempt for state in whole(tmp_path / "m", 2, 3).values()} == {1}
    assert len(slurm.jobs(tmp_path / "m")) == 2


def test_without_slurmdbd(plain: Lab, gate: Path, tmp_path: Path) -> None:
    assert subprocess.run(["sacct"], env=plain.environment, capture_output=True).returncode != 0
    wanted = ["seed=0,1,2", "trainer.steps=15"]
    launcher = plain.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 3)
    run_id = next(iter(states(tmp_path / "m")))
    owner = lifecycle.read_claim(run_folder(tmp_path / "m", run_id))
    assert owner is not None
    task = int(Path(f"/proc/{owner.pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])
    for pid in (task, owner.pid):  # dies without a word, and so does what speaks for it
        os.kill(pid, signal.SIGKILL)
    gate.unlink()
    ended(launcher)
    found = whole(tmp_path / "m", 3, 15)
    assert found[run_id].attempt == 2 and sum(found[run_id].failure_counts.values()) == 1, found[run_id]


# Stands before sbatch on PATH: the second call (the first is --test-only) kills the launcher, before or after sbatch.
# The launcher is the parent of `timeout`, which has started sbatch.
_PARENT = 'kill -9 $(cut -d" " -f4 /proc/$PPID/stat)'
_DRY = 'case "$1" in --test-only) exec {sbatch} "$@";; esac'
KILL_BEFORE = f"{_DRY}\ntouch {{done}}\n{_PARENT}"
KILL_AFTER = f'{_DRY}\n{{sbatch}} "$@"\ntouch {{done}}\n{_PARENT}'


# What sbatch says when slurmctld goes while they speak: whether it has the job is not known.
GONE = (
    'touch {done}; echo "sbatch: error: Batch job submission failed: Transport endpoint is not connected" >&2; exit 1'
)
SILENT_BEFORE = f'{_DRY}\n[ -e {{done}} ] || {{{{ {GONE}; }}}}\nexec {{sbatch}} "$@"'
SILENT_AFTER = SILENT_BEFORE.replace("|| {{", '|| {{ {sbatch} "$@" > /dev/null;')


def wrapper(folder: Path, text: str, lab: Lab) -> Path:
    """A folder with an sbatch that does this."""
    place = folder / "bin"
    place.mkdir()
    script = place / "sbatch"
    does = text.format(sbatch="/usr/bin/sbatch", done=folder / "killed", state=lab.state)
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    return place


@pytest.mark.parametrize("when", [KILL_BEFORE, KILL_AFTER], ids=["before", "after"])
def test_the_launcher_is_killed_around_sbatch(slurm: Lab, tmp_path: Path, when: str) -> None:
    wanted = ["seed=0,1,2", "trainer.steps=10"]
    first = slurm.launch(tmp_path / "m", *wanted, path=wrapper(tmp_path, when, slurm), STEPS_SECONDS="0.5")
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    assert {state.state for state in states(tmp_path / "m").values()} <= {"submitted", "running"}
    assert len(slurm.jobs(tmp_path / "m")) == (3 if when == KILL_AFTER else 0)
    said = slurm.finish(tmp_path / "m", *wanted)
    # Jobs that sbatch has accepted need no launcher; they may have begun.
    others = said.count("waits for that job") + said.count("is being run by process")
    assert others == (3 if when == KILL_AFTER else 0) and said.count("[3/3]") == 1, said
    assert {state.attempt for state in whole(tmp_path / "m", 3, 10).values()} == {1}
    assert len(slurm.jobs(tmp_path / "m")) == 3


def test_the_launcher_is_killed_while_runs_go_on(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    wanted = ["seed=0,1,2", "trainer.steps=20"]
    first = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 3)
    first.kill()
    first.communicate()
    second = slurm.launch(tmp_path / "m", *wanted)
    assert second.stdout is not None
    until(lambda: "waiting for it" in second.stdout.readline())
    gate.unlink()
    said = ended(second)
    assert len(slurm.jobs(tmp_path / "m")) == 3, said
    assert {state.attempt for state in whole(tmp_path / "m", 3, 20).values()} == {1}


def test_a_task_ends_well_without_a_word(slurm: Lab, tmp_path: Path) -> None:
    ends = ["cluster.setup=['exit 0']", "cluster.retry.lost=1"]
    launcher = slurm.launch(tmp_path / "m", "seed=0", "trainer.steps=3", *ends)
    said, _ = launcher.communicate(timeout=120)
    (state,) = states(tmp_path / "m").values()
    assert launcher.returncode == 1 and (state.state, state.failure_kind) == ("failed", "lost"), said
    assert "SLURM reports COMPLETED" in state.message and state.failure_counts == {"lost": 2}, state


def test_the_breaker_takes_back_what_waits(slurm: Lab, tmp_path: Path) -> None:
    wanted = [f"seed={','.join(map(str, range(12)))}", "trainer.steps=4", "cluster.max_running=2", "cluster.breaker=3"]
    ends = "{" + ", ".join(f'"{seed}": "raise"' for seed in range(12)) + "}"
    launcher = slurm.launch(tmp_path / "m", *wanted, STEPS_END=ends, STEPS_SECONDS="0.5")
    said, _ = launcher.communicate(timeout=200)
    kinds = [state.state for state in states(tmp_path / "m").values()]
    assert launcher.returncode == 1 and "3 failures in a row" in said and "runs were not submitted" in said, said
    assert set(kinds) == {"failed", "planned"} and kinds.count("failed") < 9
    assert not slurm.jobs(tmp_path / "m", "PENDING")
