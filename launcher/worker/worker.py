"""What a job executes: one attempt at a frozen run. `python -m launcher.worker RUN_FOLDER` does it alone.

The exit code (lifecycle.WorkerExit) repeats what state.json says; if they differ, state.json is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import pkgutil
import shutil
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
from launcher.application import application
from launcher.config import content, identity
from launcher.nodes import ONE, Nodes
from launcher.project import COPIES, NO_DEVICES, ROOT, uncollected
from launcher.run import code, launch_record, lifecycle, stop_request, whole
from launcher.run.folder import attempt_folder, last_final_step, latest_checkpoint, multirun_of, read_config
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RESUMABLE, Claim, FailureKind, RunState, State, WorkerExit, read_state, write_state
from launcher.text import one_line
from launcher.worker import prefix, process, provenance
from launcher.worker.attempt import Attempt, prepare
from launcher.worker.certified import ASKED, CertifiedAttempt
from launcher.worker.stall import Watchdog

#: The failure kinds of the launcher's own exceptions, as `Application.failures` has them.
FAILURES = {"launcher.worker.current:Preempted": FailureKind.PREEMPTED, "launcher.nodes:Lost": FailureKind.LOST}
TRACEBACK_LINES = 50
_CHECK_S = 1.0
# How long a worker whose launcher is gone may take to save a checkpoint.
ORPHAN_S = 60.0

Train = Callable[[Any, Attempt], Mapping[str, Any]]
Reason = tuple[FailureKind, str]
# The exit codes after states of another name: a failed attempt of a run that will be resumed, and one that was asked to
# stop because its node failed.
_EXITS = {RunState.PLANNED: WorkerExit.FAILED, RunState.LOST: WorkerExit.PREEMPTED}


def launcher_gone() -> Reason:
    """Why an attempt stops if the process that started its worker ended first."""
    return FailureKind.PREEMPTED, "launcher gone"


def execute(
    folder: Path, launch: Launch | None = None, orphaned: Callable[[], Reason] = launcher_gone, nodes: Nodes = ONE
) -> int:
    """Do one attempt at a frozen run, alone or of a launch, in this process, and return a WorkerExit.

    `orphaned` gives the reason to stop if the process that started this one ends first; `nodes` are those of its job.
    Standard output and error go to the attempt's folder from here on.
    """
    folder = folder.absolute()  # with its links: multirun/runs may be one, and multirun is above it
    try:
        claimed = _claim(folder, launch)
        if claimed is None:
            return WorkerExit.BUSY
        return _run_claimed(folder, *claimed, launch or Launch(), orphaned, nodes)
    except lifecycle.ClaimLost as error:
        _say(str(error))
        return WorkerExit.BUSY
    except OSError as error:
        if not lifecycle.is_disk_full(error):
            raise
        _say(f"{folder}: the state could not be written: {lifecycle.described(error)}")
        return WorkerExit.DISK_FULL


def _run_claimed(
    folder: Path, owner: Claim, state: State, launch: Launch, orphaned: Callable[[], Reason], nodes: Nodes
) -> int:
    heartbeat = lifecycle.Heartbeat(folder, owner)
    kind = CertifiedAttempt if (multirun_of(folder) / ASKED).exists() else Attempt
    attempt = kind(folder, state.attempt, heartbeat, nodes)
    watchdog = Watchdog(folder, state.attempt, launch.stall_s)
    attempt.on_step = watchdog.stepped
    heartbeat.on_beat = _on_beat(attempt, watchdog, owner, launch)
    try:
        _watch(attempt, orphaned)
        final = _attempt(folder, owner, state, attempt, launch, watchdog)
        with suppress(OSError):  # the logs of a done run were synced before
            attempt.close()
        if attempt.tracker is not None:
            attempt.tracker.close(final.state)
    finally:
        heartbeat.stop()
        watchdog.close()
    with lifecycle.locked(folder):
        if not lifecycle.owns(folder, owner):
            return WorkerExit.BUSY
        # If the request to cancel came too late to stop the attempt, the run must still not be resumed.
        final = stop_request.pending_cancellation(folder, final) or final
        try:
            write_state(folder, final)
        finally:
            lifecycle.release_claim(folder, owner)
    return _EXITS.get(final.state) or WorkerExit[final.state.name]


def _on_beat(attempt: Attempt, watchdog: Watchdog, owner: Claim, launch: Launch) -> Callable[[], None]:
    """What the heartbeat's thread does: it looks for requests to stop, and ends a stalled attempt.

    A stalled attempt is asked to stop after its stacks were written. If its thread hangs, it never does; then this one
    writes the state, and ends the process.
    """
    asked: float | None = None

    def on_beat() -> None:
        nonlocal asked
        attempt.check_stop_request()
        stalled = watchdog.beat()
        if stalled is None:
            return
        if asked is None:
            asked = watchdog.idle
            watchdog.dump()
            attempt.request_stop(stalled, FailureKind.STALLED, explained=True)
        elif watchdog.idle - asked > watchdog.grace_s:
            _end_stalled(attempt.folder, owner, attempt.stop_kind, attempt.stop_message or stalled, launch)

    return on_beat


def _end_stalled(folder: Path, owner: Claim, kind: FailureKind, message: str, launch: Launch) -> None:
    """Write the end of an attempt whose own thread hangs, and end this process."""
    with lifecycle.locked(folder):
        state = read_state(folder)
        if not lifecycle.owns(folder, owner) or state.state != RunState.RUNNING:
            return
        write_state(folder, lifecycle.ended(state, kind, message, launch.retry, lifecycle.progressed(folder, state)))
        lifecycle.release_claim(folder, owner)
        os._exit(WorkerExit.CANCELLED if kind == FailureKind.CANCELLED else WorkerExit.PREEMPTED)


def _claim(folder: Path, launch: Launch | None) -> tuple[Claim, State] | None:
    """Claim the run and write that it is running; None if it is owned, needs no work, or its launch is closed."""
    witness = lifecycle.Witness()
    while (
        (owner := witness.owner(folder)) is not None
        and not lifecycle.is_here(owner)
        and not lifecycle.is_alive(folder, owner)
    ):
        time.sleep(_CHECK_S)  # the owner on another host seems dead: wait until that is certain
    with lifecycle.locked(folder):
        state = read_state(folder)
        if state.state not in RESUMABLE:
            return None
        if launch is not None and launch_record.closed(launch_record.path_of(multirun_of(folder), launch)).exists():
            return None
        if witness.owner(folder) is None:
            state = lifecycle.with_lost_attempt(folder, state)
            if (cancelled := stop_request.pending_cancellation(folder, state)) is not None:
                write_state(folder, cancelled)
                lifecycle.discard_claim(folder)
                return None
        owner = lifecycle.acquire(folder, prefix.attempts(folder, state) + 1, witness)
        if owner is None:
            return None
        try:
            stop_request.clear(folder)
            state = prefix.adopt(folder, state)
            prepare(folder, owner.attempt)
            token = None if launch is None else launch.token
            state = lifecycle.started(state, owner, token, last_final_step(folder))
            write_state(folder, state)
        except BaseException:
            lifecycle.release_claim(folder, owner)
            raise
    return owner, state


def _attempt(folder: Path, owner: Claim, state: State, attempt: Attempt, launch: Launch, watchdog: Watchdog) -> State:
    """Train, and return the state in which the attempt ended. Only ClaimLost is raised."""
    config: Mapping[str, Any] = {}
    commits: dict[str, str] = {}
    failures = FAILURES

    def on_first_step() -> None:
        nonlocal state
        state = _with_code(folder, state, config, commits)
        with lifecycle.locked(folder):
            if lifecycle.owns(folder, owner):
                write_state(folder, state)

    try:
        _redirect(attempt_folder(folder, state.attempt))
        config = read_config(folder)
        identity.verify(config, folder.name)
        config = content.located(config, COPIES)
        content.check(config, content.outputs(multirun_of(folder)))
        failures = {**FAILURES, **{name: FailureKind(kind) for name, kind in application(config).failures.items()}}
        length = application(config).length(config)
        attempt.checkpoints_kept, attempt.first_step = length.checkpoints_kept, length.first_step
        watchdog.expects_steps = length.steps is not None
        state = _with_whole_checkpoint(folder, attempt, state)
        _write_provenance(folder, config, launch, state)
        attempt.tracker = tracking.start(folder, config, state.attempt, launch.tracking)
        # If its import fails, the run's own attempt does.
        with uncollected():
            function: Train = pkgutil.resolve_name(launch.train or application(config).work)
        provenance.note()
        attempt.on_first_step = on_first_step
        commits = provenance.hub_commits(config, state.code_ids(), folder)
        # The other nodes of a run may have the hub's cache elsewhere.
        given = application(config).completed(folder, config, commits if attempt.nodes.count == 1 else {})
        summary = process.in_one_process(function)(given, attempt)
        attempt.check()
        attempt.sync()
        state = _with_code(folder, state, config, commits)
        files.write_json(folder / "summary.json", dict(summary))
        if length.steps is not None and (gap := whole.log_problem(folder, length.steps, attempt.first_step)):
            raise RuntimeError(f"{gap}. Fix: `resume` resumes the run from a checkpoint before that step")
        return lifecycle.finished(state, whole.seal(folder))
    except lifecycle.ClaimLost:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt of other code are failures of the run too
        return _failed(state, lifecycle.kind_of(error, failures), error, attempt, launch)


def _with_whole_checkpoint(folder: Path, attempt: Attempt, state: State) -> State:
    """The state after each newest checkpoint that is damaged, or that the logs do not reach, was set aside."""
    while newest := latest_checkpoint(folder):
        why = whole.log_problem(folder, newest[0], attempt.first_step) or whole.checkpoint_problem(newest[1], folder)
        if why is None:
            break
        aside = attempt_folder(folder, state.attempt) / "checkpoints" / newest[1].name
        with lifecycle.locked(folder):
            attempt.check()
            shutil.rmtree(aside, ignore_errors=True)
            os.renames(newest[1], aside)
            prepare(folder, state.attempt)
            begin = last_final_step(folder)
            message = f"{why}: its checkpoint was moved to {aside}, and the run resumes from step {begin}"
            state = state.replace(message=message, from_step=begin, code=state.code if begin else {})
            write_state(folder, state)
        _say(message)
    return state


def _with_code(folder: Path, state: State, config: Mapping[str, Any], commits: Mapping[str, str]) -> State:
    """The state with the code that this attempt has loaded until now. commits: of names on the hub, as far as they were
    known before."""
    used = {**provenance.hub_commits(config, state.code_ids(), folder), **commits}
    code_id = code.keep(multirun_of(folder), provenance.loaded_code(config, used))
    return state.replace(code={**state.code, str(state.attempt): code_id})


def _failed(state: State, kind: FailureKind, error: BaseException, attempt: Attempt, launch: Launch) -> State:
    progressed = lifecycle.progressed(attempt.folder, state)
    if kind in (FailureKind.PREEMPTED, FailureKind.LOST):
        attempt.check_stop_request()
    # SLURM's SIGTERM goes to all processes of a job: one may die of it before the trainer has stopped.
    if kind == FailureKind.PREEMPTED or (kind == FailureKind.LOST and attempt.stop_requested()):
        message = attempt.stop_message or one_line(str(error))
        _say(f"{one_line(str(error))}: {attempt.stop_kind}: {message}")  # it was asked to, so its stack says nothing
        return lifecycle.ended(state, attempt.stop_kind, message, launch.retry, progressed)
    _say("".join(traceback.format_exception(error)).rstrip())
    text = "\n".join("".join(traceback.format_exception(error)).splitlines()[-TRACEBACK_LINES:])
    record = {"type": type(error).__name__, "message": str(error), "place": lifecycle.place(error), "traceback": text}
    return lifecycle.ended(state, kind, lifecycle.described(error), launch.retry, progressed, record)


def _say(text: str) -> None:
    """Print to standard error, unless a full disk refuses that too."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _write_provenance(folder: Path, config: Mapping[str, Any], launch: Launch, state: State) -> None:
    multirun = multirun_of(folder)
    if not launch.record:
        collected = provenance.collect(ROOT, " ".join(sys.argv), multirun, provenance.sources([config]))
        launch_record.keep_patches(multirun, collected.patches)
        launch = dataclasses.replace(launch, record=collected.record, patch=collected.patch)
    record = launch.record
    for old in folder.glob("*.patch"):
        old.unlink()
    for name, patch in launch.patches().items():
        files.link_or_copy(launch_record.launches_folder(multirun) / patch, folder / name)
    of_attempt = {"seed": config["seed"], "host": state.host, "attempt": state.attempt, "pid": state.pid}
    files.write_json(folder / "provenance.json", {**record, **provenance.here(record), **of_attempt})


