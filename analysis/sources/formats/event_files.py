"""TensorBoard's event files, read with TensorBoard's own loader: a folder that holds some is a run.

An event file does not contain the configuration of its run, nor how the run ended. The configuration is taken from
TensorBoard's hyperparameters if there are any, else from a file beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.sources.log import Log
from analysis.sources.source import LoggedRun, below, configuration_in, names, source

_PATTERN = "*tfevents*"


@dataclass
class Logged:
    """Scalars that were logged one by one, such as those of a folder's event files: rows by (attempt, step), each of
    scalars, histograms and time; and hyperparameters. begins: the first step of the file; steps: of each scalar, those
    of earlier files."""

    unused: Counter[str] = field(default_factory=Counter)
    rows: dict[tuple[int, int], tuple[dict[str, float], dict[str, Any], float]] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    attempt: int = 1
    begins: int | None = None
    steps: dict[str, set[int]] = field(default_factory=dict)

    def row(self, step: int, time: float) -> tuple[dict[str, float], dict[str, Any], float]:
        return self.rows.setdefault((self.attempt, step), ({}, {}, time))

    def scalar(self, tag: str, step: int, value: float, time: float) -> None:
        """A scalar. A file whose steps are those of an earlier file is of a new attempt."""
        self.begins = step if self.begins is None else self.begins
        before = self.steps.get(tag, set())
        if len(before) > 1 and self.begins <= step <= max(before):
            self.attempt, self.steps = self.attempt + 1, {}
        values = self.row(step, time)[0]
        self.unused["repeated in its step, of which the last value counts"] += tag in values and values[tag] != value
        values[tag] = value


@source
class EventFiles:
    """A run is a folder. A folder with hyperparameters and at most one step below another run's folder belongs to that
    run, as torch's SummaryWriter.add_hparams leaves it; so does one without scalars below or above a run's folder."""

    kind, files, beats = "TensorBoard", (), ("verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        return names(place, {path.parent for path in below(place, _PATTERN)})

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        of_parent: dict[Path, dict[str, Any]] = {}
        held: dict[Path, LoggedRun] = {}
        empty: dict[Path, LoggedRun] = {}
        logged_some: set[Path] = set()
        for folder, name in reversed(list(places.items())):  # what is below a folder comes before it
            logged = _read(folder)
            config = logged.hparams or of_parent.get(folder) or configuration_in([folder, folder.parent], keys)
            run = LoggedRun(self.kind, name, config, as_log(folder, logged, step), started=logged.started)
            if logged.hparams and folder.parent in places and len(logged.rows) <= 1:
                of_parent.setdefault(folder.parent, {}).update(logged.hparams)
                held[folder] = run
            elif run.log:
                logged_some.add(folder)
                yield run
            else:
                empty[folder] = run
        yield from (run for folder, run in held.items() if run.log and folder.parent not in logged_some)
        without = [folder for folder in empty if not any(folder in other.parents for other in logged_some)]
        yield from (empty[folder] for folder in without if not {*logged_some, *without} & {*folder.parents})


def as_log(place: Path, logged: Logged, by: str | None) -> Log:
    """The rows that count. by: the metric that counts the steps instead."""
    log, before = Log(place), 1
    for (attempt, step), (values, histograms, time) in sorted(logged.rows.items(), key=lambda item: item[0]):
        if attempt != before:
            log.begin()
            before = attempt
        log.add(step, values, time=time)
        for tag, (edges, counts) in histograms.items():
            log.add_histogram(tag, edges, counts)
    log.unused += logged.unused
    log.resolve(by)
    return log


def _in_order(path: Path) -> list[tuple[int, str]]:
    """A key that sorts the names of event files by their times and numbers, 9 before 10."""
    return [(int(part) if part.isdigit() else -1, part) for part in path.name.split(".")]


def _read(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    logged = Logged()
    plugins: dict[str, str] = {}  # a tag's first value alone says what it is
    for path in sorted(folder.glob(_PATTERN), key=_in_order):
        for (attempt, step), (values, _, _) in logged.rows.items():
            if attempt == logged.attempt:
                for tag in values:
                    logged.steps.setdefault(tag, set()).add(step)
        logged.begins = None
        for event in EventFileLoader(str(path)).Load():
            if logged.started is None:
                logged.started = event.wall_time
            if event.HasField("session_log") and event.session_log.status == SessionLog.START and event.step > 0:
                # what follows supersedes all from this step on: SummaryWriter(purge_step=...)
                kept = {key: row for key, row in logged.rows.items() if key[1] < event.step}
                logged.unused[f"purged from step {event.step} on"] += len(logged.rows) - len(kept)
                logged.attempt, logged.rows, logged.steps = logged.attempt + 1, kept, {}
            for value in event.summary.value:
                plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                _take(logged, plugin, event, value)
    return logged


def _take(logged: Logged, plugin: str, event: Any, value: Any) -> None:
    from tensorboard.util.tensor_util import make_ndarray

    if plugin == "hparams":
        from tensorboard.plugins.hparams import metadata

        if value.tag == metadata.SESSION_START_INFO_TAG:
            content = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
            kinds = {key: (v, v.WhichOneof("kind")) for key, v in content.hparams.items()}
            logged.hparams |= {key: getattr(v, kind) for key, (v, kind) in kinds.items() if kind}
        return
    if not value.HasField("tensor") or plugin not in ("scalars", "histograms", ""):
        return
    step, time = int(event.step), event.wall_time
    tensor = np.asarray(make_ndarray(value.tensor))
    if plugin == "histograms":
        if tensor.ndim == 2 and len(tensor):  # rows of left edge, right edge and count
            edges = [float(tensor[0, 0]), *tensor[:, 1].tolist()]
            logged.row(step, time)[1][value.tag] = edges, tensor[:, 2].tolist()
    elif tensor.size == 1 and np.issubdtype(tensor.dtype, np.number):
        logged.scalar(value.tag, step, float(tensor.reshape(())), time)
