"""What the seeds of an experiment can find, as text and as JSON: `python -m analysis power`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.data.sweep import Sweep
from analysis.findings import planned_power
from analysis.findings.planned_power import Earlier, Question, Row, Seen
from analysis.numbers import format_number
from analysis.spec.metric_catalog import capital
from analysis.spec.precheck import Findable
from analysis.spec.settings import Settings
from analysis.stats.power import MOST_SEEDS, POWER
from analysis.tables.formats import to_text
from analysis.tables.table import Entry, table
from analysis.tables.wording import counted, test_name

#: Where a family does not ask its first comparison at a level that is known before the runs.
_FAMILY_NOTES = {
    "max_t": "max_t compares each difference with the largest of its family: the power is lower than it says here.",
    "bh": "bh asks at this level if it decides all comparisons of the family; if it decides few, the power is lower.",
}


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

    Raises BadPlan if the sweep does not have the primary metric.
    """
    listed = planned_power.questions(asked, seeds, baseline)
    known = {}
    if sweep is not None:
        sweep = planned_power.prepared(sweep, asked, listed)
        known = {one.id: planned_power.earlier(one, asked, sweep) for one in listed if one.found is not None}
    return PlannedPower(name, asked, listed, sweep, known)


def document(of: PlannedPower) -> dict[str, Any]:
    """The JSON object. `power[i].power[j]` is the power with `power[i].seeds` seeds at `effects[j]` standard
    deviations."""
    asked = of.settings
    return {
        "alpha": asked.alpha,
        "family": asked.family,
        "pairing": asked.pairing,
        "target_power": POWER,
        "effects": list(planned_power.EFFECTS),
        "from": None if of.sweep is None else str(of.sweep.folder),
        "questions": {one.id: _question(one, of.earlier.get(one.id)) for one in of.questions},
    }


def _question(question: Question, earlier: Earlier | None) -> dict[str, Any]:
    hypothesis, found = question.hypothesis, question.found
    shared = {
        "claim": None if hypothesis is None else hypothesis.claim,
        "groups": list(question.groups),
        "metric": question.metric,
        "summary": question.summary,
        "judged": found is not None,
    }
    if found is None:
        return shared
    shared |= dataclasses.asdict(found) | {"power": [dataclasses.asdict(row) for row in planned_power.by_seeds(found)]}
    return shared | {"earlier": None if earlier is None else _earlier(found, earlier)}


def _earlier(found: Findable, earlier: Earlier) -> dict[str, Any]:
    largest = earlier.largest
    return {
        "unit": earlier.measure.unit,
        "largest_sd": None if largest is None else dataclasses.asdict(largest),
        "median_sd": earlier.median,
        "finds_at_largest_sd": _times(found.effect, None if largest is None else largest.sd),
        "finds_at_median_sd": _times(found.effect, earlier.median),
        "spreads": [dataclasses.asdict(spread) for spread in earlier.spreads],
        "seen": [dataclasses.asdict(seen) for seen in earlier.seen],
    }


def _times(effect: float | None, sd: float | None) -> float | None:
    return None if effect is None or sd is None else effect * sd


# ---------------------------------------------------------------- text


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
            earlier = of.earlier.get(question.id)
            if earlier is not None and of.sweep is not None:
                lines += _earlier_lines(found, earlier, of.sweep)
        lines += ["", _power_table(found, planned_power.by_seeds(found))]
    if unjudged := [one.id for one in of.questions if one.found is None]:
        lines += ["", f"Described and not judged, because a maximum favours noise: {', '.join(unjudged)}."]
        lines.append("Fix: choose the summary final, auc or time_to")
    named = {one.id for one in of.questions}
    if left := [one.id for one in asked.hypotheses if one.id not in named]:
        lines += ["", f"Not included, because they are not of the kind greater, less or ratio: {', '.join(left)}"]
    return "\n".join([*lines, ""])


