"""The results of each method at each level of its factors, which a mean over levels hides; and lines for the beginning
of a report: on levels, on runs that collapsed, and on what a campaign decided before the experiment's runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from typing import Any

import numpy as np

from analysis.data import cells
from analysis.data.cells import Choice, Unchosen
from analysis.data.sweep import Cell, Run, Sweep, level_of
from analysis.findings.study import ENTROPY_SHARE, Block, Collapse, Study, collapse
from analysis.spec.cell import grouped, part
from analysis.spec.metric_catalog import capital, describe
from analysis.spec.validation import counted, some
from analysis.stats.numbers import format_number
from analysis.tables.table import share
from analysis.tables.wording import all_levels, factors, seeds_in_words
from launcher.run import campaign_record
from launcher.run.campaign_record import Condition, Taken

_SEVERAL = 3  # fewest levels of which one is said to make up most of a difference: of two, one always does
_MOST = 0.5  # share of the summed differences above which one level makes up most of them
_MOST_LEVELS = 6  # levels of one factor that are all listed; otherwise the best and the worst are named
_MOST_NAMED = 6  # places of collapsed runs that are named
_COLLAPSES = {
    Collapse.NEVER_REWARDED: "reward 0 at every step",
    Collapse.REWARD_GONE: "reward 0 at the end",
    Collapse.REWARDS_ALIKE: "the same reward for all responses at the end, below the first mean reward",
    Collapse.ENTROPY_GONE: f"entropy below {ENTROPY_SHARE:.0%} of its first value at the end",
}
_BY_LUCK = "The best of several cells is best partly by luck: test it with new seeds."


@dataclass(frozen=True)
class AtLevel:
    """The primary measure of a group at one level of a factor, over all levels of its other factors; or in a cell: then
    `level` is a Cell, of the factors of which the group has several levels. planned: the number of runs there; results:
    of those with a value; mean: of the values, None without one."""

    level: Any
    results: int
    planned: int
    mean: float | None


def _at(study: Study, level: Any, runs: Sequence[Run]) -> AtLevel:
    values = [value for run in runs if (value := study.primary.values[run.id].value) is not None]
    return AtLevel(level, len(values), len(runs), float(np.mean(values)) if values else None)


@dataclass(frozen=True)
class Levels:
    """A group at each level of one factor. factor: its key. best: the level with the best mean among those where every
    planned run has a result; None if no level is complete, or if no direction of the metric is better."""

    group: str
    factor: str
    levels: tuple[AtLevel, ...]
    best: AtLevel | None


def levels(study: Study) -> tuple[Levels, ...]:
    """For each group, and each factor of which it has several levels, its results at these; in the plan's order."""
    found, measure = [], study.primary.measure
    for group, (key, factor) in product(study.sweep.groups, (study.sweep.plan.get("factors") or {}).items()):
        label = factor.get("label")
        if label not in varied(study.sweep, group):
            continue
        runs = grouped((dict(run.cell).get(label), run) for run in study.sweep.runs_of(group))
        each = [_at(study, level, runs[level_of(level)]) for level in factor["levels"] if level_of(level) in runs]
        # Only a complete level can be best: the mean of another lacks the runs that the level may have spoilt.
        complete = [at for at in each if at.results == at.planned] if measure.better else []
        best = max(complete, key=lambda at: measure.sign * (at.mean or 0.0), default=None)
        found.append(Levels(group, str(key), tuple(each), best))
    return tuple(found)


def averaged_over(study: Study, block: Block, group: str) -> tuple[str, ...]:
    """The labels of the factors over whose levels a group's values of a block's measure are averaged."""
    choice = block.choices.get(group)
    fixed = choice.factors if choice is not None and choice.level is not None else ()
    return tuple(label for label in varied(study.sweep, group) if label not in fixed)


def varied(sweep: Sweep, group: str) -> tuple[str, ...]:
    """The labels of the factors of which a group has several levels."""
    levels = grouped((label, repr(level)) for run in sweep.runs_of(group) for label, level in run.cell)
    return tuple(label for label, known in levels.items() if len({*known}) > 1)


def runs_by_cell(sweep: Sweep, group: str) -> dict[Cell, list[Run]]:
    """The runs of a group by cell; each cell has its factors in the plan's order."""
    order = factor_order(sweep)
    arranged = ((tuple(sorted(run.cell, key=lambda item: order.index(item[0]))), run) for run in sweep.runs_of(group))
    return grouped(arranged)


