"""What a job executes: one attempt at a frozen run. `python -m launcher.worker RUN_FOLDER` does it alone.

The process's exit code and the state file say the same thing; the state file is the truth.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from launcher import files, tracking
from launcher.config import identity
from launcher.project import ROOT
from launcher.run import claim, launch_record, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.run.launch_record import Launch
from launcher.text import one_line
from launcher.worker.attempt import Attempt, prepare

TRAIN = "trainer_ext.train:train"
TRACEBACK_LINES = 50
_LOOK_S = 1.0

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_DIVERGED = 3
EXIT_BUSY = 4
EXIT_CANCELLED = 5
EXIT_DISK_FULL = 74
EXIT_PREEMPTED = 75

# How long a worker whose launcher is gone may take to save a checkpoint.
ORPHAN_S = 60.0

Train = Callable[[Any, Attempt], Mapping[str, Any]]
Gone = Callable[[], tuple[str, str]]
_EXITS = {
    folders.DONE: EXIT_DONE,
    folders.FAILED: EXIT_FAILED,
    folders.PLANNED: EXIT_FAILED,  # failed, and to be taken up again
    folders.DIVERGED: EXIT_DIVERGED,
    folders.PREEMPTED: EXIT_PREEMPTED,
    folders.LOST: EXIT_PREEMPTED,  # asked to stop because of its node, or its place in the cluster
    folders.CANCELLED: EXIT_CANCELLED,
}


def launcher_gone() -> tuple[str, str]:
    """The kind and cause of a stop because the process that started this one ended before it."""
    return lifecycle.PREEMPTED, "launcher gone"


def execute(
    folder: Path,
    train: str = TRAIN,
    launch: Launch | None = None,
    job: str | None = None,
    gone: Gone = launcher_gone,
) -> int:
    """Run one frozen run to the end of one attempt in this process, and return the exit code.

    EXIT_BUSY: another process owns the run, or it needs no work; nothing was touched. EXIT_DISK_FULL: not even the
    run's state could be written; the same command takes the run up again. `train` names the function as
    module:function; `gone` says what it means when the starting process ends first. The process's standard output and
    error go to the attempt's folder from here on.
    """
    folder = folder.resolve()
    launch = launch or Launch()
    try:
        owned = _take(folder, job)
        if owned is None:
            return EXIT_BUSY
        return _owned(folder, *owned, train, launch, gone)
    except claim.ClaimLost as error:
        _say(str(error))
        return EXIT_BUSY
    except OSError as error:
        if not lifecycle.is_disk_full(error):
            raise
        _say(f"{folder}: the state could not be written: {lifecycle.described(error)}")
        return EXIT_DISK_FULL


def _owned(folder: Path, mine: claim.Claim, state: State, train: str, launch: Launch, gone: Gone) -> int:
    heartbeat = claim.Heartbeat(folder, mine)
    attempt = Attempt(folder, state.attempt, heartbeat)
    heartbeat.look = attempt.heed
    try:
        _watch(attempt, gone)
        ended = _attempt(folder, state, attempt, train, launch)
        with suppress(OSError):  # what a done run logged was synced before
            attempt.close()
        if attempt.tracker is not None:
            attempt.tracker.close(ended.state)
    finally:
        heartbeat.stop()
    with claim.locked(folder):
        if not claim.owns(folder, mine):
            return EXIT_BUSY
        ended = lifecycle.unheeded(folder, ended) or ended  # asked for too late, and yet not to be taken up again
        try:
            folders.write_state(folder, ended)
        finally:
            claim.release(folder, mine)
    return _EXITS[ended.state]


def _take(folder: Path, job: str | None) -> tuple[claim.Claim, State] | None:
    """Claim the run and say that it is running; None when it is owned, needs no work, or its launch is closed."""
    witness = claim.Witness()
    while (
        (owner := witness.owner(folder)) is not None and not claim.is_here(owner) and not claim.is_alive(folder, owner)
    ):
        time.sleep(_LOOK_S)  # an owner on another host that seems dead: until it is sure
    with claim.locked(folder):
        state = folders.read_state(folder)
        if state.state not in folders.RESUMABLE or (job is not None and _closed(folder, job)):
            return None
        cancelled = lifecycle.unheeded(folder, state) if witness.owner(folder) is None else None
        if cancelled is not None:
            folders.write_state(folder, cancelled)
            claim.discard(folder)
            return None
        mine = claim.acquire(folder, state.attempt + 1, witness)
        if mine is None:
            return None
        try:
            stop_request.clear(folder)
            prepare(folder, mine.attempt)
            newest = folders.latest_checkpoint(folder)
            state = state.but(
                state=folders.RUNNING,
                attempt=mine.attempt,
                started=time.time(),
                finished=None,
                host=mine.host,
                pid=mine.pid,
                job=job,
                kind=None,
                cause=None,
                error=None,
                from_step=newest[0] if newest else 0,
            )
            folders.write_state(folder, state)
        except BaseException:
            claim.release(folder, mine)
            raise
    return mine, state


def _closed(folder: Path, job: str) -> bool:
    return launch_record.closed(launch_record.launches_folder(folders.multirun_of(folder)) / f"{job}.json").exists()


def _attempt(folder: Path, state: State, attempt: Attempt, train: str, launch: Launch) -> State:
    """Train, and describe how it ended. Only ClaimLost passes through."""
    try:
        _redirect(folders.attempt_folder(folder, state.attempt))
        config = folders.read_config(folder)
        identity.verify(config, folder.name)
        _write_provenance(folder, config, launch, state)
        attempt.tracker = tracking.start(folder, config, state.attempt, launch.tracking)
        function = resolve_train(train)
        summary = function(whole_config(folder, config), attempt)
        attempt.check()
        attempt.sync()
        files.write_json(folder / "summary.json", dict(summary))
    except claim.ClaimLost:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt of foreign code are failures of the run too
        _say(traceback.format_exc())
        return _ending(folder, state, error, attempt, launch)
    return state.but(state=folders.DONE, finished=time.time())


def _ending(folder: Path, state: State, error: BaseException, attempt: Attempt, launch: Launch) -> State:
    kind = lifecycle.kind_of(error)
    further = lifecycle.progressed(folder, state)
    if kind == lifecycle.PREEMPTED:
        attempt.heed()
        cause = attempt.stop_cause or one_line(str(error))
        return lifecycle.ended(state, attempt.stop_kind, cause, launch.retry, further)
    text = "\n".join("".join(traceback.format_exception(error)).splitlines()[-TRACEBACK_LINES:])
    record = {"type": type(error).__name__, "message": str(error), "traceback": text}
    return lifecycle.ended(state, kind, lifecycle.described(error), launch.retry, further, record)


def _say(text: str) -> None:
    """Print to standard error; a full disk may refuse that, too."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def whole_config(folder: Path, config: Mapping[str, Any]) -> Any:
    """The frozen configuration with verl's whole tree under `verl`, resolved. Missing values stay `???`."""
    from omegaconf import OmegaConf

    from launcher.config.verl_tree import merge

    if not isinstance(config.get("base"), str) or not isinstance(config.get("verl"), Mapping):
        raise files.BadRunFolder(folder / "config.yaml", "`base` must be a string and `verl` a mapping")
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


