"""`trainer=verl_ray` over two nodes, of which one is lost: in a Ray that others use too, where each run has a placement
group, and in a job of SLURM."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.run import lifecycle
from tests.cluster import rays
from tests.cluster.rays import Rays
from tests.results import logged, only_state, reproducible, tensors
from tests.waiting import ended, until
from trainer_ext.backends.verl_ray import node

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
STEPS = 5
RUN = ["trainer=verl_ray", "method=bnto_minimal", "method.warmup_steps=1", "method.rho=0.2", "method.alpha_lambda=1.0"]
RUN += [f"trainer.steps={STEPS}", "trainer.ranks=2", "trainer.checkpoint_every=1", "verl.data.train_batch_size=8"]
RUN += ["task.warm_start.steps=60"]
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


@pytest.fixture(scope="module")
def ray() -> Iterator[Rays]:
    """A head with two CPUs, and a namespace for it."""
    space = Rays()
    try:
        space.head("--num-cpus", "2")
        yield space
    finally:
        space.stop()


def launched(space: Rays, multirun: Path, *overrides: str) -> subprocess.Popen[str]:
    """A run of two ranks."""
    return space.run(sys.executable, "launch.py", "-m", *RUN, f"multirun={multirun}", *overrides)


def trains(multirun: Path, started: subprocess.Popen[str]) -> None:
    """Wait until a run that was launched has made two steps."""
    until(
        lambda: max([0, *(len(logged(run)) for run in multirun.glob("runs/*"))]) >= 2 or started.poll() is not None, 300
    )
    assert started.poll() is None, started.communicate()[0]


def assert_same(one: Path, two: Path) -> None:
    """The runs of two multirun folders ended with the same bits, that of the second one in its second attempt."""
    (first,), (second,) = (list(folder.glob("runs/*")) for folder in (one, two))
    assert first.name == second.name and {line["attempt"] for line in logged(second)} == {1, 2}
    assert reproducible(logged(first)) == reproducible(logged(second))
    end = Path("checkpoints") / f"step_{STEPS:06d}"
    assert tensors(first / end) and tensors(first / end) == tensors(second / end)


def of_runs(space: Rays) -> list[psutil.Process]:
    """The processes of all runs in the Ray."""
    found = space.processes("verl_ray")
    for one in space.processes("ray::"):
        try:
            found += [one] * (node.MARK in one.environ())
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def in_ray(ray: Rays, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The multirun folders of two runs at a time. One has the head's two CPUs. The other has a node with one CPU, and
    another that is killed while it trains: it waits for the first one, and goes on beside it."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    where = ["cluster=ray", f"cluster.address={ray.address}", *SMALL]
    alone = launched(ray, one, *where, "model.resources.cpus=2")
    nodes = [ray.node("--num-cpus", "1") for _ in range(2)]
    until(lambda: any(map(lifecycle.live_claim, one.glob("runs/*"))) or alone.poll() is not None, 300)
    assert alone.poll() is None, alone.communicate()[0]
    spread = launched(ray, two, *where, "model.resources.nodes=2")
    trains(two, spread)
    named = {node: [" ".join(one.cmdline()) for one in rays.tree(node.pid)] for node in nodes}
    (dies,) = [node for node, names in named.items() if not any("verl_ray.driver" in name for name in names)]
    for kind in ("ray::WorkerDict", "ray::HfServer"):
        assert sum(name.startswith(kind) for name in named[dies]) == 1
    rays.kill(dies.pid)
    for started in (alone, spread):
        said = ended(started, seconds=800)
        assert "1 done" in said, said
    return one, two


def test_two_runs_at_a_time_and_one_over_two_nodes_that_loses_one(ray: Rays, in_ray: tuple[Path, Path]) -> None:
    """Both end with the same bits, and nothing is left of them."""
    one, two = in_ray
    assert (only_state(one)["attempt"], only_state(one)["ends"]) == (1, {})
    assert (only_state(two)["attempt"], only_state(two)["ends"]) == (2, {"node_failure": 1})
    (errors,) = two.glob("runs/*/attempts/1/stderr.log")
    assert "NodeLost: the Ray of a node at 127.0.0.1:" in errors.read_text().splitlines()[-1]
    assert_same(one, two)
    said, _ = ray.run(sys.executable, "-c", LEFT, ray.address).communicate(timeout=200)
    assert "LEFT []" in said, said
    until(lambda: not of_runs(ray))


def node_of(process: psutil.Process) -> tuple[str, str]:
    """Job and SLURM node of a process of Ray: a raylet has its node's folder in its command."""
    commands = [" ".join(one.cmdline()) for one in [process, *process.parents()]]
    (found, *_) = [match for one in commands if (match := re.search(r"/ray-(\d+)-\w+-(n\d)/r", one))]
    return found[1], found[2]


def raylets(space: Rays) -> dict[tuple[str, str], psutil.Process]:
    """The raylets by job and node."""
    found = {}
    for one in space.processes("raylet/raylet"):
        with suppress(psutil.Error, ValueError):  # it ends meanwhile
            found[node_of(one)] = one
    return found


@pytest.mark.slurm
def test_a_run_over_two_nodes_of_slurm_loses_one_and_goes_on_with_one(
    ray_in_slurm: Rays, in_ray: tuple[Path, Path], tmp_path: Path
) -> None:
    """The Ray of one node dies while the first attempt trains. The second attempt, on one node, starts a Ray of one
    machine. It ends with the bits of a run in another Ray, and nothing is left on the nodes."""
    space = ray_in_slurm
    shutil.copytree(in_ray[0] / "cache", tmp_path / "cache")
    where = ["cluster=slurm", "cluster.poll_s=1"]
    started = launched(space, tmp_path, *where, "model.resources.nodes=2", "cluster.retry.lost=0")
    trains(tmp_path, started)
    places = {name: {node_of(one) for one in space.processes(f"ray::{name}")} for name in ("WorkerDict", "HfServer")}
    assert len(places["HfServer"]) == 2 and places["WorkerDict"] == places["HfServer"]
    job, dies = max(places["HfServer"])
    raylets(space)[job, dies].kill()
    ended(started, 1, seconds=800)
    (run,) = tmp_path.glob("runs/*")
    assert only_state(tmp_path)["ends"] == {"lost": 1}
    errors = (run / "attempts" / "1" / "stderr.log").read_text()
    assert f"Lost: the Ray of node {dies} ended with code " in errors.splitlines()[-1]
    until(lambda: not space.processes("ray::", "raylet", "gcs_server", "verl_ray"))

    ended(launched(space, tmp_path, *where), 1)  # says on what its runs are from now on; the failed one waits
    resume = ["-m", "launcher", "resume", run.name, f"--multirun={tmp_path}"]
    said = ended(space.run(sys.executable, *resume), seconds=800)
    assert "1 done" in said, said
    assert not space.processes("ray::", "raylet", "gcs_server")
    assert not [*Path(space.environment["TMPDIR"]).glob("ray-*")]
    assert_same(in_ray[0], tmp_path)
