"""Was a hypothesis declared before there were results? What multirun/<experiment>/hypotheses.json says of it.

The launcher keeps every declaration with the runs that were done by then (launcher/planning/preregistration.py has the
format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEFORE, UNRECORDED = "before any run was done", "not recorded"


def declared(folder: Path, hypotheses: Mapping[str, Any]) -> dict[str, str]:
    """For each hypothesis, by id as the plan states it, when exactly that was declared first.

    folder: multirun/<experiment>. A file that is absent or unreadable records nothing.
    """
    try:
        declarations = json.loads((folder / "hypotheses.json").read_text(encoding="utf-8"))["declarations"]
        said = [(one["hypotheses"], one["planned"], len(one["done"])) for one in declarations]
    except (OSError, ValueError, KeyError, TypeError):
        return dict.fromkeys(hypotheses, UNRECORDED)
    return {name: _when(name, stated, said) for name, stated in hypotheses.items()}


def _when(name: str, stated: Any, said: list[tuple[Mapping[str, Any], int, int]]) -> str:
    for known, planned, done in said:
        if known.get(name) == stated:
            return BEFORE if done == 0 else f"with {done} of {planned} runs done"
    return UNRECORDED
