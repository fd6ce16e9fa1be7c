"""Further scores of an evaluation's responses, and the words, BLEU and diversity of texts that they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import sentence_bleu

from tests.trainer_ext.classifiers import write_classifier
from tests.trainer_ext.conftest import edit
from trainer_ext.scoring import reward_models, rewards, scores
from trainer_ext.scoring.rewards import texts
from trainer_ext.scoring.scores import evaluation
from trainer_ext.scoring.scores.evaluation import Answer
from trainer_ext.scoring.tasks import SPLITS, TEST

ANSWERS = [
    Answer("a", response, 0.0, "the cat sat", split, sample)
    for split in SPLITS
    for sample, response in ((None, "the cat"), (0, "a cat sat"), (1, ""))
]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores that the test registers are forgotten after it."""
    monkeypatch.setattr(scores.score, "_entries", dict(scores.score._entries))


def trainer(**chosen: Any) -> dict[str, Any]:
    return {"eval_scores": chosen}


def test_responses_to_test_prompts_have_the_scores_and_their_mean_is_over_the_drawn_ones():
    found = scores.scored(trainer(rouge_l={}, bleu={}), ANSWERS)
    assert [one.scores for one in found if one.split != TEST] == [{}] * 6
    own = {one.sample: one.scores for one in found if one.split == TEST}
    same = ("", "a cat sat", "the cat sat")
    assert own[0] == {"rouge_l": rewards.rouge_l(*same), "bleu": rewards.bleu(*same)}
    assert own[1] == {"rouge_l": 0.0, "bleu": 0.0}
    metrics = evaluation.metrics(found, 1.0)
    assert metrics["eval/rouge_l"] == own[0]["rouge_l"] / 2
    assert {"eval/rouge_l", "eval/bleu"} == scores.metrics(trainer(rouge_l={}, bleu={})) <= set(metrics)
    assert scores.scored({}, ANSWERS) == scores.scored(trainer(), ANSWERS) == ANSWERS


def test_a_score_of_ones_own_has_its_settings(own: None):
    @scores.score("marks")
    def marks(answers: Sequence[Answer], mark: str) -> list[float]:
        return [float(one.response.count(mark)) for one in answers]

    found = scores.scored(trainer(marks={"mark": "a"}), ANSWERS)
    assert [one.scores["marks"] for one in found if one.split == TEST] == [1.0, 3.0, 0.0]
    assert found[-1].numbers == {"marks": 0.0}
    (missing,) = scores.misfits(trainer(marks={}))
    assert missing.key == "trainer.eval_scores.marks.mark" and missing.fix == "set mark"
    (unknown,) = scores.misfits(trainer(marks={"mark": "a", "mrk": 1}))
    assert unknown.key == "trainer.eval_scores.marks.mrk" and unknown.fix == "write mark"


@pytest.mark.parametrize(("given", "said"), [([1.0, 2.0], "2 numbers"), ([1.0, float("nan"), 0.0], "nan")])
def test_a_score_without_a_finite_number_for_each_response_is_an_error(own: None, given: list[float], said: str):
    scores.score("odd")(lambda answers: given)
    with pytest.raises(ValueError, match=rf"trainer\.eval_scores\.odd returned {said} for 3 responses"):
        scores.scored(trainer(odd={}), ANSWERS)


@pytest.mark.parametrize("name", ["reward", "prompt", "words", "reward_mean", "selected_reward_mean", "pass@4"])
def test_a_score_does_not_take_the_name_of_a_metric_or_a_column(own: None, name: str):
    scores.score(name)(lambda answers: [0.0] * len(answers))
    (taken,) = scores.misfits(trainer(**{name: {}}))
    assert "stands for a metric or a column" in taken.rule


def test_every_metric_of_an_evaluation_is_kept_from_scores():
    metrics = {name.removeprefix("eval/") for name in evaluation.metrics(ANSWERS, 1.0)}
    assert len(metrics) >= 10 and all(scores._METRICS.fullmatch(name) for name in metrics)


def test_a_plan_is_told_what_cannot_be_used(tmp_path: Path):
    (unknown,) = scores.misfits(trainer(rouge={}))
    assert (unknown.key, unknown.value, unknown.fix) == ("trainer.eval_scores", "rouge", "write rouge_l")
    (no_mapping,) = scores.misfits(trainer(rouge_l=True))
    assert no_mapping.fix == "write trainer.eval_scores.rouge_l={}"
    (no_model,) = scores.misfits(trainer(bertscore_f1={"model": str(tmp_path)}))
    assert no_model.key == "trainer.eval_scores.bertscore_f1.model" and no_model.value == str(tmp_path)
    assert not list(scores.misfits(trainer(rouge_l={}, bleu={}))) and not list(scores.misfits({}))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "cat", "sat", "on", "mat", "dog", "ran", "red", "blue"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of three layers, for texts of up to 16 tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **marks).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, initializer_range=1.0, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


TEXTS = ["the cat sat on the mat", "a dog ran", "cat", "the red dog " * 20]
REFERENCES = ["a cat sat on a red mat", "the blue dog", "cat", "the blue cat " * 20]


