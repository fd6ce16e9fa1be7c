"""A name that the configuration does not have is answered with what the user probably means."""

from __future__ import annotations

import io
import re

import pytest

from launcher import text
from launcher.__main__ import main
from launcher.config import hydra_compose
from tests.configuration import SHIPPED
from tests.launcher.experiments import make, refused
from trainer_ext.application import other_names, verl_tree

LR = "verl.actor_rollout_ref.actor.optim.lr"
WORDS = [
    ("optimizer.lr=1e-4", "command line: optimizer.lr = 0.0001: no such key", f"Fix: write {LR}=0.0001"),
    ("policy.optim.lr=3", "command line: policy.optim.lr = 3: no such key", f"Fix: write {LR}=3"),
    ("sampling.temperature=2", "no such key", "Fix: write verl.actor_rollout_ref.rollout.temperature=2"),
    ("training.max_steps=5", "no such key", "Fix: write trainer.steps=5"),
    ("analysis.primary.metric=reward_mean", "must be a metric's key", "Fix: write eval/reward_mean"),
    ("analysis.primary.metric=reward_sum_meen", "must be a metric's key", "Fix: write analysis/reward_sum_mean"),
    ("experiment.seeds=0,1,2", "experiment.seeds = [0, 1, 2]: on the command line seeds", "Fix: write seed=0,1,2"),
    ("seed=[0,1]", "seed = [0, 1]: on the command line seeds are listed without", "Fix: write seed=0,1"),
    ("seed=[3]", "seed = [3]: on the command line seeds", "Fix: write seed=3"),
    (
        "groups.C1.overrides={a: 1}",
        "groups.C1.overrides = {'a': 1}: no such key",
        "Fix: write experiment.groups.C1.overrides",
    ),
    ("cluster.partition=main", "cluster.partition = main: no such key", "Fix: add cluster=slurm"),
    ("cluster.address=auto", "cluster.address = auto: no such key", "Fix: add cluster=ray"),
    ("cluster.max_running=3", "cluster.max_running = 3: no such key", "Fix: add cluster=ray or cluster=slurm"),
    ("trainer.ranks=2", "trainer.ranks = 2: no such key", "Fix: add trainer=verl_ray"),
    ("cluster.partition=a,b", "cannot be swept", "is quoted twice, \"cluster.partition='a,b'\", and a list is "),
    ("analysis.metrics=a/b,c/d", "cannot be swept", "a list is analysis.metrics=[a/b,c/d]"),
    ("model.resources.devices=8", "must be 0 or 1", "Fix: choose trainer=verl_ray, or set model.resources.devices=1"),
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
    (
        "defaults:\n  - override /task: sortin\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = sortin: there is no conf/task/sortin.yaml; available: apps, ",
        "wmt. Fix: use sorting",
    ),
    (
        "defaults:\n  - override /method/control: dul\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = dul: there is no conf/method/control/dul.yaml",
        "none. Fix: use dual",
    ),
    (
        "defaults:\n  - override /modle: gpt2\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = modle: there is no such configuration group",
        "Fix: write - override /model",
    ),
    (
        "defaults:\n  - bnto_man\n  - _self_\nexperiment:\n  name: bad\n" + GROUPS,
        "defaults = bnto_man: there is no conf/experiment/bnto_man.yaml",
        "Fix: use bnto_main",
    ),
    (
        "experiment:\n  name: bad\n  groups:\n  A: {method: c0_grpo}\n",
        "experiment.A = {'method': 'c0_grpo'}: no such key",
        "Fix: indent it by two spaces more, so that it is experiment.groups.A",
    ),
    (
        "experiment:\n  name: bad\n  groups:\n    A:\n    method: c0_grpo\n",
        "experiment.groups.method = c0_grpo: must be a mapping",
        "Fix: indent it by two spaces more, below the name of a group",
    ),
    (
        "experiment:\n  name: bad\n   groups:\n    A: {method: c0_grpo}\n",
        "line 4, column 10: not YAML: mapping values",
        "Fix: indent the keys of one mapping equally",
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


@pytest.mark.parametrize(("content", "rule", "fix"), FILES)
def test_a_mistake_in_a_file_is_answered_with_what_is_meant(content, rule, fix, conf):
    (conf / "experiment/bad.yaml").write_text(HEAD + content)
    lines = refused("experiment=bad", conf=conf)
    assert any(line.startswith(f"conf/experiment/bad.yaml: {rule}") and fix in line for line in lines), lines


def test_overrides_of_a_group_can_be_set_on_the_command_line():
    words = ["experiment=quickstart", "experiment.groups.C0.overrides={trainer.steps: 5}"]
    planned = make(*words)
    steps = {entry.group: planned.runs[entry.id].config["trainer"]["steps"] for entry in planned.experiments[0].entries}
    assert steps["C0"] == 5 and steps["C1"] != 5
    assert any("experiment.groups.C9.overrides" in line for line in refused(words[0], words[1].replace("C0", "C9")))


def test_one_cause_in_several_files_is_said_once():
    lines = refused("experiment=qstar_scale", "scale=design")
    assert len([line for line in lines if "model.resources.devices = 8: " in line]) == 1
    assert len({line.partition(": ")[2] for line in lines}) == len(lines)


@pytest.mark.parametrize("words", [["-m", "experiment=quickstart"], ["experiment=quickstart", "-m"]])
def test_plan_takes_the_flag_that_launch_py_takes(words, capsys, tmp_path):
    assert main(["plan", *words, f"multirun={tmp_path}", "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert "quickstart: 2 seeds detect only very large differences in eval/reward_mean (final) of " in said
    assert re.search(r"sd or more with 80% power.*\. 6 seeds would detect [0-9.]+ sd\. \(sd: ", said)


def test_a_command_that_starts_runs_is_named(capsys):
    for word in ("launch", "run"):
        assert main([word]) == 2
        assert "runs are started by `python launch.py -m experiment=NAME`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "said"), [(0.0, "0.00"), (0.00014, "less than 0.01"), (0.01, "0.01"), (2.5, "2.50")]
)
def test_hours_have_two_decimals(number, said):
    assert text.hours(number) == said


def test_a_line_on_a_terminal_breaks_between_words(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "20")
    words = "several words, model.resources.devices=8 and a-long-one-with-hyphens"
    text.say(words, terminal := Terminal())
    assert terminal.getvalue().split() == words.split() and terminal.getvalue().count("\n") > 2


def test_a_file_that_cannot_be_read_does_not_spoil_the_others(conf):
    (conf / "experiment/bad.yaml").write_text("experiment:\n\tname: bad\n")
    assert make("experiment=quickstart", "experiment.name=mine", conf=conf).runs


@pytest.mark.parametrize("group", other_names.OPTIONS)
def test_the_files_that_aliases_name_are_there(group):
    options = SHIPPED.options(group)
    assert set(other_names.OPTIONS[group].values()) <= set(options)
    assert not set(other_names.OPTIONS[group]) & set(options)


def test_the_keys_that_other_names_stand_for_are_there():
    tree = SHIPPED.compose([]).tree
    verl = verl_tree.compose("ppo_trainer").tree
    for name, key in other_names.KEYS.items():
        assert hydra_compose.lookup({**tree, "verl": verl}, key)[0], key
        assert not hydra_compose.lookup(tree, name)[0], name
