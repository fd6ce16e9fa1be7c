"""An evaluation of a run's checkpoint after the run: more prompts, more responses, other data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import cache_folder, multirun_of, read_config
from launcher.worker.export import origin
from launcher.worker.worker import function_of, whole_config

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
    from trainer_ext.rewards import RewardFailed

    config = whole_config(folder, read_config(folder))
    if "split" not in config["trainer"]:
        raise ValueError("an older version planned it and kept no prompts back, so there is nothing to evaluate it on")
    for section, values in changes.items():
        for key, value in values.items():
            config[section][key] = value
    try:
        answers = function_of(EVALUATE)(config, checkpoint, cache_folder(multirun_of(folder)), step)
    except RewardFailed as error:
        raise ValueError(str(error)) from error
    changed = {section: dict(values) for section, values in changes.items() if values}
    metrics = function_of(METRICS)(answers, float(config["trainer"]["eval_solved"]))
    about = {**origin(folder, config, step), "changes": changed}
    return Evaluated(about, metrics, [asdict(answer) for answer in answers])


def write(found: Evaluated, out: Path) -> None:
    """Write metrics.json and answers.parquet to a new folder, which appears when both are complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.new_folder(out) as draft:
        files.write_json(draft / "metrics.json", {**found.origin, "metrics": dict(found.metrics)})
        pq.write_table(pa.Table.from_pylist(list(_rows(found.answers))), draft / "answers.parquet")


def _rows(answers: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for answer in answers:
        rest = {key: value for key, value in answer.items() if key != "metrics"}
        yield {**rest, **{f"reward/{name}": value for name, value in answer["metrics"].items()}}
