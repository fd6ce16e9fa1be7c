"""Two methods compared seed by seed: estimates, exact tests, and what so few seeds can decide at all.

The unit of evidence is the seed: `a[i]` and `b[i]` are one number each from the same seed under two methods. Everything
here is a pure function of its arguments: no files, no globals that change, no clock, and no random number without a
seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

EXACT_UP_TO = 20  # 2^19 sign patterns (a pattern and its mirror image give the same statistic) take well under a second
DRAWS = 100_000  # sign patterns drawn when there are too many to enumerate
POWER = 0.8
# Differences below this fraction of the numbers subtracted are rounding, not evidence: 0.1 + 0.2 - 0.3 is a tie.
# Without it the t test on constant differences divides by rounding noise and returns p = 1e-32.
ROUNDING = 1e-13
_TIE = (
    1e-9  # relative slack when a permuted statistic is compared with the observed one, which must always count itself
)


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
    p_wilcoxon        two-sided signed-rank test, exact also with ties; zeros are dropped first, as Wilcoxon did
    floor             smallest p that the sign-flip test can give with n pairs: 2 / 2^n
    seeds_needed      smallest number of pairs with which that floor is at or below alpha
    detectable        true effect, in standard deviations of the differences, that the t test finds with 80% power
    reason            what a reader must know beside these numbers, or None
    sd                standard deviation of the differences (n - 1 in the denominator)
    ties              pairs with no difference
    """

    n: int
    mean_difference: float | None
    interval: tuple[float, float] | None
    d_z: float | None
    better: int
    p_t: float | None
    p_signflip: float | None
    p_wilcoxon: float | None
    floor: float
    seeds_needed: int
    detectable: float | None
    reason: str | None
    sd: float | None = None
    ties: int = 0


@dataclass(frozen=True)
class FamilyResult:
    """p values adjusted for all comparisons of a family, in the order given; None where a comparison has no p.

    floor: smallest adjusted p that n seeds allow (0 when the test has no floor). seeds_needed: pairs that bring it to
    alpha.
    """

    method: str
    test: str
    n: int
    p: tuple[float | None, ...]
    floor: float
    seeds_needed: int
    reason: str | None


def paired(
    a: ArrayLike, b: ArrayLike, alpha: float = 0.05, *, direction: str = "higher", seed: int = 0
) -> PairedResult:
    """Compare two methods over the same seeds: a and b have shape (n,), one number a seed, in the same order.

    Raises ValueError when the shapes differ, alpha is not within (0, 1), or direction is neither "higher" nor "lower".
    """
    _check_alpha(alpha)
    if direction not in ("higher", "lower"):
        raise ValueError(f"direction = {direction!r}: 'higher' or 'lower' is allowed")
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape:
        raise ValueError(f"a has shape {left.shape}, b has shape {right.shape}: two vectors of one length are needed")

    reasons: list[str] = []
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(left) & np.isfinite(right) & np.isfinite(left - right)
    if not usable.all():
        lost = ", ".join(f"pair {i + 1} ({left[i]:g} and {right[i]:g})" for i in np.flatnonzero(~usable))
        reasons.append(f"{int((~usable).sum())} of {left.size} pairs left out, not finite: {lost}")
    left, right = left[usable], right[usable]
    n = int(left.size)
    needed = seeds_needed(alpha)
    if n == 0:
        reasons.append("no pair to compare")
        return PairedResult(0, None, None, None, 0, None, None, None, 1.0, needed, None, "; ".join(reasons))

    size = np.maximum(np.abs(left), np.abs(right))
    d = left - right
    d[np.abs(d) <= ROUNDING * size] = 0.0
    largest = float(np.abs(d).max())
    ties = int((d == 0).sum())
    better = int((d > 0).sum() if direction == "higher" else (d < 0).sum())
    mean = _mean(d)
    constant = float(np.ptp(d)) <= ROUNDING * float(size.max())

    sd: float | None = None
    interval: tuple[float, float] | None = None
    d_z: float | None = None
    p_t: float | None = None
    if n == 1:
        reasons.append("one pair: its spread cannot be estimated, so neither interval nor t test exists")
    elif constant:
        sd = 0.0
        reasons.append(
            "all differences are zero: the methods gave the same numbers"
            if largest == 0
            else "all differences are equal: without spread neither interval nor t test has a meaning"
        )
    else:
        scaled = d / largest  # so that neither squares overflow nor tiny numbers vanish
        spread = float(scaled.std(ddof=1))
        centre = float(scaled.mean())
        error = spread / math.sqrt(n)
        sd = spread * largest
        half = float(special.stdtrit(n - 1, 1 - alpha / 2)) * error
        interval = ((centre - half) * largest, (centre + half) * largest)
        p_t = min(1.0, 2 * float(special.stdtr(n - 1, -abs(centre) / error)))
        if p_t == 0.0:  # below the smallest double; it is a p, so it is not zero
            p_t = float(np.nextafter(0, 1))
        if n == 2:
            reasons.append("two pairs: Hedges' correction of d_z does not exist")
        else:
            d_z = centre / spread * _hedges(n - 1)

    if ties > 0 and largest > 0:
        reasons.append(f"{ties} of {n} differences are zero: the exact tests rest on the other {n - ties}")
    if floor(n - ties) > alpha and largest > 0:
        reasons.append(cannot_decide(n, needed, ties))
    if n > EXACT_UP_TO:
        reasons.append(f"sign-flip p from {DRAWS} drawn patterns (seed {seed})")
    return PairedResult(
        n=n,
        mean_difference=mean,
        interval=interval,
        d_z=d_z,
        better=better,
        p_t=p_t,
        p_signflip=signflip(d, seed=seed),
        p_wilcoxon=wilcoxon(d),
        floor=floor(n),
        seeds_needed=needed,
        detectable=detectable(n, alpha),
        reason="; ".join(reasons) or None,
        sd=sd,
        ties=ties,
    )


