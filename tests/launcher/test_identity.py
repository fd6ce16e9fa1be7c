"""Identity: equal science is one run, whatever its labels; the hash is frozen by golden values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.identity import VERSION, by_seed, canonical_json, identity, run_id

CONFIG = {
    "seed": 0,
    "method": {"name": "c0", "trust_region": "clip", "clip_low": 0.2, "dual_clip": 3.0},
    "model": {"name": "tiny", "layers": 2, "resources": {"cpus": 1}, "seconds_per_step": 0.15},
    "task": {"name": "expression", "train_prompts": 20000, "warm_start": None},
    "trainer": {"backend": "in_process", "steps": 120, "checkpoint_every": 20, "hist_every": 200},
    "verl": {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"actor": {"use_kl_loss": False}}},
}
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_golden():
    assert VERSION == 1
    assert identity("ddc0c93b9ab0ea47", CONFIG) == "60adaebdecc320f5f5aecdcefdb34833139c0696176dd05b5e724ddf016ff1ee"
    assert (
        identity("ddc0c93b9ab0ea47", {**CONFIG, "seed": 1})
        == "6f52509d7b6252b22e829c6191d72a72d1c1792b27898f0adfce5bebe85e86ff"
    )
    assert run_id("0123456789abcdef0123") == "0123456789abcdef"


def test_labels_resources_and_what_is_written_do_not_count_and_everything_else_does():
    def changed(key):
        section, name = key.split(".")
        return identity("b", {**CONFIG, section: {**CONFIG[section], name: "other"}}) != identity("b", CONFIG)

    labels = ["method.name", "model.name", "model.resources", "model.seconds_per_step", "trainer.checkpoint_every"]
    assert not any(map(changed, [*labels, "trainer.hist_every", "trainer.eval_responses", "task.reward_timeout_s"]))
    assert all(map(changed, ["method.clip_low", "task.name", "model.layers", "task.warm_start", "trainer.steps"]))
    assert identity("another base", CONFIG) != identity("b", CONFIG)


def test_an_integral_float_is_the_integer_and_a_bool_is_not():
    assert canonical_json({"b": 3.0, "a": -0.0}) == '{"a":0,"b":3}'
    assert canonical_json([True, 1, "1", None]) == '[true,1,"1",null]'


@given(PLAIN)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value):
    def turned(item):
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(item)}
        return [turned(one) for one in item] if isinstance(item, list) else item

    assert canonical_json(turned(value)) == canonical_json(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1: 2}])
def test_what_has_no_place_in_an_identity_is_refused(value):
    with pytest.raises(ValueError):
        canonical_json([value])


def test_runs_that_differ_in_their_seeds_are_identified_as_one_by_one(planned_once):
    plan = planned_once("quickstart", "full")
    for run in plan.runs.values():
        digest_of = by_seed(run.base, {**run.config, "seed": 12})
        assert digest_of(run.config["seed"]) == identity(run.base, run.config) == run.hash
