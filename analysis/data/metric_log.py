"""A run's metrics log, read tolerantly.

It may be read while it is written to, after a power cut or after a resume. A bad line is therefore not an error: it is
left out, counted, and listed with its file and line number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[np.float64]
Entry = TypeVar("Entry")
_NOT_METRICS = frozenset({"step", "attempt", "time"})
_MOST_NAMED = 20  # bad lines named a file; the count is of all


@dataclass(frozen=True)
class BadLine:
    """A line of a metrics file that was left out. `torn`: the last one, cut off while it was written."""

    file: str
    line: int
    why: str
    torn: bool


@dataclass(frozen=True)
class Curves:
    """A run's metrics on its steps.

    steps: (n,) increasing. values[name]: (n,), NaN where the step has no such metric or recorded NaN itself; the latter
    are counted in not_finite[name], as are infinities, which stay in the values. superseded: steps that a later attempt
    wrote again; repeated: lines that wrote a metric of a step and attempt again, of which the last counts.
    """

    steps: Array
    values: Mapping[str, Array]
    not_finite: Mapping[str, int] = field(default_factory=dict)
    bad: tuple[BadLine, ...] = ()
    bad_count: int = 0
    superseded: int = 0
    repeated: int = 0


EMPTY = Curves(np.empty(0), {})


def parse(data: bytes, name: str) -> Curves:
    """Read the content of a metrics.jsonl, called `name` in its bad lines. What is wrong is counted and left out.

    Several lines of one step and attempt are merged. `standing` decides which lines of several attempts count.
    """
    by_attempt: dict[int, dict[int, dict[str, Any]]] = {}
    bad: list[BadLine] = []
    bad_count = repeated = 0
    whole = data.endswith(b"\n")
    lines = data.split(b"\n")
    if whole:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row: Any = None
        try:
            row = parsed(line)
            why = _bad_row(row)
        except (ValueError, RecursionError) as error:
            why = f"not JSON: {error}"
        if why is None:
            attempt = int(row.get("attempt") or 1)
            steps, step = by_attempt.setdefault(attempt, {}), int(row["step"])
            if step in steps:
                repeated += not (steps[step].keys() & row.keys() <= _NOT_METRICS)
                steps[step].update(row)
            else:
                steps[step] = row
            continue
        bad_count += 1
        torn = number == len(lines) and not whole
        if len(bad) < _MOST_NAMED:
            bad.append(BadLine(name, number, "torn: the last line is incomplete" if torn else str(why), torn))

    rows = standing(by_attempt)
    superseded = sum(map(len, by_attempt.values())) - len(rows)
    return replace(_columns(rows), bad=tuple(bad), bad_count=bad_count, superseded=superseded, repeated=repeated)


def parsed(line: bytes) -> Any:
    """A line as JSON, also one with NaN, Infinity or half of a surrogate pair, which orjson refuses. Raises ValueError
    or RecursionError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def standing(by_attempt: Mapping[int, Mapping[int, Entry]]) -> dict[int, Entry]:
    """The entries by step. Where an attempt begins at step k, entries of older attempts from k on are superseded.

    by_attempt: attempt -> step -> entry; every attempt has an entry.
    """
    entries: dict[int, Entry] = {}
    for attempt in sorted(by_attempt):
        begin = min(by_attempt[attempt])
        entries = {step: entry for step, entry in entries.items() if step < begin}
        entries.update(by_attempt[attempt])
    return entries


def _bad_row(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"must be an object, not {type(row).__name__}"
    for key, lowest in (("step", 0), ("attempt", 1)):
        value = row.get(key, 1 if key == "attempt" else None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{key} = {value!r}: a whole number is needed"
        if not math.isfinite(value) or value != int(value) or value < lowest:
            return f"{key} = {value!r}: must be a whole number, {lowest} or more"
    return None


def _columns(rows: Mapping[int, dict[str, Any]]) -> Curves:
    steps = sorted(rows)
    in_order = [rows[step] for step in steps]
    values: dict[str, Array] = {}
    not_finite: dict[str, int] = {}
    for key in dict.fromkeys(key for row in in_order for key in row if key not in _NOT_METRICS):
        cells = [row.get(key) for row in in_order]
        # Nearly always each step has the metric, as a float; anything else goes one by one.
        if set(map(type, cells)) == {float}:
            column = np.array(cells, dtype=np.float64)
            odd = int((~np.isfinite(column)).sum())
        else:
            numbers = [_number(value) for value in cells]
            if all(number is None for number in numbers):
                continue
            column = np.array([math.nan if number is None else number for number in numbers])
            odd = sum(number is not None and not math.isfinite(number) for number in numbers)
        values[key] = column
        if odd:
            not_finite[key] = odd
    ordered = {key: values[key] for key in sorted(values)}
    return Curves(np.array(steps, dtype=np.float64), ordered, not_finite)


def _number(value: object) -> float | None:
    """A metric's value; None for anything but a number."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf
