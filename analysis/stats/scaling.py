"""How a difference between two methods changes with the size of the model, judged over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats import t_test
from analysis.stats.numbers import Array


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
    return t_test.without_rounding((left - right) @ logs / float(logs @ logs), 10 * t_test.ROUNDING * size)
