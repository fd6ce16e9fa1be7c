"""Small experiments with logs as other tools leave them: irregular, ragged, with gaps, of many tasks, of one value.

The golden pictures and the test that looks for contradictions are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.conftest import Lines, MakeSweep, ended, replan, without

RETURN, LENGTH = "eval/return", "eval/length"
ASKED: dict[str, Any] = {"primary": {"metric": RETURN, "direction": "higher"}, "window": {"points": 5}}
TASKS = {"Amidar": 2.0, "Bowling": 30.0, "Centipede": 900.0, "Freeway": 4.0, "Hero": 700.0, "Pong": 1.0, "Qbert": 500.0,
         "Seaquest": 60.0, "Venture": 8.0}  # fmt: skip
RATES = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.4}]
TOP = {"a": 0.6, "b": 0.9, "c": 0.65}


@dataclass(frozen=True)
class Logs:
    """An experiment: its lines by (group, seed, cell), what is asked of them, and what happens to the run folders."""

    lines: Callable[[str, int, Mapping[str, Any]], Lines]
    asked: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[str] = ("a", "b")
    seeds: int = 5
    steps: int = 4000
    cells: Sequence[Mapping[str, Any]] = ({},)
    absent: Sequence[str] = ()  # ids of runs without a folder
    failed: Sequence[str] = ()


def log(steps: Any, values: Any) -> Lines:
    return [{"step": int(step), RETURN: float(value)} for step, value in zip(steps, values, strict=True)]


def _random(group: str, seed: int, *more: int) -> np.random.Generator:
    return np.random.default_rng([seed, ord(group), *more])


def _curve(group: str, seed: int, steps: Any, noise: float = 0.02) -> Any:
    """A rise to the group's height, moved by the luck of the seed, which all groups share."""
    luck = 0.08 * np.random.default_rng(seed).standard_normal() + 0.05 * _random(group, seed).standard_normal()
    rise = 1 - np.exp(-np.asarray(steps) / 1000)
    return (TOP[group] + luck) * rise + noise * _random(group, seed, 1).standard_normal(len(steps))


def _episodes(group: str, seed: int, _: object) -> Lines:
    """A line at the end of each episode, whose length is random; runs end at different steps."""
    steps = np.cumsum(1 + _random(group, seed, 2).exponential(120, 60).astype(int))
    steps = steps[steps <= 4000]
    return log(steps, _curve(group, seed, steps))


def _gaps(group: str, seed: int, _: object) -> Lines:
    """Evaluations every 200 steps; seed 1 has every second one, seed 2 lacks the middle, seed 3 begins late and has one
    that is not a number."""
    steps = np.arange(200, 4001, 200)
    kept = {1: steps % 400 == 0, 2: (steps < 1200) | (steps > 2400), 3: steps > 600}.get(seed, steps > 0)
    values = _curve(group, seed, steps)
    values[10] = math.nan if seed == 3 else values[10]
    return log(steps[kept], values[kept])


def _regular(group: str, seed: int, _: object) -> Lines:
    steps = np.arange(100, 2001 if (group, seed) == ("b", 2) else 4001, 100)
    return log(steps, _curve(group, seed, steps))


def _task(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """Each task has a scale and steps of its own."""
    name = cell["task"]
    steps = np.arange(200 + 20 * len(name), 4001, 40 * len(name))
    return log(steps, TASKS[name] * (_curve(group, seed, steps) + 0.1 * _random(group, seed, ord(name[0])).random()))


def _point(group: str, seed: int, _: object) -> Lines:
    """One value, at a step of the run's own."""
    return log([4000 - 7 * seed], _curve(group, seed, [4000]))


def _collapsing(group: str, seed: int, _: object) -> Lines:
    steps = np.arange(100, 4001, 100)
    return log(steps, _curve(group, seed, steps) * (0.05 if group == "b" and seed in (3, 6) else 1))


def _rates(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    steps = np.arange(100, 4001, 100)
    at = cell["lr"] * (2 if group == "b" else 1)
    lines = log(steps, _curve(group, seed, steps) * (1 - abs(at - 0.4)))
    return [{**line, LENGTH: 200 * line[RETURN] + seed} for line in lines]


_MANY = {
    "lines": _task, "seeds": 4, "cells": [{"task": name} for name in TASKS],
    "absent": ("a-1-0", "a-3-6", "b-0-2", "b-2-2", "b-2-4", "b-3-8"),
}  # fmt: skip
KINDS: dict[str, Logs] = {
    "episodes": Logs(_episodes),
    "gaps": Logs(_gaps, {"figures": [{"difference": RETURN}]}),
    "missing": Logs(_regular, groups=("a", "b", "c"), seeds=6, absent=("b-1", "a-5"), failed=("b-2",)),
    "tasks": Logs(**_MANY),
    "normalized": Logs(**_MANY, asked={"normalize": {name: [0, scale] for name, scale in TASKS.items()}}),
    "points": Logs(_point, groups=("a", "b", "c")),
    "collapses": Logs(_collapsing, {"test": "exact"}, seeds=8),
    "times": Logs(
        _regular, {"primary": {**ASKED["primary"], "summary": "time_to"}, "time_to": [{"metric": RETURN, "at": 0.62}]},
        ("a", "b", "c"), seeds=7, absent=("c-1",),
    ),
    "losses": Logs(_regular, {"primary": {"metric": RETURN, "direction": "lower"}, "family": "bh"}, ("b", "a", "c")),
    "rates": Logs(
        _rates, {"metrics": [RETURN, LENGTH]}, ("a", "b", "c"), seeds=6, cells=RATES, absent=("b-4-1",), steps=4000
    ),
    "selected": Logs(_rates, {"select": {"lr": "best"}}, seeds=8, cells=RATES, absent=("b-6-1",)),
}  # fmt: skip
#: The seeds of each group, by their places, that an unbalanced design does not plan.
UNPLANNED = {0: (4,), 1: (0, 5)}


def make(make_sweep: MakeSweep, kind: str, design: str = "paired") -> Path:
    """An experiment's folder: multirun/KIND.

    design: seeds are pairs, are none, are pairs of which some groups have fewer, or are others in each group.
    """
    logs = KINDS[kind]
    asked = {**ASKED, **logs.asked, "pairing": "none" if design == "unpaired" else "seed"}
    if asked.get("test") == "exact":
        asked["test"] = "relabel" if design == "unpaired" else "signflip"
    claims = {
        f"H{n}": {"claim": f"{group} is better.", "kind": "greater", "group": group, "metric": RETURN}
        for n, group in enumerate(logs.groups[1:], 1)
    }
    folder = make_sweep(
        logs.groups, range(logs.seeds), logs.steps, {**asked, "hypotheses": claims},
        {group: logs.cells for group in logs.groups}, kind, lines=logs.lines,
    )  # fmt: skip

    def designed(plan: dict[str, Any]) -> None:
        if design == "unbalanced":
            out = {(logs.groups[place], seed) for place, seeds in UNPLANNED.items() for seed in seeds}
            plan["runs"] = [run for run in plan["runs"] if (run["group"], run["seed"]) not in out]
        elif design == "apart":
            for run in plan["runs"]:
                run["seed"] += 100 * logs.groups.index(run["group"])

    return replan(ended(without(folder, *logs.absent), "failed", *logs.failed), designed)
