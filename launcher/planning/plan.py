"""The records of a plan: its experiments, their runs, and what holds for the whole launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from analysis.spec.settings import Sequential
from launcher.application import Base
from launcher.text import counted


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: the first 16 hex digits of its identity, the whole hash, and its resolved configuration.

    settled: the configuration but for the seed; all seeds of a cell share it, because a copy for each takes more memory
    than the rest of a run. checkpoint, step_seconds: bytes of one of its checkpoints and seconds of a step, by
    arithmetic; None: the sizes of its model are not known here.
    """

    id: str
    hash: str
    base: str
    settled: Mapping[str, Any]
    seed: int
    checkpoint: int | None
    step_seconds: float | None

    @property
    def config(self) -> dict[str, Any]:
        return {**self.settled, "seed": self.seed}


def one_of_each(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """A run of each configuration: what does not depend on the seed is the same for the others."""
    return [*{id(run.settled): run for run in runs}.values()]


class Prefix(NamedTuple):
    """The id of the run whose first `step` steps another run takes over."""

    run: str
    step: int


class Entry(BaseModel, frozen=True):
    """A run's place in an experiment; several entries may share one run. `factors` by label."""

    id: str
    group: str
    seed: int
    factors: dict[str, Any]


class PlannedGroup(TypedDict):
    """A group as the plan has it. method: a list of several that are combined; absent in an imported experiment."""

    label: str
    method: NotRequired[str | list[str]]


class FactorLevels(TypedDict):
    """A factor as the plan has it. label: the shortest unique ending of its key; absent in an imported experiment."""

    label: NotRequired[str]
    levels: list[Any]


class Experiment(BaseModel, frozen=True):
    """One experiment's plan: what multirun/<name>/plan.json holds. Old plans may lack the fields with a default."""

    format: Literal[1] = 1
    name: str = Field(alias="experiment")
    command: str
    baseline: str | None = None
    steps: int | None
    seeds: tuple[int, ...] = ()
    groups: dict[str, PlannedGroup] = {}
    factors: dict[str, FactorLevels] = {}
    analysis: dict[str, Any]
    entries: tuple[Entry, ...] = Field(alias="runs")

    @property
    def members(self) -> dict[str, Entry]:
        """Its runs, each with its first entry, by id."""
        first: dict[str, Entry] = {}
        for entry in self.entries:
            first.setdefault(entry.id, entry)
        return first

    def seeds_of(self) -> dict[str, list[int]]:
        """The seeds of each group, in the order of the plan."""
        return seeds_of(self.groups, self.entries)

    @property
    def sequential(self) -> Sequential | None:
        """The rule by which its seeds are added; None if their number is fixed."""
        given = self.analysis.get("sequential")
        return None if given is None else Sequential.model_validate(given)

    def document(self) -> dict[str, Any]:
        """The content of plan.json: deterministic, without times."""
        return self.model_dump(by_alias=True)


def seeds_of(groups: Iterable[str], entries: Iterable[Entry]) -> dict[str, list[int]]:
    """The seeds of each group's entries."""
    seeds: dict[str, dict[int, None]] = {group: {} for group in groups}
    for entry in entries:
        seeds[entry.group][entry.seed] = None
    return {group: list(listed) for group, listed in seeds.items()}


class CodeChoice(StrEnum):
    """What to do with runs that were made by other code: refuse to add runs, run them anew, or accept the code."""

    REFUSE = "refuse"
    RERUN = "rerun"
    ACCEPT = "accept"

    @property
    def word(self) -> str:
        """What a user adds to the command of an experiment to choose so."""
        return "rerun=changed" if self == CodeChoice.RERUN else "accept_code=true"

    @property
    def key(self) -> str:
        """What a user adds to the command of a program of @hydra.main to choose so."""
        return f"hydra.sweeper.code={self}"


@dataclass(frozen=True)
class Plan:
    """A sound plan: experiments, their runs by id (in the order of the plan), base trees by hash, and the sections that
    hold for the whole launch.

    budget: the device-hours that all attempts of its runs may take, and of the runs `charged`, which are other plans';
    None: without limit. prefixes: what runs that do not exist yet continue, by id; restarts: why others do not.
    of_program: whether its runs are jobs of a Hydra program that this process has loaded, so that workers on this
    machine are forks of this process, and settings are keys of hydra.sweeper. seed_key: what sets their seeds. show:
    makes, for the runs of a launch, what prints more of each that has ended.
    """

    experiments: tuple[Experiment, ...]
    runs: Mapping[str, PlannedRun]
    bases: Mapping[str, Base]
    cluster: Mapping[str, Any]
    tracking: Mapping[str, Any]
    multirun: Path
    code_choice: CodeChoice = CodeChoice.REFUSE
    budget: float | None = None
    charged: frozenset[str] = frozenset()
    prefixes: Mapping[str, Prefix] = field(default_factory=dict)
    restarts: Mapping[str, str] = field(default_factory=dict)
    of_program: bool = False
    seed_key: str = "seed"
    show: Callable[[Sequence[str]], Callable[[str], object]] | None = None

    def continuations(self) -> Iterator[str]:
        """Which new runs continue other runs, and why others start again although a run of fewer steps is done."""
        for step, runs in sorted(Counter(prefix.step for prefix in self.prefixes.values()).items()):
            yield f"{counted(runs, 'run')} {'continues a run' if runs == 1 else 'continue runs'} from step {step} on"
        for why, runs in Counter(self.restarts.values()).items():
            yield f"{counted(runs, 'run')} {'starts' if runs == 1 else 'start'} again, {why}"

    def spelled(self, choice: CodeChoice) -> str:
        """What a user adds to the command to choose so."""
        return choice.key if self.of_program else choice.word
