"""One attempt at a run, as the trainer sees it: its logs, its checkpoints, and the request to stop."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from launcher import files
from launcher.config import identity
from launcher.nodes import ONE, Nodes
from launcher.run import evaluations, stop_request, whole
from launcher.run.evaluations import EvaluationRow
from launcher.run.folder import (
    attempt_folder,
    cache_folder,
    checkpoint_name,
    checkpoints,
    checkpoints_folder,
    histograms_path,
    last_final_step,
    latest_checkpoint,
    metrics_path,
    multirun_of,
    responses_path,
)
from launcher.run.lifecycle import FailureKind, Heartbeat
from launcher.tracking import Tracker


class Answer(Protocol):
    """A response to a prompt of an evaluation."""

    prompt: str
    split: str
    sample: int | None
    reward: float
    numbers: Mapping[str, float]


class Attempt:
    """The object that train(config, run) receives. It is for one thread; only `request_stop` may be called from any."""

    def __init__(self, folder: Path, attempt: int, heartbeat: Heartbeat, nodes: Nodes = ONE) -> None:
        self.folder, self.attempt, self.nodes = folder, attempt, nodes
        self.checkpoints_kept = 1  # as in runs that an older version froze
        self.first_step = 1  # 0 with an evaluation before training
        self.cache = cache_folder(multirun_of(folder))
        self.stop_kind = FailureKind.PREEMPTED
        self.stop_message: str | None = None
        self.tracker: Tracker | None = None
        self.on_step: Callable[[], None] | None = None
        self.on_first_step: Callable[[], None] | None = None
        # Not a threading.Event: a second signal during the first one's `set` would wait for it forever.
        self._stop = False
        self._explained = False
        self._heartbeat = heartbeat
        self._metrics, self._histograms, self._responses = map(Lines, _logs(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics. Raises ClaimLost if another process has claimed the run."""
        self._heartbeat.confirm()
        if self.on_first_step is not None:
            first, self.on_first_step = self.on_first_step, None
            first()
        if self.on_step is not None:
            self.on_step()
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
        """Append one response of an evaluation; `answer` is the right answer to the prompt."""
        self._heartbeat.confirm()
        record = {"step": step, "attempt": self.attempt, "id": identity.content_hash(prompt), "prompt": prompt,
                  "response": response, "reward": reward, "answer": answer}  # fmt: skip
        self._responses.append(record)

    def evaluation(self, step: int, answers: Sequence[Answer]) -> None:
        """Keep the reward of each response of the step's evaluation."""
        self._heartbeat.confirm()
        ids = {prompt: identity.content_hash(prompt) for prompt in {answer.prompt for answer in answers}}
        rows = (EvaluationRow(ids[a.prompt], a.split, a.sample, a.reward, a.numbers) for a in answers)
        evaluations.write(self.folder, step, rows)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """The newest complete checkpoint as (step, path), or None."""
        return latest_checkpoint(self.folder)

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Yield an empty folder to fill; on exit it becomes the run's newest checkpoint, and the oldest are deleted.

        `checkpoints_kept` of them stay. A manifest with the digests of its files and of the logs is added. The metric
        log is synced first, so that no checkpoint lacks the lines up to its step. Raises ClaimLost instead of
        publishing the checkpoint if another process has claimed the run.
        """
        parent = checkpoints_folder(self.folder)
        parent.mkdir(parents=True, exist_ok=True)
        name = checkpoint_name(step)
        aside = parent / f"{files.ASIDE}{name}-{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
            self.sync()
            whole.seal_checkpoint(aside, self.folder)
            _fsync_tree(aside)
            self._heartbeat.check()
            # A checkpoint of the same step is the same state. To delete it first would leave the run without one.
            if not (parent / name).exists():
                aside.rename(parent / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        files.fsync_folder(parent)
        for _, path in checkpoints(self.folder)[: -self.checkpoints_kept]:
            # Rename it first: a crash must not leave half of it under a checkpoint's name.
            old = parent / f"{files.ASIDE}old-{path.name}-{os.getpid()}"
            path.rename(old)
            shutil.rmtree(old, ignore_errors=True)

    def trace(self, step: int, read: Mapping[str, Any], save: Callable[[Path], None]) -> None:
        """Where a certification asks for it (launcher.worker.certified): record what a step has read, such as the rows
        of its prompts, `data`, and what `save` writes into an empty folder. A trainer that resumes says so of the
        checkpoint's step, as it was restored."""

    def check(self) -> None:
        """Raise ClaimLost if another process has claimed the run."""
        self._heartbeat.check()

    def stop_requested(self) -> bool:
        """Whether to save a checkpoint and raise Preempted: after a signal or a request, or if the claim is lost."""
        return self._stop or self._heartbeat.lost.is_set()

    def check_stop_request(self) -> None:
        """Stop if another process left a request in the run's folder."""
        request = stop_request.find(self.folder, self._heartbeat.claim)
        if request is not None:
            self.request_stop(request.message, request.failure_kind, explained=True)

    def request_stop(self, message: str, kind: FailureKind = FailureKind.PREEMPTED, explained: bool = False) -> None:
        """Ask the trainer to stop after its current step.

        The first reason is kept, but a cancellation replaces any other, and an explained reason replaces a signal,
        which cannot carry one.
        """
        if self.stop_message is None or kind == FailureKind.CANCELLED or (explained and not self._explained):
            self.stop_kind, self.stop_message = kind, message
        self._explained |= explained
        self._stop = True

    def sync(self) -> None:
        """Make every line logged so far survive a power cut."""
        for lines in (self._metrics, self._histograms, self._responses):
            lines.sync()

    def close(self) -> None:
        """Sync and close the logs."""
        for lines in (self._metrics, self._histograms, self._responses):
            lines.close()


