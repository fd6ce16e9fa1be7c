"""An evaluation of a run's checkpoint after the run: more prompts, more responses, other data."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import cache_folder, multirun_of, read_config
from launcher.worker.worker import whole_config

EVALUATE = "trainer_ext.backends:evaluate"
METRICS = "trainer_ext.evaluation:metrics"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found: its metrics (docs/metrics.md), and each response with its prompt and reward."""

    origin: Mapping[str, Any]
    metrics: Mapping[str, float]
    answers: list[dict[str, Any]]


def evaluate(folder: Path, step: int, checkpoint: Path, changes: Mapping[str, Mapping[str, Any]]) -> Evaluated:
    """Evaluate the policy of a run's checkpoint. It changes nothing in the run's folder.

    changes: values of the sections `task` and `trainer` to use instead of the run's. ValueError: the evaluation cannot
    be made with them.
    """
    config = whole_config(folder, read_config(folder))
    if "split" not in config["trainer"]:
        raise ValueError("an older version planned it and kept no prompts back, so there is nothing to evaluate it on")
    for section, values in changes.items():
        for key, value in values.items():
            config[section][key] = value
    answers = _named(EVALUATE)(config, checkpoint, cache_folder(multirun_of(folder)), step)
    origin = {
        "run": folder.name,
        "step": step,
        "seed": config["seed"],
        **{name: config[name]["name"] for name in ("method", "model", "task")},
        "changes": {section: dict(values) for section, values in changes.items() if values},
    }
    metrics = _named(METRICS)(answers, float(config["trainer"]["eval_solved"]))
    return Evaluated(origin, metrics, [asdict(answer) for answer in answers])


def write(found: Evaluated, out: Path) -> None:
    """Write metrics.json and answers.parquet to a new folder, which appears when both are complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f"{files.ASIDE}{out.name}-{os.getpid()}")
    try:
        draft.mkdir()
        files.write_json(draft / "metrics.json", {**found.origin, "metrics": dict(found.metrics)})
        pq.write_table(pa.Table.from_pylist(list(_rows(found.answers))), draft / "answers.parquet")
        draft.rename(out)  # also over an empty folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _rows(answers: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for answer in answers:
        rest = {key: value for key, value in answer.items() if key != "metrics"}
        yield {**rest, **{f"reward/{name}": value for name, value in answer["metrics"].items()}}


def _named(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)
