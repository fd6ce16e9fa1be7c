"""The smallest p that an exact test can give with a number of seeds. If it is above alpha, the test cannot decide
anything.

Standard library only, because every plan uses it.
"""

from __future__ import annotations

import math

PAIRED = ("paired_t", "signflip", "wilcoxon")  # the tests of the same seeds under two methods
UNPAIRED = ("welch", "relabel")  # the tests of two samples
T_TESTS = ("paired_t", "welch")
FEW = 4  # seeds; fewer cannot show whether what a t test assumes is so
EXACT_UP_TO = 20  # 2^19 sign patterns (a pattern and its mirror image give the same statistic) take well under a second
MOST_SPLITS = 200_000  # two samples of 10 values each: counted in a tenth of a second
DRAWS = 100_000  # sign patterns, or splits of two samples, drawn when there are too many to enumerate
_MOST_SEEDS = 1000  # above it no number of seeds is known to be enough


def cannot_decide(n: int, needed: int, ties: int = 0) -> str:
    """The sentence for an exact test whose smallest p is above alpha; it never says "not significant"."""
    if n > EXACT_UP_TO and needed + ties <= n:
        return f"cannot decide: above {EXACT_UP_TO} pairs {DRAWS} sign patterns are drawn, too few for this alpha"
    tied = f" of which {ties} tied" if ties else ""
    return f"cannot decide with n = {n}{tied}: {needed + ties} seeds are needed"


def floor(n: int) -> float:
    """Smallest two-sided p of a sign-flip test with n pairs: the observed pattern and its mirror image among 2^n, or
    the observed one beside DRAWS drawn ones."""
    return min(1.0, 2.0 ** (1 - n)) if n <= EXACT_UP_TO else 1 / (DRAWS + 1)


def smallest_p(test: str, n: int, m: int | None = None) -> float:
    """Smallest two-sided p of a test with n pairs, or with n and m values (default: as many); 0: it has no floor."""
    if test in T_TESTS:
        return 0.0
    if test != "relabel":
        return floor(n)
    ways = math.comb(n + (n if m is None else m), n)
    return min(1.0, 2 / ways if ways <= MOST_SPLITS else 2 / (DRAWS + 1))


def seeds_needed(alpha: float = 0.05, comparisons: int = 1, test: str = "signflip") -> int:
    """Smallest number of seeds of each method with which a test can give comparisons * p <= alpha: 2 if it has no
    floor, for without two there is no spread.

    `comparisons` is 1 for a single test and for max-T, and the size of the family for Holm.
    """
    check_alpha(alpha)
    n = 2 if test in T_TESTS else 1
    while comparisons * (2.0 ** (1 - n) if test in ("signflip", "wilcoxon") else smallest_p(test, n)) > alpha:
        n += 1
        if n > _MOST_SEEDS:
            return n
    return n


def multiplied(family: str, comparisons: int) -> int:
    """How many times the floor of one comparison is the smallest adjusted p of a family.

    max_t flips one sign for each seed in all comparisons; with Benjamini-Hochberg the largest p of all is not
    multiplied.
    """
    return comparisons if family == "holm" else 1


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless alpha is within (0, 1)."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and 1 is needed")