def factor_order(sweep: Sweep) -> list[str]:
    """The labels of the factors in the plan's order, then those that only runs have."""
    declared = sweep.plan.get("factors") or {}
    known = [str(factor["label"]) for factor in declared.values() if isinstance(factor, Mapping) and "label" in factor]
    return list(dict.fromkeys([*known, *(label for run in sweep.runs for label, _ in run.cell)]))


def level_lines(study: Study) -> list[str]:
    """A line for each method that has several cells: each level of a single factor, or the best and the worst cell; and
    notes on these lines. Empty if no method has several cells."""
    lines, names_best = [], False
    for group in study.sweep.groups:
        label, names = study.sweep.label(group), varied(study.sweep, group)
        every = [
            (_at(study, part(cell, names), runs), sum(bool(collapse(run)) for run in runs))
            for cell, runs in runs_by_cell(study.sweep, group).items()
        ]
        if len(every) < 2:
            continue
        if len(names) == 1 and len(every) <= _MOST_LEVELS:
            lines.append(f"{label}: {', '.join(starmap(_shown_at, every))}.")
            continue
        usable = [(at, collapsed) for at, collapsed in every if at.mean is not None]
        if not usable:
            lines.append(f"{label}: no result in {counted(len(every), 'cell')}.")
            continue
        measure, names_best = study.primary.measure, True
        best, worst = ("best", "worst") if measure.better else ("highest", "lowest")
        ordered = sorted(usable, key=lambda of: measure.sign * (of[0].mean or 0.0))
        count = f"{share(len(usable), len(every))} cells{' with a result' if len(usable) < len(every) else ''}"
        lines.append(f"{label}, {count}: {best} {_shown_at(*ordered[-1])}, {worst} {_shown_at(*ordered[0])}.")
    lines += [_BY_LUCK] if names_best else []
    return [*lines, *all_levels(study.settings)] if lines else []


def _shown_at(at: AtLevel, collapsed: int) -> str:
    """The result of a cell in words. collapsed: the number of its runs that collapsed."""
    if at.mean is None:
        return f"no result at {factors(at.level)}"
    remarks = [f"{at.results} of {at.planned} seeds"] if at.results < at.planned else []
    if collapsed:
        remarks.append("collapsed" if collapsed == at.planned else f"{collapsed} of {at.planned} runs collapsed")
    shown = f"{format_number(at.mean, 3)} at {factors(at.level)}"
    return f"{shown} ({', '.join(remarks)})" if remarks else shown


def scale_lines(study: Study) -> list[str]:
    """A line on what scores are normalised by; if they are not, one for each difference that is mostly of one level."""
    title = study.primary.measure.title
    if study.settings.normalize:
        metric = describe(study.settings.metric).label
        return [
            f"{capital(metric)} is normalised by reference scores of each level, which the experiment declares "
            "(analysis.normalize): 0 is the low one, 1 the high one."
        ]
    lines, kept = [], {group: selected.kept for group, selected in study.primary.selected.items()}
    for comparison in study.primary.comparisons:
        differences = cells.differences(kept[comparison.group], kept[comparison.baseline])
        sizes = {level: abs(difference) for level, difference in differences.items()}
        most = max(sizes, key=lambda level: sizes[level], default=())
        if len(sizes) >= _SEVERAL and sizes[most] > _MOST * sum(sizes.values()):
            lines.append(
                f"{study.sweep.label(comparison.group)}: {factors(most)} makes up "
                f"{sizes[most] / sum(sizes.values()):.0%} of the differences in the {title} at {len(sizes)} levels "
                "(their sizes added up), so the mean difference is mostly that of one level. If levels have different "
                "scales, declare reference scores (analysis.normalize)."
            )
    return lines


def uneven_lines(study: Study, block: Block) -> list[str]:
    """A line if the values of a measure are means over different levels of the factors that all methods have; none if
    they are not."""
    usable = {group: selected.kept for group, selected in block.selected.items() if selected.kept.seeds}
    shared = set.intersection(*map(cells.labels_of, usable.values())) if usable else set()
    levels = {group: dict.fromkeys(part(cell, shared) for cell in kept.cells) for group, kept in usable.items()}
    every = dict.fromkeys(level for of in levels.values() for level in of)
    lacking = {group: [level for level in every if level not in of] for group, of in levels.items()}
    named = [
        f"{study.sweep.label(group)} over {counted(len(levels[group]), 'level')}, without {cells.named(lost, every)}"
        for group, lost in lacking.items()
        if lost
    ]
    if not named:
        return []
    return [
        f"{capital(block.measure.title)}: the values are means over different levels, so compare them by the "
        f"differences, which are over common levels: {'; '.join(named)}."
    ]


