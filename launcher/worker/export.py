"""A run's policy as a folder for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import cache_folder, multirun_of, read_config
from launcher.worker.worker import function_of, whole_config

EXPORT = "trainer_ext.backends:export"


def export(folder: Path, step: int, checkpoint: Path, out: Path, dtype: str) -> dict[str, Any]:
    """Write the policy of a run's checkpoint to `out`, which becomes a folder only when it is complete.

    Returns the content of its rlsweep.json, which says where the weights come from. FileNotFoundError: the run deleted
    the checkpoint meanwhile. ValueError: the backend cannot export.
    """
    config = read_config(folder)
    with files.new_folder(out) as draft:
        cache = cache_folder(multirun_of(folder))
        function_of(EXPORT)(whole_config(folder, config), checkpoint, cache, draft, dtype)
        about = {**origin(folder, config, step), "dtype": dtype}
        files.write_json(draft / "rlsweep.json", about)
    return about


def origin(folder: Path, config: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Where the weights of a checkpoint come from: run, step, seed, method, model and task."""
    names = {name: config[name]["name"] for name in ("method", "model", "task")}
    return {"run": folder.name, "step": step, "seed": config["seed"], **names}
