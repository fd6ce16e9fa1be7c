"""The limits of analysis/stats/dispersion.py: python -m tests.analysis.shape_limits [--samples 2000000]

Draws normal samples of each size and prints the separation that 1% of them exceed: the upper end of the interval of
that quantile, 3 standard errors of its level, rounded up to 3 decimals. Seeded: the same digits each time.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np

from analysis.stats.dispersion import LEAST, separation

FLAGGED = 0.01
SIZES = (*range(LEAST, 31), 40, 50, 75, 100, 150, 200)
_NUMBERS = 2_000_000  # drawn at a time


def limit(n: int, samples: int) -> float:
    """The separation that at most 1% of normal samples of n values exceed."""
    random, drawn, parts = np.random.default_rng([n, 61]), 0, []
    while drawn < samples:
        count = min(_NUMBERS // n, samples - drawn)
        parts.append(separation(np.sort(random.standard_normal((count, n)), axis=1))[0])
        drawn += count
    level = 1 - FLAGGED + 3 * math.sqrt(FLAGGED * (1 - FLAGGED) / samples)
    return math.ceil(1000 * float(np.quantile(np.concatenate(parts), level))) / 1000


def main(arguments: list[str] | None = None) -> int:
    """Print the limits; returns the exit code."""
    parser = argparse.ArgumentParser(description="The limits of the flag for seeds that fall into two clusters.")
    parser.add_argument("--samples", type=int, default=2_000_000, help="normal samples of each size")
    samples = parser.parse_args(arguments).samples
    for n in SIZES:
        print(f"{n}: {limit(n, samples):.3f},", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
