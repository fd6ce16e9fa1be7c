"""What reports say of small experiments: answer, tables, notes and captions, as the golden file holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.study import Ground, Outcome, Reason
from analysis.report import Report, write
from analysis.spec.settings import REWARD, settings
from analysis.tables import wording
from launcher import files
from launcher.run.folder import read_provenance, read_summary, run_folder
from launcher.run.lifecycle import find_state, write_state
from tests.analysis import qstar
from tests.analysis.conftest import UP, LinesOf, MakeSweep, ended, logging, metrics, replan, without
from tests.wording import Worded

STD, ENTROPY, LOSS = "analysis/reward_sum_std", "analysis/entropy_full_mean", "a/loss"
WH, BUDGET, USAGE = "analysis/wH_per_token", "dual_game/B_token", "dual_game/usage_ratio"
DRAWN, OWN = "analysis/reward_sum_mean", "eval/reward_mean"
ASKED: dict[str, Any] = {"primary": {"metric": UP, "direction": "higher"}}
ALONE: dict[str, Any] = {"primary": {"metric": REWARD, "summary": "final"}, "metrics": []}
AB, PAIR = ("A", "B"), ("C0", "C1")
#: What many reports have and few scenarios are about.
USUAL = ("runs", "cost", "paper", "metrics", "health", "checks", "cells", "effects", "interactions")


@dataclass(frozen=True)
class Scenario:
    """An experiment: arguments of `make_sweep`, then what is done to its folder; parts: of USUAL, or captions."""

    lines: LinesOf
    groups: Sequence[str] = AB
    seeds: Sequence[int] = (0, 1, 2)
    steps: int = 20
    asked: Mapping[str, Any] = field(default_factory=lambda: ASKED)
    cells: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    change: Callable[[Path], object] = lambda folder: None
    parts: Sequence[str] = ()


def at(heights: Mapping[str, Sequence[float]], metric: str = UP) -> LinesOf:
    """Runs that stand at heights[group][seed]."""
    return logging(lambda group, seed, *_: heights[group][seed], metric=metric)


def cells_of(groups: Sequence[str], **levels: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    each = [dict(zip(levels, chosen, strict=True)) for chosen in product(*levels.values())]
    return dict.fromkeys(groups, each)


def gone(*runs: str) -> Callable[[Path], object]:
    return lambda folder: without(folder, *runs)


# ---------------------------------------------------------------- levels, grids, collapses


def rates(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    """C0 and C1 reach 0.436 and 0.462; at lr = 0.5, all reward and entropy is gone after the first step."""
    left = float(cell.get("lr") != 0.5 or step == 1)
    return {REWARD: left * (0.436 if group == "C0" else 0.462), STD: 0.5 * left, ENTROPY: 1.2 * left}


def one_gone(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    return rates(group, seed, {"lr": 0.5 if (group, seed) == ("C1", 1) else 0.1}, step)


def height(group: str, seed: int, cell: Mapping[str, Any], step: int) -> float:
    return 0.5 + 0.1 * cell.get("gamma", 0) + 0.01 * cell.get("k", 0)


def torn(group: str, seed: int, cell: Mapping[str, Any], step: int) -> float:
    """0.25 where gamma is 10, 0.125 more with each further seed where kl is on; the baseline's is the seed's luck.

    Powers of two: their sums are exact, so no comparison depends on last bits.
    """
    own = 0.25 * (cell["gamma"] == 10) + 0.125 * (1 + seed) * (cell["kl"] == "on") if cell else 0.0
    return 0.5 + 0.125 * seed + own


LR = {"C0": [{"lr": 0.1}, {"lr": 0.5}], "C1": [{"lr": 0.1}, {"lr": 0.5}]}
TORN = cells_of(("C1",), gamma=(0.8, 1.2, 10.0), rho=(0.3, 0.6), kl=("off", "on"))
LEVELS = {
    "one factor": Scenario(logging(rates, 40), PAIR, (0, 1), 40, ALONE, LR, parts=("health", "captions")),
    "a level without a result": Scenario(
        logging(rates, 40), PAIR, (0, 1), 40, ALONE, LR,
        lambda folder: [
            (run_folder(folder.parent, run) / "state.json").unlink() for run in ("C1-0-0", "C1-0-1", "C1-1-1")
        ],
    ),
    "a run of one cell collapsed": Scenario(logging(one_gone, 40), PAIR, (0, 1), 40, ALONE),
    "best and worst cell": Scenario(
        logging(height, 10, REWARD), PAIR, steps=10, asked=ALONE, cells=cells_of(("C1",), gamma=(1, 2), k=(1, 2, 3)),
    ),
    "less is better in a grid": Scenario(
        logging(height, 10, REWARD), PAIR, (0,), 10, {"primary": {**ALONE["primary"], "direction": "lower"}},
        cells_of(("C1",), gamma=(1, 2), k=(1, 2, 3)),
    ),
    "seven levels": Scenario(logging(height, 10, REWARD), ("C1",), (0,), 10, ALONE, cells_of(("C1",), k=range(1, 8))),
    "six levels": Scenario(logging(height, 10, REWARD), ("C1",), (0,), 10, ALONE, cells_of(("C1",), k=range(1, 7))),
    "a torn grid": Scenario(
        logging(torn, 10, REWARD), PAIR, (0, 1, 2), 10, ALONE, TORN,
        lambda folder: ended(
            folder, "diverged", *(f"C1-{seed}-{place}" for seed in range(3) for place in range(4, 8)), "C1-1-0",
            message="diverged",
        ),
        ("cells", "effects", "interactions"),
    ),
    "a grid of one seed": Scenario(
        logging(torn, 10, REWARD), PAIR, (0,), 10, ALONE, TORN, parts=("effects", "captions"),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- the answer


def gaps(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    """B's seed 0 ends early, C's seed 2 is infinite once, and D does not record the metric at all."""
    if group == "D" or ((group, seed) == ("B", 0) and step > 12):
        return {"a/other": 0.0}
    return {UP: float("inf") if (group, seed, step) == ("C", 2, 5) else 1.0 + seed}


FEW_CLAIMS = {
    "ratio": {"claim": "x", "kind": "ratio", "group": "B", "metric": UP, "at_least": 1.0},
    "extreme": {"claim": "x", "kind": "extreme", "group": "A", "metric": UP, "which": "least"},
    "all": {"claim": "x", "kind": "all", "of": ["ratio"]},
}
TWO = {"A": [2.0, 2.1], "B": [1.0, 1.2]}
THREE = {**TWO, "C": [9.0, 9.1]}
SIX = np.linspace(0.0, 0.1, 6)
RISING = {"A": SIX, "B": 1 + SIX**2, "C": 1.1 - SIX**3}
UNDECIDED = {"A": [0.0] * 6, "B": [0.4, *(0.3 * (-1) ** seed for seed in range(1, 6))], "C": [0.1, -0.1] * 3}
#: Heights by group and seed, what else is asked, and what is done to the folder.
COMPARED: dict[str, tuple[Any, ...]] = {
    "a pair is missing": ({"A": [1.0, 50.0, 3.0], "B": [1.5, 0.0, 3.5]}, {}, gone("B-1")),
    "the best of two is not decided": (THREE,),
    "a method has no run": (THREE, {}, gone("C-0", "C-1")),
    "no baseline": (TWO, {}, lambda folder: replan(folder, lambda plan: plan.update(baseline=None))),
    "the baseline has no run": (dict.fromkeys("ABC", (2.0, 2.1)), {}, gone("A-0", "A-1")),
    "one run": ({"A": [2.0]},),
    "p is 1": (UNDECIDED,),
    "holm, signflip": (RISING, {"family": "holm", "test": "signflip"}),
    "no direction": (TWO, {"primary": {"metric": UP}}),
    "less is better": (TWO, {"primary": {"metric": UP, "direction": "lower"}}),
}
LUCK = np.array([0.1, -0.2, 0.3, -0.1, 0.2, 0.4])
TIMED = {"primary": {"metric": UP, "summary": "time_to"}, "time_to": [{"metric": UP, "at": 5.0}], "window": 1}
NORMAL = np.random.default_rng(4).standard_normal((5, 10)) + 4 * (np.arange(5) == 2)[:, None]
ANSWERS = {
    **{
        name: Scenario(
            at(by_group), tuple(by_group), range(len(by_group["A"])), asked={**ASKED, **dict(*more[:1])},
            **dict(zip(("change",), more[1:], strict=False)),
        )
        for name, (by_group, *more) in COMPARED.items()
    },
    "gaps": Scenario(logging(gaps), ("A", "B", "C", "D")),
    "reached": Scenario(
        logging(lambda group, seed, cell, step: step * cell["pace"]), asked=TIMED, cells=cells_of(AB, pace=(0.1, 1, 2)),
        change=gone("B-1-0"),
    ),
    "signs are drawn": Scenario(
        at({"A": [0.0] * 21, "B": list(range(1, 22))}), seeds=range(21), asked={**ASKED, "test": "signflip"},
    ),
    **{
        f"few seeds, {n}, {test}": Scenario(
            logging(lambda group, seed, *_: 1 + 0.001 * seed * seed if group == "A" else 2 + 0.002 * seed),
            seeds=range(n),
            asked={**ASKED, "test": test, "pairing": "none" if test == "welch" else "seed", "hypotheses": FEW_CLAIMS},
        )
        for n, test in ((2, "paired_t"), (3, "welch"), (5, "paired_t"), (6, "paired_t"), (4, "welch"), (6, "signflip"))
    },
    **{
        f"the largest difference, decided {decided}": Scenario(
            at({"A": 0 * LUCK, "B": LUCK, "C": LUCK[::-1] / 2 + decided}), ("A", "B", "C"), range(6),
        )
        for decided in (True, False)
    },
    "the largest difference is unfavourable": Scenario(
        at({"A": 0 * LUCK, "B": LUCK, "C": LUCK[::-1] / 2 - 4}), ("A", "B", "C"), range(6),
    ),
    **{
        f"power, {family}": Scenario(
            at(dict(zip("ABCDE", NORMAL, strict=True))), tuple("ABCDE"), range(10), asked={**ASKED, "family": family},
        )
        for family in ("holm", "bh", "max_t")
    },
}  # fmt: skip

# ---------------------------------------------------------------- sections

MODELS = {"gpt2": 124e6, "pythia": 1.4e9, "llama": 6.7e9}


def sized(group: str, seed: int, cell: Mapping[str, Any], step: int) -> float:
    """C1 leads, by 0.1 + 0.02 a seed more with each tenfold of parameters."""
    return 0.3 + 0.05 * seed + (group == "C1") * (0.1 + 0.02 * seed) * np.log10(MODELS[cell["model"]] / 1e8)


def tell_sizes(*absent: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for run in (folder.parent / "runs").iterdir():
            size = list(MODELS.values())[int(run.name[-1])]
            files.write_json(run / "summary.json", {**(read_summary(run) or {}), "parameters": size})
        without(folder, *absent)

    return change


def task(group: str, seed: int, cell: Mapping[str, Any], step: int) -> float:
    random = np.random.default_rng([seed, int(cell["task"][1:]), group == "C1"])
    return 0.4 + 0.1 * (group == "C1") + 0.1 * float(random.standard_normal())


def scored(group: str, seed: int, cell: Mapping[str, Any], step: int) -> float:
    """Each task has its own level; b gains 1 to 3 there."""
    place = int(cell["task"][1:])
    luck = float(np.random.default_rng([seed, place, group == "B"]).standard_normal())
    return 10.0 * place + (group == "B") * (1 + place % 3) + 0.3 * luck


def alike(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    return {REWARD: 0.1 * seed + 0.01 * step, "actor/kl_init": 0.1}


def timely(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    rate = 2 if group == "C1" else 1
    own = {"samples/total": 8 * step, "cost/wall_seconds": 90.0 * step}
    return {REWARD: 0.1 * seed + rate * step, "actor/kl_init": 0.1, **own}


def chosen(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    """Level 0.2 of b is truly best; 0.3 is best in the first three seeds, and far worse in the others."""
    lr = cell.get("lr", 0.0)
    luck = (5.0 if seed < 3 else -5.0) if lr == 0.3 else 0.0
    value = 1.0 + 10 * lr * (lr < 0.3) + luck + 0.02 * seed + 0.01 * seed * (group == "A")
    return {UP: value, LOSS: -value}


POLICY = {"sampler": "policy", "target": "none", "alpha": "none", "loss": "policy_gradient"}
METHODS = {"PPO": POLICY, "clip": {**POLICY, "clip_high": 0.3},
           "SFT": {"sampler": "target", "target": "expert", "alpha": "none", "loss": "sft"}}  # fmt: skip


def of_methods(folder: Path) -> None:
    for run in json.loads((folder / "plan.json").read_text())["runs"]:
        config = files.dump_yaml({"format": 1, "method": METHODS[run["group"]]})
        files.write_atomic(run_folder(folder.parent, run["id"]) / "config.yaml", config)


BOTH = {**ALONE, "metrics": [REWARD, "actor/kl_init"]}
SELECTED = {**ASKED, "select": {"lr": "best"}, "metrics": [UP, LOSS]}
TASKS8, TASKS9 = (tuple(f"t{place}" for place in range(count)) for count in (8, 9))
GAPS9 = ("A-0-1", "B-3-1", "B-5-2", "A-2-3", *(f"B-{seed}-8" for seed in range(6)))
SECTIONS = {
    **{
        name: Scenario(
            logging(sized, 10, REWARD), PAIR, steps=10, asked=ALONE, cells=cells_of(PAIR, model=MODELS),
            change=tell_sizes(*absent), parts=() if absent else ("captions",),
        )
        for name, absent in (("sizes", ()), ("a size that a seed lacks", ("C1-1-2",)),
                             ("a size that no run has", ("C1-0-2", "C1-1-2", "C1-2-2")))
    },
    "many cells": Scenario(
        logging(task, 10, REWARD), PAIR, steps=10, asked=ALONE, cells=cells_of(PAIR, task=TASKS8),
    ),
    "many cells, less is better, one lacking": Scenario(
        logging(task, 10, REWARD), PAIR, (0, 1, 2), 10, {"primary": {**ALONE["primary"], "direction": "lower"}},
        cells_of(PAIR, task=TASKS8), gone("C1-1-2"),
    ),
    "no seed in common": Scenario(
        lambda group, seed, cell: metrics(group, seed, 30), ("C0", "C1", "PTRW"), range(4), 30, ALONE,
        change=lambda folder: replan(folder, lambda plan: plan.update(
            runs=[run for run in plan["runs"] if (run["group"] == "C1") == (run["seed"] > 1)],
        )),
    ),
    "tasks that some seeds lack": Scenario(
        logging(scored, 10), seeds=range(6), steps=10, cells=cells_of(AB, task=TASKS9), change=gone(*GAPS9),
        parts=("cells",),
    ),
    "a task that makes up a difference": Scenario(
        logging(lambda g, seed, cell, step: scored(g, seed, cell, step) * (1000 if cell["task"] == "t4" else 1), 10),
        seeds=range(6), steps=10, cells=cells_of(AB, task=TASKS9),
    ),
    "one row": Scenario(logging(alike, 40), PAIR, steps=40, asked=BOTH),
    "efficiency and hours": Scenario(
        logging(timely, 40), PAIR, steps=40,
        asked={**BOTH, "axis": "samples", "time_to": [{"at": 20.0, "metric": REWARD}]},
    ),
    "the best level": Scenario(
        logging(chosen, 10), seeds=range(6), steps=10, asked=SELECTED,
        cells={"B": [{"lr": lr} for lr in (0.1, 0.2, 0.3)]}, change=gone("B-1-0", "B-4-1", "B-4-2"),
        parts=("metrics", "cells", "effects", "captions"),
    ),
    "the best level of both": Scenario(
        logging(chosen, 10), seeds=range(6), steps=10, asked={**SELECTED, "time_to": [{"at": 3.0}], "window": 1},
        cells=cells_of(AB, lr=(0.1, 0.2), task=("x", "y")),
    ),
    "drawn from different policies": Scenario(
        logging(lambda group, seed, *_: {
            DRAWN: 0.5 + (group == "SFT") * 0.4 + 0.01 * seed + 0.003 * seed * (group != "PPO"),
            OWN: 0.5 - 0.01 * seed - 0.002 * seed * (group != "PPO"),
        }),
        ("PPO", "clip", "SFT"), range(6), asked={"primary": {"metric": OWN}, "metrics": [DRAWN],
                                                 "figures": [{"difference": DRAWN}]},
        change=of_methods, parts=("metrics", "captions"),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- claims, and comparisons that grow

DOWN = "a/down"
BASE = {"A": 1.0, "B": 1.15, "C": 1.6, "D": 1.0}
WAYS = {"metrics": [UP, DOWN], "directions": ["higher", "lower"]}
CLAIMS: list[tuple[str, dict[str, Any]]] = [
    ("range", {"group": "B", "metric": UP, "low": 0.9, "high": 1.4}),
    ("range", {"group": "B", "metric": UP, "high": 1.15}),
    ("range", {"group": "D", "metric": DOWN, "high": 1.2}),
    ("ratio", {"group": "A", "against": "B", "metric": UP, "summary": "efficiency", "at": 1.0, "at_least": 0.5}),
    ("extreme", {"group": "C", "metric": UP, "which": "greatest"}),
    ("extreme", {"group": "A", "metric": UP, "which": "least"}),
    ("between", {"group": "B", "metric": UP, "groups": ["A", "C"]}),
    ("pareto", {"group": "C", **WAYS}),
    ("pareto", {"group": "B", **WAYS}),
    ("greater", {"group": "B", "metric": UP}),
    ("greater", {"group": "C", "metric": UP, "margin": 3.0}),
    ("spread", {"group": "D", "metric": UP, "at_most": 1.5}),
    ("variation", {"group": "B", "metric": UP, "at_most": 0.05}),
    ("count", {"of": ["H1", "H2", "H3"], "at_least": 2}),
]


def of_claims(group: str, seed: int, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Curves that rise to the group's height and luck; D has no DOWN and scatters, C's seed 1 ends early."""
    random = np.random.default_rng([seed, ord(group)])
    up = BASE[group] + 0.05 * np.random.default_rng(seed).standard_normal() + 0.05 * random.standard_normal()
    down = {} if group == "D" else {DOWN: float(2 - BASE[group] + 0.1 * random.standard_normal())}
    last = 25 if (group, seed) == ("C", 1) else 40
    height = 1 + 0.5 * seed if group == "D" else up
    return [{"step": s, "attempt": 1, UP: float(height * (1 - math.exp(-s / 8))), **down} for s in range(1, last + 1)]