def cannot_decide(n: int, needed: int, ties: int = 0) -> str:
    """The sentence for an exact test whose smallest p is above alpha: it is never "not significant"."""
    tied = f" of which {ties} tied" if ties else ""
    return f"cannot decide with n = {n}{tied}: {needed + ties} seeds are needed"


def floor(n: int) -> float:
    """Smallest two-sided p of a sign-flip test with n pairs: the observed pattern and its mirror image among 2^n."""
    if n <= EXACT_UP_TO:
        return min(1.0, 2.0 / 2.0**n)
    return max(2.0 / 2.0**n, 1 / (DRAWS + 1))


def seeds_needed(alpha: float = 0.05, comparisons: int = 1) -> int:
    """Smallest n with comparisons * 2 / 2^n <= alpha: pairs without which the exact test cannot reject at all.

    `comparisons` is 1 for a single test and for max-T, and the size of the family for Holm.
    """
    _check_alpha(alpha)
    n = 1
    while comparisons * 2.0 / 2.0**n > alpha:
        n += 1
    return n


def detectable(n: int, alpha: float = 0.05, power: float = POWER) -> float | None:
    """True |mean| / sd of the differences that a two-sided paired t test finds with `power`; None with fewer than 2
    pairs.

    Solves the power function of the noncentral t distribution by bisection (in it the power grows with the effect).
    """
    if n < 2:
        return None
    df = n - 1
    critical = float(special.stdtrit(df, 1 - alpha / 2))

    def found(effect: float) -> float:
        shift = effect * math.sqrt(n)
        wrong_side = float(special.nctdtr(df, shift, -critical))  # NaN where it is below 1e-11
        return 1 - float(special.nctdtr(df, shift, critical)) + (0.0 if math.isnan(wrong_side) else wrong_side)

    low, high = 0.0, 1.0
    while found(high) < power and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    return high


def t_interval(values: ArrayLike, alpha: float = 0.05) -> tuple[float, float] | None:
    """t interval of the mean of values (n,), all finite; None with fewer than two values or no spread."""
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2 or float(np.ptp(x)) <= ROUNDING * float(np.abs(x).max()):
        return None
    largest = float(np.abs(x).max())
    scaled = x / largest
    half = float(special.stdtrit(x.size - 1, 1 - alpha / 2)) * float(scaled.std(ddof=1)) / math.sqrt(x.size)
    return (float(scaled.mean()) - half) * largest, (float(scaled.mean()) + half) * largest


