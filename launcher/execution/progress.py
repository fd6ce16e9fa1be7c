"""What the user sees while runs are executed: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from launcher.run.folder import cache_folder
from launcher.run.lifecycle import RunState
from launcher.status.standing import RunningRun, Standing, remaining_seconds
from launcher.text import duration

_PLAIN_EVERY_S = 30.0
_LOOK_EVERY_S = 1.0
# Looking at thousands of runs takes a while: it may take this share of the time at most.
_SHARE = 0.05
PREPARING = "preparing"


class Display:
    """A line for each start and end of `total` runs, and a summary every half minute.

    `look` gives the present standing of their experiments, from which `status` also estimates the time left. `queues`:
    runs that are submitted wait in the queue of a cluster before they start.
    """

    def __init__(self, total: int, multirun: Path, look: Callable[[], Sequence[Standing]], queues: bool) -> None:
        self._total = total
        self._cache = cache_folder(multirun)
        self._look = look
        self._queues = queues
        self._ended = 0
        self._submitted: dict[str, str] = {}  # run -> title
        self._running: dict[str, RunningRun] = {}
        self._left: float | None = None
        self._builds: set[str] = set()
        self._next_look = 0.0
        self._next_summary = time.monotonic() + _PLAIN_EVERY_S

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, flush=True)

    def started(self, run_id: str, title: str) -> None:
        """The scheduler has the run."""
        self._submitted[run_id] = title
        self._announce(run_id, "queued" if self._queues else "started", title)

    def released(self, run_id: str) -> None:
        """The run has not ended, but no worker of this launch has it now."""
        self._submitted.pop(run_id, None)
        self._running.pop(run_id, None)

    def ended(self, run_id: str, state: str, message: str | None) -> None:
        """The run has ended, here or under another launcher."""
        title = self._submitted.get(run_id, run_id)
        self.released(run_id)
        self._ended += 1
        self._announce_end(run_id, state, title, message)

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
        self._left = remaining_seconds(standings)
        for run_id in self._running.keys() - before.keys() if self._queues else ():
            self._announce(run_id, "started", self._submitted[run_id])
        # What a run builds for all that share it, while the others wait.
        for draft in self._cache.glob("*/.*.draft"):
            name = f"{draft.parent.name}/{draft.name.removeprefix('.').removesuffix('.draft')}"
            if name not in self._builds:
                self._builds.add(name)
                self.say(f"building {name} in {self._cache}, once for all runs that share it")
        self._update()

    def _announce(self, run_id: str, what: str, title: str) -> None:
        self.say(f"{run_id} {what:7s}  {title}")

    def _announce_end(self, run_id: str, state: str, title: str, message: str | None) -> None:
        self.say(f"{run_id} {state:8s} {title}  [{self._ended}/{self._total}]{f'  {message}' if message else ''}")

    def _update(self) -> None:
        if time.monotonic() < self._next_summary:
            return
        self._next_summary = time.monotonic() + _PLAIN_EVERY_S
        running = [f"{self._submitted[run_id]} {_progress(run)}" for run_id, run in self._running.items()]
        parts = [f"{self._ended}/{self._total} ended", *self._queued()]
        parts += [f"running: {', '.join(running)}"] if running else []
        parts += [f"about {duration(self._left)} left"] if self._left is not None else []
        self.say("; ".join(parts))

    def _queued(self) -> list[str]:
        waiting = len(self._submitted) - len(self._running)
        return [f"{waiting} queued"] if self._queues and waiting else []


def _progress(run: RunningRun) -> str:
    return f"{run.step}/{run.steps}" if run.step else PREPARING


class Live(Display):
    """A bar for the sweep and one for each running run."""

    def __init__(self, total: int, multirun: Path, look: Callable[[], Sequence[Standing]], queues: bool) -> None:
        super().__init__(total, multirun, look, queues)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(),
        )
        self._all = self._progress.add_task("runs", total=total, left="")
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave a last frame that shows what has ended, and no remaining time."""
        for run_id in [*self._submitted]:
            self.released(run_id)
        self._left = None
        self._update()
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def released(self, run_id: str) -> None:
        super().released(run_id)
        if run_id in self._bars:
            self._progress.remove_task(self._bars.pop(run_id))

    def _announce(self, run_id: str, what: str, title: str) -> None:
        """Nothing: the bars show which runs have started, and the first one how many are queued."""
        if not self._queues:
            self._bars[run_id] = self._progress.add_task(title, total=None, left=PREPARING)

    def _announce_end(self, run_id: str, state: str, title: str, message: str | None) -> None:
        self._progress.advance(self._all)
        if state != RunState.DONE:
            self.say(f"{run_id} {state} {title}{f': {message}' if message else ''}")

    def _update(self) -> None:
        for run_id, run in self._running.items():
            if run_id not in self._bars:
                self._bars[run_id] = self._progress.add_task(self._submitted[run_id], total=run.steps, left=PREPARING)
            left = PREPARING if not run.step else _left(run.work_seconds)
            self._progress.update(self._bars[run_id], total=run.steps, completed=run.step, left=left)
        waiting = "".join(f" ({queued})" for queued in self._queued())
        self._progress.update(self._all, description=f"runs{waiting}", left=_left(self._left))


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {duration(seconds)} left"
