"""The words for what was found: the only place where outcomes and their grounds become English."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from analysis.data.run_values import SHORT, Cut
from analysis.data.sweep import Cell, Sweep
from analysis.findings import interim
from analysis.findings.interim import Status
from analysis.findings.study import Block, Bound, Comparison, Estimate, Gap, Ground, Measure, Outcome, Reason, Study
from analysis.findings.verdicts import Verdict
from analysis.spec.cell import grouped
from analysis.spec.declaration import Registration
from analysis.spec.hypothesis import Hypothesis
from analysis.spec.metric_catalog import capital, describe
from analysis.spec.registry import NO_WINDOW, Points, Window
from analysis.spec.settings import Settings
from analysis.spec.validation import counted, some
from analysis.stats import power
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import Interval, format_estimate, format_level, format_number, format_p
from analysis.stats.resolution import DRAWS, EXACT_UP_TO, FEW, T_TESTS, cannot_decide

_MOST_SEEDS_NAMED = 10
_MOST_CELLS_NAMED = 6
_NO_SPREAD = "are equal: without spread there is no interval"
#: What a ground says. {groups}, {both}: labels, joined by commas or by "and"; {between}: of two groups, else "".
_GROUNDS = {
    Reason.NOT_RECORDED: "not recorded by {both}",
    Reason.NO_COMMON_SEED: "no common seed: analysis.pairing=none compares the means of all seeds",
    Reason.NO_COMMON_CELL: "no cell is in both: {having}",
    Reason.NO_PAIR: "no seed has both",
    Reason.NO_RIVAL: "there is no other group to compare with",
    Reason.NO_VALUE: "{groups}: {detail}",
    Reason.DRAWN_APART: "it is of drawn responses, which {both} draw from different policies",
    Reason.MAXIMUM: "described, not judged: the best of a curve favours noise",
    Reason.NEEDS_TWO_SEEDS: "{between}{few}: two are needed",
    Reason.NO_SPREAD: "{between}all {n} {values} " + _NO_SPREAD,
    Reason.NO_SPREAD_OF_RATIOS: "all {n} ratios " + _NO_SPREAD,
    Reason.NO_SPREAD_OF_DISTANCES: "the distances to the medians have no spread: there is no interval",
    Reason.NOT_POSITIVE: "a ratio needs positive values in every seed",
    Reason.BOTH_SIGNS: "the values lie on both sides of zero: their coefficient of variation has no meaning",
    Reason.NOT_REACHED: "neither group reached the threshold within the budget: there is no time to compare",
    Reason.ALL_TIMES_CUT: "times of both groups are cut at the budget, or the earliest that can be told",
    Reason.TOO_FEW_DRAWS: f"cannot decide: above {EXACT_UP_TO} pairs {DRAWS} sign patterns are drawn, too few for this "
    "alpha",
    Reason.NO_LOOK: "the first look, at {n} seeds, is not finished",
    Reason.FUTILE: "not supported: futile at {n} of at most {needed:g} seeds, with a chance of {share} to be decided "
    "in its favour",
    Reason.INTERVAL_INSIDE: "the whole {level} interval is {claimed}",
    Reason.INTERVAL_OUTSIDE: "no part of the {level} interval is {claimed}",
    Reason.INTERVAL_ACROSS: "only a part of the {level} interval is {claimed}",
    Reason.SEEDS_OUTSIDE: "but not seed {seeds}",
    Reason.NORMAL_SEEDS: "this assumes normal seeds: if they are skewed, or collapse now and then, the interval misses "
    "the truth in up to {share} of experiments",
    Reason.FEW_SEEDS: "this rests on normal seeds, which {n} cannot show",
    Reason.SMALLER_THAN_MARGIN: "the whole {level} interval is within {value:g} of zero",
    Reason.UNSEEN_COLLAPSE: "this assumes that no other run behaves otherwise: what happens in {share} of runs is in "
    "none of {n} with a chance of {alpha:g}",
    Reason.RIVALS_PAST: "{groups} surely {past} it",
    Reason.LEADS_EVERY_RIVAL: "the intervals of its differences to the {n} others are all on its side",
    Reason.NOT_TOLD_FROM: "not distinguishable from {groups}",
    Reason.NOT_PAST_AT_LEVEL: "not surely {past} it at the level {alpha:.2g}, which one of {n} needs: {groups}",
    Reason.CLOSEST_RIVAL: "the estimate is against {groups}, the {best} of the others",
    Reason.LEFT_OUT: "without {groups}, not recorded",
    Reason.BETTER_BY_BOTH: "{groups} surely better by both metrics",
    Reason.AHEAD_BY_ONE: "surely better than each of {n} others by one of the two metrics",
    Reason.NOT_AHEAD: "not surely better than {groups} by either metric",
    Reason.BEHIND_BY_MEANS: "by the means, worse than {groups} by both",
    Reason.FRONT_BY_MEANS: "by the means, on the front",
    Reason.MEMBER: "{members} {outcome}",
    Reason.MEMBERS_AT_LEVEL: "not {outcome} at the level {alpha:.2g}, which a verdict on {n} needs: {members}",
}


_NOT_EVALUABLE = (
    Reason.DRAWN_APART, Reason.NO_PAIR, Reason.NO_LOOK, Reason.NOT_REACHED, Reason.NEEDS_TWO_SEEDS,
    Reason.NO_SPREAD, Reason.TIMES_FIRST,
)  # fmt: skip


def factors(cell: Cell) -> str:
    """A cell of a grid: gamma = 0.8, rho = 0.3."""
    return ", ".join(f"{label} = {level}" for label, level in cell)


def gaps(lost: Iterable[Gap]) -> list[str]:
    """The seeds without a value, or their cells, in one text for each reason."""
    places = grouped(
        (gap.why, f"seed {gap.seed}{''.join(f', {name} {level}' for name, level in gap.cell)}") for gap in lost
    )
    return [f"{'; '.join(several)}: {why}" for why, several in places.items()]


def times_cut(count: int) -> str:
    """How many times are cut at the budget, because the run did not reach the threshold."""
    return f"{count} times are cut at the budget" if count > 1 else "one time is cut at the budget"


def equals(p: float | None, alpha: float | None) -> str:
    """A p value with its relation: "= 0.25", or "< 0.001"."""
    shown = format_p(p, alpha)
    return shown if shown.startswith("<") else f"= {shown}"


# ---------------------------------------------------------------- comparisons


def outcome(comparison: Comparison, measure: Measure, sweep: Sweep, alpha: float) -> str:
    """The outcome of a comparison in words: better than the baseline."""
    ground = comparison.ground
    if comparison.outcome in (Outcome.HIGHER, Outcome.LOWER):
        above, which = comparison.outcome is Outcome.HIGHER, str(comparison.outcome)
        if measure.summary == "time_to":
            which = "later" if above else "earlier"
        elif measure.better is not None:
            which = "better" if above == (measure.better == "higher") else "worse"
        return f"{which} than {sweep.label(comparison.baseline)}{if_normal(comparison.contrast)}"
    if comparison.outcome is Outcome.EQUAL:
        return f"equal in all {comparison.n} seeds" if comparison.n > 1 else "equal in the only seed"
    if ground is None:
        return f"undecided with n = {comparison.sizes}: p = {format_p(comparison.adjusted, alpha)}"
    text = grounds([ground], sweep)
    return f"not evaluable: {text}" if ground.reason in _NOT_EVALUABLE else text


def which_differ(study: Study) -> str:
    """Which of all pairs of methods the primary measure tells apart, and which may be the best; "" unless all pairs are
    compared."""
    block, label = study.primary, study.sweep.label
    if study.settings.compare != "all_pairs" or not block.every:
        return ""
    decided = [c for c in block.every if c.outcome in (Outcome.HIGHER, Outcome.LOWER)]
    above: dict[str, list[str]] = {}
    for c in decided:
        ahead, behind = (c.group, c.baseline) if block.measure.sign * c.difference > 0 else (c.baseline, c.group)
        above.setdefault(label(ahead), []).append(label(behind))
    word, top = ("better", "best") if block.measure.better else ("higher", "highest")
    found = "; ".join(f"{ahead} is {word} than {listed(behind)}" for ahead, behind in above.items())
    may = " or ".join(label(group) for group, (first, _) in block.ranks.items() if first == 1)
    rests = next((if_normal(c.contrast) for c in decided), "")
    count = f"{len(decided) or 'None'} of {counted(len(block.every), 'pair')} of methods is decided"
    count = count if len(decided) < 2 else count.replace(" is ", " are ")
    return f"{count}{f': {found}{rests}' if found else ''}.{f' The {top} may be {may}.' if may else ''}"


def if_normal(contrast: Contrast) -> str:
    """What a decision by a t test rests on with fewer than FEW seeds; "" with more, or by another test."""
    if contrast.test not in T_TESTS or contrast.n >= FEW:
        return ""
    return f", if the {'differences' if contrast.paired else 'values'} of {contrast.n} seeds are normal"


def remark(comparison: Comparison) -> str | None:
    """What a reader must know beside the numbers of a comparison."""
    cut = sum(comparison.times_cut)
    if comparison.ground is not None and comparison.ground.reason is Reason.NOT_REACHED:
        return _GROUNDS[Reason.NOT_REACHED]
    decides = f"{test_name(comparison.contrast.test)} of the restricted mean decides" if comparison.reached else ""
    return "; ".join(filter(None, [times_cut(cut) if cut else "", decides])) or None


def bounded(value: float | None, interval: Interval | None, bound: Bound | None) -> str:
    """An estimate with its interval, open on the side where it is only a bound; "" for none."""
    if bound is None or value is None:
        return format_estimate(value, interval)
    shown = f"{bound} {format_number(value, 3)}"
    if interval is None:
        return shown
    low, high = (format_number(end, 3) for end in interval)
    return f"{shown} [{low}, \N{INFINITY})" if bound is Bound.AT_LEAST else f"{shown} (0, {high}]"


#: Each test in words, and what it rests on.
TESTS = {
    "paired_t": "the paired t test, which rests on normal differences",
    "signflip": "the sign-flip test, which rests on differences that are symmetric about their mean",
    "wilcoxon": "the signed-rank test, which rests on differences that are symmetric",
    "welch": "Welch's t test of two samples, which rests on normal values",
    "relabel": "the exact permutation of the methods' labels, whose null hypothesis is that nothing changes at all",
}
NO_INTERVAL_OF_TIMES = (
    "A mean time has no interval where so few runs do not tell how far it could be: one more run, at the budget, would "
    "make the interval more than 1.3 times as wide."
)
_FAMILIES = {
    "holm": "Holm's adjustment for",
    "max_t": "step-down max-T, which flips the signs of a seed in all comparisons at once, for",
    "bh": "Benjamini and Hochberg's adjustment, which bounds the share of false findings, for",
}


def test_name(test: str) -> str:
    """A test in words, without what it rests on: the paired t test."""
    return TESTS[test].partition(",")[0]


def standard(study: Study) -> str:
    """The one rule for differences: which test decides, what it is adjusted for, and what the interval is."""
    settings, size = study.settings, len(study.primary.every)
    seeds = "over the same seeds" if settings.pairing == "seed" else "of the means of all seeds; seeds are not paired"
    times = settings.test_of("time_to")
    other = f" Times are decided by {TESTS[times]}." if settings.time_to and times != settings.test else ""
    over = f"the {size} comparisons of a measure" if size > 1 else "the one comparison of a measure"
    pairs = max((comparison.n for comparison in study.primary.comparisons), default=0)
    if interim.schedule(study.sweep, settings) is not None:
        other += (
            " Seeds are added at declared looks: each p is the repeated p value of its look, and allows for them all."
        )
    if "signflip" in (settings.test, settings.time_to and times) and pairs > EXACT_UP_TO:
        other += f" Above {EXACT_UP_TO} pairs, {DRAWS} sign patterns are drawn."
    return (
        f"Difference: group minus baseline {seeds}. {capital(TESTS[settings.test])}, decides it, by the adjusted p: "
        f"{_FAMILIES[settings.family]} {over}.{other} The brackets hold the differences that this test does not "
        f"reject at the level at which it is asked, so they exclude zero exactly where the adjusted p is at most "
        f"{settings.alpha:g}."
    )


def levels(shown: Iterable[Estimate | Comparison], alpha: float) -> str:
    """The levels of the intervals shown: 95%, or 95 to 98.75%. alpha: of those that are not there."""
    of = {each.contrast.level(each.level) if isinstance(each, Comparison) else each.level
          for each in shown if each.interval}  # fmt: skip
    ends = dict.fromkeys(map(format_level, (max(of, default=alpha), min(of, default=alpha))))
    return " to ".join(ends).replace("% to", " to")


def interim_lines(study: Study) -> list[str]:
    """By which rule seeds are added, and where each comparison of the primary measure stands; empty if their number was
    fixed."""
    if (schedule := interim.schedule(study.sweep, study.settings)) is None:
        return []
    sizes, shares = (listed(map(str, schedule.sizes)), listed(f"{share:.0%}" for share in schedule.spent))
    text = (
        "The number of seeds depends on results, by a rule that was declared: the comparisons are looked at with "
        f"{sizes} seeds, until each is decided or futile. By each look, {shares} of alpha may be spent. p values and "
        "intervals are those of this design, and hold at whichever look the seeds end."
    )
    if later := [seed for seed in schedule.seeds if seed not in schedule.at(schedule.finished)]:
        have = f"{capital(seeds_in_words(later))}: no finished look has {'them' if len(later) > 1 else 'it'} yet"
        text += f" {have}, so no value, difference or interval does."
    return [text, *(_stands(c, study) for c in study.primary.comparisons if c.standing and c.standing.look)]


def _stands(comparison: Comparison, study: Study) -> str:
    """Where a comparison stands after its last look."""
    standing = comparison.standing
    assert standing is not None
    label, test = study.sweep.label(comparison.group), test_name(comparison.contrast.test)
    at = f"look {standing.look} of {standing.looks} ({standing.seeds} of at most {standing.most} seeds)"
    boundary = f"{test} decides there if its p is at most {format_p(standing.level)}" if standing.level else (
        f"{test} can decide nothing there")  # fmt: skip
    likely = "" if standing.chance is None else f"; a chance of {standing.chance:.0%} to be decided in its favour"
    return {
        Status.DECIDED: f"{label}: decided at {at}; {boundary}, before it is adjusted for the looks.",
        Status.FUTILE: f"{label}: futile at {at}{likely}. It is not supported; it is not shown to be worse either.",
        Status.CONTINUE: f"{label}: not decided at {at}; {boundary}{likely}.",
        Status.ENDED: f"{label}: not decided at {at}, its last; {boundary}.",
    }[standing.status]


def listed(texts: Iterable[str], word: str = "and") -> str:
    """Texts with a word before the last one: a, b and c."""
    *first, last = texts
    return f"{', '.join(first)} {word} {last}" if first else last


def measured(study: Study, metric: str) -> str:
    """Up to which step a metric is measured, and which runs set it, if others go further."""
    common = study.ranges.get(metric)
    if common is None or not common.cuts:
        return ""
    cuts = sorted(common.cuts, key=lambda cut: cut.stop)
    several = len({cut.stop for cut in cuts}) > 1
    if common.own_end:
        ends = [common.end(run_id) for run_id in (*common.curves, *common.partial)]
        text = f"each run is measured to its own end (analysis.end: own), {_span((min(ends), max(ends)))} steps; times "
        text += "and curves end where the shortest whole run ends"
    elif several:
        low, high = (f"step {_step(cut.stop)} ({factors(cut.level)})" for cut in (cuts[0], cuts[-1]))
        text = f"each level is measured to its own end, from {low} to {high}; times and mean curves end at the first"
    else:
        text = f"measured to step {_step(cuts[0].stop)}"
    by_cut = [cut for cut in cuts if cut.setters]
    for cut in by_cut[:_MOST_CELLS_NAMED] if not common.own_end else []:
        at = f"; {factors(cut.level)} to step {_step(cut.stop)}" if cut.level and several else ""
        text += f"{at}, where {_setters(study, cut, metric)} (the longest run: {_step(cut.furthest)})"
    if common.partial and not common.own_end:
        text += f". Runs that end more than {SHORT:.0%} early are missing"
    if common.grids:
        text += ". Runs were recorded at different steps: each is interpolated onto common ones before it is summarised"
    return f"{text}."


def drawn_apart(block: Block) -> list[Comparison]:
    """The comparisons that a measure of drawn responses does not have, because the two draw from other policies."""
    return [c for c in block.comparisons if c.ground is not None and c.ground.reason is Reason.DRAWN_APART]


def sources(study: Study, block: Block) -> list[str]:
    """A sentence on the methods that a measure of drawn responses does not compare, and from what each draws."""
    if not (apart := drawn_apart(block)):
        return []
    groups = [apart[0].baseline, *(c.group for c in apart)]
    drawn = "; ".join(f"{study.sweep.label(g)}: {' or '.join(sorted(study.sweep.sources(g)))}" for g in groups)
    label = capital(describe(block.measure.metric).label)
    return [f"{label}: not compared between methods that draw from different policies ({drawn})."]


def range_note(study: Study, metrics: Sequence[str] | None = None) -> str:
    """For a caption: how far these metrics, by default the primary one, are measured, and the seeds of a method."""
    notes: dict[str, list[str]] = {}
    for metric in metrics or (study.settings.metric,):
        if not (text := measured(study, metric)):
            continue
        common = study.ranges[metric]
        groups = [group for group in study.sweep.groups if group not in common.absent]
        counts = [len({run.seed for run in study.sweep.runs_of(group) if run.id in common.curves}) for group in groups]
        seeds = f"n = {_span((min(counts), max(counts)))} seeds a method"
        notes.setdefault(f"{text[:-1]}; {seeds}.", []).append(describe(metric).label)
    return " ".join(f"{'; '.join(of)}: {text}" if len(notes) > 1 else capital(text) for text, of in notes.items())


def _setters(study: Study, cut: Cut, metric: str) -> str:
    """Which runs end first: that of A, seed 3; all runs of A; most runs. One whose later values are not finite ends as
    well."""
    runs = [run for run in study.sweep.runs if set(cut.level) <= set(run.cell)]
    ending = [run for run in runs if (run.group, run.seed) in cut.setters]
    goes_on = all(run.curves.ends.get(metric, cut.stop) > cut.stop for run in ending)
    end = "have their last finite values" if goes_on else "end"
    groups = {group for group, _ in cut.setters}
    if len(groups) == 1 and len(cut.setters) == sum(run.group in groups for run in runs) > 1:
        return f"the runs of {study.sweep.label(*groups)} {end}"
    if 2 * len(cut.setters) > len(runs):
        return f"most runs {end}"
    (group, seed), more = cut.setters[0], len(cut.setters) - 1
    if not more and any((r.group, r.seed) == (group, seed) and metric in r.curves.not_finite for r in runs):
        return f"{study.sweep.label(group)}, seed {seed} has its last finite value"
    return f"{study.sweep.label(group)}, seed {seed} " + (f"and {counted(more, 'other run')} end" if more else "ends")


def pairing_gain(study: Study) -> list[str]:
    """How far a seed's values under two methods go together, and what pairing them changed; empty for no pairs."""
    parts = []
    for comparison in study.primary.comparisons:
        if (gain := comparison.contrast.gain) is not None:
            correlation, variance = (format_number(number, 2) for number in gain)
            parts.append(f"{study.sweep.label(comparison.group)} {correlation} (variance x {variance})")
    if not parts:
        return []
    return [
        "Correlation of a seed's values with those of the baseline, and what pairing made of the variance of the "
        f"difference of the means: {', '.join(parts)}. Below 1, pairing gains; so few seeds estimate it roughly."
    ]


