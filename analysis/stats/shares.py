"""The interval of a share: Clopper and Pearson's, which holds for runs of several tasks together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats import functions
from analysis.stats.resolution import check_alpha

Array = NDArray[np.float64]


def share_interval(share: ArrayLike, trials: float, alpha: float = 0.05) -> tuple[Array, Array]:
    """Ends (k,) of the intervals of shares (k,) of so many independent trials, at level 1 - alpha for each share alone.

    The trials may have different chances, as runs of different tasks: their sum scatters less than the binomial with
    the mean chance (Hoeffding 1956), so the interval of that binomial (Clopper and Pearson 1934) holds for the mean of
    the chances. It has a width where the share is 0 or 1, too. Raises ValueError for alpha outside (0, 1), no trial, or
    a share outside [0, 1].
    """
    check_alpha(alpha)
    shares = np.asarray(share, dtype=np.float64)
    if not trials > 0:
        raise ValueError(f"trials = {trials!r}: a positive number is needed")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("a share is outside of [0, 1]")
    ends: dict[float, tuple[float, float]] = {}
    for one in np.unique(shares).tolist():
        hits = one * trials
        below = functions.beta_quantile(hits, trials - hits + 1, alpha / 2) if one > 0 else 0.0
        above = functions.beta_quantile(hits + 1, trials - hits, 1 - alpha / 2) if one < 1 else 1.0
        ends[one] = below, above
    low, high = (np.array([ends[one][side] for one in shares.ravel().tolist()]) for side in (0, 1))
    return low.reshape(shares.shape), high.reshape(shares.shape)
