"""The record of a campaign, multirun/<campaign>/campaign.json: what was decided, which no run folder says.

The states of runs are in their folders. A stage's taken values are frozen when it starts, and a forced gate stays
recorded: later reports name it. A decision holds for the runs that it was made from, which the record names; it stays
recorded when others, such as those after a rehearsal, take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from launcher.run import lifecycle
from launcher.run.folder import FORMAT, Record, find_record, write_record

NAME = "campaign.json"


@dataclass(frozen=True)
class Figure(Record):
    """A hypothesis of a gate as a report judged it. `shown`: the estimate with its interval."""

    hypothesis: str
    experiment: str
    claim: str
    verdict: str
    quantity: str
    shown: str
    decided: str

    @property
    def met(self) -> bool:
        return self.verdict == "supported"

    def brief(self) -> str:
        """The figure in a few words: quick_variance (inconclusive: 0.17 [0.07, 1.3])."""
        return f"{self.hypothesis} ({self.verdict}{f': {self.shown}' if self.shown else ''})"

    def sentence(self) -> str:
        value = f"{self.quantity} {self.shown}" if self.shown else "no estimate"
        reason = f" ({self.decided})" if self.decided else ""
        return f"{self.hypothesis}: {self.verdict}: {value}{reason}"


@dataclass(frozen=True)
class Taken(Record):
    """A level that a stage took: of a factor (by its key) of a group in an earlier stage's experiment, for a group of
    its own. `means`: the primary measure of each level then, as text for people; `runs`: the ids of the group's runs,
    which decided it."""

    key: str
    into: str
    value: Any
    stage: str
    experiment: str
    group: str
    factor: str
    means: str
    time: float
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StageRecord(Record):
    """A stage. `gate`: the figures of the last decision; `met`: None before one; `forced`: the figures that had not met
    the gate when it was forced, with the command and the time; `runs`: the ids of its runs by group, which all of this
    is about."""

    name: str
    experiments: list[str]
    started: float | None = None
    taken: list[Taken] = field(default_factory=list)
    met: bool | None = None
    gate: list[Figure] = field(default_factory=list)
    forced: list[Figure] = field(default_factory=list)
    forced_by: str | None = None
    forced_at: float | None = None
    incomplete: str | None = None
    runs: dict[str, list[str]] = field(default_factory=dict)

    def levels(self) -> dict[tuple[str, str], Taken]:
        """The levels that it took, by key and group."""
        return {(level.key, level.into): level for level in self.taken}


@dataclass(frozen=True)
class CampaignRecord(Record):
    """campaign.json. Stages are in their order. `former`: the stages of launches with other runs, the last one last."""

    campaign: str
    command: str
    stages: list[StageRecord]
    former: list[list[StageRecord]] = field(default_factory=list)
    format: Literal[1] = field(default=FORMAT, kw_only=True)

    @property
    def versions(self) -> list[list[StageRecord]]:
        """The stages of all launches, the present ones last."""
        return [*self.former, self.stages]

    def stage(self, name: str) -> StageRecord:
        """The stage of that name. KeyError."""
        return {stage.name: stage for stage in self.stages}[name]


def find(multirun: Path, campaign: str) -> CampaignRecord | None:
    """A campaign's record; None before its first launch. BadRunFolder: it cannot be read."""
    return find_record(CampaignRecord, multirun / campaign / NAME)


def update(multirun: Path, campaign: str, change: Callable[[CampaignRecord | None], CampaignRecord]) -> CampaignRecord:
    """Replace a campaign's record by what `change` makes of it, and return that. Two launches at once wait for each
    other."""
    folder = multirun / campaign
    folder.mkdir(parents=True, exist_ok=True)
    with lifecycle.locked(folder):
        before = find(multirun, campaign)
        after = change(before)
        if after != before:
            write_record(folder / NAME, after)
    return after


def change_stage(multirun: Path, campaign: str, name: str, change: Callable[[StageRecord], StageRecord]) -> StageRecord:
    """Replace a stage of a recorded campaign by what `change` makes of it, and return that."""

    def changed(record: CampaignRecord | None) -> CampaignRecord:
        assert record is not None
        return replace(record, stages=[change(stage) if stage.name == name else stage for stage in record.stages])

    return update(multirun, campaign, changed).stage(name)


@dataclass(frozen=True)
class Condition:
    """What the runs of an experiment rest on: an earlier stage of its campaign whose gate was forced."""

    campaign: str
    stage: StageRecord


def of_experiment(
    multirun: Path, experiment: str, runs: Mapping[str, Collection[str]]
) -> tuple[list[Condition], list[Taken]]:
    """The forced gates before the stages that have runs of an experiment, and the levels that its groups took there.

    runs: the ids of its present plan by group.
    """
    conditions: dict[tuple[str, str], Condition] = {}
    taken: dict[tuple[str, str, str], Taken] = {}
    for campaign in sorted(path.parent.name for path in multirun.glob(f"*/{NAME}")):
        record = find(multirun, campaign)
        for version in record.versions if record is not None else ():  # None: it was moved away just now
            for number, stage in enumerate(version):
                if experiment not in stage.experiments or stage.started is None:
                    continue
                known = stage.runs or runs  # older versions did not record them
                shared = {group for group, ids in runs.items() if not {*ids}.isdisjoint(known.get(group, ()))}
                if shared:
                    forced = [past for past in version[:number] if past.forced_by is not None]
                    conditions |= {(campaign, past.name): Condition(campaign, past) for past in forced}
                    levels = [level for level in stage.taken if level.into in shared]
                    taken |= {(campaign, level.key, level.into): level for level in levels}
    return [*conditions.values()], [*taken.values()]
