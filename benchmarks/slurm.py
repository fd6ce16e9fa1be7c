"""How long 1000 runs take to reach SLURM's queue, beside Hydra's submitit launcher: python -m benchmarks.slurm

Starts a SLURM of its own for that (root and SLURM's packages; without them it says so and measures nothing). First the
parts, in this process: what this process computes, which is limited; what it waits for SLURM's commands, and for the
disk, where every configuration and state is synced. Then two commands from their start until their jobs are in the
queue: launch.py, and Hydra's own sweeper with hydra-submitit-launcher on the same configurations, which it composes for
each job, and neither checks nor freezes. Both submit one array. The partition is down: nothing begins meanwhile.
By turns with launch.py, a program of @hydra.main with as many jobs under hydra/sweeper=rlsweep.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.size import exit_code, size
from launcher.execution import sweep
from launcher.planning import freeze, planner
from tests.cluster import leftovers
from tests.cluster.slurm import Lab, missing_slurm

ROOT = Path(__file__).parents[1]
LIMIT_S = 5.0
# Of the time of a foreign program's jobs to that of as many runs of launch.py.
FOREIGN_LIMIT = 1.2
TURNS = 3
FOREIGN = """
import hydra
from hydra.core.config_store import ConfigStore

ConfigStore.instance().store("config", {"seed": 0, "lr": 0.1, "optim": {"name": "adam", "betas": [0.9, 0.99]}})


@hydra.main(version_base=None, config_name="config")
def main(config):
    pass


main()
"""
HYDRA = f"""
import hydra


@hydra.main(version_base="1.3", config_path={str(ROOT / "conf")!r}, config_name="config")
def main(config):
    pass


main()
"""


@dataclass
class Parts:
    """Seconds: planning; from there until everything was submitted, and of the latter: computing, SLURM, the disk."""

    planning: float = 0.0
    submitting: float = 0.0
    computing: float = 0.0
    slurm: float = 0.0
    disk: float = 0.0


@contextlib.contextmanager
def timed(parts: Parts) -> Iterator[None]:
    """Add up what is waited for commands and for the disk."""
    fsync: Callable[[int], None] = os.fsync

    class Popen(subprocess.Popen[Any]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            self.began = time.perf_counter()
            super().__init__(*arguments, **more)

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            command = self.args if isinstance(self.args, str) else self.args[0]
            if command in ("sbatch", "squeue", "scontrol", "scancel"):
                parts.slurm += time.perf_counter() - self.began

    def synced(handle: int) -> None:
        began = time.perf_counter()
        fsync(handle)
        parts.disk += time.perf_counter() - began

    with mock.patch("subprocess.Popen", Popen), mock.patch("os.fsync", synced):
        yield


def words(multirun: Path, runs: int) -> list[str]:
    """What is said to launch.py."""
    seeds = f"seed={','.join(map(str, range(runs)))}"
    return [seeds, "method=c0_grpo", "cluster=slurm", "cluster.detach=true", f"multirun={multirun}"]


def parts(multirun: Path, runs: int) -> Parts:
    """Where the time of a launch goes."""
    found = Parts()
    began = time.perf_counter()
    planned = planner.make(ROOT, words(multirun, runs))
    between, computed = time.perf_counter(), time.process_time()
    with timed(found), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        outcome = sweep.launch(ROOT, planned, freeze.missing(planned))
    assert outcome.detached
    found.planning, found.submitting = between - began, time.perf_counter() - between
    found.computing = time.process_time() - computed
    return found


def ours(multirun: Path, runs: int) -> float:
    """Seconds of the command."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "launch.py", "-m", *words(multirun, runs)], cwd=ROOT, capture_output=True, check=True
    )
    return time.perf_counter() - began


def foreign(folder: Path, runs: int) -> float:
    """Seconds of the same for a program of @hydra.main."""
    folder.mkdir()
    (folder / "application.py").write_text(FOREIGN)
    words = ["-m", "hydra/sweeper=rlsweep", f"seed=range({runs})", "hydra.sweeper.cluster={name: slurm, detach: true}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "application.py", *words], cwd=folder, env=environment, capture_output=True, check=True
    )
    return time.perf_counter() - began


def peer(folder: Path, runs: int) -> float:
    """Seconds of hydra-submitit-launcher until its last job is in the queue."""
    (folder / "application.py").write_text(HYDRA)
    command = [sys.executable, "application.py", "-m", "hydra/sweeper=basic", "hydra/launcher=submitit_slurm"]
    limits = ["hydra.launcher.mem_gb=2", f"hydra.launcher.array_parallelism={runs}", f"hydra.sweep.dir={folder}/out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "method=c0_grpo", f"seed=range({runs})", *limits], cwd=folder, env=environment, **quiet
    )
    try:
        while not _queued("application", runs):
            assert process.poll() is None, "the peer has ended"
            time.sleep(0.2)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def _queued(name: str, runs: int) -> bool:
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", f"--name={name}"]
    return len(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()) >= runs


@contextlib.contextmanager
def queue() -> Iterator[None]:
    """A SLURM of our own that takes jobs and begins none."""
    lab = Lab(leftovers.folder(ROOT / "build", "slurm-benchmark-"), {"LAB_DBD": "0"})
    try:
        lab.script("start.sh")
        with mock.patch.dict(os.environ, lab.environment):
            lab.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
            yield
    finally:
        lab.script("stop.sh", "--wipe")


def main() -> int:
    """Measure, print, compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=size(1000, 20))
    runs: int = parser.parse_args().runs
    if why := missing_slurm():
        print(f"not measured: {why}")
        return 0
    leftovers.clear((ROOT / "build", "slurm-*"))
    with tempfile.TemporaryDirectory() as folder, queue():
        found = parts(Path(folder) / "parts", runs)
        turns = [
            (ours(Path(folder) / f"ours-{turn}", runs), foreign(Path(folder) / f"foreign-{turn}", runs))
            for turn in range(TURNS)
        ]
        seconds, of_program = map(min, zip(*turns, strict=True))
        theirs = peer(Path(folder), runs)
    print(
        f"{runs} runs: planned in {found.planning:.2f} s, submitted in {found.submitting:.2f} s:"
        f" {found.computing:.2f} s computed (limit {LIMIT_S:g} s), {found.slurm:.2f} s waited for SLURM,"
        f" {found.disk:.2f} s for the disk"
    )
    print(f"the whole command                 {seconds:6.2f} s, planned, checked and frozen")
    print(f"Hydra and hydra-submitit-launcher {theirs:6.2f} s; {theirs / seconds:.1f} times as long")
    ratio = of_program / seconds
    print(f"a program of @hydra.main          {of_program:6.2f} s; {ratio:.2f} times as long (limit {FOREIGN_LIMIT})")
    return exit_code(found.computing >= LIMIT_S or ratio > FOREIGN_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
