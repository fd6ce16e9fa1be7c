"""The task reasoning_gym: generators by name, the package's own scores, puzzles that survive Parquet."""

from __future__ import annotations

import os

import pyarrow.parquet as pq
import pytest

from tests.launcher.experiments import make, refused
from tests.trainer_ext.conftest import section as task_section
from trainer_ext.objection import Objection
from trainer_ext.scoring import tasks

pytestmark = pytest.mark.puzzles
SHARES = {"validation": 0.2, "test": 0.2}
# of many categories; several with tuples, sets or mappings of numbers in their puzzles, or an answer of their own
GENERATORS = [
    "basic_arithmetic", "countdown", "family_relationships", "futoshiki", "knights_knaves", "maze", "word_ladder",
    "prime_factorization", "ransom_note", "spell_backward", "zebra_puzzles",
]  # fmt: skip
UNSTABLE = ["polynomial_multiplication", "ransom_note"]


def section(generator, **more):
    return task_section("reasoning_gym", generator=generator, **{"size": 4, "seed": 7, **more})


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_own_answer_scores_one_and_another_one_less_also_after_parquet(generator, tmp_path):
    folder = tasks.prepare(section(generator), {"validation": 0.0, "test": 0.0}, tmp_path)
    lines = pq.read_table(folder / "train.parquet").to_pylist()
    assert len(lines) == 4
    score = tasks.scorer(section(generator))
    for line in lines:
        assert line["prompt"][0]["role"] == "system" and "<answer>" in line["prompt"][0]["content"]
        question, truth, info = line["prompt"][-1]["content"], line["reward_model"]["ground_truth"], line["extra_info"]
        assert score(f"I think it is so: <answer>{truth}</answer>", question, truth, info).value == 1
        assert score(truth, question, truth, info).value == 1
        assert score(f"<answer>{truth}</answer>, or <answer>no idea</answer>", question, truth, info).value < 1
        assert score("", question, truth, info).value < 1


def test_an_answer_that_the_package_cannot_read_is_counted():
    (row, *_) = tasks.get("reasoning_gym").rows(section("prime_factorization"))
    scored = tasks.scorer(section("prime_factorization"))("two times three", row.prompt, row.ground_truth, row.metadata)
    assert (scored.value, scored.metrics) == (0, {"unreadable": 1})


@pytest.mark.parametrize("generator", UNSTABLE)
def test_puzzles_depend_on_the_configuration_alone(generator, monkeypatch):
    module = tasks.get("reasoning_gym")
    found = []
    for seed in ("1", "2"):
        monkeypatch.setitem(os.environ, "PYTHONHASHSEED", seed)
        found.append(module.rows(section(generator)))
    assert found[0] == found[1]
    assert [row.metadata for row in found[0]] == [row.metadata for row in found[1]]
    assert {row.prompt for row in module.rows(section(generator, seed=8))} != {row.prompt for row in found[0]}


def test_settings_are_the_generators(tmp_path):
    module = tasks.get("reasoning_gym")
    rows = module.rows(section("knights_knaves", settings={"n_people": 4}, size=40))
    assert all("You meet 4 inhabitants" in row.prompt for row in rows)
    divided = tasks.divide(rows, SHARES)
    assert sum(map(len, divided.values())) == 40 and all(divided.values())


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"settings": {"n_peple": 3}}, "task.settings.n_peple", ["no such setting; it has n_people", "write n_people"]),
        ({"settings": {"n_people": "two"}}, "task.settings", ["the generator knights_knaves refuses them"]),
        ({"settings": {"seed": 3}}, "task.settings.seed", ["set task.seed"]),
    ],
)
def test_what_the_package_does_not_know_is_named(change, key, words):
    with pytest.raises(Objection) as raised:
        tasks.get("reasoning_gym").rows(section("knights_knaves") | change)
    assert raised.value.key == key
    assert all(word in f"{raised.value.rule}. {raised.value.fix}" for word in words), str(raised.value)


def test_a_plan_refuses_what_the_package_does_not_know():
    words = ["method=c0_grpo", "task=reasoning_gym", "task.size=20", "model=pretrained", "model.path=of/somebody"]
    assert make(*words, "task.settings={n_people: 3}", "analysis.primary.metric=reward/unreadable").runs
    (line,) = refused(*words, "task.generator=knight_knaves")
    assert line.startswith("command line: task.generator = knight_knaves: reasoning-gym has no such generator; it has ")
    assert "zebra_puzzles" in line and line.endswith("Fix: write knights_knaves")
    (line,) = refused(*words, "task.settings={n_peple: 3}")
    assert "task.settings.n_peple = 3: the generator knights_knaves has no such setting" in line
