"""`trainer=verl_ray cluster=ray`: runs as second jobs of a Ray that others use too, each in a placement group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.run import lifecycle
from tests.cluster import rays
from tests.cluster.rays import Rays
from tests.cluster.test_ray_in_slurm import RUN, STEPS
from tests.results import logged, only_state, reproducible, tensors
from tests.waiting import ended, until
from trainer_ext.backends.verl_ray import node

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
# What a run requests of a cluster's memory.
SMALL = ["model.resources.memory_gb=0.7", "trainer.services_gb=0.1", "trainer.rank_gb=0.1"]
# Ray lists what was killed for a moment.
LEFT = """
import sys, time, ray
from ray.util.placement_group import placement_group_table
ray.init(sys.argv[1], logging_level="warning")
for _ in range(60):
    groups = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
    left = [*ray.util.list_named_actors(all_namespaces=True), *groups]
    if not left:
        break
    time.sleep(1)
print("LEFT", left)
"""


@pytest.fixture
def ray() -> Iterator[Rays]:
    """A head with two CPUs, and a namespace for it."""
    space = Rays()
    try:
        space.head("--num-cpus", "2")
        yield space
    finally:
        space.stop()


def launched(space: Rays, multirun: Path, *overrides: str) -> subprocess.Popen[str]:
    """A run of two ranks that requests little memory. The test has two at a time, and a node more."""
    where = ["cluster=ray", f"cluster.address={space.address}", "task.warm_start.steps=60", f"multirun={multirun}"]
    return space.run(sys.executable, "launch.py", "-m", *RUN, *where, *SMALL, *overrides)


def of_runs(space: Rays) -> list[psutil.Process]:
    """The processes of all runs in the Ray."""
    found = space.processes("verl_ray")
    for one in space.processes("ray::"):
        try:
            found += [one] * (node.MARK in one.environ())
        except psutil.Error:
            continue
    return found


def test_two_runs_at_a_time_and_one_over_two_nodes_that_loses_one(ray: Rays, tmp_path: Path) -> None:
    """One run has the head's two CPUs. The other has a node with one CPU, and another that is killed while it trains.
    It waits for the first one, and goes on beside it. Both end with the same bits, and nothing is left of them."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = launched(ray, one, "model.resources.cpus=2")
    nodes = [ray.node("--num-cpus", "1") for _ in range(2)]
    until(lambda: any(map(lifecycle.live_claim, one.glob("runs/*"))) or alone.poll() is not None, 300)
    assert alone.poll() is None, alone.communicate()[0]
    spread = launched(ray, two, "model.resources.nodes=2")
    until(lambda: max([0, *(len(logged(run)) for run in two.glob("runs/*"))]) >= 2 or spread.poll() is not None, 300)
    assert spread.poll() is None, spread.communicate()[0]
    named = {node: [" ".join(one.cmdline()) for one in rays.tree(node.pid)] for node in nodes}
    (dies,) = [node for node, names in named.items() if not any("verl_ray.driver" in name for name in names)]
    for kind in ("ray::WorkerDict", "ray::HfServer"):
        assert sum(name.startswith(kind) for name in named[dies]) == 1
    rays.kill(dies.pid)
    for started in (alone, spread):
        said = ended(started, seconds=800)
        assert "1 done" in said, said

    assert (only_state(one)["attempt"], only_state(one)["ends"]) == (1, {})
    assert (only_state(two)["attempt"], only_state(two)["ends"]) == (2, {"node_failure": 1})
    (first,), (second,) = (list(folder.glob("runs/*")) for folder in (one, two))
    errors = (second / "attempts" / "1" / "stderr.log").read_text()
    assert "NodeLost: the Ray of a node at 127.0.0.1:" in errors.splitlines()[-1]
    assert first.name == second.name and {line["attempt"] for line in logged(second)} == {1, 2}
    assert reproducible(logged(first)) == reproducible(logged(second))
    end = Path("checkpoints") / f"step_{STEPS:06d}"
    assert tensors(first / end) and tensors(first / end) == tensors(second / end)

    said, _ = ray.run(sys.executable, "-c", LEFT, ray.address).communicate(timeout=200)
    assert "LEFT []" in said, said
    until(lambda: not of_runs(ray))
