"""Was a hypothesis declared before there were results? What multirun/<experiment>/hypotheses.json says of it.

The launcher keeps every declaration with the runs that were done by then (launcher/planning/preregistration.py has the
format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Declaration(NamedTuple):
    """How many of the planned runs were done when a hypothesis was declared."""

    done: int
    planned: int


def declared(folder: Path, hypotheses: Mapping[str, Any]) -> dict[str, Declaration]:
    """The first declaration of each hypothesis, by id, exactly as the plan states it; those not recorded are left out.

    folder: multirun/<experiment>. A file that is absent or unreadable records nothing.
    """
    first: dict[str, Declaration] = {}
    try:
        for entry in json.loads((folder / "hypotheses.json").read_text(encoding="utf-8"))["declarations"]:
            for name, stated in hypotheses.items():
                if entry["hypotheses"].get(name) == stated:
                    first.setdefault(name, Declaration(len(entry["done"]), entry["planned"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return first
