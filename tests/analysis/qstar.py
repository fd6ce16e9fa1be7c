"""A made-up sweep of the eight methods that sample from, or learn from, a target policy; evaluated every tenth step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher.run.folder import histograms_path, run_folder
from tests.analysis.conftest import Lines, MakeSweep

METHODS = ("ppo", "off_policy", "rejection", "sft", "dpo", "uniform_alpha", "entropy_alpha", "q_star")
GEOMETRIC = ("uniform_alpha", "entropy_alpha", "q_star")
EVAL = "eval/reward_mean"
VARIANCE = "actor/grad_variance"
KL = "actor/kl_init"
ESS = "qstar/ess_ratio"
STEPS = 120
SPEED = dict(zip(METHODS, (2.0, 2.4, 2.2, 1.8, 1.7, 2.6, 2.8, 4.5), strict=True))
NOISE = dict(zip(METHODS, (0.9, 1.6, 0.7, 0.55, 0.5, 1.1, 1.0, 0.8), strict=True))
DRIFT = dict(zip(METHODS, (0.30, 0.05, 0.12, 0.10, 0.08, 0.2, 0.21, 0.16), strict=True))


def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """One run: rewards rise at the method's own speed; the seed's luck is shared by all methods."""
    random = np.random.default_rng([seed, METHODS.index(group)])
    luck = 0.02 * np.random.default_rng(seed).standard_normal()
    made = []
    for step in range(1, STEPS + 1):
        noise = random.standard_normal(8)
        rise = 1 - np.exp(-SPEED[group] * step / STEPS)
        line = {
            "step": step,
            "attempt": 1,
            "samples/total": 256.0 * step,
            "analysis/reward_sum_mean": float(0.35 + (0.5 + luck) * rise + 0.02 * noise[0]),
            VARIANCE: float(NOISE[group] * (1.2 - 0.5 * rise) * np.exp(0.1 * noise[1])),
            KL: float(DRIFT[group] * rise + 0.002 * noise[2]),
        }
        if step % 10 == 0:
            line[EVAL] = float(0.3 + (0.55 + luck) * rise + 0.008 * noise[3])
        if group in GEOMETRIC:
            theta = 30 * np.exp(0.05 * noise[4]) * (1 - 0.4 * rise)
            target = theta * (1 if group == "q_star" else 1.5) * np.exp(0.04 * noise[5])
            line |= {
                "qstar/alpha_mean": float(0.5 + 0.1 * rise + 0.01 * noise[6]),
                "qstar/alpha_std": float(0.15 - 0.05 * rise),
                "qstar/ess_theta": float(theta),
                "qstar/ess_t": float(target),
                ESS: float(theta / target),
                "qstar/weight_max": float(3 + abs(noise[7])),
                "qstar/weight_cv": 0.5,
            }
        made.append(line)
    return made


def histogram(folder: Path, run_id: str, steps: tuple[int, ...] = (1, 40, 80, 120), centre: float = 0.5) -> None:
    """Histograms of alpha over [0, 1] as a run writes them."""
    edges = np.linspace(0, 1, 65)
    with open(histograms_path(run_folder(folder.parent, run_id)), "w") as file:
        for step in steps:
            middle = (edges[1:] + edges[:-1]) / 2
            counts = np.round(1000 * np.exp(-((middle - centre - 0.1 * step / STEPS) ** 2) / 0.02)).astype(int)
            record = {"step": step, "attempt": 1, "name": "alpha", "edges": edges.tolist(), "counts": counts.tolist()}
            file.write(json.dumps({**record, "name": "entropy"}) + "\n" + json.dumps(record) + "\n")


HYPOTHESES: dict[str, Any] = {
    "H1": {"claim": "The two effective sample sizes balance.", "kind": "range", "group": "q_star", "metric": ESS,
           "summary": "mean", "low": 0.9, "high": 1.1},
    "H2": {"claim": "It needs the samples of PPO over 1.2, or fewer.", "kind": "ratio", "group": "q_star",
           "metric": EVAL, "summary": "efficiency", "baseline_final": 1.0, "at_least": 1.2},
    "H3": {"claim": "It has the least gradient variance of the eight.", "kind": "extreme", "group": "q_star",
           "metric": VARIANCE, "which": "least"},
    "H4": {"claim": "It stays between PPO and off-policy in KL to the initial policy.", "kind": "between",
           "group": "q_star", "metric": KL, "groups": ["ppo", "off_policy"]},
    "H5": {"claim": "It is on the Pareto front of reward and gradient variance.", "kind": "pareto", "group": "q_star",
           "metrics": [EVAL, VARIANCE], "directions": ["higher", "lower"]},
    "success": {"claim": "At least three of the five.", "kind": "count", "of": ["H1", "H2", "H3", "H4", "H5"],
                "at_least": 3},
}  # fmt: skip
ANALYSIS: dict[str, Any] = {
    "primary": {"metric": EVAL, "summary": "final"},
    "metrics": [EVAL, VARIANCE, KL],
    "figures": [
        {"band": ["qstar/alpha_mean", "qstar/alpha_std"]},
        {"scatter": ["qstar/ess_t", "qstar/ess_theta"], "diagonal": True},
        {"histogram": "alpha"},
        {"pareto": [EVAL, VARIANCE], "directions": ["higher", "lower"]},
    ],
    "time_to": [{"baseline_final": 1.0}],
    "hypotheses": HYPOTHESES,
}


def make(make_sweep: MakeSweep, analysis: Mapping[str, Any] = ANALYSIS, methods: Sequence[str] = METHODS) -> Path:
    """The sweep, with histograms of alpha."""
    folder = make_sweep(methods, steps=STEPS, analysis=analysis, lines=lines, name="qstar_main")
    for run in json.loads((folder / "plan.json").read_text())["runs"]:
        if run["group"] in GEOMETRIC:
            histogram(folder, run["id"], centre=0.4 + 0.05 * GEOMETRIC.index(run["group"]))
    return folder


def two(make_sweep: MakeSweep) -> Path:
    """Two of its methods, with the figures that are no plain curves."""
    return make(make_sweep, {key: ANALYSIS[key] for key in ("primary", "figures")}, ("ppo", "q_star"))
