"""Reward models: what they score, what a plan refuses, and their training on preferences whose utility is known."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.configuration import configuration
from tests.launcher.experiments import make, refused
from tests.trainer_ext.classifiers import preferences, utility, write_classifier, write_preferences
from tests.trainer_ext.conftest import MemoryRun, edit, jsonl, train_twin
from tests.trainer_ext.conftest import section as task_section
from tests.trainer_ext.twins import problems, tokenizer_of
from trainer_ext.backends.in_process.prompts import Prompt, scores_of
from trainer_ext.backends.verl_ray import reward as reward_of_ray
from trainer_ext.fits import memory
from trainer_ext.fits.architectures import Architecture
from trainer_ext.scoring import reward_models, rewards, tasks
from trainer_ext.scoring.reward_models import folders, training
from trainer_ext.scoring.reward_models.folders import Pair, Settings
from trainer_ext.scoring.reward_models.scoring import Encoder, Model
from trainer_ext.scoring.rewards.__main__ import main
from trainer_ext.scoring.tasks.preferences import pairs_of
from trainer_ext.train import train

SECTION = task_section("file")
ASKED = [{"role": "system", "content": "clear"}, {"role": "user", "content": "kind 1?"}]
TEXTS = ["", "kind", "rude rude", "clear tree cat true", "vague nonsense", "dull " * 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random reward model."""
    return write_classifier(tmp_path_factory.mktemp("models") / "rm")


@pytest.fixture(scope="module")
def section(folder):
    return {**SECTION, "reward": "reward_model", "reward_model": str(folder)}


def logits_of(folder, *texts):
    """The logits as a user of transformers computes them, one text at a time, with [CLS] and [SEP]."""
    tokenizer, model = (kind.from_pretrained(folder) for kind in (AutoTokenizer, AutoModelForSequenceClassification))
    with torch.inference_mode():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])


def scores_by_hand(folder, messages, responses):
    turns = [[*messages, {"role": "assistant", "content": response}] for response in responses]
    texts = ["\n\n".join(f"{turn['role']}: {turn['content']}" for turn in own) for own in turns]
    return logits_of(folder, *texts)[:, 0].tolist()


# ---------------------------------------------------------------- scores


def test_a_score_is_the_models_whatever_is_scored_with_it(folder, section):
    model = reward_models.reward_model(section)
    alone = [model.scores([(ASKED, text)])[0] for text in TEXTS]
    together = model.scores([(ASKED, text) for text in TEXTS * 10])
    assert together == pytest.approx(alone * 10, abs=1e-5)
    assert together == model.scores([(ASKED, text) for text in TEXTS * 10])
    assert alone == pytest.approx(scores_by_hand(folder, ASKED, TEXTS), abs=1e-5)
    assert max(alone) - min(alone) > 0.1
    assert model.scores([(ASKED[1:], "kind")])[0] != pytest.approx(alone[1], abs=1e-3)  # it reads the system message


def test_what_is_too_long_loses_its_beginning_but_for_the_first_token(folder, section):
    reward_models.reward_model(section).scores([(ASKED, "kind")])
    encoder = reward_models.reward_model(section)._model._encoder
    ids = encoder.conversation([{"role": "user", "content": "cat " * 200}], "kind rude")
    text = encoder.tokenizer.decode(ids)
    assert len(ids) == encoder.longest == 64 and text.startswith("[CLS] cat") and text.endswith("rude [SEP]")


@pytest.mark.parametrize(("family", "ends"), [("gpt2", ["<|endoftext|>"] * 2), ("llama", ["<s>", "</s>"])])
def test_messages_without_a_template_stand_after_their_roles(family, ends):
    encoder = Encoder(tokenizer_of(family))
    found = encoder.tokenizer.decode(encoder.conversation(ASKED, "true")).replace("<s> ", "<s>")
    assert found == "system: clear\n\nuser: kind 1?\n\nassistant: true".join(ends)


