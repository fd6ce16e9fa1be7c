"""Speed of the analysis beside its peers: python -m benchmarks.analysis [--runs 1000]

Stratified bootstrap intervals of the interquartile mean and performance profiles, 26 tasks x 5 runs x 5 algorithms,
beside rliable on the same scores; reading the metric logs of many runs for the first time and again, beside a plain
loop of json.loads; and a later report: `python -m analysis report` as its user runs it, in a process of its own with
all imports, when the parsed logs are kept and a report has been written. The peer's resamples are fewer than ours
where it would take minutes, and its time is multiplied; json.loads reads some of the runs, before and after ours.
Then reports of the logs of others, of one metric: a CSV table and a long JSONL log, beside csv.reader and json.loads of
the same file; their memory is what a process takes beyond that of a small log, of the file, or of the steps and the
metric as float64. And a report of many runs with short logs.

Every limit of time but that of the many runs is a ratio to a peer in the same run. Times are seconds of CPU, of all
threads and processes, so that other work of the machine does not decide. Exits 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from analysis.data.sweep import read_sweep
from analysis.stats import resample
from benchmarks.size import exit_code, size
from launcher import files
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState, State, write_state

TASKS, RUNS, ALGORITHMS = 26, 5, 5
RESAMPLES, PEER_RESAMPLES, PROFILE_RESAMPLES, PEER_PROFILES = 50_000, 1000, 2000, 100
IQM_TIMES, PROFILE_TIMES = 20.0, 100.0
# Of the time that json.loads needs for the same logs.
FIRST_READ, LATER_READ, LATER_REPORT = 1.0, 0.1, 0.3
MEMORY_GB = 2.0
PEER_RUNS = 20
# A table's memory, of its file; a long log's, of the columns asked for; and their time, of the peer's.
TABLE_MEMORY, LOG_MEMORY, TABLE_TIMES, LOG_TIMES = 5.0, 1.5, 40.0, 3.0
ASKED = ["--metric", "actor/metric_number_00"]
MANY, MANY_STEPS, MANY_CPU_S, MANY_MB = size(10_000, 24), 100, 30.0, 500.0
STEPS, METRICS, GROUPS = 2000, 20, 4
ROOT = Path(__file__).parents[1]


def rliable() -> ModuleType:
    """rliable's library. It allows arch below 8 alone, which calls a private function of pandas as it was before 3."""
    import pandas.util._decorators

    given = pandas.util._decorators.deprecate_kwarg
    pandas.util._decorators.deprecate_kwarg = lambda *_, **__: lambda function: function
    try:
        import rliable.library
    finally:
        pandas.util._decorators.deprecate_kwarg = given
    found: ModuleType = rliable.library
    return found


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of CPU of the fastest of so many tries, with those of the processes that it waits for."""
    each = []
    for _ in range(times):
        begin = cpu_seconds()
        work()
        each.append(cpu_seconds() - begin)
    return min(each)


def cpu_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def bootstrap() -> bool:
    """Ours and rliable's intervals on the same scores; whether both limits are kept."""
    from rliable import metrics

    library = rliable()
    random = np.random.default_rng(0)
    scores = {f"algorithm {k}": random.normal(0.1 * k, 1, (RUNS, TASKS)) for k in range(ALGORITHMS)}
    thresholds = np.linspace(-2, 2, 81)

    def ours() -> None:
        for each in scores.values():
            resample.stratified(each, resample.iqm, resamples=RESAMPLES)

    def our_profiles() -> None:
        for each in scores.values():
            resample.performance_profile(each, thresholds)

    def iqm(each: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(each)])

    peer = partial(library.get_interval_estimates, scores, iqm, reps=PEER_RESAMPLES)
    peer_profiles = partial(library.create_performance_profile, scores, thresholds, reps=PEER_PROFILES)
    kept = True
    for name, mine, other, more, limit in (
        (f"IQM intervals, {RESAMPLES} resamples", ours, peer, RESAMPLES / PEER_RESAMPLES, IQM_TIMES),
        (f"profiles, ours exact beside {PROFILE_RESAMPLES} resamples", our_profiles, peer_profiles,
         PROFILE_RESAMPLES / PEER_PROFILES, PROFILE_TIMES),
    ):  # fmt: skip
        mine_s, other_s = timed(mine, 3), timed(other, 2) * more
        kept &= other_s / mine_s >= limit
        print(f"{name}: {mine_s:.3f} s, rliable {other_s:.1f} s, {other_s / mine_s:.0f} times (at least {limit:g})")
    return kept


