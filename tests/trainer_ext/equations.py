"""What the methods compute, as loops over rows and tokens in plain Python: the other side of the tests.

Written from the formulas of docs/methods.md and docs/metrics.md with nothing but floats and lists.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

from tests.trainer_ext.batches import Batch, Rows


def each(function: Callable[..., float], *values: Rows) -> Rows:
    """A function of one token's numbers, over all tokens."""
    return [[function(*numbers) for numbers in zip(*rows, strict=True)] for rows in zip(*values, strict=True)]


def chosen_of(values: Rows, valid: list[list[bool]]) -> list[float]:
    """The valid tokens' values."""
    return [x for row, marks in zip(values, valid, strict=True) for x, m in zip(row, marks, strict=True) if m]


def mean(values: list[float]) -> float:
    return math.fsum(values) / max(len(values), 1)


def variance(values: list[float]) -> float:
    return mean([(x - mean(values)) ** 2 for x in values])


# --- ratio


def ema(row: list[float], marks: list[bool], beta: float) -> list[float]:
    newest, found = None, []
    for w, m in zip(row, marks, strict=True):
        if m:
            newest = w if newest is None else beta * w + (1 - beta) * newest
        found.append(newest if m and newest is not None else w)
    return found


def sequence_arithmetic(row: list[float], marks: list[bool]) -> list[float]:
    kept = [w for w, m in zip(row, marks, strict=True) if m]
    return [sum(kept) / len(kept) if kept else 1.0] * len(row)


def sequence_geometric(row: list[float], marks: list[bool]) -> list[float]:
    kept = [x for x, m in zip(row, marks, strict=True) if m]
    return [math.exp(sum(kept) / len(kept)) if kept else 1.0] * len(row)


def by_row(function: Callable[..., list[float]], values: Rows, valid: list[list[bool]], *more: Any) -> Rows:
    return [function(row, marks, *more) for row, marks in zip(values, valid, strict=True)]


def importance(b: Batch, smoothing: float | None, choice: str) -> tuple[Rows, dict[str, float]]:
    """The ratio after smoothing and `choice`, and what the two report."""
    raw, report = each(math.exp, b.floats.log_ratio), {}
    seen = raw
    if smoothing is not None:
        seen = by_row(ema, raw, b.valid, smoothing)
        before, after = (variance(chosen_of(x, b.valid)) for x in (raw, seen))
        report |= {"ema/raw_weights_variance": before, "ema/smoothed_weights_variance": after}
        if before > 1e-10:
            report["ema/variance_reduction_ratio"] = 1 - after / before
    if choice == "sequence_arithmetic":
        seen = by_row(sequence_arithmetic, seen, b.valid)
        report["amic/sequence_weights_variance"] = variance([row[0] for row in seen])
        report["amic/avg_sequence_length"] = mean([float(sum(marks)) for marks in b.valid])
    elif choice == "sequence_geometric":
        seen = by_row(sequence_geometric, each(math.log, seen), b.valid)
    return seen, report


# --- credit


def temporal_decay(marks: list[bool], gamma: float, schedule: str, normalize: str) -> list[float]:
    length, t, weights = sum(marks), 0, []
    for m in marks:
        t += m
        if not m:
            weights.append(0.0)
        elif schedule == "exponential":
            weights.append(gamma ** (t - 1))
        else:
            whole = math.log(1 + (length - 1) / 10)
            weights.append(math.exp(-2 * math.log(1 + (t - 1) / 10) / whole) if whole else 1.0)
    total = sum(weights)
    scale = {"mean": length / total, "sum": 1 / total, "none": 1.0}[normalize] if total else 0.0
    return [scale * w for w in weights]


