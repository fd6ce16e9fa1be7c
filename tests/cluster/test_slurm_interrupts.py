"""Ctrl-C of launches on SLURM: running runs are saved, waiting ones wait for another launch, and no job is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.run.folder import latest_checkpoint, read_provenance, run_folder
from tests.cluster.slurm import Lab, begun, states, steps_of, whole
from tests.waiting import until

pytestmark = pytest.mark.slurm
WANTED = ("seed=0,1,2,3", "trainer.steps=30", "cluster.max_running=2")


def saved(multirun: Path) -> None:
    """Two of the four runs have not begun, and two have saved all that they did."""
    found = states(multirun)
    assert sorted(state.state for state in found.values()) == ["planned", "planned", "preempted", "preempted"]
    assert {state.message for state in found.values()} == {None, "its launcher was interrupted"}
    for run_id, state in found.items():
        folder = run_folder(multirun, run_id)
        newest = latest_checkpoint(folder)
        assert state.state == "planned" or (newest is not None and newest[0] == steps_of(folder)[-1])


def no_jobs(lab: Lab, multirun: Path) -> bool:
    return not lab.jobs(multirun, "PENDING,RUNNING,COMPLETING")


def test_an_interrupted_launcher_leaves_no_jobs(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", *WANTED, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 2)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    saved(tmp_path / "m")
    until(lambda: no_jobs(slurm, tmp_path / "m"))
    slurm.finish(tmp_path / "m", *WANTED)
    whole(tmp_path / "m", 4, 30)


def test_a_run_sees_the_devices_that_the_latest_launch_asks_for(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    wanted = ("seed=0", "trainer.steps=30")
    launcher = slurm.launch(tmp_path / "m", *wanted, STEPS_GATE=str(gate), CUDA_VISIBLE_DEVICES="7")
    begun(tmp_path / "m", 1)
    (run_id,) = states(tmp_path / "m")
    assert visible(run_folder(tmp_path / "m", run_id)) == ""
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    until(lambda: no_jobs(slurm, tmp_path / "m"))
    said = slurm.finish(tmp_path / "m", *wanted, "model.resources.devices=1")
    assert "1 done" in said, said
    whole(tmp_path / "m", 1, 30)
    assert visible(run_folder(tmp_path / "m", run_id)).isdigit()


def visible(folder: Path) -> Any:
    """CUDA_VISIBLE_DEVICES of the run's last attempt."""
    return read_provenance(folder)["devices"]["visible"]


def test_adopted_jobs_end_as_ones_own(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    slurm.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        first = slurm.launch(tmp_path / "m", *WANTED, STEPS_GATE=str(gate))
        until(lambda: len(slurm.jobs(tmp_path / "m")) == 4)
        first.kill()
        first.communicate()
        second = slurm.launch(tmp_path / "m", *WANTED, STEPS_GATE=str(gate))
        assert second.stdout is not None
        until(lambda: "waits for that job" in second.stdout.readline())
    finally:
        slurm.ask("scontrol", "update", "PartitionName=main", "State=UP")
    begun(tmp_path / "m", 2)
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=60)
    assert {state.state for state in states(tmp_path / "m").values()} == {"planned", "preempted"}
    until(lambda: no_jobs(slurm, tmp_path / "m"))


def test_twice_ends_jobs_that_do_not_heed(slurm: Lab, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", "seed=0", "trainer.steps=5", STEPS_END='{"0": "hang"}')
    begun(tmp_path / "m", 1, steps=2)
    launcher.send_signal(signal.SIGINT)
    (run_id,) = states(tmp_path / "m")
    until(lambda: (run_folder(tmp_path / "m", run_id) / "stop.json").exists())
    assert launcher.poll() is None and not no_jobs(slurm, tmp_path / "m")
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    (state,) = states(tmp_path / "m").values()
    assert (state.state, state.failure_kind) == ("preempted", "preempted") and "interrupted" in state.message, state
    until(lambda: no_jobs(slurm, tmp_path / "m"))


@contextmanager
def silent(lab: Lab) -> Iterator[None]:
    """A slurmctld that does not answer; killed, it would also forget what is seconds old."""
    pid = int((lab.state / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_while_slurmctld_is_away(slurm: Lab, gate: Path, tmp_path: Path) -> None:
    launcher = slurm.launch(tmp_path / "m", *WANTED, STEPS_GATE=str(gate))
    begun(tmp_path / "m", 2)
    with silent(slurm):
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=60)
        assert "SLURM does not answer: 4 jobs stay in its queue" in said, said
        saved(tmp_path / "m")
    until(lambda: no_jobs(slurm, tmp_path / "m"))  # those that waited began, and ended at once
    slurm.finish(tmp_path / "m", *WANTED)
    assert sorted(state.attempt for state in whole(tmp_path / "m", 4, 30).values()) == [1, 1, 2, 2]


def test_waiting_jobs_of_an_interrupted_launch_are_not_adopted(slurm: Lab, tmp_path: Path) -> None:
    slurm.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        launcher = slurm.launch(tmp_path / "m", "seed=0,1", "trainer.steps=3")
        until(lambda: len(slurm.jobs(tmp_path / "m")) == 2)
        left = slurm.jobs(tmp_path / "m").keys()
        with silent(slurm):
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=60)
        assert slurm.jobs(tmp_path / "m", "PENDING").keys() == left
        second = slurm.launch(tmp_path / "m", "seed=0,1", "trainer.steps=3")
        until(lambda: len(slurm.jobs(tmp_path / "m", "PENDING").keys() - left) == 2)
        assert not slurm.jobs(tmp_path / "m", "PENDING").keys() & left
    finally:
        slurm.ask("scontrol", "update", "PartitionName=main", "State=UP")
    said, _ = second.communicate(timeout=120)
    assert "2 done" in said and "waits for that job" not in said, said
    assert {state.attempt for state in whole(tmp_path / "m", 2, 3).values()} == {1}
