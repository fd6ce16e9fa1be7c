"""The verdicts on declared hypotheses; docs/report.md says what each means.

A claim about all groups needs every comparison. If one group or hypothesis among m is enough, each is tested at
alpha / m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.findings import interim, ratios
from analysis.findings.study import (
    Block,
    Bound,
    Comparison,
    Ground,
    Measure,
    Outcome,
    Reason,
    Study,
    block,
    no_interval,
    range_of,
    time_to,
)
from analysis.spec import registry
from analysis.spec.declaration import Declaration
from analysis.spec.hypothesis import Hypothesis, described
from analysis.spec.metric_catalog import describe
from analysis.stats import dispersion, power
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import Interval
from analysis.stats.resolution import FEW, T_TESTS, seeds_needed

# How often, with 5 to 10 seeds, the interval of one group's mean or variation misses the truth, if its seeds are
# skewed, heavy-tailed or collapse now and then: benchmarks.validity counts it.
WRONG_MEANS, WRONG_SPREADS = 0.33, 0.6


@dataclass(frozen=True)
class Verdict:
    """The verdict on a hypothesis and its grounds, in the order of their weight.

    estimate and interval: of `measures` (two for pareto), of the group against the groups `against` where there are
    any; of a joint hypothesis the number of supported ones. n: the seeds behind it. bound: of an estimate that is one.
    comparisons: those that a claim about them rests on. declared: when the hypothesis was; None: not recorded.
    """

    hypothesis: Hypothesis
    verdict: Outcome
    grounds: tuple[Ground, ...]
    n: int = 0
    estimate: float | None = None
    interval: Interval | None = None
    measures: tuple[Measure, ...] = ()
    against: tuple[str, ...] = ()
    bound: Bound | None = None
    comparisons: tuple[Comparison, ...] = ()
    declared: Declaration | None = None


def judge(hypothesis: Hypothesis, study: Study) -> Verdict:
    """Judge one hypothesis on the runs of its experiment.

    Raises ValueError for an unknown kind or group, which no valid plan has.
    """
    if hypothesis.kind not in _JUDGES:
        raise ValueError(f"{hypothesis.id}: kind = {hypothesis.kind!r}; must be one of {', '.join(_JUDGES)}")
    for group in (hypothesis.group, *hypothesis.against):
        if group and group not in study.sweep.groups:
            raise ValueError(f"{hypothesis.id}: group = {group!r}; must be one of {', '.join(study.sweep.groups)}")
    verdict = _JUDGES[hypothesis.kind](hypothesis, study)
    if hypothesis.metrics and not registry.is_judged(hypothesis.summary):
        return replace(verdict, verdict=Outcome.NOT_EVALUABLE, grounds=(Ground(Reason.MAXIMUM),))
    others = study.sweep.groups if hypothesis.kind in ("extreme", "pareto") else hypothesis.against
    of_drawn = any(describe(metric).of_drawn for metric in hypothesis.metrics)
    if apart := [other for other in others if of_drawn and study.sweep.draw_apart(hypothesis.group, other)]:
        ground = Ground(Reason.DRAWN_APART, (hypothesis.group, *apart))
        return replace(verdict, verdict=Outcome.NOT_EVALUABLE, grounds=(ground,), interval=None, comparisons=())
    if verdict.verdict in (Outcome.SUPPORTED, Outcome.CONTRADICTED) and verdict.n < FEW:
        by_t = study.settings.test_of(hypothesis.compared) in T_TESTS
        return replace(verdict, grounds=(*verdict.grounds, Ground(Reason.FEW_SEEDS, n=verdict.n))) if by_t else verdict
    if verdict.verdict is not Outcome.NOT_EVALUABLE:
        return verdict
    return replace(verdict, grounds=tuple(dict.fromkeys([*verdict.grounds, *_missing(hypothesis, study)])))


def _missing(h: Hypothesis, study: Study) -> Iterator[Ground]:
    """Why runs of the groups that a hypothesis is about have no value of what it asks."""
    for metric in h.metrics:
        for estimate in _block(h, study, metric, None).estimates:
            if h.kind in ("extreme", "pareto") or estimate.group in (h.group, *h.against):
                for why in sorted({gap.why for gap in estimate.gaps}):
                    yield Ground(Reason.NO_VALUE, (estimate.group,), detail=why)


def _described(h: Hypothesis, study: Study) -> Verdict:
    """A range or a variation of one group, whose interval rests on normal seeds: where it lies is described."""
    measured = _block(h, study, h.metrics[0], None)
    estimate = measured.estimate(h.group)
    values, n = estimate.values, len(estimate.seeds)
    value, interval, ground = estimate.mean, estimate.interval, no_interval(n)
    if h.kind == "variation":
        level = interim.level(study.sweep, study.settings, h.group)
        value, interval = dispersion.variation(values, level) or (None, None)
        ground = Ground(Reason.BOTH_SIGNS) if n > 1 and min(values) <= 0 <= max(values) else ground
    if not estimate.recorded:
        verdict, grounds = Outcome.NOT_EVALUABLE, [Ground(Reason.NOT_RECORDED, (h.group,))]
    elif interval is None:
        verdict, grounds = Outcome.NOT_EVALUABLE, [ground]
    else:
        verdict, grounds = Outcome.NOT_JUDGED, [_within(interval, h, study)]
        inside = [_within((of, of), h, study).reason is Reason.INTERVAL_INSIDE for of in values]
        outside = tuple(seed for seed, within in zip(estimate.seeds, inside, strict=True) if not within)
        summary = registry.summary_of(h.summary)
        every_step = h.kind == "range" and summary is not None and summary.every_step
        if grounds[0].reason is Reason.INTERVAL_INSIDE and every_step and outside:  # the mean hides the run that failed
            grounds.append(Ground(Reason.SEEDS_OUTSIDE, seeds=outside))
        grounds.append(Ground(Reason.NORMAL_SEEDS, value=WRONG_MEANS if h.kind == "range" else WRONG_SPREADS))
    return Verdict(h, verdict, tuple(grounds), n, value, interval, (measured.measure,))


def _ratio(h: Hypothesis, study: Study) -> Verdict:
    measured, comparison = _compared(h, study)
    ratio = ratios.of_comparison(comparison, measured.budget, inverse=h.summary == "efficiency")
    without = _unrecorded(comparison, measured)
    if without or ratio.contrast is None:
        verdict, grounds = Outcome.NOT_EVALUABLE, [without or ratio.ground or no_interval(ratio.n)]
    else:
        low, high = (None if bound is None else ratio.side(bound) for bound in (h.low, h.high))
        if low in (None, 1) and high in (None, -1):
            verdict, grounds = Outcome.SUPPORTED, [Ground(Reason.INTERVAL_INSIDE, level=ratio.level)]
        elif low == -1 or high == 1:
            verdict, grounds = Outcome.CONTRADICTED, [Ground(Reason.INTERVAL_OUTSIDE, level=ratio.level)]
        elif ratio.interval is None:
            needed = seeds_needed(study.settings.alpha, 1, comparison.contrast.test)
            too_few = comparison.ground or Ground(Reason.TOO_FEW_SEEDS, n=comparison.n, needed=needed)
            verdict, grounds = Outcome.INCONCLUSIVE, [too_few]
        else:
            verdict, grounds = Outcome.INCONCLUSIVE, [Ground(Reason.INTERVAL_ACROSS, level=ratio.level)]
            if not ratio.bound:
                bounds = [bound for bound in (h.low, h.high) if bound is not None]
                scaled = [replace(ratio.contrast, b=ratio.contrast.b * bound) for bound in bounds]
                grounds += _would_decide(scaled, ratio.level)
        grounds += [ratio.ground] if ratio.ground else []
        if comparison.reached and not ratio.bound and verdict is not Outcome.INCONCLUSIVE:
            grounds.append(_unseen(comparison.n, study.settings.alpha))
    measures = (measured.measure,)
    return Verdict(h, verdict, tuple(grounds), ratio.n, ratio.value, ratio.interval, measures, h.against, ratio.bound)


def _than(h: Hypothesis, study: Study) -> Verdict:
    measured, comparison = _compared(h, study)
    interval = comparison.interval
    grounds: list[Ground] = []
    if comparison.outcome in (Outcome.HIGHER, Outcome.LOWER):
        claimed = Outcome.HIGHER if h.kind == "greater" else Outcome.LOWER
        verdict = Outcome.SUPPORTED if comparison.outcome is claimed else Outcome.CONTRADICTED
    elif comparison.outcome is Outcome.NOT_EVALUABLE:
        verdict = Outcome.NOT_EVALUABLE
    else:
        verdict = Outcome.INCONCLUSIVE
    # The budget hides how much longer a time that it cuts would be, and the first window how much shorter.
    margin = 0.0 if h.margin is None or any(comparison.times_cut + comparison.times_first) else h.margin
    if margin:
        small = _smaller(comparison, margin, study.settings.alpha)
        verdict = Outcome.EQUIVALENT if small and verdict is Outcome.INCONCLUSIVE else verdict
        grounds += small
    undecided = comparison.outcome is Outcome.INCONCLUSIVE and comparison.ground is None
    if verdict is Outcome.INCONCLUSIVE and undecided:
        grounds += _would_decide([comparison.contrast], comparison.level, margin)
    return Verdict(
        h, verdict, tuple(grounds), comparison.n, comparison.mean_difference, interval, (measured.measure,),
        h.against, comparisons=(comparison,),
    )  # fmt: skip


def _smaller(comparison: Comparison, margin: float, alpha: float) -> list[Ground]:
    """Why a difference is smaller than a margin, with the assumption that this rests on; empty if it may not be.

    It takes as many seeds as a test that counts: a few seeds that agree by chance have a short t interval.
    """
    interval, n = comparison.interval, comparison.n
    if interval is None or n < seeds_needed(alpha) or interval[0] <= -margin or interval[1] >= margin:
        return []
    return [Ground(Reason.SMALLER_THAN_MARGIN, value=margin, level=comparison.level), _unseen(n, alpha)]


def _unseen(n: int, alpha: float) -> Ground:
    """The ground for a doubt: with chance alpha, n runs miss collapses that occur in up to this share of all runs."""
    return Ground(Reason.UNSEEN_COLLAPSE, n=n, value=1 - alpha ** (1 / n), level=alpha)


def _between(h: Hypothesis, study: Study) -> Verdict:
    measured = _block(h, study, h.metrics[0], h.group)
    pair = [_comparison(measured, group) for group in h.against]
    sides = [c.contrast.side(study.settings.alpha) for c in pair]
    estimate = measured.estimate(h.group)
    without = next(filter(None, (_unrecorded(c, measured) or _no_test(c) for c in pair)), None)
    grounds: list[Ground] = []
    if without:
        verdict, grounds = Outcome.NOT_EVALUABLE, [without]
    elif all(sides):
        verdict = Outcome.SUPPORTED if sides[0] != sides[1] else Outcome.CONTRADICTED
    else:
        verdict = Outcome.INCONCLUSIVE
        unsure = [c for c, side in zip(pair, sides, strict=True) if not side]
        grounds += _needing(_all_of(_seeds_to_tell(c.contrast, study.settings.alpha) for c in unsure))
    return Verdict(
        h, verdict, tuple(grounds), min(c.n for c in pair), estimate.mean, estimate.interval,
        (measured.measure,), comparisons=() if without else tuple(pair),
    )  # fmt: skip


def _extreme(h: Hypothesis, study: Study) -> Verdict:
    measured = _block(h, study, h.metrics[0], h.group)
    measures = (measured.measure,)
    sign = -1 if h.ways == ("higher",) else 1  # a rival's difference to the group, times this, is the group's lead
    rivals = [c for c in measured.comparisons if not _unrecorded(c, measured)]
    usable = [c for c in rivals if c.contrast.difference is not None]
    if not usable:
        why = next((_unrecorded(c, measured) or _no_test(c) for c in measured.comparisons), None)
        return Verdict(h, Outcome.NOT_EVALUABLE, (why or Ground(Reason.NO_RIVAL),), measures=measures)
    alpha, level = study.settings.alpha, study.settings.alpha / len(rivals)
    sides = {c.group: c.contrast.side(alpha) for c in rivals}
    ahead = [c for c in rivals if sides[c.group] == sign]
    past = [c for c in usable if c.contrast.side(level) == -sign]
    closest = min(usable, key=lambda c: sign * c.difference)
    if past:
        verdict, grounds = Outcome.CONTRADICTED, [Ground(Reason.RIVALS_PAST, _groups(past))]
    elif len(ahead) == len(rivals):
        verdict, grounds = Outcome.SUPPORTED, [Ground(Reason.LEADS_EVERY_RIVAL, n=len(rivals))]
    else:
        blind = [why for c in rivals if (why := _no_test(c))]
        unsure = [c for c in rivals if c not in ahead]
        if len(blind) == len(rivals):
            verdict, grounds = Outcome.NOT_EVALUABLE, blind
        else:
            verdict, grounds = Outcome.INCONCLUSIVE, [Ground(Reason.NOT_TOLD_FROM, _groups(unsure))]
            if nearly := [c for c in unsure if sides[c.group] == -sign]:
                grounds.append(Ground(Reason.NOT_PAST_AT_LEVEL, _groups(nearly), n=len(rivals), level=level))
            # As the means stand, the surest of the better ones contradicts; if none is better, all must be told apart.
            better = [_seeds_to_tell(c.contrast, level) for c in usable if sign * c.difference < 0]
            needed = _one_of(better) if better else _all_of(_seeds_to_tell(c.contrast, alpha) for c in unsure)
            grounds += [*_needing(needed), *blind]
    nearest, lead = (closest.group,), closest.mirrored.contrast
    grounds += [Ground(Reason.CLOSEST_RIVAL, nearest), *_left_out(measured, rivals)]
    return Verdict(h, verdict, tuple(grounds), lead.n, lead.difference, lead.interval(alpha), measures, nearest)


def _pareto(h: Hypothesis, study: Study) -> Verdict:
    """A rival is no better by both where the group leads surely by either, each asked at half the level."""
    measured = [_block(h, study, metric, h.group) for metric in h.metrics]
    measures = tuple(block.measure for block in measured)
    signs = [-1 if way == "higher" else 1 for way in h.ways]
    pairs = [
        pair for pair in zip(*(block.comparisons for block in measured), strict=True)
        if not any(_unrecorded(c, block) for c, block in zip(pair, measured, strict=True))
    ]  # fmt: skip
    if not pairs:
        why = next((_unrecorded(c, measured[0]) for c in measured[0].comparisons), None)
        return Verdict(h, Outcome.NOT_EVALUABLE, (why or Ground(Reason.NO_RIVAL),), measures=measures)
    alpha, level = study.settings.alpha, study.settings.alpha / len(pairs)

    def sides(pair: Sequence[Comparison], at: float) -> list[int]:
        """For each metric: 1 where the group is surely ahead at this level, -1 where the rival is, else 0."""
        return [sign * c.contrast.side(at) for c, sign in zip(pair, signs, strict=True)]

    above = [pair[0] for pair in pairs if max(sides(pair, level)) < 0]
    unsure = [pair for pair in pairs if max(sides(pair, alpha / 2)) < 1]
    behind = [pair for pair in pairs if all(sign * c.difference < 0 for c, sign in zip(pair, signs, strict=True))]
    blind = [_no_test(c) for pair in pairs for c in pair]
    if all(blind):
        verdict, grounds = Outcome.NOT_EVALUABLE, list(dict.fromkeys(filter(None, blind)))
    elif above:
        verdict, grounds = Outcome.CONTRADICTED, [Ground(Reason.BETTER_BY_BOTH, _groups(above))]
    elif not unsure:
        verdict, grounds = Outcome.SUPPORTED, [Ground(Reason.AHEAD_BY_ONE, n=len(pairs))]
    else:
        verdict, grounds = Outcome.INCONCLUSIVE, [Ground(Reason.NOT_AHEAD, _groups([pair[0] for pair in unsure]))]
    by_means = Reason.BEHIND_BY_MEANS if behind else Reason.FRONT_BY_MEANS
    grounds.append(Ground(by_means, _groups([pair[0] for pair in behind])))
    if verdict is Outcome.INCONCLUSIVE and behind:
        grounds += _needing(_one_of([_all_of(_seeds_to_tell(c.contrast, level) for c in pair) for pair in behind]))
    elif verdict is Outcome.INCONCLUSIVE:
        leading = [[c for c, sign in zip(pair, signs, strict=True) if sign * c.difference > 0] for pair in unsure]
        grounds += _needing(_all_of(_one_of([_seeds_to_tell(c.contrast, alpha / 2) for c in pair]) for pair in leading))
    grounds += _left_out(measured[0], [pair[0] for pair in pairs])
    return Verdict(h, verdict, tuple(grounds), min(c.n for pair in pairs for c in pair), measures=measures)


def _spread(h: Hypothesis, study: Study) -> Verdict:
    measured, comparison = _compared(h, study)
    alpha, most = interim.level(study.sweep, study.settings, h.group, *h.against), h.high or 1.0
    both = comparison.contrast
    scatter = dispersion.against(both.a, both.b, most, alpha, both.paired) if comparison.n else None
    without = _unrecorded(comparison, measured) or (_no_test(comparison) if comparison.n < 2 else None)
    if without or scatter is None or scatter.interval is None:
        verdict, grounds = Outcome.NOT_EVALUABLE, [without or Ground(Reason.NO_SPREAD_OF_DISTANCES)]
    else:
        low, high = scatter.interval
        verdict = Outcome.CONTRADICTED if low > 0 else Outcome.SUPPORTED if high < 0 else Outcome.INCONCLUSIVE
        excess = scatter.contrast.difference
        grounds = [Ground(Reason.EXCESS_SPREAD, (h.group, *h.against), value=excess, interval=scatter.interval)]
        grounds += _would_decide([scatter.contrast], alpha) if verdict is Outcome.INCONCLUSIVE else []
    ratio = None if scatter is None else scatter.ratio
    return Verdict(h, verdict, tuple(grounds), comparison.n, ratio, None, (measured.measure,), h.against)


def _within(interval: Interval, h: Hypothesis, study: Study) -> Ground:
    """Where an interval lies, of a claim of a range."""
    low, high = -math.inf if h.low is None else h.low, math.inf if h.high is None else h.high
    inside, outside = low <= interval[0] and interval[1] <= high, interval[1] < low or high < interval[0]
    across = Reason.INTERVAL_OUTSIDE if outside else Reason.INTERVAL_ACROSS
    return Ground(Reason.INTERVAL_INSIDE if inside else across, level=study.settings.alpha)


def _joint(h: Hypothesis, study: Study) -> Verdict:
    """At least k of m hypotheses. If that is false, m - k + 1 of them are, and one of these wrongly supported may be
    enough: each is asked at the level alpha / (m - k + 1), which for all of them is alpha itself (intersection-union;
    Berger 1982), for any of them Bonferroni's. That k - 1 are true at most is its mirror image: alpha / k."""
    hypotheses = {member.id: member for member in study.settings.hypotheses}
    least, many, alpha = int(h.low or 1), len(h.of), study.settings.alpha
    levels = alpha, alpha / (many - least + 1), alpha / least
    at = {level: replace(study, settings=study.settings.model_copy(update={"alpha": level}), blocks=())
          for level in levels} | {alpha: study}  # fmt: skip
    verdicts = {level: {name: judge(hypotheses[name], asked).verdict for name in h.of} for level, asked in at.items()}
    plain, for_, against = (verdicts[level] for level in levels)
    if list(for_.values()).count(Outcome.SUPPORTED) >= least:
        verdict = Outcome.SUPPORTED
    elif list(against.values()).count(Outcome.CONTRADICTED) > many - least:
        verdict = Outcome.CONTRADICTED
    elif set(plain.values()) == {Outcome.NOT_EVALUABLE}:
        verdict = Outcome.NOT_EVALUABLE
    elif described(h, hypotheses):
        verdict = Outcome.NOT_JUDGED
    else:
        verdict = Outcome.INCONCLUSIVE
    grounds = [Ground(Reason.MEMBER, members=(name,), outcome=outcome) for name, outcome in plain.items()]
    for outcome, level in zip((Outcome.SUPPORTED, Outcome.CONTRADICTED), levels[1:], strict=True):
        if lost := tuple(name for name in h.of if plain[name] is outcome is not verdicts[level][name]):
            grounds.append(Ground(Reason.MEMBERS_AT_LEVEL, members=lost, outcome=outcome, n=many, level=level))
    count = list(plain.values()).count(Outcome.SUPPORTED)
    return Verdict(h, verdict, tuple(grounds), len({run.seed for run in study.sweep.runs}), float(count))


