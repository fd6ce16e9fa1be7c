"""The first lines of a report: which method won, by how much, how surely, and what is missing; in plain sentences."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.data.mixed_code import mixed_code, unknown_content
from analysis.data.sweep import Run, Sweep
from analysis.findings.study import Comparison, Outcome, Reason, Study, as_declared, collapse, registered
from analysis.spec.cell import grouped
from analysis.spec.metric_catalog import WIN_RATE, capital, describe
from analysis.spec.registry import is_judged
from analysis.spec.validation import counted, some
from analysis.stats import power
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import decimals_of_means, format_estimate, format_number, format_p
from analysis.stats.resolution import multiplied, seeds_needed, smallest_p
from analysis.tables import levels, wording
from analysis.tables.comparison import better

_FILES = 5  # named in the line on mixed code


@dataclass(frozen=True)
class HealthWarning:
    """What is wrong with a run, though it ended. factors: its cell in words. warning: "collapsed", or the name of what
    the run reported. seen: what is gone, or how often the run reported it."""

    group: str
    seed: int
    factors: str
    warning: str
    seen: str


@dataclass(frozen=True)
class Answer:
    """The first lines of a report, in sentences; "" or () where there is nothing to say.

    declaration: what was decided after results. result: the answer to the question. conditions: what a campaign decided
    before the runs, and how imported runs got their groups and seeds. levels: each method at each level. certainty: how
    sure the result is. limits: what may change it, and what n seeds can decide. gaps: the runs without a result.
    extent: which runs there are. leading: the comparison that the result is about, its fields by name, with the means
    of group and baseline; None if nothing is compared.
    """

    declaration: str
    question: str
    result: str
    conditions: tuple[str, ...]
    levels: tuple[str, ...]
    collapsed: tuple[str, ...]
    certainty: str
    limits: tuple[str, ...]
    gaps: tuple[str, ...]
    warnings: tuple[HealthWarning, ...]
    extent: str
    leading: Mapping[str, Any] | None

    @property
    def points(self) -> tuple[str, ...]:
        """What a reader of the result has to know, except for the gaps."""
        return (*self.conditions, *self.levels, *self.collapsed, *self.limits)


def answer(study: Study) -> Answer:
    """The first lines of the report on a study: what its primary measure shows."""
    sweep = study.sweep
    runs = {run.id: run for run in sweep.runs}.values()  # groups may share a run
    gaps = tuple(_gaps(study))
    usable, leader = _compared(study)
    result, certainty = _result(study, usable, leader)
    return Answer(
        declaration=_declaration(study),
        question=_question(study),
        result=result,
        conditions=(*levels.condition_lines(sweep), *sweep.plan.get("notes", ())),
        levels=tuple(levels.level_lines(study)),
        collapsed=tuple(levels.collapse_lines(study)),
        certainty=certainty,
        limits=(*_made_by(sweep), *_fork(sweep), *levels.scale_lines(study), *_limits(study), *_left_out(leader, gaps)),
        gaps=gaps,
        warnings=tuple(warning for run in runs for warning in _warnings(run)),
        extent=_extent(study),
        leading=None if leader is None else {
            "group": leader.group, "baseline": leader.baseline, "difference": leader.difference,
            "interval": leader.interval, "p_adjusted": leader.adjusted, "outcome": leader.outcome, "n": leader.n,
            "planned": leader.planned, "means": (float(leader.contrast.a.mean()), float(leader.contrast.b.mean())),
        },
    )  # fmt: skip


def _gaps(study: Study) -> Iterator[str]:
    """The planned runs without a result, with the reason: they did not end well, or lack a primary value.

    A missing value is no gap in a group that never records the metric, nor in any while the threshold is unknown.
    """
    block, sweep = study.primary, study.sweep
    unknown = {estimate.group for estimate in block.estimates if not estimate.recorded}
    if block.measure.summary == "time_to" and block.measure.threshold is None:
        unknown = set(sweep.groups)
    for run in sweep.runs:
        value = block.values[run.id]
        why = run.problem or (value.reason if value.value is None and run.group not in unknown else None)
        if why:
            place = filter(None, (sweep.label(run.group), f"seed {run.seed}", wording.factors(run.cell)))
            yield f"{', '.join(place)}: {why} ({run.folder})"


def _left_out(leader: Comparison | None, gaps: Sequence[str]) -> tuple[str, ...]:
    """One line if the leading comparison is decided although planned runs have no result."""
    if leader is None or not gaps or leader.outcome not in (Outcome.HIGHER, Outcome.LOWER):
        return ()
    left_out = f"{capital(counted(len(gaps), 'planned run'))} without a result"
    return (f"{left_out} may change this: runs often fail because they go badly, and the rest then looks better.",)


def _declaration(study: Study) -> str:
    """What was decided after results, and the answer as it was declared before them; "" if nothing was."""
    found = registered(study.sweep)
    said = "" if found is None else found.sentence()
    if found is None or found.plan is None or not found.changes or not found.plan["analysis"]:
        return said
    declared = as_declared(study, found)
    if declared is None:
        return f"{said} As declared, the question cannot be computed."
    usable, leader = _compared(declared)
    answer = _result(declared, usable, None)[0] if leader is None else _statement(declared, leader, len(usable))
    return f"{said} As declared: {answer}"


def _warnings(run: Run) -> Iterator[HealthWarning]:
    """That the run collapsed, then what it reported itself (`warnings` of its summary)."""
    place = (run.group, run.seed, wording.factors(run.cell))
    if gone := collapse(run):
        yield HealthWarning(*place, "collapsed", levels.collapses(gone))
    reported = run.summary.get("warnings")
    for name, count in sorted(reported.items()) if isinstance(reported, dict) else ():
        if count:
            yield HealthWarning(*place, name, f"{count} times")


def _made_by(sweep: Sweep) -> Iterator[str]:
    """Lines on inputs whose content is not recorded, and on mixed code: what differs, and the seeds of each version."""
    for path, count in unknown_content(sweep).items():
        which = f"{counted(count, 'run')} done by an older version, which did not record the content of {path}"
        yield f"{which}: it may have been another one. A launch plans these runs anew, with the present content."
    mixed = mixed_code(sweep)
    if mixed is None:
        return
    versions = []
    for number, runs in enumerate(mixed.versions, 1):
        by_method = {group: tuple(sorted({run.seed for run in runs if run.group == group})) for group in sweep.groups}
        by_seeds = grouped((seeds, sweep.label(group)) for group, seeds in by_method.items())
        listed = (
            f"{wording.seeds_in_words(seeds, len(seeds))} of "
            f"{'all methods' if 1 < len(labels) == len(sweep.groups) else ', '.join(labels)}"
            for seeds, labels in by_seeds.items()
            if seeds
        )
        versions.append(f"version {number}: {'; '.join(listed)}")
    accepted = "nobody accepted it" if mixed.accepted is None else "the difference was accepted"
    unknown = f" {capital(counted(mixed.unknown, 'run'))} of unknown code." if mixed.unknown else ""
    differ = f"{some(mixed.names, _FILES)} {'differs' if len(mixed.names) == 1 else 'differ'}"
    yield f"These runs mix code ({accepted}): {differ}. {'. '.join(map(capital, versions))}.{unknown}"


def _fork(sweep: Sweep) -> Iterator[str]:
    """One line if an older version planned the runs as continuations of one group's runs."""
    if fork := sweep.plan.get("fork"):
        begin = f"the first {counted(fork['at'], 'step')} of {sweep.label(fork['source'])} with the same seed"
        yield f"Every run continues {begin}. The claims are conditional on these first steps."


