"""DPO's pairs as rows of their own in the queue, so that the two responses of a pair are beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

_PARTITION = "pairs"


def put(step: int, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> KVBatchMeta:
    """Rows of prompt and answer, as verl's agent loops write them; `clear` removes them."""
    first, second = ([torch.tensor(list(row)) for row in rows] for rows in (prompts, answers))
    both = [torch.cat(row) for row in zip(first, second, strict=True)]
    mask = _nested([torch.ones_like(row) for row in second])
    columns = {
        "prompts": _nested(first),
        "responses": _nested(second),
        "input_ids": _nested(both),
        "position_ids": _nested([torch.arange(len(row)) for row in both]),
        "response_mask": mask,
        "loss_mask": mask,
    }
    keys = [f"pair-{step:08d}-{row:06d}" for row in range(len(both))]
    tags = [{"seq_len": len(row), "response_len": len(own)} for row, own in zip(both, second, strict=True)]
    fields = TensorDict(columns, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=_PARTITION, fields=fields, tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id=_PARTITION)  # of all columns, also of later ones


def of_rows(step: int, batch: KVBatchMeta, keys: Sequence[str]) -> KVBatchMeta:
    """`put` of the responses in a batch that have these keys, of which some may be the same."""
    names = sorted(set(keys))
    fields = ["prompts", "responses"]
    data = tq.kv_batch_get(keys=names, partition_id=batch.partition_id, select_fields=fields)
    rows = {name: [data[field][place].tolist() for field in fields] for place, name in enumerate(names)}
    return put(step, [rows[key][0] for key in keys], [rows[key][1] for key in keys])


def clear(pairs: KVBatchMeta) -> None:
    """Remove them from the queue."""
    tq.kv_clear(keys=pairs.keys, partition_id=pairs.partition_id)


def _nested(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
