"""Two methods compared over seeds: estimates, exact tests, equivalence, and what so few seeds can decide at all.

The unit of evidence is the seed: `a[i]` and `b[i]` are one number each, of the same seed under two methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats import exact, t_test
from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import DRAWS, EXACT_UP_TO, cannot_decide, check_alpha, floor, seeds_needed
from analysis.stats.t_test import ROUNDING


@dataclass(frozen=True)
class PairedResult:
    """Differences a - b over n pairs of seeds, in the unit of the numbers compared; a figure without a meaning is None.

    n                 pairs with two finite numbers; the others are left out and named in `reason`
    mean_difference   mean of a - b
    interval          t interval of the mean difference at level 1 - alpha
    d_z               mean over standard deviation of the differences, with Hedges' exact small-sample correction
    better            pairs in which a is better than b (higher, or lower if that is the direction)
    p_t               two-sided paired t test: rests on normal differences
    p_signflip        two-sided sign-flip permutation of the mean, exact over all 2^n patterns up to n = 20, drawn
                      above: rests only on differences that are symmetric about zero under the null
    p_wilcoxon        two-sided signed-rank test, exact also with ties; zeros are dropped first, as Wilcoxon did; None
                      of more than 2000 pairs
    floor             smallest p that the sign-flip test can give with n pairs: 2 / 2^n up to n = 20, 1 / 100001 above
    seeds_needed      smallest number of pairs with which 2 / 2^n is at or below alpha
    reason            what a reader must know beside these numbers, or None
    sd                standard deviation of the differences (n - 1 in the denominator)
    ties              pairs with no difference
    """

    n: int
    mean_difference: float | None
    interval: Interval | None
    d_z: float | None
    better: int
    p_t: float | None
    p_signflip: float | None
    p_wilcoxon: float | None
    floor: float
    seeds_needed: int
    reason: str | None
    sd: float | None = None
    ties: int = 0


@dataclass(frozen=True)
class EquivalenceResult:
    """Two one-sided paired t tests of whether the mean of a - b is within (-margin, margin), over n pairs.

    interval     t interval of the mean difference at level 1 - 2 alpha: all of it is inside the margin when p <= alpha
    p            the larger p of the two tests; None without a spread, with a reason
    equivalent   whether p <= alpha; None where there is no p
    """

    n: int
    margin: float
    mean_difference: float | None
    interval: Interval | None
    p: float | None
    equivalent: bool | None
    reason: str | None


def paired(
    a: ArrayLike, b: ArrayLike, alpha: float = 0.05, *, direction: str = "higher", seed: int = 0
) -> PairedResult:
    """Compare two methods over the same seeds: a and b have shape (n,), one number for each seed, in the same order.

    Raises ValueError when the shapes differ, alpha is not within (0, 1), or direction is neither "higher" nor "lower".
    """
    check_alpha(alpha)
    if direction not in ("higher", "lower"):
        raise ValueError(f"direction = {direction!r}: 'higher' or 'lower' is allowed")
    reasons: list[str] = []
    d, size = _differences(a, b, reasons)
    n, needed = int(d.size), seeds_needed(alpha)
    if n == 0:
        return PairedResult(0, None, None, None, 0, None, None, None, 1.0, needed, "; ".join(reasons))
    largest = float(np.abs(d).max())
    ties = int((d == 0).sum())
    mean = t_test.mean(d, size)
    if n == 1:
        reasons.append(f"{ONE_PAIR}; {_equal(0.0)}" if largest == 0 else ONE_PAIR)
    elif mean is None:
        reasons.append(_equal(largest))
    elif n == 2:
        reasons.append("two pairs: Hedges' correction of d_z does not exist")
    if ties > 0 and largest > 0:
        reasons.append(f"{ties} of {n} differences are zero: the exact tests rest on the other {n - ties}")
    if floor(n - ties) > alpha and largest > 0:
        reasons.append(f"the sign-flip test {cannot_decide(n, needed, ties)}")
    if n > EXACT_UP_TO:
        reasons.append(f"sign-flip p from {DRAWS} drawn patterns (seed {seed})")
    if n - ties > exact.MOST_RANKED:
        reasons.append(f"more than {exact.MOST_RANKED} pairs: there are too many signed ranks to count")
    return PairedResult(
        n=n,
        mean_difference=t_test.average(d),
        interval=None if mean is None else mean.interval(alpha),
        d_z=None if mean is None else mean.d,
        better=int((d > 0).sum() if direction == "higher" else (d < 0).sum()),
        p_t=None if mean is None else mean.p(),
        p_signflip=exact.signflip(d, seed=seed),
        p_wilcoxon=exact.wilcoxon(d),
        floor=floor(n),
        seeds_needed=needed,
        reason="; ".join(reasons) or None,
        sd=mean.spread if mean is not None else None if n == 1 else 0.0,
        ties=ties,
    )


def superiority(a: ArrayLike, b: ArrayLike) -> float | None:
    """The share of all pairs of a value of a (n,) and one of b (m,), all finite, in which a's is the higher, a tie
    counting half; None without a pair."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size == 0 or y.size == 0:
        return None
    largest = float(max(np.abs(x).max(), np.abs(y).max()))
    above = np.sign(t_test.without_rounding(x[:, None] - y[None, :], ROUNDING * largest))
    return float((above + 1).mean() / 2)


