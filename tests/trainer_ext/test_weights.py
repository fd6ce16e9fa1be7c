"""Importance weights against a loop over tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_ext import registry
from trainer_ext.methods.update import importance_weights, weight_metrics

LOOPS = {
    "none": lambda w, mean: 1.0,
    "raw": lambda w, mean: w,
    "clipped": lambda w, mean: min(max(w, 0.5), 2.0),
    "normalized": lambda w, mean: w / mean,
}


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from(sorted(LOOPS)))
def test_weights_equal_a_loop_over_tokens(seed, treatment):
    generator = torch.Generator().manual_seed(seed)
    logp, behaviour = (-torch.rand(3, 5, generator=generator, dtype=torch.float64) * 4 for _ in range(2))
    mask = torch.rand(3, 5, generator=generator) < 0.7
    mask[0, 0] = True
    bounds = {"weight_low": 0.5, "weight_high": 2.0} if treatment == "clipped" else {}
    weigh = registry.weights.choice({"weights": treatment, **bounds})
    found = importance_weights(logp, behaviour.masked_fill(~mask, math.nan), mask, weigh)
    raw = [math.exp(float(logp[i, t] - behaviour[i, t])) for i in range(3) for t in range(5) if mask[i, t]]
    mean = sum(raw) / len(raw)
    expected = [LOOPS[treatment](w, mean) for w in raw]
    assert found[mask].tolist() == pytest.approx(expected)
    assert not found[~mask].any()
    center = sum(expected) / len(expected)
    spread = math.sqrt(sum((w - center) ** 2 for w in expected) / len(expected))
    assert weight_metrics(found, mask) == {
        "qstar/weight_max": pytest.approx(max(expected)),
        "qstar/weight_min": pytest.approx(min(expected)),
        "qstar/weight_mean": pytest.approx(center),
        "qstar/weight_cv": pytest.approx(spread / center, abs=1e-9),
    }


def test_an_unknown_treatment_is_refused():
    with pytest.raises(ValueError, match="must be one of clipped, none, normalized, raw"):
        registry.weights.choice({"weights": "squared"})
