"""What a backend does for a run, and the backend that a configuration names."""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from trainer_ext import backends
from trainer_ext.fits import sizes
from trainer_ext.scoring import artifacts, scores
from trainer_ext.scoring.scores.evaluation import Answer


class Lost(RuntimeError):
    """A process that the backend had started died. The launcher resumes the run as after the death of its own one."""


class NodeLost(Lost):
    """A node of the run is gone. The launcher resumes the run as one whose node failed."""


class Stalled(RuntimeError):
    """A process of the backend does not go on. The launcher resumes the run as one that makes no step."""


class Ray(Protocol):
    """A Ray over the nodes of a run. address: of its head."""

    address: str

    def ended(self) -> str | None:
        """The nodes whose Ray has ended, in words; None: all of it lives."""


class SharedRay(Ray, Protocol):
    """A Ray that others use too. group: the id of the placement group that is reserved for the run, in hexadecimal
    digits; it has a bundle for each node."""

    group: str


class Nodes(Protocol):
    """The nodes of a run: how many, and a Ray over them; shared: the one to use, if the run is a task of it."""

    count: int
    shared: SharedRay | None

    def ray(self, environment: Mapping[str, str], resources: Sequence[str]) -> AbstractContextManager[Ray]:
        """A Ray that lives as long as the block. ValueError: the run has no nodes here.

        environment: of its processes, with RAY_AUTH_TOKEN; resources: the options of `ray start` that say what each
        node has.
        """


class Backend(Protocol):
    """One run's training. A step's result depends on the configuration and the step's number alone.

    samples, tokens: drawn so far, restored by `load`; parameters: of the policy; devices: in use, a CPU counts as one;
    peak_memory_bytes: held so far; drawn: what the newest step has read, the rows of its prompts in the data, `data`,
    and their tokens, `prompts`.
    """

    samples: int
    tokens: int
    parameters: int
    devices: int
    peak_memory_bytes: int
    drawn: Mapping[str, Any]

    def step(self, step: int) -> dict[str, float]:
        """Sample, score, update; the metrics of docs/metrics.md but for those that `train` measures.

        FloatingPointError: the model's outputs are not numbers any more. Lost, Stalled: see there.
        """

    def evaluate(self, step: int) -> list[Answer]:
        """The policy's answers after this step (0: before training), to the same prompts every time.

        trainer.eval_samples drawn ones and a greedy one to each of trainer.eval_prompts prompts of each split, and to
        those of trainer.judged after its steps. Raises what `step` does.
        """

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        """Name -> (edges, counts) over the newest step's tokens."""

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint, with `state` (JSON values)."""

    def load(self, folder: Path) -> dict[str, Any]:
        """Go on from a checkpoint as if the training had not stopped; returns its `state`."""

    def close(self) -> None:
        """End every process that the backend started."""


def names() -> list[str]:
    """The backends: the folders beside this file that have a function `create`."""
    folders = [module.name for module in pkgutil.iter_modules(backends.__path__) if module.ispkg]
    return sorted(name for name in folders if hasattr(_folder(name), "create"))


def create(config: Mapping[str, Any], cache: Path, nodes: Nodes) -> tuple[Backend, float]:
    """The backend that `trainer.backend` names, made by the function `create` of its folder, and the seconds that this
    spent on models and data that runs share.

    cache: their folder; nodes: of the run. ValueError names a key whose value cannot work.
    """
    before = artifacts.seconds()
    plain = _with_reward(config, cache)
    for misfit in (*sizes.misfits(plain), *scores.misfits(plain["trainer"])):
        raise misfit
    return _module(config).create(plain, cache, nodes), artifacts.seconds() - before


def export(config: Mapping[str, Any], checkpoint: Path, cache: Path, folder: Path, dtype: str) -> None:
    """Write the policy of a checkpoint into the empty `folder`, as a model and tokenizer that transformers loads.

    The function `export` of the backend's folder does it; config, cache: as in `create`. dtype: of the written weights,
    a name of torch's. ValueError: the backend cannot export, or the checkpoint is of another model.
    """
    module = _module(config)
    if not hasattr(module, "export"):
        raise ValueError(f"trainer.backend={config['trainer']['backend']} has no export")
    module.export(_plain(config), checkpoint, cache, folder, dtype)


def evaluate(config: Mapping[str, Any], checkpoint: Path, cache: Path, step: int) -> list[Answer]:
    """The answers of a checkpoint's policy, as the run's evaluation after that step asks for them.

    config, cache: as in `create`; trainer.eval_prompts and eval_samples say how many. The model is read as `export`
    writes it, in float32, and asked in this process whichever backend has trained it. ValueError: as in `export`, or a
    split has no prompt, or trainer.eval_scores cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="rlsweep-") as folder:
        export(config, checkpoint, cache, Path(folder), "float32")
        return evaluate_model(config, Path(folder), cache, step)


def evaluate_model(config: Mapping[str, Any], model: Path, cache: Path, step: int) -> list[Answer]:
    """`evaluate` for the model in a folder, which replaces config["model"]."""
    from trainer_ext.backends.in_process.rollout import evaluate as asked

    plain = _with_reward(config, cache)
    for misfit in scores.misfits(plain["trainer"]):
        raise misfit
    return scores.scored(plain["trainer"], asked(plain, model, cache, step))


def _module(config: Mapping[str, Any]) -> Any:
    name = config["trainer"]["backend"]
    if name not in names():
        raise ValueError(f"trainer.backend={name!r} is unknown; available: {', '.join(names())}")
    return _folder(name)


def _folder(name: str) -> Any:
    return importlib.import_module(f"{backends.__name__}.{name}")


def _with_reward(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """The sections as plain values, with the reward model of task.learned_reward."""
    from trainer_ext.backends.in_process.initial_model import with_reward

    return with_reward(_plain(config), cache)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections as plain values, except verl's tree."""
    return {
        key: OmegaConf.to_container(value, resolve=True) if key != "verl" and isinstance(value, DictConfig) else value
        for key, value in config.items()
    }
