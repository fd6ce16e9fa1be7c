"""The JSON Schemas of docs/schemas, made of the pydantic models: editors complete and check YAML files with them.

python -m tests.schemas     writes them anew
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from analysis.judging import settings as judging
from analysis.spec.hypothesis import Declared
from analysis.spec.settings import Settings
from launcher.planning import budget
from launcher.planning.campaign_spec import CampaignSpec
from launcher.planning.clusters import Local, Ray, Slurm
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.plan import Experiment
from launcher.run.models import MODELS
from launcher.tracking import settings as tracking

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


class ExperimentFile(BaseModel, extra="forbid"):
    """A file of conf/experiment: what holds for the whole experiment, and values over those of other files."""

    defaults: list[Any]
    experiment: ExperimentSpec
    analysis: Settings
    cluster: Local | Ray | Slurm
    tracking: tracking.Settings
    budget: budget.Settings
    seed: int = Field(ge=0)
    multirun: str
    base: dict[str, Any]
    method: dict[str, Any]
    model: dict[str, Any]
    scale: dict[str, Any]
    task: dict[str, Any]
    trainer: dict[str, Any]
    verl: dict[str, Any]


def documents() -> dict[str, dict[str, Any]]:
    """Every published schema by the name of its file."""
    cluster = _partial(TypeAdapter(Local | Ray | Slurm).json_schema())
    for name in ("Local", "Ray", "Slurm"):
        cluster["$defs"][name]["properties"]["defaults"] = {"type": "array"}
    experiment = _partial(ExperimentFile.model_json_schema())
    claims = experiment["$defs"]["analysis__spec__settings__Settings"]["properties"]["hypotheses"]["anyOf"][0]
    part = {"type": "object", "not": {"required": ["kind"]}, "description": "keys over those of conf/hypothesis"}
    claims["additionalProperties"] = {"anyOf": [claims["additionalProperties"], part, {"type": "null"}]}
    schemas = {
        "analysis.json": Settings.model_json_schema(),
        "campaign.json": CampaignSpec.model_json_schema(),
        "cluster.json": cluster,
        "experiment.json": experiment,
        "judge.json": judging.Settings.model_json_schema(),
        "hypothesis.json": TypeAdapter(dict[str, Declared]).json_schema(),
        "plan.json": Experiment.model_json_schema(),
        "tracking.json": tracking.Settings.model_json_schema(),
        **{f"run_folder_{name}.json": TypeAdapter(model).json_schema() for name, model in MODELS.items()},
    }
    for schema in schemas.values():
        _with_open_summaries(schema)
    return schemas


def _with_open_summaries(schema: Any) -> None:
    """Say of a summary's name only that it is a text: a new summary changes no schema, and the plan knows the names."""
    if isinstance(schema, dict):
        if {"final", "slope"} <= set(schema.get("enum", ())):
            schema["description"] = "the name of a summary (docs/configuration.md)"
            del schema["enum"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _with_open_summaries(part)


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
