"""A configuration as flat as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaves(config: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The leaves of a configuration by their dotted keys; a list is a leaf, and so is an empty mapping."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{at}{key}.")
        else:
            found[f"{at}{key}"] = value
    return found
