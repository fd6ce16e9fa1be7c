"""What an experiment may ask of its report; whatever it may not is refused with key, value, rule and fix."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.spec.figure_spec import Picture
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import BadPlan, Breach, Context, breaches
from tests.analysis import qstar

UP, DOWN = "a/up", "a/down"
X, Y = "qstar/ess_t", "qstar/ess_theta"
LAMBDA, WH = "dual_game/lambda", "analysis/wH_per_token"
RANGE = {"claim": "It is so.", "kind": "range", "group": "A", "metric": UP, "low": 0}
ABOUT_B = {"claim": "x", "group": "B", "metric": UP}
NOT_A_METRIC = "must be a metric's key, such as actor/grad_norm"


def check(section: Any, context: Context) -> list[Breach]:
    return breaches(Settings, section, "analysis", context)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in RANGE.items() if name != key}


SETTINGS: list[tuple[Any, str, str]] = [
    (5, "analysis", "must be a mapping"),
    ({"alpha": 2}, "analysis.alpha", "must be a number above 0 and below 1"),
    ({"alpha": True}, "analysis.alpha", "must be a number"),
    ({"family": "tukey"}, "analysis.family", "must be one of holm, max_t, bh"),
    ({"primry": {}}, "analysis.primry", "no such key"),
    ({"primary": 5}, "analysis.primary", "must be a mapping"),
    ({"primary": {"summary": "mean"}}, "analysis.primary.summary", "must be one of final, auc, best, time_to"),
    ({"primary": {"direction": "up"}}, "analysis.primary.direction", "must be higher, lower or null"),
    ({"primary": {"metric": "the reward"}}, "analysis.primary.metric", NOT_A_METRIC),
    (
        {"primary": {"summary": "time_to"}},
        "analysis.time_to",
        "needs a threshold for analysis/reward_sum_mean, because",
    ),
    ({"metrics": "a/b"}, "analysis.metrics", "must be a list of metrics' keys"),
    ({"metrics": ["a b"]}, "analysis.metrics[0]", NOT_A_METRIC),
    ({"time_to": 3}, "analysis.time_to", "must be a list of thresholds, such as"),
    ({"time_to": [3]}, "analysis.time_to[0]", "must be a mapping"),
    ({"time_to": [{"at": 1, "baseline_final": 1}]}, "analysis.time_to[0]", "must have either `at` or `baseline_final`"),
    ({"time_to": [{"at": "x"}]}, "analysis.time_to[0].at", "must be a number"),
    ({"window": 0}, "analysis.window", "must be an integer 1 or more"),
    ({"window": 20.0}, "analysis.window", "must be an integer 1 or more"),
    ({"window": {"points": 0}}, "analysis.window", "or {points: N}, which is a number of points"),
    ({"window": {"steps": 5}}, "analysis.window", "must be an integer 1 or more, which is a number of steps"),
    ({"seed": -1}, "analysis.seed", "must be an integer 0 or more"),
    ({"axis": "tokens"}, "analysis.axis", "must be one of steps, samples"),
]
FORMS = "must be a metric's key, a list of 2 to 6 of them, or a mapping such as {scatter: [x, y]}"
FIGURES: list[tuple[Any, str, str]] = [
    (3, "", FORMS),
    ("the lambda", "[0]", NOT_A_METRIC),
    ([LAMBDA], "", FORMS),
    ([LAMBDA, [WH]], "[1]", NOT_A_METRIC),
    ([f"a/b{i}" for i in range(7)], "", FORMS),
    ([LAMBDA, LAMBDA], "", "dual_game/lambda is named twice"),
    ({"scater": [X, Y]}, "", "must have one of the keys band, difference, histogram, levels, pareto, scatter"),
    (
        {"scatter": [X, Y], "band": [X, Y]},
        "",
        "must have one of the keys band, difference, histogram, levels, pareto, scatter",
    ),
    ({"scatter": [X]}, ".scatter", "must be a list of two metrics' keys"),
    ({"scatter": [X, X]}, ".scatter", "qstar/ess_t is named twice"),
    ({"scatter": [X, "|ess|"]}, ".scatter[1]", NOT_A_METRIC),
    ({"scatter": None}, "", FORMS),
    ({"scatter": [X, Y], "diagonal": 1}, ".diagonal", "must be true or false"),
    ({"scatter": [X, Y], "colour": 1}, ".colour", "no such key"),
    ({"band": [X, Y], "diagonal": True}, "", "band does not take diagonal"),
    ({"histogram": ["alpha"]}, ".histogram", "must be the name of a histogram, such as entropy"),
    ({"pareto": ["eval/reward_mean", X], "directions": ["higher", "down"]}, ".directions[1]", "must be one of higher,"),
    ({"pareto": ["eval/reward_mean", X], "directions": ["higher"]}, ".directions", "must be a list such as [higher, l"),
    (
        {"pareto": ["eval/reward_mean", X]},
        ".directions",
        "needs directions, such as [higher, lower]: it is not known which",
    ),
]
HYPOTHESES: list[tuple[Any, str, str]] = [
    ([], "", "must be a mapping such as {H1:"),
    ({3: RANGE}, "[3]", "must be a mapping such as {H1:"),
    ({"H": 3}, ".H", "must be a mapping of claim, kind and what the kind needs"),
    ({"H": {**RANGE, "kind": "rnage"}}, ".H.kind", "must be one of "),
    ({"H": without("kind")}, ".H.kind", "must be one of "),
    ({"H": {**RANGE, "group": "Z"}}, ".H.group", "the groups are A, B, C"),
    ({"H": {**RANGE, "group": 3}}, ".H.group", "must be the name of a group"),
    ({"H": {**RANGE, "metric": "the reward"}}, ".H.metric", NOT_A_METRIC),
    ({"H": {**RANGE, "metric": f"{UP} * {DOWN}"}}, ".H.metric", NOT_A_METRIC),
    ({"H": {**RANGE, "claim": " "}}, ".H.claim", "must be the claim in words"),
    ({"H": without("group")}, ".H.group", "a value is required"),
    ({"H": without("low")}, ".H", "needs low, high or both"),
    ({"H": {**RANGE, "low": "x"}}, ".H.low", "must be a number"),
    ({"H": {**RANGE, "high": -1}}, ".H", "low must not be above high"),
    ({"H": {**RANGE, "at_least": 1}}, ".H.at_least", "no such key"),
    ({"H": {**RANGE, "summary": "time_to"}}, ".H.summary", "must be one of final, auc, best, mean, early"),
    ({"H": {**ABOUT_B, "kind": "ratio", "at_least": 1, "low": 1}}, ".H.low", "no such key"),
    ({"H": {**ABOUT_B, "kind": "ratio"}}, ".H", "needs at_least, at_most or both"),
    ({"H": {**ABOUT_B, "kind": "greater", "summary": "time_to"}}, ".H", "needs either `at` or `baseline_final`"),
    ({"H": {**ABOUT_B, "kind": "greater", "at": 1}}, ".H", "need a summary that is a time"),
    ({"H": {**ABOUT_B, "kind": "greater", "margin": 0}}, ".H.margin", "must be a number above 0"),
    ({"H": {**ABOUT_B, "kind": "greater", "group": "A"}}, ".H.against", "must not be the group itself"),
    ({"H": {**ABOUT_B, "kind": "extreme", "which": "best"}}, ".H.which", "must be one of least, greatest"),
    ({"H": {**ABOUT_B, "kind": "between", "groups": ["B"]}}, ".H.groups", "must be a list of two groups"),
    ({"H": {**ABOUT_B, "kind": "between", "groups": ["A", "B"]}}, ".H.groups", "must be two groups other than `group`"),
    ({"H": {"claim": "x", "kind": "pareto", "group": "A", "metrics": [UP, DOWN]}}, ".H.directions", "needs directions"),
    ({"H": {**ABOUT_B, "kind": "spread", "low": 0, "at_most": 1}}, ".H.low", "no such key"),
    ({"H": {**ABOUT_B, "kind": "variation"}}, ".H.at_most", "a value is required"),
    ({"H": {**ABOUT_B, "kind": "variation", "at_most": 0}}, ".H.at_most", "must be a number above 0"),
    ({"H": RANGE, "K": {"claim": "x", "kind": "count", "of": ["H", "L"], "at_least": 1}}, ".K.of",
     "the hypotheses that it may name are H"),
    ({"H": RANGE, "K": {"claim": "x", "kind": "any", "of": ["K"]}}, ".K.of", "that it may name are H"),
    ({"J": {"claim": "x", "kind": "all", "of": ["K"]}, "K": {"claim": "x", "kind": "all", "of": ["J"]}}, ".J.of",
     "that it may name are none"),
    ({"H": RANGE, "K": {"claim": "x", "kind": "count", "of": ["H"], "at_least": 2}}, ".K.at_least",
     "must be at most 1, as many as `of`"),
    ({"H": RANGE, "K": {"claim": "x", "kind": "all", "of": ["H", "H"]}}, ".K.of", "H is named twice"),
]  # fmt: skip
CASES = [
    *SETTINGS,
    *(({"figures": [item]}, f"analysis.figures[0]{key}", rule) for item, key, rule in FIGURES),
    ({"figures": LAMBDA}, "analysis.figures", "must be a list such as"),
    *(({"hypotheses": given}, f"analysis.hypotheses{key}", rule) for given, key, rule in HYPOTHESES),
]


@pytest.mark.parametrize(("section", "key", "rule"), CASES)
def test_what_cannot_be_asked_is_refused_at_its_key(section: Any, key: str, rule: str) -> None:
    (breach,) = check(section, Context(("A", "B", "C"), "A"))
    assert breach.key == key and rule in breach.rule and breach.fix


def test_everything_is_refused_at_once_with_the_file() -> None:
    with pytest.raises(BadPlan) as caught:
        settings({"alpha": 2, "hypotheses": {"H": without("low"), "K": without("claim")}}, "multirun/x/plan.json")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and all(line.startswith("multirun/x/plan.json: analysis.") for line in lines)
    wanted = "must be a number above 0 and below 1. Fix: give a number above 0 and below 1"
    assert lines[-1] == f"multirun/x/plan.json: analysis.alpha = 2: {wanted}"


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
