"""The job that this process does, for the program's own calls of rlsweep.log and rlsweep.context."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher import files
from launcher.run.folder import attempt_folder, metrics_path
from launcher.worker.attempt import Attempt

#: In the environment of a job's processes: the folder of its run, and the number of the attempt.
RUN = "RLSWEEP_RUN"


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
_logged = False


def begin(attempt: Attempt, folder: Path, resumes: bool) -> None:
    """Prepare a job's folder: empty, with the old content aside; as it was left, if the job `resumes`."""
    global _now, _kept, _logged
    _now, _kept, _logged = (attempt, folder), False, False
    os.environ[RUN] = f"{attempt.folder}:{attempt.attempt}"
    if folder.exists():
        aside = attempt_folder(attempt.folder, attempt.attempt - 1) / folder.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(aside)
    folder.mkdir()
    if resumes:
        context()


def context() -> Context | None:
    """The job of this process, whose last attempt's files are in its folder again; None outside of a sweep."""
    global _kept
    if _now is None:
        return None
    attempt, folder = _now
    earlier = [attempt_folder(attempt.folder, number) / folder.name for number in range(1, attempt.attempt)]
    earlier = [place for place in earlier if place.is_dir()]
    if earlier and not _kept:
        last = earlier.pop()
        for entry in last.iterdir():
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)
    _kept = True
    return Context(folder, attempt.attempt, tuple(earlier), attempt)


def log(step: int, metrics: Mapping[str, float]) -> bool:
    """Append one step's metrics to the log of this process's job; False: it does none.

    A job that continues its last attempt keeps the lines of that one from before its own first step.
    """
    global _logged
    if _now is None:
        return False
    attempt, _ = _now
    if _kept and not _logged:
        _restore(attempt, step)
    _logged = True
    attempt.log(step, metrics)
    return True


def _restore(attempt: Attempt, before: int) -> None:
    """Put the lines of earlier attempts for steps before that one back into the log."""
    lines: dict[int, bytes] = {}
    for number in range(1, attempt.attempt + 1):
        moved = attempt_folder(attempt.folder, number) / "superseded.jsonl"
        for line in moved.read_bytes().splitlines() if moved.is_file() else ():
            record = next(files.parse_lines([line]), None)
            if record is not None and "time" in record and record["step"] < before:
                lines[record["step"]] = line
    kept = b"".join(lines[step] + b"\n" for step in sorted(lines))
    files.write_atomic(metrics_path(attempt.folder), kept.decode("utf-8"))
