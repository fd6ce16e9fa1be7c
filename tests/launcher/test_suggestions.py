"""A name that the configuration does not have is answered with what the user probably means."""

from __future__ import annotations

import pytest

from launcher.config import hydra_compose, verl_tree
from launcher.planning import suggestions
from tests.configuration import SHIPPED
from tests.launcher.experiments import make, refused

LR = "verl.actor_rollout_ref.actor.optim.lr"
WORDS = [
    ("method=grpo", "command line: method = grpo: there is no conf/method/grpo.yaml; ", "Fix: use c0_grpo"),
    ("method=PPO", "command line: method = PPO: there is no conf/method/PPO.yaml; ", "Fix: use c0_ppo"),
    ("model=qwen", "command line: model = qwen: there is no conf/model/qwen.yaml; ", "Fix: use qwen2_5_0_5b"),
    ("lr=1e-4", "command line: lr = 0.0001: no such key", f"Fix: write {LR}=0.0001"),
    ("learning_rate=1,2", "command line: learning_rate = [1, 2]: no such key", f"Fix: write {LR}=1,2"),
    (
        "actor_rollout_ref.actor.optim.lr=3",
        "command line: actor_rollout_ref.actor.optim.lr = 3: no such key",
        f"Fix: write {LR}=3",
    ),
    (
        "data.train_batch_size=8",
        "command line: data.train_batch_size = 8: no",
        "Fix: write verl.data.train_batch_size=8",
    ),
    ("seeds=0,1", "command line: seeds = [0, 1]: no such key", "Fix: write seed=0,1"),
    ("seeds=3", "command line: seeds = 3: no such key", "Fix: write seed=3"),
    ("steps=10", "command line: steps = 10: no such key", "Fix: write trainer.steps=10"),
    ("cluster.gres=gpu:1", "command line: cluster.gres = gpu:1: no such key", "Fix: set model.resources.devices"),
    ("cluster.time=10", "command line: cluster.time = 10: no such key", "Fix: write model.resources.time=10"),
    (
        "experiment=quickstart.yaml",
        "command line: experiment = quickstart.yaml: a file is chosen by its name",
        "use qu",
    ),
    ("experiment=conf/experiment/bnto_main.yaml", "without folder and ending", "Fix: use bnto_main"),
    (
        "verl.trainer.n_gpus_per_node=8",  # verl's default
        "command line: verl.trainer.n_gpus_per_node = 8: the chosen trainer does not read this key",
        "Fix: set model.resources.devices",
    ),
]


@pytest.mark.parametrize(("word", "rule", "fix"), WORDS, ids=[word for word, _, _ in WORDS])
def test_a_word_is_answered_with_the_one_that_is_meant(word, rule, fix):
    (line,) = refused(word)
    assert rule in line and fix in line


HEAD = "# @package _global_\n"
GROUPS = "  groups:\n    A: {method: c0_grpo}\n"
FILES = [
    (
        "defaults:\n  - task: sorting\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = - task: sorting: an experiment overrides what conf/config.yaml chose",
        "Fix: write - override /task: sorting",
    ),
    (
        "experiment:\n  name: bad\n" + GROUPS + "baseline: A\n",
        "baseline: no such key",
        "Fix: indent it below experiment:, two spaces deeper than it is (experiment.baseline)",
    ),
    (
        "experiment:\n  name: bad\n" + GROUPS + "    seeds: [0]\n",
        "experiment.groups.seeds = [0]: ",
        "Fix: indent it by two spaces less, so that it is experiment.seeds and no group",
    ),
    ("experiment:\n\tname: bad\n", "line 3, column 1: not YAML: found character", "Fix: indent with spaces"),
    (
        "defaults:\n  - override /hydra/launcher: joblib\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = - override /hydra/launcher: joblib: Hydra reads its own settings when it starts",
        "Fix: write it on the command line, hydra/launcher=joblib, or in conf/config.yaml",
    ),
    (
        "defaults:\n  - /hydra/job_logging: none\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = - /hydra/job_logging: none: Hydra reads",
        "Fix: write it on the command line, hydra/job_logging=none",
    ),
    (
        "hydra:\n  run: {dir: x}\nexperiment:\n  name: bad\n" + GROUPS,
        "hydra = {'run': {'dir': 'x'}}: Hydra reads",
        "Fix: write it on the command line, hydra.run=...",
    ),
    ("steps: 5\nexperiment:\n  name: bad\n" + GROUPS, "steps: no such key", "Fix: write trainer.steps=5"),
]


@pytest.mark.parametrize(("text", "rule", "fix"), FILES)
def test_a_mistake_in_a_file_is_answered_with_what_is_meant(text, rule, fix, conf):
    (conf / "experiment/bad.yaml").write_text(HEAD + text)
    lines = refused("experiment=bad", conf=conf)
    assert any(line.startswith(f"conf/experiment/bad.yaml: {rule}") and fix in line for line in lines), lines


def test_a_file_that_cannot_be_read_does_not_spoil_the_others(conf):
    (conf / "experiment/bad.yaml").write_text("experiment:\n\tname: bad\n")
    assert make("experiment=quickstart", "experiment.name=mine", conf=conf).runs


@pytest.mark.parametrize("group", suggestions.OPTIONS)
def test_the_files_that_aliases_name_are_there(group):
    options = SHIPPED.options(group)
    assert set(suggestions.OPTIONS[group].values()) <= set(options)
    assert not set(suggestions.OPTIONS[group]) & set(options)


def test_the_keys_that_other_names_stand_for_are_there():
    tree = SHIPPED.compose([]).tree
    verl = verl_tree.compose("ppo_trainer", []).tree
    for name, key in suggestions.KEYS.items():
        assert hydra_compose.lookup({**tree, "verl": verl}, key)[0], key
        assert not hydra_compose.lookup(tree, name)[0], name
