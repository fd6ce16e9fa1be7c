"""How long 1000 runs take to reach SLURM's queue, beside Hydra's submitit launcher: python -m benchmarks.slurm

Needs a SLURM that takes 1000 jobs of a user, such as that of `make cluster-up`; the jobs are cancelled. The peer gets
runs of an empty configuration, as many as `--peer` says; it freezes and checks none. Wall times, with
sbatch and the disk (every state is synced); our own time is what this process computes, and that is limited.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launcher import plan, sweep

ROOT = Path(__file__).parents[1]
LIMIT_S = 5.0


def ours(multirun: Path, runs: int) -> tuple[float, float, float]:
    """Seconds to plan, from there until the command returned, and those of the latter that this process computed."""
    began = time.perf_counter()
    words = [f"seed={','.join(map(str, range(runs)))}", "method=c0_grpo", "cluster=slurm", "cluster.detach=true"]
    planned = plan.make(ROOT, [*words, f"multirun={multirun}"])
    between, computed = time.perf_counter(), time.process_time()
    outcome = sweep.launch(ROOT, planned, plan.missing(planned))
    assert outcome.detached
    return between - began, time.perf_counter() - between, time.process_time() - computed


def peer(folder: Path, runs: int) -> float:
    """Seconds of hydra-submitit-launcher, from the start of its command until its last job is in the queue."""
    (folder / "application.py").write_text(
        "import hydra\n\n\n@hydra.main(version_base='1.3', config_path=None)\ndef main(config):\n    pass\n\n\nmain()\n"
    )
    command = [sys.executable, "application.py", "-m", "hydra/launcher=submitit_slurm", "hydra.launcher.mem_gb=1"]
    words = [f"+seed=range({runs})", f"hydra.sweep.dir={folder}/out", f"hydra.launcher.array_parallelism={runs}"]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _queued("application", runs):
            assert process.poll() is None, "the peer has ended"
            time.sleep(0.05)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def _queued(name: str, runs: int) -> bool:
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", f"--name={name}"]
    return len(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()) >= runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--peer", type=int, default=100, help="runs that the peer gets (default: %(default)s)")
    given = parser.parse_args()
    hold = ["scontrol", "update", "PartitionName=main"]
    subprocess.run([*hold, "State=DOWN"], check=True)  # nothing is to begin meanwhile
    with tempfile.TemporaryDirectory() as folder:
        try:
            planning, submitting, own = ours(Path(folder) / "multirun", given.runs)
            theirs = peer(Path(folder), given.peer)
        finally:
            subprocess.run(["scancel", "--me"], check=True)
            subprocess.run([*hold, "State=UP"], check=True)
    per_run = theirs / given.peer
    print(
        f"{given.runs} runs: planned in {planning:.2f} s, submitted in {submitting:.2f} s, {own:.2f} s of them our own"
    )
    print(
        f"hydra-submitit-launcher: {given.peer} runs of an empty configuration in {theirs:.2f} s: {per_run:.3f} s a run"
    )
    print(f"ratio of a run's submission to the peer's: {submitting / given.runs / per_run:.3f}")
    return 0 if own < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
