"""The backend as the run's process sees it: a child process that is Ray's driver, and the questions that it answers.

Ray reads its authentication once, when it is imported, and ends its driver when its cluster dies. So the driver is a
process of its own, with a fresh interpreter (driver.py). It dies with the process that started it, and Ray's processes
die with the driver. Where a run has several nodes, their Ray is started first, and the driver joins it. Where the run
is a task of a Ray, the driver joins that one (shared.py).
"""

from __future__ import annotations

import fcntl
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
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
from omegaconf import OmegaConf

from trainer_ext.backends.in_process import initial_model, target_model
from trainer_ext.backends.protocol import Lost, NodeLost, Nodes, Ray, Stalled
from trainer_ext.backends.verl_ray import node
from trainer_ext.fits import devices
from trainer_ext.scoring import tasks
from trainer_ext.scoring.scores.evaluation import Answer

_ROOT = Path(__file__).parents[3]
_DRIVER = "trainer_ext.backends.verl_ray.driver"
_FOLDER, _LOCK = "rls-", "rlsweep.lock"
_CLOSE_S = 15.0  # for Ray to end by itself
_STACKS_S = 2.0  # for the processes to print their stacks
_LOOK_S = 1.0
_STOPPED_S = 30.0  # for which a process of Ray may be stopped, such as by SIGSTOP
_ENDED_S = 10.0  # after the death of a process, for the end of its node's Ray to be seen


class VerlRay:
    """The backend `verl_ray`; trainer_ext/backends/protocol.py documents its methods."""

    def __init__(self, config: Mapping[str, Any], cache: Path, nodes: Nodes):
        """config: seed, method, model, task, trainer, and verl's tree merged. ValueError: a value cannot work."""
        trainer, (_, on_each) = config["trainer"], devices.asked(config["model"])
        self._hang_s = float(trainer["hang_s"])
        # here, where `train` counts the seconds that runs share; the driver finds them in the cache
        target_model.start(config, cache, initial_model.start(config, cache))
        tasks.prepare(config["task"], trainer["split"], cache)
        self.devices = int(trainer["ranks"])  # a CPU counts as one
        self.samples = self.tokens = self.peak_memory_bytes = 0
        self.drawn: Mapping[str, Any] = {}
        with ExitStack() as started:
            self._shared = nodes.shared
            joins = self._shared is not None
            variables = environment(os.environ, nodes.count > 1, joins)
            variables |= devices.environment(devices.kind_of(config["model"]))
            self._ray: Ray | None = self._shared
            if nodes.count > 1 and not joins:
                options = {"num-cpus": node.cpus(trainer, nodes.count), "num-gpus": on_each}
                options["object-store-memory"] = node.OBJECTS
                resources = [f"--{name}={count}" for name, count in options.items()]
                self._ray = started.enter_context(nodes.ray(variables, resources))
            folder = _folder(started)
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", _DRIVER, str(theirs.fileno())]
            self._driver = subprocess.Popen(command, cwd=_ROOT, env=variables, pass_fds=[theirs.fileno()])
            theirs.close()
            self._connection = Connection(ours.detach())
            started.callback(_end, self._driver, self._connection)
            # also where the process ends without `close`
            self._end = multiprocessing.util.Finalize(self, started.pop_all().close, exitpriority=10)
        try:
            plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
            start = [plain, str(cache), str(folder / "r"), nodes.count]
            if self._ray is not None:
                start += [self._ray.address, self._shared.group if self._shared is not None else None]
            self.parameters: int = self._ask("start", "the start", *start)
        except BaseException:
            self.close()
            raise

    def step(self, step: int) -> dict[str, float]:
        metrics, self.drawn, self.samples, self.tokens, self.peak_memory_bytes = self._ask("step", f"step {step}", step)
        return dict(metrics)

    def evaluate(self, step: int) -> list[Answer]:
        answers, self.peak_memory_bytes = self._ask("evaluate", f"the evaluation after step {step}", step)
        return list(answers)

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        return dict(self._ask("histograms", "the histograms"))

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        self._ask("save", "the checkpoint", str(folder), state)

    def load(self, folder: Path) -> dict[str, Any]:
        state, self.samples, self.tokens = self._ask("load", "the checkpoint", str(folder))
        return dict(state)

    def close(self) -> None:
        self._end()

    def _ask(self, question: str, doing: str, *given: Any) -> Any:
        """The driver's answer. Raises its exception.

        Lost, NodeLost: the driver or the Ray of a node died. Stalled: it takes longer than hang_s, or a process of Ray
        is stopped for _STOPPED_S.
        """
        waited, stopped_for = 0.0, 0.0  # not by a clock, which also goes on while this process is stopped itself
        try:
            self._connection.send((question, given))
            while not self._connection.poll(_LOOK_S):
                waited += _LOOK_S
                if self._ray is not None and (ended := self._ray.ended()):
                    raise self._gone(f"{ended} during {doing}; its last output is in the attempt's stderr.log")
                stopped = self._stopped()
                stopped_for = stopped_for + _LOOK_S if stopped else 0.0
                if stopped_for >= _STOPPED_S:
                    self._stall(doing, f"cannot go on: {stopped} for {stopped_for:g} s")
                if waited >= self._hang_s:
                    because = f": {stopped}" if stopped else ""
                    self._stall(doing, f"took longer than trainer.hang_s={self._hang_s:g} s{because}")
            kind, answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            code = self._driver.wait()
            raise self._lost(
                f"Ray's driver ended with code {code} during {doing}; its last output is in the attempt's stderr.log"
            ) from error
        if kind == "error":
            # what depends on a node that is gone may also fail in other words
            if self._shared is not None and (ended := self._shared.ended()):
                raise NodeLost(f"{ended}: {answer}") from answer
            raise self._lost(str(answer)) if isinstance(answer, Lost) else answer
        return answer

    def _gone(self, what: str) -> Lost:
        """The error of a Ray that has ended on a node. SLURM itself says whether a node of its job has failed."""
        return Lost(what) if self._shared is None else NodeLost(what)

    def _lost(self, what: str) -> Lost:
        """The error of a dead process, with its cause if the whole Ray of a node has ended."""
        until = time.monotonic() + _ENDED_S
        while self._ray is not None and time.monotonic() < until:
            if ended := self._ray.ended():
                return self._gone(f"{ended}: {what}")
            time.sleep(0.1)
        return Lost(what)

    def _processes(self) -> list[psutil.Process]:
        """The driver, and all that it has started; in a shared Ray, what this node's raylet has started for the run."""
        processes = []
        with suppress(psutil.NoSuchProcess):
            processes = node.family(psutil.Process(self._driver.pid))
            if self._shared is not None:
                processes += node.of_share(psutil.Process(int(os.environ["RAY_RAYLET_PID"])), self._shared.group)
        return processes

    def _stopped(self) -> str:
        """The processes of Ray that are stopped, in words; an empty text if there are none."""
        stopped = []
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    stopped.append(f"{' '.join(process.cmdline()[:1])} (pid {process.pid})")
        return f"{' and '.join(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped" if stopped else ""

    def _stall(self, doing: str, why: str) -> NoReturn:
        """Make every process of Ray print its stacks to the attempt's stderr.log, and raise Stalled."""
        for process in self._processes():
            if _handles(process.pid, signal.SIGUSR1):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(_STACKS_S)
        raise Stalled(f"{doing} {why}; the stacks of Ray's processes are in the attempt's stderr.log")


