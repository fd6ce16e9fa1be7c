"""Preregistration: when an experiment's hypotheses were declared, in multirun/<experiment>/hypotheses.json.

    {"format": 1, "declarations": [{"hash", "time", "planned", "done", "hypotheses"}, ...]}

The first declaration is written with the first submission and never changed; other hypotheses later are kept beside it
as amendments. `done` holds the ids of the experiment's runs that were done by then, so that a reader can tell what was
declared before there was a result; `planned` counts them all; `hash` is of the canonical hypotheses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import files
from launcher.config import identity
from launcher.run import claim

FORMAT = 1
NAME = "hypotheses.json"


def declare(folder: Path, hypotheses: Mapping[str, Any] | None, planned: int, done: Sequence[str]) -> None:
    """Keep an experiment's hypotheses unless they are kept already. folder: multirun/<experiment>, which exists.

    ValueError: the file is not one of this format.
    """
    if not hypotheses:
        return
    path = folder / NAME
    digest = identity.content_hash(identity.canonical_json(hypotheses))
    with claim.locked(folder):  # of two launches at once neither loses the other's declaration
        kept = _read(path)
        if any(one.get("hash") == digest for one in kept):
            return
        now = {"hash": digest, "time": time.time(), "planned": planned, "done": list(done), "hypotheses": hypotheses}
        files.write_json(path, {"format": FORMAT, "declarations": [*kept, now]})


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("declarations"), list):
        raise ValueError(f"not a record of hypotheses in format {FORMAT}")
    found: list[dict[str, Any]] = value["declarations"]
    return found
