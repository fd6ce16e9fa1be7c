"""The commits of models on the hub: later attempts of a run use that of the first one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.run import code

_LOADED = (("model", "path"), ("method", "target_path"))


def pinned(config: Mapping[str, Any], used: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with the folder of its commit in place of each model's name on the hub.

    A model that is not whole in the cache keeps its name, and is loaded from the hub. ValueError: that would be another
    commit than the run has used before.
    """
    result = dict(config)
    for section, key in _LOADED:
        name = f"models/{config[section].get(key)}"
        if name not in used:
            continue
        folder = code.hub_folder(name) / "snapshots" / used[name]
        if _is_whole(folder):
            result[section] = {**result[section], key: str(folder)}
        elif code.hub_commit(name) != used[name]:
            model = config[section][key]
            raise ValueError(
                f"{section}.{key}={model}: earlier attempts used the commit {used[name]}, and {folder} does not have "
                f"all of its files. Fix: hf download {model} --revision {used[name]}"
            )
    return result


def _is_whole(folder: Path) -> bool:
    """Whether a folder of the hub's cache has all files that a model needs."""
    from trainer_ext.scoring.reward_models.folders import TOKENIZER, WEIGHTS, missing

    if missing(folder, WEIGHTS, TOKENIZER) is not None:
        return False
    indices = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.safetensors.index.json")]
    return all((folder / name).exists() for index in indices for name in index["weight_map"].values())
