"""Whether a hypothesis was declared before there were results, read from multirun/<experiment>/hypotheses.json.

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
    """By id, the first declaration with exactly the plan's content; hypotheses that are not recorded are left out.

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