def _folder(started: ExitStack) -> Path:
    """A folder for Ray, until `started` is closed. Those of processes that were killed are removed.

    Ray opens its own folder to all users: it is below one that is this user's alone. Its path is short, because that of
    a socket may have 107 characters. The file _LOCK says whose it is: its process holds a lock of it until it ends.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/{_LOCK}"):
        with suppress(OSError), left.open() as lock:  # of another user, or of a process that lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    made = folder / "new"
    fcntl.flock(started.enter_context(made.open("w")), fcntl.LOCK_EX)
    made.rename(folder / _LOCK)  # with the lock, so that nobody removes it
    started.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment(given: Mapping[str, str], several_nodes: bool = False, joins: bool = False) -> dict[str, str]:
    """The environment of the driver and of all processes that Ray starts.

    joins: the driver joins the Ray of which its run is a task, with that Ray's token.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), given.get("PYTHONPATH", "")]))
    common = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", **node.ENVIRONMENT}
    common[node.EXTERNAL] = ",".join(filter(None, [common[node.EXTERNAL], given.get(node.EXTERNAL)]))
    kept = {name: value for name, value in given.items() if name not in ("RAY_ADDRESS", "RAY_NAMESPACE")}
    if joins:
        return {**kept, **common}
    kept.pop("RAY_AUTH_TOKEN_PATH", None)  # of another Ray, in which this run may be a task
    return {
        **kept,
        **common,
        # Ray's own switch between one machine, where it listens on loopback, and a cluster
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(several_nodes)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",  # the run itself, not work beside it
        "RAY_prestart_worker_first_driver": "0",  # otherwise one for each CPU, and no actor gets it
    }


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _end(driver: subprocess.Popen[bytes], connection: Connection) -> None:
    """Ask the driver to end, and kill what is left of it and of the Ray that it started after a while."""
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
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # psutil refuses a pid that another process has got meanwhile
    psutil.wait_procs(started, timeout=_CLOSE_S)
