"""The standard of evidence: interval, p and verdict of one test never disagree, however a claim is worded."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.findings.outcomes import Outcome
from analysis.findings.study import study
from analysis.sections.grid import cell_results
from analysis.spec.settings import settings as settings_of
from analysis.spec.validation import BadPlan
from analysis.stats import exact, multiplicity, power
from analysis.stats.contrast import Contrast
from analysis.stats.resolution import PAIRED, UNPAIRED, smallest_p
from benchmarks.validity import UP, sweep_of
from tests.analysis.conftest import MakeSweep, logging, studied, without

TESTS = (*PAIRED, *UNPAIRED)
ALPHAS = (0.05, 0.05 / 3, 0.2)
CONTINUOUS = settings(max_examples=60, deadline=None, derandomize=True)


def made(test: str, seed: int, n: int, m: int, steps: float = 0.0) -> Contrast:
    """Positive values, with a difference in half of the cases, and ties if they are rounded to steps."""
    random = np.random.default_rng(seed)
    a, b = np.exp(0.3 * random.standard_normal(n)), np.exp(0.3 * random.standard_normal(n if test in PAIRED else m))
    a = a * (1.5 if seed % 2 else 1.0)
    if steps:
        a, b = np.round(a / steps) * steps, np.round(b / steps) * steps
    return Contrast(test, a, b)


@pytest.mark.parametrize("test", TESTS)
@CONTINUOUS
@given(seed=st.integers(0, 10**6), n=st.integers(2, 8), m=st.integers(2, 8), tied=st.booleans())
def test_an_interval_excludes_zero_and_a_ratio_one_exactly_where_p_is_small(
    test: str, seed: int, n: int, m: int, tied: bool
) -> None:
    contrast = made(test, seed, n, m, 0.1 if tied and test != "wilcoxon" else 0.0)  # which drops zeros
    p = contrast.p()
    for alpha in ALPHAS:
        rejected = p is not None and p <= alpha
        for interval, null in ((contrast.interval(alpha), 0.0), (contrast.ratio_interval(alpha), 1.0)):
            if p is None:
                assert interval is None
            else:
                assert (interval is not None and not interval[0] <= null <= interval[1]) == rejected
        assert abs(contrast.side(alpha)) == rejected


@pytest.mark.parametrize("test", TESTS)
def test_the_ends_of_an_interval_are_where_the_test_changes_its_mind(test: str) -> None:
    contrast = made(test, 4, 7, 6)
    interval = contrast.interval(0.05)
    assert interval is not None
    inside = 1e-6 * (interval[1] - interval[0])
    for end, sign in zip(interval, (1, -1), strict=True):
        for shift, rejects in ((sign * inside, False), (-sign * inside, True)):
            p = Contrast(test, contrast.a - end - shift, contrast.b).p()
            assert p is not None and (p <= 0.05) == rejects


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 5), (6, 2)])
def test_relabelling_counts_every_split(n: int, m: int) -> None:
    contrast = made("relabel", 8, n, m)
    both = np.concatenate((contrast.a, contrast.b))
    differences = [
        both[list(chosen)].mean() - np.delete(both, list(chosen)).mean() for chosen in combinations(range(n + m), n)
    ]
    observed = contrast.a.mean() - contrast.b.mean()
    above = np.mean(np.array(differences) >= observed - 1e-12)
    below = np.mean(np.array(differences) <= observed + 1e-12)
    assert contrast.p() == pytest.approx(min(1.0, 2 * min(above, below)))
    apart = exact.relabel(np.arange(n) + 100.0, np.arange(m))
    assert apart == pytest.approx(smallest_p("relabel", n, m))


def test_relabellings_that_are_drawn_are_those_that_are_counted() -> None:
    counted = made("relabel", 2, 10, 10)
    more = made("relabel", 2, 30, 30)
    assert exact.splits(10, 10) <= exact.MOST_SPLITS < exact.splits(30, 30)
    for contrast in (counted, more):
        welch = Contrast("welch", contrast.a, contrast.b)
        assert contrast.p() == pytest.approx(welch.p(), abs=0.02)
        assert contrast.interval(0.05) == pytest.approx(welch.interval(0.05), abs=0.03)


@pytest.mark.parametrize(
    ("method", "test"), [("max_t", "signflip"), ("holm", "signflip"), ("holm", "paired_t"), ("bh", "paired_t")]
)
@CONTINUOUS
@given(seed=st.integers(0, 10**6), n=st.integers(3, 9), m=st.integers(1, 4))
def test_the_level_of_a_comparison_agrees_with_its_adjusted_p(
    method: str, test: str, seed: int, n: int, m: int
) -> None:
    random = np.random.default_rng(seed)
    d = random.standard_normal((n, m)) + random.standard_normal((n, 1)) + np.array([2.0, 1.0, 0.5, 0.0])[:m]
    found = multiplicity.family(d, method, test=test, alpha=0.1)
    for column, p, level in zip(d.T, found.p, found.levels, strict=True):
        interval = Contrast(test, column, np.zeros(n)).interval(level)
        decided = p is not None and p <= 0.1
        assert (interval is not None and not interval[0] <= 0 <= interval[1]) == decided


def test_holm_asks_until_one_is_not_decided() -> None:
    after, levels = multiplicity.adjusted([0.2, 0.01, 0.04, None], "holm", 0.05)
    assert after == pytest.approx((0.4, 0.04, 0.12, None), nan_ok=True) or after[3] is None
    assert levels == pytest.approx((0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3))


# ---------------------------------------------------------------- one claim, however it is worded


@pytest.mark.parametrize("test", UNPAIRED)
def test_relabelling_seeds_changes_nothing_in_an_unpaired_design(test: str) -> None:
    random = np.random.default_rng(1)
    scores = {group: random.standard_normal((6, 1)) + (group == "B") for group in ("A", "B")}
    section = {"primary": {"metric": UP}, "pairing": "none", "test": test}
    shown = []
    for order in (np.arange(6), np.array([3, 0, 5, 1, 4, 2])):
        moved = {**scores, "B": scores["B"][order]}
        (comparison,) = study(
            sweep_of({UP: moved}), settings_of(section, groups=("A", "B"), baseline="A")
        ).primary.comparisons
        shown.append((comparison.p, comparison.interval, comparison.outcome))
    assert shown[0][0] == pytest.approx(shown[1][0]) and shown[0][1] == pytest.approx(shown[1][1])
    assert shown[0][2] is shown[1][2]


def test_samples_are_compared_at_the_levels_that_both_have_with_all_their_seeds(make_sweep: MakeSweep) -> None:
    lines = logging(lambda group, seed, cell, _: cell["lr"] + 0.1 * seed + (group == "B"))
    cells = {"A": [{"lr": 1.0}, {"lr": 2.0}], "B": [{"lr": 1.0}, {"lr": 2.0}, {"lr": 9.0}]}
    asked = {"primary": {"metric": UP}, "pairing": "none", "window": 1}
    folder = make_sweep(("A", "B"), range(4), 20, asked, cells, lines=lines)
    without(folder, "B-3-0")  # of lr = 1, which the other seeds of B have
    found = studied(folder)
    (comparison,) = found.primary.comparisons
    assert comparison.seeds == comparison.seeds_of_b == (0, 1, 2, 3)
    assert comparison.b == pytest.approx([1.5, 1.6, 1.7, 1.8])
    assert comparison.contrast.a.mean() == pytest.approx(((2 + 2.1 + 2.2) / 3 + 3.15) / 2)  # each level counts the same
    assert any("only B has lr = 9.0" in note for note in comparison.notes)
    assert comparison.outcome is Outcome.HIGHER
    results = {(one.group, one.cell): one for one in cell_results(found)}
    assert results["B", (("lr", 1.0),)].pairs == 3 and results["B", (("lr", 1.0),)].interval is not None


def test_pairs_gain_as_much_as_seeds_go_together() -> None:
    luck = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    gain = Contrast("paired_t", 1 + luck, luck + np.array([0.1, -0.1, 0.0, 0.1, -0.1])).gain
    assert gain is not None and gain[0] > 0.99 and gain[1] < 0.01
    against = Contrast("paired_t", luck, -luck).gain
    assert against is not None and against == pytest.approx((-1, 2))
    assert Contrast("welch", luck, luck[::-1]).gain is None


# ---------------------------------------------------------------- what may be asked


@pytest.mark.parametrize(
    ("section", "test"),
    [({}, "paired_t"), ({"test": None}, "paired_t"), ({"pairing": "none"}, "welch"), ({"family": "max_t"}, "signflip"),
     ({"family": "max_t", "test": "paired_t"}, "signflip"), ({"pairing": "none", "test": "relabel"}, "relabel")],
)  # fmt: skip
def test_the_test_follows_from_the_pairing(section: dict[str, Any], test: str) -> None:
    assert settings_of(section).test == test
    assert settings_of(section).test_of("time_to") == ("relabel" if section.get("pairing") == "none" else "signflip")


@pytest.mark.parametrize(
    ("section", "said"),
    [({"test": "relabel"}, "'relabel': with analysis.pairing: seed, paired_t or signflip or wilcoxon is allowed"),
     ({"pairing": "none", "test": "signflip"}, "analysis.pairing: none, welch or relabel is allowed"),
     ({"pairing": "none", "family": "max_t"}, "max_t flips the signs of pairs. Fix: choose family: holm")],
)  # fmt: skip
def test_a_test_of_the_other_pairing_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        settings_of(section)


# ---------------------------------------------------------------- power


@pytest.mark.parametrize(("test", "n"), [("paired_t", 4), ("welch", 4), ("signflip", 7), ("relabel", 5)])
def test_the_power_of_a_test_is_how_often_it_rejects(test: str, n: int) -> None:
    effect = power.detectable(test, n)
    assert effect is not None and power.power_of(test, n, effect) == pytest.approx(0.8, abs=0.01)
    random, hits, experiments = np.random.default_rng(3), 0, 1500
    for _ in range(experiments):
        a = effect + random.standard_normal(n)
        hits += Contrast(test, a, np.zeros(n) if test in PAIRED else random.standard_normal(n)).side(0.05) > 0
    assert hits / experiments == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    ("test", "n", "m"),
    [("paired_t", 2, 2), ("paired_t", 10, 10), ("welch", 2, 2), ("welch", 3, 3), ("welch", 5, 5), ("welch", 10, 10),
     ("welch", 2, 5), ("welch", 10, 3), ("wilcoxon", 7, 7), ("wilcoxon", 10, 10), ("wilcoxon", 50, 50)],
)  # fmt: skip
def test_the_power_is_right_within_a_point(test: str, n: int, m: int) -> None:
    effect, random = power.detectable(test, n, m=m), np.random.default_rng(1)
    assert effect is not None
    for true in (effect, 0.6 * effect):
        a, b = true + random.standard_normal((40_000, n)), random.standard_normal((40_000, m))
        if test == "welch":
            p = stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue
        elif test == "paired_t":
            p = stats.ttest_1samp(a, 0, axis=1).pvalue
        else:
            p = stats.wilcoxon(a, axis=1, method="exact").pvalue
        share = np.mean((p <= 0.05) & (a.mean(axis=1) > (b.mean(axis=1) if test == "welch" else 0)))
        assert power.power_of(test, n, true, m=m) == pytest.approx(share, abs=0.01)


def test_so_few_seeds_that_no_effect_is_found() -> None:
    assert power.detectable("signflip", 5) is None and power.detectable("relabel", 3) is None
    assert power.power_of("signflip", 5, 100.0) == 0
    assert power.seeds_to_find("signflip", 100.0) == 6 and power.seeds_to_find("relabel", 100.0) == 4
    assert power.seeds_to_find("paired_t", 0.0) is None
