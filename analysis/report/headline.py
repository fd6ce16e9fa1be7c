"""The first lines of a report: which method won, by how much, how surely, and what is missing; in plain sentences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.findings import added_seeds
from analysis.findings.study import Block, Comparison, Study
from analysis.numbers import format_estimate, format_number, format_p
from analysis.report.missing import lacking, told
from analysis.spec.metric_catalog import capital, describe
from analysis.stats import t_test
from analysis.stats.resolution import floor, multiplied, seeds_needed


@dataclass(frozen=True)
class Answer:
    """question, then what was found (`result`), how surely (`certainty`), what n seeds can decide (`limits`), gaps, and
    which runs there are and what they took (`cost`)."""

    question: str
    result: str
    certainty: str
    limits: tuple[str, ...]
    gaps: tuple[str, ...]
    warnings: tuple[tuple[str, str, str, str], ...]
    cost: str


def answer(study: Study) -> Answer:
    """Say what the primary measure shows."""
    sweep = study.sweep
    states: dict[str, int] = {}
    unique = {run.id: run for run in sweep.runs}
    for run in unique.values():
        state = run.state if run.done or run.state != "done" else "unreadable"
        states[state] = states.get(state, 0) + 1
    gaps = tuple(f"{told(sweep.label(run.group), run, why)} ({run.folder})" for run, why in lacking(study))
    warnings = []
    for run in unique.values():
        found = run.summary.get("warnings")
        for name, detail in sorted(found.items()) if isinstance(found, dict) else ():
            if detail:
                warnings.append((sweep.label(run.group), str(run.seed), str(name), _detail(detail)))
    return Answer(
        _question(study),
        *_result(study),
        _limits(study),
        gaps,
        tuple(warnings),
        f"{_extent(study, states)} {_cost(study)}".rstrip(),
    )


def _detail(detail: object) -> str:
    if isinstance(detail, dict):
        return ", ".join(f"{key} {value}" for key, value in sorted(detail.items()))
    return f"{detail} times" if isinstance(detail, int) and not isinstance(detail, bool) else str(detail)


def _question(study: Study) -> str:
    sweep, title = study.sweep, study.primary.measure.title
    if sweep.baseline is None:
        return f"What {title} do the methods reach?"
    names = [sweep.label(group) for group in sweep.groups if group != sweep.baseline]
    if not names:
        return f"What {title} does {sweep.label(sweep.baseline)} reach?"
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]
    return f"Does {listed} change the {title}, compared with {sweep.label(sweep.baseline)}?"


def _result(study: Study) -> tuple[str, str]:
    block, sweep = study.primary, study.sweep
    usable = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not block.comparisons:
        shown = [(e, format_estimate(e.mean, e.interval) or "no result") for e in block.estimates]
        values = [f"{sweep.label(e.group)} {text} ({_many(len(e.seeds), 'seed')})" for e, text in shown]
        why = "There is no other method to compare with."
        if len(values) > 1:
            why = "No baseline is declared (experiment.baseline), and so no method is compared with another."
        return f"{capital(block.measure.title)}: {'; '.join(values)}.", why
    if not usable:
        why = "; ".join(f"{sweep.label(c.group)}: {c.verdict}" for c in block.comparisons)
        if not any(e.seeds for e in block.estimates if e.group == sweep.baseline):
            why = f"{sweep.label(block.comparisons[0].baseline)}, the baseline, has no result in any seed"
        if not any(estimate.recorded for estimate in block.estimates):
            why = _unrecorded(study, block.measure.metric)
        return "No method can be compared with the baseline.", f"{why}."
    leader = _leader(block, usable)
    sign = -1.0 if block.measure.better == "lower" else 1.0
    base = sweep.label(leader.baseline)
    first = _difference(block, leader, base)
    better = sign * (leader.result.mean_difference or 0.0) > 0
    if block.measure.better is None:
        text = f"{sweep.label(leader.group)} has the highest {block.measure.title}: {first}."
    elif better:
        text = f"{sweep.label(leader.group)} did best on the {block.measure.title}: {first}."
    else:
        text = f"No {'method' if len(usable) == len(block.comparisons) else 'compared method'} did better than {base} "
        text += f"on the {block.measure.title}; closest is {sweep.label(leader.group)}: {first}."
    own, theirs = leader.reached or (None, None)
    means = _mean(sweep.label(leader.group), leader.a, own), _mean(base, leader.b, theirs)
    text += f" Means over these seeds: {', '.join(means)}."
    text += "".join(f" {capital(note)}." for note in leader.notes)
    others = [f"{sweep.label(c.group)}, {c.verdict}" for c in block.comparisons if c not in usable]
    text += f" Not compared: {'; '.join(others)}." if others else ""
    return text, _certainty(study, leader, usable)


def _many(n: int, noun: str) -> str:
    return f"{n} {noun if n == 1 else noun + 's'}"


def _mean(name: str, values: Sequence[float], reached: tuple[int, int] | None) -> str:
    """The mean of a group over the seeds, and the cells, that are compared: the difference is of two such means."""
    text = f"{name} {format_number(float(np.mean(values)), 3)}"
    return text if reached is None else f"{text} (reached {reached[0]} of {reached[1]})"


def _unrecorded(study: Study, metric: str) -> str:
    """That no run has a metric, and which one was probably meant."""
    names = sorted({name for run in study.sweep.runs for name in run.curves.values})
    close = difflib.get_close_matches(metric, names, n=1)
    return f"No run has recorded {metric}" + (f"; did you mean {close[0]}? (analysis.primary.metric)" if close else "")


def _leader(block: Block, usable: list[Comparison]) -> Comparison:
    sign = -1.0 if block.measure.better == "lower" else 1.0
    return max(usable, key=lambda c: sign * (c.result.mean_difference or 0.0))


def _extent(study: Study, states: Mapping[str, int]) -> str:
    """How many runs, of which methods and seeds, and what became of them."""
    seeds = sorted({run.seed for run in study.sweep.runs})
    found = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    runs, methods = _many(sum(states.values()), "run"), _many(len(study.sweep.groups), "method")
    return f"{runs}, {methods}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}: {found}."


def _cost(study: Study) -> str:
    """How long the runs trained, and the leader's against the baseline's."""
    seconds: dict[str, dict[str, float]] = {}
    for run in study.sweep.runs:
        taken = run.summary.get("train_seconds")
        if isinstance(taken, (int, float)) and taken > 0:
            seconds.setdefault(run.group, {})[run.id] = float(taken)
    if not seconds:
        return ""
    unique = {run_id: value for by in seconds.values() for run_id, value in by.items()}
    planned = len({run.id for run in study.sweep.runs})
    who = "They" if len(unique) == planned else f"The {len(unique)} that report their time"
    text = f"{who} trained for {_duration(sum(unique.values()))} in all"
    usable = [c for c in study.primary.comparisons if c.result.mean_difference is not None]
    if usable and (leader := _leader(study.primary, usable)).group in seconds and leader.baseline in seconds:
        mine, base = (sum(by.values()) / len(by) for by in (seconds[leader.group], seconds[leader.baseline]))
        names = study.sweep.label(leader.group), study.sweep.label(leader.baseline)
        text += f"; a run of {names[0]} took {format_number(mine / base, 3)} times as long as one of {names[1]}"
    return f"{text}."


def _duration(seconds: float) -> str:
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{format_number(seconds / size, 2)} {unit}"
    return f"{format_number(seconds, 2)} seconds"


def _difference(block: Block, comparison: Comparison, base: str) -> str:
    result = comparison.result
    amount = format_estimate(result.mean_difference, result.interval, signed=True)
    unit = f" {block.measure.unit}" if block.measure.unit else ""
    word = "better" if block.measure.better else "higher"
    planned = max(estimate.planned for estimate in block.estimates if estimate.group == comparison.group)
    only = f" (only {result.n} of {planned} planned pairs have both results)" if result.n < planned else ""
    return f"{amount}{unit} against {base}, {word} in {result.better} of {_many(result.n, 'seed')}{only}"


def _certainty(study: Study, leader: Comparison, usable: list[Comparison]) -> str:
    settings, sweep = study.settings, study.sweep
    size = len(study.primary.comparisons)
    result = leader.result
    p = format_p(leader.adjusted, settings.alpha)
    if leader.adjusted is not None and leader.adjusted <= settings.alpha:
        over = f", adjusted for {size} comparisons" if size > 1 else ""
        normal = study.primary.family is not None and study.primary.family.test == "paired_t"
        by = " by the paired t test, which rests on normal differences" if normal else ""
        text = f"This holds at alpha = {settings.alpha:g}{by}: {leader.verdict} (p = {p}{over})."
    else:
        over = f" for {size} comparisons" if size > 1 else ""
        said = f"p = {p}" if p and f"p = {p}" not in leader.verdict else ""
        detail = ": ".join(filter(None, (f"adjusted{over}" if p and over else "", said)))
        detail = f" ({detail})" if detail else ""
        exact = "the exact test " if leader.verdict.startswith("cannot") else ""
        text = f"How sure: {exact}{leader.verdict}{detail}."
    if result.p_t is not None and study.primary.family is not None and study.primary.family.method == "max_t":
        text += (
            f" The paired t test on its own, which rests on normal differences and is not adjusted, gives "
            f"p = {format_p(result.p_t, settings.alpha)}."
        ).replace("= <", "<")
    decided = [c for c in usable if c is not leader and c.adjusted is not None and c.adjusted <= settings.alpha]
    if decided:
        text += " Also decided: " + "; ".join(f"{sweep.label(c.group)} {c.verdict}" for c in decided) + "."
    return text.replace("p = <", "p <")


def _factors(study: Study, group: str) -> tuple[str, ...]:
    """The factors of which a group has several levels."""
    levels: dict[str, set[str]] = {}
    for run in study.sweep.runs:
        for factor, level in run.cell if run.group == group else ():
            levels.setdefault(factor, set()).add(repr(level))
    return tuple(factor for factor, found in levels.items() if len(found) > 1)


def averaged(study: Study) -> list[str]:
    """Which groups are averaged within each seed, and over what, in a sentence; none where none is."""
    over: dict[tuple[str, ...], list[str]] = {}
    for group in study.sweep.groups:
        if factors := _factors(study, group):
            over.setdefault(factors, []).append(study.sweep.label(group))
    said = "; ".join(f"{', '.join(names)} over the levels of {', '.join(key)}" for key, names in over.items())
    return [f"Averaged within each seed first: {said}."] if said else []


def _limits(study: Study) -> tuple[str, ...]:
    """What brackets hold, what is averaged, and what the seeds at hand can decide at all: to be read before any p."""
    settings, block = study.settings, study.primary
    family = block.family
    tests = 1 if family is None else max(1, multiplied(family.method, family.test, len(block.comparisons)))
    needed = seeds_needed(settings.alpha, tests)
    lines = [*added_seeds.said(study.sweep)]
    if any(estimate.interval for estimate in block.estimates):
        level = f"{100 * (1 - settings.alpha):g}%"
        lines.append(f"In brackets: {level} t intervals over seeds, not adjusted for the number of comparisons.")
    lines += averaged(study)
    for n in sorted({c.result.n for c in block.comparisons} - {0}):
        members = [c for c in block.comparisons if c.result.n == n]
        names = ", ".join(study.sweep.label(c.group) for c in members)
        who = "" if len(members) == len(block.comparisons) else f" ({names})"
        pairs = f"{n} {'pair' if n == 1 else 'pairs'} of seeds{who}"
        text = f"{pairs}: the smallest p that the exact test can give is {format_p(floor(n))}"
        text += f", {format_p(min(1.0, tests * floor(n)))} adjusted for {tests} comparisons" if tests > 1 else ""
        text += f"; it needs {needed} seeds for alpha = {settings.alpha:g}." if n < needed else "."
        effect = t_test.detectable(n, settings.alpha)
        spread = [c.result.sd for c in members if c.result.sd and c.result.detectable]
        if effect is not None:
            text += f" A paired t test finds with 80% power a true difference of {effect:.2g} standard deviations"
            unit = f" {block.measure.unit}" if block.measure.unit else ""
            here = f", here {format_number(effect * max(spread), 2)}{unit} at the largest spread seen" if spread else ""
            text += f"{here}."
        lines.append(text)
    declared = ((study.sweep.plan.get("analysis") or {}).get("primary") or {}).get("direction")
    if lines and declared is None and describe(block.measure.metric).direction is None:
        lines.append(
            f"That a {settings.direction} {describe(block.measure.metric).label} is better is an assumption: the "
            "experiment does not say which way is (analysis.primary.direction)."
        )
    return tuple(lines)
