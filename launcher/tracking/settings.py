"""How trackers show a run: the section `tracking`, the file that a run keeps it in, and the names of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field

from launcher.run import catalog

# W&B's own limit.
LONGEST_TAG = 64
ONLINE: Final = "online"

_Name = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,128}$", description="1 to 128 letters, digits, and _ . -")]
# Earlier versions called `none` offline.
_Mode = Annotated[Literal["none", "online"], BeforeValidator(lambda value: "none" if value == "offline" else value)]


class Settings(BaseModel, extra="forbid", frozen=True, strict=True):
    """Trackers beside the local files. An entity of None is the W&B user's own default."""

    wandb: _Mode = "none"
    project: _Name = "rlsweep"
    entity: _Name | None = None
    tensorboard: bool = False


def read_settings(values: Mapping[str, Any]) -> Settings:
    """The settings that a plan or a run has kept; those it does not name have their defaults."""
    return Settings(**{key: values[key] for key in Settings.model_fields if key in values})


def settings_path(folder: Path) -> Path:
    """Where a run keeps the settings that it was tracked with, for `sync`."""
    return folder / "tracking.json"


@dataclass(frozen=True)
class Labels:
    """A run's experiment, group and title in the first plan that names it, and every `experiment/group` that does."""

    experiment: str | None = None
    group: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()


def labels(multirun: Path) -> dict[str, Labels]:
    """The labels of every planned run, by id; experiments in the order of their names."""
    by_id: dict[str, Labels] = {}
    for experiment, plan in catalog.plans(multirun).items():
        for entry in plan["runs"]:
            tag = f"{experiment}/{entry['group']}"[:LONGEST_TAG]
            before = by_id.get(entry["id"]) or Labels(experiment, entry["group"], catalog.title(entry))
            if tag not in before.tags:
                by_id[entry["id"]] = replace(before, tags=(*before.tags, tag))
    return by_id
