"""`python -m trainer_ext.scoring.tasks prepare`: files that verl and task=file read, with a card."""

from __future__ import annotations

import hashlib
import json
import random
import re
from itertools import combinations

import pyarrow.parquet as pq
import pytest

from tests import registered
from tests.configuration import CONF, tree_of
from tests.trainer_ext.conftest import jsonl
from trainer_ext.scoring import tasks
from trainer_ext.scoring.tasks import Row, card
from trainer_ext.scoring.tasks.__main__ import main

WORDS = "ann has some pens and buys three more from the old shop near river bank before her friend comes".split()  # noqa: SIM905
ASK = " Think step by step, and write the final answer at the end of your response."


def own(prompt):
    return {"question": prompt, "answer": "#### 2"}


def test_a_folder_is_prepared_with_its_card_and_can_be_trained_on(tmp_path, capsys):
    random.seed(0)
    prompts = [f"{name}: {' '.join(random.sample(WORDS, 12))}?" for name in "abcdefghijkl"]
    source, changed = tmp_path / "data", prompts[1].upper().replace(":", " –")
    jsonl(source / "train.jsonl", *map(own, [*prompts, prompts[0]]))
    jsonl(source / "test.jsonl", *map(own, [changed, "Wie viele Stifte hat Ann?", "安有几支笔？"]))
    to = tmp_path / "prepared" / "gsm8k"
    assert main(["prepare", "gsm8k", "--from", str(source), "--to", str(to), "--licence", "MIT"]) == 0
    said = capsys.readouterr().out
    found = json.loads((to / "card.json").read_text())
    splits = found["splits"]
    assert splits["test"]["rows"] == 3 and splits["test"]["worked_answers"] == 3
    assert splits["train"]["rows"] + splits["validation"]["rows"] in (12, 13)  # validation has no prompt twice
    assert splits["train"]["prompts"] + splits["validation"]["prompts"] == 12
    (pair,) = [one for one in found["near_duplicates"] if one["prompts"]]
    assert pair["splits"][1] == "test" and pair["prompts"] == 1 and pair["pairs"][0][1].startswith(changed)
    assert f"1 of 3 test prompts are almost a {pair['splits'][0]} prompt" in said
    assert found["licence"] == "MIT"
    for name, digest in {**found["files"], **found["sources"]}.items():
        assert hashlib.sha256((to / name).read_bytes()).hexdigest() == digest
    assert "allowed" not in json.dumps(found["settings"])

    words = ["task=file", f"task.train_path={to}/train.parquet", f"task.test_path={to}/test.parquet"]
    section = tree_of(*words, "task.answer=reward_model.ground_truth", "task.reward=last_number")["task"]
    rows = tasks.get("file").rows(section)
    assert len(rows) == splits["train"]["rows"] + 3 and {row.ground_truth for row in rows} == {"2"}
    columns = {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert set(pq.read_schema(to / "train.parquet").names) == columns


OWN_TASK = """
from trainer_ext.scoring.tasks import Row, task

@task("reverse")
def rows(task):
    return [Row(str(n), str(n)[::-1]) for n in range(task["train_prompts"])]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)
"""


@pytest.mark.parametrize(("name", "file"), [("backwards", "reverse"), ("sorting", "sorting")])
def test_a_project_has_its_own_tasks_and_files_that_win_over_ours(tmp_path, monkeypatch, name, file):
    registered.put_back(monkeypatch)
    registered.declare(tmp_path, monkeypatch, f"own_{name}", OWN_TASK, "rlsweep.tasks")
    (tmp_path / "conf/task").mkdir(parents=True)
    text = (CONF / "task/sorting.yaml").read_text().replace("name: sorting", f"name: {file}")
    (tmp_path / f"conf/task/{name}.yaml").write_text(re.sub("train_prompts: .*", "train_prompts: 100", text))
    with registered.other_packages():
        assert main(["prepare", name, "--to", str(tmp_path / "to")]) == 0
    card = json.loads((tmp_path / "to/card.json").read_text())
    assert card["task"] == file and sum(of["rows"] for of in card["splits"].values()) == 100


@pytest.mark.parametrize(
    "words",
    [
        "gsm9k", "gsm8k task.trainpath=x.jsonl", "gsm8k task.train_path={own}/bad.jsonl", "expression --to {own}/two",
        "gsm8k task.train_path={own}/none.jsonl", "gsm8k --from {own}/empty", "gsm8k --from {own}/two",
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_named_and_nothing_is_written(words, tmp_path, capsys, worded):
    jsonl(tmp_path / "bad.jsonl", own("What?"), {"question": "Why?"})
    (tmp_path / "empty").mkdir()
    jsonl(tmp_path / "two" / "train.jsonl", own("What?"))
    (tmp_path / "two" / "train.parquet").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    given = words.replace("{own}", str(tmp_path)).split()
    to = [] if "--to" in given else ["--to", str(tmp_path / "to")]
    assert main(["prepare", *given, *to]) == 2
    worded(capsys.readouterr().err)
    assert sorted(tmp_path.rglob("*")) == before


def runs(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}


def test_near_duplicates_are_those_of_all_pairs():
    """Against the definition, with prompts of which a word or two were changed."""
    random.seed(1)
    train = [" ".join(random.choices(WORDS, k=random.randint(1, 40))) for _ in range(150)]
    test = []
    for text in train[:100]:
        words = text.split()
        for _ in range(random.randint(0, 3)):
            words[random.randrange(len(words))] = "other"
        test.append(" ".join(words).capitalize() + "?")
    rows = {name: [Row(text, "") for text in texts] for name, texts in (("train", train), ("test", test))}
    known, expected = [*map(runs, train)], 0
    for own in map(runs, set(test)):
        expected += any(len(own & one) / len(own | one) >= card.ALIKE for one in known)
    (found,) = card.near_duplicates(rows)
    assert found["prompts"] == expected > 10 and found["of"] == len(set(test))


def test_an_instruction_makes_no_prompts_alike():
    rows = {name: [Row(f"{name} {word}{ASK}", "") for word in WORDS] for name in ("train", "validation", "test")}
    found = card.near_duplicates(rows)
    assert [one["splits"] for one in found] == [list(pair) for pair in combinations(rows, 2)]
    assert not any(one["prompts"] for one in found)
