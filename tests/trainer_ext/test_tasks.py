"""Tasks: rewards, demonstrations, preparation; and the embedded models' tokenizer."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer_ext.backends.in_process.initial_model import character_tokenizer
from trainer_ext.methods.health import Health, not_finite
from trainer_ext.scoring import artifacts, rewards, tasks
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.scoring.tasks import expression, gsm8k, sorting


@pytest.mark.parametrize(
    ("text", "number", "reward"),
    [("9+9-1", 17, 1), ("9+9-2", 17, 0), ("9-9+8", 8, 1), ("9+8", 17, 0), ("10+7+0", 17, 0), ("", 17, 0),
     ("9+9-1 ", 17, 0), ("9+9-1", "17~3", 1), ("9+9-1", "17~1", 0)],
)  # fmt: skip
def test_expression_rewards_form_and_value(text, number, reward):
    assert expression.compute_score("expression", text, str(number)) == reward


def test_sorting_rewards_only_the_whole_answer():
    assert sorting.compute_score("sorting", "01234567", "01234567") == 1
    assert sorting.compute_score("sorting", "01234576", "01234567") == 0


@pytest.mark.parametrize(
    ("text", "reward"),
    [("so #### 1,234", 1), ("1234.0", 1), ("1234 or 5", 0), ("none", 0), ("-1234", 0), ("of 2000-1234", 1)],
)
def test_gsm8k_compares_the_last_number(text, reward):
    assert gsm8k.compute_score("gsm8k", text, "1234") == reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5", ".5"), ("-0.5", "it is -.5"), ("5", "right.5"), ("3", "version 1.2.3"), ("1.5", "$1.50"), ("12", "12%"),
        ("0.00001", "1e-05"), ("10000000000000000", "1E+16"), ("x = 6.02e23.", "602e21"), ("5", "5 e"), ("5", "5.0"),
        ("2", "1e9999999999, 2"), ("3", "(2,3)"), ("3", "(12,345, 3)"), ("3.5", "[1,2.5,3.5]"), ("2345", "1,2345"),
        ("1234567.5", "$1,234,567.50"), ("100000", "1,00,000"), ("-7", "x = \N{MINUS SIGN}7"), ("7", "10-3=7"),
        ("4", "3/4"), ("9" * 400, "9" * 400),
    ],
)  # fmt: skip
def test_the_last_number_is_read_as_it_is_written(text, number):
    assert rewards.function("last_number")("own", f"so {text}", number) == 1
    assert rewards.function("last_number")("own", f"so {text}1", number) == 0


@pytest.mark.parametrize("name", ["expression", "sorting"])
def test_demonstrations_are_right_unless_random(name):
    module, generator = tasks.get(name), random.Random(0)
    rows = module.rows({"train_prompts": 200})
    assert len(rows) == 200

    def right(fraction):
        texts = ((module.demonstration(row, generator, fraction), row.ground_truth) for row in rows)
        return sum(module.compute_score(name, text, truth) for text, truth in texts)

    assert right(0.0) == 200 and right(1.0) < 40


def test_prepared_data_has_verls_columns_and_is_made_once(tmp_path):
    section, shares = {"name": "expression", "train_prompts": 50}, {"validation": 0.2, "test": 0.3}
    folder = tasks.prepare(section, shares, tmp_path)
    stamp = folder.stat().st_mtime_ns
    assert tasks.prepare({**section, "warm_start": {"steps": 1}}, shares, tmp_path) == folder
    assert folder.stat().st_mtime_ns == stamp
    assert tasks.prepare(section, {**shares, "test": 0.1}, tmp_path) != folder
    row = pq.read_table(folder / "train.parquet").to_pylist()[0]
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert row["prompt"][0]["role"] == "user"


tokenizer = character_tokenizer()


@example("<eos>")
@example("a<unk>b<pad>")
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_the_character_tokenizer_gives_back_every_text(text):
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_an_interrupted_build_leaves_nothing(tmp_path):
    def fails(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "a", fails)
    assert [p.name for p in tmp_path.iterdir()] == [".a.lock"]
    made = build_once(tmp_path / "a", lambda folder: (folder / "whole").write_text("x"))
    assert [p.name for p in made.iterdir()] == ["whole"]


def test_the_time_to_build_is_counted_once_and_only_by_those_who_build(tmp_path):
    def inner(folder):
        time.sleep(0.05)

    def outer(folder):
        build_once(tmp_path / "inner", inner)
        time.sleep(0.05)

    began, before = time.monotonic(), artifacts.seconds()
    build_once(tmp_path / "outer", outer)
    built = artifacts.seconds() - before
    assert 0.1 <= built <= time.monotonic() - began
    build_once(tmp_path / "outer", outer)
    assert artifacts.seconds() - before == built


def test_health_counts_its_warnings_and_survives_a_checkpoint():
    health = Health()
    for _ in range(10):
        health.check({"actor/grad_norm": 1.0, "analysis/entropy_full_mean": 2.0, "analysis/reward_sum_std": 0.0})
    other = Health(**json.loads(json.dumps(asdict(health))))
    for _ in range(11):
        other.check({"analysis/reward_sum_std": 0.0})
    other.check({"actor/grad_norm": 101.0, "analysis/entropy_full_mean": 0.01})
    for mean, ratio in ((0.1, 2.0), (0.05, 1.0), (0.5, 2.1), (0.95, 0.4)):
        other.check({"qstar/alpha_mean": mean, "qstar/ess_ratio": ratio})
    assert sorted(other.warnings.items()) == [
        ("alpha_mean outside [0.1, 0.9]", 2),
        ("entropy below 1% of its first value", 1),
        ("ess_ratio outside [0.5, 2]", 2),
        ("grad_norm above 100 times its running median", 1),
        ("reward std 0 for 20 steps", 2),
    ]
    assert not_finite({"a": 1.0, "b": float("nan")}) == "b" and not_finite({"a": 1.0}) is None


ABOVE = {"actor/kl_init": 10, "eval/empty": 0.1, "eval/repetition": 0.5, "rollout/probs_diff_max": 0.1}
LIMITS = {
    **{f"{key} above {most}": [{key: float(most)}, {key: 1.1 * most}] for key, most in ABOVE.items()},
    "largest weight above 100 times the mean weight": [
        {"qstar/weight_max": high, "qstar/weight_mean": 1.0} for high in (100.0, 102.0)
    ],
    "eval/distinct_2 below half of its first value, without a better reward": [
        {"eval/distinct_2": distinct, "eval/reward_mean": reward}
        for distinct, reward in ((0.8, 0.5), (0.4, 0.2), (0.39, 0.6), (0.39, 0.5))
    ],
}


@pytest.mark.parametrize("warning", LIMITS)
def test_health_warns_once_beyond_a_limit(warning):
    """The last numbers are beyond it, those before are not."""
    health = Health()
    for metrics in LIMITS[warning]:
        assert health.warnings == {}
        health.check(metrics)
    assert health.warnings == {warning: 1}


@pytest.mark.parametrize(("last", "warned"), [(0.9, 0), (1.0, 5), (1.1, 5)])
def test_health_warns_of_a_loss_that_does_not_fall(last, warned):
    health = Health()
    for step in range(44):
        loss = 1.0 if step < 20 else last
        health.check({"actor/dpo_loss": loss, "actor/pg_loss": float(step)})
        health = Health(**json.loads(json.dumps(asdict(health))))
    assert sum(health.warnings.values()) == warned


def test_a_demonstration_of_an_expression_has_the_right_form_and_may_be_any():
    generator, row = random.Random(0), tasks.Row("7=", "7")
    drawn = {expression.demonstration(row, generator, 1.0) for _ in range(60_000)}
    assert len(drawn) == 10 * 2 * 10 * 2 * 10  # each one-digit operand and sign
    assert all(re.fullmatch(r"\d[+-]\d[+-]\d", text) for text in drawn)
    assert expression.compute_score("expression", expression.demonstration(row, generator, 0.0), "7") == 1.0
