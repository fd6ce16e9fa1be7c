"""What the runs say of a declared hypothesis, never more certain than the seeds allow.

Supported: the whole interval over seeds is on the claim's side. Contradicted: it is wholly on the other. Equivalent:
the difference is surely smaller than the declared margin, on whichever side. Inconclusive: none of these, with the
seeds that would decide. Not evaluable: there is no interval, with what is missing. A verdict on all groups at once asks
every comparison; one that a single group, or hypothesis, among m would settle asks it at the level alpha / m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.findings import ratios
from analysis.findings.preregistration import UNRECORDED
from analysis.findings.study import Block, Comparison, Measure, Study, block, range_of, time_to
from analysis.numbers import format_estimate, format_number, format_p
from analysis.spec.hypothesis import WORST, Hypothesis
from analysis.stats import compare, dispersion, functions, t_test
from analysis.stats.t_test import Interval

SUPPORTED, CONTRADICTED, EQUIVALENT = "supported", "contradicted", "equivalent"
INCONCLUSIVE, NOT_EVALUABLE = "inconclusive", "not evaluable"


@dataclass(frozen=True)
class Verdict:
    """verdict: supported, contradicted, equivalent, inconclusive or not evaluable. quantity: what estimate and interval
    are of, n its seeds. decided: what decided, or why nothing could. declared: when the hypothesis was, by what
    preregistration.py reads."""

    id: str
    claim: str
    verdict: str
    quantity: str
    estimate: float | None
    interval: Interval | None
    shown: str
    n: int
    decided: str
    declared: str = UNRECORDED


def judge(hypothesis: Hypothesis, runs: Study) -> Verdict:
    """Judge one hypothesis on the runs of its experiment.

    Raises ValueError for a kind that is none or a group that the experiment does not have, which no plan comes to.
    """
    if hypothesis.kind not in _JUDGES:
        raise ValueError(f"{hypothesis.id}: kind = {hypothesis.kind!r}; {', '.join(_JUDGES)} are allowed")
    for group in (hypothesis.group, *hypothesis.against):
        if group and group not in runs.sweep.groups:
            raise ValueError(f"{hypothesis.id}: group = {group!r}; the groups are {', '.join(runs.sweep.groups)}")
    found = _JUDGES[hypothesis.kind](hypothesis, runs)
    if found.verdict != NOT_EVALUABLE:
        return found
    return replace(found, decided="; ".join(dict.fromkeys([found.decided, *_lacking(hypothesis, runs)])))


def _lacking(h: Hypothesis, runs: Study) -> list[str]:
    """Why runs of the groups that a hypothesis is about have no value of what it asks, each reason once a group."""
    reasons: dict[tuple[str, str], None] = {}
    for metric in h.metrics:
        for estimate in block_of(h, runs, metric, None).estimates:
            if h.kind in ("extreme", "pareto") or estimate.group in (h.group, *h.against):
                lost = {gap.partition(": ")[2] for gap in estimate.gaps}
                reasons |= dict.fromkeys((runs.sweep.label(estimate.group), why) for why in sorted(lost))
    return [f"{label}: {why}" for label, why in reasons]


def _range(h: Hypothesis, runs: Study) -> Verdict:
    measured = block_of(h, runs, h.metrics[0], None)
    estimate = next(e for e in measured.estimates if e.group == h.group)
    quantity = f"{measured.measure.title} of {runs.sweep.label(h.group)}"
    n, shown = len(estimate.seeds), format_estimate(estimate.mean, estimate.interval)
    if not estimate.recorded:
        verdict, decided = NOT_EVALUABLE, f"not recorded by {runs.sweep.label(h.group)}"
    elif estimate.interval is None:
        verdict, decided = NOT_EVALUABLE, no_interval(n)
    else:
        verdict, decided = _within(estimate.interval, h, runs)
        each = zip(estimate.seeds, estimate.values, strict=True)
        outside = [str(seed) for seed, value in each if _within((value, value), h, runs)[0] != SUPPORTED]
        if verdict == SUPPORTED and h.summary in WORST and outside:  # a mean may hide the one run where it came to that
            verdict, decided = INCONCLUSIVE, f"{decided}, but not seed {', '.join(outside)}"
        elif verdict == INCONCLUSIVE:
            bounds = [np.asarray(estimate.values) - bound for bound in (h.low, h.high) if bound is not None]
            decided += would_decide(bounds, runs.settings.alpha)
    return Verdict(h.id, h.claim, verdict, quantity, estimate.mean, estimate.interval, shown, n, decided)


def _ratio(h: Hypothesis, runs: Study) -> Verdict:
    (against,) = h.against
    measured = block_of(h, runs, h.metrics[0], against)
    inverse = h.summary == "efficiency"
    comparison = comparison_of(measured, h.group)
    found = ratios.of_comparison(comparison, runs.settings.alpha, inverse)
    names = [runs.sweep.label(group) for group in (h.group, against)]
    over, under = reversed(names) if inverse else names
    quantity = f"{measured.measure.title}: {over} over {under}"
    without = unrecorded(comparison, measured, runs)
    if without or found.interval is None:
        verdict, decided = NOT_EVALUABLE, without or found.reason or no_interval(found.n)
    else:
        verdict, decided = _within(found.interval, h, runs)
        if verdict == INCONCLUSIVE and not found.bound:
            logs = functions.log(comparison.a) - functions.log(comparison.b)
            logs = -logs if inverse else logs
            bounds = [logs - functions.log(bound) for bound in (h.low, h.high) if bound is not None and bound > 0]
            decided += would_decide(bounds, runs.settings.alpha)
        decided += f"; {found.reason}, so that the ratio is {found.bound} this" if found.bound else ""
    return Verdict(h.id, h.claim, verdict, quantity, found.value, found.interval, found.text, found.n, decided)


def _than(h: Hypothesis, runs: Study) -> Verdict:
    (against,) = h.against
    measured = block_of(h, runs, h.metrics[0], against)
    comparison = comparison_of(measured, h.group)
    result, p = comparison.result, comparison.adjusted
    quantity = f"{measured.measure.title}: {runs.sweep.label(h.group)} minus {runs.sweep.label(against)}"
    decisive = p is not None and p <= runs.settings.alpha and result.mean_difference is not None
    told = decisive and result.n > 1 and (result.interval is None or bool(side_of(result.interval)))
    said = comparison.verdict
    if p is not None and "p = " not in said:
        said += f" (adjusted p {'' if p < 0.001 else '= '}{format_p(p, runs.settings.alpha)})"
    if p is None:
        verdict = NOT_EVALUABLE
    elif told:
        verdict = SUPPORTED if ((result.mean_difference or 0.0) > 0) == (h.kind == "greater") else CONTRADICTED
    else:
        verdict = INCONCLUSIVE
    # A t test of times that are cut at the budget would not hold.
    if h.margin is not None and result.interval is not None and result.n > 1:
        small = compare.equivalence(comparison.a, comparison.b, h.margin, runs.settings.alpha)
        if small.equivalent and small.p is not None:
            shown_p = format_p(small.p, runs.settings.alpha)
            verdict = EQUIVALENT
            said += f"; surely smaller than {h.margin:g} (p {'' if small.p < 0.001 else '= '}{shown_p})"
    if verdict == INCONCLUSIVE and result.interval is not None and comparison.verdict.startswith("undecided"):
        said += would_decide([np.subtract(comparison.a, comparison.b)], runs.settings.alpha)
    shown = format_estimate(result.mean_difference, result.interval, signed=True)
    return Verdict(
        h.id, h.claim, verdict, quantity, result.mean_difference, result.interval, shown, result.n, said
    )  # fmt: skip


def _between(h: Hypothesis, runs: Study) -> Verdict:
    measured = block_of(h, runs, h.metrics[0], h.group)
    pair = [comparison_of(measured, group) for group in h.against]
    sides = [side_of(c.result.interval) for c in pair]
    estimate = next(e for e in measured.estimates if e.group == h.group)
    without = next(filter(None, (unrecorded(c, measured, runs) or few(c, runs) for c in pair)), None)
    told = SUPPORTED if sides[0] != sides[1] else CONTRADICTED
    verdict = NOT_EVALUABLE if without else told if all(sides) else INCONCLUSIVE
    lines = [f"{runs.sweep.label(c.group)} minus it {difference_shown(c)}" for c in pair if c.result.n]
    if verdict == INCONCLUSIVE:
        unsure = [c for c, side in zip(pair, sides, strict=True) if not side]
        lines[-1] += so_many(all_of([seeds_to_tell(c, runs.settings.alpha) for c in unsure]))
    return Verdict(
        h.id, h.claim, verdict, f"{measured.measure.title} of {runs.sweep.label(h.group)}", estimate.mean,
        estimate.interval, format_estimate(estimate.mean, estimate.interval), min(c.result.n for c in pair),
        without or "; ".join(lines),
    )  # fmt: skip


def _extreme(h: Hypothesis, runs: Study) -> Verdict:
    measured = block_of(h, runs, h.metrics[0], h.group)
    sign = -1 if h.ways == ("higher",) else 1  # a rival's difference to the group, times this, is the group's lead
    rivals = [c for c in measured.comparisons if not unrecorded(c, measured, runs)]
    quantity = f"{measured.measure.title}: {runs.sweep.label(h.group)}"
    usable = [c for c in rivals if c.result.mean_difference is not None]
    if not usable:
        why = next((unrecorded(c, measured, runs) or few(c, runs) for c in measured.comparisons), None)
        return Verdict(h.id, h.claim, NOT_EVALUABLE, quantity, None, None, "", 0, why or "there is no other group")
    ahead = [c for c in rivals if side_of(c.result.interval) == sign]
    behind = [c for c in usable if side_of(stricter(c, runs, len(rivals))) == -sign]
    closest = min(usable, key=lambda c: sign * (c.result.mean_difference or 0.0))
    lead = compare.paired(closest.b, closest.a, runs.settings.alpha)
    level, past = runs.settings.alpha / len(rivals), f"surely {'below' if sign > 0 else 'above'} it"
    if behind:
        verdict, decided = CONTRADICTED, f"{names_of(behind, runs)} {past}"
    elif len(ahead) == len(rivals):
        verdict, decided = SUPPORTED, f"every interval of a difference to the {len(rivals)} others is on its side"
    else:
        unsure = [c for c in rivals if c not in ahead]
        verdict, decided = INCONCLUSIVE, f"not told from {names_of(unsure, runs)}"
        nearly = [c for c in unsure if side_of(c.result.interval) == -sign]
        if nearly:
            decided += (
                f"; at the level {level:.2g} that one of {len(rivals)} needs, not {past}: {names_of(nearly, runs)}"
            )
        better = [c for c in usable if sign * (c.result.mean_difference or 0.0) < 0]
        # As the means stand, the surest of the better ones contradicts; if none is better, all are to be told from it.
        contradict = one_of([seeds_to_tell(c, level) for c in better])
        decided += so_many(contradict if better else all_of([seeds_to_tell(c, runs.settings.alpha) for c in unsure]))
        blind = [why for c in rivals if (why := few(c, runs))]
        verdict = NOT_EVALUABLE if len(blind) == len(rivals) else verdict
        decided = "; ".join(blind if verdict == NOT_EVALUABLE else [decided, *blind])
    best = "lowest" if sign > 0 else "highest"
    decided += f"; estimate: against {runs.sweep.label(closest.group)}, the {best} of the others"
    decided += left_out(measured, rivals, runs)
    shown = format_estimate(lead.mean_difference, lead.interval, signed=True)
    quantity += f" minus {runs.sweep.label(closest.group)}"
    return Verdict(h.id, h.claim, verdict, quantity, lead.mean_difference, lead.interval, shown, lead.n, decided)


def _pareto(h: Hypothesis, runs: Study) -> Verdict:
    """A rival is no better by both where the group leads surely by either, each asked at half the level."""
    measured = [block_of(h, runs, metric, h.group) for metric in h.metrics]
    signs = [-1 if way == "higher" else 1 for way in h.ways]
    each = [
        pair for pair in zip(*(found.comparisons for found in measured), strict=True)
        if not any(unrecorded(c, found, runs) for c, found in zip(pair, measured, strict=True))
    ]  # fmt: skip
    quantity = " and ".join(found.measure.title for found in measured) + f" of {runs.sweep.label(h.group)}"
    if not each:
        why = next((unrecorded(c, measured[0], runs) for c in measured[0].comparisons), None)
        return Verdict(
            h.id, h.claim, NOT_EVALUABLE, quantity, None, None, "", 0, why or "no other group has both metrics"
        )

    def leads(pair: Sequence[Comparison]) -> bool:
        return any(side_of(stricter(c, runs, 2)) == sign for c, sign in zip(pair, signs, strict=True))

    def dominates(pair: Sequence[Comparison]) -> bool:
        return all(side_of(stricter(c, runs, len(each))) == -sign for c, sign in zip(pair, signs, strict=True))

    above = [pair[0] for pair in each if dominates(pair)]
    unsure = [pair[0] for pair in each if not leads(pair)]
    by_mean = [
        pair[0] for pair in each
        if all(sign * (c.result.mean_difference or 0.0) < 0 for c, sign in zip(pair, signs, strict=True))
    ]  # fmt: skip
    blind = [few(c, runs) for pair in each for c in pair]
    if all(blind):
        verdict, decided = NOT_EVALUABLE, "; ".join(dict.fromkeys(filter(None, blind)))
    elif above:
        verdict, decided = CONTRADICTED, f"{names_of(above, runs)} surely better by both"
    elif not unsure:
        verdict, decided = SUPPORTED, f"surely ahead of each of {len(each)} others by one of the two"
    else:
        verdict, decided = INCONCLUSIVE, f"not surely ahead of {names_of(unsure, runs)} by either"
    decided += f"; by the means {f'behind {names_of(by_mean, runs)} in both' if by_mean else 'on the front'}"
    if verdict == INCONCLUSIVE and by_mean:
        level = runs.settings.alpha / len(each)
        behind = [pair for pair in each if pair[0] in by_mean]
        decided += so_many(one_of([all_of([seeds_to_tell(c, level) for c in pair]) for pair in behind]))
    elif verdict == INCONCLUSIVE:
        ahead = [
            [c for c, sign in zip(pair, signs, strict=True) if sign * (c.result.mean_difference or 0.0) > 0]
            for pair in each if not leads(pair)
        ]  # fmt: skip
        decided += so_many(all_of([one_of([seeds_to_tell(c, runs.settings.alpha / 2) for c in own]) for own in ahead]))
    decided += left_out(measured[0], [pair[0] for pair in each], runs)
    n = min(c.result.n for pair in each for c in pair)
    return Verdict(h.id, h.claim, verdict, quantity, None, None, "", n, decided)


def _spread(h: Hypothesis, runs: Study) -> Verdict:
    (against,) = h.against
    measured = block_of(h, runs, h.metrics[0], against)
    comparison = comparison_of(measured, h.group)
    most = h.high or 1.0
    found = dispersion.against(comparison.a, comparison.b, most, runs.settings.alpha) if comparison.a else None
    group, other = (runs.sweep.label(name) for name in (h.group, against))
    quantity = f"{measured.measure.title}: spread over seeds of {group} over that of {other}"
    without = unrecorded(comparison, measured, runs) or (few(comparison, runs) if comparison.result.n < 2 else None)
    if without or found is None or found.interval is None:
        verdict = NOT_EVALUABLE
        decided = without or "the distances to the medians have no spread: there is no interval"
    else:
        side = side_of(found.interval)
        verdict = {-1: SUPPORTED, 0: INCONCLUSIVE, 1: CONTRADICTED}[side]
        excess = format_estimate(float(found.excess.mean()), found.interval, signed=True)
        decided = f"mean distance to the median, {group} minus {most:g} times {other}: {excess}"
        decided += would_decide([found.excess], runs.settings.alpha) if side == 0 else ""
    ratio = None if found is None else found.ratio
    shown = "-" if ratio is None else format_number(ratio, 2)
    return Verdict(h.id, h.claim, verdict, quantity, ratio, None, shown, comparison.result.n, decided)


def _variation(h: Hypothesis, runs: Study) -> Verdict:
    measured = block_of(h, runs, h.metrics[0], None)
    estimate = next(e for e in measured.estimates if e.group == h.group)
    quantity = f"{measured.measure.title} of {runs.sweep.label(h.group)}: standard deviation over mean"
    n, found = len(estimate.seeds), dispersion.variation(estimate.values, runs.settings.alpha)
    if not estimate.recorded:
        verdict, decided = NOT_EVALUABLE, f"not recorded by {runs.sweep.label(h.group)}"
    elif found is None:
        mixed = n > 1 and min(estimate.values) <= 0 <= max(estimate.values)
        verdict = NOT_EVALUABLE
        decided = "values on both sides of zero have no such share" if mixed else no_interval(n)
    else:
        verdict, decided = _within(found[1], h, runs)
        decided += ", if seeds are normal"
        if verdict == INCONCLUSIVE:
            decided += seeds_said(dispersion.seeds_to_bound(found[0], h.high or 0.0, runs.settings.alpha))
    cv, interval = found or (None, None)
    return Verdict(h.id, h.claim, verdict, quantity, cv, interval, format_estimate(cv, interval), n, decided)


def _within(interval: Interval, h: Hypothesis, runs: Study) -> tuple[str, str]:
    """The verdict of an interval on a claim of a range, and what decided."""
    low, high = -math.inf if h.low is None else h.low, math.inf if h.high is None else h.high
    if h.low is not None and h.high is not None:
        claimed = f"within [{h.low:g}, {h.high:g}]"
    else:
        claimed = f"at least {h.low:g}" if h.low is not None else f"at most {h.high:g}"
    level = f"the {100 * (1 - runs.settings.alpha):g}% interval"
    if low <= interval[0] and interval[1] <= high:
        return SUPPORTED, f"all of {level} is {claimed}"
    if interval[1] < low or high < interval[0]:
        return CONTRADICTED, f"no part of {level} is {claimed}"
    return INCONCLUSIVE, f"a part of {level} is {claimed}, a part is not"


def _joint(h: Hypothesis, runs: Study) -> Verdict:
    """At least k of m hypotheses. If that is false, m - k + 1 of them are, and one of these wrongly supported may be
    enough: each is asked at the level alpha / (m - k + 1), which for all of them is alpha itself (intersection-union;
    Berger 1982), for any of them Bonferroni's. That k - 1 are true at most is its mirror image: alpha / k."""
    members = {member.id: member for member in runs.settings.hypotheses}
    least, many, alpha = int(h.low or 1), len(h.of), runs.settings.alpha
    levels = alpha, alpha / (many - least + 1), alpha / least
    asked = {level: at_level(runs, level) for level in levels}
    found = {level: {name: judge(members[name], one).verdict for name in h.of} for level, one in asked.items()}
    plain, for_, against = (found[level] for level in levels)
    if list(for_.values()).count(SUPPORTED) >= least:
        verdict = SUPPORTED
    elif list(against.values()).count(CONTRADICTED) > many - least:
        verdict = CONTRADICTED
    else:
        verdict = NOT_EVALUABLE if set(plain.values()) == {NOT_EVALUABLE} else INCONCLUSIVE
    decided = "; ".join(f"{name} {said}" for name, said in plain.items())
    for word, level in zip((SUPPORTED, CONTRADICTED), levels[1:], strict=True):
        lost = [name for name in h.of if plain[name] == word != found[level][name]]
        if lost:
            decided += f"; at the level {level:.2g} that a verdict on {many} needs, not {word}: {', '.join(lost)}"
    count = list(plain.values()).count(SUPPORTED)
    seeds = len({run.seed for run in runs.sweep.runs})
    shown = f"{count} of {many}"
    return Verdict(h.id, h.claim, verdict, "hypotheses supported", float(count), None, shown, seeds, decided)


