"""A file of conf/campaign: stages, each with its experiments, its gate, and the levels that it takes; and the plans of
all stages, made and checked before anything runs.

A stage is launched as an ordinary command, `python launch.py -m experiment=NAME ...`, which can be repeated by hand:
its words are those of the campaign's file, of the levels that it takes, of the gate's own hypotheses, and of the
campaign's command line, in this order; the stage's own trainer and cluster come last. A level that is not decided yet
is planned as the last one of its factor: the first is often the model's own, whose runs another group may have.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from analysis.spec.hypothesis import Declared
from analysis.spec.validation import Distinct, Listed, Section, closest, each_once, objections, refusal, refusals
from launcher.application import Checks, application
from launcher.config import hydra_compose
from launcher.config.hydra_compose import Composer, as_override
from launcher.errors import Diagnostics, InvalidPlan, Objection
from launcher.planning import hypotheses, overrides, planner, schema
from launcher.planning.overrides import COMMAND_LINE, is_within, key_of
from launcher.planning.plan import Experiment, Plan
from launcher.planning.planner import AddedSeeds
from launcher.run.campaign_record import CampaignRecord, Taken
from launcher.run.folder import RESERVED, can_be_named
from launcher.text import one_line, shown

_STAGE_NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,39}"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _by_name(gate: Any) -> Any:
    """A list of names as a mapping without declarations."""
    if not isinstance(gate, list) or not all(isinstance(name, str) for name in gate):
        return gate
    return dict.fromkeys(each_once(tuple(gate)))


_OneOrMore = Annotated[
    Distinct[str], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=str | Distinct[str])
]
_Declarations = dict[str, Declared | None]
_Gate = Annotated[_Declarations, BeforeValidator(_by_name, json_schema_input_type=Distinct[str] | _Declarations)]
_Word = Annotated[
    str, Field(pattern=r"^[^=\s]+=", description="an override as on the command line, such as trainer.steps=100")
]


class Take(Section):
    """A level that a stage takes: of each of these groups, the best level of a factor in an earlier stage.

    factor: its key in that stage's experiment; None: the key that is taken.
    """

    stage: str
    group: _OneOrMore = Field(description="the name of a group, or a list of them")
    factor: str | None = None


class Stage(Section):
    """Experiments that run together; the gate must be met before the next stage starts.

    trainer, cluster: files of these groups, which win over the command line; None: as it says. gate: names of
    hypotheses of the experiments that must be supported, or declarations of further ones by name. take: by key.
    """

    experiment: _OneOrMore = Field(description="the name of a file in conf/experiment, or a list of them")
    trainer: str | None = Field(None, description="the name of a file in conf/trainer")
    cluster: str | None = Field(None, description="the name of a file in conf/cluster")
    overrides: Listed[_Word] = Field((), description="a list of overrides as on the command line")
    gate: _Gate = Field(
        {}, description="a list of hypotheses of the experiment, or a mapping of names to declarations (null: its own)"
    )
    take: dict[str, Take] = Field({}, description="a mapping of keys to {stage, group, factor}")

    @property
    def choices(self) -> dict[str, str]:
        """The files that it chooses itself, by configuration group."""
        chosen = {"trainer": self.trainer, "cluster": self.cluster}
        return {group: name for group, name in chosen.items() if name is not None}

    @property
    def declared(self) -> Mapping[str, Declared]:
        """The hypotheses that the gate itself declares."""
        return {name: claim for name, claim in self.gate.items() if claim is not None}

    @model_validator(mode="after")
    def _has_one_experiment(self) -> Stage:
        """Overrides of groups and hypotheses are those of one experiment."""
        if len(self.experiment) > 1 and (self.take or self.declared):
            what = "a stage that takes levels" if self.take else "a gate that declares hypotheses"
            raise refusal(f"{what} must have one experiment", "give the others a stage of their own", False)
        return self


class CampaignSpec(Section):
    """The stages of a campaign, in their order."""

    stages: Annotated[dict[str, Stage], Field(min_length=1)] = Field(
        description="a mapping of names to {experiment, trainer, cluster, overrides, gate, take}"
    )

    @field_validator("stages")
    @classmethod
    def _take_from_above(cls, stages: dict[str, Stage]) -> dict[str, Stage]:
        wrong: list[tuple[tuple[str, ...], str, PydanticCustomError]] = []
        above: list[str] = []
        for name, stage in stages.items():
            if not re.fullmatch(_STAGE_NAME, name):
                rule = "a stage's name must have 1 to 40 characters: letters, digits, _ and -"
                wrong.append(((name,), name, refusal(rule, "rename it", False)))
            for key, take in stage.take.items():
                if take.stage not in above:
                    rule = f"must be a stage above {name}: {', '.join(above) or 'there is none'}"
                    fix = closest(take.stage, above, otherwise="name one of them" if above else "remove it")
                    wrong.append(((name, "take", key, "stage"), take.stage, refusal(rule, fix)))
                elif len(stages[take.stage].experiment) > 1:
                    rule = f"stage {take.stage} has several experiments, so its levels are not those of one"
                    wrong.append(((name, "take", key, "stage"), take.stage, refusal(rule, "split that stage")))
            above.append(name)
        if wrong:
            raise refusals(wrong)
        return stages


# ---------------------------------------------------------------- the plans of the stages

CAMPAIGN, FORCE = "campaign", "force_gate"
_REFUSED = ("experiment", "method")  # the stages name these
_REFUSED_IN_STAGE = (*_REFUSED, CAMPAIGN, FORCE, "multirun", "budget.device_hours")


@dataclass(frozen=True)
class Campaign:
    """A campaign as its file and the command line declare it.

    words: those of the command line that hold for every stage; forced: the stages whose gates it forces; checks: what
    the plans of all stages ask, each thing once.
    """

    root: Path
    composer: Composer
    name: str
    file: str
    words: tuple[str, ...]
    forced: tuple[str, ...]
    spec: CampaignSpec
    checks: Checks = field(default_factory=lambda: application().checks())


@dataclass(frozen=True)
class Pin:
    """A level that a stage takes: key, its own group `into`, and from where."""

    key: str
    into: str
    take: Take
    factor: str
    experiment: str


@dataclass(frozen=True)
class PlannedStage:
    """A stage with its plan. taken: the levels of its pins, by (key, group); those that are not decided are missing."""

    name: str
    stage: Stage
    pins: tuple[Pin, ...]
    taken: Mapping[tuple[str, str], Taken]
    plan: Plan

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return self.plan.experiments

    @property
    def runs(self) -> dict[str, list[str]]:
        """The ids of its runs by group, whatever their order in the plan."""
        entries = [entry for experiment in self.experiments for entry in experiment.entries]
        groups = [group for experiment in self.experiments for group in experiment.groups]
        return {group: sorted({entry.id for entry in entries if entry.group == group}) for group in groups}


def shared_budget(planned: Sequence[PlannedStage]) -> float | None:
    """The device-hours that all stages may take together, those of the command line; not of a single experiment."""
    budgets = {stage.plan.budget for stage in planned}
    return budgets.pop() if len(budgets) == 1 else None


def is_campaign(words: Sequence[str]) -> bool:
    """Whether a command line names a campaign, or forces a gate."""
    return any(key_of(word) in (CAMPAIGN, FORCE) for word in words)


def read(root: Path, words: Sequence[str], composer: Composer) -> Campaign:
    """The campaign that a command line names. Raises InvalidPlan with every problem of the two."""
    problems = Diagnostics()
    chosen, forced, rest = list[str](), list[str](), list[str]()
    for word in words:
        key, value = key_of(word), word.partition("=")[2]
        if key == CAMPAIGN:
            chosen = value.strip("[]").split(",")
        elif key == FORCE:
            forced += [name for name in value.strip("[]").split(",") if name]
        elif key in _REFUSED:
            rule = "the stages of a campaign name their experiments"
            problems.add(COMMAND_LINE, key, value, rule, f"remove it, or remove {CAMPAIGN}=")
        else:
            rest.append(word)
    if not chosen:
        problems.add(COMMAND_LINE, FORCE, ",".join(forced), "only a campaign has gates", f"add {CAMPAIGN}=NAME")
    elif len(chosen) > 1:
        rule = "one campaign is launched at a time"
        problems.add(COMMAND_LINE, CAMPAIGN, ",".join(chosen), rule, f"write {CAMPAIGN}={chosen[0]}")
    elif not can_be_named(chosen[0]):
        rule = f"a campaign has a folder of its name, which cannot be {', '.join(RESERVED)}"
        problems.add(COMMAND_LINE, CAMPAIGN, chosen[0], rule, "rename the file")
    elif chosen[0] not in composer.options(CAMPAIGN):
        problems.append(overrides.unknown_option(composer, COMMAND_LINE, CAMPAIGN, CAMPAIGN, chosen[0]))
    problems.raise_any()
    file = f"{composer.folder.name}/{CAMPAIGN}/{chosen[0]}.yaml"
    spec = _read_file(composer, chosen[0], file)
    gates = [name for name, stage in spec.stages.items() if stage.gate]
    for name in (name for name in forced if name not in gates):
        rule = f"must be a stage with a gate: {', '.join(gates) or 'none of this campaign has one'}"
        problems.add(COMMAND_LINE, FORCE, name, rule, closest(name, gates, otherwise="name one of them"))
    problems.raise_any()
    return Campaign(root, composer, chosen[0], file, tuple(rest), tuple(dict.fromkeys(forced)), spec)


def _read_file(composer: Composer, campaign: str, file: str) -> CampaignSpec:
    """The campaign's file. Raises InvalidPlan."""
    problems = Diagnostics()
    try:
        content = composer.content(f"{CAMPAIGN}/{campaign}")
    except (*hydra_compose.ERRORS, ValueError) as error:
        problems.add(file, campaign, None, one_line(str(error)), "correct the file")
        problems.raise_any()
    for objection in objections(CampaignSpec, content, CAMPAIGN):
        schema.report(problems, file, objection, objection.key.removeprefix(f"{CAMPAIGN}."))
    problems.raise_any()
    spec = CampaignSpec.model_validate(content)
    if campaign in composer.options("experiment"):
        rule = f"{composer.folder.name}/experiment has a file of this name, and both would write to one folder"
        problems.add(file, "name", campaign, rule, "rename one of the files")
    for name, stage in spec.stages.items():
        for group, option in (*(("experiment", experiment) for experiment in stage.experiment), *stage.choices.items()):
            if option not in composer.options(group):
                problems.append(overrides.unknown_option(composer, file, f"stages.{name}.{group}", group, option))
        for word in (word for word in stage.overrides if key_of(word) in _REFUSED_IN_STAGE):
            rule = "the stage names its experiment, and the folder and the budget are those of the campaign"
            problems.add(file, f"stages.{name}.overrides", shown(word), rule, f"remove {word.partition('=')[0]}")
    problems.raise_any()
    return spec


