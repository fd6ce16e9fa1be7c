"""JSON with a line for each step: verl's logger `file`, prime-rl's file monitor, tinker-cookbook, exports of W&B.

Such a file does not contain the configuration of its run, or how the run ended. The configuration is taken from a file
beside it. A line has the metrics beside the step, or, as verl writes them, in `data`.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from analysis.sources.formats.csv_files import STEPS
from analysis.sources.formats.event_files import Logged, as_log
from analysis.sources.log import BadImport, Log, called
from analysis.sources.notation import number, whole
from analysis.sources.source import (
    LoggedRun,
    as_one,
    below,
    configuration_in,
    leaves,
    names,
    opened,
    pass_over,
    source,
    without_ending,
)
from analysis.spec.validation import KEY_ALONE, Diagnostics, some
from analysis.stats.numbers import parsed

_VERL = {"step", "data"}
_UNIX = 1e9  # seconds: a smaller `time` is a duration
_RECORD = re.compile(rb'(?<![:,\[])(?<![:,\[] )\{"')  # where an object begins that is not the value of a key
_LISTED = 12
_BEGINNING = 20  # lines


class Line(NamedTuple):
    """A line of a log. key: of its step; values: by metric, those of nested objects with dots; time: in unix seconds,
    or None."""

    number: int
    key: str
    step: int
    values: dict[str, Any]
    time: float | None


@source
class JsonFiles:
    """A run is a file. A last line without an end, which a crash leaves, is not used."""

    kind, files, beats = "JSONL", (".jsonl", ".jsonl.gz"), ("verl's console", "CSV", "Parquet")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """See Source.found. A .jsonl file below a folder that begins with lines of another program is left out; so is
        one without a whole line that stands among such files."""
        if place.is_file():
            return names(place, below(place), ending=True)
        ours = {path: _problem(path, step) for path in below(place, "*.jsonl", "*.jsonl.gz")}
        others = {path.parent for path in ours if ours[path]} - {path.parent for path in ours if ours[path] == ""}
        for path, problem in ours.items():
            if problem:
                pass_over(path, problem)
        logs = [path for path, problem in ours.items() if not problem and (problem == "" or path.parent not in others)]
        return names(place, logs, ending=True)

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        problems = Diagnostics()
        together = Counter(path.parent for path in places)
        for path, name in places.items():
            log = _log(path, step, problems)
            if problems:
                continue
            beside = without_ending(path)
            # a folder's configuration says nothing where the folder holds the files of several runs
            config = configuration_in([beside, path.parent] if together[path.parent] == 1 else [beside], keys)
            yield LoggedRun(self.kind, name, config, log)
        as_one(problems).raise_any(BadImport)


def lines(path: Path, step: str | None, unused: Counter[str], problems: Diagnostics) -> Iterator[Line]:
    """The lines of a log. step: the key of the steps, if no known one is there; unused, problems: to which what is not
    used, and what cannot be read, are added."""
    key, without = None, dict[str, Any]()
    with opened(path) as file:
        for place, text in enumerate(file, start=1):
            where = f"line {place}"
            if not (body := _body(text)):
                unused["NUL bytes alone"] += b"\0" in text
                continue
            try:
                torn, line = _whole(body)
                if torn:
                    unused[f"line {place} begins with half of another"] += 1
            except (ValueError, RecursionError) as error:
                if not text.endswith(b"\n"):  # a crash cut it off: each line is written with its end at once
                    unused["incomplete last line"] += 1
                elif _is_torn(body):  # a run that was resumed ended the line
                    unused[f"line {place} is incomplete"] += 1
                else:
                    fix = "remove this line, or move the file away"
                    problems.add(where, KEY_ALONE, f"not JSON ({error})", fix, path)
                continue
            if not isinstance(line, dict) or (line.keys() == _VERL and not isinstance(line["data"], dict)):
                fix = "give the files of metrics alone as SOURCE; write each object of a list on a line of its own"
                problems.add(where, KEY_ALONE, 'must be {"step": NUMBER, METRIC: NUMBER, ...}', fix, path)
                continue
            key = key or _key(line, step)
            if key is None or key not in line:
                unused["without a step"] += 1
                without = without or line
                continue
            at = whole(line[key])
            if at is None or at < 0:
                rule, fix = "must be a whole number, 0 or more", "remove this line, or name another key by --step"
                problems.add(f"{where}: {key}", line[key], rule, fix, path)
                continue
            yield Line(place, key, at, *_values(line, key))
    if key is None and without:
        rule = f"no key is known to count steps; the keys are {some(list(without), _LISTED)}"
        problems.add(str(path), KEY_ALONE, rule, "give --step KEY")


def _whole(body: bytes) -> tuple[bool, Any]:
    """A line as JSON, and whether it follows, without an end, a half that a crash left. Raises ValueError or
    RecursionError."""
    try:
        return False, parsed(body)
    except ValueError:
        for begin in _RECORD.finditer(body, 1) if _is_torn(body) else ():
            with suppress(ValueError):
                return True, parsed(body[begin.start() :])
        raise


def _is_torn(body: bytes) -> bool:
    return body.count(b"{") > body.count(b"}")


def _body(text: bytes) -> bytes:
    return text.strip(b"\0 \t\r\n").removeprefix(codecs.BOM_UTF8)


def _key(line: Mapping[str, Any], step: str | None) -> str | None:
    return next((key for key in STEPS if line.get(key) is not None), called(step, line))


def _values(line: dict[str, Any], key: str) -> tuple[dict[str, Any], float | None]:
    """The metrics of a line, and its time."""
    if line.keys() == _VERL:
        # orjson, with which verl writes, has no word for what is not a number, or infinite, but null
        return {name: math.nan if value is None else value for name, value in line["data"].items()}, None
    values = {name: value for name, value in leaves(line).items() if name != key and value is not None}
    time = values.get("_timestamp", values.get("time"))
    if not isinstance(time, (int, float)) or time < _UNIX:
        return values, None
    values.pop("time", None)
    return values, time


def _problem(path: Path, step: str | None) -> str | None:
    """Why a file is no log; "" if one of its first lines has a step and no more texts and lists than numbers, unlike
    those of rollouts; None for a file without a whole line, of a run that ended before its first step."""
    problem = "no line is a JSON object" if path.stat().st_size else None
    with opened(path) as file:
        for place, text in enumerate(itertools.islice(file, _BEGINNING)):
            try:
                line = json.loads(_body(text))
            except (ValueError, RecursionError):
                if place == 0 and not text.endswith(b"\n") and _body(text)[:1] in (b"", b"{"):
                    return None
                continue
            if not isinstance(line, dict):
                continue
            if (key := _key(line, step)) is None:
                problem = f"no key is known to count steps; the keys are {some(list(line), _LISTED)}"
                continue
            values = [number(value) if isinstance(value, str) else value for value in _values(line, key)[0].values()]
            numbers = sum(isinstance(value, (int, float)) for value in values)
            if line.keys() == _VERL or (len(line) > 1 and 2 * numbers >= len(values)):
                return ""
            problem = "its lines have more texts and lists than numbers"
    return problem


def _log(path: Path, step: str | None, problems: Diagnostics) -> Log:
    """The rows that count; in the order of their steps where several processes wrote the file, as those of prime-rl,
    and resumed metric by metric if such a file has several attempts."""
    for in_order in (True, False):
        log, now, of_file = Log(path), (0, 0), Diagnostics()
        rows: Iterable[tuple[int, Line]] = _attempts(lines(path, step, log.unused, of_file))
        if not in_order:
            rows = list(rows)
            if rows[-1][0] > 0:
                log = _by_metric(log, [line for _, line in rows], step)
                break
            rows.sort(key=lambda row: row[1].step)
        for attempt, line in rows:
            if (attempt, line.step) < now:
                break
            now, log.by = (attempt, line.step), line.key
            log.add(line.step, line.values, f"line {line.number}", line.time)
        else:
            if not of_file:
                log.resolve(step)
            break
    problems += of_file
    return log


def _by_metric(log: Log, rows: Sequence[Line], step: str | None) -> Log:
    logged, before = Logged(log.unused), 0
    for line in rows:
        logged.part, before = logged.part + (line.step < before), line.step
        for metric, value in line.values.items():
            logged.add(metric, line.step, value, line.time)
    resolved = as_log(log.place, logged, None if step == rows[0].key else step)
    resolved.by = rows[0].key if resolved.by == "step" else resolved.by
    return resolved


def _attempts(rows: Iterable[Line]) -> Iterator[tuple[int, Line]]:
    """Each line with its attempt, which begins where a metric goes back: other metrics may be of another process."""
    attempt, last, highest = 0, dict[str, int](), 0
    for line in rows:
        if line.step < highest and any(last.get(name, 0) > line.step for name in line.values):
            attempt, last, highest = attempt + 1, {}, 0
        last.update(dict.fromkeys(line.values, line.step))
        highest = max(highest, line.step)
        yield attempt, line