_JUDGES: Mapping[str, Callable[[Hypothesis, Study], Verdict]] = {
    "range": _described, "ratio": _ratio, "greater": _than, "less": _than, "between": _between, "extreme": _extreme,
    "pareto": _pareto, "spread": _spread, "variation": _described, "count": _joint, "all": _joint, "any": _joint,
}  # fmt: skip


# ---------------------------------------------------------------- what a verdict rests on


def _block(h: Hypothesis, study: Study, metric: str, baseline: str | None) -> Block:
    """The groups on the measure that the hypothesis is about, each compared with `baseline`."""
    common = study.ranges.get(metric) or range_of(study.sweep, study.settings, metric)
    summary = registry.summary_of(h.summary)
    direction = study.settings.direction_of(metric) if summary is None or summary.directed else None
    measure = Measure(metric, h.summary, direction)
    if h.target is not None:
        measure = time_to(study.sweep, study.settings, common, h.target)
    known = [other for other in study.blocks if other.measure == measure and baseline == study.sweep.baseline]
    return known[0] if known else block(study.sweep, study.settings, common, measure, baseline)


def _compared(h: Hypothesis, study: Study) -> tuple[Block, Comparison]:
    """The measure of a claim about two groups, and the comparison of these. Of the two, the baseline, or else the group
    that the plan names first, is compared with: a claim and its mirror image are then asked in the same family."""
    order = [study.sweep.baseline, *study.sweep.groups]
    other = h.against[0]
    first = min(h.group, other, key=order.index)
    measured = _block(h, study, h.metrics[0], first)
    if first == other:
        return measured, _comparison(measured, h.group)
    return measured, _comparison(measured, other).mirrored


