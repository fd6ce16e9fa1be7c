"""Tolerant reading of an experiment: its plan.json, and the folders of its runs.

A sweep may be read while it is written to, after a power cut or after a resume. A run that cannot be read is therefore
reported as missing, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from analysis.data import metric_log
from analysis.data.metric_log import EMPTY, Curves
from analysis.spec.cell import Cell as Cell
from analysis.spec.metric_catalog import drawn_from
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import BadPlan as BadPlan
from analysis.spec.validation import Objection
from analysis.stats.numbers import Array
from launcher.errors import missing_extra
from launcher.run import lifecycle, whole
from launcher.run.folder import (
    PLAN_FORMAT,
    cache_folder,
    metrics_path,
    read_config,
    read_provenance,
    read_summary,
    run_folder,
)
from launcher.run.lifecycle import RunState, State, read_state

if TYPE_CHECKING:
    import pandas as pd

_HELD = 16 << 20  # bytes of columns in memory; those of further runs are in a file, of which most are read once


@dataclass(frozen=True)
class Run:
    """One planned run of one group, with the content of its folder.

    problem: why the run has no full result, or None. finished: when it ended, in unix seconds, or None. code: ids of
    the code records of its attempts (launcher.run.code). device_seconds: the device time of its ended attempts, None if
    not recorded; unfinished_seconds: the part spent on attempts that did not finish the run.
    """

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
    finished: float | None = None
    code: tuple[str, ...] = ()
    device_seconds: float | None = None
    unfinished_seconds: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the run ended as planned."""
        return self.state == RunState.DONE and self.problem is None


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

    def against(self, label: str) -> Sweep:
        """The sweep with another baseline, which it says. Raises BadPlan if no group has this name or label."""
        named = {key: group for group, shown in self.labels.items() for key in (shown, group)}
        if label not in named:
            rule = f"no group has this name; the groups are {', '.join(self.labels.values())}"
            raise BadPlan(str(Objection("--baseline", label, rule, "name one of them")))
        planned = "has no baseline" if self.baseline is None else f"has {self.label(self.baseline)}"
        if named[label] == self.baseline:
            return self
        note = f"The baseline is {self.label(named[label])}, as --baseline says; the plan {planned}."
        notes = [*self.plan.get("notes", ()), note]
        return replace(self, plan={**self.plan, "baseline": named[label], "notes": notes})

    def about(self, metrics: Sequence[str], direction: str | None = None) -> Sweep:
        """The sweep with another question, which it says: these metrics, the primary one first."""
        section = dict(self.plan.get("analysis") or {})
        primary = dict(section.get("primary") or {})
        declared = primary.get("metric", "none")
        if metrics:
            section["metrics"] = list(metrics)
            primary |= {"metric": metrics[0], "direction": None}
        section["primary"] = primary | ({"direction": direction} if direction else {})
        note = f"The metric is {metrics[0]}, as --metric says; the plan declares {declared}." if metrics else None
        notes = [*self.plan.get("notes", ()), *filter(None, [note])]
        return replace(self, plan={**self.plan, "analysis": section, "notes": notes})

    @property
    def place(self) -> str:
        """The folder as commands in the report name it. It follows from the experiment's own command, so that a copy
        of the folder has the same report."""
        try:
            words = shlex.split(str(self.plan.get("command", "")))
        except ValueError:  # no closing quotation mark
            words = []
        into = [after for word, after in pairwise(words) if word == "--into"]
        into += [word.removeprefix("--into=") for word in words if word.startswith("--into=")]
        if into:  # of an import
            return shlex.quote(into[-1])
        parents = [word.removeprefix("multirun=").strip("'\"") for word in words if word.startswith("multirun=")]
        return shlex.quote(f"{(parents or ['multirun'])[-1]}/{self.folder.name}")

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, the baseline first, then in the plan's order."""
        return tuple(sorted(map(str, self.plan["groups"]), key=lambda name: name != self.baseline))

    def sources(self, group: str) -> frozenset[str]:
        """From which policies the runs of a group draw their responses; empty if that is not recorded."""
        varied = any("method" in str(key) or "temperature" in str(key) for key in self.plan.get("factors") or {})
        runs = {run.cell if varied else (): run.id for run in self.runs_of(group)}.values()
        return frozenset(filter(None, (_source(run_folder(self.folder.parent, run_id)) for run_id in runs)))

    def draw_apart(self, group: str, other: str) -> bool:
        """Whether two groups are known to draw their responses from different policies."""
        sources = self.sources(group), self.sources(other)
        return all(sources) and sources[0] != sources[1]

    def asked(self, section: Mapping[str, Any] | None = None) -> Settings:
        """The checked section `analysis` of the plan, or `section` if given. Raises BadPlan if it is invalid, or names
        levels or factors that no run has."""
        asked = self.plan.get("analysis") if section is None else section
        cells = [run.cell for run in self.runs]
        return settings(asked, str(self.folder / "plan.json"), self.plan["groups"], self.baseline, cells)

    def runs_of(self, group: str) -> list[Run]:
        """The runs of a group, in the plan's order."""
        return [run for run in self.runs if run.group == group]

    @cached_property
    def labels(self) -> dict[str, str]:
        return {group: self.label(group) for group in self.groups}

    def label(self, group: str) -> str:
        """The label of a group, without control characters, such as those that reverse the direction of text."""
        declared = self.plan["groups"][group]
        text = str((declared.get("label") if isinstance(declared, Mapping) else None) or group)
        shown = "".join(char for char in text if char.isprintable() or char.isspace())
        return " ".join(shown.split()) or group