def _question(study: Study) -> str:
    sweep, title = study.sweep, study.primary.measure.title
    if study.settings.compare == "all_pairs" and len(sweep.groups) > 1:
        return f"Which methods differ in the {title}?"
    if sweep.baseline is None:
        return f"What {title} do the methods reach?"
    names = [sweep.label(group) for group in sweep.groups if group != sweep.baseline]
    if not names:
        return f"What {title} does {sweep.label(sweep.baseline)} reach?"
    return f"Does {wording.listed(names, 'or')} change the {title}, compared with {sweep.label(sweep.baseline)}?"


def _result(study: Study, usable: Sequence[Comparison], leader: Comparison | None) -> tuple[str, str]:
    """The result and its certainty, or why nothing is compared. usable and leader: those of `_compared`."""
    block, sweep = study.primary, study.sweep
    if not block.comparisons:
        shown = [(e, format_estimate(e.mean, e.interval) or "no result") for e in block.estimates]
        values = [f"{sweep.label(e.group)} {text} ({counted(len(e.seeds), 'seed')})" for e, text in shown]
        why = "There is no other method to compare with."
        if block.others:
            why = wording.which_differ(study)
        elif len(values) > 1:
            why = "No baseline is declared (experiment.baseline), so no method is compared with another."
        return f"{capital(block.measure.title)}: {'; '.join(values)}. {_measured(study)}".rstrip(), why
    if leader is None:
        return "No method can be compared with the baseline.", f"{_incomparable(study)}."
    base = sweep.label(leader.baseline)
    text = f"{wording.which_differ(study)} {_statement(study, leader, len(usable))} {_measured(study)}".strip()
    reached, theirs = leader.reached or (None, None)
    numbers = float(leader.contrast.a.mean()), float(leader.contrast.b.mean())
    digits = decimals_of_means([(mean, None) for mean in numbers], (leader.difference, leader.interval), 3)
    means = _mean(sweep.label(leader.group), numbers[0], digits, reached), _mean(base, numbers[1], digits, theirs)
    text += f" Means over these seeds: {', '.join(means)}."
    text += "".join(f" {capital(note)}." for note in leader.notes)
    others = [f"{sweep.label(c.group)}, {_outcome(study, c)}" for c in block.comparisons if c not in usable]
    text += f" Not compared: {'; '.join(others)}." if others else ""
    return text, _certainty(study, leader, usable)


