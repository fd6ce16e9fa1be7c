"""A Ray cluster over the nodes of one SLURM job, for as long as one program runs.

    python -m launcher.schedulers.ray.on_slurm [--join-s S] PROGRAM [ARGUMENT ...]

It is called in the job's batch script. It starts a head on the first node and a raylet on every other one, with srun,
waits until all have joined, and runs the program here with RAY_ADDRESS set. Then it stops the processes that it
started, and returns the program's exit code. Two jobs on one node do not disturb each other: the ports follow from the
job's id and are tested, and a connection needs the job's token. `ray symmetric-run` cannot be used: it ends with `ray
stop`, which ends every Ray of the host.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

EXIT_NO_CLUSTER = 71
_FIRST, _LAST, _BLOCK = 20000, 32000, 64  # below the ports that kernels hand out by themselves
_TRIES = 3  # of heads
_HEALTH_EVERY_S = 10.0
_HEALTH_WITHIN_S = 60.0  # on a busy node the imports of one check take half of that
_HEALTH_MISSES = 3
_GRACE_S = 60.0
_STOP_S = 30.0
# This runs as a process of its own, because Ray ends a process whose head dies.
_JOINED = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="warning")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""


class NoCluster(RuntimeError):
    """Not all nodes joined the cluster, or the head is gone."""


@dataclass(frozen=True)
class Node:
    """A node of the job: SLURM's name, its address, its CPUs for the job."""

    name: str
    address: str
    cpus: int


def main(arguments: Sequence[str] | None = None) -> int:
    """The program's exit code, or 71 if there was no cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m launcher.schedulers.ray.on_slurm",
        description="Run a program on a Ray cluster over the nodes of this SLURM job.",
    )
    parser.add_argument("--join-s", type=float, default=300.0, metavar="S", help="seconds for all nodes to join (300)")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with RAY_ADDRESS set"
    )
    given = parser.parse_args(arguments)
    if not given.program:
        parser.error("PROGRAM is missing")
    if "SLURM_JOB_ID" not in os.environ:
        parser.error("SLURM_JOB_ID is not set: run this program in a SLURM job, from its batch script")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # runs every `finally`
    try:
        return _run(given.program, allocation(os.environ), given.join_s)
    except NoCluster as error:
        _say(str(error))
        return EXIT_NO_CLUSTER


def allocation(environment: Mapping[str, str]) -> list[Node]:
    """The job's nodes, from SLURM's variables and `scontrol`."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]], capture_output=True, text=True, check=True
    )
    cpus = per_node(environment["SLURM_JOB_CPUS_PER_NODE"])
    return [Node(name, _address(name), count) for name, count in zip(listed.stdout.split(), cpus, strict=True)]


def per_node(text: str) -> list[int]:
    """The numbers in SLURM's short form: `4(x2),8` is 4, 4, 8."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_JOB_CPUS_PER_NODE = {text}: must have SLURM's form, such as 4(x2),8")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _address(name: str) -> str:
    """A node's address. SLURM's name for a node may not be a host name."""
    shown = subprocess.run(["scontrol", "show", "node", name, "--oneliner"], capture_output=True, text=True, check=True)
    match = re.search(r"\bNodeAddr=(\S+)", shown.stdout)
    return socket.gethostbyname(match[1] if match else name)


def blocks(job: int) -> Iterator[int]:
    """First ports of blocks for a job's Ray, beginning with the block of its id. All ports of a block are free here."""
    count = (_LAST - _FIRST) // _BLOCK
    for tried in range(count):
        first = _FIRST + _BLOCK * ((job + tried) % count)
        if all(map(_is_free, range(first, first + _BLOCK))):
            yield first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _run(program: Sequence[str], nodes: Sequence[Node], join_s: float) -> int:
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    end = time.monotonic() + join_s
    for first in itertools.islice(blocks(int(os.environ["SLURM_JOB_ID"])), _TRIES):
        # Ray keeps its sockets and logs here. The path of a socket may have 107 characters.
        folder = f"{tempfile.gettempdir()}/ray-{os.environ['SLURM_JOB_ID']}-{secrets.token_hex(2)}"
        address = f"{nodes[0].address}:{first}"
        head = ["--head", "--port", str(first), "--ray-client-server-port", str(first + 1), "--include-dashboard=false"]
        steps = [_step(nodes[0], first + 3, folder, [*head, "--dashboard-port", str(first + 2)])]
        try:
            if not _answers(steps[0], address, end):
                continue  # another job took a port meanwhile
            steps += [
                _step(node, first + 3 + index % (_BLOCK - 3), folder, ["--address", address])
                for index, node in enumerate(nodes[1:], 1)
            ]
            _wait(nodes, steps, address, end)
            _say(f"Ray at {address} over {len(nodes)} nodes: {', '.join(node.name for node in nodes)}")
            return _supervise(program, steps, address)
        finally:
            for step in reversed(steps):  # the head last
                _end(step, _STOP_S)
    raise NoCluster(f"no head could be started on {nodes[0].name}; its output is above")