@lru_cache(maxsize=4096)
def _source(folder: Path) -> str:
    try:
        return drawn_from(read_config(folder))
    except (OSError, ValueError):
        return ""


def read_sweep(folder: Path) -> Sweep:
    """Read FOLDER/plan.json and the folders of its runs.

    Raises BadPlan when there is no plan, or not one of this format.
    """
    return sweep_of(folder.resolve(), _read_plan(folder / "plan.json"))  # the runs are beside the folder itself


def frame(folder: str | PathLike[str]) -> pd.DataFrame:
    """A row for each run and logged step of an experiment, unfinished runs included.

    folder: of the experiment, such as multirun/quickstart. The columns are `run` (its id), `group`, `label`, as
    the report has it, `seed`, `state`, one for each factor, `step`, and one for each metric, with NaN where a run did
    not log it. A run of several groups has its rows in each. Raises BadPlan (a ValueError) without a plan to read.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing_extra(error) or error.msg, name=error.name) from error
    tables, sweep = [], read_sweep(Path(folder))
    for run in sweep.runs:
        about = {"run": run.id, "group": run.group, "label": sweep.label(run.group), "seed": run.seed}
        about |= {"state": str(run.state), **dict(run.cell)}
        tables.append(pd.DataFrame({**about, "step": run.curves.steps, **run.curves.values}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def sweep_of(folder: Path, plan: Mapping[str, Any], known_runs: Mapping[str, Run] | None = None) -> Sweep:
    """The sweep of a plan in FOLDER. known_runs: runs that have been read, by id."""
    multirun = folder.parent
    seen = dict(known_runs or {})
    known: dict[bytes, Array] = {}
    runs, size, file = [], 0, None
    for entry in plan["runs"]:
        run_id = str(entry["id"])
        cell: Cell = tuple(sorted((str(key), level_of(level)) for key, level in (entry.get("factors") or {}).items()))
        if run_id not in seen:
            run = _read_run(multirun, run_id)
            # Runs with equal steps share one array, so that `is` shows that they are equal.
            steps = known.setdefault(run.curves.steps.tobytes(), run.curves.steps)
            curves = replace(run.curves, steps=steps)
            size += steps.nbytes * len(curves.values)
            if size > _HELD:
                file = file or cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - as long as the sweep
                curves = metric_log.stored(curves, file)
            seen[run_id] = replace(run, curves=curves)
        # One run may belong to several groups.
        runs.append(replace(seen[run_id], group=str(entry["group"]), seed=entry["seed"], cell=cell))
    return Sweep(folder, plan, tuple(runs))


def level_of(level: Any) -> Any:
    """A level as a part of a cell, which must be hashable: lists and mappings as JSON."""
    return json.dumps(level, sort_keys=True) if isinstance(level, (list, dict)) else level


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadPlan(
            f"{path}: there is no plan.json; give the folder of an experiment, such as multirun/quickstart, "
            "which the launch of an experiment creates"
        ) from None
    except (OSError, ValueError) as error:
        fix = "the command of the experiment, repeated, writes it again"
        raise BadPlan(f"{path}: cannot be read ({error}); {fix}") from error
    if not isinstance(plan, dict) or plan.get("format") != PLAN_FORMAT:
        version = plan.get("format") if isinstance(plan, dict) else type(plan).__name__
        raise BadPlan(f"{path}: format = {version!r}; this version of rlsweep reads format {PLAN_FORMAT}")
    for key, kind in (("groups", dict), ("runs", list)):
        if not isinstance(plan.get(key), kind):
            raise BadPlan(f"{path}: {key} = {plan.get(key)!r}; must be a {'mapping' if kind is dict else 'list'}")
    a_group = f"must be one of {', '.join(plan['groups'])}"
    for index, entry in enumerate(plan["runs"]):
        if not isinstance(entry, dict) or not {"id", "group", "seed"} <= set(entry):
            raise BadPlan(f"{path}: runs[{index}] = {entry!r}; must have the keys id, group and seed")
        if type(entry["seed"]) is not int or not -(2**63) <= entry["seed"] < 2**64:
            rule = "must be an integer of 64 bits. Fix: repeat the launch with other seeds; runs that are done are kept"
            raise BadPlan(f"{path}: runs[{index}].seed = {entry['seed']!r}; {rule}")
        if entry["group"] not in plan["groups"]:
            raise BadPlan(f"{path}: runs[{index}].group = {entry['group']!r}; {a_group}")
    if plan.get("baseline") is not None and plan["baseline"] not in plan["groups"]:
        raise BadPlan(f"{path}: baseline = {plan['baseline']!r}; {a_group}")
    return plan


def _read_run(multirun: Path, run_id: str) -> Run:
    folder = run_folder(multirun, run_id)
    shown = f"runs/{run_id}"
    curves, summary, provenance = EMPTY, {}, {}
    record: State | None = None
    problem: str | None = None
    try:
        record = read_state(folder)
    except FileNotFoundError:
        problem = "not started: there is no run folder" if not folder.exists() else "state.json is missing"
    except (OSError, ValueError, TypeError) as error:
        problem = f"state.json cannot be read: {error}"
    else:
        problem = whole.problem(folder, record) if record.state == RunState.DONE else _why(record)
    path = metrics_path(folder)
    with contextlib.suppress(FileNotFoundError):
        curves = metric_log.curves(path, f"{shown}/{path.name}", cache_folder(multirun) / "curves" / run_id)
    if problem is None and curves.steps.size == 0:
        problem = "done, but it logged no metric"
    if problem is not None and curves.steps.size and not (record and record.state == RunState.DONE):
        problem += f" (last step {int(curves.steps[-1])})"
    try:
        summary = read_summary(folder)
        provenance = read_provenance(folder)
    except (OSError, ValueError) as error:
        problem = problem or f"summary or provenance cannot be read: {error}"
    steps = summary.get("steps")
    if not problem and record and record.manifest is None and record.pid is not None and isinstance(steps, int):
        whole_log = curves.steps.size >= steps and not curves.repeated  # an older version did not check
        problem = None if whole_log else f"done, but {path.name} does not have each of its {steps} steps once"
    run = Run(run_id, "", 0, (), shown, "missing", 0, curves, summary, provenance, problem)
    if record is None:
        return run
    seconds = record.device_seconds
    return replace(
        run,
        state=record.state,
        attempt=record.attempt,
        finished=record.finished,
        code=record.code_ids(),
        device_seconds=sum(seconds.values()) if seconds else None,
        unfinished_seconds=lifecycle.unfinished_seconds(seconds, record.attempt, record.state),
    )


def _why(state: State) -> str:
    error = state.error or {}
    first = (error.get("message") or "").strip().partition("\n")[0]
    why = state.message or ": ".join(filter(None, (error.get("type"), first)))
    return f"{state.state}: {why}" if why and why != state.state else str(state.state)
