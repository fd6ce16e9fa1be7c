"""What prepared prompts are: counts, lengths, what is missing, and prompts of one split almost like those of another.

Not a task itself.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from statistics import median
from typing import Any

import numpy as np

from trainer_ext.scoring.tasks import Row, distinct

#: Two prompts are almost the same if they have this share of their runs of _WORDS words in common (Jaccard index).
ALIKE = 0.8
_WORDS = 3
# MinHash with 32 bands of 4: a pair at the limit is found with probability 1 - (1 - 0.8^4)^32 = 0.99999994.
_BANDS, _ROWS = 32, 4
_SHOWN = 10
_MOST = 100


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
    texts = [(split, row.text) for split, rows in divided.items() for row in distinct(rows)]
    runs = [_runs(text) for _, text in texts]
    often = Counter(run for one in runs for run in one)
    runs = [frozenset(run for run in one if often[run] <= max(1, len(texts) / 2)) for one in runs]
    closest: dict[tuple[str, str], dict[int, tuple[float, int]]] = defaultdict(dict)
    for first, second in sorted(_candidates(runs, [split for split, _ in texts])):
        share = len(runs[first] & runs[second]) / len(runs[first] | runs[second])
        if share >= ALIKE:
            pair = texts[first][0], texts[second][0]
            closest[pair][second] = max(closest[pair].get(second, (0.0, 0)), (share, -first))
    found = []
    for pair in combinations(divided, 2):
        alike = sorted(closest[pair].items(), key=lambda one: (-one[1][0], one[0]))
        pairs = [[texts[-first][1], texts[second][1]] for second, (_, first) in alike[:_SHOWN]]
        found.append(
            {"splits": list(pair), "prompts": len(alike), "of": len(distinct(divided[pair[1]])), "pairs": pairs}
        )
    return found


def _runs(text: str) -> frozenset[int]:
    """Hashes of the runs of _WORDS words; of fewer words, of the whole text."""
    words = re.findall(r"\w+", text.casefold())
    runs = (" ".join(words[at : at + _WORDS]) for at in range(max(1, len(words) - _WORDS + 1)))
    return frozenset(int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big") for run in runs)


def _candidates(runs: Sequence[frozenset[int]], split: Sequence[str]) -> set[tuple[int, int]]:
    """Pairs of prompts in different splits that share a band of their MinHash signatures, the smaller place first."""
    generator = np.random.default_rng(0)
    factors = generator.integers(1, 2**63, _BANDS * _ROWS, dtype=np.uint64) | np.uint64(1)
    buckets: dict[tuple[int, bytes], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, own in enumerate(runs):
        if not own:
            continue
        hashes = np.fromiter(own, np.uint64, len(own))
        # The upper half of a product with an odd number modulo 2^64 is as good as random.
        least = ((hashes[:, None] * factors) >> np.uint64(32)).min(axis=0)
        for band in range(_BANDS):
            buckets[band, least[band * _ROWS : (band + 1) * _ROWS].tobytes()][split[place]].append(place)
    found = set()
    for by_split in buckets.values():
        for one, other in combinations(by_split.values(), 2):
            # One that is alike is enough, and prompts of one form may all be in one bucket.
            found |= {(min(pair), max(pair)) for pair in product(one[:_MOST], other)}
    return found
