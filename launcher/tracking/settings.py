"""The section `tracking` of a configuration, and the file that a run keeps it in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

OFFLINE: Final = "offline"
ONLINE: Final = "online"

_Name = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,128}$", description="1 to 128 letters, digits, and _ . -")]


class Settings(BaseModel, extra="forbid", frozen=True, strict=True):
    """Trackers beside the local files. An entity of None is the W&B user's own default."""

    wandb: Literal["offline", "online"] = OFFLINE
    project: _Name = "rlsweep"
    entity: _Name | None = None
    tensorboard: bool = False


def read_settings(values: Mapping[str, Any]) -> Settings:
    """The settings that a plan or a run has kept; those it does not name have their defaults."""
    return Settings(**{key: values[key] for key in Settings.model_fields if key in values})


def settings_path(folder: Path) -> Path:
    """Where a run keeps the settings that it was tracked with, for `sync`."""
    return folder / "tracking.json"
