"""Statistics of two methods: published values, laws and guards; interval, p and verdict of one test agree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.findings.study import Outcome, study
from analysis.sections.grid import cell_results
from analysis.spec.settings import settings as settings_of
from analysis.spec.validation import BadPlan
from analysis.stats import compare, exact, multiplicity, power
from analysis.stats.compare import equivalence, paired
from analysis.stats.contrast import Contrast
from analysis.stats.multiplicity import family
from analysis.stats.resolution import DRAWS, PAIRED, UNPAIRED, seeds_needed, smallest_p
from benchmarks.validity import UP, sweep_of
from tests.analysis.conftest import MakeSweep, logging, studied, without

FISHER_MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]  # Fisher 1935, eighths of an inch
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9)


def against_zero(differences: list[float], alpha: float = 0.05) -> compare.PairedResult:
    return paired(differences, [0.0] * len(differences), alpha)


def test_fishers_maize() -> None:
    result = against_zero(FISHER_MAIZE)
    assert result.p_signflip == 1726 / 32768
    assert result.p_wilcoxon == 0.041259765625
    assert result.p_t == pytest.approx(0.0497, abs=5e-5)
    assert result.mean_difference / (result.sd / math.sqrt(15)) == pytest.approx(2.148, abs=5e-4)
    assert result.better == 13 and result.n == 15 and result.floor == 2 / 2**15


@pytest.mark.parametrize("n", [1, 5, 6])
def test_floor(n: int) -> None:
    result = against_zero([1.0 + 0.1 * i for i in range(n)])
    assert result.floor == 2.0 ** (1 - n) == result.p_signflip and result.seeds_needed == 6
    assert (f"cannot decide with n = {n}: 6 seeds are needed" in (result.reason or "")) == (n < 6)


def test_seeds_needed_follows_alpha_and_family() -> None:
    assert [seeds_needed(alpha) for alpha in (0.25, 0.1, 0.05, 0.01)] == [3, 5, 6, 8]
    assert seeds_needed(0.05, comparisons=3) == 7
    assert [seeds_needed(alpha, m, "relabel") for alpha, m in ((0.05, 1), (0.05, 4), (0.01, 4))] == [4, 5, 6]
    assert seeds_needed(0.05, 4, "paired_t") == seeds_needed(0.05, 4, "welch") == 2


def test_what_is_too_much_to_count_or_to_name_is_said() -> None:
    d = np.random.default_rng(1).normal(size=2001)
    result = against_zero([*d, *[math.nan] * 30])
    assert result.p_wilcoxon is None and result.p_t is not None
    assert "more than 2000 pairs: there are too many signed ranks to count" in (result.reason or "")
    assert "pair 2011 (nan and 0), ...;" in (result.reason or "")
    said = family(d[:, None], "holm", test="wilcoxon").reason
    assert said == "comparison 1 has no p: its signed ranks are too many to count"


def test_more_pairs_do_not_help_where_too_few_patterns_are_drawn() -> None:
    d = np.arange(1.0, 31.0)
    said = paired(d, 0 * d, alpha=1e-6).reason or ""
    assert "above 20 pairs 100000 sign patterns are drawn, too few for this alpha" in said
    assert "are needed" not in said
    assert "cannot decide with n = 20: 21 seeds are needed" in (paired(d[:20], 0 * d[:20], alpha=1e-6).reason or "")


# ---------------------------------------------------------------- laws


def same(x: float | None, y: float | None) -> bool:
    return x is y or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-6))


@settings(max_examples=50)
@given(PAIRS, st.integers(-20, 20), st.permutations(range(9)))
def test_neither_order_nor_unit_matters_and_swapping_the_methods_turns_signs_only(
    pairs: list[tuple[float, float]], power: int, order: list[int]
) -> None:
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    one, other, scaled = paired(a, b), paired(b, a), paired(a * 2.0**power, b * 2.0**power)
    place = [at for at in order if at < len(a)]
    shuffled = paired(a[place], b[place])
    assert one.mean_difference == -(other.mean_difference or 0.0) and one.better + other.better + one.ties == one.n
    for name in ("n", "p_t", "p_signflip", "p_wilcoxon", "floor", "reason", "ties"):
        assert getattr(one, name) == getattr(other, name)
    if one.interval and other.interval:
        assert one.interval == (-other.interval[1], -other.interval[0])
    for name in ("p_t", "p_signflip", "p_wilcoxon", "better", "ties"):
        assert same(getattr(one, name), getattr(scaled, name)) and same(getattr(one, name), getattr(shuffled, name))
    assert same(one.d_z, scaled.d_z)
    assert one.p_signflip is not None and one.floor <= one.p_signflip <= 1
    assert one.p_wilcoxon is None or one.floor <= one.p_wilcoxon <= 1
    assert one.p_t is None or 0 < one.p_t <= 1
    for value in dataclasses.astuple(one):
        for number in value if isinstance(value, tuple) else (value,):
            assert not isinstance(number, float) or math.isfinite(number)


@settings(max_examples=40)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 10**6))
def test_max_t_of_anything(n: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    d = np.round(random.standard_normal((n, m)), random.integers(0, 3))  # coarse rounding makes ties and zeros
    adjusted = family(d).p
    for j, p in enumerate(adjusted):
        single = exact.signflip(d[:, j])
        assert single - 1e-12 <= p <= 1
        assert p >= 2 / 2**n
    order = random.permutation(m)
    assert family(d[:, order]).p == tuple(adjusted[j] for j in order)


# ---------------------------------------------------------------- guards


@pytest.mark.parametrize(
    ("a", "b", "n", "reason"),
    [
        ([1.0, math.nan, 3.0], [0.0, 0.0, 1.0], 2, "pair 2 (nan and 0)"),
        ([1.0, 2.0, math.inf], [0.0, 0.5, 1.0], 2, "pair 3 (inf and 1)"),
        ([math.nan] * 3, [0.0] * 3, 0, "no pair to compare"), ([], [], 0, "no pair to compare"),
        ([1e308], [-1e308], 0, "not finite"), ([2.0], [1.0], 1, "one pair"), ([2.0, 3.0], [1.0, 1.0], 2, "Hedges"),
        ([2.0], [2.0], 1, "all differences are zero"), ([0.1 + 0.2, 1.0], [0.3, 1.0], 2, "all differences are zero"),
        ([1.1, 2.1, 3.1], [1.0, 2.0, 3.0], 3, "all differences are equal"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 6, 6, "cannot decide with n = 6 of which 1 tied: 7 seeds are needed"),
    ],
)  # fmt: skip
def test_guards_give_a_reason_and_no_false_certainty(a: list[float], b: list[float], n: int, reason: str) -> None:
    result = paired(a, b)
    assert result.n == n and reason in (result.reason or "")
    for p in (result.p_t, result.p_signflip, result.p_wilcoxon):
        assert p is None or 0 < p <= 1
    if "all differences" in reason or n < 2:
        assert result.p_t is None and result.interval is None and result.d_z is None
    if n:
        assert result.p_signflip is not None and result.p_signflip >= result.floor


def test_rounding_of_single_precision_is_no_evidence() -> None:
    a, b = np.float32([0.1, 0.2, 0.3]), np.float32([0.0, 0.1, 0.2])
    result = paired(a, b)  # constant, but for some 1e-8
    assert result.p_t is None and result.d_z is None and "all differences are equal" in (result.reason or "")
    assert equivalence(a, b, 1.0).p is None
    assert paired(a, a * np.float32(1 + 1.2e-7)).ties == 3
    assert paired(a, b * 2).p_t == pytest.approx(paired([0.1, 0.2, 0.3], [0.0, 0.2, 0.4]).p_t, rel=1e-5)


def test_many_pairs_are_drawn_with_a_seed() -> None:
    d = np.random.default_rng(0).standard_normal(25) + 0.3
    one, again = paired(d, 0 * d, seed=1), paired(d, 0 * d, seed=1)
    assert one.p_signflip == again.p_signflip == pytest.approx(one.p_t, abs=0.02)
    many = against_zero(np.arange(1.0, 1201.0).tolist())
    assert many.p_signflip == 1 / (DRAWS + 1) == many.floor and 0 < many.p_wilcoxon < 1e-300


@pytest.mark.parametrize(
    ("call", "said"),
    [(lambda: paired([1], [2], alpha=1.5), r"alpha = 1\.5"), (lambda: paired([1, 2], [1]), "shape"),
     (lambda: paired([1], [1], direction="up"), "direction"), (lambda: family([[1.0]], "tukey"), "family = 'tukey'"),
     (lambda: family([[1.0]], "max_t", test="z"), "test = 'z'"),
     (lambda: family([[1.0]], "holm", test="z"), "test = 'z'"),
     (lambda: equivalence([1.0], [1.0], -1.0), "margin = -1"),
     (lambda: equivalence([1.0], [1.0], 1.0, 0.7), r"alpha = 0\.7")],
)  # fmt: skip
def test_arguments_without_a_meaning_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


# ---------------------------------------------------------------- no pairs, and no difference


@settings(max_examples=80)
@given(PAIRS, st.floats(1e-3, 1e6), st.floats(0.001, 0.4))
def test_equivalent_means_that_the_interval_is_inside_the_margin(
    pairs: list[tuple[float, float]], margin: float, alpha: float
) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    found = equivalence(a, b, margin, alpha)
    if found.p is None or found.interval is None:
        assert found.reason and found.equivalent is None
        return
    inside = -margin < found.interval[0] and found.interval[1] < margin
    near = any(math.isclose(abs(end), margin, rel_tol=1e-6) for end in found.interval)
    assert found.equivalent == inside or near
    wider = equivalence(a, b, 2 * margin, alpha)
    assert wider.p is not None and wider.p <= found.p


def test_equivalence_without_a_meaning() -> None:
    assert "all differences are zero" in (equivalence([1.0, 2.0], [1.0, 2.0], 1.0).reason or "")
    assert equivalence([1.0], [1.5], 1.0).p is None and equivalence([], [], 1.0).n == 0


# ---------------------------------------------------------------- families


def test_max_t_keeps_the_floor_for_any_number_of_comparisons() -> None:
    d = np.outer([1.0, 1.1, 0.9], np.arange(1, 9))
    result = family(d)
    assert result.p == (0.25,) * 8
    assert result.floor == 0.25 and result.seeds_needed == 6
    assert result.reason == "cannot decide with n = 3: 6 seeds are needed"
    many = family(np.outer(np.linspace(1, 2, 8), np.arange(1, 9)))
    assert many.p == (2 / 2**8,) * 8


def test_max_t_is_the_enumeration() -> None:
    d = np.random.default_rng(3).standard_normal((5, 3)) + 0.5
    t = np.abs(d.sum(axis=0)) / np.sqrt((d**2).sum(axis=0))
    strongest = int(t.argmax())
    flips = [np.array(s)[:, None] * d for s in product((1, -1), repeat=5)]
    largest = [(np.abs(f.sum(axis=0)) / np.sqrt((f**2).sum(axis=0))).max() for f in flips]
    assert family(d).p[strongest] == np.mean([value >= t[strongest] - 1e-12 for value in largest])


def test_family_with_missing_constant_and_zero_columns() -> None:
    d = np.array([[1.0, 0.0, np.nan, np.nan], [1.0, 0.0, 2.0, np.nan], [1.0, 0.0, 3.0, np.nan]])
    result = family(d)
    assert result.p[0] == 0.25 and result.p[1] == 1.0 and result.p[3] is None
    assert result.p[2] is not None and result.p[2] >= 0.5  # two pairs
    assert "4 of 12 differences are missing" in (result.reason or "")
    assert family(np.empty((0, 2))).p == (None, None)


@pytest.mark.parametrize(
    ("method", "test", "column", "reason"),
    [("max_t", "signflip", [math.nan] * 3, "there is no pair"),
     ("holm", "paired_t", [1.0, 1.0, 1.0], "its differences are all equal"),
     ("bh", "paired_t", [math.nan, 1.0, math.nan], "one pair has no spread"),
     ("holm", "wilcoxon", [0.0, 0.0, 0.0], "its differences are all zero")],
)  # fmt: skip
def test_a_comparison_without_a_p_has_a_reason(method: str, test: str, column: list[float], reason: str) -> None:
    result = family(np.column_stack([[1.0, 2.0, 4.0], column]), method, test=test)
    assert result.p[0] is not None and result.p[1] is None
    assert f"comparison 2 has no p: {reason}" in (result.reason or "")


def test_holm_multiplies_the_exact_floor() -> None:
    result = family(np.outer(np.linspace(1, 2, 6), [1.0, 2.0, 3.0]), "holm")
    assert result.floor == 3 / 32 and result.seeds_needed == 7
    assert "cannot decide with n = 6: 7 seeds are needed" in (result.reason or "")


TESTS = (*PAIRED, *UNPAIRED)
ALPHAS = (0.05, 0.05 / 3, 0.2)
CONTINUOUS = settings(max_examples=30)


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
    contrast = made(test, seed, n, m, 0.1 if tied else 0.0)
    p = contrast.p()
    for alpha in ALPHAS:
        rejected = p is not None and p <= alpha
        for interval, null in ((contrast.interval(alpha), 0.0), (contrast.ratio_interval(alpha), 1.0)):
            if p is None:
                assert interval is None or interval[0] <= null <= interval[1]
            else:
                assert (interval is not None and not interval[0] <= null <= interval[1]) == rejected
        assert abs(contrast.side(alpha)) == rejected


@pytest.mark.parametrize(("test", "n"), [*((test, 7) for test in TESTS), ("wilcoxon", 6)])
def test_the_ends_of_an_interval_are_where_the_test_changes_its_mind(test: str, n: int) -> None:
    contrast = made(test, 4, n, 6)
    interval = contrast.interval(0.05)
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


@pytest.mark.parametrize("n", [1, 5, 20, 21, 25, 60])
def test_the_smallest_p_of_the_signed_ranks_is_the_one_that_they_give(n):
    p = exact.wilcoxon(np.arange(1.0, n + 1))
    assert p == pytest.approx(smallest_p("wilcoxon", n), rel=1e-12)
    assert Contrast("wilcoxon", np.arange(1.0, n + 1), np.zeros(n)).smallest_p() == smallest_p("wilcoxon", n)


def test_relabellings_that_are_drawn_are_those_that_are_counted() -> None:
    counted = made("relabel", 2, 10, 10)
    more = made("relabel", 2, 30, 30)
    assert math.comb(20, 10) <= exact.MOST_SPLITS < math.comb(60, 30)
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
    assert after[:3] == pytest.approx((0.4, 0.04, 0.12)) and after[3] is None
    assert levels == pytest.approx((0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3))


# ---------------------------------------------------------------- one claim, however it is worded


@pytest.mark.parametrize("test", UNPAIRED)
def test_relabelling_seeds_changes_nothing_in_an_unpaired_design(test: str) -> None:
    random = np.random.default_rng(1)
    scores = {group: random.standard_normal((6, 1)) + (group == "B") for group in ("A", "B")}
    section = {"primary": {"metric": UP}, "pairing": "none", "test": test}
    asked, found = settings_of(section, groups=("A", "B"), baseline="A"), []
    for order in (range(6), [3, 0, 5, 1, 4, 2]):
        found += study(sweep_of({UP: {**scores, "B": scores["B"][order]}}), asked).primary.comparisons
    one, other = found
    assert one.p == pytest.approx(other.p) and one.interval == pytest.approx(other.interval)
    assert one.outcome is other.outcome


def test_samples_are_compared_at_the_levels_that_both_have_with_all_their_seeds(make_sweep: MakeSweep) -> None:
    lines = logging(lambda group, seed, cell, _: cell["lr"] + 0.1 * seed + (group == "B"))
    cells = {"A": [{"lr": 1.0}, {"lr": 2.0}], "B": [{"lr": 1.0}, {"lr": 2.0}, {"lr": 9.0}]}
    asked = {"primary": {"metric": UP}, "pairing": "none", "window": 1}
    folder = make_sweep(("A", "B"), range(4), 20, asked, cells, lines=lines)
    without(folder, "B-3-0")  # of lr = 1, which the other seeds of B have
    found = studied(folder)
    (comparison,) = found.primary.comparisons
    assert comparison.seeds == comparison.seeds_of_b == (0, 1, 2, 3)
    assert comparison.contrast.b == pytest.approx([1.5, 1.6, 1.7, 1.8])
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


@pytest.mark.parametrize(("test", "n"), [("signflip", 7), ("relabel", 5)])  # of the others a point below
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
    [("paired_t", 2, 2), ("paired_t", 10, 10), ("welch", 2, 2), ("welch", 10, 10), ("welch", 2, 5), ("welch", 10, 3),
     ("wilcoxon", 7, 7), ("wilcoxon", 50, 50)],
)  # fmt: skip
def test_the_power_is_right_within_a_point(test: str, n: int, m: int) -> None:
    effect, random = power.detectable(test, n, m=m), np.random.default_rng(1)
    assert effect is not None
    for true in (effect, 0.6 * effect):
        a, b = true + random.standard_normal((20_000, n)), random.standard_normal((20_000, m))
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
