"""Real Ray clusters in a network namespace that has only a loopback device: nothing outside can reach them."""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil

from tests.cluster import leftovers
from tests.waiting import DEADLINE, until

ROOT = Path(__file__).parents[2]
# Below Ray's own range of workers' ports. `ray start` refuses an address that any process of the host names, in
# whatever namespace: clusters keep apart, ten of one test process and those of others.
_PORTS = (6400 + (10 * os.getpid() + number) % 3500 for number in itertools.cycle(range(10)))
_STARTS = 3  # of a node
_LOOPBACK = "ip link set lo up && echo up"


def _namespace(*then: str) -> list[str]:
    """A command that makes a network namespace with a loopback device, says so, and does something more."""
    user = [] if os.geteuid() == 0 else ["-r"]
    return ["unshare", "-n", *user, "sh", "-c", " && ".join((_LOOPBACK, *then))]


@functools.cache
def missing_ray() -> str | None:
    """Why no Ray can be started in a network namespace here; None where one can."""
    absent = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found on PATH (Debian: util-linux, iproute2)"
    done = subprocess.run(_namespace(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"a network namespace with a loopback device cannot be made here: {' '.join(done.stderr.split())}"
    return None


class Rays:
    """A namespace, and the Ray nodes and launchers in it; `environment` is what all get, `folder` is Ray's own."""

    def __init__(self) -> None:
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "15",  # for which a head that is gone is waited
            "RAY_worker_niceness": "0",  # nicer than the other tests' processes, its workers would wait for those
            leftovers.MARK: leftovers.mark(),
        }
        self._port = next(_PORTS)
        self.address = f"127.0.0.1:{self._port}"
        self.folder = leftovers.folder(Path(tempfile.gettempdir()), "rl-")
        self._started: list[subprocess.Popen[str]] = []
        self.head_process: subprocess.Popen[str] | None = None
        self._holder = subprocess.Popen(
            _namespace("exec sleep infinity"), env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "up\n"
        self._space = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self._enter = ["nsenter", "-t", str(self._holder.pid), "-n", *user]

    def run(self, *command: str, output: TextIO | None = None, **environment: str) -> subprocess.Popen[str]:
        """A process in the namespace; what it says goes into a pipe, or into `output`."""
        given = {"cwd": ROOT, "env": {**self.environment, **environment}, "text": True, "start_new_session": True}
        pipes = {"stdout": output or subprocess.PIPE, "stderr": subprocess.STDOUT}
        process: subprocess.Popen[str] = subprocess.Popen([*self._enter, *command], **given, **pipes)
        self._started.append(process)
        return process

    def head(self, *options: str) -> None:
        """Start a head, and wait until it answers."""
        own = ["--head", "--port", str(self._port), "--include-dashboard=false", "--temp-dir", str(self.folder)]
        self.head_process = self._node(*own, *options)

    def restore(self, *options: str) -> None:
        """Start a head where none lives."""
        if self.head_process is None or self.head_process.poll() is not None:
            self.head(*options)

    def node(self, *options: str) -> subprocess.Popen[str]:
        """Start another node of the same cluster."""
        return self._node("--address", self.address, *options)

    def _node(self, *options: str) -> subprocess.Popen[str]:
        """A node that has started. `ray start` gives itself 30 s, which a busy machine exceeds: it is tried again."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address", "127.0.0.1"]
        said = ""
        for _ in range(_STARTS):
            process = self.run(*ray, *options)
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if "Ray runtime started" in line:
                    return process
            process.wait(DEADLINE)
            until(functools.partial(_killed, process.pid))
        raise AssertionError(f"Ray did not start in {_STARTS} attempts: {said}")

    def launcher(self, multirun: Path, *overrides: str) -> subprocess.Popen[str]:
        """A launcher over the small training of tests/launcher/steps.py."""
        where = ["cluster=ray", f"cluster.address={self.address}"]
        return self.run(sys.executable, "-m", "tests.launcher.drive", str(multirun), *where, *overrides)

    def processes(self, *words: str) -> list[psutil.Process]:
        """The processes of the namespace whose command has one of these words."""
        found = []
        for one in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                command = " ".join(one.cmdline())
                if os.readlink(f"/proc/{one.pid}/ns/net") == self._space and any(word in command for word in words):
                    found.append(one)
        return found

    def stop(self) -> None:
        """End every process of the namespace: all are ours."""
        for process in self._started:
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=20)
        self._holder.kill()
        until(lambda: not self._kill_all())
        for process in [*self._started, self._holder]:
            process.communicate(timeout=DEADLINE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_all(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(entry / "ns/net") == self._space and (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def kill(pid: int) -> None:
    """Kill a node: Ray's processes, the Ray workers, and the runs below them."""
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def ray_worker(node: subprocess.Popen[str], run_id: str) -> psutil.Process:
    """The Ray worker of a node that has a run as its task."""
    (found,) = [one for one in tree(node.pid) if one.cmdline() and one.cmdline()[0] == f"ray::{run_id}"]
    return found


def _killed(session: int) -> bool:
    """Kill what a command has left, by the id of the session that `Rays.run` gave it; whether nothing was left."""
    left = []
    for one in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE:
                left.append(one)
                one.kill()
    return not left
