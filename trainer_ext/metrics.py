"""The analysis metrics: computed right after the advantages, on the whole batch, without gradient.

Notation: p = exp(logp) of the sampled token, A advantages, M mask, all (B, T); mean_M over the valid tokens.
"""

from __future__ import annotations

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
    rewards = (token_level_rewards * mask).sum(dim=-1).double()
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
        points = torch.tensor([0.5, 0.9], dtype=torch.float64, device=lp.device)
        for name, x in (("entropy", surprise), ("covariance", products)):
            p50, p90 = (
                torch.quantile(x, points)
                if x.numel() <= 2**24
                else (x.median(), x.kthvalue(int(0.9 * x.numel())).values)
            )
            values |= {f"analysis/{name}_p50": p50, f"analysis/{name}_p90": p90}
    return {key: float(value) for key, value in values.items()}


def histograms(
    logp: Tensor, advantages: Tensor, mask: Tensor, bins: int = 64
) -> dict[str, tuple[list[float], list[int]]]:
    """Histograms of -p logp and of the covariance's products: name -> (bins + 1 edges, bins counts)."""
    valid = mask.bool()
    lp, adv = logp.detach()[valid].float().cpu(), advantages.detach()[valid].float().cpu()
    result = {}
    for name, x in (("entropy", -lp.exp() * lp), ("covariance", (adv - adv.mean()) * (lp - lp.mean()))):
        counts, edges = torch.histogram(x, bins)
        result[name] = (edges.tolist(), [int(c) for c in counts])
    return result
