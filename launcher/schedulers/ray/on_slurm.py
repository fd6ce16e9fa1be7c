"""A Ray cluster over the nodes of one SLURM job, for as long as one program runs.

    python -m launcher.schedulers.ray.on_slurm [--join-s S] PROGRAM [ARGUMENT ...]

It is called in the job's batch script. It starts a Ray over the job's nodes (launcher.nodes), and runs the program here
with RAY_ADDRESS set. Then it stops the processes that it started, and returns the program's exit code.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from launcher import nodes

EXIT_NO_CLUSTER = 71
_HEALTH_EVERY_S = 10.0
_HEALTH_MISSES = 3
_GRACE_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The program's exit code, or 71 if there was no cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m launcher.schedulers.ray.on_slurm",
        description="Run a program on a Ray cluster over the nodes of this SLURM job.",
    )
    parser.add_argument(
        "--join-s",
        type=float,
        default=nodes.JOIN_S,
        metavar="S",
        help=f"seconds for all nodes to join ({nodes.JOIN_S:g})",
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with RAY_ADDRESS set"
    )
    given = parser.parse_args(arguments)
    if not given.program:
        parser.error("PROGRAM is missing")
    if "SLURM_JOB_ID" not in os.environ:
        parser.error("SLURM_JOB_ID is not set: run this program in a SLURM job, from its batch script")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # runs every `finally`
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    allocation = nodes.allocation(os.environ)
    try:
        with nodes.ray(allocation, os.environ, join_s=given.join_s, keep_logs=True) as started:
            return _supervise(given.program, started)
    except nodes.Lost as error:
        nodes.say(f"{error} (--join-s)" if isinstance(error, nodes.Late) else str(error))
        return EXIT_NO_CLUSTER


def _supervise(program: Sequence[str], ray: nodes.Ray) -> int:
    """Run the program while the head answers. Ray handles lost nodes; they are only reported."""
    process = subprocess.Popen(program, env={**os.environ, "RAY_ADDRESS": ray.address})
    (_, head), *others = ray.steps.items()
    lost: set[str] = set()
    health = nodes.Health(ray.address, os.environ, _HEALTH_EVERY_S)
    try:
        while (code := process.poll()) is None:
            if head.poll() is not None:
                raise nodes.Lost(f"the Ray head at {ray.address} ended with code {head.returncode}")
            for name, step in others:
                if step.poll() is not None and name not in lost:
                    lost.add(name)
                    left = len(ray.steps) - len(lost)
                    nodes.say(f"the Ray of node {name} ended with code {step.returncode}; {left} are left")
            health.advance()
            if health.misses == _HEALTH_MISSES:
                raise nodes.Lost(f"the Ray head at {ray.address} has not answered {health.misses} times")
            time.sleep(0.1)
    finally:
        health.close()
        nodes.stop(process, _GRACE_S)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
