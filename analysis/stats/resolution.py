"""The smallest p that a test can give with a number of seeds. If it is above alpha, the test cannot decide anything.

A t test has no smallest p. Only the standard library is imported, because every plan uses this module.
"""

from __future__ import annotations

import math

PAIRED = ("paired_t", "signflip", "wilcoxon")  # the tests of the same seeds under two methods
UNPAIRED = ("welch", "relabel")  # the tests of two samples
T_TESTS = ("paired_t", "welch")
FEW = 4  # seeds; fewer cannot show whether values are normal, as a t test assumes
EXACT_UP_TO = 20  # pairs whose sign patterns are all counted: 2^19 without mirror images take well under a second
MOST_SPLITS = 200_000  # splits of two samples that are all counted: those of 10 and 10 values in a tenth of a second
DRAWS = 100_000  # sign patterns, or splits of two samples, that are drawn where there are too many to count
MOST_SEEDS = 1000  # up to which seeds_needed searches


def cannot_decide(n: int, needed: int, ties: int = 0) -> str:
    """Why an exact test of n pairs, whose smallest p is above alpha, cannot decide; never "not significant".

    needed: the pairs without ties that are needed; ties: those of the n pairs whose difference is zero.
    """
    if n > EXACT_UP_TO and needed + ties <= n:
        return f"cannot decide: above {EXACT_UP_TO} pairs {DRAWS} sign patterns are drawn, too few for this alpha"
    tied = f" of which {ties} tied" if ties else ""
    return f"cannot decide with n = {n}{tied}: {needed + ties} seeds are needed"


def floor(n: int) -> float:
    """Smallest two-sided p of a sign-flip test with n pairs: 2 / 2^n, of the observed pattern and its mirror image;
    above EXACT_UP_TO pairs 1 / (DRAWS + 1), of the observed pattern among the drawn ones."""
    return min(1.0, 2.0 ** (1 - n)) if n <= EXACT_UP_TO else 1 / (DRAWS + 1)


def smallest_p(test: str, n: int, m: int | None = None) -> float:
    """Smallest two-sided p of a test of PAIRED with n pairs, or of UNPAIRED with n and m values (None: n and n); 0 for
    a t test."""
    if test in T_TESTS:
        return 0.0
    if test == "wilcoxon":  # the sums of its ranks are counted, never drawn
        return min(1.0, 2.0 ** (1 - n))
    if test != "relabel":
        return floor(n)
    ways = math.comb(n + (n if m is None else m), n)
    return min(1.0, 2 / ways if ways <= MOST_SPLITS else 2 / (DRAWS + 1))


def seeds_needed(alpha: float = 0.05, comparisons: int = 1, test: str = "signflip") -> int:
    """Smallest number of seeds of each method with which a test can give comparisons * p <= alpha; 2 for a t test, for
    one seed has no spread; 1001 where 1000 are not enough.

    comparisons: as `multiplied` gives it. All sign patterns are taken as counted, also where they would be drawn.
    Raises ValueError unless alpha is within (0, 1).
    """
    check_alpha(alpha)
    seeds, by_signs = range(2 if test in T_TESTS else 1, MOST_SEEDS + 1), test in ("signflip", "wilcoxon")
    p = ((n, comparisons * (2.0 ** (1 - n) if by_signs else smallest_p(test, n))) for n in seeds)
    return next((n for n, smallest in p if smallest <= alpha), MOST_SEEDS + 1)


def multiplied(family: str, comparisons: int) -> int:
    """The smallest adjusted p of a family ("holm", "max_t" or "bh") divided by the smallest p of one comparison.

    With max_t it is 1, because a seed has the same sign in all comparisons; with bh (Benjamini-Hochberg) it is 1,
    because nothing is multiplied where all comparisons have the smallest p.
    """
    return comparisons if family == "holm" else 1


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless alpha is within (0, 1)."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and 1 is needed")
