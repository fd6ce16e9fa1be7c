"""Gives the missing runs to a scheduler while the budget holds them, and waits until each has ended, here or under
another launcher.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from launcher import text
from launcher.execution.costs import Work
from launcher.execution.progress import Display
from launcher.files import size_of
from launcher.run import launch_record, lifecycle, stop_request
from launcher.run.folder import last_final_step, run_folder, stacks_path
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RESUMABLE, Claim, FailureKind, RunState, State, WorkerExit, read_state, write_state
from launcher.schedulers.protocol import Ended, Scheduler, SchedulerError
from launcher.worker.process import handling

_POLL_S = 0.2
_CHECK_EVERY_S = 1.0
# A run that is preempted so often in a row, so soon after each start, is not resumed: the next attempt would be, too.
_AT_ONCE, _SHORT_S = 10, 60.0
_STOPPING = "stopping: running runs save a checkpoint; press Ctrl-C again to kill them"
# If several runs fail in a row for one of these kinds, the reason may concern the whole sweep.
_COUNTED = frozenset({FailureKind.EXCEPTION, FailureKind.OUT_OF_MEMORY, FailureKind.LOST, FailureKind.STALLED})


@dataclass
class Interruption:
    """How often Ctrl-C or a request to end came: the first asks the runs to stop, the second kills them.

    `announced`: the user was told.
    """

    count: int = 0
    announced: bool = False


@dataclass
class Outcome:
    """The result of one launch: the final state of every run, the runs that it executed, and how it ended.

    left_out: the runs for which the budget did not suffice, of which `used_hours` were used then; needed_hours: with
    which they, too, would end.
    """

    states: dict[str, State] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    tripped: str | None = None
    interrupted: bool = False
    detached: bool = False
    left_out: list[str] = field(default_factory=list)
    used_hours: float = 0.0
    needed_hours: float = 0.0


@contextmanager
def interruptible(tell: Callable[[str], None]) -> Iterator[Interruption]:
    """Count SIGINT and SIGTERM for the time of the block, instead of ending the process."""
    seen = Interruption()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count == 1:
            with suppress(RuntimeError):  # raised by print if the signal came during another one
                tell(_STOPPING)
                seen.announced = True

    with handling((signal.SIGINT, signal.SIGTERM), on_signal):
        yield seen


class Reconciler:
    """One launch of a list of runs. `titles` and `devices` have, by id, a run's title and what its state says of them.

    `circuit_breaker`: after so many failures in a row with one cause, no further run is submitted.
    """

    def __init__(
        self,
        multirun: Path,
        scheduler: Scheduler,
        display: Display,
        titles: Mapping[str, str],
        devices: Mapping[str, int],
        launch: Launch,
        circuit_breaker: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._multirun = multirun
        self._scheduler = scheduler
        self._display = display
        self._titles, self._devices = titles, devices
        self._launch = launch
        self._circuit_breaker = circuit_breaker
        self._budget = budget
        self._witness = lifecycle.Witness()
        self._queue: deque[str] = deque()
        self._running: set[str] = set()
        self._waiting: dict[str, Ended | None] = {}  # if it was our job: with what the scheduler said of its end
        self._announced: set[str] = set()
        self._streak: tuple[str, set[str]] = ("", set())
        self._short: Counter[str] = Counter()  # by run, attempts in a row that were stopped at once
        self._interruption = Interruption()
        self._oom_kills = _oom_kills()
        self._next_check = 0.0
        self._closed = False  # the budget is used up
        self.outcome = Outcome()

    def run(self, ids: Sequence[str], interruption: Interruption) -> Outcome:
        """Run them all. After an interruption nothing is submitted, and running runs are asked to stop."""
        self._queue.extend(ids)
        self._interruption = interruption
        cancelled = 0
        while self._queue or self._running or self._waiting:
            if interruption.count > cancelled:
                if not interruption.announced:
                    interruption.announced = True
                    self._display.say(_STOPPING)
                cancelled = interruption.count
                self._scheduler.cancel(kill=cancelled > 1)
            if self._stopping():
                self._queue.clear()
                ours = {} if cancelled > 1 else self._waiting
                self._waiting = {run_id: ended for run_id, ended in ours.items() if ended is not None}
            self._watch_budget()
            while self._queue and not self._stopping() and self._has_room() and self._can_afford(self._queue[0]):
                self._dispatch_next()
            for ended in self._scheduler.poll(_POLL_S):
                self._running.discard(ended.folder.name)
                with self._guarded(ended.folder.name):
                    self._job_ended(ended.folder.name, ended)
            self._check_waiting()
            self._display.tick()
        self.outcome.interrupted = interruption.count > 0
        return self.outcome

    def submit_all(self, ids: Sequence[str]) -> Outcome:
        """Give them all to the scheduler, and wait for none."""
        self._queue.extend(ids)
        while self._queue and (self._budget is None or self._budget.admits(self._queue[0])):
            self._dispatch_next()
        if self._queue:
            self._stop_for_budget()
        self.outcome.detached = True
        return self.outcome

    def _watch_budget(self) -> None:
        """Once the budget is used up, let the running attempts finish, and keep all others of this launch waiting."""
        if self._budget is None or self._closed:
            return
        self._budget.watch(self._waiting)
        if self._budget.spent >= self._budget.hours * lifecycle.HOUR_S:
            self._closed = True
            # A scheduler may start an attempt by itself, such as that of a preempted job.
            launch_record.closed(launch_record.path_of(self._multirun, self._launch)).touch()
            self._scheduler.withdraw()

    def _can_afford(self, run_id: str) -> bool:
        """Whether the budget holds one more attempt. If nothing runs that may take less than expected, this stops the
        launch."""
        if self._budget is None or self._budget.admits(run_id):
            return True
        if not self._running:
            self._stop_for_budget()
        return False

    def _stop_for_budget(self) -> None:
        assert self._budget is not None
        outcome, budget = self.outcome, self._budget
        outcome.left_out = list(self._queue)
        outcome.used_hours = budget.spent / lifecycle.HOUR_S
        outcome.needed_hours = (budget.spent + budget.needed(outcome.left_out)) / lifecycle.HOUR_S
        self._trip(f"budget.device_hours = {budget.hours:g}, of which {text.hours(outcome.used_hours)} are used")

    @contextmanager
    def _guarded(self, run_id: str) -> Iterator[None]:
        """Around changes of a run's files: a full disk stops the submission, and a locked run is tried again later.

        A run whose folder was deleted is dropped from this launch.
        """
        try:
            yield
        except FileNotFoundError:
            folder = self._folder(run_id)
            if folder.exists():
                raise
            self._display.released(run_id)
            self._display.say(f"{folder} was deleted; the same command creates it again")
        except OSError as error:
            if not lifecycle.is_disk_full(error):
                raise
            self._display.released(run_id)
            self._trip(f"{self._folder(run_id)}: {lifecycle.described(error)}")
        except lifecycle.Locked as error:
            self._display.released(run_id)
            self._display.say(f"{error}; waiting for it")
            self._waiting.setdefault(run_id, None)

    def _stopping(self) -> bool:
        return self._interruption.count > 0 or self.outcome.tripped is not None

    def _trip(self, why: str) -> None:
        """Submit no further runs."""
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
        return run_folder(self._multirun, run_id)

    def _dispatch_next(self) -> None:
        run_id = self._queue.popleft()
        with self._guarded(run_id):
            self._dispatch(run_id)

    def _dispatch(self, run_id: str) -> None:
        """Submit a run, unless another launcher has it or it has ended since the plan was made."""
        folder = self._folder(run_id)
        with lifecycle.locked(folder, lifecycle.PATIENCE_S):
            state = read_state(folder)
            owner = self._witness.owner(folder)
            if owner is None and state.state in RESUMABLE:
                state = lifecycle.with_lost_attempt(folder, state)
                cancelled = stop_request.pending_cancellation(folder, state)
                submitted = lifecycle.submitted(state, self._launch.token, self._devices[run_id])
                write_state(folder, cancelled or submitted)
                lifecycle.discard_claim(folder)
                state = cancelled or state
        if state.state not in RESUMABLE:
            self._end(run_id, state)
        elif owner is not None:
            self._wait_for(run_id, owner)
        else:
            self._scheduler.submit(folder)
            self._running.add(run_id)
            if self._budget is not None:
                self._budget.submitted(run_id)
            title = self._titles[run_id]
            begin = last_final_step(folder) or state.prefix_step
            self._display.started(run_id, f"{title}, from step {begin}" if begin else title)

    def _wait_for(self, run_id: str, owner: Claim | None, ended: Ended | None = None) -> None:
        self._waiting[run_id] = ended
        if owner is not None and run_id not in self._announced:
            self._announced.add(run_id)
            self._display.say(f"{run_id} is being run by process {owner.pid} on {owner.host}; waiting for it")

    def _check_waiting(self) -> None:
        """Continue with the runs whose owner, another launcher's worker or one that outlived its job, is gone."""
        if not self._waiting or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + _CHECK_EVERY_S
        for run_id in sorted(self._waiting):
            if self._witness.owner(self._folder(run_id)) is not None:
                continue
            ended = self._waiting.pop(run_id)
            if ended is None:
                self._queue.append(run_id)
            else:
                with self._guarded(run_id):
                    self._job_ended(run_id, ended)

    def _job_ended(self, run_id: str, ended: Ended) -> None:
        """Read the state that a job left, and queue the run again if the state allows it."""
        folder = ended.folder
        with lifecycle.locked(folder, lifecycle.PATIENCE_S):
            state = read_state(folder)
            owner = self._witness.owner(folder)
            ours = state.launch_id in (self._launch.token, ended.launch_id)
            unfinished = state.state in (RunState.RUNNING, RunState.SUBMITTED)
            if owner is None and ours and unfinished and ended.exit_code != WorkerExit.BUSY:
                state = self._ended_silently(folder, state, ended)
                write_state(folder, state)
                lifecycle.discard_claim(folder)
                unfinished = False
        if self._budget is not None:
            self._budget.ended(run_id)
        if owner is not None or unfinished:  # another launcher's worker has it, had it, or is about to
            self._display.released(run_id)
            self._wait_for(run_id, owner, ended if owner is not None and ours else None)
            return
        if ours and run_id not in self.outcome.ran:
            self.outcome.ran.append(run_id)
        if state.failure_kind == FailureKind.DISK_FULL:
            self._end(run_id, state)
            self._trip(f"{folder}: {state.message}")
        elif self._ends_at_once(run_id, state):
            stopped = f"{_AT_ONCE} attempts in a row were stopped within {_SHORT_S:g} s"
            fix = "find out what stops it, and repeat the command"
            self._display.say(f"{run_id}: {stopped}, so it is not resumed; {fix}")
            self._end(run_id, state)
        elif (
            state.state in RESUMABLE
            and FailureKind.EXTERNALLY_CANCELLED not in (state.failure_kind, ended.failure_kind)
            and not self._stopping()
        ):
            self.outcome.states[run_id] = state
            self._display.released(run_id)
            if state.state != RunState.PLANNED:  # it was not withdrawn
                self._display.say(f"{run_id} {state.failure_kind or state.state}: {state.message}; resuming it")
            self._queue.append(run_id)
        else:
            self._end(run_id, state)
        if ours:
            self._count_failures(run_id, state)

    def _ends_at_once(self, run_id: str, state: State) -> bool:
        """Whether the last attempts of a run were preempted soon after their start, so that the next would be, too."""
        seconds = (state.finished or math.inf) - (state.started or 0.0)
        short = state.failure_kind == FailureKind.PREEMPTED and seconds < _SHORT_S
        self._short[run_id] = self._short[run_id] + 1 if short else 0
        return self._short[run_id] >= _AT_ONCE

    def _ended_silently(self, folder: Path, state: State, ended: Ended) -> State:
        """The state of a run whose worker died before it could write one."""
        killed, self._oom_kills = self._oom_kills, _oom_kills()
        kind, message = lifecycle.of_exit(ended.exit_code, self._oom_kills > killed)
        if size_of(stacks_path(folder, state.attempt)):
            kind, message = FailureKind.STALLED, f"it hung; see {stacks_path(folder, state.attempt)}; {message}"
        if ended.failure_kind is not None:
            kind, message = ended.failure_kind, ended.message or message
        if (request := stop_request.find(folder, lifecycle.read_claim(folder))) is not None:
            kind, message = request.failure_kind, f"{request.message}; {message}"
        elif self._interruption.count and kind != FailureKind.DISK_FULL:
            how = "twice" if self._interruption.count > 1 else "once, and did not stop in time"
            kind, message = FailureKind.PREEMPTED, f"interrupted {how}; {message}"
        return lifecycle.ended(state, kind, message, self._launch.retry, lifecycle.progressed(folder, state))

    def _end(self, run_id: str, state: State) -> None:
        self.outcome.states[run_id] = state
        self._display.ended(run_id, state.state, state.message)

    def _count_failures(self, run_id: str, state: State) -> None:
        """Trip the circuit breaker after the failures of several runs in a row with one cause."""
        if state.failure_kind not in _COUNTED:
            self._streak = ("", set())
            return
        reason = _cause(state)
        self._streak = (reason, {*self._streak[1], run_id} if self._streak[0] == reason else {run_id})
        if self._circuit_breaker is None or len(self._streak[1]) < self._circuit_breaker:
            return
        # Some run has yet to start, here or in the scheduler's own queue.
        if self._queue or any(read_state(self._folder(run)).state == RunState.SUBMITTED for run in self._running):
            where = f", {state.error['place']}" if state.error and "place" in state.error else ""
            self._trip(f"{self._circuit_breaker} failures in a row with the same cause ({state.message}{where})")


