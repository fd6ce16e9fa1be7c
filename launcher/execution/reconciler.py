"""Feeds a scheduler with the missing runs until each has come to an end, here or under another launcher."""

from __future__ import annotations

import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from launcher.execution.progress import Display
from launcher.run import claim, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.run.launch_record import Launch
from launcher.schedulers.local.memory import oom_kills
from launcher.schedulers.protocol import Ended, Scheduler, SchedulerError
from launcher.worker import worker

_POLL_S = 0.2
_WAITING_EVERY_S = 1.0
_STOPPING = "stopping: running runs save a checkpoint; once more kills them"
# How long all runs wait for the lock of one; its holder may be stopped.
_PATIENCE_S = 2.0
# What says something about a whole sweep when it happens again and again.
_FAILURES = frozenset({lifecycle.EXCEPTION, lifecycle.OUT_OF_MEMORY, lifecycle.LOST})


@dataclass
class Interruption:
    """Ctrl-C, or a request to end: once asks the runs to checkpoint, twice kills them. `said`: the user was told."""

    count: int = 0
    said: bool = False


@dataclass
class Outcome:
    """What one launch came to: the final state of every run that it took up."""

    states: dict[str, State] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    wall: float = 0.0
    tripped: str | None = None
    interrupted: bool = False
    detached: bool = False