def score_norm(logp: float, logits: list[float]) -> float:
    """|| onehot(y) - pi ||_2, where y is the word whose log-probability is logp."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    pi = [w / sum(weights) for w in weights]
    y = min(range(len(pi)), key=lambda v: abs(pi[v] - math.exp(logp)))
    return math.sqrt(sum(((v == y) - pi[v]) ** 2 for v in range(len(pi))))


def gradient_adaptive(norms: list[float], marks: list[bool], tau: float) -> list[float]:
    kept = [g for g, m in zip(norms, marks, strict=True) if m]
    top = max(kept, default=0.0)
    total = sum(math.exp((g - top) / tau) for g in kept)
    return [len(kept) * math.exp((g - top) / tau) / total if m else 0.0 for g, m in zip(norms, marks, strict=True)]


def credit_product(b: Batch, chosen: dict[str, dict[str, Any]]) -> tuple[Rows, dict[str, float]]:
    weights, report = each(lambda _: 1.0, b.floats.logp), {}
    if not any(map(any, b.valid)):
        return each(lambda _: 0.0 if chosen else 1.0, b.floats.logp), {}  # no token: nothing to report
    if "gradient_adaptive" in chosen:
        exact = chosen["gradient_adaptive"]["norm"] == "exact"
        norms = each(score_norm, b.floats.logp, b.floats.logits) if exact else each(abs, b.floats.logp)
        factor = by_row(gradient_adaptive, norms, b.valid, chosen["gradient_adaptive"]["tau"])
        weights = each(lambda w, f: w * f, weights, factor)
        report["gradient_adaptive/avg_gradient_norm"] = mean(chosen_of(norms, b.valid))
        report["gradient_adaptive/weight_variance"] = variance(chosen_of(factor, b.valid))
    if "temporal_decay" in chosen:
        factor = [temporal_decay(marks, **chosen["temporal_decay"]) for marks in b.valid]
        weights = each(lambda w, f: w * f, weights, factor)
        kept = [[w for w, m in zip(row, marks, strict=True) if m] for row, marks in zip(factor, b.valid, strict=True)]
        kept = [row for row in kept if row]
        report["temporal_decay/weight_sum"] = mean([sum(row) for row in kept])
        report["temporal_decay/first_weight"] = mean([row[0] for row in kept])
        report["temporal_decay/last_weight"] = mean([row[-1] for row in kept])
    return weights, report


# --- trust region


def clip(r: float, a: float, low: float = 0.2, high: float = 0.2, dual: float = 3.0) -> float:
    loss = -min(r * a, min(max(r, 1 - low), 1 + high) * a)
    return min(loss, -dual * a) if a < 0 else loss


def asymmetric_clip(r: float, a: float, positive: float = 0.3, negative: float = 0.1) -> float:
    width = positive if a > 0 else negative
    return -min(r * a, min(max(r, 1 - width), 1 + width) * a)


def trust(r: float, sigma: float = 0.2) -> float:
    return math.exp(-((r - 1) ** 2) / (2 * sigma**2))


def gaussian(r: float, a: float, sigma: float = 0.2) -> float:
    return -trust(r, sigma) * r * a


def region_report(choice: str, seen: list[float], advantages: list[float]) -> dict[str, float]:
    pairs = list(zip(seen, advantages, strict=True))
    if choice == "gaussian":
        return {
            "ptrw/trust_weights_mean": mean([trust(r) for r in seen]),
            "ptrw/loss_mean": mean([gaussian(r, a) for r, a in pairs]),
        }
    if choice == "clip":
        return {
            "actor/clipfrac_upper": mean([float(a > 1e-8 and r > 1.2) for r, a in pairs]),
            "actor/clipfrac_lower": mean([float(a < -1e-8 and (r < 0.8 or r > 3)) for r, a in pairs]),
        }
    return {
        "actor/clipfrac_upper": mean([float(a > 1e-8 and r > 1.3) for r, a in pairs]),
        "actor/clipfrac_lower": mean([float(a < -1e-8 and r < 0.9) for r, a in pairs]),
        "asymmetric/pos_advantage_ratio": mean([float(a > 1e-8) for a in advantages]),
        "asymmetric/neg_advantage_ratio": mean([float(a < -1e-8) for a in advantages]),
    }


# --- advantage


def grpo(b: Batch, normalize: bool = True) -> Rows:
    totals = returns(b)
    found = []
    for total, name in zip(totals, b.group.tolist(), strict=True):
        peers = [x for x, other in zip(totals, b.group.tolist(), strict=True) if other == name]
        centred = total - statistics.fmean(peers) if len(peers) > 1 else 0.0
        found.append(centred / (statistics.stdev(peers) + 1e-6) if normalize and len(peers) > 1 else centred)
    return [[a if m else 0.0 for m in marks] for a, marks in zip(found, b.valid, strict=True)]


def raw(b: Batch) -> Rows:
    return [[r if m else 0.0 for m in marks] for r, marks in zip(returns(b), b.valid, strict=True)]


def returns(b: Batch) -> list[float]:
    """R_i, the sum of the rewards of a response's tokens."""
    return [
        sum(r for r, m in zip(row, marks, strict=True) if m)
        for row, marks in zip(b.floats.rewards, b.valid, strict=True)
    ]


