"""Laws that every function of the methods obeys: it equals its loop, and the mask alone says what counts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer_ext.batches import BATCHES, batch
from tests.trainer_ext.subjects import SUBJECTS

#: By type of the inputs: how far a result may be from the loop's on the same, rounded numbers.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-6, torch.bfloat16: 8 * 2**-7, torch.float16: 8 * 2**-10}
EACH = pytest.mark.parametrize("name", SUBJECTS)
FEW = settings(max_examples=8)


def seen(name, b):
    """What a subject says of a batch: numbers, or a tensor whose places without meaning are 0."""
    found = SUBJECTS[name].function(b)
    if isinstance(found, Tensor) and not SUBJECTS[name].everywhere:
        return torch.where(b.mask.bool(), found, 0.0)
    return found


def same(found, expected, near):
    if isinstance(expected, dict):
        # a quotient of variances is known as well as its denominator is
        wide = {"ema/variance_reduction_ratio": near / min(1.0, expected.get("ema/raw_weights_variance") or 1.0)}
        bounds = {key: wide.get(key, near) for key in expected}
        assert found == {key: pytest.approx(expected[key], rel=near, abs=bound) for key, bound in bounds.items()}
    else:
        torch.testing.assert_close(found.double(), expected.double(), rtol=near, atol=near)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, subject in SUBJECTS.items() for kind in NEAR if subject.half or kind.itemsize > 2],
    ids=str,
)
@FEW
@given(b=BATCHES)
def test_it_equals_a_loop_over_rows_and_tokens(name, kind, b):
    b = b.to(kind)
    found, expected = seen(name, b), SUBJECTS[name].loop(b)
    if isinstance(found, Tensor):
        assert found.dtype == kind and found.shape == b.logp.shape
        expected = torch.tensor(expected, dtype=torch.float64)
        if not SUBJECTS[name].everywhere:
            expected = torch.where(b.mask, expected, 0.0)
    same(found, expected, NEAR[kind])


@EACH
@FEW
@given(BATCHES, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_masked_is_without_effect(name, b, rubbish):
    def wide(x: Tensor) -> Tensor:
        """Rubbish in the holes and in two more columns on either side."""
        marks = b.mask.view(*b.mask.shape, *[1] * (x.dim() - 2))
        x = torch.where(marks, x, rubbish)
        more = torch.full_like(x[:, :1], rubbish).repeat_interleave(2, dim=1)
        return torch.cat([more, x, more], dim=1)

    none = torch.zeros(len(b.mask), 2, dtype=torch.bool)
    padded = b.map(wide, "mask", "group")
    padded = type(b)(**{**vars(padded), "mask": torch.cat([none, b.mask, none], dim=1)})
    found = seen(name, padded)
    same(found[:, 2:-2] if isinstance(found, Tensor) else found, seen(name, b), 1e-9)


@EACH
@FEW
@given(BATCHES, st.randoms(use_true_random=False))
def test_the_order_of_rows_orders_the_result(name, b, random):
    order = torch.tensor(random.sample(range(len(b.mask)), len(b.mask)))
    found, expected = seen(name, b.map(lambda x: x[order])), seen(name, b)
    same(found, expected[order] if isinstance(expected, Tensor) else expected, 1e-9)


@EACH
@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.float32, torch.float64], ids=str)
def test_type_of_the_mask_and_layout_of_the_memory_are_without_effect(name, kind):
    b = batch(6)
    turned = b.map(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x)
    other = type(b)(**{**vars(turned), "mask": turned.mask.to(kind)})
    assert not other.mask.is_contiguous()
    same(seen(name, other), seen(name, b), 1e-9)


@EACH
def test_inputs_are_left_as_they_are(name):
    b, before = batch(6), batch(6)
    SUBJECTS[name].function(b)
    for one, other in zip(vars(b).values(), vars(before).values(), strict=True):
        assert torch.equal(one, other)
