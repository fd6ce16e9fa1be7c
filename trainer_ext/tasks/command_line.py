"""What commands beside runs read of the configuration: a task's section, and the files of a folder. No task itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_ext.tasks import tables

CONF = Path(__file__).parents[2] / "conf"


def configured(task: str, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The section `task` and trainer.split. ValueError: a name or a value is not known."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            tree = compose("config", overrides=[f"task={task}", *overrides])
        section: Any = OmegaConf.to_container(tree.task, resolve=True, throw_on_missing=True)
        shares: Any = OmegaConf.to_container(tree.trainer.split, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(" ".join(str(error).partition("Config search path")[0].split())) from error
    return _plain(section), _plain(shares)


def _plain(section: Any) -> Any:
    """Values alone, without what the configuration says about them."""
    if not isinstance(section, dict):
        return section
    return {key: _plain(value) for key, value in section.items() if key not in ("allowed", "requires")}


def of_folder(folder: Path | None) -> list[str]:
    """The overrides that name a folder's files. ValueError: it has no file to train on, or several."""
    if folder is None:
        return []
    found = {
        split: sorted(p for p in folder.glob(f"{split}.*") if tables.is_local(p.name)) for split in ("train", "test")
    }
    for split, paths in found.items():
        if len(paths) > 1 or (split == "train" and not paths):
            has = ", ".join(path.name for path in paths) or "none"
            rule = f"{folder} must have one file {split}.jsonl, {split}.jsonl.gz or {split}.parquet; it has {has}"
            raise ValueError(f"{rule}. Fix: name the file, task.{split}_path=FILE")
    return [f"task.{split}_path={json.dumps(str(paths[0]))}" for split, paths in found.items() if paths]
