"""Tests that are looked at more than once: seeds are added in batches until a comparison is decided.

Each look asks the test at a level of its own, so that under the null hypothesis the chance that any look finds a
difference is alpha. A spending function says how much of alpha the looks up to each may use (Lan and DeMets 1983).

For a t test the levels are exact. Under the null hypothesis the values, as one vector from which the common mean is
taken, have no preferred direction, and t is a function of the angle between this vector and the contrast of the two
methods. The angles of the looks form a Markov chain: one integral for each look (the sequential t tests of Jennison and
Turnbull 1991). Any other test is asked at the share of alpha that its look may spend (Bonferroni's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from analysis.stats.numbers import Array
from analysis.stats.resolution import PAIRED, T_TESTS, check_alpha, smallest_p

Sizes = tuple[int, int]  # values of the method and of the baseline; of pairs, the same number twice

_POINTS = 161  # points of the grid of angles; a cubic spline interpolates
_FINE = 4001  # points of the grid on which its tail is summed
_NEGLIGIBLE = 1e-11  # chance of what the integrals leave out
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_ALPHAS = np.concatenate((np.geomspace(1e-6, 0.5, 24), [0.6, 0.7, 0.8, 0.9, 0.97, 0.999]))
_DIGITS = 7  # digits of a level: more than the quadrature resolves


def looks(start: int, batch: int, most: int) -> tuple[int, ...]:
    """The numbers of seeds at which a comparison is looked at: from `start` on, `batch` more each time, up to `most`.

    Raises ValueError unless 2 <= start <= most and batch >= 1.
    """
    if not 2 <= start <= most or batch < 1:
        raise ValueError(f"start = {start}, batch = {batch}, max = {most}: 2 <= start <= max and batch >= 1 are needed")
    return (*range(start, most, batch), most)


def spending(seeds: Sequence[int]) -> tuple[float, ...]:
    """The share of alpha that may be spent by each look: the square of its share of the seeds (Kim and DeMets 1987).

    seeds: at each look, the last one is max.
    """
    return tuple((n / seeds[-1]) ** 2 for n in seeds)


@dataclass(frozen=True)
class Look:
    """A look at a test that was looked at before: which level stands for which alpha.

    test: one of `resolution.PAIRED` or `resolution.UNPAIRED`. sizes: the values of both methods at each look up to this
    one, which never fall. spent: the share of alpha that may be spent by each of them. What comes later does not
    matter, so a seed that fails later changes nothing that was decided.

    Raises ValueError if sizes and spent are not of one length, or one of them falls.
    """

    test: str
    sizes: tuple[Sizes, ...]
    spent: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.spent) or not self.sizes:
            raise ValueError(f"{len(self.sizes)} sizes and {len(self.spent)} shares of alpha: one for each look")
        columns = [*zip(*self.sizes, strict=True), self.spent]
        if any(list(column) != sorted(column) for column in columns) or not 0 < self.spent[-1] <= 1:
            raise ValueError(f"sizes {self.sizes} and shares {self.spent} must not fall, and end within (0, 1]")

    def level(self, alpha: float) -> float:
        """The level at which this look asks the test, of a design at level alpha; 0: it can decide nothing."""
        if not 0 < alpha < 1:
            return 0.0 if alpha <= 0 else 1.0
        if self.test not in T_TESTS:
            return alpha * self._share
        levels = self._table
        return _between(alpha, _ALPHAS, levels) if levels[0] > 0 else 0.0

    def can_decide(self, alpha: float, done: int = 0) -> bool:
        """Whether it or one before it, but after the first `done`, can decide at level alpha, whatever it shows."""
        looks = (Look(self.test, self.sizes[:k], self.spent[:k]) for k in range(done + 1, len(self.sizes) + 1))
        return any(smallest_p(self.test, *look.sizes[-1]) <= look.level(alpha) for look in looks)

    def p(self, p: float) -> float:
        """The smallest alpha at which this look decides, given the p value of its test: the repeated p value."""
        if self.test not in T_TESTS:
            return min(1.0, p / self._share) if self._share > 0 else 1.0
        levels = self._table
        return _between(p, levels, _ALPHAS) if levels[0] > 0 and p < levels[-1] else 1.0

    @property
    def _share(self) -> float:
        return self.spent[-1] - (self.spent[-2] if len(self.spent) > 1 else 0.0)

    @property
    def _table(self) -> Array:
        """The level of this look for each of _ALPHAS."""
        table = _levels(_steps(self.sizes, self.spent, self.test in PAIRED))
        if self.test in PAIRED or len(self.sizes) < 2:
            return table
        # Welch's degrees of freedom are between those of the pooled test and those of the smaller sample.
        few = tuple((min(size), min(size)) for size in self.sizes)
        return np.asarray(np.minimum(table, _levels(_steps(few, self.spent, True))))


def boundary(test: str, seeds: Sequence[int], alpha: float = 0.05) -> tuple[float, ...]:
    """The level at which each look asks the test, of a design at level alpha, with as many values of both methods.
    seeds: at each look."""
    check_alpha(alpha)
    sizes, shares = tuple((n, n) for n in seeds), spending(seeds)
    return tuple(Look(test, sizes[:k], shares[:k]).level(alpha) for k in range(1, len(seeds) + 1))


def chance(test: str, t: float, now: Sizes, last: Sizes, level: float) -> float:
    """The chance that a t test of more seeds finds a positive difference, predicted from its t so far.

    now, last: the values of both methods, so far and then; level: at which the test is asked then. It is the predictive
    power of Bayesian statistics with the usual vague prior (mean and log of the spread uniform), which of few seeds is
    unsure of the spread, too. A test that counts is predicted as the t test of the same design.

    Raises ValueError unless `last` has more values than `now`, which has enough for a t.
    """
    few, many = (_steps((sizes,), (1.0,), test in PAIRED) for sizes in (now, last))
    if not few or not many or many[0].dims <= few[0].dims:
        raise ValueError(f"{now} values now and {last} at last: more of them are needed at last")
    (old,), (new,) = few, many
    df, more, b = new.dims - 2, new.dims - old.dims - 1, new.information - old.information
    critical = -float(special.stdtrit(new.dims - 1, level / 2)) if level > 0 else math.inf
    # Two independent numbers: the new seeds' part of the squares, over the old part, and the change of the mean.
    ratio = np.zeros(1) if not more else more / (old.dims - 1) * special.fdtri(more, old.dims - 1, _quantiles(32))
    change = special.stdtrit(df, _quantiles(500))
    kept = t * np.sqrt(new.information / old.information * df / ((old.dims - 1) * (1 + ratio)))[:, None]
    rejected = kept + math.sqrt(b / old.information) * change >= critical * np.sqrt((df + change**2) / (df + 1))
    return float(rejected.mean())


def _quantiles(many: int) -> Array:
    return np.asarray((np.arange(many) + 0.5) / many)


def _between(value: float, of: Array, to: Array) -> float:
    """Where a value between two of `of` is between the same two of `to`, by their logarithms; in proportion below the
    first of them, and the last above the last. Its inverse is the same with `of` and `to` exchanged."""
    if not of[0] < value < of[-1]:
        return float(value * to[0] / of[0] if value <= of[0] else to[-1])
    place = int(np.clip(np.searchsorted(of, value), 1, len(of) - 1))
    (x0, x1), (y0, y1) = of[place - 1 : place + 1], to[place - 1 : place + 1]
    return float(y0 * (y1 / y0) ** (math.log(value / x0) / math.log(x1 / x0)))


# ---------------------------------------------------------------- exact levels of t tests
#
# The angle of a look is written as x, with t = sqrt(df) sinh(x): its density is proportional to cosh(x)^(1 - dims).


@dataclass(frozen=True)
class _Step:
    """A look at a t test. dims: of its vector, one more than the degrees of freedom. information: on the difference,
    1 / its variance. spent: the share of alpha that may be spent by this look."""

    dims: int
    information: float
    spent: float


def _steps(sizes: Sequence[Sizes], spent: Sequence[float], paired: bool) -> tuple[_Step, ...]:
    """The looks that can decide, and have other values than the one before. Of pairs the vector has a dimension for
    each difference; of two samples, one for each value but the common mean."""
    steps: list[_Step] = []
    for (n, m), share in zip(sizes, spent, strict=True):
        dims = n if paired else n + m - 1
        if min(n, m) < (2 if paired else 1) or dims < 2:
            continue
        if steps and steps[-1].dims == dims:  # the same values again: what this look may spend is added
            steps.pop()
        steps.append(_Step(dims, float(n) if paired else n * m / (n + m), share))
    return tuple(steps)


@lru_cache(maxsize=256)
def _levels(steps: tuple[_Step, ...]) -> Array:
    """The level of the last look for each of _ALPHAS."""
    return np.array([float(f"{_chain(steps, float(alpha))[0]:.{_DIGITS - 1}e}") if steps else 0.0 for alpha in _ALPHAS])


@lru_cache(maxsize=2048)
def _chain(steps: tuple[_Step, ...], alpha: float) -> tuple[float, float, Array]:
    """The last look of a design with level alpha: the level of that look, the x from which on it rejects, and, at each
    point of its grid, the chance that no earlier look rejected given its angle."""
    step = steps[-1]
    grid = _grid(step.dims, _POINTS)
    if len(steps) == 1:
        free, left = np.ones(_POINTS), alpha * step.spent
    else:
        _, limit, before = _chain(steps[:-1], alpha)
        free, left = _survival(steps[-2], step, limit, before), alpha * (step.spent - steps[-2].spent)
    fine = _grid(step.dims, _FINE)
    chance = np.clip(_spline(grid, free)(fine), 0.0, 1.0)
    density = np.cosh(fine) ** (1 - step.dims)
    kept, width = chance * density, fine[1]
    share = np.append(np.cumsum((kept[:-1] + kept[1:])[::-1])[::-1] / (density[:-1] + density[1:]).sum(), 0.0)
    if not left > 0:
        return 0.0, float(grid[-1]), free
    place = int(np.searchsorted(-share, -left))
    if place == 0:  # no look before it can reject
        return 1.0, 0.0, free
    above, below = share[place - 1], max(share[place], 1e-300)
    part = math.log(above / left) / math.log(above / below)
    limit = float(fine[place - 1] + part * width)
    df = step.dims - 1
    return 2 * float(special.stdtr(df, -math.sqrt(df) * math.sinh(limit))), limit, free


def _grid(dims: int, points: int) -> Array:
    """Half of the angles, up to where the tail is negligible."""
    return np.linspace(0.0, math.asinh(_farthest(dims)), points)


def _spline(x: Array, y: Array) -> Callable[[Array], Array]:
    from scipy import interpolate  # here: it takes as long as all other imports of a report, which rarely needs it

    spline: Callable[[Array], Array] = interpolate.CubicSpline(x, y)
    return spline


def _farthest(dims: int) -> float:
    """The tangent of an angle, t / sqrt(df), that a look exceeds with a negligible chance."""
    return -float(special.stdtrit(dims - 1, _NEGLIGIBLE)) / math.sqrt(dims - 1)


def _survival(old: _Step, new: _Step, limit: float, before: Array) -> Array:
    """The chance that no look before the new one rejected, given the angle of the new one, at each point of its grid.

    limit: the x from which on the old one rejects. before: the same chance for the old one. The vector of the new look
    is the old one, a coordinate that moves the contrast, and further ones. Given the angle of the new look, the share
    of the further ones (turn) and the direction of the rest (chi) are independent, and the old angle follows from them;
    for each turn it is below the limit on one interval of chi.
    """
    n, b = old.information, new.information - old.information
    more = new.dims - old.dims - 1
    tangent = np.sinh(_grid(new.dims, _POINTS))[:, None]
    v = math.sinh(limit)
    reach = math.hypot(math.sqrt(b), v * math.sqrt(n + b))
    steepest = reach / math.sqrt(n)  # of the new angle without further coordinates, from where the old one can be kept
    if more:
        # cos(turn)^2 is what the further coordinates leave of the vector, less the contrast
        most = np.arccos(np.minimum(1.0, np.maximum(tangent, 1e-300) / steepest))
        least = math.asin(math.sqrt(special.betaincinv(more / 2, old.dims / 2, _NEGLIGIBLE)))
        largest = math.acos(math.sqrt(special.betaincinv(old.dims / 2, more / 2, _NEGLIGIBLE)))
        width = np.maximum(np.minimum(most, largest) - least, 0.0)
        half = (1 + _NODES) / 2
        turn = least + width * (1 - (1 - half) ** 2)  # more nodes at the end, where the interval of chi closes
        weight = width * _WEIGHTS * (1 - half) * np.sin(turn) ** (more - 1) * np.cos(turn) ** (old.dims - 1)
        weight = weight / (special.beta(more / 2, old.dims / 2) / 2)
        inner = tangent / np.cos(turn)
    else:
        inner, weight = tangent, np.ones_like(tangent)
    chi0 = math.atan2(math.sqrt(b), v * math.sqrt(n + b))
    kappa = np.arccos(np.clip(math.sqrt(n) * inner / reach, -1.0, 1.0))
    farthest = math.atan(_farthest(old.dims))
    low = np.maximum(np.maximum(chi0 - kappa, kappa - chi0 - math.pi), -farthest)
    high = np.minimum(np.minimum(chi0 + kappa, math.pi - chi0 - kappa), farthest)
    span = np.maximum(high - low, 0.0)[..., None]
    chi = low[..., None] + span * (1 + _NODES) / 2
    old_tangent = (math.sqrt(n) * inner[..., None] - math.sqrt(b) * np.sin(chi)) / (
        math.sqrt(n + b) * np.maximum(np.cos(chi), 1e-300)
    )
    kept = _spline(_grid(old.dims, _POINTS), before)(np.arcsinh(np.minimum(np.abs(old_tangent), v)))
    parts = np.clip(kept, 0.0, 1.0) * np.cos(chi) ** (old.dims - 2) * _WEIGHTS / 2
    within = parts.sum(axis=-1) * span[..., 0] / special.beta(0.5, (old.dims - 1) / 2)
    return np.asarray(np.clip((within * weight).sum(axis=-1), 0.0, 1.0))