def plan_all(campaign: Campaign, record: CampaignRecord | None) -> list[PlannedStage]:
    """The plans of all stages, with the levels that are recorded as taken and were decided by the runs planned now.

    Raises InvalidPlan with every problem of every stage.
    """
    planned: dict[str, PlannedStage] = {}
    problems = Diagnostics()
    recorded = [stage for version in record.versions for stage in version] if record is not None else []
    for name, stage in campaign.spec.stages.items():
        if any(take.stage not in planned for take in stage.take.values()):
            continue  # the stage above has problems of its own
        try:
            levels = [level for stage in recorded if stage.name == name for level in stage.taken]
            planned[name] = plan_stage(campaign, name, levels, planned)
        except InvalidPlan as invalid:
            problems += invalid.problems
    seen: dict[str, str] = {}
    for name, experiment in ((name, member) for name, stage in planned.items() for member in stage.experiments):
        other = seen.setdefault(experiment.name, name)
        if other != name:
            rule = f"stage {other} has an experiment of this name, and both would write to one folder"
            fix = f"add experiment.name={experiment.name}_{name} to the overrides of stage {name}"
            problems.add(campaign.file, f"stages.{name}.experiment", experiment.name, rule, fix)
    problems.raise_any()
    return list(planned.values())


def plan_stage(
    campaign: Campaign,
    name: str,
    levels: Iterable[Taken],
    above: Mapping[str, PlannedStage],
    added: AddedSeeds | None = None,
) -> PlannedStage:
    """The plan of one stage. levels: that were taken for it, the last one last, of which those hold that the present
    runs decided; above: the plans of the stages above it; added: as in `planner.make`.

    Raises InvalidPlan; what the campaign's file says is named by its own key.
    """
    stage, problems = campaign.spec.stages[name], Diagnostics()
    pins = _pins(campaign, name, above, problems)
    problems.raise_any()
    chosen: dict[tuple[str, str], Any] = {}
    taken: dict[tuple[str, str], Taken] = {}
    for pin in pins:
        source, at = above[pin.take.stage], (pin.key, pin.into)
        chosen[at] = source.experiments[0].factors[pin.factor]["levels"][-1]
        for level in levels:
            now = (*at, pin.take.stage, pin.factor, source.runs[pin.into])
            if (level.key, level.into, level.stage, level.factor, level.runs) == now:
                taken[at], chosen[at] = level, level.value
    words = [f"experiment={','.join(stage.experiment)}", *stage.overrides, *_group_words(campaign, stage, chosen)]
    gate = campaign.composer.content(f"{CAMPAIGN}/{campaign.name}")["stages"][name].get("gate")
    words += [as_override(f"analysis.hypotheses.{hypothesis}", gate[hypothesis]) for hypothesis in stage.declared]
    words += [*campaign.words, *(f"{group}={choice}" for group, choice in stage.choices.items())]
    try:
        plan = planner.make(campaign.root, words, campaign.composer, added, campaign.checks)
    except InvalidPlan as invalid:
        raise InvalidPlan([_at_home(problem, campaign, name) for problem in invalid.problems]) from invalid
    planned = PlannedStage(name, stage, pins, taken, plan)
    _check_gate(campaign.file, planned, problems)
    _check_seeds(campaign, planned, above, problems)
    problems.raise_any()
    return planned


