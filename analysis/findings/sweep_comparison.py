"""Two sweeps side by side: common runs, differences of their configurations, and each group of one against the group of
the same name in the other, over common seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis.data.metric_log import Curves
from analysis.data.normalized import normalized
from analysis.data.selection import check_factors
from analysis.data.sweep import Cell, Run, Sweep, leaves
from analysis.findings.common_cells import CommonCells, Configs, LeftOut, common_cells
from analysis.findings.outcomes import Ground, Outcome, Reason, no_common_cell
from analysis.findings.study import Block, Comparison, Measure, Study, range_of, time_to, versus
from analysis.spec.settings import Settings
from launcher import files
from launcher.run.folder import read_config, run_folder

SIDES = ("A", "B")
SAME = "the same run in both"
_OWN = ("format", "id", "identity", "base", "seed")  # what is each run's own, or shown otherwise


@dataclass(frozen=True)
class Difference:
    """A setting that differs. where: names of groups, or what else it belongs to; a, b: as shown, "" where it is
    absent."""

    where: tuple[str, ...]
    key: str
    a: str
    b: str


@dataclass(frozen=True)
class SweepComparison:
    """Sweeps `a` and `b` as one study whose groups are A/NAME and B/NAME, each pair of a name compared as B - A.

    The study has the runs of common cells only, and those of groups that one sweep has. shared: ids of the runs that
    both have, which is more than an id that both have: one configuration may have been run twice, by other code.
    paired: names of the groups of both; alone[side]: of one only. common[group]: the cells of each paired group.
    """

    a: Sweep
    b: Sweep
    study: Study
    shared: tuple[str, ...]
    paired: tuple[str, ...]
    alone: Mapping[str, tuple[str, ...]]
    common: Mapping[str, CommonCells]
    differences: tuple[Difference, ...]

    def by_cell(self, group: str) -> dict[Cell, float]:
        """The mean of B - A on the primary measure at each compared cell of a group, over the seeds of its comparison
        that both have there; empty if it has one cell, or no difference."""
        comparison = self.study.primary.comparison(f"B/{group}")
        if comparison is None or not comparison.contrast.paired or len(self.common[group].cells) < 2:
            return {}
        at: dict[Cell, dict[int, dict[str, float]]] = {}
        for run in self.study.sweep.runs:
            side, _, name = run.group.partition("/")
            value = self.study.primary.values[run.id].value
            if name == group and run.seed in comparison.seeds and value is not None:
                at.setdefault(run.cell, {}).setdefault(run.seed, {})[side] = value
        both = {cell: [of for of in seeds.values() if len(of) == 2] for cell, seeds in at.items()}
        return {cell: sum(of["B"] - of["A"] for of in pairs) / len(pairs) for cell, pairs in both.items() if pairs}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The cells that are not compared, of groups that have others which are."""
        return tuple(out for cells in self.common.values() if cells.cells for out in cells.left_out)


def compare_sweeps(a: Sweep, b: Sweep, settings: Settings) -> SweepComparison:
    """Compare two sweeps by the settings of the first, cell by cell: only cells that both have. Seeds with the same run
    in both are not pairs: their difference is zero by construction."""
    a, b = normalized(settings, a, b)
    check_factors(settings.select, [run.cell for run in (*a.runs, *b.runs)], str(a.folder / "plan.json"))
    paired = tuple(group for group in a.groups if group in b.groups)
    configs = _configs(a), _configs(b)
    known = _known(a, b)
    configs[1].update({known[run_id]: config for run_id, config in configs[1].items() if run_id in known})
    b = replace(b, runs=tuple(replace(run, id=known.get(run.id, run.id)) for run in b.runs))
    of_a = {run.id: run.curves for run in a.runs}
    shared = tuple(sorted({run.id for run in b.runs if run.id in of_a and _alike(of_a[run.id], run.curves)}))
    common = {group: common_cells(group, (a, b), configs, shared) for group in paired}
    compared = (
        _compared(a, {g: own.a for g, own in common.items()}),
        _compared(b, {g: own.b for g, own in common.items()}),
    )
    joined = _join(*compared)
    against = {f"B/{group}": f"A/{group}" for group in paired}
    same = {f"B/{group}": {run.seed: SAME for run in common[group].b if run.id in shared} for group in paired}
    metrics = (*settings.metrics, *(target.metric for target in settings.time_to))
    ranges = {metric: range_of(joined, settings, metric) for metric in metrics}
    times = [time_to(joined, settings, ranges[target.metric], target) for target in settings.time_to]
    if settings.summary == "time_to":
        first = [measure for measure in times if measure.metric == settings.metric]
    else:
        first = [Measure(settings.metric, settings.summary, settings.direction)]
    others = [
        Measure(metric, summary, settings.direction_of(metric))
        for summary in ("final", "auc")
        for metric in settings.metrics
    ]
    measures = dict.fromkeys([*first, *others, *times])
    blocks = [versus(joined, settings, ranges[measure.metric], measure, against, same) for measure in measures]
    study = Study(joined, settings, tuple(_named(block, common, same) for block in blocks), ranges)
    alone = {
        side: tuple(group for group in sweep.groups if group not in paired)
        for side, sweep in zip(SIDES, (a, b), strict=True)
    }
    differences = tuple(_differences((a, b), common, configs))
    return SweepComparison(a, b, study, shared, paired, alone, common, differences)


def _known(a: Sweep, b: Sweep) -> dict[str, str]:
    """For each run of B that was imported from the same files as one of A, the id that it has in A: an import gives a
    run an id of its own in each experiment."""
    of_a = {source: run.id for run in a.runs if (source := _source(run)) is not None}
    return {run.id: of_a[source] for run in b.runs if (source := _source(run)) in of_a and source is not None}