def make(multirun: Path, runs: int, steps: int = STEPS) -> Path:
    """An experiment of so many runs, done, with logs of so many steps; returns its folder."""
    random = np.random.default_rng(0)
    names = ["analysis/reward_sum_mean", *(f"actor/metric_{k}" for k in range(METRICS - 1))]
    entries = []
    for number in range(runs):
        group, seed = f"G{number % GROUPS}", number // GROUPS
        run_id = f"{number:016x}"
        folder = run_folder(multirun, run_id)
        folder.mkdir(parents=True)
        curves = 1 - np.exp(-np.arange(steps) / steps)[:, None] + 0.1 * random.standard_normal((steps, METRICS))
        lines = (
            json.dumps({"step": step, "attempt": 1, "time": 1e9 + step, **dict(zip(names, row, strict=True))})
            for step, row in enumerate(curves.tolist(), start=1)
        )
        metrics_path(folder).write_text("\n".join(lines) + "\n")
        files.write_json(folder / "summary.json", {"steps": steps, "train_seconds": 1.0, "samples": 1, "tokens": 1})
        files.write_json(folder / "provenance.json", {"commit": "0123456789abcdef", "dirty": False})
        write_state(folder, State(run_id, RunState.DONE, attempt=1, started=1e9, finished=1e9 + 1))
        entries.append({"id": run_id, "group": group, "seed": seed, "factors": {}})
    plan = {
        "format": 1, "experiment": "many", "command": "python launch.py -m experiment=many", "baseline": "G0",
        "steps": steps, "seeds": list(range(runs // GROUPS)), "groups": {f"G{k}": {} for k in range(GROUPS)},
        "factors": {}, "analysis": {"primary": {"metric": names[0]}, "metrics": names[:4]}, "runs": entries,
    }  # fmt: skip
    experiment = multirun / "many"
    experiment.mkdir()
    files.write_json(experiment / "plan.json", plan)
    return experiment


def read_once(folder: Path) -> None:
    """Read a sweep and one metric of every run; print the seconds of CPU and the most memory that was held."""
    begin = cpu_seconds()
    sweep = read_sweep(folder)
    total = sum(float(run.curves.values["analysis/reward_sum_mean"].sum()) for run in sweep.runs)
    taken = cpu_seconds() - begin
    print(json.dumps([taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, total]))


def plain_loop(multirun: Path, runs: Sequence[str]) -> None:
    """What reading costs at least without a parser of our own: json.loads of every line."""
    for run_id in runs:
        for line in metrics_path(run_folder(multirun, run_id)).read_text().splitlines():
            json.loads(line)


def reading(runs: int) -> bool:
    """First and later reads and a later report, each in a process of its own; whether all limits are kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = make(Path(place), runs)
        few = [f"{number:016x}" for number in range(min(runs, PEER_RUNS))]
        loop = partial(plain_loop, folder.parent, few)
        peers = [timed(loop)]
        found = []
        for _ in range(2):
            command = [sys.executable, "-m", "benchmarks.analysis", "--read", str(folder)]
            out = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
            found.append(json.loads(out))
        (first, memory, total), (later, less, again) = found
        report = [sys.executable, "-m", "analysis", "report", str(folder)]
        write = partial(subprocess.run, report, check=True, cwd=ROOT, capture_output=True)
        written_s = timed(write)
        peers.append(timed(loop))
        report_s = timed(write, 3)
        peers.append(timed(loop))
    peer = sum(peers) / len(peers) * runs / len(few)
    print(f"json.loads of the logs of {runs} runs: {peer:.1f} s")
    kept = total == again and max(memory, less) < MEMORY_GB
    for name, seconds, limit in (
        ("first read", first, FIRST_READ), ("later read of one metric", later, LATER_READ),
        ("later report", report_s, LATER_REPORT),
    ):  # fmt: skip
        kept &= seconds <= limit * peer
        print(f"{name}: {seconds:.2f} s, {seconds / peer:.3f} of that (at most {limit:g})")
    print(f"report that first wrote its files: {written_s:.1f} s")
    print(f"memory of a first read {memory:.2f} GB, of a later one {less:.2f} GB (under {MEMORY_GB:g})")
    return kept


def logs(folder: Path, rows: int) -> tuple[Path, Path, int]:
    """A table of so many rows, of 100 runs, and a log of twice as many with 20 metrics; the bytes of its steps and of a
    metric."""
    random, table, log = np.random.default_rng(0), folder / f"table-{rows}.csv", folder / f"log-{rows}.jsonl"
    cells = random.standard_normal((1000, 20)).round(6).tolist()
    names = [f"actor/metric_number_{number:02d}" for number in range(20)]
    with table.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["method", "seed", "step", *names[:8]])
        write.writerows([f"m{row % 4}", row // 4 % 25, row // 100, *cells[row % 1000][:8]] for row in range(rows))
    with log.open("w") as file:
        for row in range(2 * rows):
            data = dict(zip(names, cells[row % 1000], strict=True))
            file.write(json.dumps({"step": row, "data": data}, separators=(",", ":")) + "\n")
    return table, log, 8 * 2 * 2 * rows


def report_once(path: Path) -> None:
    """Write a report, of logs if it is a file; print the seconds of CPU, imports included, and the most memory that was
    held."""
    from analysis.__main__ import main as analysis

    words = [*ASKED, "--into", str(path.parent / f"of-{path.stem}" / "theirs")] if path.is_file() else []
    words += {".csv": ["--group", "method", "--seed", "seed"], ".jsonl": ["--match", "(?P<group>log)"]}.get(
        path.suffix, []
    )
    with contextlib.redirect_stdout(io.StringIO()):
        analysis(["report", str(path), *words])
    print(json.dumps([cpu_seconds(), peak_bytes()]))


def peak_bytes() -> int:
    """The most memory that this process held; getrusage's peak begins with that of the process that started it."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def apart(path: Path) -> tuple[float, int]:
    """What a process of its own prints that writes a report of a path."""
    command = [sys.executable, "-m", "benchmarks.analysis", "--report", str(path)]
    seconds, memory = json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout)
    return seconds, memory


def others(rows: int) -> bool:
    """The logs of others, and the report of many runs; whether all limits are kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        *small, _ = logs(folder, 1000)
        table, log, columns = logs(folder, rows)
        peers = [
            lambda: list(map(len, csv.reader(table.open(newline="")))),
            lambda: [*map(len, map(json.loads, log.open()))],
        ]
        kept = True
        limits = ((TABLE_MEMORY, TABLE_TIMES), (LOG_MEMORY, LOG_TIMES))
        bytes_of = (table.stat().st_size, columns)
        for few, path, least, (limit, times), peer in zip(small, (table, log), bytes_of, limits, peers, strict=True):
            (_, base), (seconds, _), peer_s = apart(few), apart(path), timed(peer)
            # The median: where the allocator puts arrays of 8 MB adds half of the columns in one run of four.
            share = (statistics.median(apart(path)[1] for _ in range(size(3, 1))) - base) / least
            kept &= share <= limit and seconds <= times * peer_s
            print(f"report of {path.name}, {path.stat().st_size / 1e6:.0f} MB: {seconds:.1f} s, {seconds / peer_s:.1f} "
                  f"of the peer's (at most {times:g}); memory {share:.2f} of {least / 1e6:.0f} MB "
                  f"(at most {limit:g})")  # fmt: skip
        many = make(folder, MANY, MANY_STEPS)
        os.sync()  # what is still to be written of 50,000 files would be charged to who reads them
        seconds, memory = apart(many)
        kept &= seconds <= MANY_CPU_S and memory <= MANY_MB * 1e6
    print(f"report of {MANY} runs of {MANY_STEPS} steps: {seconds:.1f} s (at most {MANY_CPU_S:g}), "
          f"{memory / 1e6:.0f} MB (at most {MANY_MB:g})")  # fmt: skip
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description="Speed of the analysis.")
    parser.add_argument("--runs", type=int, default=size(1000, 24), help="runs to read")
    parser.add_argument("--rows", type=int, default=size(500_000, 10_000), help="rows of the table to report on")
    alone = {"read": read_once, "report": report_once}
    for name in alone:
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    for name, work in alone.items():
        if path := getattr(given, name):
            work(path)
            return 0
    kept = [bootstrap(), reading(given.runs), others(given.rows)]
    print("all kept" if all(kept) else "MISSED")
    return exit_code(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
