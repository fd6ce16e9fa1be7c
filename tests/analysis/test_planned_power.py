"""`python -m analysis power`: what the seeds of an experiment can find, before it is launched."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.data.sweep import BadPlan, read_sweep
from analysis.report import planned_power
from analysis.report.planned_power import Question, document, planned, text
from analysis.spec import precheck
from analysis.spec.settings import Settings, settings
from analysis.stats.power import MOST_SEEDS, detectable, power_of, seeds_to_find
from tests.analysis.conftest import Lines, MakeSweep, refusal
from tests.wording import Worded

METRIC = "analysis/reward_sum_mean"
FINAL = {"primary": {"metric": METRIC, "summary": "final"}}
SEEDS = {"A": [0, 1, 2, 3, 4], "B": [0, 1, 2, 3, 4], "C": [0, 1, 2, 3, 4]}
CLAIMS = {
    "more": {"claim": "More.", "kind": "greater", "group": "B", "against": "A", "metric": METRIC},
    "most": {"claim": "Half as much.", "kind": "ratio", "group": "B", "against": "A", "metric": METRIC, "at_most": 1.5},
    "between": {"claim": "Between.", "kind": "between", "group": "B", "against": ["A", "C"], "metric": METRIC},
    "fast": {
        "claim": "Twice as fast.", "kind": "ratio", "group": "B", "against": "A", "metric": METRIC,
        "summary": "efficiency", "at": 0.5, "at_least": 2,
    },
}  # fmt: skip
#: The last value of each run: the differences to A are 1, 2, 4 and 9 for B, and 0.5, 0.5, 0.5 and 1.5 for C.
VALUES = {"A": [10.0, 11.0, 13.0, 9.0], "B": [11.0, 13.0, 17.0, 18.0], "C": [10.5, 11.5, 13.5, 10.5]}


def asked(**section: Any) -> Settings:
    return settings({**FINAL, **section}, groups=list(SEEDS), baseline="A")


def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """A constant run, so that the final value is this one."""
    return [{"step": step, "attempt": 1, METRIC: VALUES[group][seed]} for step in range(1, 31)]


@pytest.fixture
def earlier(make_sweep: MakeSweep) -> Any:
    return make_sweep(groups=tuple(VALUES), seeds=(0, 1, 2, 3), steps=30, lines=lines, analysis=FINAL)


def by_id(of: Settings) -> dict[str, Question]:
    return {one.id: one for one in planned_power.questions(of, SEEDS, "A")}


def test_each_question_has_the_power_of_the_test_that_decides_it() -> None:
    found = by_id(asked(hypotheses=CLAIMS))
    assert list(found) == ["primary", "more", "most", "fast"]  # `between` is about three groups
    for name, test in {"primary": "paired_t", "more": "paired_t", "most": "paired_t", "fast": "signflip"}.items():
        one = found[name].found
        assert one is not None
        assert (one.test, one.seeds, one.level, one.comparisons) == (test, 5, 0.025, 2)
        assert one.effect == detectable(test, 5, 0.025)
        for row in planned_power.by_seeds(one):
            assert row.effect == detectable(test, row.seeds, 0.025)
            assert row.power == tuple(power_of(test, row.seeds, effect, 0.025) for effect in planned_power.EFFECTS)
    assert found["fast"].found is not None and found["fast"].found.effect is None and found["fast"].found.needed == 7


def test_the_table_has_the_planned_number_of_seeds() -> None:
    seeds = {group: list(range(7)) for group in SEEDS}
    (primary,) = planned_power.questions(asked(), seeds, "A")
    assert primary.found is not None
    assert [row.seeds for row in planned_power.by_seeds(primary.found)] == [3, 5, 6, 7, 8, 10, 20]


def test_samples_are_as_many_as_the_smaller_one() -> None:
    seeds = {"A": [0, 1, 2, 3, 4, 5], "B": [10, 11, 12, 13, 14]}
    (primary,) = planned_power.questions(asked(pairing="none"), seeds, "A")
    assert primary.found is not None
    assert (primary.found.test, primary.found.seeds, primary.found.paired) == ("welch", 5, False)
    assert primary.found.effect == detectable("welch", 5, 0.05)


def test_an_efficiency_is_decided_by_the_test_of_times() -> None:
    (lost,) = precheck.undecidable(asked(hypotheses={"fast": CLAIMS["fast"]}), SEEDS)
    assert (lost.id, lost.seeds, lost.needed) == ("fast", 5, 7)


def test_a_sweep_with_pairs_gives_the_unit_by_the_spread_of_differences(earlier: Any, worded: Worded) -> None:
    of = planned("new", asked(), SEEDS, "A", read_sweep(earlier))
    known, found = of.earlier["primary"], of.questions[0].found
    d = {group: np.subtract(VALUES[group], VALUES["A"]) for group in "BC"}
    sd = {group: float(values.std(ddof=1)) for group, values in d.items()}
    assert {one.group: one.sd for one in known.spreads} == pytest.approx(sd)
    assert known.largest_sd is not None and (known.largest_sd.group, known.largest_sd.seeds) == ("B", 4)
    assert known.median_sd == pytest.approx((sd["B"] + sd["C"]) / 2)
    written = document(of)["questions"]["primary"]
    assert written["earlier"]["finds_at_largest_sd"] == pytest.approx(detectable("paired_t", 5, 0.025) * sd["B"])
    assert written["earlier"]["finds_at_median_sd"] == pytest.approx(found.effect * (sd["B"] + sd["C"]) / 2)
    for seen in known.seen:
        effect = float(d[seen.group].mean()) / sd[seen.group]
        assert (seen.difference, seen.effect) == pytest.approx((d[seen.group].mean(), effect))
        assert seen.power == pytest.approx(power_of("paired_t", 5, effect, 0.025))
        assert seen.needed == seeds_to_find("paired_t", seen.effect, 0.025)
    worded(text(of).replace(str(earlier), "{earlier}"))


def test_a_sweep_without_pairs_gives_the_unit_by_the_spread_of_runs(earlier: Any, worded: Worded) -> None:
    of = planned("new", asked(pairing="none"), SEEDS, "A", read_sweep(earlier))
    known = of.earlier["primary"]
    sd = {group: float(np.std(values, ddof=1)) for group, values in VALUES.items()}
    assert {one.group: one.sd for one in known.spreads} == pytest.approx(sd)
    assert known.median_sd == pytest.approx(sorted(sd.values())[1])
    pooled = math.sqrt((sd["B"] ** 2 + sd["A"] ** 2) / 2)
    assert known.seen[0].effect == pytest.approx((np.mean(VALUES["B"]) - np.mean(VALUES["A"])) / pooled)
    worded(text(of).replace(str(earlier), "{earlier}"))
    claimed = planned(
        "new", asked(pairing="none", hypotheses={"h": CLAIMS["more"]}), SEEDS, "A", read_sweep(earlier)
    ).earlier["h"]
    assert [one.group for one in claimed.spreads] == ["A", "B"]


def test_a_claim_uses_its_two_groups_and_its_factor(earlier: Any, worded: Worded) -> None:
    of = planned("new", asked(hypotheses={"most": CLAIMS["most"]}), SEEDS, "A", read_sweep(earlier))
    (seen,) = of.earlier["most"].seen
    scaled = np.array(VALUES["B"]) - 1.5 * np.array(VALUES["A"])
    assert (seen.group, seen.against, seen.bound) == ("B", "A", 1.5)
    assert (seen.difference, seen.effect) == pytest.approx((scaled.mean(), abs(scaled.mean()) / scaled.std(ddof=1)))
    worded(text(of).replace(str(earlier), "{earlier}"))
    # groups that the sweep does not have: each of its own, against its baseline
    renamed = settings(
        FINAL | {"hypotheses": {"h": CLAIMS["more"] | {"group": "Z"}}}, groups=["A", "B", "Z"], baseline="A"
    )
    other = planned("new", renamed, {"A": [0, 1], "B": [0, 1], "Z": [0, 1]}, "A", read_sweep(earlier))
    assert [(one.group, one.against) for one in other.earlier["h"].seen] == [("B", "A"), ("C", "A")]


def test_an_efficiency_compares_the_other_groups_time_with_its_own(make_sweep: MakeSweep) -> None:
    def rising(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        start = {"A": 20, "B": 5}[group] + seed * (3 if group == "A" else 1)
        return [{"step": step, "attempt": 1, METRIC: float(step >= start)} for step in range(1, 61)]

    folder = make_sweep(groups=("A", "B"), seeds=(0, 1, 2, 3), steps=60, lines=rising, analysis=FINAL)
    given = asked(hypotheses={"fast": CLAIMS["fast"]}, window=1)
    of = planned("new", given, SEEDS, "A", read_sweep(folder))
    (seen,) = of.earlier["fast"].seen
    # the threshold is half way up the step before
    times = {"A": np.array([19.5, 22.5, 25.5, 28.5]), "B": np.array([4.5, 5.5, 6.5, 7.5])}
    assert (seen.group, seen.against, seen.bound) == ("A", "B", 2)
    assert seen.difference == pytest.approx((times["A"] - 2 * times["B"]).mean())
    assert seen.power == 0 and seen.needed is not None and seen.needed >= 7
    assert "A against 2 times B" in text(of) and "steps" in text(of)


def test_a_sweep_without_the_metric_is_refused_and_one_without_spread_says_so(earlier: Any, worded: Worded) -> None:
    other = asked(primary={"metric": "actor/grad_norm", "summary": "final", "direction": "lower"})
    worded(refusal(BadPlan, lambda: planned("new", other, SEEDS, "A", read_sweep(earlier))))
    claim = CLAIMS["more"] | {"metric": "actor/grad_norm"}
    of = planned("new", asked(hypotheses={"h": claim}), SEEDS, "A", read_sweep(earlier))
    assert of.earlier["h"].spreads == ()
    whole = read_sweep(earlier)
    single = replace(whole, plan={**whole.plan, "groups": {"A": {}}, "baseline": None}, runs=tuple(whole.runs_of("A")))
    alone = planned("new", asked(), SEEDS, "A", single)
    assert alone.earlier["primary"].largest_sd is None
    for one in (of, alone):
        worded(text(one))


def test_differences_that_no_number_of_seeds_finds(make_sweep: MakeSweep) -> None:
    def equal(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        value = [1.0, 2.0, 3.0, 4.0][seed if group == "A" else 3 - seed]
        return [{"step": step, "attempt": 1, METRIC: value} for step in range(1, 31)]

    folder = make_sweep(groups=("A", "B"), seeds=(0, 1, 2, 3), steps=30, lines=equal, analysis=FINAL)
    of = planned("new", asked(), SEEDS, "A", read_sweep(folder))
    (seen,) = of.earlier["primary"].seen
    assert seen.effect == 0 and seen.needed is None and f"above {MOST_SEEDS}" in text(of)


def test_what_is_not_judged_or_not_compared_says_so(worded: Worded) -> None:
    best = planned("new", asked(primary={"metric": METRIC, "summary": "best"}), SEEDS, "A", None)
    assert document(best)["questions"]["primary"]["judged"] is False
    two, bh = {"A": [0, 1], "B": [0, 1]}, settings(FINAL | {"family": "bh"})
    for of in (
        best,
        planned("new", settings(FINAL, groups=["A"]), {"A": [0, 1]}, None, None),
        planned("new", asked(hypotheses={"b": CLAIMS["between"]}), SEEDS, "A", None),
        *(planned("new", asked(family=family), SEEDS, "A", None) for family in ("max_t", "bh")),
        planned("new", bh, two, "A", None),
    ):
        worded(text(of))


def test_the_command_composes_an_experiment(earlier: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["power", "experiment=bnto_main", "--from", str(earlier), "scale=tiny", "experiment.seeds=[0,1,2,3,4,5]"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "bnto_main: alpha = 0.05, family holm, pairing seed" in printed
    assert "6 (planned)" in printed and "H2_time, time_to of" in printed
    assert main([*words, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["experiments"]["bnto_main"]
    primary = written["questions"]["primary"]
    assert (primary["seeds"], primary["comparisons"], primary["effect"]) == (6, 4, detectable("paired_t", 6, 0.0125))
    row = next(row for row in primary["power"] if row["seeds"] == 8)
    assert row["power"] == [power_of("paired_t", 8, effect, 0.0125) for effect in written["effects"]]
    assert primary["earlier"]["largest_sd"]["seeds"] == 4 and written["from"] == str(earlier)


def test_the_command_refuses_what_does_not_exist(earlier: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "experiment=nosuch"]) == 2
    assert "command line: experiment = nosuch: there is no conf/experiment/nosuch.yaml" in capsys.readouterr().err
    assert main(["power", "experiment=bnto_main", "--from", str(earlier / "gone")]) == 2
    assert "there is no plan.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["power"])
    assert stopped.value.code == 2
