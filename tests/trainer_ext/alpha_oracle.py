"""Pairs of policies, and the float64 roots that scipy finds for them, row by row.

How well float32 determines a root: E_q[s] is a sum of terms w s whose weights w = exp(log w) carry a relative error of
eps (1 + |log w|), so it is known to about level = eps E_q[|s| (1 + |log w|)], and alpha to level / Var_q[s]. Below
1e-5 of that, alpha has to be right to 1e-5; elsewhere it is E_q[s] that has to be 0 within its level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from scipy.optimize import brentq

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
#: An error of alpha that the solver allows itself where rounding does not matter.
TOL = {torch.float32: 2e-6, torch.float64: 2e-12}


@dataclass
class Reference:
    """One row in numpy, in double precision, from the numbers as they are."""

    theta: np.ndarray
    target: np.ndarray
    eps: float

    def __post_init__(self):
        self.common = np.isfinite(self.theta) & np.isfinite(self.target)
        self.masked = bool((np.isfinite(self.theta) != np.isfinite(self.target)).any())
        self.p, self.t = self.theta[self.common], self.target[self.common]
        self.s = self.p - self.t

    def log_weights(self, a):
        return a * self.p + (1 - a) * self.t

    def q(self, a):
        w = np.exp(self.log_weights(a) - self.log_weights(a).max())
        return w / w.sum()

    def log_q(self, a):
        log_w = self.log_weights(a)
        return log_w - log_w.max() - math.log(math.fsum(np.exp(log_w - log_w.max())))

    def mean(self, a):
        return float(math.fsum(self.q(a) * self.s))

    def variance(self, a):
        return float((self.q(a) * (self.s - self.mean(a)) ** 2).sum())

    def level(self, a):
        return self.eps * float((self.q(a) * np.abs(self.s) * (1 + np.abs(self.log_weights(a)))).sum())

    def unsummed(self):
        """By how much at most the two miss the sum 1 unequally, and this function's own rounding."""
        return sum(abs(math.fsum([*np.exp(x), -1.0])) for x in (self.theta, self.target)) + 1e-15

    @cached_property
    def root(self):
        """alpha, and whether E[s] has a root in [0, 1] at all."""
        first, last = self.mean(0.0), self.mean(1.0)
        if first > 0:
            return 0.0, False
        if last < 0:
            return 1.0, False
        return brentq(self.mean, 0, 1, xtol=1e-15, rtol=1e-15, maxiter=500), True


def logits(name, rows, size, generator):
    """Pairs of logits (rows, size) of a family."""

    def normal(scale=1.0):
        return scale * torch.randn(rows, size, generator=generator, dtype=torch.float64)

    base = normal(3)
    if name.startswith("near"):
        return base, base + float(name.split()[1]) * normal()
    if name == "medium":
        return base, base + normal()
    if name == "random":
        return base, normal(3)
    if name == "extreme":
        return normal(60), normal(60)
    if name == "peaked":  # on the same token
        base[:, 0] += 15
        return base, base + normal()
    if name == "sharp":  # beyond what float32 can say of the rest
        base[:, 0] += 25
        return base, base + normal()
    if name == "apart":
        other = base.clone()
        base[:, 0] += 25
        other[:, 1] += 25
        return base, other
    if name == "heavy":
        return normal(3) / (torch.rand(rows, size, generator=generator, dtype=torch.float64) + 0.02), base
    if name == "tails":  # few tokens, unlikely everywhere, on which the two differ by e^20
        rare = torch.rand(rows, size, generator=generator) < 0.02
        s = torch.where(rare, 20 * normal().sign(), normal(0.01))
        base = torch.where(rare, -10.0, 0.0) + normal()
        return base + s / 2, base - s / 2
    other = base + normal()
    keep = max(1, size // 3)
    kept = base.topk(keep).values[:, -1:]
    if name == "same top-k":
        return base.masked_fill(base < kept, -math.inf), other.masked_fill(base < kept, -math.inf)
    if name == "other top-k":
        least = other.topk(keep).values[:, -1:]
        return base.masked_fill(base < kept, -math.inf), other.masked_fill(other < least, -math.inf)
    if name == "one masked":
        return base.masked_fill(base < kept, -math.inf), other
    if name == "one-hot":
        return base, torch.full_like(base, -math.inf).scatter(1, base.argmax(dim=1, keepdim=True), 0.0)
    raise KeyError(name)


WHOLE = ["near 1e-6", "near 1e-4", "near 1e-3", "near 1e-2", "near 0.1", "medium", "random", "extreme", "peaked"]
WHOLE += ["sharp", "apart", "heavy", "tails", "same top-k"]
MASKED = ["other top-k", "one masked", "one-hot"]


def pair(name, rows, size, kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(x.to(kind).log_softmax(dim=1) for x in logits(name, rows, size, generator))


@lru_cache(maxsize=2000)  # a root takes long, and many starts are checked against the same one
def _reference(theta, target, eps):
    return Reference(np.frombuffer(theta), np.frombuffer(target), eps)


def check(theta, target, found):
    """A solution of kl_symmetry against scipy, row by row; how many rows had an alpha determined to 1e-5."""
    kind, determined = theta.dtype, 0
    assert not any(x.isnan().any() for x in (found.alpha, found.log_q, found.residual))
    for i in range(len(theta)):
        row = _reference(theta[i].double().numpy().tobytes(), target[i].double().numpy().tobytes(), EPS[kind])
        a, residual = float(found.alpha[i]), float(found.residual[i])
        assert 0 <= a <= 1
        if not row.common.any():
            assert a == 0.5 and found.degenerate[i]
            continue
        expected, inside = row.root
        level, variance, value = row.level(a), row.variance(a), row.mean(a)
        assert abs(residual - value) <= 8 * level + 16 * EPS[kind] * math.sqrt(variance) + 1e-30
        close = row.mean(expected) if row.masked else 0.0
        if inside or (row.masked and abs(close) > 10 * level):
            assert bool(found.degenerate[i]) == (not inside)
        if not inside and row.masked:
            assert a == expected or abs(close) <= 10 * level
        elif not inside:  # no root only because the two do not sum to 1 exactly
            assert abs(value) <= row.unsummed() + level + TOL[kind] * variance
        elif not (row.s == 0).all():
            slope = row.variance(expected)
            if slope > 0 and row.level(expected) < 8e-6 * slope:
                determined += 1
                assert abs(a - expected) < 1e-5
                assert abs(a - expected) <= TOL[kind] + 2 * row.level(expected) / slope
            else:
                assert abs(value) <= level + TOL[kind] * variance
        else:
            assert a == 0.5
        log_q = np.full(len(row.theta), -np.inf)
        log_q[row.common] = row.log_q(a)
        own = found.log_q[i].double().numpy()
        own[own == -np.inf], log_q[log_q == -np.inf] = -1e9, -1e9
        assert ((own > -1e8) == row.common).all()
        near = 4 * EPS[kind] * (2 + np.abs(row.p) + np.abs(row.t) + np.abs(row.log_weights(a)).min())
        assert (np.abs(own - log_q)[row.common] <= near).all()
        assert abs(np.exp(own).sum() - 1) <= 64 * EPS[kind] * (1 + np.abs(row.log_weights(a)).min())
    return determined
