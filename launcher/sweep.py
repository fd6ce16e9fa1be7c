"""Reconciliation: plan -> freeze -> run what is missing -> report. Saying it twice changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from launcher import claim, progress, worker
from launcher import plan as plans
from launcher import run as folders
from launcher.plan import Plan
from launcher.progress import Display
from launcher.run import State
from launcher.schedulers import Ended, Scheduler, SchedulerError
from launcher.schedulers.pool import Pool, cores

BREAKER = 5
_POLL_S = 0.2
_WAITING_EVERY_S = 1.0


@dataclass
class Interruption:
    """Ctrl-C, or a request to end: once asks the runs to checkpoint, twice kills them."""

    count: int = 0


@dataclass
class Outcome:
    """What one launch came to: the final state of every run that it took up."""

    states: dict[str, State] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    wall: float = 0.0
    tripped: str | None = None
    interrupted: bool = False


@contextmanager
def interruptible(tell: Callable[[str], None]) -> Iterator[Interruption]:
    """Turn SIGINT and SIGTERM into a count for the time of the block."""
    seen = Interruption()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count == 1:
            tell("stopping: running runs save a checkpoint; once more kills them")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------- running


class Reconciler:
    """Feeds a scheduler with the missing runs until each has come to an end, here or under another launcher."""

    def __init__(
        self, multirun: Path, scheduler: Scheduler, display: Display, describe: Callable[[str], tuple[str, int]]
    ) -> None:
        self._multirun = multirun
        self._scheduler = scheduler
        self._display = display
        self._describe = describe
        self._queue: deque[str] = deque()
        self._running: set[str] = set()
        self._waiting: set[str] = set()
        self._said: set[str] = set()
        self._failures: list[str] = []
        self._look = 0.0
        self.outcome = Outcome()

    def run(self, ids: Sequence[str], interruption: Interruption) -> Outcome:
        """Run them all. An interruption stops submission, and the running runs."""
        self._queue.extend(ids)
        began = time.monotonic()
        cancelled = 0
        while self._queue or self._running or self._waiting:
            if interruption.count > cancelled:
                cancelled = interruption.count
                self._scheduler.cancel(kill=cancelled > 1)
            if interruption.count or self.outcome.tripped:
                self._queue.clear()
                self._waiting.clear()
            while self._queue and self._scheduler.capacity() > 0 and not interruption.count:
                self._dispatch(self._queue.popleft())
            for ended in self._scheduler.poll(_POLL_S):
                self._settle(ended)
            self._look_again()
            self._display.tick()
        self.outcome.wall = time.monotonic() - began
        self.outcome.interrupted = interruption.count > 0
        return self.outcome

    def _folder(self, run_id: str) -> Path:
        return folders.run_folder(self._multirun, run_id)

    def _dispatch(self, run_id: str) -> None:
        """Start a run, unless another launcher has it or it came to an end since the plan."""
        folder = self._folder(run_id)
        with claim.locked(folder):
            state = folders.read_state(folder)
            owner = claim.live_claim(folder)
            if state.state in folders.RESUMABLE and owner is None:
                folders.write_state(folder, state.but(state=folders.SUBMITTED, started=None, finished=None, cause=None))
        if state.state not in folders.RESUMABLE:
            self._end(run_id, state)
        elif owner is not None:
            self._wait_for(run_id, owner)
        else:
            self._scheduler.submit(folder)
            self._running.add(run_id)
            title, steps = self._describe(run_id)
            newest = folders.latest_checkpoint(folder)
            self._display.started(run_id, f"{title}, from step {newest[0]}" if newest else title, steps, folder)

    def _wait_for(self, run_id: str, owner: claim.Claim) -> None:
        self._waiting.add(run_id)
        if run_id not in self._said:
            self._said.add(run_id)
            self._display.say(f"{run_id} is being run by process {owner.pid} on {owner.host}; waiting for it")

    def _look_again(self) -> None:
        """Take up the runs whose other owner has let go."""
        if not self._waiting or time.monotonic() < self._look:
            return
        self._look = time.monotonic() + _WAITING_EVERY_S
        for run_id in sorted(self._waiting):
            folder = self._folder(run_id)
            if claim.live_claim(folder) is None:
                self._waiting.discard(run_id)
                self._queue.append(run_id)

    def _settle(self, ended: Ended) -> None:
        """Read what a finished job came to; a job that left no terminal state is lost."""
        run_id = ended.folder.name
        self._running.discard(run_id)
        with claim.locked(ended.folder):
            state = folders.read_state(ended.folder)
            owner = claim.live_claim(ended.folder)
            if owner is None and state.state in (folders.RUNNING, folders.SUBMITTED):
                claim.discard_dead(ended.folder)
                state = state.but(state=folders.LOST, finished=time.time(), cause=_exit_cause(ended.exit_code))
                folders.write_state(ended.folder, state)
        if owner is not None and ended.exit_code == worker.EXIT_BUSY:
            self._wait_for(run_id, owner)
            return
        self.outcome.ran.append(run_id)
        self._end(run_id, state)
        self._count_failures(state)

    def _end(self, run_id: str, state: State) -> None:
        self.outcome.states[run_id] = state
        self._display.ended(run_id, state.state, state.cause)

    def _count_failures(self, state: State) -> None:
        """Stop submitting after several failures in a row with one cause."""
        if state.state not in (folders.FAILED, folders.LOST):
            self._failures.clear()
            return
        # Numbers (addresses, sizes, steps) do not make another cause.
        cause = re.sub(r"0x[0-9a-f]+|\d+", "#", state.cause or state.state)
        self._failures = [*self._failures, cause] if self._failures[-1:] in ([], [cause]) else [cause]
        if len(self._failures) >= BREAKER and not self.outcome.tripped and self._queue:
            left = len(self._queue)
            self.outcome.tripped = (
                f"{BREAKER} failures in a row with one cause ({state.cause}): {left} runs were not submitted"
            )
            self._display.say(self.outcome.tripped)


def _exit_cause(code: int | None) -> str:
    if code is None:
        return "the worker's exit code is unknown"
    return f"signal {-code}" if code < 0 else f"exit code {code} without a terminal state"


# ---------------------------------------------------------------- one command


def reconcile(root: Path, plan: Plan, train: str = worker.TRAIN) -> int:
    """Freeze a plan, run what is missing, wait, report; the exit code (0, or 1 with runs not done)."""
    wanted = plans.missing(plan)
    outcome = Outcome()
    if wanted:
        outcome = launch(root, plan, wanted, train)
    else:
        plans.freeze(plan)
    states = {run_id: folders.find_state(folders.run_folder(plan.multirun, run_id)) for run_id in plan.runs}
    not_done = [run_id for run_id, state in states.items() if state is None or state.state != folders.DONE]
    _explain(plan, states, not_done)
    if outcome.interrupted:
        return 1
    reported = [report(root, plan.multirun / experiment.name) for experiment in plan.experiments]
    return 1 if not_done or outcome.tripped or any(reported) else 0


def launch(root: Path, plan: Plan, wanted: Sequence[str], train: str = worker.TRAIN) -> Outcome:
    """Run the wanted runs of a plan in a pool on this machine; freezes the plan while the pool warms up."""
    from launcher import provenance

    began, started = time.time(), time.monotonic()
    slots = min(plan.cluster.get("slots") or cores(), len(wanted))
    command = plan.experiments[0].command
    collected = provenance.collect(root, command)
    # The server's imports take seconds: they go on while the plan is frozen.
    pool = Pool(slots, root, train, collected.record)
    entries = {entry.id: entry for experiment in reversed(plan.experiments) for entry in experiment.entries}
    names = ", ".join(experiment.name for experiment in plan.experiments)
    settled = len(plan.runs) - len(wanted)
    print(f"{names}: {len(plan.runs)} runs, {settled} settled, {len(wanted)} to run on {slots} workers", flush=True)
    try:
        plans.freeze(plan)
        if collected.patch is not None:
            _leave_patch(collected.patch, [folders.run_folder(plan.multirun, run_id) for run_id in wanted])

        def describe(run_id: str) -> tuple[str, int]:
            entry, run = entries[run_id], plan.runs[run_id]
            levels = " ".join(f"{key}={value}" for key, value in entry.factors.items())
            return f"{entry.group} {levels} seed {entry.seed}".replace("  ", " "), int(run.config["trainer"]["steps"])

        with progress.display(len(wanted)) as display, interruptible(display.say) as interruption:
            outcome = Reconciler(plan.multirun, pool, display, describe).run(wanted, interruption)
    except SchedulerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return Outcome(tripped=str(error))
    finally:
        pool.close()
    _record(plan, outcome, began, time.monotonic() - started, slots, command)
    return outcome


def _leave_patch(patch: str, runs: Sequence[Path]) -> None:
    """Put the uncommitted changes beside each run that this launch does: one file with many names."""
    first = runs[0] / "dirty.patch"
    folders.write_atomic(first, patch)
    for folder in runs[1:]:
        aside = folder / ".tmp-dirty.patch"
        aside.unlink(missing_ok=True)
        os.link(first, aside)
        os.replace(aside, folder / "dirty.patch")


def _record(plan: Plan, outcome: Outcome, began: float, wall: float, slots: int, command: str) -> None:
    """Append the launch to each experiment's launches.jsonl and print how well the workers were used."""
    if not outcome.ran:
        return
    for experiment in plan.experiments:
        own = {entry.id for entry in experiment.entries}
        ran = [run_id for run_id in outcome.ran if run_id in own]
        if not ran:
            continue
        counts = Counter(outcome.states[run_id].state for run_id in ran)
        seconds = sum(_train_seconds(plan.multirun, outcome.states[run_id]) for run_id in ran)
        line = {
            "started": began,
            "finished": time.time(),
            "command": command,
            "states": dict(sorted(counts.items())),
            "workers": slots,
            "wall_seconds": wall,
            "train_seconds": seconds,
            "efficiency": seconds / (slots * wall),
        }
        with open(plan.multirun / experiment.name / "launches.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        used = f"{line['efficiency']:.2f} ({seconds:.1f} s of training / ({slots} workers x {wall:.1f} s))"
        whole = set(counts) == {folders.DONE}  # what an interrupted run trained is in no summary yet
        print(f"{experiment.name}: {said} in {wall:.1f} s{f'; pool efficiency {used}' if whole else ''}", flush=True)


def _train_seconds(multirun: Path, state: State) -> float:
    """The seconds that a done run trained in this launch; those of earlier attempts do not count."""
    summary = folders.read_summary(folders.run_folder(multirun, state.id)) if state.state == folders.DONE else None
    if summary is None or state.started is None or state.finished is None:
        return 0.0
    return min(float(summary.get("train_seconds", 0.0)), state.finished - state.started)


def _explain(plan: Plan, states: Mapping[str, State | None], not_done: Sequence[str]) -> None:
    """Say what is not done, and which command takes it up."""
    for experiment in plan.experiments:
        own = {entry.id for entry in experiment.entries}
        kinds = Counter(state.state for run_id in not_done if run_id in own and (state := states[run_id]) is not None)
        if not kinds:
            continue
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"{experiment.name}: not done: {said}", file=sys.stderr)
        for run_id in not_done:
            state = states[run_id]
            if run_id in own and state is not None and state.state in folders.RETRYABLE:
                stderr = folders.attempt_folder(folders.run_folder(plan.multirun, run_id), state.attempt) / "stderr.log"
                print(f"  {run_id} {state.state}: {state.cause}; see {stderr}", file=sys.stderr)
        if set(kinds) & folders.RETRYABLE:
            print(f"to take failed runs again: python -m launcher retry {experiment.name}", file=sys.stderr)
        if set(kinds) & folders.RESUMABLE:
            print("to take up the others: the same command", file=sys.stderr)
        sys.stderr.flush()


def report(root: Path, folder: Path) -> int:
    """Run the analysis' report on an experiment's folder, in a process of its own; its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(folder)], env=environment, check=False
    ).returncode