def _comparison(measured: Block, group: str) -> Comparison:
    return next(c for c in measured.comparisons if c.group == group)


def _would_decide(contrasts: Sequence[Contrast], level: float, margin: float = 0.0) -> list[Ground]:
    """How many seeds would decide with 80% power, if mean and spread stay as they are, where the nearest of several
    bounds counts. margin: below which a difference is equivalent to none; 0 for none. Empty where the number of seeds
    is not what is in the way: a stricter level, or another metric, is."""
    counts = [_seeds_to_tell(contrast, level, margin) for contrast in contrasts]
    needed = max((count for count in counts if count is not None), default=0)
    return _needing(needed) if level > 0 and needed > max(contrast.n for contrast in contrasts) else []


def _needing(seeds: float | None) -> list[Ground]:
    return [] if seeds is None else [Ground(Reason.WOULD_DECIDE, needed=seeds)]


def _seeds_to_tell(contrast: Contrast, level: float, margin: float = 0.0) -> float | None:
    """How many seeds would tell the difference at this level from 0, or from the margin if it is below; infinite above
    power.MOST_SEEDS, None without spread, and where seeds are added: the level is then another at each look."""
    if contrast.effect is None or contrast.spread is None or contrast.look is not None:
        return None
    counts = [power.seeds_to_find(contrast.test, contrast.effect, level)]
    if (room := margin / contrast.spread - contrast.effect) > 0:
        equivalent = power.seeds_to_find(contrast.test, room, level)
        counts.append(None if equivalent is None else max(equivalent, seeds_needed(level)))
    return min((count for count in counts if count is not None), default=math.inf)


