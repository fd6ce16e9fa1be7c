"""The job that this process does, for the program's own calls of rlsweep.log and rlsweep.context."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from launcher import files
from launcher.run.folder import attempt_folder, metrics_path
from launcher.worker.attempt import Attempt

#: In the environment of a job's processes: the folder of its run, and the number of the attempt.
RUN = "RLSWEEP_RUN"


class Preempted(Exception):
    """The job was asked to stop, and has ended for that."""


@dataclass(frozen=True)
class Context:
    """A job as its program sees it.

    folder: hydra.run.dir, with what the last attempt left there; attempt: 1 for the first; previous: what attempts
    before the last have left, oldest first.
    """

    folder: Path
    attempt: int
    previous: tuple[Path, ...]
    _attempt: Attempt

    def stop_requested(self) -> bool:
        """Whether to save a checkpoint and return or raise soon: the run was cancelled, or its time is over."""
        return self._attempt.stop_requested()


_now: tuple[Attempt, Path] | None = None
_kept = False  # whether the job continues its last attempt
_watches = False  # whether the program watches for requests to stop
_logged = False


def begin(attempt: Attempt, folder: Path, resumes: bool) -> None:
    """Prepare a job's folder: empty, with the old content aside; as it was left, if the job `resumes`.

    From here on SIGTERM raises Preempted in the program, unless it has called `context` and so watches for requests.
    """
    global _now
    _now = attempt, folder
    os.environ[RUN] = f"{attempt.folder}:{attempt.attempt}"
    if folder.exists():
        aside = attempt_folder(attempt.folder, attempt.attempt - 1) / folder.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(aside)
    folder.mkdir()
    if resumes:
        _take_back(attempt, folder)
    before = signal.getsignal(signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        if not _watches:
            raise Preempted(attempt.stop_message or "asked to stop")

    signal.signal(signal.SIGTERM, on_signal)


def context() -> Context | None:
    """The job of this process, whose last attempt's files are in its folder again; None outside of a sweep."""
    global _watches
    if _now is None:
        return None
    attempt, folder = _now
    _watches = True
    _take_back(attempt, folder)
    return Context(folder, attempt.attempt, tuple(_earlier(attempt, folder)), attempt)


def _earlier(attempt: Attempt, folder: Path) -> list[Path]:
    """What earlier attempts have left, the oldest first."""
    places = [attempt_folder(attempt.folder, number) / folder.name for number in range(1, attempt.attempt)]
    return [place for place in places if place.is_dir() and any(place.iterdir())]


def _take_back(attempt: Attempt, folder: Path) -> None:
    """Move what the last attempt has left back into the job's folder, but for files that are there anew."""
    global _kept
    if _kept:
        return
    _kept = True
    for place in _earlier(attempt, folder)[-1:]:
        for entry in place.iterdir():
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)


def watches() -> bool:
    """Whether the program watches for requests to stop; then it returns early because of one."""
    return _watches


def log(step: int, metrics: Mapping[str, float]) -> bool:
    """Append one step's metrics to the log of this process's job; False: it does none.

    A job that continues its last attempt keeps the lines of that one from before its own first step.
    """
    global _logged
    if _now is None:
        return False
    attempt, _ = _now
    if _kept and not _logged:
        restore(attempt, step)
    _logged = True
    attempt.log(step, metrics)
    return True


def restore(attempt: Attempt, before: float = math.inf) -> None:
    """Put the lines of earlier attempts for steps before that one back into the log."""
    lines: dict[int, str] = {}
    for number in range(1, attempt.attempt + 1):
        for record in files.json_lines(attempt_folder(attempt.folder, number) / "superseded.jsonl"):
            if "time" in record and record["step"] < before:
                lines[record["step"]] = json.dumps(record)
    files.write_atomic(metrics_path(attempt.folder), "".join(f"{lines[step]}\n" for step in sorted(lines)))
