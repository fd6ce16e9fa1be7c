"""The JSON Schemas of docs/schemas, made of the pydantic models: editors complete and check YAML files with them.

python -m tests.schemas     writes them anew
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, TypeAdapter

from analysis.judging import settings as judging
from analysis.sources.study import StudyOptions
from analysis.spec.hypothesis import Declared
from analysis.spec.settings import Settings
from launcher.campaign.stages import CampaignSpec
from launcher.planning.clusters import Budget, Local, Ray, Slurm
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.plan import Experiment
from launcher.run.campaign_record import CampaignRecord
from launcher.run.code import Code
from launcher.run.evaluations import EvaluationRow
from launcher.run.folder import FrozenConfig, Manifest, Provenance, Record
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import Claim, State
from launcher.run.stop_request import StopRequest
from launcher.tracking import settings as tracking

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


class ExperimentFile(BaseModel, extra="forbid"):
    """A file of conf/experiment: what holds for the whole experiment, and values over those of other files."""

    defaults: list[Any]
    experiment: ExperimentSpec
    analysis: Settings
    cluster: Local | Ray | Slurm
    tracking: tracking.Settings
    budget: Budget
    seed: int = Field(ge=0)
    multirun: str
    base: dict[str, Any]
    method: dict[str, Any]
    model: dict[str, Any]
    scale: dict[str, Any]
    task: dict[str, Any]
    trainer: dict[str, Any]
    verl: dict[str, Any]


class _Line(Record):
    """A line of a log may hold further keys, such as the metrics."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "allow"}


@dataclass(frozen=True)
class MetricLine(_Line):
    """A line of metrics.jsonl, one for each step: the step and attempt (from 1), unix seconds, and the metrics by
    name."""

    step: int
    attempt: int
    time: float


@dataclass(frozen=True)
class HistogramLine(_Line):
    """A line of histograms.jsonl: n counts between n + 1 edges."""

    step: int
    attempt: int
    name: str
    edges: list[float]
    counts: list[float]


@dataclass(frozen=True)
class ResponseLine(_Line):
    """A line of responses.jsonl, one for each response of an evaluation; `id` is the prompt's, `answer` what it asks
    for."""

    step: int
    attempt: int
    id: str
    prompt: str
    response: str
    reward: float
    answer: str


#: Every record of a run folder and of its launch, by the name of its JSON Schema: docs/schemas/run_folder_<name>.json.
MODELS: Mapping[str, type[Any]] = {
    "state": State,
    "claim": Claim,
    "stop": StopRequest,
    "manifest": Manifest,
    "launch": Launch,
    "campaign": CampaignRecord,
    "config": FrozenConfig,
    "provenance": Provenance,
    "code": Code,
    "metrics": MetricLine,
    "histograms": HistogramLine,
    "responses": ResponseLine,
    "evaluations": EvaluationRow,
}


@cache
def documents() -> dict[str, dict[str, Any]]:
    """Every published schema by the name of its file."""
    cluster = _partial(TypeAdapter(Local | Ray | Slurm).json_schema())
    for name in ("Local", "Ray", "Slurm"):
        cluster["$defs"][name]["properties"]["defaults"] = {"type": "array"}
    experiment = _partial(ExperimentFile.model_json_schema())
    claims = experiment["$defs"]["analysis__spec__settings__Settings"]["properties"]["hypotheses"]["anyOf"][0]
    part = {"type": "object", "not": {"required": ["kind"]}, "description": "keys over those of conf/hypothesis"}
    claims["additionalProperties"] = {"anyOf": [claims["additionalProperties"], part, {"type": "null"}]}
    return {
        "analysis.json": Settings.model_json_schema(),
        "campaign.json": CampaignSpec.model_json_schema(),
        "cluster.json": cluster,
        "experiment.json": experiment,
        "judge.json": judging.JudgeSettings.model_json_schema(),
        "hypothesis.json": TypeAdapter(dict[str, Declared]).json_schema(),
        "plan.json": Experiment.model_json_schema(),
        "study.json": StudyOptions.model_json_schema(),
        "tracking.json": tracking.Settings.model_json_schema(),
        **{f"run_folder_{name}.json": TypeAdapter(model).json_schema() for name, model in MODELS.items()},
    }


def _partial(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a file that is merged over others, and so need not name every key."""
    for part in (schema, *schema["$defs"].values()):
        needed = part.pop("required", [])
        if "kind" in needed:  # a hypothesis is whole
            part["required"] = needed
    return schema


def text(document: dict[str, Any]) -> str:
    """The content of a schema's file."""
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, document in documents().items():
        (FOLDER / name).write_text(text(document))
