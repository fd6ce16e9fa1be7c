"""What the user sees while runs are executed: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from launcher.run.folder import last_record, metrics_path
from launcher.run.lifecycle import RunState

_PLAIN_EVERY_S = 30.0
_READ_EVERY_S = 1.0


class Display:
    """A line for each start and end of `total` runs, and a summary every half minute."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = 0
        self._running: dict[str, tuple[str, int, Path]] = {}
        self._next = time.monotonic() + _PLAIN_EVERY_S

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, flush=True)

    def started(self, run_id: str, title: str, steps: int, folder: Path) -> None:
        """A worker has the run."""
        self._running[run_id] = (title, steps, folder)
        self.say(f"{run_id} started  {title}")

    def released(self, run_id: str) -> None:
        """The run has not ended, but no worker of this launch has it now."""
        self._running.pop(run_id, None)

    def ended(self, run_id: str, state: str, message: str | None) -> None:
        """The run has ended, here or under another launcher."""
        title = self._running.pop(run_id, (run_id, 0, Path()))[0]
        self._ended += 1
        self.say(f"{run_id} {state:8s} {title}  [{self._ended}/{self._total}]{f'  {message}' if message else ''}")

    def tick(self) -> None:
        """Update what is shown. It is called often and must be cheap."""
        if time.monotonic() < self._next or not self._running:
            return
        self._next = time.monotonic() + _PLAIN_EVERY_S
        running = ", ".join(f"{title} {_step(folder)}/{steps}" for title, steps, folder in self._running.values())
        self.say(f"{self._ended}/{self._total} ended; running: {running}")


class Live(Display):
    """A bar for the sweep and one for each running run."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(),
        )
        self._all = self._progress.add_task("runs", total=total)
        self._bars: dict[str, TaskID] = {}
        self._next = 0.0

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def started(self, run_id: str, title: str, steps: int, folder: Path) -> None:
        self._running[run_id] = (title, steps, folder)
        self._bars[run_id] = self._progress.add_task(title, total=steps)

    def released(self, run_id: str) -> None:
        super().released(run_id)
        if run_id in self._bars:
            self._progress.remove_task(self._bars.pop(run_id))

    def ended(self, run_id: str, state: str, message: str | None) -> None:
        title = self._running[run_id][0] if run_id in self._running else run_id
        self.released(run_id)
        self._progress.advance(self._all)
        if state != RunState.DONE:
            self.say(f"{run_id} {state} {title}{f': {message}' if message else ''}")

    def tick(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _READ_EVERY_S
        for run_id, bar in self._bars.items():
            self._progress.update(bar, completed=_step(self._running[run_id][2]))


def display(total: int) -> Display:
    """The display that suits standard output, for `total` runs."""
    return Live(total) if sys.stdout.isatty() else Display(total)


def _step(folder: Path) -> int:
    record = last_record(metrics_path(folder))
    step = record.get("step") if record else 0
    return step if isinstance(step, int) else 0
