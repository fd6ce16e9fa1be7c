"""Functions with the same digits on every processor.

The processor decides which code of the C library, of numpy and of OpenBLAS computes exp, log and sums of products, and
these codes differ in the last bits. `log`, `log10` and `exp` are therefore taken from decimal arithmetic, and the
distribution functions of scipy, which call the C library's exp and log, are rounded to DIGITS: a last bit that differs
does not show, unless the number lies on the border between two roundings, about one in a million. Sums of products
are written elsewhere as numpy's sums or einsum, which add in one order, and not as a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

DIGITS = 13
# Wide enough that the result, rounded to a double, is the double nearest to the true value.
_CONTEXT = Context(prec=25, traps=[])


def log(values: ArrayLike) -> Array:
    """Natural logarithm of positive numbers, elementwise."""
    return _each(values, _CONTEXT.ln)


def log10(values: ArrayLike) -> Array:
    """Logarithm to base 10 of positive numbers, elementwise."""
    return _each(values, _CONTEXT.log10)


def exp(value: float) -> float:
    """Exponential; infinity where it is above the largest double."""
    return float(_CONTEXT.exp(Decimal(value)))


def power(base: float, exponent: float) -> float:
    """A positive number to a power."""
    return float(_CONTEXT.exp(_log(base) * Decimal(exponent)))


@lru_cache(maxsize=4096)
def _log(value: float) -> Decimal:
    return _CONTEXT.ln(Decimal(value))


def t_below(df: float, value: float) -> float:
    """Student's t: the chance of a value below this one."""
    return rounded(float(special.stdtr(df, value)))


def t_quantile(df: float, chance: float) -> float:
    """Student's t: the value that has this chance below it."""
    return rounded(float(special.stdtrit(df, chance)))


def normal_below(value: float) -> float:
    """Normal distribution: the chance of a value below this one."""
    return rounded(float(special.ndtr(value)))


def normal_quantile(chance: float) -> float:
    """Normal distribution: the value that has this chance below it."""
    return rounded(float(special.ndtri(chance)))


def chi_square_above(df: float, chance: float) -> float:
    """Chi-square distribution: the value that has this chance above it."""
    return rounded(float(special.chdtri(df, chance)))


def beta_quantile(a: float, b: float, chance: float) -> float:
    """Beta distribution with these positive parameters: the value that has this chance below it."""
    return rounded(float(special.betaincinv(a, b, chance)))


def rounded(value: float) -> float:
    """The value to DIGITS significant digits."""
    return float(f"{value:.{DIGITS - 1}e}")


def _each(values: ArrayLike, function: Callable[[Decimal], Decimal]) -> Array:
    given = np.asarray(values, dtype=np.float64)
    results = [float(function(Decimal(value))) for value in given.ravel().tolist()]
    return np.array(results, dtype=np.float64).reshape(given.shape)
