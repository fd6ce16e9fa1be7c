"""The configuration of a task for the commands beside runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from launcher.config import hydra_compose
from launcher.planning.schema import strip
from launcher.project import activate


def configured(task: str, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The section `task` and trainer.split in the present project. ValueError: a name or a value is not known."""
    activate()
    try:
        tree = OmegaConf.create(hydra_compose.of_project().compose([f"task={task}", *overrides]).tree)
        section: Any = OmegaConf.to_container(tree.task, resolve=True, throw_on_missing=True)
        shares: Any = OmegaConf.to_container(tree.trainer.split, resolve=True)
    except hydra_compose.ERRORS as error:
        raise ValueError(" ".join(str(error).partition("Config search path")[0].split())) from error
    return strip(section), strip(shares)
