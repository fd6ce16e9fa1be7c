"""What the seeds of an experiment can find, asked before it runs, as text and as JSON: `python -m analysis power`.

It covers the primary question and each claim about two groups. The spread of an earlier sweep turns standard deviations
into the metric's unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from analysis.data.normalized import added, normalized
from analysis.data.sweep import BadPlan, Sweep
from analysis.findings.study import measure_of, range_of, versus
from analysis.numbers import format_number
from analysis.spec import precheck, registry
from analysis.spec.hypothesis import Hypothesis
from analysis.spec.metric_catalog import capital
from analysis.spec.precheck import Findable
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import counted
from analysis.stats import power, t_test
from analysis.stats.power import MOST_SEEDS, POWER
from analysis.tables.table import Entry, table, to_text
from analysis.tables.wording import test_name

EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)  # standard deviations
SEEDS = (3, 5, 6, 8, 10, 20)
#: Where a family does not ask its first comparison at a level that is known before the runs.
_FAMILY_NOTES = {
    "max_t": "max_t compares each difference with the largest of its family: the power is lower than it says here.",
    "bh": "bh asks at this level if it decides all comparisons of the family; if it decides few, the power is lower.",
}


@dataclass(frozen=True)
class Question:
    """A question that one test decides: a hypothesis about two groups, or the primary question in the same form, which
    has no claim. groups: those that are compared. found: None if the summary is not judged."""

    asks: Hypothesis
    groups: tuple[str, ...]
    found: Findable | None

    @property
    def id(self) -> str:
        """The name of the hypothesis, or `primary`."""
        return self.asks.id

    @property
    def bounds(self) -> tuple[float, ...]:
        """The bounds that the hypothesis claims for a ratio; empty for another claim."""
        asks = self.asks
        return tuple(bound for bound in (asks.low, asks.high) if bound is not None and asks.kind == "ratio")

    @property
    def inverse(self) -> bool:
        """Whether the second group's time is divided by the first one's."""
        return self.asks.summary == "efficiency"


@dataclass(frozen=True)
class Row:
    """With so many seeds: the effect that is found with 80% power (None: no effect is large enough), and the power at
    each of EFFECTS."""

    seeds: int
    effect: float | None
    power: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """A standard deviation: of the differences of a group and `against`, or of the runs of a group (against: None)."""

    group: str
    against: str | None
    seeds: int
    sd: float


@dataclass(frozen=True)
class Seen:
    """A difference that the earlier sweep has, group minus against (times `bound`, of a ratio), on so many seeds.

    effect: in standard deviations. power: of finding a true difference of this size with the planned seeds. needed:
    the seeds that give 80% power; None above power.MOST_SEEDS, and without a difference.
    """

    group: str
    against: str
    bound: float | None
    seeds: int
    difference: float
    effect: float
    power: float
    needed: int | None


@dataclass(frozen=True)
class Earlier:
    """What an earlier sweep says of a question, in the unit of the measure, as it stands in the JSON object.

    spreads: empty if none is known. finds_at_largest_sd, finds_at_median_sd: the true difference that is found with 80%
    power at the largest spread and at their median.
    """

    unit: str
    largest_sd: Spread | None
    median_sd: float | None
    finds_at_largest_sd: float | None
    finds_at_median_sd: float | None
    spreads: tuple[Spread, ...]
    seen: tuple[Seen, ...]


@dataclass(frozen=True)
class PlannedPower:
    """The power of an experiment's questions. earlier: by the id of a question, what `sweep` says of it."""

    name: str
    settings: Settings
    questions: tuple[Question, ...]
    sweep: Sweep | None
    earlier: Mapping[str, Earlier]