def selection_lines(study: Study, blocks: Sequence[Block]) -> list[str]:
    """The levels at which the methods are judged on some measures, and the seeds that chose them: a line for all
    measures with the same choices; none if no method has several levels of a selected factor."""
    titles: dict[str, list[str]] = {}
    for block in blocks:
        if parts := [f"{study.sweep.label(group)} {_chosen(choice)}" for group, choice in block.choices.items()]:
            titles.setdefault("; ".join(parts), []).append(block.measure.title)
    names = ", ".join(study.settings.select)
    rule = f"Each method is judged at its best level of {names}, and the seeds that choose it do not judge it"
    return [f"{rule}. {capital(', '.join(of))}: {text}." for text, of in titles.items()]


def _chosen(choice: Choice) -> str:
    """In words: the level that was chosen for a method, or why the method is averaged over its levels."""
    seeds, over = seeds_in_words(choice.seeds), f"is averaged over the levels of {', '.join(choice.factors)}"
    if choice.reason is Unchosen.NO_DIRECTION:
        return f"{over}, because neither direction is better"
    if choice.reason is Unchosen.ONE_SEED:
        return f"{over}, because one seed cannot both choose and judge"
    if choice.level is None:
        return f"{over}, because {seeds} would choose and no level has all of their results"
    text = f"at {factors(choice.level)}, the best of {counted(choice.levels, 'level')} in {seeds}"
    if choice.lacking:
        gone = cells.named(choice.lacking, choice.lacking)
        text += f" (not chosen, because results of these seeds are missing there: {gone})"
    return text


def collapse_lines(study: Study) -> list[str]:
    """A line that names the methods and cells with collapsed runs, and how they collapsed; none if no run did."""
    every = [(run, collapse(run)) for run in study.sweep.runs]
    gone = dict.fromkeys(what for _, several in every for what in several)
    if not gone:
        return []
    places = grouped(
        (study.sweep.label(run.group) + (f" at {factors(run.cell)}" if run.cell else ""), bool(several))
        for run, several in every
    )
    named = [f"{name} ({sum(lost)} of {counted(len(lost), 'run')})" for name, lost in places.items() if any(lost)]
    shown = some(named, _MOST_NAMED, last="; and ")
    return [f"Collapsed: {shown}: {collapses(gone)}. Collapsed runs count in every mean."]


def collapses(gone: Iterable[Collapse]) -> str:
    """Kinds of collapse in words."""
    return "; ".join(_COLLAPSES[what] for what in gone)


def condition_lines(sweep: Sweep) -> list[str]:
    """A line for each gate that was forced before the experiment's stage of a campaign had its present runs, and one
    for each level that these took from an earlier stage; instead, one line with the error if a campaign's record cannot
    be read."""
    name = str(sweep.plan.get("experiment") or sweep.folder.name)
    runs = {group: {run.id for run in sweep.runs_of(group)} for group in sweep.groups}
    try:
        conditions, taken = campaign_record.of_experiment(sweep.folder.parent, name, runs)
    except ValueError as error:
        return [f"Whether a gate of a campaign was forced before these runs is not known: {error}"]
    # Campaigns over the same runs may have taken a level from the same stage.
    return [*map(_forced, conditions), *dict.fromkeys(_taken(level, sweep) for level in taken)]


def _forced(condition: Condition) -> str:
    stage = condition.stage
    short = "; ".join(figure.sentence() for figure in stage.forced) or stage.incomplete or "its runs were not all done"
    since = " It is met since." if stage.met else ""
    return (
        f"Forced gate: campaign {condition.campaign} went on although the gate of its stage {stage.name} was not met "
        f"({stage.forced_by}). {short}.{since}"
    )


def _taken(taken: Taken, sweep: Sweep) -> str:
    label = sweep.label(taken.into) if taken.into in sweep.plan["groups"] else taken.into
    return (
        f"{label} has {taken.key} = {taken.value}, which stage {taken.stage} chose ({taken.experiment}, {taken.group}: "
        f"{taken.means})."
    )