@pytest.mark.peer
@pytest.mark.parametrize("layer", [1, 3])
def test_bertscore_is_that_of_the_package(encoder: Path, layer: int):
    from bert_score import BERTScorer

    from trainer_ext.scoring.scores import bertscore

    peer = BERTScorer(model_type=str(encoder), num_layers=layer, device="cpu", use_fast_tokenizer=True)
    expected = peer.score(TEXTS, REFERENCES)[2].tolist()
    assert bertscore.f1(encoder, layer, TEXTS, REFERENCES) == pytest.approx(expected, abs=1e-5)


@pytest.mark.peer
def test_bertscore_of_an_evaluation(encoder: Path, tmp_path: Path):
    chosen = trainer(bertscore_f1={"model": str(encoder)})
    assert not list(scores.misfits(chosen))
    for wrong in (4, 1.5, "x"):
        (layer,) = scores.misfits(trainer(bertscore_f1={"model": str(encoder), "layer": wrong}))
        assert layer.key == "trainer.eval_scores.bertscore_f1.layer" and "1 to 3" in layer.rule
    for content in ("{", "[]", "{}"):
        (broken := tmp_path / "broken").mkdir(exist_ok=True)
        for file in encoder.iterdir():
            (broken / file.name).write_bytes(file.read_bytes())
        (broken / "config.json").write_text(content)
        (model,) = scores.misfits(trainer(bertscore_f1={"model": str(broken), "layer": 1}))
        assert (model.key, model.value) == ("trainer.eval_scores.bertscore_f1.model", str(broken))
    (model,) = scores.misfits(trainer(bertscore_f1={"model": None}))
    assert model.key == "trainer.eval_scores.bertscore_f1.model"
    found = [one.scores["bertscore_f1"] for one in scores.scored(chosen, ANSWERS) if one.split == TEST]
    assert 0 < found[0] < 1 and found[2] == 0  # of no tokens
    same = [Answer("a", "a dog", 0.0, "a dog", TEST, 0)]
    assert scores.scored(chosen, same)[0].scores["bertscore_f1"] == pytest.approx(1.0)


def test_harmlessness_is_the_probability_of_a_classifiers_label(tmp_path: Path):
    folder = write_classifier(tmp_path / "classifier", labels=2)
    edit(folder / "config.json", id2label={"0": "harmless", "1": "toxic"}, label2id={"harmless": 0, "toxic": 1})
    chosen = trainer(harmlessness={"model": str(folder), "label": "harmless"})
    assert not list(scores.misfits(chosen))
    answers = [Answer("a", text, 0.0, "", TEST, 0) for text in ("rude", "kind cat", "")]
    found = [one.scores["harmlessness"] for one in scores.scored(chosen, answers)]
    assert found == reward_models.label_probabilities(folder, "harmless", ["rude", "kind cat", ""])
    assert len(set(found)) == 3 and all(0 < one < 1 for one in found)
    (no_label,) = scores.misfits(trainer(harmlessness={"model": str(folder), "label": "kind"}))
    assert no_label.key.startswith("trainer.eval_scores.harmlessness") and "harmless, toxic" in no_label.rule


def test_words_are_letters_and_digits_of_every_script():
    assert texts.words("It's 3.5 Äpfel!") == ["it", "s", "3", "5", "äpfel"]
    assert texts.words("Привет, мир") == ["привет", "мир"]
    assert texts.words("我爱 ML") == ["我", "爱", "ml"]
    assert texts.words("E\u0301te\u0301") == texts.words("\u00c9t\u00e9")  # composed and not


def test_distinct_n_is_the_share_of_runs_that_differ():
    assert texts.distinct(["a b a b"], 1) == 2 / 4
    assert texts.distinct(["a b a b"], 2) == 2 / 3
    assert texts.distinct(["a b", "a b", "c d e"], 2) == 3 / 4  # no run goes from one text to the next
    assert texts.distinct(["a", ""], 2) is None


def test_self_bleu_is_the_bleu_of_each_text_with_the_others_as_references():
    found = ["the cat sat on the mat", "the cat sat there on a mat", "a dog"]
    others = [[*found[:place], *found[place + 1 :]] for place in range(3)]
    by_hand = [sentence_bleu(*pair, use_effective_order=True).score for pair in zip(found, others, strict=True)]
    assert texts.self_bleu(found) == pytest.approx(sum(by_hand) / 300)
    assert texts.self_bleu(["", "", ""]) == 1 and texts.self_bleu(["x", "x"]) == 1


@settings(max_examples=40)
@given(st.lists(st.text("ab ", max_size=12), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_texts_makes_no_difference(given, rng):
    shuffled = rng.sample(given, len(given))
    assert texts.self_bleu(shuffled) == pytest.approx(texts.self_bleu(given))
    assert texts.distinct(shuffled, 2) == texts.distinct(given, 2)
    assert 0 <= texts.self_bleu(given) <= 1


def test_repetition_is_the_share_of_runs_of_four_words_that_were_there_before():
    assert texts.repetition("one two three") == 0
    assert texts.repetition("a b c d e f") == 0
    assert texts.repetition("a b c d a b c d") == pytest.approx(1 / 5)
    assert texts.repetition("no " * 103) == pytest.approx(99 / 100)