_JUDGES: Mapping[str, Callable[[Hypothesis, Study], Verdict]] = {
    "range": _range, "ratio": _ratio, "greater": _than, "less": _than, "between": _between, "extreme": _extreme,
    "pareto": _pareto, "spread": _spread, "variation": _variation, "count": _joint, "all": _joint, "any": _joint,
}  # fmt: skip


# ---------------------------------------------------------------- what a verdict rests on


def block_of(h: Hypothesis, runs: Study, metric: str, baseline: str | None) -> Block:
    """The groups on the measure that the hypothesis is about, each compared with `baseline`."""
    common = runs.ranges.get(metric) or range_of(runs.sweep, runs.settings, metric)
    if h.target is not None:
        measure = time_to(runs.sweep, runs.settings, common, h.target)
    else:
        measure = Measure(metric, h.summary, runs.settings.direction_of(metric))
    if baseline == runs.sweep.baseline:
        known = next((found for found in runs.blocks if found.measure == measure), None)
        if known is not None:
            return known
    return block(runs.sweep, runs.settings, common, measure, baseline)


def at_level(runs: Study, alpha: float) -> Study:
    """The same runs asked at another level, at which nothing is compared yet."""
    if alpha == runs.settings.alpha:
        return runs
    return replace(runs, settings=replace(runs.settings, alpha=alpha), blocks=())


