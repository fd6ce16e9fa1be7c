"""One run's configuration, composed from the shipped files without planning a sweep."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launcher.config import hydra_compose
from launcher.config.hydra_compose import Composer
from launcher.planning import schema
from trainer_ext.application import verl_tree
from trainer_ext.fits import devices

CONF = Path(__file__).parents[1] / "conf"
SHIPPED = Composer(CONF, "config")  # what it composed for one test serves the others


def configuration(*overrides: str) -> dict[str, Any]:
    """One run's configuration as the worker hands it to the trainer."""
    composed = hydra_compose.resolved(tree_of(*overrides))
    base = composed.pop("base")
    tree = verl_tree.compose(base["config"], tuple(base["overrides"])).tree
    own = copy.deepcopy(schema.strip({str(key): value for key, value in composed.items()}))
    return {**devices.settled(own), "verl": OmegaConf.create(verl_tree.merged(tree, own["verl"]))}


def tree_of(*overrides: str) -> dict[str, Any]:
    """The composed tree, interpolations as they are: choices as the composer makes them, and values over these, which
    given to the composer would go to Hydra, some ten times slower."""
    parsed = [SHIPPED.parse(one) for one in overrides]
    chosen = [one for one in parsed if SHIPPED.is_group(one.key_or_group)]
    tree = dict(SHIPPED.compose([str(one.input_line) for one in chosen]).tree)
    for one in parsed:
        if one not in chosen:
            # A difference to verl's tree may be one that our files do not make.
            key = one.key_or_group
            assert key.startswith("verl.") or hydra_compose.lookup(tree, key)[0], one.input_line
            tree = hydra_compose.assign(tree, key, one.value())
    return tree
