"""Compositions are Hydra's own: keys, values and order, or the same refusal; and verl's tree, frozen and merged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config import hydra_compose
from launcher.config.hydra_compose import Composer
from launcher.planning.freeze import freeze_base
from tests.launcher.hydras import files_read_once
from trainer_ext.application import verl_tree


def assert_hydras_own(composer, overrides):
    # As text: in another order of keys a frozen tree would have another hash.
    with files_read_once():
        assert json.dumps(composer.compose(overrides).tree) == json.dumps(composer.hydras_own(overrides))


@pytest.mark.peer
@pytest.mark.parametrize("overrides", [[], ["model_engine=megatron"], ["algorithm.gamma=0.9"]])
def test_verls_tree_composes_to_what_hydra_composes(overrides):
    assert_hydras_own(Composer(verl_tree.config_folder(), "ppo_trainer"), overrides)


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1.5, "x", "", "???", "${other}", "${missing}"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "other"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TREES = st.dictionaries(st.sampled_from(["a", "b", "other"]), VALUES, max_size=3)


@settings(max_examples=300)
@given(st.lists(TREES, min_size=2, max_size=3))
def test_merging_plain_values_is_merging_nodes_or_left_to_hydra(trees):
    merged = {}
    try:
        for tree in trees:
            merged = hydra_compose.merge(merged, tree)
    except hydra_compose.NotPlain:
        return
    except hydra_compose.Clash:
        with pytest.raises(OmegaConfBaseException):
            OmegaConf.merge(*trees)
        return
    nodes = OmegaConf.create()
    for tree in trees:
        nodes.merge_with(OmegaConf.create(tree))
    assert json.dumps(merged) == json.dumps(hydra_compose.plain(nodes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: {method: ptrw}", "defaults must be a list"),
        ("defaults: [{method: ptrw, task: sorting}]", "Too many keys"),
        ("# @package\na: 1", "KEY VALUE"),
        ("a: 1\na: 2", "found duplicate key a"),
    ],
)
def test_a_file_that_hydra_cannot_read_is_refused(conf, text, said):
    (conf / "experiment/bad.yaml").write_text(text)
    with pytest.raises(hydra_compose.ERRORS, match=said):
        Composer(conf, "config").compose(["experiment=bad"])


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ("a: {b: 2}", {"x": 1, "b": 2}),
        ("a: ???", {"x": 1}),
        ("a: [3]", None),
        ("a: 3", 3),
        ("other: {x: 4}", "${other}"),
    ],
)
def test_what_comes_over_an_interpolation_is_as_hydra_has_it(tmp_path, above, expected):
    """OmegaConf looks the interpolation up before it merges a mapping into it."""
    (tmp_path / "part").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: [_self_, {part: one}]\nother: {x: 1}\na: ${other}\n")
    (tmp_path / "part/one.yaml").write_text(f"# @package _global_\n{above}\n")
    composer = Composer(tmp_path, "config")
    if expected is None:
        with pytest.raises(hydra_compose.ERRORS):
            composer.compose([])
        return
    assert composer.compose([]).tree["a"] == expected
    assert_hydras_own(composer, [])


MERGED = st.recursive(
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


@given(MERGED, MERGED)
def test_pruned_differences_merge_to_the_same_tree(tree, differences):
    whole = verl_tree.merged(tree, differences)
    pruned = verl_tree.prune(tree, differences)
    assert verl_tree.merged(tree, pruned) == whole
    assert verl_tree.prune(tree, pruned) == pruned
    assert not verl_tree.prune(tree, tree)
