"""How a difference between two methods changes with the size of the model, judged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats import compare, exact, t_test
from analysis.stats.compare import PairedResult
from analysis.stats.resolution import cannot_decide, floor, seeds_needed
from analysis.stats.t_test import Interval


@dataclass(frozen=True)
class SizeTrend:
    """The paired difference a - b at each size, and its slope on the logarithm to base 10 of the parameters, by seed.

    sizes        parameters of the models, increasing; at[i] compares the methods at sizes[i]
    n            seeds with a difference at every size, each of which has a slope
    slope        mean of their slopes, in the metric's unit a tenfold of parameters: above 0, the lead of a grows
    interval     t interval of the slope over seeds; p_t and p_signflip: two-sided, that it is zero
    reason       what a reader must know beside these numbers, or None
    """

    sizes: tuple[float, ...]
    at: tuple[PairedResult, ...]
    n: int
    slope: float | None
    interval: Interval | None
    p_t: float | None
    p_signflip: float | None
    reason: str | None


def size_trend(
    parameters: Sequence[float], a: ArrayLike, b: ArrayLike, alpha: float = 0.05, *, direction: str = "higher",
    seed: int = 0,
) -> SizeTrend:  # fmt: skip
    """Compare two methods over model sizes: parameters (k,), a and b (seeds, k), NaN for a missing run.

    The slope is a least-squares line within each seed, so that what a seed shares over sizes cancels.

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
    order = np.argsort(sizes)
    sizes, left, right = sizes[order], left[:, order], right[:, order]
    at = tuple(
        compare.paired(left[:, k], right[:, k], alpha, direction=direction, seed=seed) for k in range(sizes.size)
    )
    whole = np.isfinite(left).all(axis=1) & np.isfinite(right).all(axis=1)
    reasons = []
    if not whole.all():
        reasons.append(f"{int((~whole).sum())} of {whole.size} seeds lack a size: they have no slope")
    logs = np.log10(sizes)
    logs -= logs.mean()
    left, right = left[whole], right[whole]
    n = len(left)
    # A slope below the rounding of the numbers subtracted counts as zero.
    size = float(np.abs([left, right]).max(initial=0.0)) / float(np.ptp(logs))
    slopes = (left - right) @ logs / float(logs @ logs)
    slopes = t_test.without_rounding(slopes, 10 * t_test.ROUNDING * size)
    mean = t_test.mean(slopes, size)
    if n == 0:
        reasons.append("no seed has every size")
    elif mean is None:
        reasons.append("one seed: the slope has no spread" if n == 1 else "all slopes are equal: there is no interval")
    if n and floor(n) > alpha:
        reasons.append(cannot_decide(n, seeds_needed(alpha)))
    return SizeTrend(
        sizes=tuple(sizes.tolist()),
        at=at,
        n=n,
        slope=float(slopes.mean()) if n else None,
        interval=None if mean is None else mean.interval(alpha),
        p_t=None if mean is None else mean.p(),
        p_signflip=exact.signflip(slopes, seed=seed),
        reason="; ".join(reasons) or None,
    )
