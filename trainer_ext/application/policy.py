"""A run's policy outside of training: evaluated again, or written as a folder for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import cache_folder, multirun_of, read_config
from trainer_ext.application.verl_tree import completed

_COLUMNS = ("prompt", "response", "reward", "ground_truth", "split", "sample")


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found: its metrics (docs/metrics.md), and each response with its prompt and its numbers."""

    origin: Mapping[str, Any]
    metrics: Mapping[str, float]
    answers: list[dict[str, Any]]


def evaluate(folder: Path, step: int, checkpoint: Path, changes: Mapping[str, Mapping[str, Any]]) -> Evaluated:
    """Evaluate the policy of a run's checkpoint. It changes nothing in the run's folder.

    changes: values of the sections `task` and `trainer` to use instead of the run's. ValueError: the evaluation cannot
    be made with them.
    """
    from trainer_ext import backends

    config = completed(folder, read_config(folder))
    if "split" not in config["trainer"]:
        raise ValueError("an older version planned it and kept no prompts back, so there is nothing to evaluate it on")
    for section, values in changes.items():
        for key, value in values.items():
            config[section][key] = value
    changed = {section: dict(values) for section, values in changes.items() if values}
    about = {**_origin(folder, config, step), "changes": changed}
    return _evaluated(backends.evaluate, config, checkpoint, cache_folder(multirun_of(folder)), step, about)


def evaluate_model(planned: Path, model: Path, cache: Path) -> Evaluated:
    """Evaluate the model in a folder. planned: the folder of a run that was planned with this model, and not started.

    ValueError: as in `evaluate`.
    """
    from trainer_ext import backends

    config = read_config(planned)
    about = {"folder": str(model), "seed": config["seed"], "task": config["task"]["name"]}
    return _evaluated(backends.evaluate_model, completed(planned, config), model, cache, 0, about)


def _evaluated(
    function: Callable[..., Any], config: Any, weights: Path, cache: Path, step: int, about: Mapping[str, Any]
) -> Evaluated:
    from trainer_ext import evaluation
    from trainer_ext.rewards import RewardFailed

    try:
        answers = function(config, weights, cache, step)
    except RewardFailed as error:
        raise ValueError(str(error)) from error
    trainer = config["trainer"]
    metrics = evaluation.metrics(answers, float(trainer["eval_solved"]), trainer.get("eval_pass") or ())
    rows = [{name: getattr(answer, name) for name in _COLUMNS} | dict(answer.numbers) for answer in answers]
    return Evaluated(about, metrics, rows)


def write(found: Evaluated, out: Path) -> None:
    """Write metrics.json and answers.parquet to a new folder, which appears when both are complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.new_folder(out) as draft:
        files.write_json(draft / "metrics.json", {**found.origin, "metrics": dict(found.metrics)})
        # responses to test prompts alone have scores
        columns = dict.fromkeys(name for answer in found.answers for name in answer)
        table = pa.table({name: [answer.get(name) for answer in found.answers] for name in columns})
        pq.write_table(table, draft / "answers.parquet")


def export(folder: Path, step: int, checkpoint: Path, out: Path, dtype: str) -> dict[str, Any]:
    """Write the policy of a run's checkpoint to `out`, which becomes a folder only when it is complete.

    Returns the content of its rlsweep.json, which says where the weights come from. FileNotFoundError: the run deleted
    the checkpoint meanwhile. ValueError: the backend cannot export.
    """
    from trainer_ext import backends

    config = read_config(folder)
    with files.new_folder(out) as draft:
        cache = cache_folder(multirun_of(folder))
        backends.export(completed(folder, config), checkpoint, cache, draft, dtype)
        about = {**_origin(folder, config, step), "dtype": dtype}
        files.write_json(draft / "rlsweep.json", about)
    return about


def _origin(folder: Path, config: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Where the weights of a checkpoint come from: run, step, seed, method, model and task."""
    names = {name: config[name]["name"] for name in ("method", "model", "task")}
    return {"run": folder.name, "step": step, "seed": config["seed"], **names}