def _oom_kills() -> int:
    """How many processes the kernel of this machine has killed because memory ran out."""
    counted = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(counted[1]) if counted else 0


def _cause(state: State) -> str:
    """What failures of several runs have in common if one fault made them all fail.

    It is not the message, which may hold a prompt, a size or a path: it is the exception's class and place. Without a
    place it is the failure kind, and for an end that the run itself did not report, the message without the run's id.
    """
    if state.failure_kind in (FailureKind.OUT_OF_MEMORY, FailureKind.STALLED):
        return str(state.failure_kind)
    if state.error is not None and "place" in state.error:
        return f"{state.error['type']} at {state.error['place']}"
    return text.without_numbers(f"{state.failure_kind}: {state.message}".replace(state.id, "RUN"))


# ---------------------------------------------------------------- the budget of a launch

_LOOK_EVERY_S = 1.0


class Budget:
    """The device-seconds of some runs, of which `hours` device-hours may be spent.

    `work`: what is expected of each run that may be submitted; `spent`: what each run whose attempts count has taken.
    """

    def __init__(self, multirun: Path, hours: float, work: Mapping[str, Work], spent: Mapping[str, float]) -> None:
        self.hours = hours
        self._multirun, self._work = multirun, work
        self._spent = dict(spent)
        #: Of each submitted run: what was spent on it before, and what is expected of it, in device-seconds.
        self._submitted: dict[str, tuple[float, float]] = {}
        self._next_look = 0.0

    @property
    def spent(self) -> float:
        """The device-seconds of all attempts, as far as the last look shows."""
        return sum(self._spent.values())

    def admits(self, run_id: str) -> bool:
        """Whether an attempt at the run may start beside those that were submitted."""
        if not self._holds(self.expected(run_id)):
            self.watch()
            return False
        self._look(self._submitted)
        return self._holds(self.expected(run_id))

    def _holds(self, more: float) -> bool:
        """Whether the budget holds so many more device-seconds than was spent and is expected of submitted runs."""
        reserved = sum(
            max(0.0, expected - (self._spent.get(submitted, 0.0) - before))
            for submitted, (before, expected) in self._submitted.items()
        )
        committed = self.spent + reserved
        return committed < self.hours * lifecycle.HOUR_S and committed + more <= self.hours * lifecycle.HOUR_S

    def expected(self, run_id: str) -> float:
        """The device-seconds from the run's newest checkpoint to its end."""
        return self._work[run_id].device_seconds(last_final_step(run_folder(self._multirun, run_id)))

    def needed(self, run_ids: Iterable[str]) -> float:
        """The device-seconds of these runs from their beginning."""
        return sum(self._work[run_id].device_seconds() for run_id in run_ids)

    def submitted(self, run_id: str) -> None:
        self._submitted[run_id] = (self._spent.get(run_id, 0.0), self.expected(run_id))

    def ended(self, run_id: str) -> None:
        self._submitted.pop(run_id, None)
        self._look([run_id])

    def watch(self, others: Iterable[str] = ()) -> None:
        """Look at the attempts of submitted runs and of `others`, which other launches run, at most every second."""
        if time.monotonic() >= self._next_look:
            self._look([*self._submitted, *others])
            self._next_look = time.monotonic() + _LOOK_EVERY_S

    def _look(self, run_ids: Collection[str]) -> None:
        self._spent.update(lifecycle.spent_seconds(self._multirun, run_ids, time.time()))
