"""A run's policy as a folder for other programs."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import read_config
from launcher.worker.worker import whole_config

EXPORT = "trainer_ext.backends:export"


def export(folder: Path, step: int, checkpoint: Path, out: Path, dtype: str) -> dict[str, Any]:
    """Write the policy of a run's checkpoint to `out`, which becomes a folder only when it is complete.

    Returns the content of its rlsweep.json, which says where the weights come from. FileNotFoundError: the run deleted
    the checkpoint meanwhile. ValueError: the backend cannot export.
    """
    config = read_config(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f"{files.ASIDE}{out.name}-{os.getpid()}")
    module, _, function = EXPORT.partition(":")
    try:
        draft.mkdir()
        write = getattr(importlib.import_module(module), function)
        write(whole_config(folder, config), checkpoint, draft, dtype)
        origin = {
            "run": folder.name,
            "step": step,
            "seed": config["seed"],
            "dtype": dtype,
            **{name: config[name]["name"] for name in ("method", "model", "task")},
        }
        files.write_json(draft / "rlsweep.json", origin)
        draft.rename(out)  # also over an empty folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return origin
