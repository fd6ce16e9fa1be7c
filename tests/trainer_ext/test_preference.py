"""Preference pairs and DPO's loss against a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from trainer_ext.methods import losses


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 4), st.floats(0.01, 2))
def test_dpo_equals_a_loop_over_pairs(seed, pairs, beta):
    generator = torch.Generator().manual_seed(seed)
    logp, ref = (-torch.rand(2 * pairs, 5, generator=generator, dtype=torch.float64) * 4 for _ in range(2))
    mask = torch.rand(2 * pairs, 5, generator=generator) < 0.7
    loss, margin = losses.pair_losses(logp.masked_fill(~mask, math.nan), ref, mask, beta)
    for pair in range(pairs):
        gain = [sum(float(logp[i, t] - ref[i, t]) for t in range(5) if mask[i, t]) for i in (2 * pair, 2 * pair + 1)]
        expected = beta * (gain[0] - gain[1])
        assert float(margin[pair]) == pytest.approx(expected, abs=1e-9)
        assert float(loss[pair]) == pytest.approx(math.log(1 + math.exp(-expected)), abs=1e-9)


def test_rows_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="3 responses do not form pairs"):
        losses.pair_losses(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2), beta=0.1)


def test_best_and_worst_of_each_group():
    rows, differ = losses.best_and_worst(torch.tensor([0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 0.2, 0.0]), 3)
    assert rows.tolist() == [1, 0, 3, 3, 6, 8]
    assert differ.tolist() == [True, False, True]


def test_the_mean_of_the_ranks_losses_is_that_of_the_whole_mini_batch():
    """FSDP takes the mean of the ranks' gradients, whatever pairs a rank has."""
    generator = torch.Generator().manual_seed(0)
    logp, ref = (-torch.rand(8, 5, generator=generator) for _ in range(2))
    weight = torch.tensor([0.0, 0.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0])
    mask = torch.ones(8, 5, dtype=torch.bool)

    def loss(rows: slice, ranks: int) -> float:
        columns = {"ref_log_prob": ref[rows], "response_mask": mask[rows], "pair_weight": weight[rows]}
        data = TensorDict(columns, batch_size=len(ref[rows]))
        tu.assign_non_tensor(data, dp_size=ranks, global_batch_size=8)
        return float(losses.dpo(0.5, {"log_probs": logp[rows]}, data)[0])

    assert (loss(slice(0, 4), 2) + loss(slice(4, 8), 2)) / 2 == pytest.approx(loss(slice(0, 8), 1), rel=1e-6)


@pytest.mark.parametrize(("apart", "ranked"), [(1e-6, 0.0), (-1e-6, 0.0), (0.1, 1.0)])
def test_a_pair_is_not_ranked_while_policy_and_reference_differ_by_rounding(apart: float, ranked: float) -> None:
    """The sign of rounding depends on the order of sums, and so on the backend."""
    ref = -torch.ones(2, 3)
    data = TensorDict({"ref_log_prob": ref, "response_mask": ref < 0, "pair_weight": torch.ones(2)}, batch_size=2)
    logp = ref + torch.tensor([[apart], [0.0]])
    assert losses.dpo(0.5, {"log_probs": logp}, data)[1]["actor/dpo_accuracy"].aggregate() == ranked
