"""The choice of alpha in the geometric family, for each pair of next-token distributions.

With s = log p_theta - log p_t and log Z(a) = log sum_v p_theta^a p_t^(1-a): d/da log Z = E_{q_a}[s] and d2/da2 log Z =
Var_{q_a}[s]. So KL(q||theta) = KL(q||t) at the root of E[s], the minimum of a convex function (the Chernoff point), and
Newton's method on E[s] has its derivative for free from the same pass over the vocabulary.

Everything is computed from log-probabilities, never from p + eps, in blocks of rows that fit the processor's cache.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer_ext import registry
from trainer_ext.sampling.geometric import log_geometric_mean, refuse
from trainer_ext.sampling.roots import Flags, Indices, Numbers, find_root, taylor

METHODS = ("fixed", "entropy", "kl_symmetry", "ess_balance", "snr_max")
#: The methods that solve an equation, whose residual says how well; and those that evaluate something several times.
SOLVED = ("kl_symmetry", "ess_balance")
SEARCHED = (*SOLVED, "snr_max")
for _name in ("none", "entropy", "ess_balance", "snr_max"):
    registry.alpha.declare(_name)
registry.alpha.declare("fixed", "value", prefix="alpha_")
registry.alpha.declare("kl_symmetry", "solver", optional=["iterations"])  # the iterations are those of bisection
SOLVERS = ("newton", "bisection")
#: Numbers in a block on a processor, where a few tensors of this size stay in its cache; and on a device, where they
#: only have to be few beside the inputs.
BLOCK, DEVICE_BLOCK = 800_000, 1 << 25
#: A log-probability from here down excludes its token, as -inf does: masks of -1e9 or of a type's smallest number.
LOWEST = -1e5
LOG2_E = 1 / math.log(2)
#: A variance of s that in float32 may be what underflow left of a larger one.
UNSEEN = 1e-20
#: Of snr_max: points of the grid on [0, 1], and golden-section steps around the best of them.
GRID, GOLDEN = 33, 24
#: Working memory that `_room` lends out, by name and type.
_kept = threading.local()


@dataclass(frozen=True)
class AlphaSolution:
    """The result of `solve`: a number for each row (...), and log_q (..., V), normalised.

    passes: int64, evaluations of the method's equation over the vocabulary. residual: the left side of that
    equation at alpha: E_q[s] in nats for kl_symmetry, log(ESS_theta/ESS_t) for ess_balance; 0 without an equation.
    degenerate: bool, no point has the required property, or the two have no token in common.
    """

    alpha: Tensor
    log_q: Tensor
    passes: Tensor
    residual: Tensor
    degenerate: Tensor


def solve(
    log_p_theta: Tensor,
    log_p_t: Tensor,
    method: str = "kl_symmetry",
    solver: str = "newton",
    iterations: int = 20,
    tol: float | None = None,
    initial: Tensor | float | None = None,
    value: float | None = None,
    log_p_ref: Tensor | None = None,
) -> AlphaSolution:
    """alpha of each row of two batches of log-probabilities (..., V), float32 or float64, -inf allowed.

    method: `fixed` (value), `entropy` (H_theta / (H_theta + H_t)), `kl_symmetry` (KL(q||theta) = KL(q||t)),
    `ess_balance` (the two effective sample sizes are equal), `snr_max` (needs log_p_ref, (..., V)).
    solver, of kl_symmetry: `newton`, to an error of alpha below `tol` (1e-6; 1e-12 in double precision) or rounding, or
    `bisection` with `iterations` halvings. initial: where Newton starts, (...) or a number: the previous token's alpha;
    else 0.5.

    Equal distributions give 0.5, and q = pi_theta. Without a token in common alpha is 0.5, q the plain mixture, and the
    row degenerate. Where the supports differ there may be no symmetric point: alpha is the end of [0, 1] nearest to it,
    q the limit there, which keeps to the common tokens, and the row is degenerate.
    Gradients do not flow through the result.

    ValueError: an unknown name, a value outside [0, 1], shapes or types that differ, a row with NaN, +inf or no token.
    """
    theta, target, start, ref = _check(log_p_theta, log_p_t, method, solver, iterations, value, initial, log_p_ref)
    tol = max(tol or (1e-6 if theta.dtype == torch.float32 else 1e-12), 8 * torch.finfo(theta.dtype).eps)
    log_q = torch.empty_like(theta)
    solved: list[_Solved] = []
    step = max(1, (BLOCK if theta.device.type == "cpu" else DEVICE_BLOCK) // theta.shape[1])
    for first in range(0, len(theta), step):
        part = slice(first, first + step)
        s = torch.sub(theta[part], target[part], out=_room("s of a block", theta[part]))
        pair = _pair(theta[part], target[part], s, first)
        if method == "kl_symmetry":
            block = _kl_newton(pair, start[part], tol) if solver == "newton" else _kl_bisection(pair, iterations)
        elif method == "ess_balance":
            block = _ess_balance(pair, start[part], tol)
        elif method == "snr_max":
            assert ref is not None
            block = _snr_max(pair, ref[part])
        else:
            block = _given(pair, _entropy(pair) if method == "entropy" else np.full(len(pair.s), value))
        _write(pair, block, log_q[part])
        solved.append(block)

    def joined(name: str, kind: torch.dtype) -> Tensor:
        values = np.concatenate([getattr(block, name) for block in solved]) if solved else np.empty(0)
        return torch.as_tensor(values, device=theta.device).to(kind).reshape(log_p_theta.shape[:-1])

    return AlphaSolution(
        alpha=joined("alpha", theta.dtype),
        log_q=log_q.reshape(log_p_theta.shape),
        passes=joined("passes", torch.int64),
        residual=joined("residual", theta.dtype),
        degenerate=joined("degenerate", torch.bool),
    )


# ---------------------------------------------------------------- a block of rows


@dataclass(frozen=True)
class _Pair:
    """Rows of both distributions (r, V), and base = log p_t and s on their common tokens, -inf and 0 elsewhere."""

    theta: Tensor
    target: Tensor
    base: Tensor
    s: Tensor
    largest: Numbers  # of |s|, (r,)
    common: Flags  # rows with a token in common
    masked: Flags  # rows whose supports differ

    def double(self, rows: Indices, normalised: bool) -> _Pair:
        """Some rows in double precision."""
        at = torch.as_tensor(rows, device=self.s.device)
        theta, target = self.theta[at].double(), self.target[at].double()
        if normalised:
            theta, target = theta.log_softmax(dim=1), target.log_softmax(dim=1)
        return _pair(theta, target, theta - target, 0)


@dataclass(frozen=True)
class _Solved:
    """The result of a block, a number for each row. whole: at alpha 0 or 1, q is p_t or p_theta with all tokens."""

    alpha: Numbers
    residual: Numbers
    passes: Numbers
    degenerate: Flags
    log_z: Numbers | None = None
    whole: bool = False


def _numbers(x: Tensor) -> Numbers:
    return np.asarray(x.double().cpu().numpy())


def _kind(x: Tensor) -> type[np.floating[Any]]:
    return np.float32 if x.dtype == torch.float32 else np.float64


def _room(name: str, like: Tensor) -> Tensor:
    """An empty tensor of this shape and type. On a processor its memory is reused by the next tensor of this name:
    allocating costs more than the arithmetic."""
    size = like.numel()
    if like.device.type != "cpu" or size > 2 * BLOCK:
        return torch.empty_like(like)
    key = f"{name}, {like.dtype}"
    kept: Tensor | None = getattr(_kept, key, None)
    if kept is None or len(kept) < size:
        kept = torch.empty(size, dtype=like.dtype)
        setattr(_kept, key, kept)
    return kept[:size].view(like.shape)


def _pair(theta: Tensor, target: Tensor, s: Tensor, first: int) -> _Pair:
    rows = len(s)
    largest = _numbers(torch.maximum(s.amax(dim=1), -s.amin(dim=1)))
    if (largest < -LOWEST).all():
        return _Pair(theta, target, target, s, largest, np.ones(rows, dtype=bool), np.zeros(rows, dtype=bool))
    for name, x in (("log_p_theta", theta), ("log_p_t", target)):
        refuse((x.isnan() | (x == math.inf)).any(dim=1), name, "holds NaN or +inf", first)
        refuse((x <= LOWEST).all(dim=1), name, "allows no token: every entry is -inf", first)
    allowed, also = theta > LOWEST, target > LOWEST
    inside, differ = allowed & also, (allowed != also).any(dim=1)
    base, s = torch.where(inside, target, -math.inf), torch.where(inside, s, 0.0)
    largest = _numbers(s.abs().amax(dim=1))
    return _Pair(theta, target, base, s, largest, inside.any(dim=1).cpu().numpy(), differ.cpu().numpy())


def _moments(base: Tensor, s: Tensor, a: Numbers, powers: int = 4) -> Numbers:
    """log Z, E[s], ..., E[s^powers] under q_a, (1 + powers, r), of one pass over the vocabulary."""
    at = torch.as_tensor(a, dtype=s.dtype, device=s.device).unsqueeze(1)
    # torch's exp2 is as exact as its exp, 4 times faster, and has no slow path where exp underflows
    room = _room("w", s)
    w = torch.addcmul(base, at, s, out=room).mul_(LOG2_E).exp2_()
    z = w.sum(dim=1)
    shift = torch.zeros_like(z)
    if not bool(((z > 1e-30) & (z < 1e30)).all()):
        w = torch.addcmul(base, at, s, out=room)
        shift = w.amax(dim=1).clamp_min(torch.finfo(s.dtype).min)
        w = w.sub_(shift.unsqueeze(1)).mul_(LOG2_E).exp2_()
        z = w.sum(dim=1)
    sums = [w.mul_(s).sum(dim=1) for _ in range(powers)]
    numbers = _numbers(torch.stack([z, *sums, shift]))
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers[1:-1] /= numbers[0]
        numbers[0] = np.log(numbers[0]) + numbers[-1]
    return numbers[:-1]


def _cumulants(moments: Numbers) -> Numbers:
    """log Z and its first four derivatives: the cumulants of s."""
    log_z, e1, e2, e3, e4 = moments
    square = e1 * e1
    with np.errstate(over="ignore", invalid="ignore"):
        k2 = np.maximum(e2 - square, 0.0)
        k3 = e3 - 3 * e1 * e2 + 2 * e1 * square
        k4 = e4 - 4 * e1 * e3 - 3 * e2 * e2 + 12 * square * e2 - 6 * square * square
    return np.stack([log_z, e1, k2, k3, k4])


def _some(pair: _Pair, rows: Indices) -> tuple[Tensor, Tensor]:
    """base and s of some rows, until the next call."""
    if len(rows) == len(pair.s):
        return pair.base, pair.s
    at, like = torch.as_tensor(rows, device=pair.s.device), pair.s[: len(rows)]
    base = torch.index_select(pair.base, 0, at, out=_room("some of base", like))
    return base, torch.index_select(pair.s, 0, at, out=_room("some of s", like))


def _write(pair: _Pair, solved: _Solved, log_q: Tensor) -> None:
    """log q of a block into its place."""
    alpha = torch.as_tensor(solved.alpha, dtype=log_q.dtype, device=log_q.device).unsqueeze(1)
    torch.addcmul(pair.base, alpha, pair.s, out=log_q)
    if solved.log_z is None:
        log_z = log_q.logsumexp(dim=1, keepdim=True)
    else:
        log_z = torch.as_tensor(solved.log_z, dtype=log_q.dtype, device=log_q.device).unsqueeze(1)
    log_q -= log_z
    apart = ~pair.common | (solved.whole & ((solved.alpha == 0) | (solved.alpha == 1)))
    if apart.any():
        at = torch.as_tensor(apart.nonzero()[0], device=log_q.device)
        log_q[at] = log_geometric_mean(pair.theta[at], pair.target[at], alpha[at, 0])[0]


# ---------------------------------------------------------------- methods with an equation


def _kl_newton(pair: _Pair, start: Numbers, tol: float, again: bool = True) -> _Solved:
    seen = np.zeros((5, len(start)))

    def condition(at: Indices, a: Numbers) -> Numbers:
        moments = _moments(*_some(pair, at), a)
        moments[:, ~pair.common[at]] = 0.0
        cumulants = seen[:, at] = _cumulants(moments)
        return cumulants[1:]

    root = find_root(condition, np.where(pair.common, start, 0.5), pair.largest, pair.masked, tol, _kind(pair.s))
    log_z = taylor(seen, root.d)
    # equal on their common tokens: every alpha is a root
    solved = _Solved(
        alpha=np.where((seen[1] == 0) & (seen[2] == 0), 0.5, root.alpha),
        residual=taylor(seen[1:], root.d),
        passes=root.passes,
        degenerate=(root.end & pair.masked) | ~pair.common,
        log_z=log_z,
    )
    # Where all but one token have probabilities below float32's range, E[s] is a plain 0 there. And with equal supports
    # there is a root, unless the sums miss 1 by as much as the two differ.
    sunk = (seen[2] < UNSEEN) & pair.common & (pair.largest > 0) & (pair.s.dtype == torch.float32)
    unsummed = root.end & ~pair.masked & ~sunk
    for rows, normalised in ((np.nonzero(sunk)[0], False), (np.nonzero(unsummed)[0], True)):
        if not again or not len(rows):
            continue
        better = _kl_newton(pair.double(rows, normalised), np.full(len(rows), 0.5), tol, again=not normalised)
        solved.alpha[rows], solved.degenerate[rows] = better.alpha, better.degenerate & pair.masked[rows]
        log_z[rows], solved.residual[rows] = _moments(*_some(pair, rows), better.alpha, 1)
        solved.passes[rows] += better.passes + 1
    return solved


def _kl_bisection(pair: _Pair, iterations: int) -> _Solved:
    rows = len(pair.s)
    low, high = np.zeros(rows), np.ones(rows)
    for _ in range(iterations):
        middle = (low + high) / 2
        value = _moments(pair.base, pair.s, middle, powers=1)[1]
        value = np.where(pair.common, value, 0.0)
        low, high = np.where(value > 0, low, middle), np.where(value < 0, high, middle)
    # an end of [0, 1] that the bracket still touches is the result where the root is not inside
    alpha = (low + high) / 2
    touches = pair.masked & (low < high) & ((low == 0) | (high == 1))
    edge = np.where(touches, np.where(low == 0, 0.0, 1.0), alpha)
    log_z, residual = _moments(pair.base, pair.s, edge, powers=1)
    end = touches & np.where(low == 0, residual > 0, residual < 0)
    if (touches & ~end).any():
        edge = np.where(end, edge, alpha)
        log_z, residual = _moments(pair.base, pair.s, edge, powers=1)
    residual, log_z = np.where(pair.common, residual, 0.0), np.where(pair.common, log_z, 0.0)
    return _Solved(edge, residual, np.full(rows, float(iterations)), end | ~pair.common, log_z)


def _ess_balance(pair: _Pair, start: Numbers, tol: float) -> _Solved:
    """log(ESS_theta / ESS_t) = log Z(-a) - log Z(2 - a), with Z continued beyond [0, 1]: it rises with a.

    In double precision: for close policies both terms are far below float32's rounding of Z = 1.
    """
    common, kind = pair.common, _kind(pair.s)
    pair = pair.double(np.arange(len(start)), normalised=True)
    seen = np.zeros((4, len(start)))

    def condition(at: Indices, a: Numbers) -> Numbers:
        base, s = _some(pair, at)
        below, above = _moments(base, s, -a), _moments(base, s, 2 - a)
        for moments in (below, above):
            moments[:, ~common[at]] = 0.0
        below, above = _cumulants(below), _cumulants(above)
        derivatives = np.stack([below[0] - above[0], above[1] - below[1], below[2] - above[2], above[3] - below[3]])
        seen[:, at] = derivatives
        return derivatives

    root = find_root(condition, np.where(common, start, 0.5), pair.largest, pair.masked, tol, np.float64)
    alpha = np.where((seen[0] == 0) & (seen[1] == 0), 0.5, root.alpha).astype(kind).astype(np.float64)
    residual = taylor(seen, alpha - (root.alpha - root.d))
    return _Solved(alpha, residual, 2 * root.passes, (root.end & pair.masked) | ~common)


# ---------------------------------------------------------------- methods without an equation


def _given(pair: _Pair, alpha: Numbers) -> _Solved:
    nothing = np.zeros(len(alpha))
    return _Solved(np.where(pair.common, alpha, 0.5), nothing, nothing, ~pair.common, whole=True)


def _entropy(pair: _Pair) -> Numbers:
    """H_theta / (H_theta + H_t); 0.5 where both are 0."""
    theta, target = (_numbers(torch.special.entr(x.double().exp()).sum(dim=1)) for x in (pair.theta, pair.target))
    total = theta + target
    return np.where(total > 0, theta / np.where(total > 0, total, 1.0), 0.5)


def _snr_max(pair: _Pair, ref: Tensor) -> _Solved:
    """argmax of |Phi1| / sqrt(Phi2) on a grid, then by golden section around its best point.

    Phi1 = sum (p_t - p_theta) w r, Phi2 = Var_theta[w r], w = p_theta / q_a, r = log p_t - log p_ref. Tokens that
    either excludes weigh nothing. Nothing to maximise (both 0 everywhere): 0.5, degenerate.
    """
    inside = pair.base > -math.inf
    reward = torch.where(inside, pair.target.double() - ref.double(), 0.0)
    theta, target = (torch.where(inside, x.double(), -math.inf) for x in (pair.theta, pair.target))
    base, s, change = pair.base.double(), pair.s.double(), target.exp() - theta.exp()
    evaluations = 0

    def height(a: Numbers) -> Numbers:
        nonlocal evaluations
        evaluations += 1
        at = torch.as_tensor(a, device=s.device).unsqueeze(1)
        log_z = torch.addcmul(base, at, s).logsumexp(dim=1, keepdim=True)
        log_w = (1 - at) * s + log_z  # p_theta / q
        signal = (change * log_w.exp() * reward).sum(dim=1)
        mean = ((theta + log_w).exp() * reward).sum(dim=1)
        variance = ((theta + 2 * log_w).exp() * reward**2).sum(dim=1) - mean**2
        # a variance below this is rounding
        known = variance > 1e-12 * mean**2
        return np.nan_to_num(_numbers(torch.where(known, signal**2 / variance, 0.0)), posinf=0.0)

    grid = np.linspace(0, 1, GRID)
    rows = len(reward)
    heights = np.stack([height(np.full(rows, a)) for a in grid])
    best = heights.argmax(axis=0)
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, GRID - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(GOLDEN):
        left, right = high - golden * (high - low), low + golden * (high - low)
        climb = height(left) < height(right)
        low, high = np.where(climb, left, low), np.where(climb, high, right)
    middle = (low + high) / 2
    # golden section never evaluates an end of [0, 1]; the grid does
    alpha = np.where(height(middle) >= heights.max(axis=0), middle, grid[best])
    flat = heights.max(axis=0) <= 0
    given = _given(pair, np.where(flat, 0.5, alpha))
    return replace(given, passes=np.full(rows, float(evaluations)), degenerate=given.degenerate | flat)


# ---------------------------------------------------------------- checks


def _check(
    theta: Tensor,
    target: Tensor,
    method: str,
    solver: str,
    iterations: int,
    value: float | None,
    initial: Tensor | float | None,
    ref: Tensor | None,
) -> tuple[Tensor, Tensor, Numbers, Tensor | None]:
    """Both as (rows, V), the start of each row, and the reference where it is used."""
    if method not in METHODS:
        raise ValueError(f"method={method!r}: must be one of {', '.join(METHODS)}")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r}: must be one of {', '.join(SOLVERS)}")
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: must be at least 1")
    if theta.shape != target.shape or theta.dtype != target.dtype or not theta.dim() or not theta.shape[-1]:
        shapes = f"{tuple(theta.shape)} {theta.dtype} and {tuple(target.shape)} {target.dtype}"
        raise ValueError(f"log_p_theta and log_p_t are {shapes}: they must have the same shape (..., V) and type")
    if theta.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"log-probabilities of type {theta.dtype}: must be float32 or float64; call .float() on them")
    if method != "fixed" and value is not None:
        raise ValueError(f"value={value} with method={method!r}: only method='fixed' takes a value; remove it")
    if method == "fixed" and not (value is not None and 0 <= value <= 1):
        raise ValueError(f"value={value} with method='fixed': must be a number in [0, 1], such as value=0.5")
    size, leading = theta.shape[-1], theta.shape[:-1]
    start = torch.as_tensor(0.5 if initial is None else initial).detach().double().cpu()
    if start.dim() and start.shape != leading:
        raise ValueError(f"initial has shape {tuple(start.shape)}: must be a number, or of shape {tuple(leading)}")
    start = start.expand(leading).reshape(-1)
    refuse(start.isnan(), "initial", "is NaN: give a number in [0, 1]")
    flat = theta.detach().reshape(-1, size), target.detach().reshape(-1, size), start.clamp(0, 1).numpy()
    if method != "snr_max":
        return *flat, None
    if ref is None or ref.shape != target.shape:
        raise ValueError("method='snr_max' needs log_p_ref, of the same shape as log_p_t")
    ref = ref.detach().reshape(-1, size)
    refuse(
        ((ref == -math.inf) & (flat[1] > -math.inf) | ref.isnan() | (ref == math.inf)).any(dim=1),
        "log_p_ref",
        "holds NaN or +inf, or excludes a token that log_p_t allows",
    )
    return *flat, ref
