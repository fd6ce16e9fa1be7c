"""Every two methods compared, with the ranks that this leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.findings.study import Outcome
from analysis.findings.verdicts import judge
from analysis.spec import precheck
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from analysis.stats import Contrast, holm, ranks
from tests.analysis.conftest import MakeSweep, logging, refusal, replan, reported, studied

SCORE = "eval/reward_mean"
MEANS = {"A": 0.0, "B": 0.1, "C": 1.0, "D": 1.1, "E": 3.0}
SEEDS = range(7)
LUCK = np.random.default_rng(5).normal(0, 0.3, (len(MEANS), len(SEEDS)))
ASKED = {"primary": {"metric": SCORE}, "compare": "all_pairs"}


def made(make_sweep: MakeSweep, **asked: Any) -> Path:
    lines = logging(lambda group, seed, *_: MEANS[group] + LUCK[list(MEANS).index(group), seed], 10, SCORE)
    return make_sweep(tuple(MEANS), SEEDS, 10, {**ASKED, **asked}, lines=lines)


@pytest.mark.parametrize("asked", [{}, {"family": "max_t"}, {"pairing": "none"}], ids=str)
def test_every_two_methods_are_one_family_by_the_rule_that_decides(
    make_sweep: MakeSweep, asked: dict[str, Any]
) -> None:
    folder = made(make_sweep, **asked)
    study = studied(folder)
    block = study.primary
    assert {frozenset((c.group, c.baseline)) for c in block.every} == {
        frozenset((a, b)) for a in MEANS for b in MEANS if a != b
    }
    assert [c.group for c in block.comparisons] == ["B", "C", "D", "E"] and len(block.every) == 10
    if "family" not in asked:
        contrasts = [Contrast(c.contrast.test, c.contrast.a, c.contrast.b) for c in block.every]
        assert [c.adjusted for c in block.every] == pytest.approx(holm([contrast.p() for contrast in contrasts]))
    for c in block.every:
        low, high = c.interval or (-np.inf, np.inf)
        assert (low > 0 or high < 0) == (c.outcome in (Outcome.HIGHER, Outcome.LOWER)) == (c.adjusted <= 0.05)
    # Without a baseline, the same pairs have the same verdicts; a claim about two groups has that of their pair.
    alone = studied(replan(folder, lambda plan: plan.update(baseline=None))).primary
    assert alone.comparisons == () and alone.ranks == block.ranks
    verdicts = [{frozenset((c.group, c.baseline)): c.adjusted for c in of.every} for of in (block, alone)]
    assert verdicts[0] == pytest.approx(verdicts[1])
    claim = {"claim": "It is so.", "kind": "greater", "group": "D", "metric": SCORE, "against": "B"}
    claimed = studied(folder, {**ASKED, **asked, "hypotheses": {"H": claim}})
    (comparison,) = judge(claimed.settings.hypotheses[0], claimed).comparisons
    assert comparison.adjusted == pytest.approx(verdicts[0][frozenset("DB")])


def test_the_page_says_which_differ_and_which_ranks_are_open(make_sweep: MakeSweep, unrendered: None) -> None:
    written = reported(made(make_sweep))
    said = (
        "8 of 10 pairs of methods are decided: C is better than A and B; D is better than A and B; "
        "E is better than A, B, C and D. The best may be E."
    )
    assert said in written.printed and said in written.page and "Which methods differ in the" in written.printed
    assert "adjusted for 10 comparisons" in written.printed
    found = {row["group"]: (int(row["first_rank"]), int(row["last_rank"])) for row in written.rows("tables/ranks")}
    means = dict(zip(MEANS, LUCK.mean(axis=1) + list(MEANS.values()), strict=True))
    assert list(found) == sorted(means, key=means.get, reverse=True)
    assert found == {"E": (1, 1), "D": (2, 3), "C": (2, 3), "B": (4, 5), "A": (4, 5)}
    rows = written.rows("tables/all_pairs")
    assert sum(row["verdict"].startswith("better than") for row in rows) == 8 and len(rows) == 10
    main = {row["group"]: row["p_adjusted"] for row in written.rows("tables/main") if row["summary"] == "final"}
    assert all(main[row["group"]] == row["p_adjusted"] for row in rows if row["against"] == "A")


def test_a_lower_value_ranks_first_where_lower_is_better(make_sweep: MakeSweep) -> None:
    block = studied(made(make_sweep), {**ASKED, "primary": {"metric": SCORE, "direction": "lower"}}).primary
    assert block.ranks == {"A": (1, 2), "B": (1, 2), "C": (3, 4), "D": (3, 4), "E": (5, 5)}


def test_ranks_are_bounded_by_the_decided_pairs_alone() -> None:
    assert ranks(np.zeros((3, 3))) == [(1, 3)] * 3
    assert ranks([[0, 1, 0], [-1, 0, 0], [0, 0, 0]]) == [(1, 2), (2, 3), (1, 3)]


def test_the_baseline_alone_is_compared_by_default(make_sweep: MakeSweep, unrendered: None) -> None:
    written = reported(made(make_sweep, compare="baseline"))
    assert "Which methods differ" not in written.page and not (written.report / "tables/ranks.csv").exists()


def test_plans_count_every_pair() -> None:
    seeds = dict.fromkeys(MEANS, range(8))
    for compare, size, needed in (("baseline", 4, 8), ("all_pairs", 10, 9)):
        asked = settings({**ASKED, "compare": compare, "test": "signflip"}, groups=list(MEANS), baseline="A")
        found = precheck.findable(asked, seeds, "A")
        assert found is not None and (found.comparisons, found.needed) == (size, needed)
        assert (precheck.undecidable_primary(asked, seeds, "A") is None) == (compare == "baseline")


@pytest.mark.parametrize(
    ("section", "said"),
    [({"family": "bh"}, "family: bh bounds the share of false findings"), ({"compare": "all"}, "baseline"),
     ({"sequential": {"start": 4, "max": 8, "until": "decided"}}, "would need seeds until it is told from every")],
)  # fmt: skip
def test_what_has_no_simultaneous_intervals_is_refused(section: dict[str, Any], said: str) -> None:
    assert said in refusal(BadPlan, lambda: settings({**ASKED, **section}))