def planned(
    name: str, asked: Settings, seeds: Mapping[str, Sequence[int]], baseline: str | None, sweep: Sweep | None
) -> PlannedPower:
    """What the seeds of each group of a plan can find, in the units of an earlier sweep if there is one.

    Raises BadPlan if the sweep does not have the primary metric, or if its scores cannot be normalised as asked.
    """
    listed = questions(asked, seeds, baseline)
    if sweep is None:
        return PlannedPower(name, asked, listed, None, {})
    cells = [run.cell for run in sweep.runs]
    settings({"normalize": asked.normalize}, str(sweep.folder / "plan.json"), cells=cells)  # BadPlan for other levels
    sweep = added(normalized(asked, sweep), [question.asks.metrics[0] for question in listed])
    recorded = {metric for run in sweep.runs for metric in run.curves.values}
    if asked.metric not in recorded:
        known = sorted(metric for metric in recorded if not metric.endswith(" as recorded"))
        raise BadPlan(
            f"{sweep.folder / 'plan.json'}: --from: analysis.primary.metric = {asked.metric}: no run of this sweep has "
            f"recorded it; its runs have {', '.join(known) or 'no metric'}. Fix: name a sweep with this metric, or "
            "leave --from out"
        )
    earlier = {one.id: _earlier(one, one.found, asked, sweep) for one in listed if one.found is not None}
    return PlannedPower(name, asked, listed, sweep, earlier)


def questions(asked: Settings, seeds: Mapping[str, Sequence[int]], baseline: str | None) -> tuple[Question, ...]:
    """The primary question, if the plan has a comparison, then each hypothesis of precheck.TWO_GROUPS. seeds: of each
    group of the plan."""
    listed = []
    if baseline is not None and len(seeds) > 1:
        found = precheck.findable(asked, seeds, baseline) if registry.is_judged(asked.summary) else None
        timed = (target for target in asked.time_to if target.metric == asked.metric and asked.summary == "time_to")
        asks = Hypothesis("primary", "", "", metrics=(asked.metric,), summary=asked.summary, target=next(timed, None))
        listed.append(Question(asks, (*(group for group in seeds if group != baseline), baseline), found))
    by_id = precheck.findable_hypotheses(asked, seeds)
    for h in (h for h in asked.hypotheses if h.id in by_id):
        found = by_id[h.id] if registry.is_judged(h.compared) else None
        listed.append(Question(h, (h.group, *h.against), found))
    return tuple(listed)


def by_seeds(found: Findable) -> tuple[Row, ...]:
    """The power of a test with the planned number of seeds and with those of SEEDS."""
    test, level = found.test, found.level
    return tuple(
        Row(n, power.detectable(test, n, level), tuple(power.power_of(test, n, size, level) for size in EFFECTS))
        for n in sorted({*SEEDS, found.seeds} - {0, 1})
    )


def _earlier(question: Question, found: Findable, asked: Settings, sweep: Sweep) -> Earlier:
    """What a sweep says of a question: of the two groups of a hypothesis if it has both, else of each group against its
    baseline, or against its first group."""
    first, *others = sweep.groups  # the baseline is the first of them
    against = dict.fromkeys(others, first)
    if question.asks.claim and {*question.groups} <= {*sweep.groups}:
        against = {question.groups[0]: question.groups[1]}
    metric = question.asks.metrics[0]
    common = range_of(sweep, asked, metric)
    measure = measure_of(sweep, asked, common, metric, question.asks)
    block = versus(sweep, asked, common, measure, against)
    spreads: list[Spread] = []
    seen: list[Seen] = []
    for comparison in block.comparisons:
        group, other, contrast = comparison.group, comparison.baseline, comparison.contrast
        if question.inverse:
            group, other, contrast = other, group, replace(contrast, a=contrast.b, b=contrast.a)
        for bound in question.bounds or (None,):
            scaled = contrast if bound is None else replace(contrast, b=contrast.b * bound)
            if not scaled.spread or scaled.difference is None or scaled.effect is None:
                continue
            share = power.power_of(found.test, found.seeds, scaled.effect, found.level)
            needed = power.seeds_to_find(found.test, scaled.effect, found.level)
            spreads.append(Spread(group, other, scaled.n, scaled.spread))
            seen.append(Seen(group, other, bound, scaled.n, scaled.difference, scaled.effect, share, needed))
    if not found.paired and not question.bounds:
        groups = {*against, *against.values()} or {*sweep.groups}
        of_runs = {e.group: t_test.mean(e.values) for e in block.estimates if e.group in groups}
        sizes = {e.group: len(e.values) for e in block.estimates}
        spreads = [Spread(name, None, sizes[name], m.spread) for name, m in of_runs.items() if m and m.spread]
    largest = max(spreads, key=lambda spread: spread.sd, default=None)
    median = statistics.median(spread.sd for spread in spreads) if spreads else None
    effect = found.effect
    return Earlier(
        unit=measure.unit,
        largest_sd=largest,
        median_sd=median,
        finds_at_largest_sd=None if effect is None or largest is None else effect * largest.sd,
        finds_at_median_sd=None if effect is None or median is None else effect * median,
        spreads=tuple(spreads),
        seen=tuple(seen),
    )


