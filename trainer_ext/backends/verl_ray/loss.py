"""A method's loss on verl's packed batches: the same function as in every backend, on the responses' part of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.utils.padding import no_padding_2_padding

from trainer_ext.methods.losses import Loss

#: The columns that losses read.
_COLUMNS = (
    *("response_mask", "old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob"),
    *("pair_weight", "values", "returns"),
)
#: Reported values that agg_loss has multiplied by the number of ranks already.
_LOSSES = ("actor/pg_loss", "actor/sft_loss", "critic/vf_loss")


def on_packed(
    loss: Loss, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """`loss`, under verl's signature. Its metrics are shares of the mini-batch, of which verl takes the ranks' mean."""
    padded = {name: no_padding_2_padding(x, data) for name, x in model_output.items()}
    own = data.select(*[name for name in _COLUMNS if name in data]).to_padded_tensor()
    own["response_mask"] = own["response_mask"].bool()
    for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
        tu.assign_non_tensor_data(own, name, tu.get_non_tensor_data(data, name, None))
    value, metrics = loss(padded, own, dp_group)
    ranks = tu.get_non_tensor_data(data, "dp_size", 1)
    for name, metric in metrics.items():
        if isinstance(metric, Metric) and name not in _LOSSES:
            metric.values = [ranks * share for share in metric.values]
    return value, metrics
