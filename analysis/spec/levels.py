"""The levels of factors that the section `analysis` names: what is wrong with them, given the cells of the runs.

A plan knows its cells before any run, and an import and a report those of their runs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.spec.validation import BadPlan, Breach, closest, some

Cell = tuple[tuple[str, Any], ...]
TASK = "task"
_NAMED = 8  # levels in a rule


def part(cell: Cell, labels: Collection[str]) -> Cell:
    """The levels of some factors."""
    return tuple(item for item in cell if item[0] in labels)


def factor_of(references: Collection[str], cells: Sequence[Cell]) -> str:
    """The factor whose levels have reference scores: `task`, or if there is none, the one that has most of the
    names."""
    labels = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    if TASK in labels or not labels:
        return TASK
    hits = {label: len({str(dict(cell).get(label)) for cell in cells} & set(references)) for label in labels}
    return max(labels, key=lambda label: hits[label])


#: The name of a level or factor that does not exist (empty if the objection is to all of them), the rule, and the fix.
Unknown = tuple[str, str, str]


def unknown_references(references: Mapping[str, object], cells: Sequence[Cell]) -> list[Unknown]:
    """What is wrong with `analysis.normalize`: names that are no level, and levels and runs without references."""
    if not references:
        return []
    factor, key = factor_of(references, cells), "analysis.normalize"
    levels = list(dict.fromkeys(str(level) for cell in cells for label, level in cell if label == factor))
    rule = f"no run has this level of {factor}; it has {some(levels, _NAMED)}"
    wrong = [(name, rule, closest(name, levels, f"{key}.")) for name in references if name not in levels]
    for level in levels:
        if level not in references:
            rule = f"no reference scores of {factor} = {level}, so its scores cannot be averaged with normalised ones"
            wrong.append(("", rule, f"add {level}: [low, high]"))
    if levels and (without := sum(factor not in dict(cell) for cell in cells)):
        wrong.append(("", f"{without} of {len(cells)} runs have no level of {factor}", f"remove {key}"))
    return wrong


def unknown_factors(factors: Collection[str], cells: Collection[Cell]) -> list[Unknown]:
    """What is wrong with `analysis.select`: names that are no factor of any run."""
    known = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    rule = f"no run has a level of this factor; the factors are {', '.join(known) or 'none'}"
    return [(name, rule, closest(name, known, "analysis.select.")) for name in factors if name not in known]


def refuse(wrong: Sequence[Unknown], at: str) -> None:
    """Raise BadPlan if something is wrong. at: the file and the key."""
    if wrong:
        objections = (Breach(f"{at}.{name}" if name else at, None, rule, fix, shown=False) for name, rule, fix in wrong)
        raise BadPlan("\n".join(map(str, objections)))


def key_of(name: str, also: str = "") -> str:
    """The name with its letters, marks and digits of any script; everything else but the characters `also` is one
    underscore, and none at the ends."""
    plain = [
        char if char in also or unicodedata.category(char)[0] in "LMN" else " "
        for char in unicodedata.normalize("NFC", name).replace("_", " ")
    ]
    return "_".join("".join(plain).split())
