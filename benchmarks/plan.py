"""Plans of 1000, 10,000 and 100,000 runs against Hydra's own sweeper, which composes every run from its files.

    python -m benchmarks.plan

The peer is what Hydra's basic launcher does for each job of a sweep, once (its sweeper composes every job once more
beforehand): our root configuration with the job's overrides, verl's `ppo_trainer` from its tree of files, the
differences merged into it, everything resolved. It composes PEER of the runs; the time is scaled. Ours is a fresh
process, from the command line's overrides to validated, identified runs; freezing them, up to FROZEN, is timed apart.
SAMPLE frozen runs, merged with the frozen tree and resolved, must equal the peer's configurations. Exits with 1 unless
ours is at least 60 times faster, within the LIMITS of time and memory. Of the memory, 47 MB are imports. The whole
command `plan` also says what the runs cost and what they can find, for which it loads SciPy.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from benchmarks.size import exit_code, size
from launcher.config import identity
from launcher.planning import freeze, planner, schema
from launcher.run.folder import base_path, multirun_of, read_config, runs_folder
from trainer_ext.application import verl_tree

ROOT = Path(__file__).parents[1]
COUNTS, PEER, SAMPLE = size((1000, 10_000, 100_000), (200,)), size(100, 5), size(50, 5)
FASTER, FROZEN, COMMAND = 60, 10_000, size(10_000, 200)
COMMAND_LIMITS = (2.0, 110.0)  # seconds and MB, of COMMAND runs
LIMITS = {10_000: (2.0, 64.0), 100_000: (20.0, 150.0)}  # seconds and MB, by the number of runs
GRID = (
    "method=bnto_minimal,bnto_plateau",
    "experiment.baseline=bnto_minimal",
    "task=expression,sorting",
    "method.gamma=0.8,0.9,1.0,1.1,1.2",
    "method.rho=0.2,0.3,0.4,0.5,0.6",
    "verl.data.train_batch_size=32,64",
)
KEYS = ("method.name", "task.name", "method.gamma", "method.rho", "verl.data.train_batch_size", "seed")


def overrides(count: int) -> list[str]:
    """A sweep of so many runs, a multiple of 200."""
    return [*GRID, f"seed={','.join(map(str, range(count // 200)))}"]


def own(count: int, multirun: Path) -> None:
    """Plan, then freeze, and print the times in seconds and the planning's peak of memory in MB, as JSON."""
    started = time.perf_counter()
    planned = planner.make(ROOT, [*overrides(count), f"multirun={multirun}"])
    seconds = time.perf_counter() - started
    assert len(planned.runs) == count
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    if count <= FROZEN:
        freeze.freeze(planned)
    print(json.dumps({"plan": seconds, "megabytes": megabytes, "freeze": time.perf_counter() - started}))


def fresh(count: int, multirun: Path) -> dict[str, float]:
    """`own` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.plan", str(count), str(multirun)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout)
    return found


def command(multirun: Path) -> tuple[float, float]:
    """Seconds and the peak of memory in MB of `python -m launcher plan` for COMMAND runs."""
    words = [sys.executable, "-m", "launcher", "plan", *overrides(COMMAND), f"multirun={multirun}"]
    started = time.perf_counter()
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - started, used.ru_maxrss / 1024


class Peer:
    """Hydra's way to one run's configuration."""

    def __init__(self) -> None:
        self._ours = ConfigLoaderImpl(create_config_search_path(str(ROOT / "conf")))
        self._verls = ConfigLoaderImpl(create_config_search_path(str(verl_tree.config_folder())))
        self._master = self._ours.load_configuration("config", [], RunMode.MULTIRUN)

    def jobs(self, count: int) -> list[list[str]]:
        """The overrides of every job of the sweep."""
        parsed = OverridesParser.create(config_loader=self._ours).parse_overrides(overrides(count))
        (jobs,) = BasicSweeper.split_arguments(parsed, None)
        return jobs

    def compose(self, job: list[str]) -> dict[str, Any]:
        """One run's whole configuration, resolved."""
        whole = self._ours.load_sweep_config(self._master, job)
        OmegaConf.set_struct(whole, False)
        verl = self._verls.load_configuration(whole.base.config, list(whole.base.overrides), RunMode.RUN)
        verl = OmegaConf.merge(verl, whole.pop("verl"))
        assert isinstance(verl, DictConfig)
        return {**sections(whole), "verl": sections(verl)}


