"""What an experiment may ask of its report; whatever it may not is refused with key, value, rule and fix."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from analysis.spec.figure_spec import Picture
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import BadPlan, Context, Objection, objections
from tests.analysis import qstar
from tests.wording import Worded

UP, DOWN = "a/up", "a/down"
X, Y = "qstar/ess_t", "qstar/ess_theta"
LAMBDA, WH = "dual_game/lambda", "analysis/wH_per_token"
RANGE = {"claim": "It is so.", "kind": "range", "group": "A", "metric": UP, "low": 0}
ABOUT_B = {"claim": "x", "group": "B", "metric": UP}
NOT_A_METRIC = "must be a metric's key, such as actor/grad_norm"


def check(section: Any, context: Context) -> list[Objection]:
    return objections(Settings, section, "analysis", context)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in RANGE.items() if name != key}


SECTIONS = """
alpha: 2
alpha: true
family: tukey
primry: {}
primary: 5
primary: {summary: mean}
primary: {direction: up}
primary: {metric: the reward}
primary: {summary: time_to}
metrics: a/b
metrics: [a b]
time_to: 3
time_to: [3]
time_to: [{at: 1, baseline_final: 1}]
time_to: [{at: x}]
window: 0
window: 20.0
window: {points: 0}
window: {steps: 5}
seed: -1
axis: tokens
figures: dual_game/lambda
"""
FIGURES = """
3
the lambda
[dual_game/lambda]
[dual_game/lambda, [analysis/wH_per_token]]
[a/b0, a/b1, a/b2, a/b3, a/b4, a/b5, a/b6]
[dual_game/lambda, dual_game/lambda]
{scater: [qstar/ess_t, qstar/ess_theta]}
{scatter: [qstar/ess_t, qstar/ess_theta], band: [qstar/ess_t, qstar/ess_theta]}
{scatter: [qstar/ess_t]}
{scatter: [qstar/ess_t, qstar/ess_t]}
{scatter: [qstar/ess_t, '|ess|']}
{scatter: null}
{scatter: [qstar/ess_t, qstar/ess_theta], diagonal: 1}
{scatter: [qstar/ess_t, qstar/ess_theta], colour: 1}
{band: [qstar/ess_t, qstar/ess_theta], diagonal: true}
{histogram: [alpha]}
{pareto: [eval/reward_mean, qstar/ess_t], directions: [higher, down]}
{pareto: [eval/reward_mean, qstar/ess_t], directions: [higher]}
{pareto: [eval/reward_mean, qstar/ess_t]}
"""
HYPOTHESES = """
3: {claim: x, kind: range, group: A, metric: a/up, low: 0}
H: 3
H: {claim: x, kind: rnage, group: A, metric: a/up, low: 0}
H: {claim: x, group: A, metric: a/up, low: 0}
H: {claim: x, kind: range, group: Z, metric: a/up, low: 0}
H: {claim: x, kind: range, group: 3, metric: a/up, low: 0}
H: {claim: x, kind: range, group: A, metric: the reward, low: 0}
H: {claim: x, kind: range, group: A, metric: a/up * a/down, low: 0}
H: {claim: ' ', kind: range, group: A, metric: a/up, low: 0}
H: {claim: x, kind: range, metric: a/up, low: 0}
H: {claim: x, kind: range, group: A, metric: a/up}
H: {claim: x, kind: range, group: A, metric: a/up, low: x}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0, high: -1}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0, at_least: 1}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0, summary: time_to}
H: {claim: x, group: B, metric: a/up, kind: ratio, at_least: 1, low: 1}
H: {claim: x, group: B, metric: a/up, kind: ratio}
H: {claim: x, group: B, metric: a/up, kind: greater, summary: time_to}
H: {claim: x, group: B, metric: a/up, kind: greater, at: 1}
H: {claim: x, group: B, metric: a/up, kind: greater, margin: 0}
H: {claim: x, group: A, metric: a/up, kind: greater}
H: {claim: x, group: B, metric: a/up, kind: extreme, which: best}
H: {claim: x, group: B, metric: a/up, kind: between, groups: [B]}
H: {claim: x, group: B, metric: a/up, kind: between, groups: [A, B]}
H: {claim: x, kind: pareto, group: A, metrics: [a/up, a/down]}
H: {claim: x, group: B, metric: a/up, kind: spread, low: 0, at_most: 1}
H: {claim: x, group: B, metric: a/up, kind: variation}
H: {claim: x, group: B, metric: a/up, kind: variation, at_most: 0}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0}, K: {claim: x, kind: count, of: [H, L], at_least: 1}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0}, K: {claim: x, kind: any, of: [K]}
J: {claim: x, kind: all, of: [K]}, K: {claim: x, kind: all, of: [J]}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0}, K: {claim: x, kind: count, of: [H], at_least: 2}
H: {claim: x, kind: range, group: A, metric: a/up, low: 0}, K: {claim: x, kind: all, of: [H, H]}
"""
CASES = [
    "5",
    *(f"{{{row}}}" for row in SECTIONS.strip().splitlines()),
    *(f"{{figures: [{row}]}}" for row in FIGURES.strip().splitlines()),
    "{hypotheses: []}",
    *(f"{{hypotheses: {{{row}}}}}" for row in HYPOTHESES.strip().splitlines()),
]


@pytest.mark.parametrize("section", CASES)
def test_what_cannot_be_asked_is_refused_at_its_key(section: str, worded: Worded) -> None:
    with pytest.raises(BadPlan) as refused:
        settings(yaml.safe_load(section), "plan.json", ("A", "B", "C"), "A")
    (line,) = str(refused.value).splitlines()
    worded(line)


def test_everything_is_refused_at_once_with_the_file(worded: Worded) -> None:
    with pytest.raises(BadPlan) as caught:
        settings({"alpha": 2, "hypotheses": {"H": without("low"), "K": without("claim")}}, "multirun/x/plan.json")
    worded(str(caught.value))


def test_a_comparison_without_a_baseline_names_its_group() -> None:
    given = {"hypotheses": {"H": {**ABOUT_B, "kind": "greater"}}}
    (breach,) = check(given, Context(("A", "B")))
    assert breach.key == "analysis.hypotheses.H.against" and "the plan has no baseline" in breach.rule


def test_imported_runs_may_have_any_metric_and_planned_ones_the_trainers() -> None:
    section = {"primary": {"metric": "reward"}, "metrics": ["a/b"]}
    assert settings(section).metrics == ("reward", "a/b")
    (breach,) = check(section, Context(own_metrics=True))
    assert (breach.key, breach.rule) == ("analysis.primary.metric", NOT_A_METRIC)


def test_mappings_are_pictures() -> None:
    found = settings({"figures": qstar.ANALYSIS["figures"]}).figures
    assert [picture.kind for picture in found] == ["band", "scatter", "histogram", "pareto"]
    assert found[1] == Picture(scatter=(X, Y), diagonal=True)
    assert found[3].directions == ("higher", "lower")
    known = settings({"figures": [{"pareto": ["eval/reward_mean", "cost/wall_seconds"]}]}).figures[0]
    assert known.directions == ("higher", "lower")  # what is known of the two metrics


def test_what_the_tests_declare_may_be_asked_of_the_trainers_runs() -> None:
    section = {"figures": qstar.ANALYSIS["figures"], "axis": "samples"}
    assert not check(section, Context(own_metrics=True))
    good = {"figures": [[WH, "dual_game/B_token"], LAMBDA, "eval/pass@k"], "hypotheses": qstar.HYPOTHESES}
    assert not check(good, Context(own_metrics=True))
