"""The section `tracking` of a configuration, and where a run keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFFLINE = "offline"
ONLINE = "online"


@dataclass(frozen=True)
class Settings:
    """The section `tracking` of a configuration. An entity of None is the W&B user's own default."""

    wandb: str = OFFLINE
    project: str = "rlsweep"
    entity: str | None = None
    tensorboard: bool = False


def read_settings(values: Mapping[str, Any]) -> Settings:
    """The settings that a plan's section `tracking` names; those it does not name have their defaults."""
    known = {key: values[key] for key in Settings.__dataclass_fields__ if key in values}
    return Settings(**known)


def settings_path(folder: Path) -> Path:
    """Where a run keeps the settings that it was tracked with, for `sync`."""
    return folder / "tracking.json"