def _source(run: Run) -> tuple[str, str] | None:
    """The tool and the key of an imported run; None for another run."""
    imported = run.provenance.get("imported")
    return (
        (str(imported["from"]), str(imported["key"])) if isinstance(imported, Mapping) and "key" in imported else None
    )


def _configs(sweep: Sweep) -> dict[str, Mapping[str, Any]]:
    """The frozen configuration of each run."""
    bases: dict[str, Any] = {}
    return {run.id: _frozen(sweep.folder.parent, run.id, bases) for run in sweep.runs}


def _compared(sweep: Sweep, kept: Mapping[str, Sequence[Run]]) -> Sweep:
    """The sweep with these runs of the groups that both have, and with all runs of its other groups."""
    others = {group: sweep.of(group) for group in sweep.groups if group not in kept}
    return replace(sweep, runs=tuple(run for runs in ({**kept, **others}).values() for run in runs))


def _alike(log: Curves, other: Curves) -> bool:
    """Whether two logs are of one run: two runs never take the same time in all their steps."""
    return (
        log.steps.size > 0
        and np.array_equal(log.steps, other.steps)
        and log.values.keys() == other.values.keys()
        and all(np.array_equal(values, other.values[key], equal_nan=True) for key, values in log.values.items())
    )


def _join(a: Sweep, b: Sweep) -> Sweep:
    """One sweep of the runs of both, with unique ids: the same id may have been run twice."""
    groups: dict[str, Any] = {}
    runs: list[Run] = []
    for side, sweep in zip(SIDES, (a, b), strict=True):
        groups |= {f"{side}/{group}": {"label": f"{sweep.label(group)} of {side}"} for group in sweep.groups}
        runs += [replace(run, id=f"{side}:{run.id}", group=f"{side}/{run.group}") for run in sweep.runs]
    budgets = [sweep.plan["steps"] for sweep in (a, b) if sweep.plan.get("steps")]
    plan = {
        "groups": groups,
        "baseline": f"A/{a.baseline}" if a.baseline else None,
        "steps": min(budgets, default=None),
    }
    return Sweep(a.folder, plan, tuple(runs))


def _named(block: Block, common: Mapping[str, CommonCells], same: Mapping[str, Mapping[int, str]]) -> Block:
    """A comparison that has no cell, or no pair but the same runs, says so."""

    def why(comparison: Comparison) -> Ground | None:
        own = common[comparison.group.partition("/")[2]]
        if not own.cells:
            return no_common_cell((comparison.baseline, comparison.group), own.every)
        return Ground(Reason.SAME_RUNS) if comparison.n == 0 and same[comparison.group] else None

    comparisons = tuple(
        replace(c, outcome=Outcome.NOT_EVALUABLE, ground=ground) if (ground := why(c)) is not None else c
        for c in block.comparisons
    )
    return replace(block, comparisons=comparisons)


def _differences(
    sweeps: tuple[Sweep, Sweep], common: Mapping[str, CommonCells], configs: tuple[Configs, Configs]
) -> Iterator[Difference]:
    """The differences between the plans, then the code, then the frozen configurations of each pair of groups: of the
    runs that are compared, of all if none are."""
    plans = [
        _flat({key: sweep.plan.get(key) for key in ("steps", "seeds", "baseline", "analysis")}) for sweep in sweeps
    ]
    yield from _unequal(("plan",), *plans)
    commits = [
        {"commit": _joined(str(run.provenance["commit"])[:12] for run in sweep.runs if run.provenance.get("commit"))}
        for sweep in sweeps
    ]
    yield from _unequal(("code",), *commits)
    by_setting: dict[tuple[str, str, str], list[str]] = {}
    for group, own in common.items():
        runs = (own.a, own.b) if own.cells else tuple(sweep.of(group) for sweep in sweeps)
        settings = [_settings(each, known) for each, known in zip(runs, configs, strict=True)]
        for difference in _unequal((group,), *settings):
            by_setting.setdefault((difference.key, difference.a, difference.b), []).append(group)
    for (key, left, right), groups in by_setting.items():
        yield Difference(tuple(groups), key, left, right)


def _unequal(where: tuple[str, ...], a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Difference]:
    for key in sorted({*a, *b}):
        if a.get(key, "") != b.get(key, ""):
            yield Difference(where, key, a.get(key, ""), b.get(key, ""))


def _settings(runs: Sequence[Run], configs: Configs) -> dict[str, str]:
    """Every key of these runs' frozen configurations, with their values."""
    values: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _flat(configs[run.id]).items():
            values.setdefault(key, []).append(value)
    return {key: _joined(each) for key, each in values.items()}


def _frozen(multirun: Path, run_id: str, bases: dict[str, Any]) -> dict[str, Any]:
    """A run's own configuration and the base that it names; empty if the run has not been started."""
    try:
        config = read_config(run_folder(multirun, run_id))
        name = str(config.get("base"))
        path = multirun / "bases" / f"{name}.yaml"
        if name not in bases:
            bases[name] = files.load_yaml(path) if path.is_file() else name
    except (OSError, ValueError, files.BadRunFolder, yaml.YAMLError):
        return {}
    return {**{key: value for key, value in config.items() if key not in _OWN}, "base": bases[name]}


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """The leaves by dotted key, in JSON."""
    return {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in leaves(config).items()}


def _joined(values: Any) -> str:
    return ", ".join(dict.fromkeys(values))
