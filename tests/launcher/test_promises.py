"""What `plan` accepts can start: what cannot is refused before anything is written, with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launcher.experiments import make, refusals, refused, write_experiment

ONE = {"A": {"method": "c0_grpo"}}


def test_a_value_of_a_chosen_launcher_of_hydras_is_accepted():
    words = ["hydra.launcher.timeout_min=10", "hydra/launcher=submitit_slurm", "hydra.launcher.mem_gb=2"]
    assert make("experiment=quickstart", *words).runs


def test_a_name_that_another_file_has_is_refused_for_this_file_alone(conf, worded):
    write_experiment(conf, ONE, name="thief")
    path = conf / "experiment/thief.yaml"
    path.write_text(path.read_text().replace("name: thief", "name: quickstart"))
    worded(refusals("experiment=thief", conf))
    assert make("experiment=quickstart", conf=conf).experiments[0].name == "quickstart"


@pytest.mark.parametrize(
    ("clip", "more", "runs"),
    [
        (0.2, {}, 0),  # its runs are those of A
        (0.2, {"may_equal": "C"}, 0),
        (0.2, {"may_equal": "A"}, 1),
        (0.1, {}, 2),
    ],
)
def test_two_groups_with_the_same_runs_are_refused_unless_the_file_says_so(conf, clip, more, runs, worded):
    groups = {**ONE, "B": {"method": "c0_grpo", "overrides": {"method.clip_low": clip}, **more}}
    write_experiment(conf, groups, baseline="A")
    if runs:
        assert len(make("experiment=bad", conf=conf).runs) == runs
    else:
        (line,) = refusals("experiment=bad", conf)
        worded(line)


def test_several_groups_of_a_file_need_a_baseline(conf, worded):
    write_experiment(conf, {**ONE, "B": {"method": "ptrw"}}, baseline=None)
    (line,) = refusals("experiment=bad", conf)
    worded(line)


def test_a_launch_without_a_file_has_a_name_of_its_own_whatever_its_seeds():
    def name(*words: str) -> str:
        return make(*words).experiments[0].name

    both = ("method=c0_grpo,ptrw", "experiment.baseline=c0_grpo")
    assert name("method=ptrw") == "adhoc-ptrw"
    assert name(*both) == name(*both, "seed=0,1", "multirun=elsewhere") == "adhoc-c0_grpo-ptrw"
    other = name(*both, "task=sorting")
    assert other == name("task=sorting", *both, "seed=5") != name(*both, "trainer.steps=5")
    assert other.startswith("adhoc-c0_grpo-ptrw-") and len(other) == len("adhoc-c0_grpo-ptrw-") + 6
    assert name("method=ptrw", "experiment.name=mine") == "mine"


# ---------------------------------------------------------------- tasks of the user


@pytest.fixture
def write_task(new_tasks, conf):
    """Writes a task's module as docs/extending.md says, with a file in conf/task."""

    def write(text: str) -> Path:
        path = new_tasks / "mine.py"
        path.write_text(text)
        shipped = (conf / "task/sorting.yaml").read_text()
        (conf / "task/mine.yaml").write_text(shipped.replace("name: sorting", "name: mine"))
        return path

    return write


GOOD = """
from trainer_ext.scoring.tasks import Row, task

@task("mine")
def rows(section):
    return [Row("1>", "1")]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

def demonstration(row, generator, random_fraction):
    return row.ground_truth
"""