class Lines:
    """A .jsonl file to which only complete lines are appended. The first line opens it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. OSError: it could not be written, and the file is as before."""
        if self._handle is None:
            self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        line = json.dumps(record).encode() + b"\n"
        size = os.fstat(self._handle).st_size
        try:
            left = line
            while left:  # a disk that becomes full takes a part of a line
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
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())
        files.fsync_folder(Path(root))


def prepare(folder: Path, attempt: int) -> None:
    """Cut the logs at the newest checkpoint, before an attempt resumes from it.

    Lines after the checkpoint's step (without a checkpoint, all lines) and torn lines are moved to
    attempts/<attempt>/superseded.jsonl, so that metrics.jsonl has exactly one line for each step. Evaluations after it
    are moved to attempts/<attempt>/evaluations/. The logs are replaced atomically, after the moved lines were written.
    They are replaced even if no line moves: an earlier owner that was stopped, and does not know yet that it lost the
    run, then writes into the old file. Unfinished files are deleted. The caller holds the folder's lock and its claim.
    """
    resumed_from = last_final_step(folder)
    moved = attempt_folder(folder, attempt)
    moved.mkdir(parents=True, exist_ok=True)
    for path in _logs(folder):
        _supersede(path, resumed_from, moved / "superseded.jsonl")
    evaluations.supersede(folder, resumed_from, moved / "evaluations")
    for unfinished in (*folder.glob(f"{files.ASIDE}*"), *checkpoints_folder(folder).glob(f"{files.ASIDE}*")):
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink()


def _logs(folder: Path) -> tuple[Path, Path, Path]:
    return metrics_path(folder), histograms_path(folder), responses_path(folder)


def _supersede(path: Path, resumed_from: int, moved: Path) -> None:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept: list[bytes] = []
    superseded: list[bytes] = []
    for line in lines:
        record = next(files.parse_lines([line]), None)
        step = record.get("step") if record else None
        (kept if isinstance(step, int) and resumed_from and step <= resumed_from else superseded).append(line)
    if superseded:
        with open(moved, "ab") as file:
            file.write(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in superseded))
            file.flush()
            os.fsync(file.fileno())
    files.write_atomic(path, b"".join(kept).decode("utf-8"))
