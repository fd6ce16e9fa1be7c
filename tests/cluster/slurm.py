"""A throw-away SLURM, and launchers on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.run import lifecycle
from launcher.run.folder import metrics_path, read_config, run_folder, runs_folder
from launcher.run.lifecycle import State, find_state
from tests.cluster import leftovers
from tests.launcher.made import read_log
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "lab"
ON_SLURM = ("cluster=slurm", "cluster.poll_s=0.5", "cluster.signal_delay_s=30")
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd")


def missing_slurm() -> str | None:
    """Why no SLURM can be started here; None where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found on PATH: tests/cluster/lab/install.sh installs SLURM"
    return None if os.geteuid() == 0 else "starting a SLURM needs root"


def free_base() -> int:
    """A port such that it and the others that the scripts derive from it are free."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for base in range(21000 + 1000 * (worker % 10), 32000, 200):
        try:
            for offset in (0, 2, 11, 12, 13, 14, 100):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


class Lab:
    """A running SLURM of four nodes, n1 to n4."""

    def __init__(self, state: Path, settings: Mapping[str, str]) -> None:
        self.state = state
        own = {"LAB_STATE": str(state), "LAB_PORT": str(free_base()), leftovers.MARK: leftovers.mark(), **settings}
        self.environment = {**os.environ, **own, "SLURM_CONF": str(state / "etc/slurm.conf"), "PYTHONPATH": str(ROOT)}

    def script(self, name: str, *arguments: str) -> None:
        command = ["bash", str(SCRIPTS / name), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def alive(self, program: str) -> bool:
        return lifecycle.process_start(int((self.state / "run" / f"{program}.pid").read_text())) is not None

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def launch(
        self,
        multirun: Path,
        *overrides: str,
        cluster: Sequence[str] = ON_SLURM,
        cwd: Path = ROOT,
        path: Path | None = None,
        **steps: str,
    ) -> subprocess.Popen[str]:
        """Start a launcher over tests/launcher/steps.py. `path`: a folder before the others on PATH."""
        environment = {**self.environment, "STEPS_LEDGER": str(multirun.with_suffix(".ledger")), **steps}
        environment["PYTHONPATH"] = str(cwd)
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        plain = [*cluster, "trainer.checkpoint_every=2"]
        command = [sys.executable, "-m", "tests.launcher.drive", str(multirun), *plain, "method=c0_grpo", *overrides]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=cwd, env=environment, text=True, start_new_session=True, **pipes)

    def finish(self, multirun: Path, *overrides: str, **more: str) -> str:
        """A launcher that must come to a good end; what it said."""
        said, _ = self.launch(multirun, *overrides, **more).communicate(timeout=280)
        return said

    def jobs(self, multirun: Path, state: str = "all") -> dict[str, tuple[str, str]]:
        """The multirun's jobs: id -> state and node."""
        tokens = {path.stem for path in (multirun / "launches").glob("*.json")}
        listed = self.ask("squeue", "-h", "-r", "-t", state, "-o", "%i|%j|%T|%N").splitlines()
        found = {}
        for line in listed:
            job, name, now, node = line.split("|")
            if (match := re.fullmatch(r"rlsweep-([0-9a-f]+)-\d+(-[0-9a-f]+)?", name)) and match.group(1) in tokens:
                found[job] = (now, node)
        return found


def states(multirun: Path) -> dict[str, State]:
    runs = runs_folder(multirun)
    found = {one.name: find_state(one) for one in sorted(runs.iterdir())} if runs.is_dir() else {}
    return {run_id: state for run_id, state in found.items() if state is not None}


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in read_log(metrics_path(folder)).records]


def begun(multirun: Path, count: int, steps: int = 5) -> None:
    """Wait until so many runs have made so many steps; five is where they wait before a gate."""
    until(lambda: sum(len(steps_of(run_folder(multirun, run_id))) >= steps for run_id in states(multirun)) >= count)


def run_on(lab: Lab, multirun: Path, job: str) -> str:
    """The run that a job of the multirun does."""
    name = lab.ask("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%j").strip()
    token, number = name.removeprefix("rlsweep-").split("-")[:2]
    runs = json.loads((multirun / "launches" / token / "arrays" / f"{number}.json").read_text())
    return str(runs["runs"][int(job.partition("_")[2] or 0)])


def whole(multirun: Path, runs: int, steps: int) -> dict[str, State]:
    """Every run is done, with the walk of its seed, one line a step, and never two writers; the states."""
    found = states(multirun)
    assert len(found) == runs
    for run_id, state in found.items():
        folder = run_folder(multirun, run_id)
        assert state.state == "done", state
        value = read_config(folder)["seed"]
        lines = read_log(metrics_path(folder))
        assert [line["step"] for line in lines.records] == list(range(1, steps + 1)) and lines.torn == 0
        for line in lines.records:
            value = (value * 1103515245 + 12345) % 2**31
            assert line["value"] == value
    written = defaultdict(list)
    for line in multirun.with_suffix(".ledger").read_text().splitlines():
        run_id, attempt, step = line.split()
        written[run_id].append((int(attempt), int(step)))
    for run_id, marks in written.items():
        assert marks == sorted(marks), f"{run_id}: two attempts wrote at once: {marks}"
        assert marks[-1] == (found[run_id].attempt, steps), "a done run was run again"
    return found