def document(of: PlannedPower) -> dict[str, Any]:
    """The JSON object. `power[i].power[j]` is the power with `power[i].seeds` seeds at `effects[j]` standard
    deviations."""
    asked = of.settings
    return {
        "alpha": asked.alpha,
        "family": asked.family,
        "pairing": asked.pairing,
        "target_power": POWER,
        "effects": list(EFFECTS),
        "from": None if of.sweep is None else str(of.sweep.folder),
        "questions": {question.id: _as_json(question, of.earlier.get(question.id)) for question in of.questions},
    }


def _as_json(question: Question, earlier: Earlier | None) -> dict[str, Any]:
    asks, found = question.asks, question.found
    shared = {
        "claim": asks.claim or None, "groups": list(question.groups), "metric": asks.metrics[0],
        "summary": asks.compared, "judged": found is not None,
    }  # fmt: skip
    if found is None:
        return shared
    powers = [asdict(row) for row in by_seeds(found)]
    return shared | asdict(found) | {"power": powers, "earlier": None if earlier is None else asdict(earlier)}


def text(of: PlannedPower) -> str:
    """For each test, level and number of seeds: what it finds, the questions that it decides, and a table of power."""
    asked = of.settings
    if not of.questions:
        return f"{of.name}: no two groups are compared, so there is no power to give. Fix: set experiment.baseline\n"
    lines = [f"{of.name}: alpha = {asked.alpha:g}, family {asked.family}, pairing {asked.pairing}"]
    designs: dict[Findable, list[Question]] = {}
    for question in of.questions:
        if question.found is not None:
            designs.setdefault(question.found, []).append(question)
    for found, decided in designs.items():
        lines += ["", *_finds(found, asked.family == "holm")]
        if found.comparisons > 1 and asked.family in _FAMILY_NOTES:
            lines.append(_FAMILY_NOTES[asked.family])
        lines.append("It decides:")
        for question in decided:
            lines.append(f"* {_compared(question)}")
            if of.sweep is not None:
                lines += _earlier_lines(question, found, of.earlier[question.id], of.sweep)
        lines += ["", _power_table(found)]
    if unjudged := [item.id for item in of.questions if item.found is None]:
        lines += ["", f"Described and not judged, because a maximum favours noise: {', '.join(unjudged)}."]
        lines.append("Fix: choose the summary final, auc or time_to")
    named = {item.id for item in of.questions}
    if left := [item.id for item in asked.hypotheses if item.id not in named]:
        lines += ["", f"Not included, because they are not of the kind greater, less or ratio: {', '.join(left)}"]
    return "\n".join([*lines, ""])


def _finds(found: Findable, holm: bool) -> Iterator[str]:
    level = f"at the level {found.level:.3g}"
    if found.comparisons > 1:
        level += f" of {'the first' if holm else 'one'} of {found.comparisons} comparisons"
    by = f"{capital(test_name(found.test))}, with {counted(found.seeds, 'seed')}, {level},"
    if found.effect is None:
        yield f"{by} detects no true difference with {POWER:.0%} power,"
        yield f"however large it is: at least {found.needed} seeds are needed."
    else:
        of = "the differences between seeds" if found.paired else "one method's runs"
        yield f"{by} detects with {POWER:.0%} power"
        yield f"a true difference of {found.effect:.2g} standard deviations of {of}."


