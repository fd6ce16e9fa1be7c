"""Preregistration: when an experiment's hypotheses were declared, in multirun/<experiment>/hypotheses.json.

    {"format": 1, "declarations": [{"hash", "time", "planned", "done", "hypotheses"}, ...]}

The first declaration is written with the first submission and never changed; hypotheses declared later are kept beside
it as amendments. `done` holds the ids of the runs that were done at that time, so that a reader can tell what was
declared before there was a result; `planned` counts all runs; `hash` is that of the canonical hypotheses.
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
    """Record an experiment's hypotheses unless they are recorded. folder: multirun/<experiment>, which exists.

    ValueError: the file has another format.
    """
    if not hypotheses:
        return
    path = folder / NAME
    digest = identity.content_hash(identity.canonical_json(hypotheses))
    with claim.locked(folder):  # two launches at once must not overwrite each other's declaration
        earlier = _read(path)
        if any(declaration.get("hash") == digest for declaration in earlier):
            return
        now = {"hash": digest, "time": time.time(), "planned": planned, "done": list(done), "hypotheses": hypotheses}
        files.write_json(path, {"format": FORMAT, "declarations": [*earlier, now]})


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("declarations"), list):
        raise ValueError(f"not a record of hypotheses in format {FORMAT}")
    return list(value["declarations"])
