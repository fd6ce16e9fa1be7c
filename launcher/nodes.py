"""A Ray over the nodes of one SLURM job, or the part of a Ray that a run has.

A head runs on the first node and a raylet on every other one, as steps of the job. Two jobs on one node do not disturb
each other: the ports follow from the job's id and are tested, and a connection needs the token in the environment. `ray
symmetric-run` cannot be used: it ends with `ray stop`, which ends every Ray of the host.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

#: Seconds for all nodes to join.
JOIN_S = 300.0
_FIRST, _LAST, _BLOCK = 20000, 32000, 64  # below the ports that kernels hand out by themselves
_TRIES = 3
_STOP_S = 30.0
_CONNECT_S = 5.0
# This runs as a process of its own, because Ray ends a process whose head dies.
_JOINED = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="warning")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""
# What a step executes: Ray in a new folder, until it ends or nobody holds the step's input any more. (At SIGTERM, srun
# itself would kill it.) SLURM's early warning, SIGUSR2, goes to all processes of a job, and Ray would die of it. Ray
# opens its folder to all users: it is below one that is this user's alone.
_STEP = """
trap "" USR2
trap : TERM
mkdir -p "$(dirname "$0")" && mkdir -m 700 "$0" || exit
exec 3<&0
"$@" 3<&- &
ray=$!
{ while read -r line; do :; done <&3; kill $ray; } &
end=$!
while kill -0 $ray 2>&-; do wait $ray; code=$?; done
kill $end 2>&-
rm -rf "$0"
exit $code
"""


class Lost(RuntimeError):
    """A Ray does not come up, or its head is gone. A run that ends with this is resumed."""


@dataclass(frozen=True)
class Node:
    """A node of the job: SLURM's name, its address, its CPUs for the job."""

    name: str
    address: str
    cpus: int


@dataclass(frozen=True)
class Ray:
    """A Ray over nodes. steps: its processes by the names of their nodes; the first is the head."""

    address: str
    steps: Mapping[str, subprocess.Popen[bytes]]

    def ended(self) -> str | None:
        """The nodes whose Ray has ended, in words; None: all of it lives."""
        over = [(name, step.returncode) for name, step in self.steps.items() if step.poll() is not None]
        return " and ".join(f"the Ray of node {name} ended with code {code}" for name, code in over) or None


@dataclass(frozen=True)
class SharedRay:
    """A Ray that others use too, and the part of it that is reserved for a run.

    group: the id of the placement group, in hexadecimal digits; raylets: the addresses (HOST:PORT) of Ray on its nodes.
    """

    address: str
    group: str
    raylets: tuple[str, ...]

    def ended(self) -> str | None:
        """The nodes whose Ray has ended, and the head, in words; None: all of them accept connections."""
        named = {self.address: "the Ray head", **{raylet: "the Ray of a node" for raylet in self.raylets}}
        over = [f"{name} at {address} does not answer" for address, name in named.items() if not _accepts(address)]
        return " and ".join(over) or None


def _accepts(address: str) -> bool:
    """Whether a connection is accepted; a host that is slow or busy gets a few tries."""
    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return True
        except ConnectionRefusedError:
            return False
        except OSError:
            continue
    return False


@dataclass(frozen=True)
class Nodes:
    """The nodes of a run. shared: the Ray to use, if the run is a task of it."""

    count: int
    shared: SharedRay | None = None

    def ray(self, environment: Mapping[str, str], resources: Sequence[str]) -> AbstractContextManager[Ray]:
        """`ray` over the nodes of this process's job. ValueError: it is in none."""
        return ray(allocation(os.environ), environment, resources)


#: The nodes of a run on a single node.
ONE = Nodes(1)


def allocation(environment: Mapping[str, str]) -> list[Node]:
    """The job's nodes, from SLURM's variables and `scontrol`. ValueError: this is the environment of no job."""
    if "SLURM_JOB_ID" not in environment:
        raise ValueError("SLURM_JOB_ID is not set: this process is in no job of SLURM, whose nodes it could use")
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]], capture_output=True, text=True, check=True
    )
    cpus = per_node(environment["SLURM_JOB_CPUS_PER_NODE"])
    return [Node(name, _address(name), count) for name, count in zip(listed.stdout.split(), cpus, strict=True)]


