"""`status` over many run folders: python -m benchmarks.status [--runs 10000]

Makes run folders in mixed states with metric logs, then times the whole command as a process: without an index, with
it, and after some runs have changed. The peers in the same run are a plain loop that reads every state and every last
line, and `find -exec cat`. Exits 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.size import exit_code, size
from launcher import files
from launcher.run import lifecycle
from launcher.run.folder import FORMAT, metrics_path, run_folder
from launcher.run.lifecycle import RunState, State, read_state, write_state
from launcher.status import standing

WARM_S, COLD_S = 2.0, 10.0
ROOT = Path(__file__).parents[1]
METRIC = "analysis/reward_sum_mean"
STATES = (*[RunState.DONE] * 6, RunState.FAILED, RunState.PLANNED, RunState.PREEMPTED, RunState.LOST)
STEPS, METRICS, GROUPS, TOUCHED = 12, 40, 40, 100
RUNNING_EVERY = 200
PEER = """
import json, pathlib, sys
for folder in pathlib.Path(sys.argv[1]).iterdir():
    json.loads((folder / "state.json").read_text())
    if (folder / "metrics.jsonl").exists():
        json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
"""


def make(multirun: Path, runs: int) -> list[Path]:
    """An experiment of that many runs, as the launcher leaves them."""
    made: list[Path] = []
    for number in range(runs):
        run_id = f"{number:016x}"
        folder = run_folder(multirun, run_id)
        folder.mkdir(parents=True)
        state = STATES[number % len(STATES)] if number % RUNNING_EVERY else RunState.RUNNING
        config = {"format": FORMAT, "id": run_id, "seed": number, "trainer": {"steps": STEPS}}
        (folder / "config.yaml").write_text(files.dump_yaml(config))
        if state != RunState.PLANNED:
            others = {f"actor/metric_{one}": one / 7 for one in range(METRICS)}
            lines = (
                json.dumps({"step": step, "attempt": 1, "time": 1e9 + step, METRIC: step / STEPS, **others})
                for step in range(1, STEPS + 1)
            )
            metrics_path(folder).write_text("\n".join(lines) + "\n")
        cause = f"ValueError: run {number} ends here" if state == RunState.FAILED else None
        write_state(folder, State(run_id, state, attempt=1, started=1e9, finished=1e9 + STEPS, message=cause))
        if state == RunState.RUNNING:
            lifecycle.acquire(folder, 1)
        made.append(folder)
    entries = [
        {"id": folder.name, "group": f"group {number % GROUPS}", "seed": number, "factors": {}}
        for number, folder in enumerate(made)
    ]
    plan = {"experiment": "many", "command": "", "steps": STEPS, "analysis": {"primary": {"metric": METRIC}}}
    (multirun / "many").mkdir()
    files.write_json(multirun / "many" / "plan.json", {"format": 1, **plan, "runs": entries})
    return made


def timed(*command: str) -> tuple[float, str]:
    """Seconds and standard output of a process."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return time.monotonic() - began, done.stdout


def answer(said: str) -> dict[str, object]:
    """What a command said, without the hours that the running runs take meanwhile."""
    document: dict[str, object] = json.loads(said)["many"]
    return {name: value for name, value in document.items() if not name.endswith("device_hours")}


def main() -> int:
    """Print seconds and ratios; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=size(10_000, 200))
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as place:
        multirun = Path(place)
        made = make(multirun, runs)
        status = (sys.executable, "-m", "launcher", "status", "many", "--json", "--multirun", str(multirun))
        peer, _ = timed(sys.executable, "-c", PEER, str(multirun / "runs"))
        cat, _ = timed("find", str(multirun / "runs"), "-name", "state.json", "-exec", "cat", "{}", "+")
        cold, first = timed(*status)
        kept = standing.index_path(multirun).stat().st_size
        warm, second = timed(*status)
        for folder in made[:TOUCHED]:
            write_state(folder, read_state(folder).replace(state=RunState.CANCELLED))
        touched, third = timed(*status)
    states = json.loads(third)["many"]["states"]
    print(f"{runs} runs, index of {kept / 1e6:.1f} MB; peers: plain loop {peer:.2f} s, find and cat {cat:.2f} s")
    for name, seconds, limit in (
        ("without index", cold, COLD_S),
        ("with index", warm, WARM_S),
        (f"{TOUCHED} runs changed", touched, WARM_S),
    ):
        print(f"  {name:18s} {seconds:6.2f} s (limit {limit:g} s), {seconds / peer:.2f} of the plain loop")
    right = (
        answer(first) == answer(second)
        and states[RunState.CANCELLED] == min(TOUCHED, runs)
        and sum(states.values()) == runs
    )
    if not right:
        print("the answers differ, or do not show what changed", file=sys.stderr)
    return int(not right) or exit_code(cold >= COLD_S or max(warm, touched) >= WARM_S)


if __name__ == "__main__":
    sys.exit(main())
