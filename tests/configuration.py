"""One run's configuration, composed from the shipped files without planning a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config import hydra_compose, schema, verl_tree
from launcher.config.hydra_compose import Composer

CONF = Path(__file__).parents[1] / "conf"


def configuration(*overrides: str) -> dict[str, Any]:
    """One run's configuration as the worker hands it to the trainer."""
    # A difference to verl's tree may be one that our files do not make; the planner allows it, Hydra wants it said.
    said = [f"++{one}" if one.startswith("verl.") else one for one in overrides]
    composed = hydra_compose.resolved(Composer(CONF, "config").compose(said).tree)
    tree = verl_tree.compose(**composed.pop("base")).tree
    own = schema.strip({str(key): value for key, value in composed.items()})
    return {**own, "verl": OmegaConf.create(verl_tree.merged(tree, own["verl"]))}
