"""Ray inside jobs of a real SLURM: two at once on the same nodes, a head or a node that dies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher import nodes
from tests.cluster import leftovers
from tests.cluster.rays import ROOT, Rays
from tests.results import logged, only_state, reproducible, tensors
from tests.waiting import DEADLINE, ended, until

LAB = Path(__file__).parent / "lab"


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[Rays]:
    """A namespace with a SLURM of three nodes."""
    space = Rays()
    state = leftovers.folder(Path(tempfile.gettempdir()), "rl-")
    lab = {"LAB_STATE": str(state), "LAB_DBD": "0", "LAB_NODES": "3", "LAB_PORT": "30400"}
    space.environment |= {**lab, "SLURM_CONF": str(state / "etc" / "slurm.conf"), "TMPDIR": str(state)}
    del space.environment["RAY_AUTH_MODE"], space.environment["RAY_AUTH_TOKEN"]
    try:
        # SLURM resolves no address on a host that has only 127.0.0.1.
        assert space.run("ip", "address", "add", "10.255.255.1/32", "dev", "lo").wait(timeout=DEADLINE) == 0
        up = space.run("bash", "-c", f"{LAB / 'start.sh'} > {tmp_path / 'start.log'} 2>&1")
        assert up.wait(timeout=DEADLINE) == 0, (tmp_path / "start.log").read_text()
        yield space
        space.run("bash", str(LAB / "stop.sh")).communicate(timeout=DEADLINE)
    finally:
        space.stop()
        shutil.rmtree(state)


def submit(space: Rays, output: Path, file: Path) -> str:
    """Submit a job of over_nodes.py over three nodes; its number."""
    script = output.with_suffix(".sh")
    program = [sys.executable, "-m", "tests.cluster.over_nodes", str(file)]
    script.write_text(f"#!/bin/bash\ncd {ROOT}\nexec {' '.join(program)}\n")
    options = ["--parsable", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=4000"]
    return ended(space.run("sbatch", *options, f"--output={output}", str(script))).strip()


def outcome(space: Rays, job: str) -> str:
    """State and exit code of a job that is over."""

    def found() -> str | None:
        shown, _ = space.run("scontrol", "show", "job", job, "--oneliner").communicate(timeout=DEADLINE)
        words = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        over = words["JobState"] not in ("PENDING", "RUNNING", "COMPLETING")
        return f"{words['JobState']} {words['ExitCode']}" if over else None

    return str(until(found))


def ray_processes(space: Rays, job: str) -> list[int]:
    """What is left of a job's Ray. Another SLURM may have a job of this number."""
    own = {"SLURM_CONF": space.environment["SLURM_CONF"], "SLURM_JOB_ID": job}
    left = []
    for process in psutil.process_iter():
        try:
            if own.items() <= process.environ().items() and "ray" in " ".join(process.cmdline()):
                left.append(process.pid)
        except psutil.Error:
            continue
    return left


