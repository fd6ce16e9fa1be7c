"""Attention over packed sequences, which ranks may share (Ulysses), on every device and in every precision.

verl's own needs the package flash-attn, and its kernels compute in half precision on GPUs alone. It computes what
torch's attention does; models that need more are trained on padded batches.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from verl.utils.ulysses import (
    gather_heads_scatter_seq,
    gather_seq_scatter_heads,
    get_ulysses_sequence_parallel_group,
    get_ulysses_sequence_parallel_world_size,
)

from trainer_ext.backends.in_process.engine import model_overrides
from trainer_ext.fits.architectures import SDPA

#: The name in transformers, for attn_implementation.
PACKED = "rlsweep_packed"


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **more: Any
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of one packed row, as transformers calls it.

    query: (1, heads, N, D), key and value: (1, fewer heads, N, D), of this rank's part of the row; more: position_ids
    (1, N), which begin anew with each sequence. Returns (1, N, heads, D). mask: None, for positions say all.
    ValueError: the model's attention needs more than torch's computes.
    """
    if needed := [name for name in ("softcap", "s_aux") if more.get(name) is not None]:
        raise ValueError(f"attention over packed sequences does not compute {', '.join(needed)}")
    ranks, positions = get_ulysses_sequence_parallel_world_size(), more["position_ids"]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # (1, N, heads, D)
    if ranks > 1:
        # as many key heads as ranks at least; all of the row and a part of the heads on each rank, then back
        again = max(ranks // key.shape[2], 1)
        key, value = (x.repeat_interleave(again, dim=2) for x in (key, value))
        query, key, value = (gather_seq_scatter_heads(x, seq_dim=1, head_dim=2) for x in (query, key, value))
        parts = [torch.empty_like(positions) for _ in range(ranks)]
        dist.all_gather(parts, positions.contiguous(), group=get_ulysses_sequence_parallel_group())
        positions = torch.cat(parts, dim=1)
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    lengths = [last - first for first, last in zip(starts, [*starts[1:], positions.shape[1]], strict=True)]
    if (window := more.get("sliding_window")) is not None and max(lengths) > window:
        raise ValueError(f"attention over packed sequences has no window ({window} tokens), and one has {max(lengths)}")
    pieces = zip(*(x.split(lengths, dim=1) for x in (query, key, value)), strict=True)
    parts = [
        functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in piece), is_causal=True, scale=scaling, enable_gqa=True
        ).transpose(1, 2)
        for piece in pieces
    ]
    output = torch.cat(parts, dim=1)
    if ranks > 1:
        output = gather_heads_scatter_seq(output, seq_dim=1, head_dim=2)
    return output, None


AttentionInterface.register(PACKED, packed_attention)


def overrides(path: str, trust_remote_code: bool, packed: str | None) -> dict[str, Any]:
    """engine.model_overrides of a model. packed: the attention that reads its packed sequences, None: they are padded.

    ValueError: the model's attention needs more than torch's computes, and its sequences are packed.
    """
    chosen = model_overrides(path, trust_remote_code)
    if packed is None:
        return chosen
    if chosen["attn_implementation"] != SDPA:
        raise ValueError(
            f"model.parallel.sequence: sequences of the model {path} are packed, and its attention needs more than "
            "torch's computes. Fix: set model.parallel.sequence=1"
        )
    return {**chosen, "attn_implementation": packed}
