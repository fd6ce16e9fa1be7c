"""Several attempts write one run's logs: what of them stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


def standing(by_attempt: Mapping[int, Mapping[int, Entry]]) -> dict[int, Entry]:
    """The entries by step. Where an attempt begins at step k, what older attempts wrote from k on is superseded.

    by_attempt: attempt -> step -> entry, at least one to an attempt.
    """
    found: dict[int, Entry] = {}
    for attempt in sorted(by_attempt):
        begin = min(by_attempt[attempt])
        found = {step: entry for step, entry in found.items() if step < begin}
        found.update(by_attempt[attempt])
    return found
