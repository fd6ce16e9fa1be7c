"""What an experiment declares, and what of it was changed after results.

A declaration is an entry of multirun/<experiment>/hypotheses.json (launcher/planning/freeze.py). Only those at
the scale of the plan count (`scale=tiny` in its command): a rehearsal says nothing about another scale.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from analysis.spec.settings import settings

#: The parts of a plan that a declaration keeps, beside its hypotheses.
PARTS = ("command", "baseline", "steps", "seeds", "groups", "factors", "analysis", "runs")
_NOT_DECIDING = ("hypotheses", "metrics", "figures")  # no verdict depends on further measures and drawings
_ABSENT = ()


class Declaration(NamedTuple):
    """How many of the planned runs were done when something was declared."""

    done: int
    planned: int

    def __str__(self) -> str:
        return f"{self.done} of {self.planned} runs were done"


class Change(NamedTuple):
    """A key with its declared and its present value, and when it got the present one."""

    key: str
    declared: Any
    now: Any
    when: Declaration

    def __str__(self) -> str:
        if _ABSENT in (self.declared, self.now):
            return f"{self.key} {'added' if self.declared == _ABSENT else 'removed'}"
        if '{"' in json.dumps([self.declared, self.now]):
            return f"{self.key} changed"
        return f"{self.key} = {_shown(self.now)} (declared: {_shown(self.declared)})"


@dataclass(frozen=True)
class Registration:
    """How a plan compares with its last declaration before any result, or else with the first one.

    plan: the declared one, without hypotheses, and when it was declared; both None in a record of an older version.
    claims: when the hypotheses were declared. changes: of the plan and of its hypotheses after results.
    """

    plan: Mapping[str, Any] | None
    declared: Declaration | None
    claims: Declaration
    changes: tuple[Change, ...]

    def declaration_of(self, hypothesis: str) -> Declaration:
        """When the hypothesis was declared with its present text."""
        return next((change.when for change in self.changes if change.key == f"hypothesis {hypothesis}"), self.claims)

    def sentence(self) -> str:
        """What was decided after results; empty if everything was declared before."""
        ordered = sorted(self.changes, key=lambda change: change.when, reverse=True)
        lines = [
            f"Changed after {when}: {', '.join(map(str, changes))}."
            for when, changes in groupby(ordered, key=lambda change: change.when)
        ]
        if self.declared is not None and self.declared.done:
            lines.append(f"What decides was first recorded after {self.declared}, so it may depend on their results.")
        return " ".join(lines)


def registration(
    declarations: Iterable[Mapping[str, Any]], plan: Mapping[str, Any], results: Declaration
) -> Registration | None:
    """Compare a plan with its declarations. results: those at present. None: nothing is declared."""
    kept = of_scale(declarations, plan)
    if not kept:
        return None
    claims = [_claims(entry["hypotheses"]) for entry in kept]
    declared_claims, changes = _since(kept, claims, _claims(plan["analysis"].get("hypotheses")), results)
    whole = [entry for entry in kept if "plan" in entry]
    if not whole:
        return Registration(None, None, _when(declared_claims), tuple(changes))
    declared, others = _since(whole, [deciding(entry["plan"]) for entry in whole], deciding(plan), results)
    if any(change.key == "steps" or change.key.startswith("levels of ") for change in others):
        others = [change for change in others if not change.key.startswith("runs of ")]  # which follows
    if not declared["plan"]["analysis"]:
        others = [change for change in others if change.key != "direction"]  # of the metric
    return Registration(declared["plan"], _when(declared), _when(declared_claims), (*others, *changes))


def of_scale(declarations: Iterable[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The declarations at the scale of a plan; those of older versions have none and count for each."""
    return [entry for entry in declarations if "plan" not in entry or scale_of(entry["plan"]) == scale_of(plan)]


def scale_of(plan: Mapping[str, Any]) -> str | None:
    """The word of a plan's command that chooses the scale."""
    return next((word for word in reversed(shlex.split(plan["command"])) if word.startswith("scale=")), None)


def added_runs(declared: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of the present runs that the rule of a declared plan has added: of its cells that are as they were."""
    most = (declared["analysis"].get("sequential") or {"max": 0})["max"]
    before = {(run["id"], run["group"], str(run.get("factors"))) for run in declared["runs"]}
    now = [(run["id"], run["group"], str(run.get("factors"))) for run in runs]
    cells = {cell[1:] for cell in before.intersection(now)}
    new = (cell not in before and cell[1:] in cells for cell in now)
    return [run for run, is_new in zip(runs, new, strict=True) if is_new and run["seed"] < most]


def deciding(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Everything of a plan but its hypotheses that a verdict depends on, as JSON values by key, however it is written.
    Seeds that a rule adds are no part of it."""
    section = {**plan["analysis"], "hypotheses": None}
    asked = settings(section, groups=plan["groups"], baseline=plan["baseline"]).model_dump(mode="json")
    values = {key: value for key, value in asked.items() if key not in _NOT_DECIDING}
    if not plan["analysis"]:  # of a program whose question was left open
        values["metric"] = None
    steps = plan["steps"] or 1  # earlier versions wrote 1 where only the runs know
    values |= {"groups": sorted(plan["groups"]), "baseline": plan["baseline"], "steps": steps}
    values |= {f"levels of {key}": factor["levels"] for key, factor in plan["factors"].items()}
    for run in sorted(plan["runs"], key=lambda run: str(run["id"])):
        values.setdefault(f"runs of {run['group']}", {}).setdefault(str(run["seed"]), []).append(run["id"])
    if not asked["sequential"]:
        of = [sorted(map(int, values.get(f"runs of {group}", {}))) for group in values["groups"]]
        values["seeds"] = of[0] if all(seeds == of[0] for seeds in of) else dict(zip(values["groups"], of, strict=True))
    return dict(json.loads(json.dumps(values)))


def _since(
    declarations: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]], now: Mapping[str, Any],
    results: Declaration,
) -> tuple[Mapping[str, Any], list[Change]]:  # fmt: skip
    """The declaration that counts, and what differs from it now. values: what each declaration says."""
    start = max(0, sum(1 for _ in takewhile(lambda entry: not entry["done"], declarations)) - 1)
    changes = []
    for key in dict.fromkeys([*values[start], *now]):
        same = [_same(key, value, now) for value in values[start:]]
        if not same[0]:
            last = sum(1 for _ in takewhile(bool, reversed(same)))
            when = _when(declarations[-last]) if last else results
            if when.done:
                changes.append(Change(key, values[start].get(key, _ABSENT), now.get(key, _ABSENT), when))
    return declarations[start], changes


def _same(key: str, declared: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    before, after = declared.get(key, _ABSENT), now.get(key, _ABSENT)
    if not key.startswith("runs of "):
        return bool(before == after)
    # Other groups and seeds are changes of their own.
    return _ABSENT in (before, after) or all(before[seed] == after[seed] for seed in before.keys() & after.keys())


def _claims(hypotheses: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"hypothesis {name}": stated for name, stated in (hypotheses or {}).items()}


def _when(declaration: Mapping[str, Any]) -> Declaration:
    return Declaration(len(declaration["done"]), declaration["planned"])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
