"""Lines for the beginning of a report: each method at each level of its factors, the runs that collapsed, and what the
campaign of an experiment decided before its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.data import cells
from analysis.data.selection import Choice, Unchosen
from analysis.data.sweep import Sweep
from analysis.findings.levels import AtCell, at_cells, dominant, uneven
from analysis.findings.outcomes import ENTROPY_SHARE, Collapse, collapse
from analysis.findings.study import Block, Study
from analysis.numbers import format_number
from analysis.spec.metric_catalog import capital, describe
from analysis.spec.validation import counted, some
from analysis.tables.table import share
from analysis.tables.wording import all_levels, factors, seeds_in_words
from launcher.run import campaign_record
from launcher.run.campaign_record import Condition, Taken

_MOST_LEVELS = 6  # of one factor that are listed one by one; of more, and of several factors, the best and the worst
_MOST_NAMED = 6  # places of collapsed runs that are named
_COLLAPSES = {
    Collapse.NEVER_REWARDED: "reward 0 at every step",
    Collapse.REWARD_GONE: "reward 0 at the end",
    Collapse.REWARDS_ALIKE: "the same reward for all responses at the end, below the first mean reward",
    Collapse.ENTROPY_GONE: f"entropy below {ENTROPY_SHARE:.0%} of its first value at the end",
}
_BY_LUCK = "The best of several cells is best partly by luck: test it with new seeds."


def level_lines(study: Study) -> list[str]:
    """A line for each method that has several cells: each level of a single factor, or the best and the worst cell."""
    lines, chosen = [], False
    for group in study.sweep.groups:
        every = at_cells(study, group)
        if not every:
            continue
        label, names = study.sweep.label(group), {name for at in every for name, _ in at.level}
        if len(names) == 1 and len(every) <= _MOST_LEVELS:
            lines.append(f"{label}: {', '.join(map(_at, every))}.")
            continue
        usable = [at for at in every if at.mean is not None]
        if not usable:
            lines.append(f"{label}: no result in {counted(len(every), 'cell')}.")
            continue
        sign, chosen = study.primary.measure.sign, True
        best, worst = "best", "worst"
        if study.primary.measure.better is None:
            best, worst = "highest", "lowest"
        ordered = sorted(usable, key=lambda at: sign * (at.mean or 0.0))
        cells = f"{share(len(usable), len(every))} cells{' with a result' if len(usable) < len(every) else ''}"
        lines.append(f"{label}, {cells}: {best} {_at(ordered[-1])}, {worst} {_at(ordered[0])}.")
    lines += [_BY_LUCK] if chosen else []
    return [*lines, *all_levels(study.settings)] if lines else []


def _at(at: AtCell) -> str:
    if at.mean is None:
        return f"no result at {factors(at.level)}"
    remarks = [f"{at.results} of {at.planned} seeds"] if at.results < at.planned else []
    if at.collapsed:
        remarks.append("collapsed" if at.collapsed == at.planned else f"{at.collapsed} of {at.planned} runs collapsed")
    shown = f"{format_number(at.mean, 3)} at {factors(at.level)}"
    return f"{shown} ({', '.join(remarks)})" if remarks else shown


def scale_lines(study: Study) -> list[str]:
    """What the scores are normalised by, or that one of several levels makes up most of a raw difference."""
    title = study.primary.measure.title
    if study.settings.normalize:
        metric = describe(study.settings.metric).label
        return [
            f"{capital(metric)} is normalised by reference scores of each level, which the experiment declares "
            "(analysis.normalize): 0 is the low one, 1 the high one."
        ]
    return [
        f"{study.sweep.label(of.group)}: {factors(of.level)} makes up {of.share:.0%} of the differences in the {title} "
        f"at {of.levels} levels (their sizes added up), so the mean difference is mostly that of one level. If levels "
        "have different scales, declare reference scores (analysis.normalize)."
        for of in dominant(study)
    ]


def uneven_lines(study: Study, block: Block) -> list[str]:
    """A line if the values of a measure are means over different levels; none if they are not."""
    lacking = uneven(study, block)
    if not lacking:
        return []
    every = [level for _, gone in lacking.values() for level in gone]
    named = [
        f"{study.sweep.label(group)} over {counted(n, 'level')}, without {cells.named(gone, every)}"
        for group, (n, gone) in lacking.items()
    ]
    return [
        f"{capital(block.measure.title)}: the values are means over different levels, so compare them by the "
        f"differences, which are over common levels: {'; '.join(named)}."
    ]


def selection_lines(study: Study, blocks: Sequence[Block]) -> list[str]:
    """The levels at which the methods are judged on some measures, and the seeds that chose them: a line for all
    measures with the same choices; none if no method has several levels of a selected factor."""
    titles: dict[str, list[str]] = {}
    for block in blocks:
        parts = [f"{study.sweep.label(group)} {_chosen(choice)}" for group, choice in block.choices.items()]
        if parts:
            titles.setdefault("; ".join(parts), []).append(block.measure.title)
    names = ", ".join(study.settings.select)
    rule = f"Each method is judged at its best level of {names}, and the seeds that choose it do not judge it"
    return [f"{rule}. {capital(', '.join(of))}: {text}." for text, of in titles.items()]


def _chosen(choice: Choice) -> str:
    """The level of a method, or why it is averaged over its levels."""
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
    """A line that names the methods and cells with collapsed runs, and what is gone; none if no run collapsed."""
    places: dict[str, list[int]] = {}
    gone: dict[Collapse, None] = {}
    for run in study.sweep.runs:
        name = study.sweep.label(run.group) + (f" at {factors(run.cell)}" if run.cell else "")
        count = places.setdefault(name, [0, 0])
        count[1] += 1
        if what := collapse(run):
            count[0] += 1
            gone |= dict.fromkeys(what)
    if not gone:
        return []
    named = [f"{name} ({lost} of {counted(of, 'run')})" for name, (lost, of) in places.items() if lost]
    shown = some(named, _MOST_NAMED, last="; and ")
    return [f"Collapsed: {shown}: {collapses(gone)}. Collapsed runs count in every mean."]


def collapses(gone: Iterable[Collapse]) -> str:
    """What is gone at the end of a run."""
    return "; ".join(_COLLAPSES[what] for what in gone)


def condition_lines(sweep: Sweep) -> list[str]:
    """A line for each gate that was forced before the experiment's stage, and one for each level that it took."""
    name = str(sweep.plan.get("experiment") or sweep.folder.name)
    try:
        conditions, taken = campaign_record.of_experiment(sweep.folder.parent, name)
    except ValueError as error:  # a record that cannot be read
        return [f"Whether a gate of a campaign was forced before these runs is not known: {error}"]
    return [*map(_forced, conditions), *(_taken(one, sweep) for one in taken)]


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
