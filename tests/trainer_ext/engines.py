"""verl's engines as a rank of `trainer=verl_ray` makes and calls them, in the process group of this process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from trainer_ext.backends.in_process import platform


def engine_of(config: Mapping[str, Any], model: Path | None = None) -> Any:
    """The policy's engine of a run. model: a folder without a tokenizer, instead of the run's own."""
    platform.use()
    from trainer_ext.backends.in_process import trainer  # noqa: F401  (the methods)
    from trainer_ext.backends.verl_ray import adapters, plugin  # noqa: F401  (registers with verl)
    from trainer_ext.backends.verl_ray.tree import whole_tree
    from trainer_ext.methods.update import Method

    path = str(model or config["model"]["path"])
    tree = whole_tree(config, Method.read(config["method"], 3), path, None, 1).actor_rollout_ref
    if model is not None:
        OmegaConf.set_struct(tree, False)
        tree.model.load_tokenizer = False
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine import EngineRegistry

    settings, actor = omega_conf_to_dataclass(tree.model), omega_conf_to_dataclass(tree.actor)
    own = {"model": settings, "engine": actor.engine, "optimizer": actor.optim, "checkpoint": actor.checkpoint}
    configs = {f"{name}_config": value for name, value in own.items()}
    engine = EngineRegistry.new(model_type=settings.model_type, backend=actor.strategy, **configs)
    engine.initialize()
    return engine


def on_ranks(rank: Callable[[str, int, int], None], folder: Path, seconds: float) -> None:
    """Call rank(FOLDER, RANK, 2) in two processes, which must end well."""
    start = multiprocessing.get_context("spawn")
    ranks = [start.Process(target=rank, args=(str(folder), number, 2)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(seconds)
        assert process.exitcode == 0


def batch_of(rows: Sequence[Sequence[int]], **settings: Any) -> Any:
    """Rows of tokens, all of which count. settings: beside those of micro-batches of one padded row."""
    from verl.utils import tensordict_utils as tu

    def nested(values: Sequence[Sequence[int]]) -> Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(one) for one in values], layout=torch.jagged)

    columns = {
        "input_ids": nested(rows),
        "position_ids": nested([range(len(row)) for row in rows]),
        "loss_mask": nested([[1] * len(row) for row in rows]),
    }
    usual = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1, "use_remove_padding": False, "temperature": 1.0}
    return tu.get_tensordict(columns, {**usual, **settings})
