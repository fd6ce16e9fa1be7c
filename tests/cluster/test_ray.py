"""`cluster=ray` on real Ray: the same runs as the pool's, refusals, and whatever may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.run import lifecycle
from launcher.run.folder import latest_checkpoint
from launcher.run.stop_request import cancel
from tests.cluster import rays
from tests.cluster.rays import ROOT, Rays
from tests.launcher.test_hydra_sweep import PROGRAM, edited_while_it_waits
from tests.results import learned, states, walked
from tests.waiting import ended, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LIMIT_S = 600
SWEEP = ("method=c0_grpo", "seed=0,1", "trainer.steps=60", "trainer.checkpoint_every=5")
PACE = {"STEPS_SECONDS": "0.1"}


@pytest.fixture
def ray() -> Iterator[Rays]:
    """A namespace, for a test that starts and stops what it wants there."""
    started = Rays()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def space() -> Iterator[Rays]:
    """The namespace of the cluster that tests share. Its runs take their time."""
    started = Rays()
    started.environment |= PACE
    yield started
    started.stop()


@pytest.fixture
def shared(space: Rays) -> Rays:
    """One node with 4 CPUs, for tests that leave it as it was, or kill it."""
    space.restore("--num-cpus", "4")
    return space


def past_a_checkpoint(multirun: Path, count: int = 2) -> list[Path]:
    """The folders of the runs, once so many run and have a checkpoint."""

    def found() -> list[Path]:
        runs = [path for path in multirun.glob("runs/*") if latest_checkpoint(path) and lifecycle.live_claim(path)]
        return runs if len(runs) >= count else []

    return sorted(until(found))


def assert_whole(multirun: Path, expected: dict[str, list[tuple[int, int]]]) -> None:
    """Every run is done, with every step once, and nobody owns it."""
    assert {state["state"] for state in states(multirun).values()} == {"done"}
    assert walked(multirun) == expected
    assert not [path for path in multirun.glob("runs/*") if lifecycle.read_claim(path)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, int]]]:
    """What an undisturbed sweep of the pool logs."""
    multirun = tmp_path_factory.mktemp("pool")
    command = [sys.executable, "-m", "tests.launcher.drive", str(multirun), *SWEEP]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    return walked(multirun)


def test_a_sweep_has_the_pools_identities_and_numbers(shared: Rays, tmp_path: Path) -> None:
    short = ["trainer.steps=3", "trainer.eval_every=3", "trainer.eval_prompts=8", "task.warm_start.steps=5"]
    two = ["method=c0_grpo,bnto_minimal", "experiment.baseline=c0_grpo", "seed=0"]
    launch = [sys.executable, "launch.py", "-m", *two, *short]
    pool = subprocess.run([*launch, f"multirun={tmp_path / 'pool'}"], cwd=ROOT, capture_output=True, text=True)
    assert pool.returncode == 0, pool.stdout + pool.stderr
    there = [*launch, "cluster=ray", f"cluster.address={shared.address}"]
    usual = ["model.resources.cpus=2", f"multirun={tmp_path / 'ray'}"]
    said = ended(shared.run(*there, *usual))
    assert "2 done" in said, said
    assert learned(tmp_path / "ray") == learned(tmp_path / "pool")
    assert len(learned(tmp_path / "pool")) == 2
    said = ended(shared.run(*there, *usual))
    assert "started" not in said, said
    said = ended(shared.run(*there, "model.resources.cpus=5", f"multirun={tmp_path / 'none'}"), 2)
    assert "1 node (1 of 4 CPUs" in said and "Fix: " in said, said
    assert not list(tmp_path.glob("none/runs/*/state.json"))


def test_a_run_of_two_nodes_takes_both(ray: Rays, tmp_path: Path, expected: Any) -> None:
    ray.environment["CUDA_VISIBLE_DEVICES"] = "0"  # a node may declare no more GPUs than it sees; the steps use none
    ray.head("--num-cpus", "1", "--num-gpus", "1")
    ray.node("--num-cpus", "1", "--num-gpus", "1")
    asked = ("trainer=several", "model.resources.nodes=2", "model.resources.devices=1")
    ended(ray.launcher(tmp_path, *SWEEP, *asked))
    assert_whole(tmp_path, expected)
    first, second = sorted(states(tmp_path).values(), key=lambda state: float(state["started"]))
    assert first["finished"] <= second["started"]


def test_a_run_sees_the_devices_that_the_latest_launch_asks_for(ray: Rays, tmp_path: Path, expected: Any) -> None:
    ray.environment |= {"CUDA_VISIBLE_DEVICES": "0", **PACE}  # the node's; the steps use none
    ray.head("--num-cpus", "2", "--num-gpus", "1")
    launcher = ray.launcher(tmp_path, *SWEEP)
    begun = past_a_checkpoint(tmp_path)
    assert [json.loads((path / "provenance.json").read_text())["devices"]["visible"] for path in begun] == ["", ""]
    os.kill(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=LIMIT_S)
    ended(ray.launcher(tmp_path, *SWEEP, "model.resources.devices=1"))
    assert_whole(tmp_path, expected)
    assert [json.loads((path / "provenance.json").read_text())["devices"]["visible"] for path in begun] == ["0", "0"]


def test_a_ray_started_for_the_launch_ends_with_it(ray: Rays, tmp_path: Path, expected: Any) -> None:
    drive = [sys.executable, "-m", "tests.launcher.drive", str(tmp_path), "cluster=ray", *SWEEP]
    ended(ray.run(*drive, TMPDIR=str(ray.folder)))
    assert_whole(tmp_path, expected)
    assert not list(ray.folder.glob("rlsweep-ray-*"))


ENDS_LATE = """
import os, subprocess, sys
from pathlib import Path
from launcher.schedulers.ray.driver import connected
with connected({"address": None}, Path(), {"CPU": 1, "GPU": 0, "memory": 1e8}):
    import ray
    @ray.remote
    class Worker:
        def start(self):
            return subprocess.Popen(["sleep", "8"]).pid
    worker = Worker.remote()
    late = ray.get(worker.start.remote())
