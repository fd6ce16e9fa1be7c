"""Runs of `trainer=verl_ray` whose processes are killed at random moments: is each run done exactly once?

    python -m tests.cluster.verl_ray_kills --kills 20 [--cluster local|ray] [--seed N]

Launchers in a network namespace of their own: on the local pool, or on a Ray that the runs share. A kill ends one
process with SIGKILL: a launcher, a worker, the driver, or a process of Ray or verl, each kind with the same chance. Of
the shared Ray, only the processes that work for a run are killed. A launcher that has ended is started again. After the
last kill nothing is disturbed: the runs must then be done, with one line for each step, the metrics and weights of runs
that nothing disturbed, and no process left; and in the shared Ray, no actor and no placement group. Takes about two
minutes a kill on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.rays import ROOT, Rays
from tests.cluster.test_verl_ray_in_ray import LEFT, SMALL, of_runs
from tests.trainer_ext.conftest import FEW_PROMPTS, SHORT, science
from tests.waiting import until
from trainer_ext.backends.verl_ray import process

STEPS, SEEDS = 8, (0, 1)
SETTINGS = [
    *("trainer=verl_ray", "method=bnto_minimal", "method.warmup_steps=1", *SHORT, *FEW_PROMPTS),
    *(f"trainer.steps={STEPS}", "trainer.checkpoint_every=1", f"seed={','.join(map(str, SEEDS))}"),
    # Here the kills are ours; they say nothing about the runs.
    *("cluster.retry.lost=null", "cluster.breaker=null"),
]
BETWEEN_S = (5.0, 150.0)  # a start of Ray takes 40 s of two cores
LIMIT_S = 1800.0
#: Kinds of processes, by a word in their commands; the first that fits.
KINDS = (
    "ray::WorkerDict", "ray::IDLE", "ray::", "gcs_server", "raylet", "ray/_private", "ray/dashboard", "runtime_env",
    "verl_ray.driver", "launcher.worker", "launch.py", "forkserver", "resource_tracker",
)  # fmt: skip
#: Of the shared Ray itself.
SHARED = ("gcs_server", "raylet", "ray/_private", "ray/dashboard", "runtime_env", "Agent", "Dashboard")


@dataclass
class Scene:
    """Where the runs are."""

    space: Rays
    shared: bool  # in one Ray, which is not killed

    @property
    def where(self) -> list[str]:
        if not self.shared:
            return ["cluster.slots=1"]
        return ["cluster=ray", f"cluster.address={self.space.address}", "model.resources.cpus=2", *SMALL]

    def victims(self) -> list[psutil.Process]:
        """What may be killed. Idle workers of a shared Ray belong to no run."""
        found = self.space.processes(*KINDS)
        if not self.shared:
            return found
        marked = {one.pid for one in of_runs(self.space)}
        return [
            one
            for one in found
            if one.pid in marked or not any(word in command_of(one) for word in (*SHARED, "ray::IDLE", "ray.scripts"))
        ]

    def start(self) -> None:
        if self.shared:
            self.space.head("--num-cpus", "2")
        else:
            self.space.environment = process.environment(self.space.environment)

    def assert_empty(self) -> None:
        """Wait until no process of the runs is left."""
        if not self.shared:
            until(lambda: not self.space.processes(*KINDS))
            return
        said, _ = self.space.run(sys.executable, "-c", LEFT, self.space.address).communicate(timeout=200)
        assert "LEFT []" in said, said
        until(lambda: not of_runs(self.space) and not self.space.processes("launch.py", "launcher.worker"))


def command_of(one: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(one.cmdline())
    return ""


def kind_of(command: str) -> str | None:
    return next((kind for kind in KINDS if kind in command), None)


def launch(scene: Scene, multirun: Path) -> subprocess.Popen[str]:
    output = open(multirun.with_suffix(f".{time.monotonic_ns()}.log"), "w")  # noqa: SIM115
    with output:
        command = [sys.executable, str(ROOT / "launch.py"), "-m", *SETTINGS, *scene.where, f"multirun={multirun}"]
        return scene.space.run(*command, output=output)


def killed(scene: Scene, multirun: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Launch until all runs are done, and kill so many processes; how many of each kind."""
    counts: Counter[str] = Counter()
    started = launch(scene, multirun)
    while counts.total() < kills:
        end = time.monotonic() + rng.uniform(*BETWEEN_S)
        while time.monotonic() < end and started.poll() is None:
            time.sleep(0.2)
        if started.poll() is not None:
            if started.returncode == 0:
                print(f"the runs are done after {counts.total()} kills; they begin again", flush=True)
                (multirun / "runs").rename(multirun / f"runs-{sum(1 for _ in multirun.glob('runs-*'))}")
            started = launch(scene, multirun)
            continue
        alive: dict[str, list[psutil.Process]] = {}
        for one in scene.victims():
            if kind := kind_of(command_of(one)):
                alive.setdefault(kind, []).append(one)
        kind = rng.choice(sorted(alive))
        with suppress(psutil.NoSuchProcess):
            rng.choice(alive[kind]).kill()
            counts[kind] += 1
            print(f"kill {counts.total()} of {kills}: {kind}; {progress(multirun)}", flush=True)
    if started.wait(LIMIT_S) != 0:
        assert launch(scene, multirun).wait(LIMIT_S) == 0, "undisturbed, a launch must finish the runs"
    return counts


def progress(multirun: Path) -> str:
    lines = [len(path.read_text().splitlines()) for path in sorted(multirun.glob("runs/*/metrics.jsonl"))]
    return f"steps {', '.join(map(str, lines)) or 'none'}"


def results(folder: Path) -> dict[str, Any]:
    """Of a finished run: what depends on neither time nor attempts."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "each step has one line"
    own = [{key: value for key, value in line.items() if key not in ("attempt", "time")} for line in lines]
    end = folder / "checkpoints" / f"step_{STEPS:06d}"
    weights = {str(path.relative_to(end)): path.read_bytes() for path in end.rglob("*.safetensors")}
    assert weights
    return {"metrics": science(own), "weights": weights}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", choices=["local", "ray"], default="local")
    given = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="verl-ray-kills-"))
    scene = Scene(Rays(), given.cluster == "ray")
    try:
        scene.start()
        begin = time.monotonic()
        assert launch(scene, place / "whole").wait(LIMIT_S) == 0
        print(f"undisturbed: {time.monotonic() - begin:.0f} s", flush=True)
        counts = killed(scene, place / "killed", given.kills, random.Random(given.seed))
        scene.assert_empty()
        whole = {folder.name: results(folder) for folder in (place / "whole/runs").iterdir()}
        for runs in place.glob("killed/runs*"):
            assert {folder.name for folder in runs.iterdir()} == whole.keys() and len(whole) == len(SEEDS)
            for folder in runs.iterdir():
                assert results(folder) == whole[folder.name], f"{folder} differs from {place}/whole/runs/{folder.name}"
        print(f"{given.kills} kills ({dict(counts)}): each run is done once, with the same bits; no process is left")
    finally:
        scene.space.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
