"""The smallest p that an exact test can give with a number of seeds. If it is above alpha, the test cannot decide
anything.

Standard library only, because every plan uses it.
"""

from __future__ import annotations

EXACT_UP_TO = 20  # 2^19 sign patterns (a pattern and its mirror image give the same statistic) take well under a second
DRAWS = 100_000  # sign patterns drawn when there are too many to enumerate


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


def seeds_needed(alpha: float = 0.05, comparisons: int = 1) -> int:
    """Smallest n with comparisons * 2 / 2^n <= alpha: pairs without which no test that counts can reject at all.

    `comparisons` is 1 for a single test and for max-T, and the size of the family for Holm.
    """
    check_alpha(alpha)
    n = 1
    while comparisons * 2.0 ** (1 - n) > alpha:
        n += 1
    return n


def multiplied(family: str, test: str, comparisons: int) -> int:
    """How many times a family's smallest adjusted p is the floor of one comparison; 0: its test has no floor.

    max_t flips one sign for each seed in all comparisons, whatever the test; with Benjamini-Hochberg the largest p of
    all is not multiplied.
    """
    if family != "max_t" and test == "paired_t":
        return 0
    return comparisons if family == "holm" else 1


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless alpha is within (0, 1)."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and 1 is needed")