def _pins(campaign: Campaign, name: str, above: Mapping[str, PlannedStage], problems: Diagnostics) -> tuple[Pin, ...]:
    """The levels that a stage takes. Groups and factors that do not exist are added to `problems`."""
    pins, stage = [], campaign.spec.stages[name]
    for key, take in stage.take.items():
        at = f"stages.{name}.take.{key}"
        (experiment,) = above[take.stage].experiments
        factor, factors = take.factor or key, list(experiment.factors)
        if factor not in factors:
            rule = f"stage {take.stage} has no such factor; its factors: {', '.join(factors) or 'none'}"
            fix = closest(factor, factors, otherwise="name one of them with `factor`")
            problems.add(campaign.file, f"{at}.factor", factor, rule, fix)
        places = {f"stage {take.stage}": list(experiment.groups), "this stage": list(_groups_of(campaign, stage))}
        for group in take.group:
            for where, groups in places.items():
                if group not in groups:
                    rule = f"{where} has no such group; its groups: {', '.join(groups)}"
                    fix = closest(group, groups, otherwise="remove it")
                    problems.add(campaign.file, f"{at}.group", group, rule, fix)
            pins.append(Pin(key, group, take, factor, experiment.name))
    return tuple(pins)


def _groups_of(campaign: Campaign, stage: Stage) -> Mapping[str, Any]:
    """The groups that the experiment of a stage declares."""
    tree = campaign.composer.compose([f"experiment={stage.experiment[0]}"]).tree
    return dict((tree.get("experiment") or {}).get("groups") or {})