def signflip(differences: ArrayLike, *, seed: int = 0) -> float | None:
    """Two-sided p of the sign-flip permutation test of the mean, differences (n,) finite; None when n = 0.

    All 2^n patterns are counted while n <= 20. Above, patterns are drawn and the observed one is counted among them, so
    that p is never zero (Phipson and Smyth 2010).
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.size == 0:
        return None
    largest = float(np.abs(d).max())
    if largest == 0:
        return 1.0
    scaled = d / largest
    observed = abs(float(scaled.sum())) - _TIE * float(np.abs(scaled).sum())
    count = sum(int((np.abs(signs @ scaled) >= observed).sum()) for signs in _sign_patterns(d.size, seed))
    return _p(count, d.size)


def wilcoxon(differences: ArrayLike) -> float | None:
    """Two-sided exact p of the signed-rank test, differences (n,) finite; None when every difference is zero.

    Zeros are dropped, ties share their mean rank, and the null distribution is that of the ranks at hand: doubled they
    are integers, so the sums of all 2^n patterns are counted by convolution.
    """
    d = np.asarray(differences, dtype=np.float64)
    d = d[d != 0]
    if d.size == 0:
        return None
    sizes = np.abs(d)
    order = np.argsort(sizes, kind="stable")
    group = np.concatenate(([0], np.cumsum(np.diff(sizes[order]) > _TIE * sizes[order][1:])))
    doubled = np.empty(d.size, dtype=np.int64)
    for tied in range(int(group[-1]) + 1):
        places = np.flatnonzero(group == tied)
        doubled[order[places]] = places[0] + places[-1] + 2  # twice the mean of the ranks, which start at 1
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] = 0.5 * (chance[rank:] + chance[: chance.size - rank])
        chance[:rank] *= 0.5
    positive = int(doubled[d > 0].sum())
    return min(1.0, 2 * float(chance[: min(positive, int(doubled.sum()) - positive) + 1].sum()))


def family(
    differences: ArrayLike, method: str = "max_t", *, test: str = "signflip", alpha: float = 0.05, seed: int = 0
) -> FamilyResult:
    """Adjust the p values of a family of comparisons: differences have shape (n seeds, m comparisons), NaN for a
    missing pair.

    max_t   step-down max-T (Westfall and Young): one sign a seed is flipped for all comparisons at once, so that their
            correlation is kept and the smallest p stays 2/2^n however many there are. It is a sign-flip test; `test` is
            not used. Exact when the vectors of differences are symmetric about zero under the null.
    holm    Holm's step-down of the p values of `test` (signflip, paired_t or wilcoxon); any dependence
    bh      Benjamini and Hochberg: the false discovery rate, for exploration

    The statistic of max-T is S / sqrt(sum of squares) with S the sum of the differences: increasing in Student's t, but
    finite where all differences are equal, and of variance 1 under the flips also where pairs are missing.

    Raises ValueError for another method or test, or differences that are not a matrix.
    """
    _check_alpha(alpha)
    d = np.array(differences, dtype=np.float64)
    if d.ndim != 2:
        raise ValueError(f"differences have shape {d.shape}: (seeds, comparisons) is needed")
    if method not in ("max_t", "holm", "bh"):
        raise ValueError(f"family = {method!r}: 'max_t', 'holm' or 'bh' is allowed")
    present = np.isfinite(d)
    notes = []
    if not present.all():
        notes.append(f"{int((~present).sum())} of {d.size} differences are missing")
    d[~present] = 0.0
    d = d[present.any(axis=1)]
    n, m = d.shape
    p: tuple[float | None, ...]
    if method == "max_t":
        test = "signflip"
        p = tuple(value if column.any() else None for value, column in zip(_max_t(d, seed), present.T, strict=True))
        lowest, needed = floor(n), seeds_needed(alpha)
    else:
        raw = [
            _single(np.asarray(differences, dtype=np.float64)[column, j], test, alpha, seed)
            for j, column in enumerate(present.T)
        ]
        p = holm(raw) if method == "holm" else benjamini_hochberg(raw)
        exact = test != "paired_t"
        # With Benjamini-Hochberg the largest p of all is not multiplied, so the floor is that of one comparison.
        times = m if method == "holm" else 1
        lowest = min(1.0, times * floor(n)) if exact else 0.0
        needed = seeds_needed(alpha, times) if exact else 2
    if lowest > alpha:
        notes.append(cannot_decide(n, needed))
    return FamilyResult(method, test, n, p, lowest, needed, "; ".join(notes) or None)


def holm(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's adjusted p values; a None counts as a member of the family (as if its p were 1) and stays None."""
    values = np.array([1.0 if value is None else value for value in p])
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * (values.size - np.arange(values.size)))
    return _back(p, order, np.minimum(stepped, 1.0))