def test_a_sound_task_is_accepted(write_task, conf):
    write_task(GOOD)
    assert make("method=ptrw", "task=mine", conf=conf).runs


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("def rows(section):", "def rows(section:"),
        f"import nosuch_module\n{GOOD}",
        GOOD.replace('[Row("1>", "1")]', 'section["nosuch"]'),
        GOOD.replace('[Row("1>", "1")]', "[]"),
        GOOD.replace('Row("1>", "1")', 'Row("1>", 1)'),
        GOOD.replace('[Row("1>", "1")]', '[Row("1>", "1"), Row("2>", 2)]'),
        GOOD.replace('"1")]', '"1", "dev")]'),
        GOOD.replace("float(solution_str", "nosuch(solution_str"),
        GOOD.replace("float(solution_str == ground_truth)", '"high"'),
        GOOD.replace("def compute_score", "def score"),
        GOOD.partition("def demonstration")[0],
    ],
    ids=range(11),
)
def test_a_task_that_cannot_be_used_is_named_with_its_line(text, write_task, conf, worded):
    write_task(text)
    (line,) = refusals("method=ptrw task=mine", conf)
    worded(line)


def test_a_task_without_demonstrations_cannot_teach_a_target(write_task, conf, worded):
    write_task(GOOD.partition("def demonstration")[0])
    worded(refusals("method=q_star task=mine task.warm_start.steps=0", conf))
    assert make("method=ptrw", "task=mine", "task.warm_start.steps=0", conf=conf).runs


SCORE = """
def graded(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth), "level": extra_info["level"]}
"""


@pytest.fixture
def own(tmp_path):
    """Words that choose prompts and a reward of the user's own."""
    (tmp_path / "rewards.py").write_text(SCORE)
    lines = [{"prompt": f"{n}?", "answer": "2", "level": 3} for n in range(40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = "model=pretrained model.path=of/somebody"
    return (
        f"method=ptrw task=file task.train_path={tmp_path}/own.jsonl task.reward={tmp_path}/rewards.py:graded {model}"
    )


@pytest.mark.parametrize(
    "words", ["analysis.primary.metric=reward/level", "analysis.primary.metric=eval/reward/level trainer.eval_every=1"]
)
def test_a_reward_of_a_file_brings_its_metrics(own, words):
    assert make(*f"{own} {words}".split()).runs


@pytest.mark.parametrize(
    "change",
    [
        "analysis.primary.metric=reward/levl",
        "analysis.primary.metric=eval/reward/level trainer.eval_every=0",
        "task.reward_timeout_s=0",
        "task.reward=rewards.py:graded",
        "task.reward=exact",
        "task.prompt=question",
        "task.train_path=own.json",
        "task.train_path=nosuch.jsonl",
        "method=q_star",
        "model=tiny",
    ],
)
def test_own_data_and_rewards_that_cannot_be_used_are_named(own, change, worded):
    kept = [word for word in own.split() if word.partition("=")[0] != change.partition("=")[0]]
    worded(refusals(" ".join([*kept, change])))


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (SCORE.replace('level"]', 'levels"]'), ""),
        (SCORE.replace("return {", "return {,"), ""),
        (SCORE.replace("score", "points"), ""),
        (SCORE.replace("extra_info[", "str(extra_info)["), ""),
        ("import time\n\n\ndef graded(*_):\n    time.sleep(60)\n", "task.reward_timeout_s=0.1"),
    ],
    ids=["key", "syntax", "score", "type", "time"],
)
def test_a_reward_that_fails_is_named_with_its_line(own, tmp_path, text, more, worded):
    (tmp_path / "rewards.py").write_text(text)
    (line,) = refusals(f"{own} {more}")
    worded(line)


# ---------------------------------------------------------------- what files declare


def test_a_later_file_drops_a_requirement_with_null(conf):
    text = "# @package _global_\ndefaults: [in_process, _self_]\ntrainer: {requires: {model.resources.devices: null}}\n"
    (conf / "trainer/several.yaml").write_text(text)
    words = ("method=ptrw", "model.resources.devices=4")
    assert refused(*words, conf=conf)
    assert make(*words, "trainer=several", conf=conf).runs
    assert refused(*words, "trainer=several", "model.resources.nodes=2", conf=conf)


def test_what_only_describes_the_configuration_is_not_frozen():
    for run in make("experiment=quickstart").runs.values():
        assert not {"writes", "requires", "architecture", "allowed"} & {*run.config["method"], *run.config["trainer"]}
        assert not {"requires", "architecture"} & set(run.config["model"])
