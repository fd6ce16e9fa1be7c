"""What a launch may spend: it starts an attempt only if the budget also holds what is expected of it.

Attempts that run when the budget is used up may finish, and nothing new starts. The budget is therefore passed by no
more than what these attempts then still take, and not at all where no attempt takes longer than expected.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.run import compute
from launcher.run.compute import HOUR_S
from launcher.run.folder import last_final_step, run_folder

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Work:
    """What is expected of a run: the seconds of a step, its steps, the units that device-hours count, and how many of
    its steps it takes over from another run."""

    step_seconds: float
    steps: int
    units: int
    taken_over: int = 0


class Budget:
    """The device-seconds of some runs, of which `hours` device-hours may be spent.

    `work`: what is expected of each run that may be submitted; `charged`: all runs whose attempts count.
    """

    def __init__(self, multirun: Path, hours: float, work: Mapping[str, Work], charged: Iterable[str]) -> None:
        self.hours = hours
        self._multirun, self._work = multirun, work
        self._spent = compute.spent(multirun, charged, time.time())
        #: Of each submitted run: what was spent on it before, and what is expected of it, in device-seconds.
        self._submitted: dict[str, tuple[float, float]] = {}
        self._measured: tuple[float, float] = (0.0, 0.0)  # what done runs took in this launch, and what was expected
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
        return committed < self.hours * HOUR_S and committed + more <= self.hours * HOUR_S

    def expected(self, run_id: str) -> float:
        """The device-seconds from the run's newest checkpoint to its end, by what the done runs of this launch took."""
        work = self._work[run_id]
        begin = last_final_step(run_folder(self._multirun, run_id))
        steps = max(0, work.steps - max(work.taken_over, begin))
        took, expected = self._measured
        return work.step_seconds * steps * work.units * (took / expected if expected else 1.0)

    def submitted(self, run_id: str) -> None:
        """The scheduler has the run."""
        self._submitted[run_id] = (self._spent.get(run_id, 0.0), self.expected(run_id))

    def ended(self, run_id: str, done: bool) -> None:
        """The scheduler has it no more. `done`: it ended as planned, so its time says what to expect of others."""
        before, expected = self._submitted.pop(run_id, (None, 0.0))
        self._look([run_id])
        if done and before is not None and expected:
            took = self._spent[run_id] - before
            self._measured = self._measured[0] + took, self._measured[1] + expected

    def watch(self, others: Iterable[str] = ()) -> None:
        """Look at the attempts of submitted runs and of `others`, which other launches run, at most every second."""
        if time.monotonic() >= self._next_look:
            self._look([*self._submitted, *others])
            self._next_look = time.monotonic() + _LOOK_EVERY_S

    def _look(self, run_ids: Collection[str]) -> None:
        self._spent.update(compute.spent(self._multirun, run_ids, time.time()))
