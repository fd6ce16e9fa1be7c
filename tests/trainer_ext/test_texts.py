"""Words, BLEU, diversity and repetition of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import sentence_bleu

from trainer_ext.scoring.rewards import texts

TEXTS = st.lists(st.text("ab ", max_size=12), min_size=2, max_size=5)


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
    by_hand = [
        sentence_bleu(text, own, use_effective_order=True).score / 100 for text, own in zip(found, others, strict=True)
    ]
    assert texts.self_bleu(found) == pytest.approx(sum(by_hand) / 3)
    assert texts.self_bleu(["", "", ""]) == 1 and texts.self_bleu(["x", "x"]) == 1
    with pytest.raises(ValueError, match="2 texts or more; there are 1"):
        texts.self_bleu(["alone"])


@given(TEXTS, st.randoms(use_true_random=False))
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