def _write_provenance(folder: Path, config: Mapping[str, Any], launch: Launch, state: State) -> None:
    from launcher.worker import provenance

    record, multirun = launch.record, folders.multirun_of(folder)
    patch = launch_record.launches_folder(multirun) / launch.patch if launch.patch else None
    if not record:
        collected = provenance.collect(ROOT, " ".join(sys.argv), multirun)
        record = collected.record
        if collected.patch:
            patch = launch_record.launches_folder(multirun) / launch_record.keep_patch(multirun, collected.patch)
    (folder / "dirty.patch").unlink(missing_ok=True)
    if patch is not None:
        os.link(patch, folder / "dirty.patch")
    own = {"seed": config["seed"], "host": state.host, "attempt": state.attempt, "pid": state.pid}
    files.write_json(folder / "provenance.json", {**record, **provenance.here(record), **own})


def _redirect(folder: Path) -> None:
    """Send file descriptors 1 and 2, and so the output of C code and children too, to the attempt's logs."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name, number in (("stdout", 1), ("stderr", 2)):
        handle = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)


def _watch(attempt: Attempt, gone: Gone) -> None:
    """Ask the trainer to stop on SIGTERM, SIGINT, or when the launcher that started this process is gone."""

    def on_signal(number: int, _frame: object) -> None:
        attempt.heed()  # a signal may only say: look at the request
        attempt.request_stop(f"signal {number} ({signal.Signals(number).name})")

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def wait() -> None:
        multiprocessing.connection.wait([sentinel])
        kind, cause = gone()
        attempt.request_stop(cause, kind)
        time.sleep(ORPHAN_S)
        os.kill(os.getpid(), signal.SIGKILL)  # a trainer that does not stop: nobody else is left to end it

    threading.Thread(target=wait, name="launcher-watch", daemon=True).start()


def leave(code: int) -> NoReturn:
    """End this process with that exit code, even when its last output cannot be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`python -m launcher.worker RUN_FOLDER [--launch FILE] [--job TOKEN] [--train MODULE:FUNCTION]`."""
    parser = argparse.ArgumentParser(prog="python -m launcher.worker", description="Do one attempt at a frozen run.")
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="multirun/runs/ID, a folder with config.yaml")
    parser.add_argument("--launch", type=Path, metavar="FILE", help="multirun/launches/TOKEN.json")
    parser.add_argument("--job", help="the scheduler's name for it")
    parser.add_argument("--train", default=TRAIN, metavar="MODULE:FUNCTION", help="what trains (default: %(default)s)")
    given = parser.parse_args(arguments)
    if not (given.run / "config.yaml").is_file():
        parser.error(f"RUN_FOLDER = {given.run}: a run's folder has a config.yaml")
    leave(execute(given.run, given.train, launch_record.read(given.launch) if given.launch else None, given.job))
