"""The levels of factors that the section `analysis` names: what is wrong with them, given the cells of the runs.

A plan knows its cells before any run, and an import and a report those of their runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.spec.validation import BadPlan, closest

Cell = tuple[tuple[str, Any], ...]
TASK = "task"
_NAMED = 8  # levels in a rule


@dataclass(frozen=True)
class Unknown:
    """What is wrong with a name below a key, or with the whole key if it is None: the rule, and the fix."""

    name: str | None
    rule: str
    fix: str


def factor_of(references: Collection[str], cells: Sequence[Cell]) -> str:
    """The factor whose levels have reference scores: `task`, or if there is none, the one that has most of the
    names."""
    labels = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    if TASK in labels or not labels:
        return TASK
    hits = {label: len({str(dict(cell).get(label)) for cell in cells} & set(references)) for label in labels}
    return max(labels, key=lambda label: hits[label])


def unknown_references(references: Mapping[str, object], cells: Sequence[Cell]) -> list[Unknown]:
    """What is wrong with `analysis.normalize`: names that are no level, and levels and runs without references."""
    if not references:
        return []
    factor, key = factor_of(references, cells), "analysis.normalize"
    levels = list(dict.fromkeys(str(level) for cell in cells for label, level in cell if label == factor))
    wrong = [
        Unknown(name, f"no run has this level of {factor}; it has {_some(levels)}", closest(name, levels, f"{key}."))
        for name in references
        if name not in levels
    ]
    wrong += [
        Unknown(
            None,
            f"no reference scores of {factor} = {level}, so its scores cannot be averaged with normalised ones",
            f"add {level}: [low, high]",
        )
        for level in levels
        if level not in references
    ]
    if levels and (without := sum(factor not in dict(cell) for cell in cells)):
        wrong.append(Unknown(None, f"{without} of {len(cells)} runs have no level of {factor}", f"remove {key}"))
    return wrong


def unknown_factors(factors: Collection[str], cells: Collection[Cell]) -> list[Unknown]:
    """What is wrong with `analysis.select`: names that are no factor of any run."""
    known = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    rule = f"no run has a level of this factor; the factors are {', '.join(known) or 'none'}"
    return [Unknown(name, rule, closest(name, known, "analysis.select.")) for name in factors if name not in known]


def refuse(wrong: Sequence[Unknown], at: str) -> None:
    """Raise BadPlan if something is wrong. at: the file and the key."""
    if wrong:
        lines = (f"{at}{'' if one.name is None else f'.{one.name}'}: {one.rule}. Fix: {one.fix}" for one in wrong)
        raise BadPlan("\n".join(lines))


def _some(levels: Sequence[str]) -> str:
    named = levels[:_NAMED]
    more = f" and {len(levels) - _NAMED} more" if len(levels) > _NAMED else ""
    return ", ".join(named) + more if named else "none"