def comparison_of(found: Block, group: str) -> Comparison:
    """The group's comparison with the block's baseline."""
    return next(c for c in found.comparisons if c.group == group)


def would_decide(distances: Sequence[NDArray[np.float64]], alpha: float) -> str:
    """How many seeds would decide, if mean and spread stay as they are: distances[i], (n,), is of each seed to a
    bound, of which the nearest counts."""
    found = [abs(mean.value) / mean.sd for d in distances if (mean := t_test.mean(d)) is not None and mean.sd]
    seeds = t_test.seeds_to_find(min(found), alpha) if found else None
    if not found or (seeds is not None and seeds <= max(d.size for d in distances)):
        return ""  # what is in the way is not the number of seeds: a stricter level, or another metric
    return seeds_said(seeds)


def seeds_said(seeds: float | None) -> str:
    """The end of a sentence on how many seeds would decide; None: more than t_test.MOST_SEEDS."""
    if seeds is None or seeds > t_test.MOST_SEEDS:
        return f"; more than {t_test.MOST_SEEDS} seeds would be needed if mean and spread stay as they are"
    return f"; about {seeds:g} seeds would decide if mean and spread stay as they are"


def seeds_to_tell(comparison: Comparison, alpha: float) -> float | None:
    """How many seeds would tell the two apart at this level; infinite above t_test.MOST_SEEDS, None without spread."""
    mean = t_test.mean(np.subtract(comparison.a, comparison.b))
    if mean is None or not mean.sd:
        return None
    seeds = t_test.seeds_to_find(abs(mean.value) / mean.sd, alpha)
    return math.inf if seeds is None else seeds