def _redirect(folder: Path) -> None:
    """Send file descriptors 1 and 2 to the attempt's logs, so that the output of C code and children goes there too."""
    with suppress(OSError):  # what was printed before goes to the logs, then
        sys.stdout.flush()
        sys.stderr.flush()
    for name, number in (("stdout", 1), ("stderr", 2)):
        handle = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)


def _watch(attempt: Attempt, orphaned: Callable[[], Reason]) -> None:
    """Ask the trainer to stop on SIGTERM or SIGINT, and if the process that started this one is gone."""

    def on_signal(number: int, _frame: object) -> None:
        attempt.check_stop_request()  # the signal may only announce a request
        attempt.request_stop(lifecycle.signal_name(number))

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        kind, message = orphaned()
        attempt.request_stop(message, kind)
        os.kill(os.getpid(), signal.SIGTERM)  # wakes a program that does not watch for requests
        for _ in range(int(ORPHAN_S)):  # time in which this process is stopped does not count
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)  # the trainer does not stop, and no other process is left to end it

    threading.Thread(target=wait, name="launcher-watch", daemon=True).start()


def leave(code: int) -> NoReturn:
    """End this process with that exit code, even if its last output cannot be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)
    gc.freeze()  # Python's last collection would take as long as a second
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`python -m launcher.worker RUN_FOLDER [--launch FILE] [--nodes N]`."""
    parser = argparse.ArgumentParser(prog="python -m launcher.worker", description="Do one attempt at a frozen run.")
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="multirun/runs/ID, a folder with config.yaml")
    parser.add_argument("--launch", type=Path, metavar="FILE", help="multirun/launches/TOKEN.json")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="of the job of SLURM that this is (1)")
    given = parser.parse_args(arguments)
    if not (given.run / "config.yaml").is_file():
        parser.error(f"RUN_FOLDER = {given.run}: must be the folder of a run, but it has no config.yaml")
    launch = launch_record.read(given.launch) if given.launch else None
    with suppress(files.BadRunFolder, KeyError):  # `execute` says what is wrong
        config = read_config(given.run)
        if launch is None and not application(config).resources(config).devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = NO_DEVICES  # else what the launch has asked for decides
    leave(execute(given.run, launch, nodes=Nodes(given.nodes)))