def per_node(text: str) -> list[int]:
    """The numbers in SLURM's short form: `4(x2),8` is 4, 4, 8."""
    counts: list[int] = []
    for part in text.split(","):
        if (match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)) is None:
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


@contextmanager
def ray(nodes: Sequence[Node], environment: Mapping[str, str], resources: Sequence[str]) -> Iterator[Ray]:
    """A Ray over the nodes of this job, while the block runs. Lost: it does not come up.

    environment: of its processes; it has Ray's token. resources: the options of `ray start` that say what each node
    has.
    """
    end = time.monotonic() + JOIN_S
    for first in itertools.islice(blocks(int(os.environ["SLURM_JOB_ID"])), _TRIES):
        # Ray keeps its sockets and logs here. The path of a socket may have 107 characters.
        folder = f"{tempfile.gettempdir()}/ray-{os.environ['SLURM_JOB_ID']}-{secrets.token_hex(2)}"
        address = f"{nodes[0].address}:{first}"
        begin = partial(_step, folder, environment, resources)
        steps: dict[str, subprocess.Popen[bytes]] = {}
        try:
            head, more = nodes[0], ["--head", "--port", str(first), "--ray-client-server-port", str(first + 1)]
            more += ["--include-dashboard=false", "--dashboard-port", str(first + 2)]
            steps[head.name] = begin(head, first + 3, more)
            if not _join(steps, address, environment, end):
                continue  # another job took a port meanwhile, or the node is so busy that Ray gave up
            for index, node in enumerate(nodes[1:], 1):
                steps[node.name] = begin(node, first + 3 + index % (_BLOCK - 3), ["--address", address])
            if not _join(steps, address, environment, end):
                continue
            names = ", ".join(steps)
            print(f"ray: Ray at {address} over {len(nodes)} nodes: {names}", file=sys.stderr, flush=True)
            yield Ray(address, steps)
            return
        finally:
            for step in reversed(steps.values()):  # the head last
                _end(step)
    names = ", ".join(node.name for node in nodes)
    raise Lost(f"no Ray over {names} could be started in {_TRIES} tries; its output is above")


def _step(
    folder: str, environment: Mapping[str, str], resources: Sequence[str], node: Node, port: int, options: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a Ray node as a step of the job, which ends when its input does, also by the death of this process.

    `port`: of its agent; by default, two nodes on one host use the same.
    """
    # Nodes on one host that share a folder and start at the same time use each other's sockets.
    place = f"{folder}-{node.name}"
    where = ["--node-ip-address", node.address, "--temp-dir", f"{place}/r"]
    # Workers use any free port; by default, every Ray of a host begins at the same one.
    fixed = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port", str(port)]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    srun = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", f"--cpus-per-task={node.cpus}", "--overlap"]
    return subprocess.Popen(
        [*srun, "--export=ALL", "sh", "-c", _STEP, place, *ray, *where, *resources, *fixed, *options],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _join(
    steps: Mapping[str, subprocess.Popen[bytes]], address: str, environment: Mapping[str, str], end: float
) -> bool:
    """Wait until as many nodes have joined as there are steps; False: one ended.

    A Ray that starts, or is busy, refuses a program at first.
    """
    command = [sys.executable, "-c", _JOINED, address, str(len(steps))]
    while True:
        with subprocess.Popen(command, env=environment) as joined:
            try:
                while (code := joined.poll()) is None:
                    if any(step.poll() is not None for step in steps.values()):
                        return False
                    if time.monotonic() > end:
                        raise Lost(f"the Ray at {address} did not have {len(steps)} nodes in time")
                    time.sleep(0.1)
            finally:
                joined.kill()
        if code == 0:
            return True


def _end(step: subprocess.Popen[bytes]) -> None:
    """Close the input of a step, at which it ends. If it does not, ask it to end, and then kill it."""
    assert step.stdin is not None
    step.stdin.close()
    for insist in (step.terminate, step.kill):
        with suppress(subprocess.TimeoutExpired):
            step.wait(_STOP_S)
            return
        insist()
    step.wait()