assert not os.path.exists(f"/proc/{late}")
"""


def test_what_a_launchs_ray_has_started_is_waited_for(ray: Rays) -> None:
    """Ray ends its workers, and a busy machine ends them later: here a process that Ray does not end."""
    ended(ray.run(sys.executable, "-c", ENDS_LATE))


def test_a_killed_ray_worker_costs_an_attempt(shared: Rays, tmp_path: Path, expected: Any) -> None:
    launcher = shared.launcher(tmp_path, *SWEEP)
    victim, other = past_a_checkpoint(tmp_path)
    rays.ray_worker(shared.head_process, victim.name).kill()
    said = ended(launcher)
    assert_whole(tmp_path, expected)
    after = states(tmp_path)
    assert after[victim.name]["ends"] == {"lost": 1} and after[victim.name]["attempt"] == 2
    assert after[other.name]["ends"] == {} and after[other.name]["attempt"] == 1
    assert "the Ray worker" in said


def test_a_lost_node_is_named_and_its_runs_go_on_elsewhere(ray: Rays, tmp_path: Path, expected: Any) -> None:
    """Its raylet alone dies, then, of the node on which the runs went on, the runs too."""
    ray.environment |= PACE
    ray.head("--num-cpus", "0")
    node = ray.node("--num-cpus", "2")
    for runs_too in (False, True):
        multirun = tmp_path / str(runs_too)
        launcher = ray.launcher(multirun, *SWEEP)
        past_a_checkpoint(multirun)
        if runs_too:
            rays.kill(node.pid)
        else:
            (raylet,) = [one for one in rays.tree(node.pid) if one.name() == "raylet"]
            raylet.kill()
        node = ray.node("--num-cpus", "2")
        ended(launcher)
        assert_whole(multirun, expected)
        assert {json.dumps(state["ends"]) for state in states(multirun).values()} == {'{"node_failure": 1}'}


def test_a_killed_head_ends_the_launch_and_the_same_command_goes_on(
    shared: Rays, tmp_path: Path, expected: Any
) -> None:
    launcher = shared.launcher(tmp_path, *SWEEP)
    past_a_checkpoint(tmp_path)
    rays.kill(shared.head_process.pid)
    said = ended(launcher, 1)
    assert "the Ray cluster is gone" in said, said
    assert {(state["state"], state["kind"]) for state in states(tmp_path).values()} == {("lost", "node_failure")}
    shared.restore("--num-cpus", "4")
    ended(shared.launcher(tmp_path, *SWEEP))
    assert_whole(tmp_path, expected)
    assert {state["attempt"] for state in states(tmp_path).values()} == {2}


def test_a_killed_launchers_runs_are_saved_and_taken_up(shared: Rays, tmp_path: Path, expected: Any) -> None:
    launcher = shared.launcher(tmp_path, *SWEEP)
    past_a_checkpoint(tmp_path)
    os.kill(launcher.pid, signal.SIGKILL)
    gone = {("preempted", "launcher gone")}
    until(lambda: {(state["state"], state["cause"]) for state in states(tmp_path).values()} == gone)
    ended(shared.launcher(tmp_path, *SWEEP))
    assert_whole(tmp_path, expected)


def test_ctrl_c_saves_what_runs_and_keeps_the_rest_from_starting(shared: Rays, tmp_path: Path, expected: Any) -> None:
    large = (*SWEEP, "model.resources.cpus=3")
    launcher = shared.launcher(tmp_path, *large, "cluster.max_running=2")  # one runs, one waits in Ray
    past_a_checkpoint(tmp_path, 1)
    os.kill(launcher.pid, signal.SIGINT)
    said = ended(launcher, 1)
    assert sorted(state["state"] for state in states(tmp_path).values()) == ["planned", "preempted"], said
    ended(shared.launcher(tmp_path, *large))
    assert_whole(tmp_path, expected)
    assert sorted(state["attempt"] for state in states(tmp_path).values()) == [1, 2]


def test_two_launchers_and_a_cancelled_run(shared: Rays, tmp_path: Path, expected: Any) -> None:
    first, second = shared.launcher(tmp_path, *SWEEP), shared.launcher(tmp_path, *SWEEP)
    victim, other = past_a_checkpoint(tmp_path)
    assert cancel(tmp_path, victim.name) == "asked"
    assert [ended(launcher, 1) for launcher in (first, second)]
    after = states(tmp_path)
    assert after[victim.name]["state"] == "cancelled" and after[other.name]["state"] == "done"
    assert after[other.name]["attempt"] == 1 and walked(tmp_path)[other.name] == expected[other.name]


@pytest.mark.parametrize("address", ["127.0.0.1:6399", "ray://127.0.0.1:10001", "auto"])
def test_where_no_ray_is_the_launch_says_so_at_once(ray: Rays, tmp_path: Path, address: str) -> None:
    ray.environment["RAY_ADDRESS"] = "127.0.0.1:6399"  # what `auto` is
    command = [sys.executable, "launch.py", "-m", "method=c0_grpo", "cluster=ray", f"cluster.address={address}"]
    said = ended(ray.run(*command, f"multirun={tmp_path}", "cluster.start_s=600"), 2)
    assert f"conf/cluster/ray.yaml: cluster.address = {address}: nothing answers at 127.0.0.1:" in said
    assert "Fix: start a cluster" in said and not list(tmp_path.glob("runs/*"))


def test_a_program_that_is_edited_runs_as_it_was_launched(shared: Rays, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    where = f"hydra.sweeper.cluster={{name: ray, address: '{shared.address}', max_running: 1}}"
    words = ["train.py", "-m", "hydra/sweeper=rlsweep", "x=1,2,3", "steps=4", where]
    process = shared.run("env", "-C", str(tmp_path), sys.executable, *words, PYTHONPATH=str(ROOT))
    edited_while_it_waits(tmp_path, process)
