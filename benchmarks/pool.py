"""What the local pool adds to a run, beside ProcessPoolExecutor with a new process for every call, in one run.

    python -m benchmarks.pool

Runs that compute nothing go through one slot, one after another: claimed, started in a fork of the warm server, their
states and provenance written, settled. The first one waits for the server's imports and does not count. Prints the
milliseconds a run; exit code 1 where our own part takes 0.6 or more of what the run needs in any case, in a fork of the
same server: to read its configuration.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.size import exit_code, size
from launcher.execution import sweep
from launcher.planning import planner
from launcher.run.folder import read_config, run_folder
from launcher.run.lifecycle import RunState
from launcher.schedulers.local.pool import without_main
from trainer_ext.application.verl_tree import completed

ROOT = Path(__file__).parents[1]
RUNS = size(60, 4)
LIMIT = 0.6


def nothing(config: Any, attempt: Any) -> dict[str, float]:
    """A training of one step that computes nothing."""
    attempt.log(1, {"cost/step_seconds": 0.0})
    return {"train_seconds": 0.0}


def reading(folder: Path) -> float:
    """The milliseconds that a run's configuration takes to read, merge and resolve, in this process."""
    began = time.perf_counter()
    completed(folder, read_config(folder))
    return 1000 * (time.perf_counter() - began)


def main() -> int:
    """Measure both, print, compare with the limit."""
    from benchmarks import pool  # by a name that other processes know

    with tempfile.TemporaryDirectory() as folder:
        seeds = ",".join(map(str, range(RUNS)))
        planned = planner.make(
            ROOT, ["method=c0_grpo", f"seed={seeds}", "trainer.steps=1", "cluster.slots=1", f"multirun={folder}"]
        )
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = sweep.launch(ROOT, planned, list(planned.runs), "benchmarks.pool:nothing")
        states = outcome.states.values()
        assert {state.state for state in states} == {RunState.DONE}, next(iter(states))
        ends = sorted(state.finished for state in outcome.states.values() if state.finished)
        ours = 1000 * statistics.median(after - before for before, after in itertools.pairwise(ends))

        context = get_context("forkserver")  # the same server, with the same modules in memory
        with without_main(), ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as executor:
            runs = [run_folder(Path(folder), run_id) for run_id in planned.runs]
            read = statistics.median(executor.submit(pool.reading, one).result() for one in runs[:20])
            times = []
            for number in range(RUNS):
                began = time.perf_counter()
                executor.submit(abs, number).result()
                times.append(1000 * (time.perf_counter() - began))
    theirs, own = statistics.median(times), ours - read
    print(f"rlsweep's pool       {ours:6.1f} ms a run, of which {read:.1f} ms read the run's configuration")
    print(f"ProcessPoolExecutor  {theirs:6.1f} ms a call, which keeps no state on disk")
    print(f"own part {own:.1f} ms, {own / theirs:.1f} times the peer's call")
    print(f"{own / read:.2f} of the reading (limit {LIMIT:g})")
    return exit_code(own >= LIMIT * read)


if __name__ == "__main__":
    sys.exit(main())