def _step(node: Node, port: int, folder: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a Ray node as a step of the job. `port`: of its agent; by default, two nodes on one host use the same."""
    resources = ["--num-cpus", str(node.cpus)]
    if "SLURM_GPUS_ON_NODE" in os.environ:
        resources += ["--num-gpus", os.environ["SLURM_GPUS_ON_NODE"]]
    if "SLURM_MEM_PER_NODE" in os.environ:  # MiB; the object store takes the rest
        resources += ["--memory", str(int(0.7 * int(os.environ["SLURM_MEM_PER_NODE"]) * 2**20))]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    # Workers use any free port; by default, every Ray of a host begins at the same one.
    fixed = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port", str(port)]
    # Nodes on one host that share a folder and start at the same time use each other's sockets.
    where = ["--node-ip-address", node.address, "--temp-dir", f"{folder}-{node.name}"]
    srun = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", f"--cpus-per-task={node.cpus}", "--overlap"]
    return subprocess.Popen([*srun, "--export=ALL", *ray, *where, *resources, *fixed, *options], start_new_session=True)


class _Health:
    """Repeated checks of a head, each in a process. `misses`: how many in a row failed; `answers`: how many did not."""

    def __init__(self, address: str, every_s: float) -> None:
        self._command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
        self._every_s = every_s
        self._check: subprocess.Popen[bytes] | None = None
        self._at = time.monotonic()  # when the check began, or the next one begins
        self.misses = self.answers = 0

    def advance(self) -> None:
        """Start a check if one is due, or evaluate one that has ended; never waits."""
        now = time.monotonic()
        if self._check is None:
            if now >= self._at:
                self._at = now
                self._check = subprocess.Popen(
                    self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                )
        elif self._check.poll() is not None or now > self._at + _HEALTH_WITHIN_S:
            good = self._check.poll() == 0
            self.answers += good
            self.misses = 0 if good else self.misses + 1
            self.close()
            self._at = now + self._every_s

    def close(self) -> None:
        """End the running check."""
        if self._check is not None:
            self._check.kill()
            self._check.wait()
            self._check = None


def _answers(head: subprocess.Popen[bytes], address: str, end: float) -> bool:
    """Wait for a new head to answer; False: it ended."""
    health = _Health(address, 0.5)
    try:
        while head.poll() is None:
            if time.monotonic() > end:
                raise NoCluster(f"the Ray head at {address} did not answer in time (--join-s)")
            health.advance()
            if health.answers:
                return True
            time.sleep(0.1)
        return False
    finally:
        health.close()


def _wait(nodes: Sequence[Node], steps: Sequence[subprocess.Popen[bytes]], address: str, end: float) -> None:
    """Wait until as many nodes have joined as there are steps."""
    with subprocess.Popen([sys.executable, "-c", _JOINED, address, str(len(steps))]) as joined:
        try:
            while (code := joined.poll()) is None:
                ended = [node.name for node, step in zip(nodes, steps, strict=True) if step.poll() is not None]
                if ended:
                    raise NoCluster(
                        f"the Ray of {', '.join(ended)} ended before all nodes had joined; its output is above"
                    )
                if time.monotonic() > end:
                    raise NoCluster(f"not all of {len(steps)} nodes joined the Ray at {address} in time (--join-s)")
                time.sleep(0.1)
        finally:
            joined.kill()
    if code != 0:
        raise NoCluster(f"the Ray at {address} did not answer the request for its nodes")


def _supervise(program: Sequence[str], steps: Sequence[subprocess.Popen[bytes]], address: str) -> int:
    """Run the program while the head answers. Ray handles lost nodes; they are only reported."""
    process = subprocess.Popen(program, env={**os.environ, "RAY_ADDRESS": address})
    lost: set[int] = set()
    health = _Health(address, _HEALTH_EVERY_S)
    try:
        while (code := process.poll()) is None:
            if steps[0].poll() is not None:
                raise NoCluster(f"the Ray head at {address} ended with code {steps[0].returncode}")
            for step in steps[1:]:
                if step.poll() is not None and step.pid not in lost:
                    lost.add(step.pid)
                    _say(f"a Ray node ended with code {step.returncode}; {len(steps) - len(lost)} are left")
            health.advance()
            if health.misses == _HEALTH_MISSES:
                raise NoCluster(f"the Ray head at {address} has not answered {health.misses} times")
            time.sleep(0.1)
    finally:
        health.close()
        _end(process, _GRACE_S)
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Ask a process to end, wait, and kill it if it does not."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


def _say(text: str) -> None:
    print(f"{Path(__file__).stem}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