def equivalence(a: ArrayLike, b: ArrayLike, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """Whether two methods differ by less than a margin: a and b (n,) over the same seeds, margin > 0 in their unit.

    Raises ValueError when the shapes differ, the margin is not positive and finite, or alpha is not within (0, 0.5).
    """
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and 0.5 is needed")
    if not 0 < margin < np.inf:
        raise ValueError(f"margin = {margin!r}: a positive number is needed, the difference that would matter")
    reasons: list[str] = []
    d, size = _differences(a, b, reasons)
    n = int(d.size)
    if n == 0:
        return EquivalenceResult(0, margin, None, None, None, None, "; ".join(reasons))
    if (mean := t_test.mean(d, size)) is None:
        reasons.append(ONE_PAIR if n == 1 else _equal(float(np.abs(d).max())))
        return EquivalenceResult(n, margin, t_test.average(d), None, None, None, "; ".join(reasons))
    p = mean.p_inside(margin)
    inside = mean.interval(2 * alpha)
    return EquivalenceResult(n, margin, t_test.average(d), inside, p, p <= alpha, "; ".join(reasons) or None)


def slopes(parameters: Sequence[float], a: ArrayLike, b: ArrayLike) -> Array:
    """The slope of each seed's differences a - b on the logarithm to base 10 of the parameters (seeds,), in the
    metric's unit a tenfold of parameters: above 0, the lead of a grows. parameters (k,), a and b (seeds, k).

    It is a least-squares line within each seed, so that what a seed shares over sizes cancels.

    Raises ValueError for fewer than two sizes, one that is not positive or occurs twice, or shapes that do not fit.
    """
    sizes = np.asarray(parameters, dtype=np.float64)
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if sizes.ndim != 1 or sizes.size < 2 or not (sizes > 0).all() or np.unique(sizes).size < sizes.size:
        raise ValueError(f"parameters = {list(parameters)!r}: two or more positive numbers, each once, are needed")
    if left.ndim != 2 or left.shape != right.shape or left.shape[1] != sizes.size:
        raise ValueError(
            f"a has shape {left.shape}, b has shape {right.shape}: (seeds, {sizes.size}) is needed of both"
        )
    logs = np.log10(sizes)
    logs -= logs.mean()
    # A slope below the rounding of the numbers subtracted counts as zero.
    size = float(np.abs([left, right]).max(initial=0.0)) / float(np.ptp(logs))
    return t_test.without_rounding((left - right) @ logs / float(logs @ logs), 10 * ROUNDING * size)


ONE_PAIR = "one pair: its spread cannot be estimated, so neither interval nor t test exists"


def _equal(largest: float) -> str:
    if largest == 0:
        return "all differences are zero: the methods gave the same numbers"
    return "all differences are equal: without spread neither interval nor t test has a meaning"


def _differences(a: ArrayLike, b: ArrayLike, reasons: list[str]) -> tuple[Array, float]:
    """a - b of the pairs with two finite numbers, zero where only rounding is left of it; and the largest number,
    scaled to doubles' rounding. The pairs left out are named in `reasons`."""
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape:
        raise ValueError(f"a has shape {left.shape}, b has shape {right.shape}: two vectors of one length are needed")
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(left) & np.isfinite(right) & np.isfinite(left - right)
    if not usable.all():
        at = np.flatnonzero(~usable)
        named = [f"pair {i + 1} ({left[i]:g} and {right[i]:g})" for i in at[:10]] + ["..."] * (at.size > 10)
        reasons.append(f"{at.size} of {left.size} pairs left out, not finite: {', '.join(named)}")
    if not usable.any():
        reasons.append("no pair to compare")
    kinds = [np.asarray(each).dtype for each in (a, b)]
    of_single = [8 * float(np.finfo(kind).eps) for kind in kinds if kind.kind == "f" and kind.itemsize < 8]
    left, right, rounding = left[usable], right[usable], max([ROUNDING, *of_single])
    size = float(np.abs((left, right)).max(initial=0.0)) * (rounding / ROUNDING)
    return t_test.difference(left, right, rounding), size
