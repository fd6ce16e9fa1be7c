"""One attempt at a run, as the trainer sees it: where metrics and checkpoints go, and a flag that asks it to stop."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from launcher import run as folders
from launcher.claim import Heartbeat


class Attempt:
    """The object that train(config, run) receives. One thread uses it; `request_stop` may come from any."""

    def __init__(self, folder: Path, attempt: int, heartbeat: Heartbeat) -> None:
        self.folder = folder
        self.attempt = attempt
        self.cache = folders.cache_folder(folders.multirun_of(folder))
        self.stop_cause: str | None = None
        self._stop = threading.Event()
        self._heartbeat = heartbeat
        self._metrics: IO[bytes] | None = None
        self._histograms: IO[bytes] | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics. Raises ClaimLost when another process has taken the run."""
        if self._heartbeat.lost.is_set():
            self._heartbeat.check()
        if self._metrics is None:
            self._metrics = open(folders.metrics_path(self.folder), "ab")  # noqa: SIM115
        _append(self._metrics, {"step": step, "attempt": self.attempt, "time": time.time(), **metrics})

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """Append one histogram: n + 1 edges, n counts."""
        if self._histograms is None:
            self._histograms = open(folders.histograms_path(self.folder), "ab")  # noqa: SIM115
        record = {"step": step, "attempt": self.attempt, "name": name, "edges": list(edges), "counts": list(counts)}
        _append(self._histograms, record)

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
        aside = parent / f".tmp-{name}-{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
            self.sync()
            _fsync_tree(aside)
            self._heartbeat.check()
            final = parent / name
            if final.exists():
                shutil.rmtree(final)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        folders.fsync_folder(parent)
        for old_step, path in folders.checkpoints(self.folder):
            if old_step != step:
                shutil.rmtree(path, ignore_errors=True)

    def stop_requested(self) -> bool:
        """Whether to checkpoint and raise Preempted: a signal came, the launcher is gone, or the claim is lost."""
        return self._stop.is_set() or self._heartbeat.lost.is_set()

    def request_stop(self, cause: str) -> None:
        """Ask the trainer to stop after its current step; the first cause counts."""
        self.stop_cause = self.stop_cause or cause
        self._stop.set()

    def sync(self) -> None:
        """Make every line logged so far survive a power cut."""
        for file in (self._metrics, self._histograms):
            if file is not None:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Sync and close the logs."""
        self.sync()
        for file in (self._metrics, self._histograms):
            if file is not None:
                file.close()
        self._metrics = self._histograms = None


def _append(file: IO[bytes], record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record).encode() + b"\n")
    file.flush()


def _fsync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        folders.fsync_folder(Path(root))


def prepare(folder: Path, attempt: int) -> None:
    """Make the logs end where the newest checkpoint stands, before an attempt resumes from it.

    Lines after the checkpoint's step (all of them without one) and torn lines move to
    attempts/<attempt>/superseded.jsonl, so that metrics.jsonl holds exactly one line a step. A crash in between leaves
    the log as it was: it is replaced whole, after the moved lines were written. Half-written checkpoints are removed.
    """
    newest = folders.latest_checkpoint(folder)
    resumed_from = newest[0] if newest else 0
    moved = folders.attempt_folder(folder, attempt)
    moved.mkdir(parents=True, exist_ok=True)
    for path in (folders.metrics_path(folder), folders.histograms_path(folder)):
        _supersede(path, resumed_from, moved / "superseded.jsonl")
    if folders.checkpoints_folder(folder).is_dir():
        for leftover in folders.checkpoints_folder(folder).glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _supersede(path: Path, resumed_from: int, moved: Path) -> None:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept: list[bytes] = []
    gone: list[bytes] = []
    for line in lines:
        (record,) = list(folders.parse_lines([line])) or [None]
        step = record.get("step") if record else None
        (kept if isinstance(step, int) and step <= resumed_from else gone).append(line)
    if not gone:
        return
    with open(moved, "ab") as file:
        file.write(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in gone))
        file.flush()
        os.fsync(file.fileno())
    folders.write_atomic(path, b"".join(kept).decode("utf-8"))
