"""Launchers and workers that are killed, stopped and starved of disk: do the runs survive it?

    python -m tests.torture --rounds 200 [--seed N]

By root, over short steps (tests/launcher/steps.py). Several rounds hit one sweep; then a launcher that nothing disturbs
must finish it, and every run must have been done once, with one line a step and nothing left over. While it goes on,
every file is read again and again: what a reader sees must always be whole.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from launcher import files
from launcher.run.folder import (
    checkpoint_name,
    checkpoints_folder,
    metrics_path,
    read_config,
    read_provenance,
    read_summary,
    runs_folder,
)
from launcher.run.lifecycle import SILENCE_S, RunState, find_state, read_state
from tests.launcher.made import read_log
from tests.launcher.steps import walk
from tests.waiting import DEADLINE, until

ROOT = Path(__file__).parents[1]
STEPS, SEEDS, EVERY = 120, 6, 10
PACE = "0.03"
ROUNDS_A_SWEEP = 8
OVERRIDES = (
    "method=c0_grpo",
    f"seed={','.join(map(str, range(SEEDS)))}",
    f"trainer.steps={STEPS}",
    f"trainer.checkpoint_every={EVERY}",
    "cluster.slots=2",
    # Here the harness kills; that says nothing about the runs.
    "cluster.retry.lost=null",
    "cluster.breaker=null",
)
TOKEN = "RLSWEEP_TORTURE"


# ---------------------------------------------------------------- processes


class Processes:
    """Every process that this torture started, directly or not, found by a token in its environment."""

    def __init__(self, token: str) -> None:
        self._mark = f"{TOKEN}={token}\0".encode()

    def all(self) -> dict[int, tuple[str, int]]:
        """Process -> its role (launcher, server, worker, other) and parent."""
        found: dict[int, tuple[str, int]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if self._mark not in (entry / "environ").read_bytes() + b"\0":
                    continue
                stat = (entry / "stat").read_text()
                fields = stat[stat.rindex(")") + 2 :].split()
                if fields[0] not in "ZX":
                    found[int(entry.name)] = (_role((entry / "cmdline").read_bytes()), int(fields[1]))
        servers = {pid for pid, (role, _) in found.items() if role == "server"}
        return {
            pid: ("worker" if role == "server" and parent in servers else role, parent)
            for pid, (role, parent) in found.items()
        }

    def of(self, role: str) -> list[int]:
        return sorted(pid for pid, (own, _) in self.all().items() if own == role)

    def signal(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _role(command: bytes) -> str:
    if b"multiprocessing.forkserver" in command:
        return "server"
    if b"tests.launcher.drive" in command and not command.startswith(b"unshare"):
        return "launcher"
    return "other"


# ---------------------------------------------------------------- one sweep


class Sweep:
    """One multirun folder, the launchers on it, and what is done to them."""

    def __init__(self, place: Path, rng: random.Random, token: str) -> None:
        self.place, self.multirun, self.rng = place, place / "disk/multirun", rng
        self.processes = Processes(token)
        self.ledger = place / "ledger"
        self.freezes = 0
        self._token = token
        self._started: list[subprocess.Popen[bytes]] = []
        self.story: list[str] = []

    def tell(self, what: str) -> None:
        self.story.append(what)

    def start(self, *before: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, TOKEN: self._token, "STEPS_SECONDS": PACE, "STEPS_LEDGER": str(self.ledger)}
        command = [*before, sys.executable, "-m", "tests.launcher.drive", str(self.multirun), *OVERRIDES]
        with open(self.place / f"launcher-{len(self._started)}.log", "wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(process)
        return process

    def round(self) -> None:
        """One or two launchers, and what befalls them."""
        started = []
        for _ in range(self.rng.choice((1, 2, 2))):
            elsewhere = self.rng.random() < 0.2
            # Other process numbers: to each other they are like two hosts that share a disk.
            started.append(self.start(*(("unshare", "--pid", "--fork", "--mount-proc") if elsewhere else ())))
            self.tell("start elsewhere" if elsewhere else "start")
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, 3))
        else:
            until(lambda: self.processes.of("worker") or all(one.poll() is not None for one in started))
        for _ in range(self.rng.choice((1, 2, 3))):
            time.sleep(self.rng.uniform(0, 0.7))
            self.rng.choice(self.disturbances())()
        self.calm()
        if self.rng.random() < 0.7:
            self.stop_launchers()
        else:
            self.tell("wait")
            time.sleep(self.rng.uniform(0, 3))

    def disturbances(self) -> list[Callable[[], None]]:
        kill, interrupt = partial(self.send, signal.SIGKILL), partial(self.send, signal.SIGINT, "launcher")
        usual = [*[partial(kill, "worker")] * 3, *[partial(kill, "launcher")] * 2, interrupt, self.interrupt_twice]
        usual += [*[self.stop_a_moment] * 2, *[self.fill_disk] * 2]
        return usual + ([partial(kill, "server"), self.stop_long] if self.rng.random() < 0.3 else [])

    def _one(self, role: str) -> list[int]:
        there = self.processes.of(role)
        return [self.rng.choice(there)] if there else []

    def send(self, number: signal.Signals, role: str) -> None:
        self.tell(f"{number.name} to a {role}")
        self.processes.signal(number, self._one(role))

    def interrupt_twice(self) -> None:
        self.tell("interrupt twice")
        one = self._one("launcher")
        self.processes.signal(signal.SIGINT, one)
        time.sleep(self.rng.uniform(0, 0.5))
        self.processes.signal(signal.SIGINT, one)

    def stop_a_moment(self) -> None:
        self.tell("stop a moment")
        self._frozen(self.rng.choice(("worker", "worker", "launcher")), self.rng.uniform(0.1, 2))

    def stop_long(self) -> None:
        """Longer than silence lasts: where process numbers do not tell, another owner takes the run."""
        self.tell("stop long")
        self.processes.signal(signal.SIGKILL, self._one("launcher"))
        self.start()
        self._frozen("worker", SILENCE_S + self.rng.uniform(2, 6))

    def _frozen(self, role: str, seconds: float) -> None:
        one = self._one(role)
        self.freezes += len(one)
        self.processes.signal(signal.SIGSTOP, one)
        time.sleep(seconds)
        self.processes.signal(signal.SIGCONT, one)

    def fill_disk(self) -> None:
        self.tell("fill disk")
        handle = os.open(self.multirun.parent / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        end = time.monotonic() + self.rng.uniform(0.1, 1.5)
        while time.monotonic() < end:  # what others free is taken, too
            try:
                os.write(handle, bytes(self.rng.choice((65536, 4096))))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                time.sleep(0.01)
        os.close(handle)
        if self.rng.random() < 0.5:
            self.free_disk()

    def free_disk(self) -> None:
        (self.multirun.parent / "ballast").unlink(missing_ok=True)

    def calm(self) -> None:
        """Let everything go on, with space on the disk."""
        self.free_disk()
        self.processes.signal(signal.SIGCONT, list(self.processes.all()))

    def stop_launchers(self) -> None:
        self.tell("end launchers")
        number = self.rng.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        self.processes.signal(number, self.processes.of("launcher"))

    def finish(self) -> None:
        """Nothing disturbs any more: one launcher must do what is left."""
        self.calm()
        self.processes.signal(signal.SIGKILL, self.processes.of("launcher"))
        last = self.start()
        code = last.wait(DEADLINE + SILENCE_S)
        said = (self.place / f"launcher-{len(self._started) - 1}.log").read_text()
        assert code == 0, f"the last launcher's exit code is {code}:\n{said}"
        until(lambda: not self.processes.all())

    def close(self) -> None:
        self.processes.signal(signal.SIGKILL, list(self.processes.all()))
        for process in self._started:
            process.wait()


# ---------------------------------------------------------------- what must hold


def watch(multirun: Path, end: threading.Event, wrong: list[str]) -> None:
    """What any reader may rely on at any moment."""
    while not end.wait(0.02):
        for folder in list(runs_folder(multirun).glob("*")):
            try:
                find_state(folder)
                log = read_log(metrics_path(folder))
            except files.BadRunFolder as error:
                wrong.append(str(error))
                continue
            steps = [record["step"] for record in log.records]
            if steps != list(range(1, len(steps) + 1)) or log.torn > 1:
                wrong.append(f"{folder}: steps {steps}, {log.torn} torn")


def check(sweep: Sweep) -> None:
    """Every run done once, every step logged once with its value, nothing left over."""
    runs = sorted(runs_folder(sweep.multirun).iterdir())
    assert len(runs) == SEEDS
    for folder in runs:
        state, config = read_state(folder), read_config(folder)
        assert state.state == RunState.DONE, state
        log = read_log(metrics_path(folder))
        assert log.torn == 0
        assert [(record["step"], record["value"]) for record in log.records] == walk(config["seed"], STEPS), folder
        assert read_summary(folder) and read_provenance(folder)
        attempts = sorted(int(path.name) for path in (folder / "attempts").iterdir())
        assert attempts[-1] == state.attempt
        checkpoints = sorted(path.name for path in checkpoints_folder(folder).iterdir())
        assert len(checkpoints) <= 2 and checkpoints[-1] == checkpoint_name(STEPS), checkpoints
        left = [path.name for path in folder.iterdir() if path.name.startswith(files.ASIDE)]
        assert not left and not (folder / "claim.json").exists(), left
    overtaken = defaultdict(int)
    newest: dict[str, int] = {}
    for line in sweep.ledger.read_text().splitlines():
        run_id, attempt, _ = line.split()
        overtaken[run_id, attempt] += int(attempt) < newest.get(run_id, 0)
        newest[run_id] = max(int(attempt), newest.get(run_id, 0))
    # A process that was stopped between a look at its claim and the step after it does that step.
    twice = {key: count for key, count in overtaken.items() if count}
    assert sum(twice.values()) <= sweep.freezes and all(count == 1 for count in twice.values()), twice


# ---------------------------------------------------------------- all of it


@contextlib.contextmanager
def disk(place: Path) -> Iterator[None]:
    """A folder `disk` of a few megabytes."""
    (place / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", place / "disk"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place / "disk"], check=True)


def torture(rounds: int, seed: int) -> None:
    """Raise AssertionError, with the seed and the story, where something does not hold."""
    began = time.monotonic()
    for first in range(0, rounds, ROUNDS_A_SWEEP):
        own = f"{seed}-{first}"
        place = Path(tempfile.mkdtemp(prefix=f"torture-{own}-"))
        sweep = Sweep(place, random.Random(own), f"{own}-{os.getpid()}")
        end, wrong = threading.Event(), list[str]()
        reader = threading.Thread(target=watch, args=(sweep.multirun, end, wrong))
        with disk(place):
            reader.start()
            try:
                for _ in range(min(ROUNDS_A_SWEEP, rounds - first)):
                    sweep.round()
                sweep.finish()
                assert not wrong, wrong[:5]
                check(sweep)
            except BaseException:
                kept = place / "kept"
                shutil.copytree(sweep.multirun, kept)
                print(f"seed {seed}, rounds from {first}: {'; '.join(sweep.story)}\nkept in {place}", flush=True)
                raise
            finally:
                end.set()
                reader.join()
                sweep.close()
        shutil.rmtree(place)
        done = min(first + ROUNDS_A_SWEEP, rounds)
        print(f"{done}/{rounds} rounds, {time.monotonic() - began:.0f} s: {'; '.join(sweep.story)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time; it is printed")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    torture(given.rounds, seed)
    print(f"{given.rounds} rounds: every run done once, every step logged once, nothing left over")


if __name__ == "__main__":
    main()