def _compared(question: Question) -> str:
    name = question.id if question.asks.claim else "the primary question"
    *others, last = question.groups[::-1] if question.inverse else question.groups
    factors = " or ".join(f"{bound:g}" for bound in question.bounds)
    each = ", each" if len(others) > 1 else ""
    against = f"{factors} times {last}" if factors else last
    return (
        f"{name}, {question.asks.compared} of {question.asks.metrics[0]}: {', '.join(others)}{each} against {against}"
    )


def _earlier_lines(question: Question, found: Findable, earlier: Earlier, sweep: Sweep) -> Iterator[str]:
    largest, spreads, unit = earlier.largest_sd, earlier.spreads, f" {earlier.unit}" if earlier.unit else ""
    if not any(question.asks.metrics[0] in run.curves.values for run in sweep.runs):
        yield f"  {sweep.folder}: no run has recorded {question.asks.metrics[0]}."
        return
    if largest is None:
        what = "two groups with two common seeds" if found.paired else "a group with two runs"
        yield f"  {sweep.folder}: no spread is known: it needs {what}, and values that differ."
        return
    counts = sorted({spread.seeds for spread in spreads})
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    named = largest.group if largest.against is None else f"{largest.group} against {largest.against}"
    of = "paired differences" if found.paired else "runs"
    yield f"  {sweep.folder}: the standard deviation of {of}, over {seeds}, is"
    sd, finds = f"{format_number(largest.sd, 3)}{unit}", f"{format_number(earlier.finds_at_largest_sd, 2)}{unit}"
    if len(spreads) > 1:
        sd = f"{format_number(earlier.median_sd, 3)}{unit} at the median of {len(spreads)} and {sd} at the largest"
        finds = f"{format_number(earlier.finds_at_median_sd, 2)}{unit} at the median and {finds} at the largest spread"
    yield f"  {sd} ({named})."
    if found.effect is not None:
        yield f"  So the test finds {finds}."
    if earlier.seen:
        rows: list[Entry] = [("", _seen_row(seen, unit), {}) for seen in earlier.seen]
        columns = ("seen there", "seeds", "difference", "in sd", f"power with {found.seeds}", f"seeds for {POWER:.0%}")
        _, *lines = to_text(table("seen", "", columns, rows)).splitlines()
        yield from (f"    {line}" for line in lines)


def _seen_row(seen: Seen, unit: str) -> tuple[str, ...]:
    factor = "" if seen.bound is None else f"{seen.bound:g} x "
    difference, effect = f"{format_number(seen.difference, 3)}{unit}", format_number(seen.effect, 2)
    needed = f"above {MOST_SEEDS}" if seen.needed is None else str(seen.needed)
    return f"{seen.group} - {factor}{seen.against}", str(seen.seeds), difference, effect, _share(seen.power), needed


def _power_table(found: Findable) -> str:
    title = f"Power of {test_name(found.test)} at the level {found.level:.3g}, by the number of seeds"
    columns = ("seeds", f"detects at {POWER:.0%}", *(f"at {effect:g} sd" for effect in EFFECTS))
    entries: list[Entry] = []
    for row in by_seeds(found):
        seeds = f"{row.seeds} (planned)" if row.seeds == found.seeds else str(row.seeds)
        effect = "nothing" if row.effect is None else f"{format_number(row.effect, 2)} sd"
        entries.append(("", (seeds, effect, *map(_share, row.power)), {}))
    return to_text(table("power", title, columns, entries))


def _share(power: float) -> str:
    """A power to two decimals, cut and not rounded up: 0.999 is not 1."""
    return f"{math.floor(power * 100 + 1e-9) / 100:.2f}"