def all_levels(settings: Settings) -> list[str]:
    """A note that a result averages over all levels of the selected factors; empty if no factor is selected."""
    names = ", ".join(settings.select)
    about = f"of all levels of {names} and of all seeds, also where the tables have each method at its best level"
    return [f"This is {about}."] if names else []


# ---------------------------------------------------------------- windows


def declared_window(declared: Window | None) -> str:
    """A window as the experiment declares it: 20 steps, or 5 points."""
    if declared is None:
        return NO_WINDOW
    return counted(declared.points, "point") if isinstance(declared, Points) else counted(declared, "step")


def _step(end: float) -> str:
    return f"{end:,.0f}" if end == round(end) else f"{end:,.1f}"


def _span(ends: tuple[float, float]) -> str:
    low, high = map(_step, ends)
    return low if low == high else f"{low} to {high}"


# ---------------------------------------------------------------- hypotheses


def quantity(verdict: Verdict, sweep: Sweep) -> str:
    """What the estimate of a verdict is of."""
    h = verdict.hypothesis
    if h.of:
        return "hypotheses supported"
    title = " and ".join(measure.title for measure in verdict.measures)
    group, *others = (sweep.label(name) for name in (h.group, *verdict.against))
    if h.kind == "ratio":
        over, under = (others[0], group) if h.summary == "efficiency" else (group, others[0])
        return f"{title}: {over} over {under}"
    if h.kind in ("greater", "less", "extreme"):
        return f"{title}: {' minus '.join((group, *others))}"
    if h.kind == "spread":
        return f"{title}: spread over seeds of {group} over that of {others[0]}"
    return f"{title} of {group}{': standard deviation over mean' if h.kind == 'variation' else ''}"


