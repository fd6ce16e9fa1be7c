"""Words of texts in every script, and how texts differ from each other and repeat themselves. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any

#: Scripts that are written without spaces between words: a character counts as a word.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUN = 4  # words of a run that may repeat itself


def words(text: str) -> list[str]:
    """The words of a text in lower case: letters, marks and digits; a character each where a script has no spaces."""
    import regex

    pattern = rf"[{_UNSPACED}]|[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+"
    return list(regex.findall(pattern, unicodedata.normalize("NFC", text).lower(), flags=regex.VERSION1))


def bleu(text: str, references: Sequence[str]) -> float:
    """BLEU of one sentence for its references, from 0 to 1 (Papineni et al. 2002, by the package sacrebleu).

    The package's defaults for sentences: orders that the text is too short for do not count, and an order without a
    match is smoothed exponentially. Tokens are those of mteval-v13a; characters if the references have a script without
    spaces.
    """
    import regex
    from sacrebleu.metrics.bleu import BLEU

    tokens = "char" if regex.search(f"[{_UNSPACED}]", "".join(references)) else BLEU.TOKENIZER_DEFAULT
    # a perfect score is 100.00000000000004
    return round(float(_bleu(tokens).sentence_score(text, list(references)).score) / 100, 12)


@cache
def _bleu(tokens: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokens, effective_order=True)


def distinct(texts: Sequence[str], n: int) -> float | None:
    """Distinct-n: of all runs of n words in the texts, the share that differ (Li et al. 2016).

    None: no text has n words.
    """
    runs = [run for text in texts for run in _runs(words(text), n)]
    return len(set(runs)) / len(runs) if runs else None


def self_bleu(texts: Sequence[str]) -> float:
    """The mean BLEU of each of two or more texts with all others as its references (Zhu et al. 2018): 1 if all are
    equal."""
    scores = []
    for place, text in enumerate(texts):
        others = {*texts[:place], *texts[place + 1 :]}
        scores.append(1.0 if text in others else bleu(text, sorted(others)))
    return fmean(scores)


def repetition(text: str) -> float:
    """The share of a text's runs of 4 words that stood in it before; 0 if it has fewer words."""
    runs = _runs(words(text), _RUN)
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _runs(of: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(of[at : at + n]) for at in range(len(of) - n + 1)]