@pytest.mark.ray
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_two_jobs_on_the_same_nodes_and_one_whose_head_dies(ray: Rays, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.touch()

    def begins(output: Path) -> str:
        job = submit(ray, output, work)
        until(lambda: output.exists() and "CLUSTER" in output.read_text())
        return job

    outputs = [tmp_path / "first.out", tmp_path / "second.out"]
    jobs = [begins(output) for output in outputs]  # one after the other: Ray gives its nodes 30 s to start
    work.unlink()
    assert [outcome(ray, job) for job in jobs] == ["COMPLETED 0:0"] * 2, [output.read_text() for output in outputs]
    said = [output.read_text() for output in outputs]
    found = [line.split()[1:] for text in said for line in text.splitlines() if line.startswith("CLUSTER")]
    assert [nodes for _, nodes in found] == ["3", "3"] and found[0][0] != found[1][0]
    assert all("WORKED" in text for text in said)
    assert not [pid for job in jobs for pid in ray_processes(ray, job)]

    output = tmp_path / "third.out"
    work.touch()
    job = begins(output)
    (head,) = [pid for pid in ray_processes(ray, job) if psutil.Process(pid).name() == "gcs_server"]
    psutil.Process(head).kill()
    assert outcome(ray, job).startswith("FAILED "), output.read_text()
    until(lambda: not ray_processes(ray, job))


STEPS = 5
RUN = ["trainer=verl_ray", "method=bnto_minimal", "method.warmup_steps=1", "method.rho=0.2", "method.alpha_lambda=1.0"]
RUN += [f"trainer.steps={STEPS}", "trainer.ranks=2", "trainer.checkpoint_every=1", "verl.data.train_batch_size=8"]


def launched(space: Rays, multirun: Path, *overrides: str) -> subprocess.Popen[str]:
    where = ["cluster=slurm", "cluster.poll_s=1", "task.warm_start.steps=60", f"multirun={multirun}"]
    return space.run(sys.executable, "launch.py", "-m", *RUN, *where, *overrides)


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


@pytest.mark.ray
@pytest.mark.slurm
@pytest.mark.timeout(1200)
def test_a_run_over_two_nodes_loses_one_and_ends_with_the_bits_of_a_run_on_one(ray: Rays, tmp_path: Path) -> None:
    """Two ranks each. On one node, a run starts a Ray of one machine. Over two, the Ray of one node dies while the
    first attempt trains. Nothing is left on the nodes."""
    one, two = tmp_path / "one", tmp_path / "two"
    said = ended(launched(ray, one), seconds=800)
    assert "1 done" in said, said
    assert not ray.processes("ray::", "raylet", "gcs_server")

    shutil.copytree(one / "cache", two / "cache")
    started = launched(ray, two, "model.resources.nodes=2")
    until(lambda: max([0, *(len(logged(run)) for run in two.glob("runs/*"))]) >= 2 or started.poll() is not None, 300)
    assert started.poll() is None, started.communicate()[0]
    places = {name: {node_of(one) for one in ray.processes(f"ray::{name}")} for name in ("WorkerDict", "HfServer")}
    assert len(places["HfServer"]) == 2 and places["WorkerDict"] == places["HfServer"]
    job, dies = max(places["HfServer"])
    raylets(ray)[job, dies].kill()
    said = ended(started, seconds=800)
    assert "1 done" in said, said
    until(lambda: not ray.processes("ray::", "raylet", "gcs_server", "verl_ray"))
    assert not [*Path(ray.environment["TMPDIR"]).glob("ray-*")]

    assert (only_state(two)["attempt"], only_state(two)["ends"]) == (2, {"lost": 1})
    (alone,), (spread,) = (list(folder.glob("runs/*")) for folder in (one, two))
    errors = (spread / "attempts" / "1" / "stderr.log").read_text()
    assert f"Lost: the Ray of node {dies} ended with code " in errors.splitlines()[-1]
    assert alone.name == spread.name and {line["attempt"] for line in logged(spread)} == {1, 2}
    assert reproducible(logged(spread)) == reproducible(logged(alone))
    end = Path("checkpoints") / f"step_{STEPS:06d}"
    assert tensors(spread / end) and tensors(spread / end) == tensors(alone / end)


def test_slurms_short_numbers_of_cpus() -> None:
    assert nodes.per_node("4(x2),8") == [4, 4, 8]
    with pytest.raises(ValueError, match="4\\(x2\\),8"):
        nodes.per_node("four")


def test_ports_come_from_the_job_and_are_free(tmp_path: Path) -> None:
    import socket

    first = next(nodes.blocks(7))
    assert first == next(nodes.blocks(7)) != next(nodes.blocks(8))
    with socket.socket() as taken:
        taken.bind(("", first + 5))
        assert next(nodes.blocks(7)) > first


def test_a_ray_without_its_head_or_a_node_is_named() -> None:
    import socket

    with socket.socket() as head, socket.socket() as node:
        for one in (head, node):
            one.bind(("127.0.0.1", 0))
            one.listen()
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in (head, node)]
        shared = nodes.SharedRay(addresses[0], "00", (addresses[1],))
        assert shared.ended() is None
        node.close()
        assert shared.ended() == f"the Ray of a node at {addresses[1]} does not answer"
    assert str(shared.ended()).startswith(f"the Ray head at {addresses[0]} does not answer and the Ray of a node at")