def growing(values: Mapping[str, Sequence[float]], change: Callable[[Path], object] = lambda folder: None) -> Scenario:
    """Comparisons at 4, 6, 8 and 10 seeds, of groups that have other numbers of seeds."""

    def planned(folder: Path) -> None:
        replan(folder, lambda plan: plan.update(
            runs=[run for run in plan["runs"] if run["seed"] < len(values[run["group"]])]
        ))  # fmt: skip
        change(folder)

    most = max(map(len, values.values()))
    heights = {group: [*own, *[0.0] * (most - len(own))] for group, own in values.items()}
    rule = {"start": 4, "batch": 2, "max": 10, "until": "decided"}
    return Scenario(at(heights), tuple(values), range(most), asked={**ASKED, "sequential": rule}, change=planned)


def luck(seed: int, n: int, spread: float = 1.0, more: float = 0.0) -> list[float]:
    return (more + spread * np.random.default_rng(seed).standard_normal(n)).tolist()


HYPOTHESES = {
    "primary": {"metric": UP, "direction": "higher"}, "time_to": [{"at": 1.0}],
    "hypotheses": {
        f"H{n}": {"claim": f"Claim {n}.", "kind": kind, **more} for n, (kind, more) in enumerate(CLAIMS, 1)
    },
}  # fmt: skip
DECISIONS = {
    **{
        f"claims, {n} seeds": Scenario(
            of_claims, tuple(BASE), range(n), 40, HYPOTHESES, change=gone(f"B-{n - 1}"), parts=("main",),
        )
        for n in (6, 2)
    },
    "some decided, futile and open": growing(
        {"A": luck(1, 6, 0.5), "B": luck(2, 4, 0.5, 3), "C": luck(3, 4, 1, -1), "D": luck(4, 6)}
    ),
    "before the first": growing({"A": luck(7, 3), "B": luck(8, 3)}),
    "a run has not ended": growing(
        {"A": luck(5, 6), "B": luck(6, 6)}, lambda folder: ended(folder, "running", "B-5"),
    ),
    "a run failed": growing({"A": luck(5, 6), "B": luck(6, 6)}, lambda folder: ended(folder, "failed", "B-4")),
    "a method was dropped": growing({"A": luck(13, 8), "B": luck(14, 4), "C": luck(15, 8, 1, 0.8)}),
}  # fmt: skip

