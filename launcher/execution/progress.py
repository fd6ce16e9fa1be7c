"""What the user sees while runs are executed."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.run.folder import cache_folder
from launcher.status.standing import RunningRun, Standing, remaining_seconds
from launcher.text import duration

_SUMMARY_EVERY_S = 30.0
_LOOK_EVERY_S = 1.0
# Looking at thousands of runs takes a while: it may take this share of the time at most.
_SHARE = 0.05


class Display:
    """A line for each start and end of `total` runs, and a summary every half minute.

    `look` gives the present standing of their experiments, from which `status` also estimates the time left. `queues`:
    runs that are submitted wait in the queue of a cluster before they start. `show` prints more of a run that has
    ended.
    """

    show: Callable[[str], object] = str

    def __init__(self, total: int, multirun: Path, look: Callable[[], Sequence[Standing]], queues: bool) -> None:
        self._total, self._look, self._queues = total, look, queues
        self._cache = cache_folder(multirun)
        self._ended = 0
        self._submitted: dict[str, str] = {}  # run -> title
        self._running: dict[str, RunningRun] = {}
        self._builds: set[str] = set()
        self._next_look = 0.0
        self._next_summary = time.monotonic() + _SUMMARY_EVERY_S

    def say(self, text: str) -> None:
        print(text, flush=True)

    def started(self, run_id: str, title: str) -> None:
        """The scheduler has the run."""
        self._submitted[run_id] = title
        self.say(f"{run_id} {'queued ' if self._queues else 'started'}  {title}")

    def released(self, run_id: str) -> None:
        """The run has not ended, but no worker of this launch has it now."""
        self._submitted.pop(run_id, None)
        self._running.pop(run_id, None)

    def ended(self, run_id: str, state: str, message: str | None) -> None:
        """The run has ended, here or under another launcher."""
        title = self._submitted.get(run_id, run_id)
        self.released(run_id)
        self._ended += 1
        self.say(f"{run_id} {state:8s} {title}  [{self._ended}/{self._total}]{f'  {message}' if message else ''}")
        self.show(run_id)

    def tick(self) -> None:
        """Update what is shown. It is called often and must be cheap."""
        now = time.monotonic()
        if now < self._next_look or not self._submitted:
            return
        standings = self._look()
        self._next_look = time.monotonic() + max(_LOOK_EVERY_S, (time.monotonic() - now) / _SHARE)
        before = self._running
        present = {run_id: run for standing in standings for run_id, run in standing.running.items()}
        self._running = {run_id: run for run_id, run in present.items() if run_id in self._submitted}
        for run_id in self._running.keys() - before.keys() if self._queues else ():
            self.say(f"{run_id} started  {self._submitted[run_id]}")
        # What a run builds for all that share it, while the others wait.
        for draft in self._cache.glob("*/.*.draft"):
            name = f"{draft.parent.name}/{draft.name.removeprefix('.').removesuffix('.draft')}"
            if name not in self._builds and _is_locked(draft.with_suffix(".lock")):
                self._builds.add(name)
                self.say(f"building {name} in {self._cache}, once for all runs that share it")
        if time.monotonic() >= self._next_summary:
            self._summarize(remaining_seconds(standings))

    def _summarize(self, left: float | None) -> None:
        self._next_summary = time.monotonic() + _SUMMARY_EVERY_S
        waiting = len(self._submitted) - len(self._running)
        running = [f"{self._submitted[run_id]} {_progress(run)}" for run_id, run in self._running.items()]
        parts = [f"{self._ended}/{self._total} ended"]
        parts += [f"{waiting} queued"] if self._queues and waiting else []
        parts += [f"running: {', '.join(running)}"] if running else []
        parts += [f"about {duration(left)} left"] if left is not None else []
        self.say("; ".join(parts))


def _is_locked(file: Path) -> bool:
    """Whether a process has the lock of a draft; one that was killed leaves the draft alone."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _progress(run: RunningRun) -> str:
    if not run.step:
        return "preparing"
    return f"{run.step}/{run.steps}" if run.steps is not None else f"step {run.step}"
