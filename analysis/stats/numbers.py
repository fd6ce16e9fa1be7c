"""Numbers as a reader sees them: no more digits than the data carry. And JSON, which has words for odd ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interval = tuple[float, float]
Estimate = tuple[float, Interval | None]  # a value and its interval
_SIGNIFICANT = 10  # digits that a value with an interval has at most, however narrow that is
_READABLE = 1e15  # the size from which a number has an exponent


def parsed(line: bytes) -> Any:
    """A line as JSON, also one with NaN, Infinity or half of a surrogate pair, which orjson refuses. Raises ValueError
    or RecursionError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def format_p(p: float | None, alpha: float | None = None) -> str:
    """p to two significant digits, "< 0.001" below; p with at most four decimals, as exact tests give, stays as it is.

    Where two digits would move p to the other side of alpha (0.0497 is not 0.050), it gets as many as it needs.
    """
    if p is None:
        return ""
    if p < 0.001:
        return "< 0.001"
    if math.isclose(round(p, 4), p, rel_tol=1e-12):  # a count of splits may be 0.19999999999999998
        return f"{p:.4f}".rstrip("0").rstrip(".")
    for digits in range(2, 8):
        text = f"{p:.{max(0, digits - 1 - math.floor(math.log10(p)))}f}"
        if alpha is None or ((float(text) < alpha) == (p < alpha) and (float(text) > alpha) == (p > alpha)):
            return text
    return repr(p)


def format_number(value: float | None, digits: int = 4) -> str:
    """A number on its own, to `digits` significant digits; an exponent only where the number would be unreadable
    without."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    power = _power(value, digits)
    if power >= -5 and abs(value) < _READABLE:
        return f"{_round(value, digits - 1 - power):.{max(0, digits - 1 - power)}f}"
    return f"{value:.{digits - 1}e}"


def format_level(alpha: float) -> str:
    """The level of an interval: 95%; 98.33%."""
    return f"{100 - (round(100 * alpha, 2) or 100 * alpha):g}%"


def format_estimate(
    value: float | None,
    interval: Interval | None,
    signed: bool = False,
    decimals: int | None = None,
    digits: int | None = None,
) -> str:
    """A value with its interval, rounded together to two significant digits of the interval's half width, or to
    `decimals` where these are more. digits: significant ones of a value without an interval.

    An end that is not zero is never shown as zero: up to three digits more for all, then one digit for that end.
    """
    if value is None:
        return ""
    plus = "+" if signed and value > 0 else ""
    if interval is None or not interval[1] > interval[0]:
        digits = digits or (3 if signed else 4)
        if decimals is None or value == 0 or decimals <= digits - 1 - math.floor(math.log10(abs(value))):
            return plus + format_number(value, digits)
        return plus + _fixed(value, decimals)
    if not (math.isfinite(interval[0]) and math.isfinite(interval[1])):
        low, high = (format_number(end, 3) if math.isfinite(end) else "" for end in interval)
        ends = f"[{low}" if low else "(-\N{INFINITY}", f"{high}]" if high else "\N{INFINITY})"
        return f"{plus}{format_number(value, 3)} {', '.join(ends)}"
    half = (interval[1] - interval[0]) / 2
    least = decimals_of(value, interval)
    power = math.floor(math.log10(max(abs(value), half)))
    decimals = min(least if decimals is None else max(least, decimals), _SIGNIFICANT - 1 - power)
    if (decimals > 6 and power < -2) or max(abs(value), half) >= _READABLE:
        shown = [_fixed(x / 10.0**power, decimals + power, seen=True) for x in (value, *interval)]
        return f"({plus}{shown[0]} [{shown[1]}, {shown[2]}])e{power}"
    shown = [_fixed(value, decimals), *(_fixed(x, decimals, seen=True) for x in interval)]
    return f"{plus if float(shown[0]) else ''}{shown[0]} [{shown[1]}, {shown[2]}]"


def decimals_of(value: float, interval: Interval | None, digits: int = 4) -> int:
    """The decimals that `format_estimate` shows; below 0, digits before the point are rounded."""
    if interval is None or not 0 < interval[1] - interval[0] < math.inf:
        return digits - 1 - _power(value, digits) if value else 0
    half = (interval[1] - interval[0]) / 2
    decimals = 1 - _power(half, 2)
    near = min((abs(end) for end in interval if end), default=half)
    return decimals + next((more for more in range(4) if near > 0.5 * 10.0 ** -(decimals + more)), 0)


def decimals_of_means(means: Sequence[Estimate], difference: Estimate, digits: int = 4) -> int:
    """The decimals at which the first of two means less the second reads as `difference` does, each with its interval:
    as many as both have anyway, if it does so then, is another difference or nothing but rounding."""
    shown = [decimals_of(*mean, digits) for mean in means]
    at, ((a, _), (b, _)) = decimals_of(*difference, 3), means
    if math.isclose(a, b, rel_tol=1e-9) or not math.isclose(a - b, difference[0], rel_tol=1e-6, abs_tol=1e-9):
        return min(shown)

    def agrees(least: int) -> bool:
        first, second = (_round(mean, max(least, d)) for (mean, _), d in zip(means, shown, strict=True))
        return math.isclose(_round(first - second, at), _round(difference[0], at), rel_tol=1e-9, abs_tol=1e-12)

    return next((least for least in (min(shown), at, at + 1, at + 2) if agrees(least)), at + 3)


def _power(value: float, digits: int) -> int:
    """The power of ten of a value that is rounded to significant digits: 0 for 0.996 to two of them."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def _fixed(value: float, decimals: int, seen: bool = False) -> str:
    """To this many decimals; seen: what is not zero has a digit that is not."""
    text = f"{_round(value, decimals):.{max(0, decimals)}f}"
    if seen and value and not float(text):
        return format_number(value, 1)
    return text[1:] if text.startswith("-") and float(text) == 0 else text


def _round(value: float, decimals: int) -> float:
    return round(value, decimals) if abs(decimals) < 300 else value
