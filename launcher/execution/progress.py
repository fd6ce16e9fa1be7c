"""What the user sees while runs go on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Protocol

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

from launcher.run import folder as folders

_PLAIN_EVERY_S = 30.0
_READ_EVERY_S = 1.0


class Display(Protocol):
    """Told about every change; `tick` is called often and must be cheap."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *_: object) -> None: ...
    def say(self, text: str) -> None: ...
    def started(self, run_id: str, title: str, steps: int, folder: Path) -> None: ...
    def released(self, run_id: str) -> None: ...
    def ended(self, run_id: str, state: str, cause: str | None) -> None: ...
    def tick(self) -> None: ...


def display(total: int) -> Display:
    """The display that suits standard output, for `total` runs."""
    return Live(total) if sys.stdout.isatty() else Plain(total)


def _step(folder: Path) -> int:
    record = folders.last_record(folders.metrics_path(folder))
    step = record.get("step") if record else 0
    return step if isinstance(step, int) else 0


class Plain:
    """A line for each start and end, and a summary now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = 0
        self._running: dict[str, tuple[str, int, Path]] = {}
        self._next = time.monotonic() + _PLAIN_EVERY_S

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """One line."""
        print(text, flush=True)

    def started(self, run_id: str, title: str, steps: int, folder: Path) -> None:
        """A worker has the run."""
        self._running[run_id] = (title, steps, folder)
        self.say(f"{run_id} started  {title}")

    def released(self, run_id: str) -> None:
        """No worker of this launch has the run now, and it is not over."""
        self._running.pop(run_id, None)

    def ended(self, run_id: str, state: str, cause: str | None) -> None:
        """The run is over, or somebody else had it."""
        title = self._running.pop(run_id, (run_id, 0, Path()))[0]
        self._ended += 1
        self.say(f"{run_id} {state:8s} {title}  [{self._ended}/{self._total}]{f'  {cause}' if cause else ''}")

    def tick(self) -> None:
        """A summary line every half minute."""
        if time.monotonic() < self._next or not self._running:
            return
        self._next = time.monotonic() + _PLAIN_EVERY_S
        at = ", ".join(f"{title} {_step(folder)}/{steps}" for title, steps, folder in self._running.values())
        self.say(f"{self._ended}/{self._total} ended; running: {at}")


class Live:
    """A bar for the sweep and one for each running run."""

    def __init__(self, total: int) -> None:
        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._all = self._progress.add_task("runs", total=total)
        self._running: dict[str, tuple[TaskID, str, Path]] = {}
        self._next = 0.0

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._console.print(text, markup=False, highlight=False)

    def started(self, run_id: str, title: str, steps: int, folder: Path) -> None:
        """A bar for the run."""
        self._running[run_id] = (self._progress.add_task(title, total=steps), title, folder)

    def released(self, run_id: str) -> None:
        """The run's bar goes."""
        if run_id in self._running:
            self._progress.remove_task(self._running.pop(run_id)[0])

    def ended(self, run_id: str, state: str, cause: str | None) -> None:
        """The run's bar goes; what is not done is said."""
        title = self._running[run_id][1] if run_id in self._running else run_id
        self.released(run_id)
        self._progress.advance(self._all)
        if state != folders.DONE:
            self.say(f"{run_id} {state} {title}{f': {cause}' if cause else ''}")

    def tick(self) -> None:
        """Move the bars."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _READ_EVERY_S
        for task, _, folder in self._running.values():
            self._progress.update(task, completed=_step(folder))
