"""The reward model that `task.learned_reward` asks for: trained before the first run that needs it, and then shared.

It learns from the pairs of a share of the task's prompts, which nothing else sees.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.backends.in_process import initial_model
from trainer_ext.scoring import tasks
from trainer_ext.scoring.reward_models.folders import NAME, files_in, learned
from trainer_ext.scoring.tasks.preferences import train

#: In the place of a model: the one that the policy starts from.
POLICY = "policy"


def with_reward(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """The configuration with its learned reward as a reward model in a folder; without one, as it is.

    cache: a folder for models that runs share.
    """
    task, split = config["task"], config["trainer"]["split"]
    asked = task.get("learned_reward")
    if not asked or task.get("reward") == NAME:
        return dict(config)
    model = initial_model.start(config, cache) if asked["model"] == POLICY else os.path.expanduser(asked["model"])
    files = [Path(tasks.get(task["name"]).__file__ or ""), *tasks.files(task), *files_in(Path(model))]
    made_of = [dict(task), dict(split), None if Path(model).is_dir() else model, [*map(tasks.content, files)]]
    name = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "rewards" / name
    if not folder.exists():
        train(task, split, model, folder, learned(asked))
    return {**config, "task": {**task, "reward": NAME, NAME: str(folder)}}