@contextmanager
def interruptible(tell: Callable[[str], None]) -> Iterator[Interruption]:
    """Turn SIGINT and SIGTERM into a count for the time of the block."""
    seen = Interruption()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count == 1:
            with suppress(RuntimeError):  # in the middle of another line, which files refuse
                tell(_STOPPING)
                seen.said = True

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Reconciler:
    """One launch of a list of runs. `describe` gives a run's title and number of steps by its id."""

    def __init__(
        self,
        multirun: Path,
        scheduler: Scheduler,
        display: Display,
        describe: Callable[[str], tuple[str, int]],
        launch: Launch,
        breaker: int | None = None,
    ) -> None:
        self._multirun = multirun
        self._scheduler = scheduler
        self._display = display
        self._describe = describe
        self._launch = launch
        self._breaker = breaker
        self._witness = claim.Witness()
        self._queue: deque[str] = deque()
        self._running: set[str] = set()
        self._waiting: dict[str, Ended | None] = {}  # with what the scheduler said, where it was our job
        self._said: set[str] = set()
        self._streak: tuple[str, set[str]] = ("", set())
        self._interruption = Interruption()
        self._oom_kills = oom_kills()
        self._look = 0.0
        self.outcome = Outcome()

    def run(self, ids: Sequence[str], interruption: Interruption) -> Outcome:
        """Run them all. An interruption stops submission, and the running runs."""
        self._queue.extend(ids)
        self._interruption = interruption
        began = time.monotonic()
        cancelled = 0
        while self._queue or self._running or self._waiting:
            if interruption.count > cancelled:
                if not interruption.said:
                    interruption.said = True
                    self._display.say(_STOPPING)
                cancelled = interruption.count
                self._scheduler.cancel(kill=cancelled > 1)
            if self._stopping():
                self._queue.clear()
                ours = {} if cancelled > 1 else self._waiting
                self._waiting = {run_id: ended for run_id, ended in ours.items() if ended is not None}
            while self._queue and not self._stopping() and self._has_room():
                run_id = self._queue.popleft()
                with self._guarded(run_id):
                    self._dispatch(run_id)
            for ended in self._scheduler.poll(_POLL_S):
                self._running.discard(ended.folder.name)
                with self._guarded(ended.folder.name):
                    self._settle(ended.folder.name, ended)
            self._look_again()
            self._display.tick()
        self.outcome.wall = time.monotonic() - began
        self.outcome.interrupted = interruption.count > 0
        return self.outcome

    def hand_over(self, ids: Sequence[str]) -> Outcome:
        """Give them all to the scheduler, and wait for none."""
        for run_id in ids:
            with self._guarded(run_id):
                self._dispatch(run_id)
        self.outcome.detached = True
        return self.outcome

    @contextmanager
    def _guarded(self, run_id: str) -> Iterator[None]:
        """Around changes of a run's files. A full disk stops the submission; what is locked is looked at again.

        A run whose folder was removed is none of this launch any more.
        """
        try:
            yield
        except FileNotFoundError:
            folder = self._folder(run_id)
            if folder.exists():
                raise
            self._display.released(run_id)
            self._display.say(f"{folder} was removed; the same command makes it again")
        except OSError as error:
            if not lifecycle.is_disk_full(error):
                raise
            self._display.released(run_id)
            self._trip(f"{self._folder(run_id)}: {lifecycle.described(error)}")
        except claim.Locked as error:
            self._display.released(run_id)
            self._display.say(f"{error}; waiting for it")
            self._waiting.setdefault(run_id, None)

    def _stopping(self) -> bool:
        return self._interruption.count > 0 or self.outcome.tripped is not None

    def _trip(self, why: str) -> None:
        """Submit nothing more."""
        if self.outcome.tripped is None:
            count = len(self._queue) + len(self._waiting) + self._scheduler.withdraw()
            self.outcome.tripped = f"{why}: {count} runs were not submitted"
            self._display.say(self.outcome.tripped)

    def _has_room(self) -> bool:
        try:
            return self._scheduler.capacity() > 0
        except SchedulerError as error:
            self._trip(str(error))
            return False

    def _folder(self, run_id: str) -> Path:
        return folders.run_folder(self._multirun, run_id)

    def _dispatch(self, run_id: str) -> None:
        """Start a run, unless another launcher has it or it came to an end since the plan."""
        folder = self._folder(run_id)
        with claim.locked(folder, _PATIENCE_S):
            state = folders.read_state(folder)
            owner = self._witness.owner(folder)
            if owner is None and (cancelled := lifecycle.unheeded(folder, state)) is not None:
                state = cancelled
                folders.write_state(folder, state)
                claim.discard(folder)
            elif state.state in folders.RESUMABLE and owner is None:
                claim.discard(folder)
                submitted = state.but(state=folders.SUBMITTED, started=None, finished=None, job=self._launch.token)
                folders.write_state(folder, submitted.but(kind=None, cause=None, error=None))
        if state.state not in folders.RESUMABLE:
            self._end(run_id, state)
        elif owner is not None:
            self._wait_for(run_id, owner)
        else:
            self._scheduler.submit(folder, self._launch.token)
            self._running.add(run_id)
            title, steps = self._describe(run_id)
            newest = folders.latest_checkpoint(folder)
            self._display.started(run_id, f"{title}, from step {newest[0]}" if newest else title, steps, folder)

    def _wait_for(self, run_id: str, owner: claim.Claim | None, ended: Ended | None = None) -> None:
        self._waiting[run_id] = ended
        if owner is not None and run_id not in self._said:
            self._said.add(run_id)
            stopped = ", which is stopped (SIGCONT wakes it)" if claim.is_stopped(owner) else ""
            self._display.say(f"{run_id} is being run by process {owner.pid} on {owner.host}{stopped}; waiting for it")

    def _look_again(self) -> None:
        """Take up the runs whose other owner, or whose process that outlived its job, has let go."""
        if not self._waiting or time.monotonic() < self._look:
            return
        self._look = time.monotonic() + _WAITING_EVERY_S
        for run_id in sorted(self._waiting):
            if self._witness.owner(self._folder(run_id)) is not None:
                continue
            ended = self._waiting.pop(run_id)
            if ended is None:
                self._queue.append(run_id)
            else:
                with self._guarded(run_id):
                    self._settle(run_id, ended)

    def _settle(self, run_id: str, ended: Ended) -> None:
        """Read what a job came to, and take the run up again where its state says that it may be."""
        folder = ended.folder
        with claim.locked(folder, _PATIENCE_S):
            state = folders.read_state(folder)
            owner = self._witness.owner(folder)
            ours = state.job in (self._launch.token, ended.job)
            open_ = state.state in (folders.RUNNING, folders.SUBMITTED)
            if owner is None and ours and open_ and ended.exit_code != worker.EXIT_BUSY:
                state = self._without_a_word(folder, state, ended)
                folders.write_state(folder, state)
                claim.discard(folder)
                open_ = False
        if owner is not None or open_:  # another launcher's worker has it, had it, or is about to
            self._display.released(run_id)
            self._wait_for(run_id, owner, ended if owner is not None and ours else None)
            return
        if ours and run_id not in self.outcome.ran:
            self.outcome.ran.append(run_id)
        if state.kind == lifecycle.DISK_FULL:
            self._end(run_id, state)
            self._trip(f"{run_id}: {state.cause}")
        elif (
            state.state in folders.RESUMABLE
            and lifecycle.REVOKED not in (state.kind, ended.kind)
            and not self._stopping()
        ):
            self.outcome.states[run_id] = state
            self._display.released(run_id)
            self._display.say(f"{run_id} {state.kind or state.state}: {state.cause}; it is taken up again")
            self._queue.append(run_id)
        else:
            self._end(run_id, state)
        if ours:
            self._count_failures(run_id, state)

    def _without_a_word(self, folder: Path, state: State, ended: Ended) -> State:
        """The state of a run whose worker died before it could write one."""
        killed, self._oom_kills = self._oom_kills, oom_kills()
        kind, cause = lifecycle.of_exit(ended.exit_code, self._oom_kills > killed)
        if ended.kind is not None:
            kind, cause = ended.kind, ended.cause or cause
        owner = claim.read_claim(folder)
        asked = stop_request.asked(folder, owner.token) if owner else None
        if asked is not None:
            kind, cause = asked.kind, f"{asked.cause}; {cause}"
        elif ended.exit_code == worker.EXIT_DISK_FULL:
            kind, cause = lifecycle.DISK_FULL, "no space left, not even for the run's state"
        elif self._interruption.count:
            often = "twice" if self._interruption.count > 1 else "once, and did not stop in time"
            kind, cause = lifecycle.PREEMPTED, f"interrupted {often}; {cause}"
        return lifecycle.ended(state, kind, cause, self._launch.retry, lifecycle.progressed(folder, state))

    def _end(self, run_id: str, state: State) -> None:
        self.outcome.states[run_id] = state
        self._display.ended(run_id, state.state, state.cause)

    def _some_wait(self) -> bool:
        """Whether any run has yet to begin, here or in the scheduler's own queue."""
        return bool(self._queue) or any(
            folders.read_state(self._folder(run_id)).state == folders.SUBMITTED for run_id in self._running
        )

    def _count_failures(self, run_id: str, state: State) -> None:
        """Stop submitting after the failures of several runs, one after another, with one cause."""
        if state.kind not in _FAILURES:
            self._streak = ("", set())
            return
        # Numbers (addresses, sizes, steps) do not make another cause.
        cause = re.sub(r"0x[0-9a-f]+|\d+", "#", f"{state.kind}: {state.cause}")
        self._streak = (cause, {*self._streak[1], run_id} if self._streak[0] == cause else {run_id})
        if self._breaker is not None and len(self._streak[1]) >= self._breaker and self._some_wait():
            self._trip(f"{self._breaker} failures in a row with one cause ({state.cause})")