def estimate(verdict: Verdict) -> str:
    """The estimate of a verdict with its interval; "" for none."""
    h = verdict.hypothesis
    if h.of:
        return f"{verdict.estimate:g} of {len(h.of)}"
    if h.kind == "spread":
        return format_number(verdict.estimate, 2)
    if h.kind in ("greater", "less", "extreme"):
        return format_estimate(verdict.estimate, verdict.interval, signed=True)
    return bounded(verdict.estimate, verdict.interval, verdict.bound)


def decided(verdict: Verdict, sweep: Sweep, settings: Settings) -> str:
    """What decided a hypothesis, or why nothing could."""
    h = verdict.hypothesis
    parts = []
    for comparison in verdict.comparisons:
        if h.kind == "between" and comparison.n:
            contrast = comparison.contrast
            difference = format_estimate(contrast.difference, contrast.interval(settings.alpha), signed=True)
            parts.append(f"{sweep.label(comparison.group)} minus {sweep.label(comparison.baseline)} {difference}")
        elif h.kind in ("greater", "less"):
            text = outcome(comparison, verdict.measures[0], sweep, settings.alpha)
            p_shown = comparison.adjusted is None or text.startswith("undecided")
            parts.append(text if p_shown else f"{text} (adjusted p {equals(comparison.adjusted, settings.alpha)})")
    text = grounds(verdict.grounds, sweep, h, settings.alpha)
    return "; ".join(filter(None, (*parts, text)))


