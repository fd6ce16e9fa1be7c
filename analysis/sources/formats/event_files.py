"""TensorBoard's event files, read with TensorBoard's own loader: a folder that holds some is a run.

An event file does not contain the configuration of its run, nor how the run ended. The configuration is taken from
TensorBoard's hyperparameters if there are any, else from a file beside it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.sources.log import ASKED, BadImport, Log, is_asked, is_kept, written
from analysis.sources.source import LoggedRun, below, configuration_in, names, source
from analysis.spec.cell import grouped

_PATTERN = "*tfevents*"


class LoggedValue(NamedTuple):
    """A value of a metric: a number, or the edges and counts of a histogram. part: as Logged.part."""

    part: int
    metric: str
    step: int
    value: Any
    time: float | None


@dataclass
class Logged:
    """Values that were logged one by one, such as those of a folder's event files, and hyperparameters.

    part: of the next values, the number of the file, or how often the steps went back. A metric that goes back where
    another part begins is of a new attempt of the run.
    """

    unused: Counter[str] = field(default_factory=Counter)
    values: list[LoggedValue] = field(default_factory=list)
    hparams: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    part: int = 1

    def add(self, metric: str, step: int, value: Any, time: float | None) -> None:
        if step < 0:
            self.unused["the step is not a whole number, 0 or more"] += 1
        else:
            self.values.append(LoggedValue(self.part, metric, step, value, time))

    def went_back(self) -> Iterator[bool]:
        """Of each value, whether its metric goes back to a step of an earlier part. A metric with one step until then
        may be what each part logs at its end."""
        before: dict[str, tuple[int, int]] = {}  # the least and the largest step of each metric
        for part in self._parts():
            seen = set[str]()
            for value in part:
                low, high = before.get(value.metric, (value.step, value.step))
                yield value.metric not in seen and low < high and value.step <= high
                seen.add(value.metric)
            for value in part:
                low, high = before.get(value.metric, (value.step, value.step))
                before[value.metric] = min(low, value.step), max(high, value.step)

    def attempts(self) -> tuple[list[int], bool]:
        """The attempt of each value, and whether these hold for all metrics: not where some count other steps, such as
        epochs beside updates."""
        numbers: list[int] = []
        highest: dict[str, int] = {}
        together, last, went_back = True, 0, self.went_back()
        for part in self._parts():
            back = any([next(went_back) for _ in part])
            steps = [value.step for value in part]
            first = {value.metric: value.step for value in reversed(part)}
            # an attempt would repeat the steps from its first one on
            ahead = any(steps[0] <= highest.get(metric, -1) < step for metric, step in first.items())
            together &= steps == sorted(steps) and not ahead and (back or steps[0] >= last)
            numbers += [(numbers or [1])[-1] + back] * len(steps)
            for value in part:
                highest[value.metric] = max(value.step, highest.get(value.metric, 0))
            last = max(steps)
        return numbers, together

    def _parts(self) -> Iterator[list[LoggedValue]]:
        return (list(part) for _, part in itertools.groupby(self.values, key=lambda value: value.part))


@source
class EventFiles:
    """A run is a folder. Below another run's folder, one with hyperparameters and at most one step belongs to that run,
    as torch's SummaryWriter.add_hparams leaves it, and one of add_scalars, which is called TAG_NAME, or TAG/NAME, and
    has the tag TAG alone: its metric is TAG/NAME. So does one without scalars below or above a run's folder."""

    kind, files, beats = "TensorBoard", (), ("verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        return names(place, {path.parent for path in below(place, _PATTERN)})

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        of_parent: dict[Path, dict[str, Any]] = {}
        lines: dict[Path, list[LoggedValue]] = {}
        held: dict[Path, LoggedRun] = {}
        empty: dict[Path, LoggedRun] = {}
        logged_some: set[Path] = set()
        for folder, name in reversed(list(places.items())):  # what is below a folder comes before it
            logged = _read(folder)
            tag, *others = {value.metric for value in logged.values} or [""]
            starts = f"{tag.replace('/', '_')}_", f"{tag}/"
            above = ((home, folder.relative_to(home).as_posix()) for home in folder.parents if home in places)
            home, path = next(((home, path) for home, path in above if path.startswith(starts)), (folder, ""))
            if tag and not others and path:
                metric = f"{tag}/{path[len(starts[0]) :]}"
                lines.setdefault(home, []).extend(value._replace(metric=metric) for value in logged.values)
                continue
            logged.values += lines.pop(folder, [])
            config = logged.hparams or of_parent.get(folder) or configuration_in([folder, folder.parent], keys)
            run = LoggedRun(self.kind, name, config, as_log(folder, logged, step), started=logged.started)
            if logged.hparams and folder.parent in places and len({value.step for value in logged.values}) <= 1:
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


def as_log(place: object, logged: Logged, by: str | None) -> Log:
    """The rows that count. by: the metric that counts the steps instead."""
    log, (attempts, together) = Log(place), logged.attempts()
    rows = list(zip(attempts, logged.values, strict=True))
    if not together and by is None:
        rows = [(1, value) for value in _standing(log, logged)]
    _fill(log, rows)
    log.recorded.update(value.metric for value in logged.values if not isinstance(value.value, tuple))
    log.unused += logged.unused
    log.resolve(by)
    return log


def _standing(log: Log, logged: Logged) -> Iterator[LoggedValue]:
    """The values that count where metrics count different steps: a later attempt supersedes each metric from its own
    first step there on. A metric that began anew is left out of the log. BadImport: it is asked for by name."""
    of_metric: dict[str, list[tuple[int, LoggedValue]]] = {}
    for value, back in zip(logged.values, logged.went_back(), strict=True):
        if isinstance(value.value, tuple) or is_kept(value.metric):
            own = of_metric.setdefault(value.metric, [])
            own.append(((own[-1][0] if own else 1) + back, value))
    for metric, own in of_metric.items():
        alone = Log(f"{log.place}: {metric}")
        _fill(alone, own)
        try:
            alone.resolve()
        except BadImport as error:
            if ASKED.get() is not None and is_asked(metric):
                raise
            log.left_out[metric] = str(error).partition("\n")[0]
            continue
        log.unused += alone.unused
        log.left_out |= alone.left_out
        log.elsewhere += len(alone) - alone.used
        alone.kept &= ~alone.superseded
        for row in alone.rows():
            if (number := row.get(written(metric))) is not None:
                yield LoggedValue(1, metric, row["step"], number, row["time"])
        for at, histogram in alone.histograms:
            if alone.kept[at]:
                yield LoggedValue(1, metric, int(alone.steps[at]), (histogram["edges"], histogram["counts"]), 0.0)


def _fill(log: Log, rows: Iterable[tuple[int, LoggedValue]]) -> None:
    """Append values, each with its attempt."""
    of_step = grouped(((attempt, value.step), value) for attempt, value in rows)
    before = 1
    for (attempt, step), values in sorted(of_step.items()):
        if attempt != before:
            log.begin()
            before = attempt
        numbers = dict[str, Any]()
        for value in values:
            if not isinstance(value.value, tuple):
                twice = value.metric in numbers and numbers[value.metric] != value.value
                log.unused["repeated in its step, of which the last value counts"] += twice
                numbers[value.metric] = value.value
        log.add(step, numbers, time=values[0].time)
        for metric, histogram in {value.metric: value.value for value in values}.items():
            if isinstance(histogram, tuple):
                log.add_histogram(metric, *histogram)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """A key that sorts the names of event files by their times and numbers, 9 before 10."""
    return [(int(part) if part.isdigit() else -1, part) for part in path.name.split(".")]


def _read(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    logged = Logged()
    plugins: dict[str, str] = {}  # a tag's first value alone says what it is
    for logged.part, path in enumerate(sorted(folder.glob(_PATTERN), key=_in_order), start=1):
        for event in EventFileLoader(str(path)).Load():
            if logged.started is None:
                logged.started = event.wall_time
            if event.HasField("session_log") and event.session_log.status == SessionLog.START and event.step > 0:
                # what follows supersedes all from this step on: SummaryWriter(purge_step=...)
                purged = {value.step for value in logged.values if value.step >= event.step}
                logged.unused[f"purged from step {event.step} on"] += len(purged)
                logged.values = [value for value in logged.values if value.step not in purged]
            for value in event.summary.value:
                _take(logged, plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name), event, value)
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
            logged.add(value.tag, step, (edges, tensor[:, 2].tolist()), time)
    elif tensor.size == 1 and np.issubdtype(tensor.dtype, np.number):
        logged.add(value.tag, step, float(tensor.reshape(())), time)
