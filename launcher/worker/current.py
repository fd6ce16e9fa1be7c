"""The job that this process does, for the program's own calls of rlsweep.log and rlsweep.context."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from launcher import files
from launcher.run.folder import attempt_folder, metrics_path
from launcher.run.lifecycle import signal_name
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
    _job: Job

    def stop_requested(self) -> bool:
        """Whether to save a checkpoint and return or raise soon: the run was cancelled, or its time is over."""
        return self._job.stop_requested()


@dataclass
class Job:
    """The job that this process does. signals: a pipe with the number of each signal that came; continues: whether it
    continues its last attempt; watches: whether the program looks for requests to stop; logs: whether it has logged a
    step."""

    attempt: Attempt
    folder: Path
    signals: int
    continues: bool = False
    watches: bool = False
    logs: bool = False

    def stop_requested(self) -> bool:
        """Whether the job was asked to stop, also by a SIGTERM that the program handles itself, as ray.init does."""
        with suppress(BlockingIOError):
            if signal.SIGTERM in os.read(self.signals, 1 << 16):
                self.watches = True
                self.attempt.request_stop(signal_name(signal.SIGTERM))
        return self.attempt.stop_requested()

    def earlier(self) -> list[Path]:
        """What earlier attempts have left, the oldest first."""
        numbers = range(1, self.attempt.attempt)
        places = [attempt_folder(self.attempt.folder, number) / self.folder.name for number in numbers]
        return [place for place in places if place.is_dir() and any(place.iterdir())]

    def take_back(self) -> None:
        """Move what earlier attempts have left back into the job's folder, but for files that are there anew, and their
        lines into the log. The last one may have ended before it had taken back what was left to it."""
        if self.continues:
            return
        self.continues = True
        for place in reversed(self.earlier()):
            _move(place, self.folder)
        if not self.logs:
            self.restore_log()

    def restore_log(self, before: float = math.inf) -> None:
        """Put the lines of earlier attempts for steps before that one back into the log."""
        run, lines = self.attempt.folder, dict[int, list[str]]()
        for number in range(1, self.attempt.attempt + 1):
            of_step: dict[int, list[str]] = {}  # those of the last attempt that has some
            for record in files.json_lines(attempt_folder(run, number) / "superseded.jsonl"):
                if "time" in record and record["step"] < before:
                    of_step.setdefault(record["step"], []).append(json.dumps(record))
            lines |= of_step
        files.write_atomic(metrics_path(run), "".join(f"{line}\n" for step in sorted(lines) for line in lines[step]))


def _move(place: Path, into: Path) -> None:
    """Move what is in a folder into another one, but for files that are there."""
    for entry in place.iterdir():
        there = into / entry.name
        if not os.path.lexists(there):
            entry.rename(there)
        elif there.is_dir() and entry.is_dir() and not entry.is_symlink():
            _move(entry, there)


_job: Job | None = None


def begin(attempt: Attempt, folder: Path, resumes: bool) -> Job:
    """Prepare a job's folder: empty, with the old content aside; as it was left, if the job `resumes`.

    From here on SIGTERM raises Preempted in the program, unless it has called `context` and so watches for requests.
    """
    global _job
    signals, written = os.pipe()
    for end in (signals, written):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    job = _job = Job(attempt, folder, signals)
    os.environ[RUN] = f"{attempt.folder}:{attempt.attempt}"
    if folder.exists():
        aside = attempt_folder(attempt.folder, attempt.attempt - 1) / folder.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(aside)
    folder.mkdir()
    if resumes:
        job.take_back()
    before = signal.getsignal(signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        if not job.watches:
            raise Preempted(attempt.stop_message or "asked to stop")

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the program ends its children with it

    signal.signal(signal.SIGTERM, on_signal)
    os.register_at_fork(after_in_child=in_child)
    return job


def context() -> Context | None:
    """The job of this process, whose last attempt's files are in its folder again; None outside of a sweep."""
    if _job is None:
        return None
    _job.watches = True
    _job.take_back()
    return Context(_job.folder, _job.attempt.attempt, tuple(_job.earlier()), _job)


def log(step: int, metrics: Mapping[str, float]) -> bool:
    """Append one step's metrics to the log of this process's job; False: it does none.

    A job that continues its last attempt keeps the lines of that one from before its own first step.
    """
    if _job is None:
        return False
    if _job.continues and not _job.logs:
        _job.restore_log(step)
    _job.logs = True
    _job.attempt.log(step, metrics)
    return True
