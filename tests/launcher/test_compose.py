"""Compositions are Hydra's own: keys, values and order, or the same refusal; and verl's tree, frozen and merged."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_repository import ConfigRepository
from hydra.core.override_parser.types import Quote, QuotedString
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config import hydra_compose, identity
from launcher.config.hydra_compose import Composer
from launcher.config.identity import SECTIONS
from launcher.errors import InvalidPlan
from launcher.planning import freeze, schema
from launcher.planning.freeze import freeze_base
from launcher.run.folder import read_config, run_folder
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import at_scale, make, shipped
from trainer_ext.application import verl_tree
from trainer_ext.application.verl_tree import merged

# Nobody edits these while the tests run, as they do the copies of conf/.
UNCHANGING = {f"{folder}" for folder in (ROOT / "conf", verl_tree.config_folder())}
READ: dict[tuple[str, ...], Any] = {}


@contextmanager
def files_read_once():
    """Hydra reads each shipped file once in this process, and is given a copy of what it read."""
    read = ConfigRepository.load_config

    def load_config(self, config_path):
        folders = [source.path for source in self.sources if source.scheme() == "file"]
        if not UNCHANGING.issuperset(folders):
            return read(self, config_path)
        key = (*folders, config_path)
        if key not in READ:
            READ[key] = read(self, config_path)
        return copy.deepcopy(READ[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        yield


def assert_hydras_own(composer, overrides):
    # As text: in another order of keys a frozen tree would have another hash.
    with files_read_once():
        assert json.dumps(composer.compose(overrides).tree) == json.dumps(composer.hydras_own(overrides))


@pytest.mark.peer
@pytest.mark.parametrize("overrides", [[], ["model_engine=megatron"], ["algorithm.gamma=0.9"]])
def test_verls_tree_composes_to_what_hydra_composes(overrides):
    assert_hydras_own(Composer(verl_tree.config_folder(), "ppo_trainer"), overrides)


KEYS = st.sampled_from(["a", "other"])
VALUES = st.recursive(
    st.sampled_from([None, True, 1.5, "x", "???", "${other}", "${missing}"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=3)


@settings(max_examples=100)
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
    twice = {"a": [1, {"b": "${x}"}, []], "empty": {}, "text": ["yes", "1e3", "ä", "", "a\nb", "null"], "none": None}
    for tree in (verl.tree, {"one": twice, "other": twice}):
        assert verl_tree.frozen(tree).text == OmegaConf.to_yaml(OmegaConf.create(tree))


def test_merging_keeps_interpolations_and_missing_values(verl, tmp_path):
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
    model, rollout = {"override_config": {"attn_implementation": "sdpa"}}, {"name": "hf"}
    open_places = {"model": model, "rollout": rollout, "actor": {"entropy_coeff": 0.001}}
    assert not list(verl_tree.check(verl.tree, {"actor_rollout_ref": open_places}))


@given(MERGED, MERGED)
def test_pruned_differences_merge_to_the_same_tree(tree, differences):
    whole = verl_tree.merged(tree, differences)
    pruned = verl_tree.prune(tree, differences)
    assert verl_tree.merged(tree, pruned) == whole
    assert verl_tree.prune(tree, pruned) == pruned
    assert not verl_tree.prune(tree, tree)


def assert_frozen_is_hydras_own(planned, run, overrides):
    with files_read_once(), initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        theirs = OmegaConf.to_container(compose("config", overrides), resolve=True)
    stripped = schema.strip(theirs)
    for section in SECTIONS:
        if section != "verl":
            assert run.config[section] == stripped[section], section
    # Differences that equal verl's own value are dropped; merged, both are the same tree.
    base = planned.bases[run.base]
    assert merged(base.tree, run.config["verl"]) == merged(base.tree, theirs["verl"])


def said(key, value):
    """One override as Hydra reads it: a choice of a group, or a value (of verl's, one that our files need not have)."""
    if isinstance(value, str) and "/" in key:
        return f"{key}={value}"
    if isinstance(value, dict):  # Hydra's grammar has no quoted keys
        text = "{" + ", ".join(f"{key}: {json.dumps(item)}" for key, item in value.items()) + "}"
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return f"{'++' if key.startswith('verl.') else ''}{key}={text}"


def declared_in(name):
    """The section `experiment` of a shipped file over those that it inherits."""
    content = yaml.safe_load((ROOT / f"conf/experiment/{name}.yaml").read_text())
    parents = [one for one in content.get("defaults", ()) if isinstance(one, str) and one != "_self_"]
    whole = OmegaConf.merge(*(declared_in(parent) for parent in parents), content["experiment"])
    return OmegaConf.to_container(whole, resolve=False)


def overrides_of(name, scale, planned, entry):
    """How Hydra is told what one run of a shipped experiment is."""
    (experiment,) = planned.experiments
    declared = declared_in(name)
    group = declared["groups"][entry.group]
    keys = {factor["label"]: key for key, factor in experiment.factors.items()}
    levels = {keys[label]: level for label, level in entry.factors.items()}
    values = {**declared.get("scales", {}).get(scale, {}), **group.get("overrides", {}), **levels, "seed": entry.seed}
    chosen = [f"experiment={name}", *at_scale(scale), f"method={group['method']}"]
    return [*chosen, *(said(key, value) for key, value in values.items())]


@pytest.mark.peer
@pytest.mark.parametrize("scale", shipped("scale"))
@pytest.mark.parametrize("name", shipped("experiment"))
def test_each_shipped_experiment_freezes_what_hydra_composes(name, scale, planned_once):
    planned = planned_once(name, scale)
    entries = planned.experiments[0].entries
    for entry in entries[:: max(1, len(entries) // 2)]:
        assert_frozen_is_hydras_own(planned, planned.runs[entry.id], overrides_of(name, scale, planned, entry))


@pytest.mark.parametrize(
    ("overrides", "method", "scaled"),
    [
        ("experiment=bnto_grid trainer.steps=7 verl.data.train_batch_size=64 seed=2", "c0_grpo", ""),
        ("experiment=grpo_variants method.credit.temporal_decay.gamma=0.8 seed=1", "temporal_decay", ""),
        (
            "experiment=bnto_medium scale=tiny method/credit=[gradient_adaptive,temporal_decay]",
            "c0_grpo",
            "trainer.steps=300 trainer.eval_every=50",
        ),
    ],
)
def test_overrides_of_an_experiment_freeze_what_hydra_composes(overrides, method, scaled):
    words = overrides.split()
    planned = make(*words)
    run = next(run for run in planned.runs.values() if run.config["method"]["name"] == method)
    own = [*words, f"method={method}", *scaled.split(), f"seed={run.config['seed']}"]
    assert_frozen_is_hydras_own(planned, run, own)


ANY_VALUES = {
    "method.rho": st.floats(0.1, 0.9),
    "method.gamma": st.sampled_from([0.5, 1, 2.0]),
    "method/credit": st.sampled_from(["[]", "[temporal_decay]", "[temporal_decay,gradient_adaptive]"]),
    "method/smoothing": st.sampled_from(["none", "ema"]),
    "task": st.sampled_from(["expression", "sorting"]),
    "trainer.steps": st.integers(1, 10**6),
    "model.hidden_size": st.sampled_from([64, 128]),
    "verl.data.train_batch_size": st.integers(1, 512),
    "verl.actor_rollout_ref.actor.optim.lr": st.floats(1e-7, 1.0),
    "seed": st.integers(0, 99),
}


@pytest.mark.peer
@settings(max_examples=6)
@given(st.fixed_dictionaries({}, optional=ANY_VALUES), st.data())
def test_random_overrides_freeze_what_hydra_composes(values, data):
    swept = data.draw(st.sampled_from(["method.beta_lr=0.01,0.02", "method/ratio=token,sequence_geometric"]))
    own = [said(key, value) for key, value in values.items()]
    ours = [one.removeprefix("++") for one in own]
    planned = make("method=bnto_minimal", *ours, swept)
    key, _, levels = swept.partition("=")
    for entry, level in zip(planned.experiments[0].entries, levels.split(","), strict=True):
        assert_frozen_is_hydras_own(planned, planned.runs[entry.id], ["method=bnto_minimal", *own, f"{key}={level}"])


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12) | st.sampled_from(
    ["$(rm -rf x)", "../up", "a; b", "'q'", '"q"', "a\nb", "`x`", "~", "-x", "!!python/object:os.system", "${nosuch}"]
)


def quoted(text):
    """A text as Hydra's grammar quotes it."""
    return QuotedString(text, Quote.single).with_quotes()


@settings(max_examples=25)
@given(TEXTS)
def test_any_text_as_a_value_is_frozen_as_it_is_or_refused(text):
    with tempfile.TemporaryDirectory() as multirun:
        try:
            planned = make("model=gpt2", f"model.path={quoted(text)}", f"multirun={multirun}")
        except InvalidPlan as refusal:
            assert all(". Fix: " in line for line in str(refusal).splitlines())
            return
        freeze.freeze(planned)
        (run,) = planned.runs.values()
        frozen = read_config(run_folder(Path(multirun), run.id))
    assert frozen["model"]["path"] == run.config["model"]["path"]
    assert frozen["model"]["path"] == text or "${" in text
    identity.verify(frozen, run.id)


@settings(max_examples=25)
@given(TEXTS)
def test_any_text_as_an_experiments_name_is_a_plain_folder_or_refused(text):
    try:
        planned = make("method=c0_grpo", f"experiment.name={quoted(text)}")
    except InvalidPlan as refusal:
        assert all(". Fix: " in line for line in str(refusal).splitlines())
        return
    (experiment,) = planned.experiments
    assert experiment.name == text and "/" not in text and text not in (".", "..") and text.isprintable()


RULE = {"start": 2, "max": 4, "until": "decided"}


@pytest.mark.parametrize(("below", "above"), [([0, 1], RULE), (RULE, [0, 1]), (RULE, {"max": 6})])
def test_an_experiment_replaces_the_seeds_of_another_by_a_rule_or_a_list(below, above):
    whole = {**below, **above} if isinstance(below, dict) and isinstance(above, dict) else above
    trees = ({"experiment": {"seeds": one, "scales": {"tiny": {"experiment.seeds": one}}}} for one in (below, above))
    experiment = hydra_compose.merge(*trees)["experiment"]
    assert experiment == {"seeds": whole, "scales": {"tiny": {"experiment.seeds": whole}}}


def test_seeds_are_the_only_key_of_an_experiment_that_may_be_a_list_or_a_mapping():
    schemas = json.loads((ROOT / "docs/schemas/experiment.json").read_text())["$defs"]
    keys = [(name, key, one) for name, schema in schemas.items() for key, one in schema.get("properties", {}).items()]
    either = [key for _, key, one in keys if {"array", "object"} <= {each.get("type") for each in one.get("anyOf", ())}]
    seeds = [each for one in schemas["ExperimentSpec"]["properties"]["seeds"]["anyOf"] for each in one.get("anyOf", ())]
    assert not either and [one["type"] for one in seeds] == ["array", "object"]
