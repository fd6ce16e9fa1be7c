"""How a rank gives its weights to the rollout server beside it.

On a CPU they pass through Ray's store of objects, in shared memory. On a GPU, which both processes use, the server gets
handles of the rank's memory (CUDA IPC) and copies from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

#: Bytes that are handed over at a time; a larger tensor alone.
PART = 2**26


def parts(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Copies of the weights in this type, in parts of about PART bytes. The copies of one part exist at a time."""
    part: dict[str, Tensor] = {}
    held = 0
    for name, tensor in weights:
        size = tensor.numel() * dtype.itemsize
        if part and held + size > PART:
            yield part
            part, held = {}, 0
        part[name] = tensor.detach().to(dtype, copy=True).contiguous()
        held += size
    yield part


def sent(part: Mapping[str, Tensor]) -> dict[str, Any]:
    """What another process gets of a part. The part must exist until `received` there has been read."""
    if any(tensor.is_cuda for tensor in part.values()):
        torch.cuda.synchronize()  # what computes the copies
        return {name: reduce_tensor(tensor) for name, tensor in part.items()}
    return dict(part)


def received(part: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a part that another process has sent; those of a GPU are in its memory."""
    for name, one in part.items():
        if isinstance(one, Tensor):
            yield name, one
        else:
            rebuild, given = one
            yield name, rebuild(*given)
