"""Ray inside jobs of a real SLURM: two at once on the same nodes, a head or a node that dies."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from launcher import nodes
from tests.cluster.rays import ROOT, Rays
from tests.waiting import DEADLINE, ended, until


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
def test_two_jobs_on_the_same_nodes_and_one_whose_head_dies(ray_in_slurm: Rays, tmp_path: Path) -> None:
    """The other one goes on and ends well. Nothing is left of both."""
    work = tmp_path / "work"
    work.touch()

    def begins(output: Path) -> str:
        job = submit(ray_in_slurm, output, work)
        until(lambda: output.exists() and "CLUSTER" in output.read_text())
        return job

    outputs = [tmp_path / "first.out", tmp_path / "second.out"]
    first, second = [begins(output) for output in outputs]  # one after the other: Ray gives its nodes 30 s to start
    found = [line.split()[1:] for one in outputs for line in one.read_text().splitlines() if line.startswith("CLUSTER")]
    assert [nodes for _, nodes in found] == ["3", "3"] and found[0][0] != found[1][0]

    (head,) = [pid for pid in ray_processes(ray_in_slurm, second) if psutil.Process(pid).name() == "gcs_server"]
    psutil.Process(head).kill()
    assert outcome(ray_in_slurm, second).startswith("FAILED "), outputs[1].read_text()
    work.unlink()
    said = outcome(ray_in_slurm, first), outputs[0].read_text()
    assert said[0] == "COMPLETED 0:0" and "WORKED" in said[1], said
    assert not ray_processes(ray_in_slurm, first)
    until(lambda: not ray_processes(ray_in_slurm, second))


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
