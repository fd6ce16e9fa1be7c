"""The present standing of a campaign: its stages, their runs, and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.run.campaign_record import CampaignRecord, StageRecord
from launcher.run.records import to_json
from launcher.status import tables
from launcher.status.standing import Standing
from launcher.text import clean


def document(record: CampaignRecord, standings: Mapping[str, Standing]) -> dict[str, Any]:
    """The JSON object: the record, with the states of each stage's runs. standings: by experiment."""
    stages = [{**to_json(stage), "states": _states(stage, standings)} for stage in record.stages]
    return {"campaign": record.campaign, "command": record.command, "stages": stages}


def lines(record: CampaignRecord, standings: Mapping[str, Standing]) -> list[str]:
    """A line for each stage, and one for each figure of a gate that is not met."""
    shown = [f"campaign {record.campaign}"]
    for number, stage in enumerate(record.stages, 1):
        shown.append(f"  {number} {stage.name} ({', '.join(stage.experiments)}): {_standing(stage, standings)}")
        if stage.met is False:
            shown += [f"      {figure.sentence()}" for figure in stage.gate if figure.verdict != "supported"]
        shown += [f"      {one.into}: {one.key} = {one.value}, taken from {one.stage}" for one in stage.taken]
    return [clean(line) for line in shown]


def _standing(stage: StageRecord, standings: Mapping[str, Standing]) -> str:
    if stage.started is None:
        return "not started"
    counts = ", ".join(f"{count} {tables.state_name(state)}" for state, count in _states(stage, standings).items())
    parts = [counts or "no run"]
    if stage.incomplete is not None:
        parts.append(stage.incomplete)
    if stage.needs and stage.met is not None:
        parts.append("gate met" if stage.met else "gate not met")
    if stage.forced_by is not None:
        parts.append("forced")
    return "; ".join(parts)


def _states(stage: StageRecord, standings: Mapping[str, Standing]) -> dict[str, int]:
    """How many runs of a stage are in each state; experiments that have no plan yet are left out."""
    counts: Counter[str] = Counter()
    for name in stage.experiments:
        counts.update(standings[name].states if name in standings else {})
    return dict(counts)


def experiments(records: Sequence[CampaignRecord]) -> list[str]:
    """The experiments that campaigns name, each once."""
    return list(dict.fromkeys(name for record in records for stage in record.stages for name in stage.experiments))
