"""What prepared prompts are: counts, lengths, what is missing, and prompts of one split almost like those of another.

Not a task itself.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from statistics import median
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from trainer_ext.scoring.tasks import Row, distinct

#: Two prompts are almost the same if they have this share of their runs of _WORDS words in common (Jaccard index).
ALIKE = 0.8
_WORDS = 3
_SHOWN = 10
_BLOCK = 256  # prompts that are compared with all others at a time


def splits(divided: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Any]]:
    """Counts of each split, and lengths in characters."""
    return {
        split: {
            "rows": len(rows),
            "prompts": len(distinct(rows)),
            "prompt_characters": _lengths([row.text for row in rows]),
            "answer_characters": _lengths([row.ground_truth for row in rows]),
            "empty_answers": sum(not row.ground_truth.strip() for row in rows),
            "worked_answers": sum(bool(row.worked_answer) for row in rows),
        }
        for split, rows in divided.items()
    }


def _lengths(texts: Sequence[str]) -> dict[str, float] | None:
    sizes = list(map(len, texts))
    return {"least": min(sizes), "median": median(sizes), "most": max(sizes)} if sizes else None


def near_duplicates(divided: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """For each two splits, how many prompts of the second are almost a prompt of the first, with some pairs.

    Case and punctuation do not count, nor runs of words that more than half of the prompts have, such as an
    instruction.
    """
    texts = {split: [row.text for row in distinct(rows)] for split, rows in divided.items()}
    runs = {split: [_runs(text) for text in own] for split, own in texts.items()}
    often = Counter(run for own in runs.values() for text in own for run in text)
    most = max(1, sum(map(len, texts.values())) / 2)
    columns = {run: column for column, run in enumerate(run for run, count in often.items() if count <= most)}
    rows = {
        split: _rows([[columns[run] for run in text if run in columns] for text in own], len(columns))
        for split, own in runs.items()
    }
    sizes = {split: matrix.sum(axis=1) for split, matrix in rows.items()}
    found = []
    for one, other in combinations(divided, 2):
        closest: dict[int, tuple[float, int]] = {}
        for first in range(0, len(texts[other]), _BLOCK):
            shared = (rows[other][first : first + _BLOCK] @ rows[one].T).tocoo()
            second = first + shared.row
            share = shared.data / (sizes[other][second] + sizes[one][shared.col] - shared.data)
            for at in np.flatnonzero(share >= ALIKE):
                place = int(second[at])
                closest[place] = max(closest.get(place, (0.0, 0)), (float(share[at]), -int(shared.col[at])))
        alike = sorted(closest.items(), key=lambda entry: (-entry[1][0], entry[0]))
        pairs = [[texts[one][-place], texts[other][second]] for second, (_, place) in alike[:_SHOWN]]
        found.append({"splits": [one, other], "prompts": len(alike), "of": len(texts[other]), "pairs": pairs})
    return found


def _rows(columns: Sequence[Sequence[int]], width: int) -> csr_array:
    """A sparse matrix with ones in these columns of each row."""
    starts = np.cumsum([0, *map(len, columns)])
    flat = np.fromiter(chain.from_iterable(columns), np.int64, starts[-1])
    return csr_array((np.ones(len(flat), np.int64), flat, starts), shape=(len(columns), width))


def _runs(text: str) -> frozenset[int]:
    """Hashes of the runs of _WORDS words; of fewer words, of the whole text."""
    words = re.findall(r"\w+", text.casefold())
    runs = (" ".join(words[at : at + _WORDS]) for at in range(max(1, len(words) - _WORDS + 1)))
    return frozenset(int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big") for run in runs)
