"""The other records of a run folder, and a table of all records. docs/schemas has their JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from launcher.run.campaign_record import CampaignRecord
from launcher.run.code import Code
from launcher.run.evaluations import EvaluationRow
from launcher.run.launch_record import Launch
from launcher.run.records import Claim, Manifest, Record, State
from launcher.run.stop_request import StopRequest


@dataclass(frozen=True)
class FrozenConfig(Record):
    """config.yaml of a run, rewritten only if the files that an unfinished run names have moved. `verl` holds the
    differences to the tree of verl that `base` names.
    `inputs` has the hash of each local file and folder that the configuration names, by absolute path; runs of older
    versions have `data`, with the data files alone. `fork`: the run that it continues, and from where.

    Readers get the mapping as it is. A run that another tool made has fewer keys.
    """

    format: Literal[1] = field(kw_only=True)
    id: str | None = None
    identity: Mapping[str, Any] | None = None
    base: str | None = None
    seed: int | None = None
    method: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    verl: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    fork: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance(Record):
    """provenance.json of a run: where its last attempt came from. Without git, `commit` and `dirty` are null.

    `patch` says whether dirty.patch is exact, and which new files it leaves out. `user_code` has the hash, repository,
    commit and patch of each package and file from outside of the project, by path. `imported`: another tool made the
    run.
    """

    commit: str | None = None
    dirty: bool | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)
    user_code: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    python: str | None = None
    platform: str | None = None
    host: str | None = None
    cpu_count: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)
    threads: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    attempt: int | None = None
    pid: int | None = None
    imported: Mapping[str, Any] | None = None


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


#: Every record, by the name of its JSON Schema: docs/schemas/run_folder_<name>.json.
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