def _one_of(seeds: Sequence[float | None]) -> float | None:
    """Where one comparison decides: what the one that needs the fewest seeds needs."""
    return min((count for count in seeds if count is not None), default=None)


def _all_of(seeds: Iterator[float | None]) -> float | None:
    """Where every comparison must decide: what the one that needs the most seeds needs, None if one has no spread."""
    counts = list(seeds)
    known = [count for count in counts if count is not None]
    return max(known, default=None) if len(known) == len(counts) else None


def _unrecorded(comparison: Comparison, measured: Block) -> Ground | None:
    """Which of the two groups does not have the metric at all."""
    both = (comparison.group, comparison.baseline)
    groups = tuple(e.group for e in measured.estimates if not e.recorded and e.group in both)
    return Ground(Reason.NOT_RECORDED, groups) if groups else None


def _no_test(comparison: Comparison) -> Ground | None:
    """Why there is no test of a difference."""
    if comparison.p is not None and comparison.n > 1:
        return None
    return no_interval(comparison.n, (comparison.group, comparison.baseline))


def _groups(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    return tuple(c.group for c in comparisons)


def _left_out(measured: Block, rivals: Sequence[Comparison]) -> list[Ground]:
    """The groups that are no rivals because they do not have the metric."""
    groups = tuple(group for group in _groups(measured.comparisons) if group not in _groups(rivals))
    return [Ground(Reason.LEFT_OUT, groups)] if groups else []
