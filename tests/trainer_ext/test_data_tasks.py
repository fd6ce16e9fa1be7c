"""The tasks over public data sets, on a few lines in their layouts with the quirks that the real data have."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.configuration import configuration
from tests.launcher.experiments import make
from tests.trainer_ext.conftest import jsonl, refusal, section, train_twin
from trainer_ext import tasks
from trainer_ext.tasks import tables

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


def rows(name, tmp_path, lines=None, **more):
    return tasks.get(name).rows(section(name, train_path=jsonl(tmp_path / "a.jsonl", *(lines or LINES[name])), **more))


def test_tldr_has_posts_with_their_summaries(tmp_path):
    found = rows("tldr", tmp_path)
    assert [row.ground_truth for row in found] == [
        "He wants no pets; I have two cats.", "Boyfriend against my cats.", "Ärger mit Jürgen", "Words."
    ]  # fmt: skip
    assert POST in found[0].prompt and found[0].prompt == found[1].prompt
    labelled = [{"prompt": "a", "label": "b"}]
    assert [row.ground_truth for row in rows("tldr", tmp_path, labelled)] == ["b"]


def test_comparisons_of_summaries_are_pairs(tmp_path):
    info = {"id": "t3_1", "post": POST, "title": "Cats", "subreddit": "cats", "site": None, "article": None}
    summaries = [
        {"text": " Worse.", "policy": "sup2", "note": None},
        {"text": " Better.", "policy": "ref", "note": "x"},
    ]
    (row,) = rows("tldr", tmp_path, [{"info": info, "summaries": summaries, "choice": 1, "worker": "w"}])
    assert row.prompt == f"SUBREDDIT: r/cats\n\nTITLE: Cats\n\nPOST: {POST}\n\nTL;DR:"
    assert tasks.get("tldr").preference(row.ground_truth, None, row.metadata) == ("Better.", "Worse.")
    with pytest.raises(tasks.BadData, match="line 1: a comparison has info, two summaries"):
        rows("tldr", tmp_path, [{"info": info, "summaries": summaries[:1], "choice": 1}])


def test_hh_rlhf_has_the_messages_before_the_last_one_and_pairs(tmp_path):
    first, second, third = rows("hh_rlhf", tmp_path)
    assert first.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": 'Who wrote "Faust"?'},
    ]
    preference = tasks.get("hh_rlhf").preference
    assert preference(first.ground_truth, None, first.metadata) == ("Goethe did.", "No idea: ask")
    assert (second.prompt, preference("", None, second.metadata)) == ("¿Qué tal?", ("¡Bien!", ""))
    assert [message["content"] for message in third.messages] == ["a", "", "b\n\nc"]
    assert third.ground_truth == "d\n\ne: f"


def test_wmt_translates_from_the_source_to_the_target(tmp_path):
    found = rows("wmt", tmp_path)
    assert [row.ground_truth for row in found] == ["The cat sleeps.", '"No", he said.', "The cat is asleep."]
    assert found[0].prompt.endswith("\nDie Katze schläft.")
    assert rows("wmt", tmp_path, source="en", target="de")[0].ground_truth == "Die Katze schläft."


def test_a_limit_leaves_the_lines_after_the_first_ones_unread(tmp_path):
    assert len(rows("wmt", tmp_path, limit=1)) == 1
    file = Path(jsonl(tmp_path / "b.jsonl", LINES["wmt"][0]))
    with file.open("a") as text:
        text.write("this is not JSON")
    assert len(tasks.get("wmt").rows(section("wmt", train_path=str(file), limit=1))) == 1
    with pytest.raises(tasks.BadData, match="line 2: not JSON"):
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
    found = rows("natural_questions", tmp_path)
    assert [row.prompt for row in found] == ["who wrote faust", "what is 6*7", "capital of peru"]
    score = tasks.scorer(section("natural_questions", train_path=f"{tmp_path}/a.jsonl"))
    for response, expected in (("The Goethe.", 1), ("johann wolfgang von goethe", 1), ("Schiller", 0), ("", 0)):
        assert score(response, found[0].prompt, found[0].ground_truth, {}).value == expected


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wmt", {"de": "a", "en": "b"}),
        ("wmt", {"translation": {"fr": "a"}}),
        ("natural_questions", {"question": "a", "answer": 3}),
        ("tldr", {"post": "a"}),
        ("hh_rlhf", {"chosen": "Hello", "rejected": "x"}),
    ],
)
def test_a_line_of_another_layout_is_named(name, line, tmp_path, worded):
    worded(refusal(lambda: rows(name, tmp_path, [line]), tasks.BadData))


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


def test_test_data_of_a_file_are_the_test_split(tmp_path):
    more = jsonl(tmp_path / "b.jsonl", {"question": "who", "answer": "me"})
    found = rows("natural_questions", tmp_path, test_path=more)
    assert [row.split for row in found] == [None, None, None, "test"]


@pytest.mark.train
def test_dpo_learns_from_the_pairs_of_the_data(tmp_path):
    words = [
        "method=dpo",
        "method.dpo_pairs=data",
        "task=hh_rlhf",
        "trainer.split.validation=0",
        "trainer.split.test=0",
    ]
    words += [f"task.train_path={jsonl(tmp_path / 'a.jsonl', *LINES['hh_rlhf'])}", "verl.data.max_response_length=16"]
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
    assert [(row.prompt, row.split) for row in found] == [
        ("harmless-base, train?", None),
        ("harmless-base, test?", "test"),
    ]
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
    with pytest.raises(tasks.BadData, match=r"has a script, .*hf download some/alone .*task\.train_path"):
        list(tables.lines("some/alone", "train"))