def test_a_chat_template_of_the_folder_is_used(folder, tmp_path):
    own = shutil.copytree(folder, tmp_path / "rm")
    (own / "chat_template.jinja").write_text("[CLS]{% for m in messages %}{{ m['content'] }} {% endfor %}[SEP]")
    score = tasks.scorer({**SECTION, "reward": "reward_model", "reward_model": str(own)})
    (own_alone,) = score.many([(ASKED, "true")])
    assert own_alone.value == pytest.approx(float(logits_of(folder, "clear kind 1? true")), abs=1e-5)


def test_threads_that_wait_are_scored_together(folder):
    model = reward_models.RewardModel(folder)
    expected = dict(zip(TEXTS, model.scores([(ASKED, text) for text in TEXTS]), strict=True))
    asked, free, ask = [], threading.Event(), model._model.scores

    def slow(group):
        asked.append(len(group))
        free.wait(10)
        return ask(group)

    model._model = SimpleNamespace(scores=slow)
    with ThreadPoolExecutor(len(TEXTS)) as threads:
        found = [threads.submit(model.scores, [(ASKED, text)]) for text in TEXTS]
        while len(model._waiting) < len(TEXTS) - 1:
            assert not any(one.done() for one in found)
        free.set()
    assert asked == [1, len(TEXTS) - 1]
    assert [one.result()[0] for one in found] == pytest.approx([expected[text] for text in TEXTS], abs=1e-5)


def test_an_error_reaches_each_thread_that_waits(folder):
    model, both = reward_models.RewardModel(folder), threading.Barrier(2)
    model._model = SimpleNamespace(scores=lambda group: 1 / 0)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(lambda: (both.wait(10), model.scores([(ASKED, "")]))) for _ in range(2)]
    assert all(isinstance(one.exception(), ZeroDivisionError) for one in found)


def test_both_backends_give_the_model_the_messages(folder, section):
    prompt = Prompt([], "", "kind 1?", {"level": 1}, ASKED)
    values = scores_by_hand(folder, ASKED, TEXTS)
    found = scores_of(tasks.scorer(section), [prompt], TEXTS)
    assert [one.value for one in found] == pytest.approx(values, abs=1e-5)
    assert all(one.seconds > 0 and not one.metrics for one in found)
    for text, value in zip(TEXTS, values, strict=True):
        info = {**reward_of_ray.extra_info(prompt), "num_turns": None}  # verl adds keys
        returned = reward_of_ray.compute_score("file", text, "", info, section)
        assert reward_of_ray.score_of(returned).value == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (lambda asked: [0.0, math.nan], r"it is nan, and must be finite in float32; prompt 'kind 1\?', response 'b'"),
        (lambda asked: 1 / 0, r"ZeroDivisionError: division by zero; .* 2 responses, .* 'a' to .* 'kind 1\?'"),
        (lambda asked: sys.exit(7), r"SystemExit: 7; of 2 responses, .* 'a' to .* 'kind 1\?'"),
    ],
    ids=["a number that is not finite", "an error", "an end of the process"],
)
def test_a_reward_model_that_fails_names_a_prompt_and_a_response(scores, said):
    class Broken(rewards.Together):
        def scores(self, asked):
            return scores(asked)

    with pytest.raises(rewards.RewardFailed, match=said):
        rewards.Scorer("mine", Broken()).many([(ASKED, "a"), (ASKED, "b")])


