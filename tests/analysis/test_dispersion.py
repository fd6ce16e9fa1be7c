"""How much seeds scatter: by hand, and as hypotheses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats import dispersion

LUCK = np.array([-1.5, -0.9, -0.5, -0.2, 0.1, 0.3, 0.8, 1.2, 1.7, -2.0])


def test_spread_against_is_browns_and_forsythes_test_in_pairs() -> None:
    a, b = 5 + 3 * LUCK, 2 + LUCK[::-1]
    found = dispersion.against(a, b, 2.0, 0.05)
    distances = np.abs(a - np.median(a)), 2 * np.abs(b - np.median(b))
    expected = stats.ttest_rel(*distances).confidence_interval(0.95)
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert found.ratio == pytest.approx(3.0)


def test_spread_against_what_does_not_scatter() -> None:
    found = dispersion.against([1.0, 2.0, 4.0], [3.0, 3.0, 3.0], 1.5, 0.05)
    assert found.ratio is None and (found.contrast.a - found.contrast.b) == pytest.approx([1, 0, 2])


def test_coefficient_of_variation_has_the_chi_square_interval() -> None:
    values = np.array([9.8, 10.1, 10.4, 9.9])
    found = dispersion.variation(values, 0.05)
    assert found is not None
    cv, (low, high) = found
    assert cv == pytest.approx(values.std(ddof=1) / values.mean())
    assert low == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.975, 3)))
    assert high == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.025, 3)))
    assert dispersion.variation(1e300 * values, 0.05) == (pytest.approx(cv), (pytest.approx(low), pytest.approx(high)))
    for none in ([1.0], [2.0, 2.0], [-1.0, 1.0], [0.0, 1.0]):
        assert dispersion.variation(none, 0.05) is None
