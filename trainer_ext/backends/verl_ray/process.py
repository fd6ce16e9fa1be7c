"""The backend as the run's process sees it: a child process that is Ray's driver, and the questions that it answers.

Ray reads its authentication once, when it is imported, and ends its driver when its cluster dies. So the driver is a
process of its own, with a fresh interpreter (driver.py). It dies with the process that started it, and Ray's processes
die with the driver.
"""

from __future__ import annotations

import multiprocessing.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
from omegaconf import OmegaConf

from trainer_ext import tasks
from trainer_ext.backends.in_process import initial_model, target_model
from trainer_ext.evaluation import Answer

_ROOT = Path(__file__).parents[3]
_DRIVER = "trainer_ext.backends.verl_ray.driver"
_CLOSE_S = 15.0  # for Ray to end by itself
_STACKS_S = 2.0  # for the processes to print their stacks
_LOOK_S = 1.0


class DriverDied(RuntimeError):
    """Ray's driver ended without an answer."""


class VerlRay:
    """The backend `verl_ray`; trainer_ext/backends/__init__.py documents its methods."""

    def __init__(self, config: Mapping[str, Any], cache: Path):
        """config: seed, method, model, task, trainer, and verl's tree merged. ValueError: a value cannot work."""
        trainer = config["trainer"]
        self._hang_s = float(trainer["hang_s"])
        # here, where `train` counts the seconds that runs share; the driver finds them in the cache
        target_model.start(config, cache, initial_model.start(config, cache))
        tasks.prepare(config["task"], trainer["split"], cache)
        self.devices = int(trainer["ranks"])  # a CPU counts as one
        self.samples = self.tokens = self.peak_memory_bytes = 0
        self.answers: list[Answer] = []
        # Ray opens its own folder to all users: it is below one that is this user's alone. It is short: the path of
        # a socket may have 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="vr-"))
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", _DRIVER, str(theirs.fileno())]
        self._driver = subprocess.Popen(command, cwd=_ROOT, env=environment(os.environ), pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection = Connection(ours.detach())
        # also where the process ends without `close`
        self._end = multiprocessing.util.Finalize(
            self, _end, args=(self._driver, self._connection, self._folder), exitpriority=10
        )
        try:
            plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
            self.parameters: int = self._ask("start", "the start", plain, str(cache), str(self._folder / "r"))
        except BaseException:
            self.close()
            raise

    def step(self, step: int) -> dict[str, float]:
        """Sample, score, update. Returns the step's metrics but for those that `train` measures."""
        metrics, self.samples, self.tokens, self.peak_memory_bytes, self.answers = self._ask(
            "step", f"step {step}", step
        )
        return dict(metrics)

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        """Histograms over the newest step's tokens."""
        return dict(self._ask("histograms", "the histograms"))

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint with `state` (JSON values) beside the training's own."""
        self._ask("save", "the checkpoint", str(folder), state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore a checkpoint; returns what `save` was given."""
        state, self.samples, self.tokens = self._ask("load", "the checkpoint", str(folder))
        return dict(state)

    def close(self) -> None:
        """End Ray and its driver."""
        self._end()

    def _ask(self, question: str, doing: str, *given: Any) -> Any:
        """The driver's answer. Raises its exception, DriverDied, or RuntimeError if it takes longer than hang_s."""
        try:
            self._connection.send((question, given))
            end = time.monotonic() + self._hang_s
            while not self._connection.poll(_LOOK_S):
                if time.monotonic() > end:
                    self._print_stacks(doing)
            kind, answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            code = self._driver.wait()
            raise DriverDied(
                f"Ray's driver ended with code {code} during {doing}; its last output is in the attempt's stderr.log"
            ) from error
        if kind == "error":
            raise answer
        return answer

    def _print_stacks(self, doing: str) -> NoReturn:
        """Make every process of Ray print its stacks to the attempt's stderr.log, and raise RuntimeError."""
        driver = psutil.Process(self._driver.pid)
        found = [driver, *driver.children(recursive=True)]
        frozen = [one for one in found if one.status() == psutil.STATUS_STOPPED]
        for one in found:
            if _handles(one.pid, signal.SIGUSR1):
                one.send_signal(signal.SIGUSR1)
        time.sleep(_STACKS_S)
        stopped = "; ".join(f"{one.name()} (pid {one.pid}) is stopped" for one in frozen)
        raise RuntimeError(
            f"{doing} took longer than trainer.hang_s={self._hang_s:g} s"
            f"{f': {stopped}' if stopped else ''}; the stacks of Ray's processes are in the attempt's stderr.log"
        )


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the driver and of all processes that Ray starts."""
    path = os.pathsep.join(filter(None, [str(_ROOT), given.get("PYTHONPATH", "")]))
    return {
        **given,
        "PYTHONPATH": path,
        # Ray's own switch between one machine, where it listens on loopback, and a cluster
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # the run itself, not work beside it
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TQ_LOGGING_LEVEL": "ERROR",  # it warns of the number of threads with each of thousands of tensors
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFER_QUEUE_ENABLE": "1",
    }


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _end(driver: subprocess.Popen[bytes], connection: Connection, folder: Path) -> None:
    """Ask the driver to end, and kill what is left of it and of Ray after a while."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(driver.pid).children(recursive=True)
    with suppress(OSError):
        connection.send(("close", ()))
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        driver.wait(_CLOSE_S)
    driver.kill()
    driver.wait()
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()  # psutil refuses a pid that another process has got meanwhile
    psutil.wait_procs(started, timeout=_CLOSE_S)
    shutil.rmtree(folder, ignore_errors=True)
