"""The analysis metrics: computed right after the advantages, on the whole batch, without gradient.

Notation: p = exp(logp) of the sampled token, A advantages, M mask, all (B, T); mean_M over the valid tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def analysis_metrics(logp: Tensor, advantages: Tensor, token_level_rewards: Tensor, mask: Tensor) -> dict[str, float]:
    """The `analysis/*` metrics of one global batch (docs/metrics.md).

    All tensors are (B, T), any float type and device; the mask may have holes and empty rows. With no valid token the
    means are 0 and the quantiles are left out.
    """
    valid = mask.bool()
    lp, adv = logp.detach()[valid].double(), advantages.detach()[valid].double()
    count = max(lp.numel(), 1)
    p = lp.exp()
    surprise = -p * lp
    d_adv, d_lp = adv - adv.sum() / count, lp - lp.sum() / count
    products = d_adv * d_lp
    covariance = products.sum() / count
    weighted = p * (1 - p) * adv.abs() * surprise
    rewards = torch.where(valid, token_level_rewards.detach(), 0.0).double().sum(dim=-1)
    spread = ((d_adv**2).sum() / count).sqrt() * ((d_lp**2).sum() / count).sqrt()
    values = {
        "analysis/entropy_per_token_mean": surprise.sum() / count,
        "analysis/covariance_mean": covariance,
        "analysis/correlation": covariance / (spread + 1e-8),
        "analysis/wH_sum": weighted.sum(),
        "analysis/wH_per_token": weighted.sum() / count,
        "analysis/reward_sum_mean": rewards.mean(),
        "analysis/reward_sum_std": rewards.std(unbiased=False),
    }
    if lp.numel():
        for name, x in (("entropy", surprise), ("covariance", products)):
            ordered = x.sort().values
            values |= {f"analysis/{name}_p{share}": _quantile(ordered, share / 100) for share in (50, 90)}
    # one transfer from the device
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """A quantile of sorted values with linear interpolation; torch.quantile takes at most 16 million values."""
    position = share * (len(ordered) - 1)
    low = int(position)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], position - low)


def explained_variance(returns: Tensor, values: Tensor, mask: Tensor) -> dict[str, float]:
    """1 - Var(returns - values) / Var(returns) of a critic over the valid tokens; empty if all returns are equal,
    but for the rounding of advantage + value: less than 1e-5 of their size."""
    error, valid = returns - values, mask.bool()
    spread = float(returns[valid].double().var(unbiased=False))
    if not spread > 1e-10 * float((returns[valid].double() ** 2 + values[valid].double() ** 2).mean()):
        return {}
    return {"critic/explained_variance": 1 - float(error[valid].double().var(unbiased=False)) / spread}


def probability_differences(old: Tensor, server: Tensor, mask: Tensor) -> dict[str, float]:
    """How far apart the probabilities of the drawn tokens are.

    old, server: their log-probabilities (B, T), of the training and of the server; mask (B, T): of the valid tokens.
    """
    valid = mask.bool()
    apart = (old[valid].double().exp() - server[valid].double().exp()).abs()
    return {"rollout/probs_diff_max": float(apart.max()), "rollout/probs_diff_mean": float(apart.mean())}


def histograms(
    logp: Tensor, advantages: Tensor, mask: Tensor, positions: Mapping[str, Tensor] | None = None, bins: int = 64
) -> dict[str, tuple[list[float], list[int]]]:
    """Histograms of -p logp and of the covariance's products: name -> (bins + 1 edges, bins counts).

    positions: more values by name, (positions,) each. The histogram of `alpha` is over [0, 1], and that of `ess_ratio`
    over [0, 3], with larger ratios in its last bin.
    """
    valid = mask.bool()
    lp, adv = logp.detach()[valid].double().cpu(), advantages.detach()[valid].double().cpu()
    values = {"entropy": -lp.exp() * lp, "covariance": (adv - adv.mean()) * (lp - lp.mean())}
    values |= {name: x.double().cpu() for name, x in (positions or {}).items()}
    result = {}
    for name, x in values.items():
        between = {"alpha": (0.0, 1.0), "ess_ratio": (0.0, 3.0)}.get(name)
        counts, edges = torch.histogram(x if between is None else x.clamp(*between), bins, range=between)
        result[name] = (edges.tolist(), [int(c) for c in counts])
    return result
