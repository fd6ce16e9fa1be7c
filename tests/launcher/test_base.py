"""verl's tree: composed without importing verl, frozen by content, merged strictly."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.planning.freeze import freeze_base
from trainer_ext.application import verl_tree

TREES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@pytest.fixture(scope="module")
def verl():
    return verl_tree.compose("ppo_trainer")


def test_composing_does_not_import_verl():
    compose = "from trainer_ext.application import verl_tree; verl_tree.compose('ppo_trainer')"
    code = f"import sys; {compose}; print('verl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_what_is_frozen_is_written_as_omegaconf_writes_it(verl):
    from omegaconf import OmegaConf

    twice = {"a": [1, {"b": "${x}"}, []], "empty": {}, "text": ["yes", "1e3", "ä", "", "a\nb", "null"], "none": None}
    for tree in (verl.tree, {"one": twice, "other": twice}):
        assert verl_tree.frozen(tree).text == OmegaConf.to_yaml(OmegaConf.create(tree))


def test_merging_keeps_interpolations_and_missing_values(verl, tmp_path):
    from omegaconf import OmegaConf

    merged = verl_tree.merge(freeze_base(tmp_path, verl), {"data": {"train_batch_size": 7}})
    OmegaConf.resolve(merged)
    assert merged.data.train_batch_size == 7
    assert OmegaConf.is_missing(merged.actor_rollout_ref.rollout, "name")
    with pytest.raises(AttributeError):
        _ = merged.nosuch


def test_a_tree_that_was_changed_is_refused(verl, tmp_path):
    path = freeze_base(tmp_path, verl)
    path.write_text(path.read_text().replace("train_batch_size: 1024", "train_batch_size: 1025"))
    with pytest.raises(ValueError, match="was changed after it was frozen"):
        verl_tree.merge(path, {})


def test_what_verl_leaves_open_takes_anything(verl):
    open_places = {
        "actor_rollout_ref": {
            "model": {"override_config": {"attn_implementation": "sdpa"}},
            "rollout": {"name": "hf"},
            "actor": {"entropy_coeff": 0.001},
        },
    }
    assert not list(verl_tree.check(verl.tree, open_places))


@given(TREES, TREES)
def test_pruned_differences_merge_to_the_same_tree(tree, differences):
    whole = verl_tree.merged(tree, differences)
    pruned = verl_tree.prune(tree, differences)
    assert verl_tree.merged(tree, pruned) == whole
    assert verl_tree.prune(tree, pruned) == pruned
    assert not verl_tree.prune(tree, tree)
