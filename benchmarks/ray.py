"""1000 no-op runs through `cluster=ray`, beside 1000 no-op tasks of plain Ray, in one run.

    python -m benchmarks.ray

Each run is a frozen one of the project's: submitted, claimed on its node, its states written there, settled here. Its
task computes nothing and starts no process: what a real run takes beside that, a fork of a warm server and the reading
of its configuration, is what `python -m benchmarks.pool` measures. Both go to a Ray started here, as many at a time as
it has cores; counted is from the first submission to the last state, after Ray's start and a first task on each core.
Prints the seconds; exit code 1 where ours take 10 s or more.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.size import exit_code, size
from launcher.execution import progress
from launcher.execution.reconciler import Interruption, Reconciler
from launcher.planning import freeze, planner
from launcher.run import launch_record, lifecycle
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RunState, WorkerExit, read_state, write_state
from launcher.schedulers.local.pool import cores
from launcher.schedulers.protocol import Order
from launcher.schedulers.ray import driver
from launcher.schedulers.ray.cluster import RayCluster, resources_here
from launcher.schedulers.ray.task import Work

ROOT = Path(__file__).parents[1]
RUNS = size(1000, 20)
LIMIT_S = 10.0


def nothing(folder: Path, work: Work, asked_devices: int) -> int:
    """A task whose run ends as soon as it has begun."""
    with lifecycle.locked(folder):
        mine = lifecycle.acquire(folder, 1)
        assert mine is not None
        state = read_state(folder).replace(state=RunState.RUNNING, attempt=1, started=time.time(), pid=os.getpid())
        write_state(folder, state)
    with lifecycle.locked(folder):
        write_state(folder, state.replace(state=RunState.DONE, finished=time.time()))
        lifecycle.release_claim(folder, mine)
    return WorkerExit.DONE


def ours(multirun: str) -> float:
    """The seconds of 1000 runs."""
    first = cores()
    seeds = ",".join(map(str, range(first + RUNS)))
    planned = planner.make(ROOT, ["method=c0_grpo", f"seed={seeds}", "cluster=ray", f"multirun={multirun}"])
    freeze.freeze(planned)
    ids, launch = list(planned.runs), Launch()
    order = Order(ROOT, planned, ids, launch, launch_record.write(planned.multirun, launch))
    scheduler = RayCluster(order, importlib.import_module("benchmarks.ray").nothing)  # not that of __main__
    try:
        scheduler.wait(120.0)
        display = progress.Display(len(ids), planned.multirun, list, True)
        with contextlib.redirect_stdout(io.StringIO()):
            reconciler = Reconciler(
                planned.multirun, scheduler, display, dict.fromkeys(ids, ""), dict.fromkeys(ids, 0), launch
            )
            reconciler.run(ids[:first], Interruption())
            began = time.perf_counter()
            outcome = reconciler.run(ids[first:], Interruption())
            seconds = time.perf_counter() - began
    finally:
        scheduler.close()
    assert [outcome.states[run_id].state for run_id in ids] == [RunState.DONE] * len(ids)
    return seconds


def theirs() -> float:
    """The seconds of 1000 tasks."""
    settings = {"address": None}
    with driver.connected(settings, ROOT, resources_here({"cpus": None})):
        import ray

        task = ray.remote(abs_of)
        ray.get([task.remote(0) for _ in range(cores())])
        began = time.perf_counter()
        ray.get([task.remote(number) for number in range(RUNS)])
        return time.perf_counter() - began


def abs_of(number: int) -> int:
    """A task's nothing."""
    return abs(number)


def main() -> int:
    """Measure both, print, compare with the limit."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = ours(folder)
    peer = theirs()
    print(f"rlsweep on Ray  {seconds:6.2f} s for {RUNS} no-op runs (limit {LIMIT_S:g} s)")
    print(
        f"plain Ray       {peer:6.2f} s for {RUNS} no-op tasks, which keep no state on disk; {seconds / peer:.1f} times"
    )
    return exit_code(seconds >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
