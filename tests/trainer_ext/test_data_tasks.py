"""The tasks over public data sets, on a few lines in their layouts with the quirks that the real data have."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.configuration import configuration
from tests.launcher.experiments import make
from tests.trainer_ext.conftest import jsonl, section, train_twin
from tests.trainer_ext.test_code_tasks import FUNCTIONS, PROBLEMS
from trainer_ext.objection import Objection
from trainer_ext.scoring import tasks
from trainer_ext.scoring.tasks import tables

SHARES = {"validation": 0.0, "test": 0.0}
POST = 'I (25F) moved in with my boyfriend.\nHe says "no pets" & I\'ve two cats… what now?'
LONG = "word " * 5000
LINES = {
    "tldr": [
        {"prompt": f"SUBREDDIT: r/cats\n\nPOST: {POST}\n\nTL;DR:", "completion": " He wants no pets; I have two cats."},
        {"prompt": f"SUBREDDIT: r/cats\n\nPOST: {POST}\n\nTL;DR:", "completion": " Boyfriend against my cats."},
        {"prompt": "SUBREDDIT: r/de\n\nPOST: Vermieter heißt Jürgen.\n\nTL;DR:", "completion": " Ärger mit Jürgen"},
        {"prompt": f"SUBREDDIT: r/x\n\nPOST: {LONG}\n\nTL;DR:", "completion": " Words."},
        {"prompt": "SUBREDDIT: r/x\n\nPOST: empty summary\n\nTL;DR:", "completion": "  "},
    ],
    "hh_rlhf": [
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: Who wrote \"Faust\"?\n\nAssistant: Goethe did.",
            "rejected": "\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: Who wrote \"Faust\"?\n\nAssistant: No idea: ask",
        },
        {"chosen": "\n\nHuman: ¿Qué tal?\n\nAssistant: ¡Bien!", "rejected": "\n\nHuman: ¿Qué tal?\n\nAssistant:"},
        {  # an empty reply on the way, and two messages of the user in a row
            "chosen": "\n\nHuman: a\n\nAssistant: \n\nHuman: b\n\nHuman: c\n\nAssistant: d\n\ne: f",
            "rejected": "\n\nHuman: a\n\nAssistant: \n\nHuman: b\n\nHuman: c\n\nAssistant: g",
        },
        {"chosen": "\n\nHuman: q\n\nAssistant: ", "rejected": "\n\nHuman: q\n\nAssistant: r"},
        {"chosen": "\n\nHuman: q\n\nAssistant: s\n\nHuman: t", "rejected": "\n\nHuman: q\n\nAssistant: r"},
        {"chosen": "\n\nHuman: one\n\nAssistant: s", "rejected": "\n\nHuman: two\n\nAssistant: r"},
        {"chosen": "\n\nHuman: only asked", "rejected": "\n\nHuman: only asked"},
    ],
    "wmt": [
        {"translation": {"de": "Die Katze schläft.", "en": "The cat sleeps."}},
        {"translation": {"de": "\"Nein\", sagte er.\u00a0", "en": "\"No\", he said."}},
        {"translation": {"de": "", "en": "(Applause)"}},
        {"translation": {"de": "Die Katze schläft.", "en": "The cat is asleep."}},
    ],
    "natural_questions": [
        {"question": "who wrote faust", "answer": ["Goethe", "Johann Wolfgang von Goethe"]},
        {"question": "what is 6*7 ", "answer": ["42"]},
        {"question": "no answer", "answer": []},
        {"question": "capital of peru", "answer": ["Lima "]},
    ],
}  # fmt: skip


INFO = {"id": "t3_1", "post": POST, "title": "Cats", "subreddit": "cats", "site": None, "article": None}
SUMMARIES = [{"text": " Worse.", "policy": "sup2", "note": None}, {"text": " Better.", "policy": "ref", "note": "x"}]
GSM8K = [{"question": "1 + 1?", "answer": "It is 2\n#### 2"}, {"question": "big?", "answer": "#### 1,000"}]
TURNS = [
    {"role": role, "content": content}
    for role, content in (("system", "You count."), ("user", "1?"), ("assistant", "2"), ("user", "3?"))
]
#: The columns of verl's own examples (examples/data_preprocess/gsm8k.py).
OF_VERL = {
    "data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "2+2?"}], "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"split": "train", "index": 0, "how": "add"},
}  # fmt: skip
#: By name: the task, its files with their lines, the first of which it trains on, and settings, with names of files.
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{f"{task}, public lines": (task, {"a.jsonl": lines}, {}) for task, lines in LINES.items()},
    "tldr, labels": ("tldr", {"a.jsonl": [{"prompt": "a", "label": "b"}]}, {}),
    "tldr, comparisons": ("tldr", {"a.jsonl": [{"info": INFO, "summaries": SUMMARIES, "choice": 1, "x": ""}]}, {}),
    "tldr, one summary": ("tldr", {"a.jsonl": [{"info": INFO, "summaries": SUMMARIES[:1], "choice": 1}]}, {}),
    "wmt, the other way": ("wmt", {"a.jsonl": LINES["wmt"]}, {"source": "en", "target": "de"}),
    "natural_questions, a test file": (
        "natural_questions", {"a.jsonl": LINES["natural_questions"], "b.jsonl": [{"question": "who", "answer": "me"}]},
        {"test_path": "b.jsonl"},
    ),
    **{
        f"{task}, {reason}": (task, {"a.jsonl": [line]}, {})
        for task, reason, line in (
            ("wmt", "no translation", {"de": "a", "en": "b"}), ("wmt", "no target", {"translation": {"fr": "a"}}),
            ("tldr", "no summary", {"post": "a"}), ("natural_questions", "a number", {"question": "a", "answer": 3}),
            ("hh_rlhf", "no dialogue", {"chosen": "Hello", "rejected": "x"}),
        )
    },
    "gsm8k": ("gsm8k", {"a.jsonl": GSM8K, "b.jsonl": GSM8K[1:]}, {"test_path": "b.jsonl"}),
    "file, columns": (
        "file", {"a.jsonl": [{"q": "2+2?", "a": 4, "how": "add", "level": 1, "tags": ["x"]}]},
        {"prompt": "q", "answer": "a", "worked_answer": "how", "system_prompt": "Be short."},
    ),
    "file, as verl prepares it": ("file", {"a.parquet": [OF_VERL]}, {"answer": "reward_model.ground_truth"}),
    "file, parts of columns": (
        "file",
        {"a.jsonl": [{"m": {"q": "2+2?", "a": 4, "level": 1}, "n": {"a": "x"}, "extra_info": {"how": "add", "b": 2}}]},
        {"prompt": "m.q", "answer": "n.a", "worked_answer": "extra_info.how"},
    ),
    "file, an empty message of the system": (
        "file", {"a.jsonl": [{"prompt": [TURNS[0] | {"content": ""}, *TURNS[1:]], "answer": "4"}]},
        {"system_prompt": "Be short."},
    ),
    "file, two messages of the system": ("file", {"a.jsonl": [{"prompt": [TURNS[0], *TURNS], "answer": "4"}]}, {}),
    "file, messages": (
        "file", {"a.jsonl": [{"prompt": TURNS, "answer": "4"}, {"prompt": TURNS[-1:], "answer": "4"}]},
        {"system_prompt": "Be short."},
    ),
    **{
        f"file, not to be read {n}": ("file", {"a.jsonl": text}, {})
        for n, text in enumerate((
            '{"prompt": "a", "answer": "b"}\n{"prompt": ', '["a", "b"]', '{"question": "a"}',
            '{"prompt": "a", "answer": null}', '{"prompt": " ", "answer": "b"}',
            '{"prompt": [{"role": "human", "content": "a"}], "answer": "b"}',
            '{"prompt": [{"role": "assistant", "content": "a"}], "answer": "b"}',
            '{"prompt": "a", "answer": "b"}\n{"prompt": "é"}'.encode("latin-1"), '{"prompt": "é"}'.encode("utf-16"),
            '{"prompt": "\\ud800", "answer": "b"}', b"\xef\xbb\xbf{}", '{"prompt": "a", "answer": NaN}',
            '{"prompt": "a", "answer": [1e999]}',
        ))
    },
    "file, no table": ("file", {"a.parquet": "PA"}, {}),
    "file, dates": ("file", {"a.parquet": [{"prompt": "a", "answer": date(2020, 1, 2)}]}, {}),
    "file, bytes": ("file", {"a.parquet": [{"prompt": "a", "answer": b"\xff"}]}, {}),
    "gsm8k, a part of a file": ("gsm8k", {"a.jsonl.gz": gzip.compress(b"{}" * 99)[:20]}, {}),
    "humaneval": ("humaneval", {"a.jsonl.gz": FUNCTIONS}, {"test_path": "a.jsonl.gz"}),
    "humaneval, alone": ("humaneval", {"a.jsonl.gz": FUNCTIONS}, {"instruction": None}),
    "apps": ("apps", {"a.jsonl": PROBLEMS, "b.jsonl.gz": FUNCTIONS[:1]}, {"humaneval_path": "b.jsonl.gz"}),
    "apps, a list": ("apps", {"a.jsonl": [PROBLEMS[0] | {"solutions": ["print(2)"]}]}, {}),
    "apps, interviews": ("apps", {"a.jsonl": PROBLEMS}, {"difficulty": "interview"}),
    **{
        f"apps, not to be read {n}": ("apps", {"a.jsonl": [PROBLEMS[0] | change]}, {})
        for n, change in enumerate((
            {"input_output": "{"}, {"input_output": '{"inputs": ["1"], "outputs": []}'}, {"question": None},
            {"solutions": '"print(3)"'}, {"solutions": '{"a": 1}'}, {"solutions": [1]}, {"starter_code": 5},
            {"input_output": "[1]"}, {"input_output": '{"inputs": 5, "outputs": 5}'},
            {"input_output": '{"inputs": [[1]], "outputs": [1], "fn_name": 5}'},
        ))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_task_has_these_rows_or_refuses_its_data(name, tmp_path, capsys, worded):
    task, data, values = ROWS[name]
    for file, lines in data.items():
        if isinstance(lines, (str, bytes)):
            (tmp_path / file).write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        elif file.endswith("parquet"):
            pq.write_table(pa.Table.from_pylist(lines), tmp_path / file)
        else:
            jsonl(tmp_path / file, *lines)
    given = {"train_path": next(iter(data)), **values}
    paths = {key: f"{tmp_path}/{value}" for key, value in given.items() if value in data}
    module, found = tasks.get(task), []
    try:
        for row in module.rows(section(task, **{**given, **paths})):
            shown = {key: value for key, value in asdict(row).items() if key in ("ground_truth", "metadata", "split")}
            if "rejected" in row.metadata:
                shown["preference"] = module.preference(row.ground_truth, None, row.metadata)
            shown |= {"worked_answer": row.worked_answer, "messages": row.messages}
            text = json.dumps(shown, ensure_ascii=False)
            found.append(re.sub(r"(word |0){20,}", r"\1...", text))
    except ValueError as error:
        found.append(f"refused: {error}")
    worded([*found, *capsys.readouterr().err.splitlines()])


def test_a_limit_leaves_the_lines_after_the_first_ones_unread(tmp_path):
    file = Path(jsonl(tmp_path / "b.jsonl", LINES["wmt"][0]))
    with file.open("a") as text:
        text.write("this is not JSON")
    assert len(tasks.get("wmt").rows(section("wmt", train_path=str(file), limit=1))) == 1
    with pytest.raises(Objection, match="line 2: not JSON"):
        tasks.get("wmt").rows(section("wmt", train_path=str(file)))


def test_parquet_is_read_in_parts(tmp_path):
    count = 70_000  # more than a part
    texts = [{"de": f"Satz {number}", "en": f"Sentence {number}"} for number in range(count)]
    pq.write_table(pa.table({"translation": texts}), tmp_path / "a.parquet")
    found = [line["translation"]["en"] for _, line in tables.lines(str(tmp_path / "a.parquet"), "train")]
    assert found == [text["en"] for text in texts]
    first = tasks.get("wmt").rows(section("wmt", train_path=f"{tmp_path}/a.parquet", limit=3))
    assert [row.ground_truth for row in first] == ["Sentence 0", "Sentence 1", "Sentence 2"]


def test_natural_questions_take_any_of_the_answers(tmp_path):
    asked = section("natural_questions", train_path=jsonl(tmp_path / "a.jsonl", *LINES["natural_questions"]))
    first, score = tasks.get("natural_questions").rows(asked)[0], tasks.scorer(asked)
    for response, expected in (("The Goethe.", 1), ("johann wolfgang von goethe", 1), ("Schiller", 0), ("", 0)):
        assert score(response, first.prompt, first.ground_truth, {}).value == expected


@pytest.mark.parametrize("name", LINES)
def test_a_task_is_prepared_and_planned_from_a_local_file(name, tmp_path):
    path = jsonl(tmp_path / "a.jsonl", *LINES[name])
    pq.write_table(pa.Table.from_pylist(LINES[name]), tmp_path / "a.parquet")
    own = section(name, train_path=path)
    assert tasks.get(name).rows(own) == tasks.get(name).rows(section(name, train_path=f"{tmp_path}/a.parquet"))
    lines = pq.read_table(tasks.prepare(own, SHARES, tmp_path / "cache") / "train.parquet").to_pylist()
    score = tasks.scorer(own)
    for line in lines:
        truth = line["reward_model"]["ground_truth"]
        best = json.loads(truth)[0] if name == "natural_questions" else truth
        assert score(best, "", truth, line["extra_info"]).value == pytest.approx(1)
    words = ["method=c0_grpo", f"task={name}", f"task.train_path={path}", "model=pretrained", "model.path=of/somebody"]
    assert make(*words).runs


@pytest.mark.train
def test_dpo_learns_from_the_pairs_of_the_data(tmp_path):
    words = ["method=dpo", "method.dpo_pairs=data", "task=hh_rlhf"]
    words += ["trainer.split.validation=0", "trainer.split.test=0", "verl.data.max_response_length=16"]
    words += [f"task.train_path={jsonl(tmp_path / 'a.jsonl', *LINES['hh_rlhf'])}"]
    actor = "verl.actor_rollout_ref.actor"
    words += [f"{actor}.ppo_mini_batch_size=2", f"{actor}.ppo_micro_batch_size_per_gpu=2"]
    run = train_twin(tmp_path, *words, "verl.actor_rollout_ref.rollout.n=2")
    assert len(run.lines) == 2 and all(line["actor/grad_norm"] > 0 for line in run.lines)


def test_a_folder_of_a_data_set_on_the_hub_is_read_alone(tmp_path, monkeypatch):
    """datasets reads a relative folder as it reads a name; the layout is that of Anthropic/hh-rlhf."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for folder in ("harmless-base", "helpful-base"):
        for split in ("train", "test"):
            file = tmp_path / "Anthropic/hh-rlhf" / folder / f"{split}.jsonl.gz"
            talk = f"\n\nHuman: {folder}, {split}?\n\nAssistant: "
            jsonl(file, {"chosen": f"{talk}Yes.", "rejected": f"{talk}No."})
    found = tasks.get("hh_rlhf").rows(configuration("task=hh_rlhf_harmless")["task"])
    expected = [("harmless-base, train?", None), ("harmless-base, test?", "test")]
    assert [(row.prompt, row.split) for row in found] == expected
    assert len(tasks.get("hh_rlhf").rows(configuration("task=hh_rlhf")["task"])) == 4


def test_a_data_set_with_a_script_is_read_from_its_files_or_refused(tmp_path, monkeypatch):
    """datasets refuses the script of a folder as it refuses one of the hub; the files are in the hub's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("with_files", "alone"):
        (tmp_path / "some" / name).mkdir(parents=True)
        (tmp_path / "some" / name / f"{name}.py").write_text("import datasets\n")
    cached = tmp_path / "hub/datasets--some--with_files"
    (cached / "snapshots/abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    (cached / "snapshots/abc/train.jsonl").write_text(json.dumps({"question": "q"}) + "\n")
    assert [line for _, line in tables.lines("some/with_files", "train")] == [{"question": "q"}]
    with pytest.raises(Objection, match=r"has a script, .*hf download some/alone .*task\.train_path"):
        list(tables.lines("some/alone", "train"))
