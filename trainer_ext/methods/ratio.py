"""Importance ratios: smoothing along a response, and one ratio a response.

All take tensors (B, T), any float type and device, and a mask with holes and empty rows; all are differentiable.
Half precision is computed in single. What stands where the mask is false, NaN included, reaches no other place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def ema(ratio: Tensor, mask: Tensor, beta: float = 0.9) -> Tensor:
    """Exponential moving average along the valid tokens: w'_1 = w_1, w'_t = beta w_t + (1 - beta) w'_{t-1}.

    Returns (B, T); where the mask is false the ratio stays as it is. beta = 1 is the identity. The recurrence is summed
    by doubling (Hillis and Steele 1986): after k passes it reaches back 2^k tokens, and it stops once the weight of
    what lies further back underflows. ValueError: beta is not in (0, 1].
    """
    if not 0 < beta <= 1:
        raise ValueError(f"beta={beta}: the weight of the newest ratio is above 0 and at most 1")
    valid, kind = mask.bool(), _precise(ratio)
    # Valid tokens side by side at the left; the last column takes the others.
    place = torch.where(valid, valid.cumsum(dim=1) - 1, ratio.shape[1])
    packed = kind.new_zeros(len(ratio), ratio.shape[1] + 1).scatter(1, place, kind)
    share = torch.full_like(packed[:1], beta)
    share[:, 0] = 1.0
    total, reach, decay = packed * share, 1, 1 - beta
    while reach < ratio.shape[1] and decay > torch.finfo(kind.dtype).tiny:
        total = total + decay * pad(total[:, :-reach], (reach, 0))
        reach, decay = 2 * reach, decay * decay
    return torch.where(valid, total.gather(1, place).to(ratio.dtype), ratio)


def sequence_arithmetic(ratio: Tensor, mask: Tensor) -> Tensor:
    """AMIC: r_i = mean of the valid ratios of row i, (B, T), the same along a row; 1 in an empty row.

    Never below `sequence_geometric` of the same ratios (inequality of the arithmetic and geometric mean).
    """
    # the mean of what each exceeds 1 by, so that an empty row gives 1 and ratios near 1 keep their digits
    return _row_mean(_precise(ratio) - 1, mask).add(1).to(ratio.dtype).expand_as(ratio)


def sequence_geometric(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """GSPO: r_i = exp(mean of the valid log-ratios of row i), (B, T), the same along a row; 1 in an empty row.

    Zheng et al. 2025, "Group Sequence Policy Optimization".
    """
    return _row_mean(_precise(log_ratio), mask).exp().to(log_ratio.dtype).expand_as(log_ratio)


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's valid tokens, (B, 1); 0 in an empty row."""
    valid = mask.bool()
    return torch.where(valid, values, 0.0).sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True).clamp_min(1)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
