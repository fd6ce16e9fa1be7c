"""The local pool as its users meet it: memory, devices, a full disk, owners that are stopped or on another host."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from launcher.run import lifecycle
from tests.launcher.conftest import Sweeps, mounted
from tests.launcher.test_sweep import SMALL
from tests.waiting import ended, until

pytestmark = pytest.mark.processes


def test_each_slot_has_its_own_device(sweeps):
    environment = {"CUDA_VISIBLE_DEVICES": "4,7"}
    launcher = sweeps.start_held(*SMALL[:-1], "model.resources.devices=1", **environment)
    until(lambda: len(sweeps.logging()) == 2)
    sweeps.release()
    output = ended(launcher)
    assert "to run on 2 workers" in output, output
    records = [json.loads(path.read_text()) for path in sweeps.multirun.glob("runs/*/provenance.json")]
    assert {record["devices"]["visible"] for record in records} == {"4", "7"}


def test_runs_that_ask_for_no_device_see_none(sweeps):
    """Forks of a server that has not started CUDA, which none of its forks could use then."""
    launcher = sweeps.start_held(*SMALL, "seed=0,1", CUDA_VISIBLE_DEVICES="4,7")
    folder = until(sweeps.logging)[0]
    of_server = psutil.Process(lifecycle.read_claim(folder).pid).environ()
    assert of_server["CUDA_VISIBLE_DEVICES"] == "" and of_server["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    sweeps.release()
    ended(launcher)
    records = [json.loads(path.read_text()) for path in sweeps.multirun.glob("runs/*/provenance.json")]
    assert [record["devices"]["visible"] for record in records] == ["", ""]


def test_a_stopped_owner_is_named_and_waited_for(sweeps):
    first = sweeps.start_held(*SMALL, "seed=0")
    folder = until(sweeps.logging)[0]
    owner = lifecycle.read_claim(folder)
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        first.kill()
        second = sweeps.start(*SMALL, "seed=0")
        said = next(line for line in iter(second.stdout.readline, "") if "is being run by" in line)
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    assert f"process {owner.pid} on {owner.host}" in said
    ended(second)
    assert {state["state"] for state in sweeps.states().values()} == {"done"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    yield from mounted(tmp_path / "small", "4m")


@pytest.mark.root
def test_a_full_disk_stops_the_launch_and_with_space_the_same_command_finishes(small_disk):
    sweeps = Sweeps(small_disk / "multirun")
    launcher = sweeps.start_held(*SMALL)
    until(lambda: list(sweeps.multirun.glob("runs/*/checkpoints/step_*")))
    with pytest.raises(OSError, match="No space left"), open(small_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(1024))
    sweeps.release()
    output = ended(launcher, 1)
    assert "No space left on device" in output, output
    assert "Traceback" not in output
    assert "failed" not in {state["state"] for state in sweeps.states().values()}
    (small_disk / "ballast").unlink()
    code, output = sweeps.run(*SMALL)
    assert code == 0, output
    assert all([step for step, _ in own] == list(range(1, 13)) for own in sweeps.values().values())
    assert not list(sweeps.multirun.glob("runs/*/.tmp-*"))