def _group_words(campaign: Campaign, stage: Stage, chosen: Mapping[tuple[str, str], Any]) -> list[str]:
    """The stage's groups with the levels that they take, as overrides."""
    pinned: dict[str, dict[str, Any]] = {}
    for (key, into), value in chosen.items():
        pinned.setdefault(into, {})[key] = value
    words = []
    for into, values in pinned.items():
        group = _groups_of(campaign, stage)[into]
        group = {**group, "overrides": {**(group.get("overrides") or {}), **values}}
        words.append(as_override(f"experiment.groups.{into}", group))
    return words


def _check_gate(file: str, planned: PlannedStage, problems: Diagnostics) -> None:
    known = [name for experiment in planned.experiments for name in experiment.analysis.get("hypotheses") or {}]
    described = {name for experiment in planned.experiments for name in hypotheses.described(experiment)}
    for name in planned.stage.gate:
        key = f"stages.{planned.name}.gate"
        if name in described:
            rule = "is described and never supported: it is about the values of one group, or about a best value"
            fix = "remove it, or need a claim about two groups (docs/report.md#hypotheses)"
            problems.add(file, key, name, rule, fix)
        if name not in known:
            declared = ", ".join(dict.fromkeys(known)) or "none"
            rule = f"the stage's experiments declare no such hypothesis; declared: {declared}"
            fix = closest(name, known, otherwise="name one of them, or declare it here")
            problems.add(file, key, name, rule, fix)


def _check_seeds(
    campaign: Campaign, planned: PlannedStage, above: Mapping[str, PlannedStage], problems: Diagnostics
) -> None:
    """A level that was chosen on a seed looks better on this seed than it is."""
    name, seeds = planned.name, planned.experiments[0].seeds
    for key, take in planned.stage.take.items():
        chosen_on = above[take.stage].experiments[0].seeds
        if shared := sorted({*chosen_on} & {*seeds}):
            rule = f"stage {take.stage} chooses it on seeds that {name} judges: {', '.join(map(str, shared))}"
            first = max(chosen_on) + 1
            fix = f'give {name} fresh seeds: overrides: ["seed={",".join(map(str, range(first, first + len(seeds))))}"]'
            if any(word.startswith("seed=") for word in campaign.words):
                fix += ", and remove seed= from the command line, which is for all stages"
            problems.add(campaign.file, f"stages.{name}.take.{key}", take.stage, rule, fix)


def _at_home(problem: Objection, campaign: Campaign, name: str) -> Objection:
    """A problem of a stage's plan, with the file and the key that the user has written."""
    if problem.file != COMMAND_LINE:
        return dataclasses.replace(problem, rule=f"{problem.rule} (in stage {name} of {campaign.file})")
    key, stage = problem.key, campaign.spec.stages[name]
    if is_within(key, map(key_of, campaign.words)):
        return dataclasses.replace(problem, rule=f"{problem.rule} (in stage {name})")
    at = f"overrides: {key}"
    prefix = "analysis.hypotheses."
    if is_within(key, [f"{prefix}{hypothesis}" for hypothesis in stage.declared]):
        at = f"gate.{key.removeprefix(prefix)}"
    elif taken := next((taken for taken in stage.take if taken in key), None):
        at = f"take.{taken}"
    return dataclasses.replace(problem, file=campaign.file, key=f"stages.{name}.{at}")
