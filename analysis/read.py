"""Tolerant reading of an experiment: its plan.json, and the folders of its runs.

A sweep is read while it is written to, after power cuts and after resumes. So nothing here fails on a bad line: it is
left out, counted, and named with its file and line number, and a run that cannot be read at all is a gap with a reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from launcher import run as folders

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Cell = tuple[tuple[str, Any], ...]
_NOT_METRICS = frozenset({"step", "attempt", "time"})
_MOST_NAMED = 20  # bad lines named a file; the count is of all
_FORMAT = 1


class BadPlan(ValueError):
    """A folder that holds no plan to report on; the message names the file and the fix."""


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
    are counted in not_finite[name], as are infinities, which stay in the values.
    """

    steps: Array
    values: Mapping[str, Array]
    not_finite: Mapping[str, int] = field(default_factory=dict)
    bad: tuple[BadLine, ...] = ()
    bad_count: int = 0
    superseded: int = 0

    def frame(self) -> pd.DataFrame:
        """As a pandas frame: one row a step, one column a metric."""
        import pandas as pd

        return pd.DataFrame(dict(self.values), index=pd.Index(self.steps.astype(np.int64), name="step"))


EMPTY = Curves(np.empty(0), {})


@dataclass(frozen=True)
class Run:
    """One planned run under one group, with what its folder holds. `problem`: why it has no full result, or None."""

    id: str
    group: str
    seed: int
    cell: Cell
    folder: str
    state: str
    attempt: int
    curves: Curves
    summary: Mapping[str, Any]
    provenance: Mapping[str, Any]
    problem: str | None

    @property
    def done(self) -> bool:
        """Whether the run ended as planned."""
        return self.state == folders.DONE and self.problem is None


@dataclass(frozen=True)
class Sweep:
    """An experiment: its plan as frozen, and its runs in the plan's order."""

    folder: Path
    plan: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def baseline(self) -> str | None:
        """The group that the others are compared with."""
        name = self.plan.get("baseline")
        return None if name is None else str(name)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, the baseline first, then in the plan's order."""
        names = [str(name) for name in self.plan["groups"]]
        return tuple(sorted(names, key=lambda name: name != self.baseline))

    def label(self, group: str) -> str:
        """What the reader sees for a group."""
        declared = self.plan["groups"][group]
        return str((declared.get("label") if isinstance(declared, Mapping) else None) or group)


def read_sweep(folder: Path) -> Sweep:
    """Read FOLDER/plan.json and the folders of its runs.

    Raises BadPlan when there is no plan, or not one of this format.
    """
    plan = _read_plan(folder / "plan.json")
    multirun = folder.parent
    seen: dict[str, Run] = {}
    runs = []
    for entry in plan["runs"]:
        run_id = str(entry["id"])
        cell: Cell = tuple(sorted((str(key), _level(level)) for key, level in (entry.get("factors") or {}).items()))
        if run_id not in seen:
            seen[run_id] = _read_run(multirun, run_id)
        found = seen[run_id]  # one run may stand in several groups
        runs.append(
            Run(
                id=run_id,
                group=str(entry["group"]),
                seed=int(entry["seed"]),
                cell=cell,
                folder=found.folder,
                state=found.state,
                attempt=found.attempt,
                curves=found.curves,
                summary=found.summary,
                provenance=found.provenance,
                problem=found.problem,
            )
        )
    return Sweep(folder, plan, tuple(runs))


def _level(level: Any) -> Any:
    return json.dumps(level, sort_keys=True) if isinstance(level, (list, dict)) else level


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadPlan(
            f"{path}: there is no plan.json; give the folder of an experiment, such as multirun/quickstart, "
            "which `python launch.py -m experiment=NAME` makes"
        ) from None
    except (OSError, ValueError) as error:
        raise BadPlan(
            f"{path}: cannot be read ({error}); `python launch.py -m experiment=NAME` writes it anew"
        ) from error
    if not isinstance(plan, dict) or plan.get("format") != _FORMAT:
        found = plan.get("format") if isinstance(plan, dict) else type(plan).__name__
        raise BadPlan(f"{path}: format = {found!r}; this version reads format {_FORMAT}")
    for key, kind in (("groups", dict), ("runs", list)):
        if not isinstance(plan.get(key), kind):
            raise BadPlan(f"{path}: {key} = {plan.get(key)!r}; a {'mapping' if kind is dict else 'list'} is needed")
    for place, entry in enumerate(plan["runs"]):
        if not isinstance(entry, dict) or not {"id", "group", "seed"} <= set(entry):
            raise BadPlan(f"{path}: runs[{place}] = {entry!r}; id, group and seed are needed")
        if entry["group"] not in plan["groups"]:
            raise BadPlan(
                f"{path}: runs[{place}].group = {entry['group']!r}; the groups are {', '.join(plan['groups'])}"
            )
    if plan.get("baseline") is not None and plan["baseline"] not in plan["groups"]:
        raise BadPlan(f"{path}: baseline = {plan['baseline']!r}; the groups are {', '.join(plan['groups'])}")
    return plan


