"""What a job executes: one frozen run -> one terminal state. `python -m launcher.worker RUN_FOLDER` does it alone.

The process's exit code and the state file say the same thing; the state file is the truth.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher import claim
from launcher import run as folders
from launcher.attempt import Attempt, prepare
from launcher.claim import Heartbeat
from launcher.problem import one_line
from launcher.run import State

TRAIN = "trainer_ext.train:train"
TRACEBACK_LINES = 50

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_BUSY = 4
EXIT_PREEMPTED = 75

Train = Callable[[Any, Attempt], Mapping[str, Any]]
_EXITS = {
    folders.DONE: EXIT_DONE,
    folders.FAILED: EXIT_FAILED,
    folders.DIVERGED: EXIT_DIVERGED,
    folders.PREEMPTED: EXIT_PREEMPTED,
}


def execute(
    folder: Path, train: str = TRAIN, provenance: Mapping[str, Any] | None = None, job: str | None = None
) -> int:
    """Run one frozen run to a terminal state in this process, and return the exit code.

    EXIT_BUSY: another process owns the run, or it is finished already; nothing was touched. `train` names the function
    as module:function. The process's standard output and error go to the attempt's folder from here on.
    """
    folder = folder.resolve()
    owned = _take(folder, job)
    if owned is None:
        return EXIT_BUSY
    mine, state = owned
    heartbeat = Heartbeat(folder, mine)
    attempt = Attempt(folder, state.attempt, heartbeat)
    _watch(attempt)
    try:
        _redirect(folders.attempt_folder(folder, state.attempt))
        ended = _attempt(folder, state, attempt, train, provenance)
        attempt.close()
    except claim.ClaimLost as error:
        print(error, file=sys.stderr, flush=True)
        heartbeat.stop()
        return EXIT_BUSY
    heartbeat.stop()
    with claim.locked(folder):
        if not claim.owns(folder, mine):
            return EXIT_BUSY
        folders.write_state(folder, ended)
        claim.release(folder, mine)
    return _EXITS[ended.state]


def _take(folder: Path, job: str | None) -> tuple[claim.Claim, State] | None:
    """Claim the run and say that it is running; None when it is owned or needs no work."""
    with claim.locked(folder):
        state = folders.read_state(folder)
        if state.state not in folders.RESUMABLE:
            return None
        mine = claim.acquire(folder, state.attempt + 1)
        if mine is None:
            return None
        state = state.but(
            state=folders.RUNNING,
            attempt=mine.attempt,
            started=time.time(),
            finished=None,
            host=mine.host,
            pid=mine.pid,
            job=job,
            cause=None,
            error=None,
        )
        prepare(folder, mine.attempt)
        folders.write_state(folder, state)
    return mine, state


def _attempt(folder: Path, state: State, attempt: Attempt, train: str, provenance: Mapping[str, Any] | None) -> State:
    """Train, and describe how it ended. Only ClaimLost passes through."""
    try:
        config = folders.read_config(folder)
        _write_provenance(folder, config, provenance, state)
        function = resolve_train(train)
        summary = function(whole_config(folder, config), attempt)
        attempt.sync()
        folders.write_json(folder / "summary.json", dict(summary))
    except claim.ClaimLost:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt of foreign code are failures of the run too
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        return _ending(state, error, attempt)
    return state.but(state=folders.DONE, finished=time.time())


def _ending(state: State, error: BaseException, attempt: Attempt) -> State:
    kind = {"Preempted": folders.PREEMPTED, "Diverged": folders.DIVERGED}.get(type(error).__name__, folders.FAILED)
    ended = state.but(state=kind, finished=time.time(), cause=f"{type(error).__name__}: {one_line(str(error))}")
    if kind == folders.PREEMPTED:
        return ended.but(cause=attempt.stop_cause or one_line(str(error)))
    lines = traceback.format_exception(error)
    text = "\n".join("".join(lines).splitlines()[-TRACEBACK_LINES:])
    return ended.but(error={"type": type(error).__name__, "message": str(error), "traceback": text})


def whole_config(folder: Path, config: Mapping[str, Any]) -> Any:
    """The frozen configuration with verl's whole tree under `verl`, resolved. Missing values stay `???`."""
    from omegaconf import OmegaConf

    from launcher.base import merge

    verl = merge(folders.base_path(folders.multirun_of(folder), config["base"]), config["verl"])
    OmegaConf.resolve(verl)
    whole = OmegaConf.create({key: value for key, value in config.items() if key != "verl"})
    whole["verl"] = verl
    OmegaConf.set_struct(whole, True)
    return whole


def resolve_train(name: str) -> Train:
    """The function that `module:function` names; an import that fails raises here, inside the run's own attempt."""
    module, _, function = name.partition(":")
    found: Train = getattr(importlib.import_module(module), function)
    return found


def _write_provenance(folder: Path, config: Mapping[str, Any], record: Mapping[str, Any] | None, state: State) -> None:
    if record is None:
        from launcher.provenance import collect

        collected = collect(Path(__file__).resolve().parent.parent, " ".join(sys.argv))
        record = collected.record
        if collected.patch is not None:
            folders.write_atomic(folder / "dirty.patch", collected.patch)
    folders.write_json(
        folder / "provenance.json",
        {**record, "seed": config["seed"], "host": state.host, "attempt": state.attempt, "pid": state.pid},
    )


def _redirect(folder: Path) -> None:
    """Send file descriptors 1 and 2, and so the output of C code and children too, to the attempt's logs."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name, number in (("stdout", 1), ("stderr", 2)):
        handle = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)


def _watch(attempt: Attempt) -> None:
    """Ask the trainer to stop on SIGTERM, SIGINT, or when the launcher that started this process is gone."""

    def on_signal(number: int, _frame: object) -> None:
        attempt.request_stop(f"signal {number} ({signal.Signals(number).name})")

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def wait() -> None:
        multiprocessing.connection.wait([sentinel])
        attempt.request_stop("launcher gone")

    threading.Thread(target=wait, name="launcher-watch", daemon=True).start()


def main(arguments: list[str]) -> int:
    """`python -m launcher.worker RUN_FOLDER`."""
    if len(arguments) != 1 or not (Path(arguments[0]) / "config.yaml").is_file():
        print("usage: python -m launcher.worker multirun/runs/ID (a folder with config.yaml)", file=sys.stderr)
        return EXIT_USAGE
    return execute(Path(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