def declared(verdict: Verdict) -> str:
    """When a hypothesis was declared."""
    if (when := verdict.declared) is None:
        return "not recorded"
    return f"with {when.done} of {when.planned} runs done" if when.done else "before any run was done"


def first_measure(registered: Registration | None) -> str:
    """What the first measure of the main table is."""
    if registered is None or registered.declared is None:
        return "The first measure is the primary one; when it was chosen is not recorded. The others are secondary."
    if registered.sentence():
        return "The first measure is the primary one; not all was declared before results. The others are secondary."
    return "The first measure is the declared question; the others are secondary."


def grounds(several: Sequence[Ground], sweep: Sweep, h: Hypothesis | None = None, alpha: float | None = None) -> str:
    """Grounds in words, one after the other. h, alpha: of a hypothesis, and the level at which it is asked."""
    return "; ".join(_ground(ground, sweep, h, alpha) for ground in several)


def _ground(ground: Ground, sweep: Sweep, h: Hypothesis | None, alpha: float | None) -> str:
    if ground.reason is Reason.TOO_FEW_SEEDS:
        return cannot_decide(ground.n, int(ground.needed) - ground.ties, ground.ties)
    if ground.reason is Reason.WOULD_DECIDE:
        if ground.needed > power.MOST_SEEDS:
            return f"more than {power.MOST_SEEDS} seeds would be needed if mean and spread stay as they are"
        return f"about {ground.needed:g} seeds would decide with 80% power, if mean and spread stay as they are"
    labels = [sweep.label(name) for name in ground.groups]
    if ground.reason is Reason.TIMES_CUT:
        return times_cut(ground.n)
    if ground.reason is Reason.TIMES_FIRST:
        return f"{counted(ground.n, 'time')} may be earlier: the threshold is reached in the first window"
    if ground.reason is Reason.EXCESS_SPREAD and h is not None:
        excess = format_estimate(ground.value, ground.interval, signed=True)
        return f"mean distance to the median, {labels[0]} minus {h.high or 1:g} times {labels[1]}: {excess}"
    places = [some([*map(factors, cells)], _MOST_CELLS_NAMED, " or ", " or ") for cells in ground.cells]
    having = [f"{label} has {at}" for label, at in zip(labels, places, strict=False)]
    least = h is not None and h.ways != ("higher",)
    return _GROUNDS[ground.reason].format(
        groups=", ".join(labels), both=" and ".join(labels), between=f"{' and '.join(labels)}: " if labels else "",
        values="differences" if labels else "values", n=ground.n, needed=ground.needed,
        members=", ".join(ground.members),
        few="one seed gives no interval" if ground.n else "no seed has a value",
        seeds=", ".join(map(str, ground.seeds)),
        value=ground.value, alpha=ground.level, level=format_level(ground.level), share=f"{ground.value or 0:.0%}",
        outcome=ground.outcome, detail=ground.detail, having="; ".join(having), claimed=_claimed(h) if h else "",
        past="below" if least else "above", best="lowest" if least else "highest",
    )  # fmt: skip


def _claimed(h: Hypothesis) -> str:
    if h.low is not None and h.high is not None:
        return f"within [{h.low:g}, {h.high:g}]"
    word, bound = ("at least", h.low) if h.low is not None else ("at most", h.high)
    return f"{word} {bound or 0:g}"


def seeds_in_words(seeds: Sequence[int], most: int = _MOST_SEEDS_NAMED) -> str:
    """Seeds by their numbers, of many the first ones."""
    return f"seed{'' if len(seeds) == 1 else 's'} {some([*map(str, seeds)], most)}"


def verdicts_of(verdicts: Sequence[Verdict], sweep: Sweep, settings: Settings) -> list[Mapping[str, object]]:
    """For report.json: each verdict with its words."""
    return [
        {
            "id": v.hypothesis.id, "claim": v.hypothesis.claim, "verdict": v.verdict, "quantity": quantity(v, sweep),
            "estimate": v.estimate, "interval": v.interval, "shown": estimate(v), "n": v.n,
            "decided": decided(v, sweep, settings), "declared": declared(v),
        }
        for v in verdicts
    ]  # fmt: skip