def one_of(seeds: Sequence[float | None]) -> float | None:
    """Where one comparison decides: what the one that needs the fewest seeds needs."""
    return min((count for count in seeds if count is not None), default=None)


def all_of(seeds: Sequence[float | None]) -> float | None:
    """Where every comparison must decide: what the one that needs the most seeds needs."""
    known = [count for count in seeds if count is not None]
    return max(known, default=None) if len(known) == len(seeds) else None


def so_many(seeds: float | None) -> str:
    """seeds_said of what one_of and all_of found; nothing where that is None, not known."""
    return "" if seeds is None else seeds_said(seeds)


def side_of(interval: Interval | None) -> int:
    """Of zero: 1 above it, -1 below it, 0 where the interval has it inside or does not exist."""
    return 0 if interval is None else (interval[0] > 0) - (interval[1] < 0)


def stricter(comparison: Comparison, runs: Study, looks: int) -> Interval | None:
    """The interval of the difference where one of so many comparisons is enough for a verdict."""
    return compare.paired(comparison.a, comparison.b, runs.settings.alpha / looks).interval


def difference_shown(comparison: Comparison) -> str:
    """The mean difference with its interval."""
    return format_estimate(comparison.result.mean_difference, comparison.result.interval, signed=True)


def unrecorded(comparison: Comparison, found: Block, runs: Study) -> str | None:
    """Which of the two groups does not have the metric at all."""
    lacking = [runs.sweep.label(e.group) for e in found.estimates
               if not e.recorded and e.group in (comparison.group, comparison.baseline)]  # fmt: skip
    return f"not recorded by {' and '.join(lacking)}" if lacking else None


def few(comparison: Comparison, runs: Study) -> str | None:
    """Why there is no interval of a difference."""
    if comparison.result.interval is not None:
        return None
    names = f"{runs.sweep.label(comparison.group)} and {runs.sweep.label(comparison.baseline)}"
    return f"{names}: {no_interval(comparison.result.n, 'differences')}"


def no_interval(n: int, what: str = "values") -> str:
    """Why n values have no interval."""
    if n > 1:
        return f"all {n} {what} are equal: without spread there is no interval"
    return "one seed has no interval: two are needed" if n else "no seed has a value: two are needed"


def names_of(comparisons: Sequence[Comparison], runs: Study) -> str:
    """The labels of the groups that are compared."""
    return ", ".join(runs.sweep.label(c.group) for c in comparisons)


def left_out(found: Block, rivals: Sequence[Comparison], runs: Study) -> str:
    """The end of a sentence on the groups that are no rivals because they do not have the metric."""
    known = {c.group for c in rivals}
    lacking = [c for c in found.comparisons if c.group not in known]
    return f"; without {names_of(lacking, runs)}, not recorded" if lacking else ""