def _read_run(multirun: Path, run_id: str) -> Run:
    folder = folders.run_folder(multirun, run_id)
    shown = f"runs/{run_id}"
    curves, summary, provenance = EMPTY, {}, {}
    state, attempt = "missing", 0
    problem: str | None = None
    try:
        found = folders.read_state(folder)
        state, attempt = found.state, found.attempt
    except FileNotFoundError:
        problem = "not started: there is no run folder" if not folder.exists() else "state.json is missing"
    except (OSError, ValueError, TypeError) as error:
        problem = f"state.json cannot be read: {error}"
    else:
        if state != folders.DONE:
            problem = _why(found)
    path = folders.metrics_path(folder)
    try:
        curves = read_curves(path, f"{shown}/{path.name}")
    except FileNotFoundError:
        if state == folders.DONE:
            problem = f"done, but {path.name} is missing"
    if problem is None and curves.steps.size == 0:
        problem = f"done, but {path.name} holds no step"
    if problem is not None and curves.steps.size:
        problem += f" (last step {int(curves.steps[-1])})"
    try:
        summary = folders.read_summary(folder) or {}
        provenance = folders.read_provenance(folder) or {}
    except (OSError, ValueError) as error:
        problem = problem or f"summary or provenance cannot be read: {error}"
    return Run(run_id, "", 0, (), shown, state, attempt, curves, summary, provenance, problem)


def _why(state: folders.State) -> str:
    parts = [state.state]
    if state.cause and state.cause != state.state:
        parts.append(str(state.cause))
    elif state.error:
        kind, message = state.error.get("type"), str(state.error.get("message") or "").strip()
        first = message.splitlines()[0] if message else ""
        parts.append(f"{kind}: {first}" if kind and first else str(kind or first))
    return ": ".join(part for part in parts if part)


def read_curves(path: Path, shown: str | None = None) -> Curves:
    """Read a metrics.jsonl. Raises FileNotFoundError; anything else that is wrong with it is counted and left out.

    Several lines of one step and attempt are merged. When an attempt begins at step k, what older attempts had written
    from k on is superseded.
    """
    name = shown or str(path)
    by_attempt: dict[int, dict[int, dict[str, Any]]] = {}
    bad: list[BadLine] = []
    bad_count = 0
    data = path.read_bytes()
    whole = data.endswith(b"\n")
    lines = data.split(b"\n")
    if whole:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse(line)
        why = row if isinstance(row, str) else _bad_row(row)
        if why is None and isinstance(row, dict):
            attempt = int(row.get("attempt") or 1)
            by_attempt.setdefault(attempt, {}).setdefault(int(row["step"]), {}).update(row)
            continue
        bad_count += 1
        torn = number == len(lines) and not whole
        if len(bad) < _MOST_NAMED:
            bad.append(BadLine(name, number, "torn: the last line is incomplete" if torn else str(why), torn))

    rows: dict[int, dict[str, Any]] = {}
    superseded = 0
    for attempt in sorted(by_attempt):
        begin = min(by_attempt[attempt])
        old = [step for step in rows if step >= begin]
        superseded += len(old)
        for step in old:
            del rows[step]
        rows.update(by_attempt[attempt])
    return _columns(rows, tuple(bad), bad_count, superseded)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line.decode("utf-8"))  # NaN, Infinity and -Infinity, which JSON does not have
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"


def _bad_row(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"an object is needed, not {type(row).__name__}"
    for key, lowest in (("step", 0), ("attempt", 1)):
        value = row.get(key, 1 if key == "attempt" else None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{key} = {value!r}: a whole number is needed"
        if not math.isfinite(value) or value != int(value) or value < lowest:
            return f"{key} = {value!r}: a whole number from {lowest} is needed"
    return None


def _columns(rows: Mapping[int, dict[str, Any]], bad: tuple[BadLine, ...], bad_count: int, superseded: int) -> Curves:
    steps = sorted(rows)
    values: dict[str, Array] = {}
    not_finite: dict[str, int] = {}
    for place, step in enumerate(steps):
        for key, value in rows[step].items():
            if key in _NOT_METRICS or not isinstance(value, (int, float)):
                continue
            if key not in values:
                values[key] = np.full(len(steps), np.nan)
            try:
                number = float(value)
            except OverflowError:  # an int of more than 308 digits
                number = math.inf
            if not math.isfinite(number):
                not_finite[key] = not_finite.get(key, 0) + 1
            values[key][place] = number
    ordered = {key: values[key] for key in sorted(values)}
    return Curves(np.array(steps, dtype=np.float64), ordered, not_finite, bad, bad_count, superseded)