def _finds(found: Findable, holm: bool) -> Iterator[str]:
    level = f"at the level {found.level:.3g}"
    if found.comparisons > 1:
        level += f" of {'the first' if holm else 'one'} of {found.comparisons} comparisons"
    by = f"{capital(test_name(found.test))}, with {counted(found.seeds, 'seed')}, {level},"
    if found.effect is None:
        yield f"{by} finds no true difference with {POWER:.0%} power,"
        yield f"however large it is: at least {found.needed} seeds are needed."
    else:
        of = "the differences between seeds" if found.paired else "one method's runs"
        yield f"{by} finds with {POWER:.0%} power"
        yield f"a true difference of {found.effect:.2g} standard deviations of {of}."


def _compared(question: Question) -> str:
    name = "the primary question" if question.hypothesis is None else question.id
    *others, last = question.groups[::-1] if question.inverse else question.groups
    factors = " or ".join(f"{bound:g}" for bound in question.bounds)
    each = ", each" if len(others) > 1 else ""
    against = f"{factors} times {last}" if factors else last
    return f"{name}, {question.summary} of {question.metric}: {', '.join(others)}{each} against {against}"


def _earlier_lines(found: Findable, earlier: Earlier, sweep: Sweep) -> Iterator[str]:
    largest, unit = earlier.largest, f" {earlier.measure.unit}" if earlier.measure.unit else ""
    if not earlier.recorded:
        yield f"  {sweep.folder}: no run has recorded {earlier.measure.metric}."
        return
    if largest is None:
        what = "two groups with two common seeds" if found.paired else "a group with two runs"
        yield f"  {sweep.folder}: no spread is known: it needs {what}, and values that differ."
        return
    counts = sorted({spread.seeds for spread in earlier.spreads})
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    named = largest.group if largest.against is None else f"{largest.group} against {largest.against}"
    of = "paired differences" if found.paired else "runs"
    yield f"  {sweep.folder}: the standard deviation of {of}, over {seeds}, is"
    shown = [(earlier.median, f" at the median of {len(earlier.spreads)}"), (largest.sd, f" at the largest ({named})")]
    if len(earlier.spreads) == 1:
        shown = [(largest.sd, f" ({named})")]
    yield f"  {' and '.join(f'{format_number(sd, 3)}{unit}{where}' for sd, where in shown)}."
    if found.effect is not None:
        finds = [f"{format_number(_times(found.effect, sd), 2)}{unit}" for sd, _ in shown]
        at = " at the median and {} at the largest spread" if len(finds) == 2 else ""
        yield f"  So the test finds {finds[0]}{at.format(finds[-1])}."
    if earlier.seen:
        rows: list[Entry] = [("", _seen_row(one, unit), {}) for one in earlier.seen]
        columns = ("seen there", "seeds", "difference", "in sd", f"power with {found.seeds}", f"seeds for {POWER:.0%}")
        _, *lines = to_text(table("seen", "", columns, rows)).splitlines()
        yield from (f"    {line}" for line in lines)


def _seen_row(seen: Seen, unit: str) -> tuple[str, ...]:
    factor = "" if seen.bound is None else f"{seen.bound:g} x "
    return (
        f"{seen.group} - {factor}{seen.against}",
        str(seen.seeds),
        f"{format_number(seen.difference, 3)}{unit}",
        format_number(seen.effect, 2),
        _share(seen.power),
        f"above {MOST_SEEDS}" if seen.needed is None else str(seen.needed),
    )


def _power_table(found: Findable, rows: Sequence[Row]) -> str:
    title = f"Power of {test_name(found.test)} at the level {found.level:.3g}, by the number of seeds"
    columns = ("seeds", f"finds with {POWER:.0%}", *(f"at {effect:g} sd" for effect in planned_power.EFFECTS))
    entries: list[Entry] = [
        (
            "",
            (
                f"{row.seeds} (planned)" if row.seeds == found.seeds else str(row.seeds),
                "nothing" if row.effect is None else f"{format_number(row.effect, 2)} sd",
                *map(_share, row.power),
            ),
            {},
        )
        for row in rows
    ]
    return to_text(table("power", title, columns, entries))


def _share(power: float) -> str:
    """A power to two decimals, cut and not rounded up: 0.999 is not 1."""
    return f"{math.floor(power * 100 + 1e-9) / 100:.2f}"
