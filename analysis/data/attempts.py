"""The logs of a run hold one JSON object per line, written by several attempts: how a line is read, and which lines
count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

Entry = TypeVar("Entry")


def parsed(line: bytes) -> Any:
    """A line as JSON, also one with NaN, Infinity or half of a surrogate pair, which orjson refuses. Raises ValueError
    or RecursionError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def standing(by_attempt: Mapping[int, Mapping[int, Entry]]) -> dict[int, Entry]:
    """The entries by step. Where an attempt begins at step k, entries of older attempts from k on are superseded.

    by_attempt: attempt -> step -> entry; every attempt has an entry.
    """
    entries: dict[int, Entry] = {}
    for attempt in sorted(by_attempt):
        begin = min(by_attempt[attempt])
        entries = {step: entry for step, entry in entries.items() if step < begin}
        entries.update(by_attempt[attempt])
    return entries