def test_a_classifier_of_a_file_gives_the_probability_of_a_label(tmp_path):
    folder, texts = write_classifier(tmp_path / "three", labels=3), ("rude", "kind cat")
    labels = {"fine": 0, "toxic": 1, "odd": 2}
    edit(folder / "config.json", label2id=labels, id2label={str(number): name for name, number in labels.items()})
    logits = logits_of(folder, *texts)
    found = reward_models.label_probabilities(folder, "toxic", texts)
    assert found == pytest.approx(logits.softmax(dim=1)[:, 1].tolist(), abs=1e-5)
    edit(folder / "config.json", problem_type="multi_label_classification")
    found = reward_models.label_probabilities(folder, "toxic", texts)
    assert found == pytest.approx(logits.sigmoid()[:, 1].tolist(), abs=1e-5)
    with pytest.raises(ValueError, match="it has no label rude; its labels are fine, toxic, odd"):
        folders.check("KEY", str(folder), "rude")


# ---------------------------------------------------------------- plans


@pytest.fixture
def own(folder, tmp_path):
    """A folder of a test's own to spoil, and the words of a plan with it."""
    path = jsonl(tmp_path / "own.jsonl", *({"prompt": f"{n}?"} for n in range(40)))
    spoilt = shutil.copytree(folder, tmp_path / "rm")
    words = ["method=c0_grpo", "task=file", f"task.train_path={path}", "task.answer=null"]
    words += ["model=pretrained", "model.path=of/somebody", "task.reward=reward_model"]
    return spoilt, [*words, f"task.reward_model={spoilt}"]