# ---------------------------------------------------------------- figures, windows, where runs are measured


def dual(group: str, seed: int, cell: Mapping[str, Any], step: int) -> dict[str, float]:
    """C1 has a budget after its warm-up, C3 (KL-gated) later and at another step in every seed, C0 none."""
    begins = {"C0": 99, "C1": 11, "C3": 20 + 7 * seed}[group]
    line = {REWARD: 0.5 + 0.001 * step * (1 + seed), WH: 0.02 + 0.001 * seed + 0.0001 * step}
    return {**line, **({BUDGET: 0.05 + 0.001 * step, USAGE: 0.5 + 0.01 * seed} if step >= begins else {})}


def to(ends: Callable[[str, int, str], tuple[int, int]]) -> LinesOf:
    """Runs that rise to 1 at their planned end, and log up to ends(group, seed, task) of it."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
        planned, last = ends(group, seed, cell.get("task", ""))
        return [{"step": s, UP: s / planned + 0.1 * seed} for s in range(planned // 100, last + 1, planned // 100)]

    return lines


def of_task(last: int) -> Callable[[str, int, str], tuple[int, int]]:
    return lambda g, s, t: (n := 500 if t == "short" else 10000, last if (g, s, t) == ("B", 1, "long") else n)


ENDS: dict[str, tuple[Callable[[str, int, str], tuple[int, int]], dict[str, Any]]] = {
    "of a method": (lambda g, s, t: (1000, 500 if g == "B" else 1000), {}),
    "of a run later": (lambda g, s, t: (1000, 1100 if (g, s) == ("A", 0) else 1000), {}),
    "of a run a little early": (lambda g, s, t: (1000, 970 if (g, s) == ("B", 1) else 1000), {}),
    "of a run early": (lambda g, s, t: (1000, 820 if (g, s) == ("B", 1) else 1000), {}),
    "of a task early": (of_task(8200), {"cells": cells_of(AB, task=("long", "short"))}),
    "of a task a little early": (of_task(9800), {"cells": cells_of(AB, task=("long", "short"))}),
    "of each run": (
        lambda g, s, t: (1000, 500 if (g, s) == ("B", 1) else 1000),
        {"asked": {**ASKED, "end": "own", "time_to": [{"at": 0.9}]}},
    ),
}
DUAL = {"metrics": [USAGE], "figures": [[WH, BUDGET], BUDGET, {"difference": WH}]}
DRAWINGS = {
    "a run that failed and one that is not there": Scenario(
        logging(dual, 60), ("C0", "C1", "C3"), steps=60, asked=DUAL,
        change=lambda folder: without(ended(folder, "failed", "C1-1"), "C0-2", "C3-0"), parts=("metrics", "captions"),
    ),
    **{
        f"ends, {name}": Scenario(to(ends), AB, range(4), 1000, parts=("captions",), **more)
        for name, (ends, more) in ENDS.items()
    },
}  # fmt: skip

# ---------------------------------------------------------------- compute and health


def spent(folder: Path) -> None:
    machine = {"cpu_count": 8, "platform": "Linux", "devices": {"gpus": ["NVIDIA H100, 81559 MiB", "NVIDIA H100"]}}
    seconds = ({"1": 3600.0, "2": 7200.0}, {"1": 3600.0}, {"1": 1800.0}, {"1": 900.0})
    for run, own, more in zip(
        ("C0-0", "C0-1", "C1-0", "C1-1"), seconds, ({}, {}, {}, {"state": "failed"}), strict=True
    ):
        at_run = run_folder(folder.parent, run)
        write_state(at_run, find_state(at_run).replace(device_seconds=own, attempt=len(own), **more))
        files.write_json(at_run / "provenance.json", {**read_provenance(at_run), **machine})


def unhealthy(folder: Path) -> None:
    said = ({}, {"actor/kl_init above 10": 3}, {"ess_ratio outside [0.5, 2]": 1}, {})
    for run, warnings in zip(("ppo-0", "ppo-1", "q_star-0", "q_star-1"), said, strict=True):
        at_run = run_folder(folder.parent, run)
        files.write_json(at_run / "summary.json", {**(read_summary(at_run) or {}), "warnings": warnings})
    ended(folder, "diverged", "q_star-1", message="NaN")


COMPUTE = {
    "compute": Scenario(at({"C0": [1, 2], "C1": [2, 4]}, REWARD), PAIR, (0, 1), asked=ALONE, change=spent,
                        parts=("cost",)),
    "an older version": Scenario(at({"C0": [1, 2], "C1": [2, 4]}, REWARD), PAIR, (0, 1), asked=ALONE, parts=("cost",)),
    "health": Scenario(qstar.lines, ("ppo", "q_star"), (0, 1), qstar.STEPS, {"primary": {"metric": qstar.EVAL}},
                       change=unhealthy, parts=("checks",)),
}  # fmt: skip
SCENARIOS = {**LEVELS, **ANSWERS, **SECTIONS, **DECISIONS, **DRAWINGS, **COMPUTE}


#: How many reports begin to explain themselves; a scenario with the part `main` has all of it.
COMMON = ("The brackets hold", "Value: mean over seeds. ", "The first measure is the primary one")


def built(make_sweep: MakeSweep, given: Scenario) -> Path:
    folder = make_sweep(given.groups, given.seeds, given.steps, given.asked, given.cells, lines=given.lines)
    given.change(folder)
    return folder


def said(report: Report, parts: Sequence[str]) -> Iterator[str]:
    lines = all_of(report, parts)
    return lines if "main" in parts else (line for line in lines if not line.removeprefix("* ").startswith(COMMON))


def all_of(report: Report, parts: Sequence[str]) -> Iterator[str]:
    """The answer, tables with their notes, of `main` and `metrics` the first measure alone, and captions."""
    answer = report.answer
    yield from (answer.question, answer.result, answer.certainty, *answer.limits, *answer.levels, *answer.collapsed)
    yield from (*answer.gaps, *map(str, answer.warnings))
    for table in report.tables:
        if table.name in parts or table.name not in USUAL:
            of_many = table.name in ("main", "metrics") and "main" not in parts
            yield f"## {table.name}: {table.title}"
            rows = [row for row in table.rows if not of_many or row[0] == table.rows[0][0]]
            yield from (" | ".join(row) for row in (table.columns, *rows))
            yield from (f"* {note}" for note in table.notes)
    if "captions" in parts:
        yield from (f"{figure.name}: {figure.caption}" for figure in report.figures)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_report_says_what_the_golden_file_has(
    make_sweep: MakeSweep, name: str, unrendered: None, worded: Worded
) -> None:
    given = SCENARIOS[name]
    worded(said(write(built(make_sweep, given)), given.parts))


def test_every_reason_has_words(make_sweep: MakeSweep) -> None:
    asked = {"hypotheses": {"H": {"claim": "It is so.", "kind": "range", "group": "A", "metric": UP, "low": 0}}}
    sweep = read_sweep(make_sweep("A", (0,), 1, asked))
    (hypothesis,) = settings(asked).hypotheses
    for reason in Reason:
        full = Ground(reason, ("A", "A"), 2, 3, 0, (1,), 0.5, (0.1, 0.9), 0.05, ("H",), Outcome.SUPPORTED, "x")
        text = wording.grounds([full], sweep, hypothesis, 0.05)
        assert text and "{" not in text, reason