def _measured(study: Study) -> str:
    """Up to which step the answer is about, which runs set it, and what the measure is."""
    measure = study.primary.measure
    return f"{capital(wording.measured(study, measure.metric))} {capital(measure.definition)}".strip()


def _statement(study: Study, leader: Comparison, compared: int) -> str:
    """The leading difference in words: a finding if the test has decided it, else only the most favourable one.
    compared: how many comparisons have a difference."""
    block, label = study.primary, study.sweep.label(leader.group)
    measure, base, amount = block.measure, study.sweep.label(leader.baseline), _difference(study, leader)
    gain = measure.sign * leader.difference
    decided = leader.outcome in (Outcome.HIGHER, Outcome.LOWER)
    chosen = f"{'most favourable' if measure.better else 'highest'} of {compared} differences"
    if measure.better is not None and gain <= 0 and not (decided and compared == 1):
        which = "method" if compared == len(block.comparisons) else "compared method"
        text = f"No {which} is better than {base} in the {measure.title}; the closest is {label}: {amount}."
    elif decided:
        how = ("better", "worse") if measure.better else ("higher", "lower")
        among = f", with the {chosen}" if compared > 1 else ""
        among += wording.if_normal(leader.contrast)
        text = f"{label} is {how[gain <= 0]} than {base} in the {measure.title}{among}: {amount}."
    elif compared > 1:
        text = f"The {chosen} in the {measure.title} is that of {label}, and it is not decided: {amount}."
    else:
        text = f"Whether {label} changes the {measure.title} is not decided: {amount}."
    if compared > 1 and leader.interval is not None and leader.level > study.settings.alpha / compared:
        interval = leader.contrast.interval(study.settings.alpha / compared)
        shown = "none" if interval is None else format_estimate(leader.difference, interval, signed=True)
        text += f" Its interval that allows for the choice among {compared} (Bonferroni): {shown}."
    return text


def _incomparable(study: Study) -> str:
    """Why no method can be compared with the baseline. For a metric that no run has recorded, the name that was
    probably meant."""
    block, sweep = study.primary, study.sweep
    baseline, metric = block.comparisons[0].baseline, block.measure.metric
    if not any(estimate.recorded for estimate in block.estimates):
        if metric == WIN_RATE:
            command = f"rlsweep judge {sweep.place} judge.base_url=URL judge.model=NAME"
            return f"No judge has compared the responses yet: {command}, or --by reward"
        names = sorted({name for run in sweep.runs for name in run.curves.values})
        close = difflib.get_close_matches(metric, names, n=1)
        meant = f"; did you mean {close[0]}? (analysis.primary.metric)" if close else ""
        return f"No run has recorded {metric}{meant}"
    if not block.estimate(baseline).seeds:
        return f"{sweep.label(baseline)}, the baseline, has no result in any seed"
    return "; ".join(f"{sweep.label(c.group)}: {_outcome(study, c)}" for c in block.comparisons)


def _outcome(study: Study, comparison: Comparison) -> str:
    return wording.outcome(comparison, study.primary.measure, study.sweep, study.settings.alpha)


