"""Importance ratios: smoothing along a response, and one ratio for each response.

All take tensors (B, T), any float type and device, and a mask with holes and empty rows; all are differentiable.
Half precision is computed in single. What stands where the mask is false, NaN included, has no effect elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer_ext import registry

#: Values whose means are reported, (B, T) over tokens or (B,) over responses, by the name of the metric.
Values = dict[str, Tensor]
#: Endings of the two moments that are reported of a variance. Moments add up over micro-batches, variances do not.
FIRST, SECOND = "@1", "@2"


def _moments(key: str, values: Tensor) -> Values:
    distance = values.detach().double() - 1  # ratios are near 1: the square of the distance keeps its digits
    return {key + FIRST: distance, key + SECOND: distance**2}


def _ema_metrics(ratio: Tensor, smooth: Tensor, beta: float) -> Values:
    return _moments("ema/raw_weights_variance", ratio) | _moments("ema/smoothed_weights_variance", smooth)


@registry.smoothing("ema", metrics=_ema_metrics, prefix="ema_")
def ema(ratio: Tensor, mask: Tensor, beta: float = 0.9) -> Tensor:
    """Exponential moving average along the valid tokens: w'_1 = w_1, w'_t = beta w_t + (1 - beta) w'_{t-1}.

    Returns (B, T); where the mask is false the ratio stays as it is. beta = 1 is the identity. The recurrence is summed
    by doubling (Hillis and Steele 1986): after k passes it reaches back 2^k tokens, and it stops once the weight of
    what lies further back underflows. ValueError: beta is not in (0, 1].
    """
    if not 0 < beta <= 1:
        raise ValueError(f"beta={beta}: the weight of the newest ratio must be above 0 and at most 1")
    valid, kind = mask.bool(), _precise(ratio)
    # Valid tokens are packed to the left; all others go to the last column.
    position = torch.where(valid, valid.cumsum(dim=1) - 1, ratio.shape[1])
    packed = kind.new_zeros(len(ratio), ratio.shape[1] + 1).scatter(1, position, kind)
    share = torch.full_like(packed[:1], beta)
    share[:, 0] = 1.0
    total, reach, decay = packed * share, 1, 1 - beta
    while reach < ratio.shape[1] and decay > torch.finfo(kind.dtype).tiny:
        total = total + decay * pad(total[:, :-reach], (reach, 0))
        reach, decay = 2 * reach, decay * decay
    return torch.where(valid, total.gather(1, position).to(ratio.dtype), ratio)


def sequence_arithmetic(ratio: Tensor, mask: Tensor) -> Tensor:
    """AMIC: r_i = mean of the valid ratios of row i, (B, T), the same along a row; 1 in an empty row.

    Never below `sequence_geometric` of the same ratios (inequality of the arithmetic and geometric mean).
    """
    # the mean of ratio - 1: an empty row gives 1, and ratios near 1 keep their digits
    return _row_mean(_precise(ratio) - 1, mask).add(1).to(ratio.dtype).expand_as(ratio)


def sequence_geometric(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """GSPO: r_i = exp(mean of the valid log-ratios of row i), (B, T), the same along a row; 1 in an empty row.

    Zheng et al. 2025, "Group Sequence Policy Optimization".
    """
    return _row_mean(_precise(log_ratio), mask).exp().to(log_ratio.dtype).expand_as(log_ratio)


# A response's ratio stands at each of its tokens, but each token's gradient is its own, as in GSPO-token (Zheng et al.
# 2025, section 4.3). With one advantage for each response, the gradient is that of the plain mean; with one for each
# token (credit, dual control) the plain mean would average the advantages away.


registry.smoothing("none")(lambda ratio, mask: ratio)
registry.ratio("token")(lambda ratio, log_ratio, mask: (ratio, {}))


@registry.ratio("sequence_geometric")
def _geometric(ratio: Tensor, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Values]:
    row = sequence_geometric(log_ratio, mask).detach()
    return row * (log_ratio - log_ratio.detach()).exp(), {}


@registry.ratio("sequence_arithmetic")
def _arithmetic(ratio: Tensor, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Values]:
    row = sequence_arithmetic(ratio, mask).detach()
    metrics = _moments("amic/sequence_weights_variance", row[:, 0]) | {"amic/avg_sequence_length": mask.sum(dim=1)}
    return row + (ratio - ratio.detach()), metrics


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's valid tokens, (B, 1); 0 in an empty row."""
    valid = mask.bool()
    return torch.where(valid, values, 0.0).sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True).clamp_min(1)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
