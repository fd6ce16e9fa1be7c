"""Preference pairs and their loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(logp: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Direct preference optimisation (Rafailov et al. 2023): loss and margin of each pair, (B / 2,).

    Rows are chosen and rejected in turn, all (B, T): -log sigmoid(margin), margin = beta times the difference of their
    sums of logp - logp_ref. ValueError: an odd number of rows.
    """
    if len(logp) % 2:
        raise ValueError(f"{len(logp)} responses do not form pairs: a micro-batch of DPO must have an even number")
    gain = torch.where(mask.bool(), logp - logp_ref, 0.0).sum(dim=1)
    margin = beta * (gain[0::2] - gain[1::2])
    return -logsigmoid(margin), margin


def best_and_worst(rewards: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Rows of the best and worst of every `group` responses, in turn, (2 P,), and whether the two differ, (P,).

    rewards: (P * group,), responses to one prompt adjacent; of equal ones the first counts.
    """
    table = rewards.reshape(-1, group)
    best, worst = table.argmax(dim=1), table.argmin(dim=1)
    first = torch.arange(len(table), device=rewards.device) * group
    return torch.stack([first + best, first + worst], dim=1).flatten(), table.amax(dim=1) > table.amin(dim=1)