# --- control


def token_weight(logp: float, a: float, reference: float, weight: str) -> float:
    p = math.exp(logp)
    return p * (1 - p) * abs(a) * (abs(logp - reference) if weight == "kl_gated" else 1)


def dual_advantage(
    logp: float, a: float, reference: float, weight: str, gamma: float, lam: float, beta: float
) -> float:
    u = token_weight(logp, a, reference, weight)
    return max(a, 0) + gamma * min(a, 0) - lam * u * (-logp - 1) - beta * (logp - reference)


def dual_statistics(b: Batch, weight: str) -> dict[str, float]:
    f = b.floats
    entropy = each(
        lambda lp, a, ref: token_weight(lp, a, ref, weight) * -math.exp(lp) * lp, f.logp, f.advantages, f.reference
    )
    kl = each(lambda lp, ref: math.exp(ref - lp) - (ref - lp) - 1, f.logp, f.reference)
    gap = each(lambda lp, ref: abs(lp - ref), f.logp, f.reference)
    totals = returns(b)
    return {
        "weighted_entropy": mean(chosen_of(entropy, b.valid)),
        "kl": mean(chosen_of(kl, b.valid)),
        "reference_gap": mean(chosen_of(gap, b.valid)),
        "reward_mean": mean(totals),
        "reward_std": math.sqrt(variance(totals)),
    }


# --- metrics


def quantile(values: list[float], share: float) -> float:
    """With linear interpolation between the two nearest values."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = ordered[math.floor(place)]
    return low + (place - math.floor(place)) * (ordered[math.ceil(place)] - low)


def analysis(b: Batch) -> dict[str, float]:
    logp, a = chosen_of(b.floats.logp, b.valid), chosen_of(b.floats.advantages, b.valid)
    surprise = [-math.exp(x) * x for x in logp]
    products = [(y - mean(a)) * (x - mean(logp)) for x, y in zip(logp, a, strict=True)]
    weighted = [math.exp(x) * (1 - math.exp(x)) * abs(y) * h for x, y, h in zip(logp, a, surprise, strict=True)]
    totals = returns(b)
    found = {
        "entropy_per_token_mean": mean(surprise),
        "covariance_mean": mean(products),
        "correlation": mean(products) / (math.sqrt(variance(a)) * math.sqrt(variance(logp)) + 1e-8),
        "wH_sum": math.fsum(weighted),
        "wH_per_token": math.fsum(weighted) / max(len(logp), 1),
        "reward_sum_mean": mean(totals),
        "reward_sum_std": math.sqrt(variance(totals)),
    }
    if logp:
        found |= {"entropy_p50": quantile(surprise, 0.5), "entropy_p90": quantile(surprise, 0.9)}
        found |= {"covariance_p50": quantile(products, 0.5), "covariance_p90": quantile(products, 0.9)}
    return {f"analysis/{name}": value for name, value in found.items()}


# --- the whole loss

REGIONS: dict[str, tuple[Callable[..., float], dict[str, Any]]] = {
    "clip": (clip, {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}),
    "asymmetric_clip": (asymmetric_clip, {"clip_ratio_pos": 0.3, "clip_ratio_neg": 0.1}),
    "gaussian": (gaussian, {"sigma": 0.2, "differentiable": False}),
}
RATIOS = ("token", "sequence_arithmetic", "sequence_geometric")
SMOOTHINGS = (None, 0.7)
COMBINATIONS = list(product(SMOOTHINGS, RATIOS, REGIONS))


def policy_loss(b: Batch, smoothing: float | None, choice: str, region: str) -> dict[str, float]:
    seen, report = importance(b, smoothing, choice)
    kept, a = chosen_of(seen, b.valid), chosen_of(b.floats.advantages, b.valid)
    losses = [REGIONS[region][0](r, y) for r, y in zip(kept, a, strict=True)]
    kl = mean([-x for x in chosen_of(b.floats.log_ratio, b.valid)])
    return {"loss": mean(losses), "actor/ppo_kl": kl, **report, **region_report(region, kept, a)}
