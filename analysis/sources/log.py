"""The rows of a run as another tool logged them, by column: which of them count, and what was left out and why.

A run that was resumed writes some steps again. The rows of the later attempt count from its first step on.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.sources.notation import number
from analysis.spec.validation import APART, KEY_ALONE, BadPlan, Objection
from launcher.run.folder import histograms_path, metrics_path

_SHORT = 2  # steps: an attempt that repeats its first step after so few is not a resumed run
_FALLS = 4
_LISTED = 3
#: What may count the steps by its name: global_step, time/total_timesteps, episode; not eval_steps_per_second.
_COUNTER = re.compile(r"step(?!s?_per_sec)|(?:episode|epoch|iteration|update|frame)s?$", re.IGNORECASE)
_OWN_KEYS = ("step", "attempt", "time")  # keys of metrics.jsonl; a metric of this name becomes log/NAME
# Of docs/metrics.md: what a run says of its own size, and the key of a summary that says the same.
_COUNTED = {"samples/total": "samples", "tokens/total": "tokens"}
_NAME = "name what counts the steps by --step"
_REMOVE = "remove or move away the earlier rows if the run began anew, else import the parts separately"


class BadImport(BadPlan):
    """Runs that cannot be imported as asked; its argument is an Objection, or several in words."""


#: The metrics that logs keep; None: all.
ASKED: ContextVar[Collection[str] | None] = ContextVar("ASKED", default=None)
#: How many attempts are known to have written a log, each of which may have begun anew.
ATTEMPTS: ContextVar[int] = ContextVar("ATTEMPTS", default=1)


def is_kept(metric: str) -> bool:
    """Whether logs keep a metric: it is asked for, or may count the steps, or says the size of the run."""
    return is_asked(metric) or written(metric) in _COUNTED or bool(_COUNTER.search(metric))


def is_asked(metric: str) -> bool:
    """Whether a metric is asked for, as each is where nobody names any."""
    asked = ASKED.get()
    return asked is None or written(metric) in asked


class Numbers:
    """The numbers of a metric, and the row of each."""

    def __init__(self) -> None:
        self._values = array("d")
        self._rows: array[int] | None = None  # None: each row has a number

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float, row: int) -> None:
        if self._rows is None and row != len(self):
            self._rows = array("I", range(len(self)))
        try:
            self._values.append(value)
        except OverflowError:  # an int of more than 308 digits
            self._values.append(math.inf)
        if self._rows is not None:
            self._rows.append(row)

    def columns(self) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
        """All numbers, and the rows."""
        return np.asarray(self._values), np.asarray(self._each_row(), dtype=np.uint32)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return zip(self._values, self._each_row(), strict=True)

    def _each_row(self) -> Sequence[int]:
        return range(len(self)) if self._rows is None else self._rows


class Log:
    """The rows of a run in the order in which they were logged.

    place: the file, for messages. metrics[name]: its numbers; recorded: the names, also of metrics that are not kept
    (ASKED). unused: how many rows do not count, by reason. left_out: the metrics that cannot be read, each with a cell
    that is not a number; read_as: those in another notation than Python's, each with a cell; by: the metric, column or
    key that counts the steps; unordered: whether the rows are in no order of them; elsewhere: how many rows were read
    that are not here, because they do not count.
    After `resolve` or `overwritten`, steps and attempts: of each row; kept: whether it is written; superseded: whether
    a later attempt replaces it; used: how many count. After `write`, cells: how many numbers each metric has, by the
    name that it is written under; read: how many rows; summary: of the run's end; last_step; last_attempt; finished: in
    unix seconds.
    """

    def __init__(self, place: object) -> None:
        self.place = place
        self.metrics: dict[str, Numbers] = defaultdict(Numbers)
        self.recorded: set[str] = set()
        self.unused: Counter[str] = Counter()
        self.left_out: dict[str, str] = {}
        self.read_as: dict[str, str] = {}
        self.by = "step"
        self.unordered = False
        self.elsewhere = 0
        self.histograms: list[tuple[int, dict[str, Any]]] = []  # with the row of each
        self._kept: list[str] = []
        self._logged = array("q")
        self._times = Numbers()
        self._begins: list[int] = []

    def __len__(self) -> int:
        return len(self._logged)

    def begin(self) -> None:
        """The next row is of another attempt."""
        self._begins.append(len(self))

    def add(self, step: int, values: Mapping[str, object], where: str = "", time: float | None = None) -> None:
        """Append a row. A metric with a value that is not a number is left out; `where` names it."""
        if not values.keys() <= self.recorded:
            self._kept += [name for name in values if name not in self.recorded and is_kept(name)]
            self.recorded.update(values)
        for name in self._kept:
            if name not in values:
                continue
            value = values[name]
            cell = number(value) if isinstance(value, str) else value
            if isinstance(cell, (int, float)):
                self.metrics[name].append(cell, len(self))
            else:
                about = f"{self.place}: {where or f'step {step}'}"
                self.left_out.setdefault(name, f"{about}: {name} = {str(value)[:80]!r}: not a number")
        self._logged.append(step)
        if time is not None:
            self._times.append(time, len(self) - 1)

    def add_histogram(self, name: str, edges: object, counts: object) -> None:
        """Append a histogram of the last row."""
        self.histograms.append((len(self) - 1, {"name": name, "edges": edges, "counts": counts}))

    def resolve(self, step: str | None = None, apart: Callable[[Collection[int]], str] = lambda steps: "") -> None:
        """Find the attempts of the run, and the rows that count.

        step: the metric that counts the steps instead, as it was logged or as it is written; apart: how to tell rows of
        these steps apart, "" if nothing does. Raises BadImport for rows that would overwrite all earlier ones.
        """
        step = called(step, self.metrics)
        self.steps, self.kept = np.frombuffer(self._logged, dtype=np.int64), np.ones(len(self), dtype=bool)
        back = np.zeros(len(self), dtype=bool)
        back[[row for row in self._begins if 0 < row < len(self)]] = True
        if step is not None:
            self.by = step
            self._count_by(step, np.cumsum(back))
        falls = self.steps[1:] < self.steps[:-1]
        # steps that fall often, in a quarter of the rows, and never repeat are of rows in no order, not of attempts
        self.unordered = self._is_often(falls.sum()) and np.unique(self.steps).size == len(self)
        back[1:] = back[1:] & ~falls if self.unordered else back[1:] | falls
        new = back.copy()
        new[1:] |= self.steps[1:] != self.steps[:-1]
        new[:1] = True
        differs = self._again(np.cumsum(new)) if not new.all() else np.zeros_like(new)
        begins, self.superseded = back | differs, np.zeros_like(back)
        self.attempts = np.broadcast_to(np.int32(1), len(self))
        if self.unordered and not is_asked(self.by) and (fix := self._counters(begins, step))[1]:
            rule = "the rows are in no order of these steps"
            raise BadImport(Objection(self.by, KEY_ALONE, rule, fix[0], str(self.place)))
        if begins.any():
            self.attempts = 1 + np.cumsum(begins, dtype=np.int32)
            if self.attempts[-1] > ATTEMPTS.get():
                self._check(begins, differs, step, apart)
            later = np.minimum.accumulate(np.where(begins, self.steps, np.iinfo(np.int64).max)[::-1])[::-1][1:]
            self.superseded[:-1] = self.kept[:-1] & (self.steps[:-1] >= later)
            superseded = int(self.superseded.sum())
            self.unused[f"superseded by a later attempt from step {self.steps[begins].min()} on"] += superseded
        self.used = int((self.kept & ~self.superseded).sum())

    def overwritten(self) -> int:
        """How many rows, which may be in any order, give another value to a metric of an earlier row's step."""
        self.steps, self.kept = np.frombuffer(self._logged, dtype=np.int64), np.ones(len(self), dtype=bool)
        self.attempts, self.superseded = np.ones(len(self), dtype=np.int32), np.zeros(len(self), dtype=bool)
        differs = self._again(self.steps)
        self.used = int(self.kept.sum())
        return int(differs.sum())

    def twice(self) -> Collection[int]:
        """The steps of more than one row."""
        steps, counts = np.unique(self.steps, return_counts=True)
        return set(steps[counts > 1].tolist())

    def write(self, folder: Path) -> None:
        """Write the metrics.jsonl and histograms.jsonl of a log that is resolved into a new folder, and forget them.

        BadImport: two metrics would have one name there.
        """
        if twice := [name for name, count in Counter(map(written, self.metrics)).items() if count > 1]:
            names = " and ".join(sorted(name for name in self.metrics if written(name) == twice[0]))
            rule, fix = f"{names} would both be written under this name", "rename or remove one of them"
            raise BadImport(Objection(twice[0], KEY_ALONE, rule, fix, str(self.place)))
        folder.mkdir()
        self.finished: float | None = None
        counted: dict[str, int] = {}
        with open(metrics_path(folder), "w", encoding="utf-8") as file:
            for row in self.rows():
                file.write(json.dumps(row) + "\n")
                self.finished = row["time"]
                counted |= {word: int(row[key]) for key, word in _COUNTED.items() if key in row}
        if self.histograms:
            with open(histograms_path(folder), "w", encoding="utf-8") as file:
                for at, histogram in self.histograms:
                    place = {"step": int(self.steps[at]), "attempt": int(self.attempts[at])}
                    file.write(json.dumps({**place, **histogram}) + "\n")
        self.last_attempt = int(self.attempts.max(initial=1))
        self.last_step = int(self.steps.max(initial=0, where=self.attempts == self.last_attempt))
        self.summary = {"steps": self.last_step, **counted}
        self.cells = {written(name): len(self.metrics[name]) for name in self.metrics if name not in self.left_out}
        self.read, self.recorded = len(self) + self.elsewhere, {*map(written, self.recorded)}
        self.left_out = {written(name): cell for name, cell in self.left_out.items()}
        self.metrics, self.histograms, self._times, self._logged = {}, [], Numbers(), array("q")
        del self.steps, self.attempts, self.kept, self.superseded

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows that are kept, as of metrics.jsonl; those of one step, one after the other, are one. The reader
        drops those that a later attempt supersedes."""
        columns = [("time", iter(self._times))]
        columns += [(written(name), iter(of)) for name, of in self.metrics.items() if name not in self.left_out]
        following, whole = [next(cells, (0.0, -1)) for _, cells in columns], dict[str, Any]()
        for row, (step, attempt, kept) in enumerate(zip(self.steps, self.attempts, self.kept, strict=True)):
            line: dict[str, Any] = {"step": int(step), "attempt": int(attempt), "time": None}
            for index, (name, cells) in enumerate(columns):
                if following[index][1] == row:
                    line[name], following[index] = following[index][0], next(cells, (0.0, -1))
            if not kept:
                continue
            if whole and (whole["step"], whole["attempt"]) != (step, attempt):
                yield whole
                whole = {}
            whole |= line
        if whole:
            yield whole

    def _count_by(self, step: str, parts: NDArray[np.int64]) -> None:
        """Take the steps from a metric. A row without it belongs to the last step of its part."""
        values, rows = self.metrics[step].columns()
        if (odd := ~((values >= 0) & (values < 2**53) & (values == np.floor(values)))).any():
            fix = "name another metric with --step, or omit --step to use the steps of the log"
            raise BadImport(Objection(step, values[odd][0], "must be a whole number, 0 or more", fix, str(self.place)))
        last = np.searchsorted(rows, np.arange(len(self)), side="right") - 1
        self.kept = (last >= 0) & (parts[rows[last]] == parts)
        self.unused[f"before the first row with {step}"] += int((~self.kept).sum())
        # a row without a step is not written; the step after it makes no new attempt of it
        self.steps = values[np.where(self.kept, last, np.minimum(last + 1, len(rows) - 1))].astype(np.int64)

    def _again(self, group: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows give another value to a metric that is asked for and that an earlier row of their group has. Those
        that only repeat earlier values are not written."""
        differs, repeated, cells = np.zeros(len(self), dtype=bool), *np.zeros((2, len(self)), dtype=np.int32)
        if np.unique(group).size < len(self):
            for metric in (self.metrics[name] for name in self.metrics if is_asked(name)):
                numbers, places = metric.columns()
                rows = places[self.kept[places]]
                rows = rows[np.argsort(group[rows], kind="stable")]
                values = numbers[np.searchsorted(places, rows)]
                again = np.flatnonzero(group[rows[1:]] == group[rows[:-1]])
                earlier, later = values[again], values[again + 1]
                same = (earlier == later) | (np.isnan(earlier) & np.isnan(later))
                differs[rows[again[~same] + 1]] = True
                repeated[rows[again[same] + 1]] += 1
                cells[rows] += 1
        repeats = (repeated == cells) & (cells > 0)
        self.unused["repeated"] += int(repeats.sum())
        self.kept &= ~repeats
        return differs

    def _is_often(self, count: int) -> bool:
        return count >= max(_FALLS, len(self) / _FALLS)

    def _check(
        self, begins: NDArray[np.bool_], differs: NDArray[np.bool_], step: str | None, apart: Callable[..., str]
    ) -> None:
        """Refuse attempts that may belong to different runs, and what goes back too often to be resumed."""
        first, last = np.minimum.accumulate(self.steps), np.maximum.accumulate(self.steps)
        starts = [*np.flatnonzero(begins).tolist(), len(self)]
        counters, surely = self._counters(begins, step)
        fix = counters if surely else apart(self.twice())
        often = self._is_often(len(starts) - 1 - len(self._begins))  # without the attempts that the format knows
        for row, end in pairwise(starts):
            anew = self.steps[row] <= first[row - 1]
            short = differs[row] and end < len(self) and np.unique(self.steps[row:end]).size <= _SHORT
            if self.steps[row] <= last[row - 1] and (fix or anew or short or often):
                again = self.steps[row] in self.steps[:row]
                rule = f"this step {'appears again' if again else 'comes'} after step {self.steps[row - 1]}"
                rule += ", with other values" if again else ""
                rule += ", which would replace all earlier rows" if anew else ""
                rule += f", and so for {len(starts) - 2} more rows" if often else ""
                at = f"{self.by if often else 'step'} {self.steps[row]}"
                fix = fix or counters or (_NAME if often else _REMOVE)
                raise BadImport(Objection(at, KEY_ALONE, rule, fix, str(self.place)))

    def _counters(self, begins: NDArray[np.bool_], step: str | None) -> tuple[str, bool]:
        """The metrics that may count the steps instead: whole numbers that do not fall within an attempt. And whether
        one that is called a counter rises in each row: then it alone is named."""
        names: list[tuple[bool, bool, str]] = []
        for name in self.metrics.keys() - {step}:
            values, rows = self.metrics[name].columns()
            new = np.diff(self.attempts[rows]) > 0
            rises, whole = np.diff(values), (values == np.floor(values)).all()
            if whole and new.sum() == begins.sum() and (rises[~new] >= 0).all() and (values[1:][new] > values[0]).all():
                other = not _COUNTER.search(name)
                names.append((other or not rises.size or not (rises > 0).all(), other, name))
        surely = bool(names) and not min(names)[0]
        options = " or ".join(f"--step {name}" for least, _, name in sorted(names)[:_LISTED] if not (surely and least))
        return f"add {options}, which continues to count" if options else "", surely


def called(asked: str | None, names: Iterable[str]) -> str | None:
    """The one of these names that is asked for, as it was logged or as it is written; None if there is no such name."""
    if asked is None or asked in (known := list(names)):
        return asked
    return next((name for name in known if written(name) == written(asked)), None)


def written(metric: str) -> str:
    """The name of a metric in metrics.jsonl."""
    return f"log/{metric}" if metric in _OWN_KEYS else APART.sub("_", metric)