def _mean(name: str, mean: float, digits: int, reached: tuple[int, int] | None) -> str:
    """A group's mean over the compared seeds and cells. reached: (k, n), k of its n runs reached the threshold."""
    text = f"{name} {format_estimate(mean, None, decimals=digits, digits=3)}"
    return text if reached is None else f"{text} (reached {reached[0]} of {reached[1]})"


def _compared(study: Study) -> tuple[list[Comparison], Comparison | None]:
    """The comparisons that have a difference, and the one whose group does best; without a direction, the highest."""
    usable = [c for c in study.primary.comparisons if c.mean_difference is not None]
    return usable, max(usable, key=lambda c: study.primary.measure.sign * c.difference, default=None)


def _extent(study: Study) -> str:
    """How many runs, of which methods and seeds, and their states."""
    runs = {run.id: run for run in study.sweep.runs}.values()
    states = Counter(run.state if run.done or run.state != "done" else "unreadable" for run in runs)
    ended = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    seeds = sorted({run.seed for run in runs})
    methods = counted(len(study.sweep.groups), "method")
    return f"{counted(len(runs), 'run')}, {methods}, {wording.seeds_in_words(seeds, len(seeds))}: {ended}."


def _difference(study: Study, comparison: Comparison) -> str:
    """A difference with its interval, and in how many seeds, or what share of pairs of runs, it favours the group."""
    contrast, measure = comparison.contrast, study.primary.measure
    amount = format_estimate(comparison.mean_difference, comparison.interval, signed=True)
    unit = f" {measure.unit}" if measure.unit else ""
    word = "better" if measure.better else "higher"
    against = f"{amount}{unit} against {study.sweep.label(comparison.baseline)}"
    counted_better = better(contrast, replace(measure, direction=measure.better or "higher"))
    if not contrast.paired:
        return f"{against}, {word} in {counted_better} of runs ({contrast.a.size} against {contrast.b.size})"
    planned = comparison.planned
    only = f" (only {comparison.n} of {planned} planned pairs have both results)" if comparison.n < planned else ""
    return f"{against}, {word} in {counted_better} seed{'' if comparison.n == 1 else 's'}{only}"


def _certainty(study: Study, leader: Comparison, usable: Sequence[Comparison]) -> str:
    """What the test says of the leading comparison, and which others it has decided."""
    alpha, size = study.settings.alpha, len(study.primary.every)
    decided = [c for c in usable if c.adjusted is not None and c.adjusted <= alpha]
    outcome, test = _outcome(study, leader), leader.contrast.test
    if leader in decided:
        over = f", adjusted for {size} comparisons" if size > 1 else ""
        text = f"This holds at alpha = {alpha:g} by {wording.TESTS[test]}: {outcome} "
        text += f"(p {wording.equals(leader.adjusted, alpha)}{over})."
    else:
        p_is_told = leader.outcome is Outcome.INCONCLUSIVE and leader.ground is None  # the outcome itself gives p
        p = "" if p_is_told or leader.adjusted is None else f"p {wording.equals(leader.adjusted, alpha)}"
        adjusted = f"adjusted for {size} comparisons" if leader.adjusted is not None and size > 1 else ""
        detail = ": ".join(filter(None, (adjusted, p)))
        futile = leader.ground is not None and leader.ground.reason is Reason.FUTILE
        told = p_is_told or futile or leader.outcome is not Outcome.INCONCLUSIVE
        by = "" if told else f"{wording.test_name(test)} "
        text = f"How sure: {by}{outcome}{f' ({detail})' if detail else ''}."
    others = [f"{study.sweep.label(c.group)} {_outcome(study, c)}" for c in decided if c is not leader]
    return f"{text} Also decided: {'; '.join(others)}." if others else text


def averaged(study: Study) -> list[str]:
    """A sentence that names the groups whose cells are averaged within each seed, and over which factors; [] if no
    group is averaged."""
    labels, block = study.sweep.labels, study.primary
    over = grouped((levels.averaged_over(study, block, group), label) for group, label in labels.items())
    named = "; ".join(f"{', '.join(names)} over the levels of {', '.join(key)}" for key, names in over.items() if key)
    return [f"Averaged within each seed first: {named}."] if named else []