def benjamini_hochberg(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Benjamini and Hochberg's adjusted p values; a None counts as a member of the family and stays None."""
    values = np.array([1.0 if value is None else value for value in p])
    order = np.argsort(values, kind="stable")
    stepped = np.minimum.accumulate((values[order] * values.size / (np.arange(values.size) + 1))[::-1])[::-1]
    return _back(p, order, np.minimum(stepped, 1.0))


def _back(p: Sequence[float | None], order: NDArray[np.intp], stepped: Array) -> tuple[float | None, ...]:
    adjusted = np.empty(len(p))
    adjusted[order] = stepped
    return tuple(None if old is None else float(new) for old, new in zip(p, adjusted, strict=True))


def _single(d: Array, test: str, alpha: float, seed: int) -> float | None:
    result = paired(d, np.zeros_like(d), alpha, seed=seed)
    if test == "signflip":
        return result.p_signflip
    if test == "paired_t":
        return result.p_t
    if test == "wilcoxon":
        return result.p_wilcoxon
    raise ValueError(f"test = {test!r}: 'paired_t', 'signflip' or 'wilcoxon' is allowed")


def _max_t(d: Array, seed: int) -> list[float]:
    """Step-down max-T of d (n, m), zeros where a pair is missing: adjusted p values in the order of the columns."""
    n, m = d.shape
    if n == 0 or m == 0:
        return [1.0] * m
    scale = np.abs(d).max(axis=0)
    d = d / np.where(scale > 0, scale, 1.0)
    norm = np.sqrt((d * d).sum(axis=0))
    z = d / np.where(norm > 0, norm, 1.0)
    observed = np.abs(z.sum(axis=0))
    weakest_first = np.argsort(observed, kind="stable")
    limits = observed[weakest_first] - _TIE
    counts = np.zeros(m, dtype=np.int64)
    for signs in _sign_patterns(n, seed):
        flipped = np.maximum.accumulate(np.abs(signs @ z[:, weakest_first]), axis=1)
        counts += (flipped >= limits).sum(axis=0)
    p = np.array([_p(int(count), n) for count in counts])
    # From the strongest comparison down, a weaker one may not look surer than a stronger one.
    p = np.maximum.accumulate(p[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[weakest_first] = p
    return [float(value) for value in adjusted]


def _sign_patterns(n: int, seed: int) -> Iterator[Array]:
    """Blocks (k, n) of signs: all patterns that begin with +1 while n <= 20, else DRAWS random ones."""
    block = 1 << 14
    if n <= EXACT_UP_TO:
        total = 1 << (n - 1)
        for start in range(0, total, block):
            codes = np.arange(start, min(start + block, total), dtype=np.int64)
            bits = (codes[:, None] >> np.arange(n - 1)) & 1
            signs = np.ones((codes.size, n), dtype=np.float64)
            signs[:, 1:] -= 2.0 * bits
            yield signs
        return
    random = np.random.default_rng(seed)
    for start in range(0, DRAWS, block):
        drawn = random.integers(0, 2, size=(min(block, DRAWS - start), n))
        yield np.asarray(1.0 - 2.0 * drawn, dtype=np.float64)


def _p(count: int, n: int) -> float:
    """p from a count of patterns at least as extreme; drawn patterns do not hold the observed one: it is added."""
    return count / 2.0 ** (n - 1) if n <= EXACT_UP_TO else (count + 1) / (DRAWS + 1)


def _mean(d: Array) -> float:
    largest = float(np.abs(d).max())
    return float((d / largest).mean()) * largest if largest > 0 else 0.0


def _hedges(df: int) -> float:
    """Hedges (1981): Gamma(df/2) / (sqrt(df/2) Gamma((df - 1)/2)), df >= 2; it makes the expected d_z the true one."""
    return math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and 1 is needed")
