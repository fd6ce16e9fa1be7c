"""One attempt at a run, as the trainer sees it: where metrics and checkpoints go, and a flag that asks it to stop."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher import files
from launcher.config import identity
from launcher.run import folder as folders
from launcher.run import lifecycle, stop_request
from launcher.run.claim import Heartbeat
from launcher.tracking import Tracker


class Attempt:
    """The object that train(config, run) receives. One thread uses it; `request_stop` may come from any."""

    def __init__(self, folder: Path, attempt: int, heartbeat: Heartbeat) -> None:
        self.folder = folder
        self.attempt = attempt
        self.cache = folders.cache_folder(folders.multirun_of(folder))
        self.stop_kind = lifecycle.PREEMPTED
        self.stop_cause: str | None = None
        self.tracker: Tracker | None = None
        # No Event: a second signal in the middle of the first one's `set` would wait for it forever.
        self._stop = False
        self._asked = False
        self._heartbeat = heartbeat
        self._metrics = _Lines(folders.metrics_path(folder))
        self._histograms = _Lines(folders.histograms_path(folder))
        self._responses = _Lines(folders.responses_path(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics. Raises ClaimLost when another process has taken the run."""
        self._heartbeat.confirm()
        self._metrics.append({"step": step, "attempt": self.attempt, "time": time.time(), **metrics})
        if self.tracker is not None:
            self.tracker.log(step, metrics)

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """Append one histogram: n + 1 edges, n counts."""
        self._heartbeat.confirm()
        record = {"step": step, "attempt": self.attempt, "name": name, "edges": list(edges), "counts": list(counts)}
        self._histograms.append(record)
        if self.tracker is not None:
            self.tracker.histogram(step, name, edges, counts)

    def response(self, step: int, prompt: str, response: str, reward: float, answer: str) -> None:
        """Append one response of an evaluation; `answer` is what the prompt asks for."""
        self._heartbeat.confirm()
        record = {"step": step, "attempt": self.attempt, "id": identity.content_hash(prompt), "prompt": prompt,
                  "response": response, "reward": reward, "answer": answer}  # fmt: skip
        self._responses.append(record)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """The newest complete checkpoint as (step, path), or None."""
        return folders.latest_checkpoint(self.folder)

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Yield an empty folder to fill; on exit it becomes the run's newest checkpoint, and older ones go.

        The metric log reaches the disk first: a checkpoint without the lines up to its step would lose them on resume.
        Raises ClaimLost instead of publishing when another process has taken the run.
        """
        parent = folders.checkpoints_folder(self.folder)
        parent.mkdir(parents=True, exist_ok=True)
        name = folders.checkpoint_name(step)
        aside = parent / f"{files.ASIDE}{name}-{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
            self.sync()
            _fsync_tree(aside)
            self._heartbeat.check()
            # One of the same step is the same state; to remove it first would leave a moment without any.
            if not (parent / name).exists():
                aside.rename(parent / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        files.fsync_folder(parent)
        for old_step, path in folders.checkpoints(self.folder):
            if old_step != step:
                # Away in one step: a crash must not leave half of it under a checkpoint's name.
                gone = parent / f"{files.ASIDE}old-{path.name}-{os.getpid()}"
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def check(self) -> None:
        """Raise ClaimLost when another process has taken the run."""
        self._heartbeat.check()

    def stop_requested(self) -> bool:
        """Whether to checkpoint and raise Preempted: a signal came, the launcher is gone, or the claim is lost."""
        return self._stop or self._heartbeat.lost.is_set()

    def heed(self) -> None:
        """Stop if another process left a request in the run's folder."""
        asked = stop_request.asked(self.folder, self._heartbeat.claim.token)
        if asked is not None:
            self.request_stop(asked.cause, asked.kind, asked=True)

    def request_stop(self, cause: str, kind: str = lifecycle.PREEMPTED, asked: bool = False) -> None:
        """Ask the trainer to stop after its current step; the first cause counts, and a user's over any other.

        `asked`: it says why, as a signal that came earlier, perhaps with it, could not.
        """
        if self.stop_cause is None or kind == lifecycle.CANCELLED or (asked and not self._asked):
            self.stop_kind, self.stop_cause = kind, cause
        self._asked |= asked
        self._stop = True

    def sync(self) -> None:
        """Make every line logged so far survive a power cut."""
        for lines in (self._metrics, self._histograms, self._responses):
            lines.sync()

    def close(self) -> None:
        """Sync and close the logs."""
        for lines in (self._metrics, self._histograms, self._responses):
            lines.close()


class _Lines:
    """A .jsonl file that grows by whole lines or not at all; opened by the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. OSError: it could not be written, and the file ends where it did before."""
        if self._handle is None:
            self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        line = json.dumps(record).encode() + b"\n"
        size = os.fstat(self._handle).st_size
        try:
            left = line
            while left:  # a full disk takes a part of a line, and refuses the rest
                left = left[os.write(self._handle, left) :]
        except OSError:
            os.ftruncate(self._handle, size)
            raise

    def sync(self) -> None:
        if self._handle is not None:
            os.fsync(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _fsync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        files.fsync_folder(Path(root))


def prepare(folder: Path, attempt: int) -> None:
    """Make the logs end where the newest checkpoint stands, before an attempt resumes from it.

    Lines after the checkpoint's step (all of them without one) and torn lines move to
    attempts/<attempt>/superseded.jsonl, so that metrics.jsonl holds exactly one line a step. A crash in between leaves
    the log as it was: it is replaced whole, after the moved lines were written. It is replaced even when no line moves:
    an earlier owner that was stopped, and does not know yet that it lost the run, writes into the old file. What was
    half-written is removed. The caller holds the folder's lock and its claim.
    """
    newest = folders.latest_checkpoint(folder)
    resumed_from = newest[0] if newest else 0
    moved = folders.attempt_folder(folder, attempt)
    moved.mkdir(parents=True, exist_ok=True)
    for path in (folders.metrics_path(folder), folders.histograms_path(folder), folders.responses_path(folder)):
        _supersede(path, resumed_from, moved / "superseded.jsonl")
    for leftover in folder.glob(f"{files.ASIDE}*"):
        leftover.unlink()
    for leftover in folders.checkpoints_folder(folder).glob(f"{files.ASIDE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _supersede(path: Path, resumed_from: int, moved: Path) -> None:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept: list[bytes] = []
    gone: list[bytes] = []
    for line in lines:
        (record,) = list(files.parse_lines([line])) or [None]
        step = record.get("step") if record else None
        (kept if isinstance(step, int) and step <= resumed_from else gone).append(line)
    if gone:
        with open(moved, "ab") as file:
            file.write(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in gone))
            file.flush()
            os.fsync(file.fileno())
    files.write_atomic(path, b"".join(kept).decode("utf-8"))