def _power(study: Study, members: Sequence[Comparison], contrast: Contrast, times: int) -> str:
    """The smallest p that the deciding test can give, and the true difference that it detects. members: the comparisons
    with as many seeds as `contrast`; times: by how much the smallest p is multiplied to adjust it."""
    settings, unit, test = study.settings, study.primary.measure.unit, contrast.test
    n, m = contrast.a.size, contrast.b.size
    # Holm's method asks the smallest p at alpha / times; the levels of the others depend on the results
    several, first = len(study.primary.every) > 1, settings.alpha / times
    asked = [c.level for c in members if c.level > 0]  # 0: the other comparisons of these data leave nothing for it
    level = first if settings.family == "holm" else min(asked, default=first)
    smallest = min(1.0, times * smallest_p(test, n, m))
    text = ""
    if smallest > 0:
        text = f"the smallest {'adjusted ' if times > 1 else ''}p of {wording.test_name(test)} is {format_p(smallest)}"
        needed = seeds_needed(settings.alpha, times, test)
        text += f"; it needs {needed} seeds for alpha = {settings.alpha:g}. " if smallest > settings.alpha else ". "
    effect = power.detectable(test, n, level, m=m)
    if effect is None:
        none = f"no true difference is large enough to be detected with {power.POWER:.0%} power."
        return text + (capital(none) if text else none)
    spread = [c.contrast.spread for c in members if c.contrast.spread]
    of = "the differences" if contrast.paired else "a method's runs"
    detects = f"{wording.test_name(test)} detects a true difference of {effect:.2g} standard deviations of {of}"
    text += capital(detects) if text else detects
    if spread:
        here = f"{format_number(effect * max(spread), 2)}{f' {unit}' if unit else ''}"
        text += f" ({here} at the {'spread seen' if len(spread) == 1 else 'largest spread of these comparisons'})"
    text += f" with {power.POWER:.0%} power"
    which = "at which the family asks it" if asked else "of one comparison alone"
    which = f"of the first of {times} comparisons" if times > 1 else which
    return text + (f", at the level {level:.2g} {which}." if several else ".")


def _limits(study: Study) -> tuple[str, ...]:
    """Lines to read before any p: what brackets mean, what is averaged, what these seeds can decide, and which
    direction the report assumes where the experiment declares none."""
    settings, block = study.settings, study.primary
    measure, times = block.measure, multiplied(settings.family, block.family) or 1
    lines: list[str] = []
    if measure.summary == "time_to" and any(e.interval is None and len(e.values) > 1 for e in block.estimates):
        lines.append(wording.NO_INTERVAL_OF_TIMES)
    if any(estimate.interval for estimate in block.estimates):
        level = wording.levels(block.estimates, settings.alpha)
        kind = "interval of the restricted mean" if measure.summary == "time_to" else "t interval"
        lines.append(
            f"The brackets hold, for a mean, its {level} {kind} over seeds and, for a difference, the values that the "
            "test that decides does not reject."
        )
    lines += [*levels.selection_lines(study, [block]), *averaged(study)]
    lines += wording.interim_lines(study)
    judged = [c for c in block.comparisons if c.n and not c.standing and is_judged(measure.summary)]
    sizes = {(c.contrast.a.size, c.contrast.b.size): c.contrast for c in judged}
    for (n, m), contrast in sorted(sizes.items()):
        members = [c for c in block.comparisons if (c.contrast.a.size, c.contrast.b.size) == (n, m)]
        names = ", ".join(study.sweep.label(c.group) for c in members)
        who = "" if len(members) == len(block.comparisons) else f" ({names})"
        counts = f"{counted(n, 'pair')} of seeds" if contrast.paired else f"{n} against {m} seeds"
        lines.append(f"{counts}{who}: {_power(study, members, contrast, times)}")
    declared = ((study.sweep.plan.get("analysis") or {}).get("primary") or {}).get("direction")
    metric = describe(measure.metric)
    if lines and declared is None and metric.direction is None:
        key = "--direction" if study.sweep.plan.get("imported") else "analysis.primary.direction"
        lines.append(
            f"The report assumes that a {settings.direction} {metric.label} is better, because the experiment does not "
            f"declare a direction ({key})."
        )
    targets = filter(None, (*settings.time_to, *(hypothesis.target for hypothesis in settings.hypotheses)))
    metrics = [target.metric for target in targets if not (target.direction or settings.direction_of(target.metric))]
    if metrics:
        names = ", ".join(describe(name).label for name in dict.fromkeys(metrics))
        lines.append(
            f"The times until {names} reaches its threshold assume that higher is better, because no direction is "
            "declared with the threshold (direction: lower)."
        )
    return tuple(lines)