def sections(config: DictConfig) -> dict[str, Any]:
    """A configuration's values without Hydra's own, resolved."""
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def key(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a run from the others of the sweep."""
    found = []
    for path in KEYS:
        value: Any = config
        for name in path.split("."):
            value = value[name]
        found.append(value)
    return tuple(found)


def frozen(folder: Path) -> dict[str, Any]:
    """What a frozen run gets: its sections and verl's frozen tree with its differences, resolved."""
    config = read_config(folder)
    tree = verl_tree.merge(base_path(multirun_of(folder), config["base"]), config["verl"])
    return {**config, "verl": OmegaConf.to_container(tree, resolve=True)}


def compare(peers: list[dict[str, Any]], multirun: Path) -> None:
    """Compare each of the peer's configurations with the frozen run of the same sweep. SystemExit: they differ."""
    runs = {}
    for folder in sorted(runs_folder(multirun).iterdir()):
        config = read_config(folder)
        tree = verl_tree.load_yaml(base_path(multirun, config["base"]))
        runs[key({**config, "verl": verl_tree.merged(tree, config["verl"])})] = folder
    for theirs in peers:
        ours, stripped = frozen(runs[key(theirs)]), schema.strip(theirs)
        for section in identity.SECTIONS:
            wanted = theirs["verl"] if section == "verl" else stripped[section]
            if ours[section] != wanted:
                raise SystemExit(f"NOT MET: {key(theirs)}: {section} is not what Hydra composes")


def peers(multirun: Path) -> float:
    """The peer's seconds a run, its configurations compared with the frozen runs of the smallest plan in `multirun`."""
    peer = Peer()
    jobs = random.Random(0).sample(peer.jobs(COUNTS[0]), PEER)
    peer.compose(jobs[0])  # its imports are not counted
    started = time.perf_counter()
    composed = [peer.compose(job) for job in jobs]
    seconds = (time.perf_counter() - started) / PEER
    compare(composed[:SAMPLE], multirun)
    print(f"Hydra: {1000 * seconds:.0f} ms a run ({PEER} runs); {SAMPLE} of them equal the frozen runs")
    return seconds


def main() -> None:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        ours = {count: fresh(count, Path(folder) / str(count)) for count in COUNTS}
        whole = command(Path(folder) / "new")
        each = peers(Path(folder) / str(COUNTS[0]))
    print(f"{COMMAND:6d} runs by the command `plan` in {whole[0]:.2f} s, {whole[1]:.0f} MB at most")
    if whole[0] > COMMAND_LIMITS[0] or whole[1] > COMMAND_LIMITS[1]:
        failed.append("the command: at most {:g} s and {:g} MB promised".format(*COMMAND_LIMITS))
    for count, found in ours.items():
        ratio = each * count / found["plan"]
        print(
            f"{count:6d} runs planned in {found['plan']:.2f} s, {found['megabytes']:.0f} MB at most; Hydra "
            f"{each * count:.0f} s, {ratio:.0f} times as long"
            + (f"; frozen in {found['freeze']:.1f} s more" if count <= FROZEN else "")
        )
        if ratio < FASTER:
            failed.append(f"{count} runs: {ratio:.0f} times faster than Hydra, {FASTER} promised")
        seconds, megabytes = LIMITS.get(count, (math.inf, math.inf))
        if found["plan"] > seconds or found["megabytes"] > megabytes:
            failed.append(f"{count} runs: at most {seconds:g} s and {megabytes:g} MB promised")
    for line in failed:
        print(f"NOT MET: {line}", file=sys.stderr)
    raise SystemExit(exit_code(bool(failed)))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        own(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