def behead(folder):
    """Write the weights without the classifier's head, as of a model that was not trained to classify."""
    weights = load_file(folder / "model.safetensors")
    save_file({name: of for name, of in weights.items() if "classifier" not in name}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "spoil",
    [
        behead, shutil.rmtree, lambda own: (own / "model.safetensors").unlink(),
        lambda own: [path.unlink() for path in own.glob("token*")], lambda own: (own / "config.json").write_text("["),
        lambda own: (own / "adapter_config.json").write_text("{}"),
        lambda own: (own / "model.safetensors").write_text("version 1"),
        lambda own: edit(own / "config.json", id2label={"0": "no", "1": "yes"}),
        lambda own: edit(own / "config.json", id2label=None),
        lambda own: edit(own / "config.json", architectures=["DistilBertModel"]),
        lambda own: edit(own / "config.json", vocab_size=20),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_give_rewards_is_refused_by_a_plan(own, spoil, worded):
    folder, words = own
    spoil(folder)
    worded(refused(*words))


def test_a_model_whose_pickled_weights_lack_the_head_gives_no_random_scores(own):
    """Headers show it of safetensors; of other files, loading does."""
    folder, _ = own
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({name: of for name, of in weights.items() if "classifier" not in name}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"lack classifier\.bias, classifier\.weight, .* scores would be random"):
        reward_models.RewardModel(folder).scores([(ASKED, "kind")])


def test_the_two_keys_of_a_reward_model_belong_together(own, worded):
    _, words = own
    for some in (words[:-1], [*words[:-2], words[-1]]):
        worded(refused(*some))


def test_the_content_of_a_reward_model_is_data_of_its_runs(own):
    folder, words = own
    planned = make(*words)
    ((before, run),) = planned.runs.items()
    assert str(folder) in run.config["inputs"]
    (folder / "card.json").write_text("{}")
    (folder / "README.md").write_text("about it")
    assert list(make(*words).runs) == [before]
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert list(make(*words).runs) != [before]


def test_prepared_prompts_have_the_name_of_the_reward_model_that_scores_them(own, section, tmp_path):
    folder, _ = own
    task = {**section, "reward_model": str(folder), "train_path": f"{tmp_path}/own.jsonl", "answer": None}
    none = {"validation": 0.0, "test": 0.0}
    before = tasks.prepare(task, none, tmp_path / "cache")
    assert tasks.prepare(task, none, tmp_path / "cache") == before
    edit(folder / "config.json", dropout=0.2)
    assert tasks.prepare(task, none, tmp_path / "cache") != before  # so targets are made again, too


def test_its_weights_count_as_memory(own, section):
    folder, _ = own
    count = sum(one.numel() for one in AutoModelForSequenceClassification.from_pretrained(folder).parameters())
    assert folders.parameters(section) == count
    assert folders.parameters({**section, "reward": "bleu"}) == 0
    small = Architecture("llama", 100, 8, 16, 2, 2, 2, 4, 64, False)
    config = configuration("method=c0_grpo")
    need = memory.need(config["method"], config["verl"], small, small, False, count)
    assert need.throughout["reward model"] == 4 * count


# ---------------------------------------------------------------- training


@pytest.mark.parametrize(
    "words",
    [
        "epoch=2", "epochs=two", "epochs=0", "lr=0", "max_length=65", "task.train_path={own}/none.jsonl",
        "task.answer=answer", "task.train_path={own}/asked.jsonl", "task.train_path={own}/lists.jsonl",
        "task.train_path={own}/same.jsonl",
        "trainer.split.test=0.0", "--model {own}/empty", "--model {own}/nosuch", "--to {own}/empty",
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_named_and_there_is_no_folder(words, folder, tmp_path, capsys, worded):
    (tmp_path / "empty").mkdir()
    (tmp_path / "asked.jsonl").write_text('{"prompt": "cat?"}\n{"prompt": "kind?"}\n{"prompt": "1"}\n{"prompt": "2"}\n')
    (tmp_path / "lists.jsonl").write_text('{"prompt": "1", "chosen": ["a"], "rejected": ["b"]}\n' * 2)
    lines = [{"prompt": f"{n}", "chosen": "a", "rejected": "a" if n > 2 else None} for n in range(9)]
    jsonl(tmp_path / "same.jsonl", *lines)
    path = write_preferences(tmp_path / "pairs.jsonl", 60)
    given = ["train", "file", "--to", f"{tmp_path}/to", "--model", str(folder), f"task.train_path={path}"]
    given += ["task.answer=null", "max_length=64", *words.replace("{own}", str(tmp_path)).split()]
    assert main(given) == 2
    worded(capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / "to").exists()


def test_pairs_are_those_of_the_data_divided_as_the_prompts_of_runs(tmp_path):
    info = {"subreddit": "cats", "title": "Cats"}
    lines = [
        {"info": {**info, "post": f"post {n}"}, "summaries": [{"text": "bad"}, {"text": f"good {n}"}], "choice": 1}
        for n in range(60)
    ]
    same = {"info": {**info, "post": "the same"}, "summaries": [{"text": "a"}, {"text": "a "}], "choice": 0}
    path = jsonl(tmp_path / "a.jsonl", *lines, lines[0], same, {"prompt": "SUBREDDIT: r/x", "completion": "no pair"})
    own, shares = task_section("tldr", train_path=path), {"validation": 0.2, "test": 0.2}
    pairs, left_out = pairs_of(own, shares, seed=0)
    assert left_out == {"without a pair": 1, "both responses are the same": 1}
    divided = tasks.rows_by_split(own, shares)
    for split, found in pairs.items():
        rows = [row for row in divided[split] if row.ground_truth.startswith("good")]
        assert found == [Pair(row.messages, row.ground_truth, "bad") for row in rows] and found
    assert sum(map(len, pairs.values())) in (60, 61)  # a prompt stands twice in the training split alone


def test_calibration_and_accuracy_by_hand():
    margins = [math.log(3)] * 4 + [-math.log(3)] + [0.0] + [math.log(99)] * 2  # predicted: 0.75, 0.5 and 0.99
    assert training._share(margins) == 6.5 / 8
    even, likely, sure = training._reliability(margins)
    assert (even["pairs"], even["predicted"], even["observed"]) == (1, 0.5, 0.5)
    assert (likely["pairs"], likely["observed"]) == (5, 0.8) and likely["predicted"] == pytest.approx(0.75)
    assert (sure["from"], sure["to"], sure["pairs"], sure["observed"]) == (0.95, 1.0, 2, 1.0)
    for right, count in ((0, 5), (3, 7), (40, 40), (611, 800)):
        expected = binomtest(right, count).proportion_ci(0.95, "wilson")
        assert training._interval(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.train
def test_a_trained_model_reaches_bayes_accuracy_and_is_a_reward(tmp_path, capsys):
    base, path = write_classifier(tmp_path / "base", spread=0.05), write_preferences(tmp_path / "pairs.jsonl", 5000)
    words = [f"task.train_path={path}", "task.answer=null", "trainer.split.test=0.4", "--model", str(base)]
    words += ["lr=2e-3", "epochs=6", "max_length=24", "checks=1", "micro_batch_size=32"]
    assert main(["train", "file", "--to", f"{tmp_path}/rm", *words]) == 0
    card, said = json.loads((tmp_path / "rm/card.json").read_text()), capsys.readouterr()
    section = {**SECTION, "train_path": str(path), "answer": None}
    test = tasks.rows_by_split(section, {"validation": 0.1, "test": 0.4})["test"]
    two = [(row.metadata["chosen"], row.metadata["rejected"]) for row in test]
    known = [utility(chosen) - utility(rejected) for chosen, rejected in two if chosen != rejected]
    bayes = training._share(known)
    low, high = card["test"]["interval"]
    assert card["test"]["pairs"] == len(known) > 1800
    assert abs(card["test"]["accuracy"] - bayes) < 0.02 and low < bayes < high
    assert card["test"]["expected_calibration_error"] < 0.05
    assert card["left_out"]["both responses are the same"] > 0
    assert sum(card["pairs"].values()) == 5000 - card["left_out"]["both responses are the same"]
    assert f"accuracy on {len(known)} test pairs" in said.out and "update " in said.err
    for name, digest in card["files"].items():
        assert tasks.content(tmp_path / "rm" / name) == digest

    model = reward_models.reward_model({"reward": "reward_model", "reward_model": f"{tmp_path}/rm"})
    texts = [line["chosen"] for line in preferences(200, seed=1)]
    scores = model.scores([([{"role": "user", "content": "7"}], text) for text in texts])
    correlation = torch.corrcoef(torch.tensor([scores, [utility(text) for text in texts]]))[0, 1]
    assert correlation > 0.97


def pairs_from(lines):
    return [Pair([{"role": "user", "content": one["prompt"]}], one["chosen"], one["rejected"]) for one in lines]


@pytest.mark.train
def test_deberta_v3_trains_and_the_same_seed_gives_the_same_model(tmp_path):
    base, pairs = write_classifier(tmp_path / "base", "deberta"), pairs_from(preferences(96))
    settings = Settings(lr=1e-3, batch_size=16, micro_batch_size=5, max_length=32, checks=2)
    places = tmp_path / "one", tmp_path / "two"
    found, again = (
        training.train(pairs[:64], pairs[64:], str(base), place, settings, lambda _: None) for place in places
    )
    losses = {one["step"]: one["validation_loss"] for one in found["history"]}
    assert found == again and list(losses) == [2, 4]
    one, two, start = ((place / "model.safetensors").read_bytes() for place in (*places, base))
    assert one == two != start
    folders.check("task.reward_model", str(places[0]))
    chosen = losses[found["chosen_step"]]
    assert training.evaluation(places[0], pairs[64:])["loss"] == pytest.approx(chosen, abs=1e-5)


@pytest.mark.train
def test_deberta_v3_trains_from_a_folder_that_has_spm_model_alone(tmp_path):
    more = [f"word{number}" for number in range(40)]
    base, corpus = write_classifier(tmp_path / "base", "deberta", words=more), tmp_path / "corpus.txt"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).unlink()
    lines = preferences(300)
    corpus.write_text("".join(f"{one['prompt']} {one['chosen']}\n{one['rejected']}\n" for one in lines))
    special = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "user_defined_symbols": []}
    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    size = json.loads((base / "config.json").read_text())["vocab_size"] - 1  # [MASK] is added
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(base / "spm"), vocab_size=size, hard_vocab_limit=False, **special, **pieces
    )
    pairs = pairs_from(lines[:24])
    settings = Settings(lr=1e-3, batch_size=8, micro_batch_size=8, max_length=32, checks=1)
    training.train(pairs[:16], pairs[16:], str(base), tmp_path / "trained", settings, lambda _: None)
    folders.check("task.reward_model", str(tmp_path / "trained"))


@pytest.mark.train
def test_a_run_has_the_rewards_of_its_model(tmp_path):
    words = sorted({word for one in problems() for text in one.values() for word in text.split()})
    model = write_classifier(tmp_path / "rm", words=words)
    path = jsonl(tmp_path / "own.jsonl", *({"prompt": one["question"]} for one in problems()))
    given = ["method=c0_grpo", "task=file", f"task.train_path={path}", "task.answer=null"]
    given += ["task.reward=reward_model", f"task.reward_model={model}", "task.system_prompt=clear"]
    given += ["trainer.eval_every=1", "trainer.eval_prompts=2", "trainer.eval_responses=2"]
    run = train_twin(tmp_path, *given, "trainer.split.validation=0.2")
    assert len(run.lines) == 2 and run.responses
    for _, prompt, response, reward, _ in run.responses:
        messages = [{"role": "system", "content": "clear"}, {"role": "user", "content": prompt}]
        assert [reward] == pytest.approx(scores_by_hand(model, messages, [response]), abs=1e-5)
    assert len({round(answer.reward, 4) for answer in run.evaluations[1]}) > 1


LEARNED = "task.learned_reward={model: policy, share: 0.4, max_length: 16, lr: 1.0e-3}"


def test_a_learned_reward_has_prompts_of_its_own():
    section = configuration("method=c0_grpo", LEARNED)["task"]
    shares = {"validation": 0.1, "test": 0.2}
    parts = [tasks.rows_by_split(section, shares, reserved) for reserved in (False, True)]
    seen, kept = ({row.prompt for rows in part.values() for row in rows} for part in parts)
    every = {row.prompt for row in tasks.get("expression").rows(section)}
    assert not seen & kept and seen | kept == every and len(kept) / len(every) == pytest.approx(0.4, abs=0.1)
    pairs, _ = pairs_of(section, shares, seed=0)
    assert {pair.messages[-1]["content"] for own in pairs.values() for pair in own} <= kept


@pytest.mark.train
def test_a_learned_reward_is_trained_once_and_scores_all_methods_and_targets(tmp_path):
    words = ["trainer.steps=1", "trainer.eval_every=1", "trainer.eval_prompts=4", "task.train_prompts=1000", LEARNED]
    words += ["task.warm_start.steps=20", "verl.data.train_batch_size=4", "method.target_prompts=4"]
    words += ["verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    runs = [MemoryRun(tmp_path / name, tmp_path / "cache") for name in ("tilted", "plain")]
    train(configuration("method=q_star", "method/target=reward_tilted", *words, "method.target_steps=2"), runs[0])
    (model,) = (tmp_path / "cache" / "rewards").glob("[!.]*")
    made = model.stat().st_mtime_ns, json.loads((model / "card.json").read_text())
    train(configuration("method=c0_grpo", *(word for word in words if "target" not in word)), runs[1])
    assert [*(tmp_path / "cache" / "rewards").glob("[!.]*")] == [model] and model.stat().st_mtime_ns == made[0]
    assert made[1]["settings"]["training"]["max_length"] == 16 and made[1]["pairs"]["train"] > 50
    for run in runs:
        asked = [([{"role": "user", "content": prompt}], response) for _, prompt, response, _, _ in run.responses]
        assert Model(model).scores(asked) == pytest.approx([reward for *_, reward, _ in run.responses], abs=1e-5)
    assert runs[0].lines[0]["samples/target"] == 4 * 16
