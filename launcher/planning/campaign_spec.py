"""A file of conf/campaign: stages, each with its experiments, its gate, and the levels that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from analysis.spec.hypothesis import Declared
from analysis.spec.validation import Listed, Section, closest, refusal, refusals

_NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,39}"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _or_one(schema: dict[str, Any]) -> None:
    """Of a list of names, also a single one."""
    several = {key: schema.pop(key) for key in ("type", "items", "minItems", "uniqueItems") if key in schema}
    schema["anyOf"] = [{"type": "string"}, several]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refusal(f"{twice} is named twice", "name each once")
    return names


_OneOrMore = Annotated[Listed[str], BeforeValidator(_as_list), AfterValidator(_each_once), Field(min_length=1)]
_Experiments = Annotated[
    _OneOrMore,
    Field(description="the name of a file in conf/experiment, or a list of them", json_schema_extra=_or_one),
]
_Groups = Annotated[_OneOrMore, Field(description="the name of a group, or a list of them", json_schema_extra=_or_one)]
_Word = Annotated[
    str, Field(pattern=r"^[^=\s]+=", description="an override as on the command line, such as trainer.steps=100")
]


def _by_name(gate: Any) -> Any:
    """A list of names as a mapping without declarations."""
    if not isinstance(gate, list) or not all(isinstance(name, str) for name in gate):
        return gate
    return dict.fromkeys(_each_once(tuple(gate)))


def _or_names(schema: dict[str, Any]) -> None:
    mapping = {key: schema.pop(key) for key in ("type", "additionalProperties")}
    schema["anyOf"] = [{"type": "array", "items": {"type": "string"}, "uniqueItems": True}, mapping]


_Gate = Annotated[dict[str, Declared | None], BeforeValidator(_by_name), Field(json_schema_extra=_or_names)]


class Take(Section):
    """A level that a stage takes: of each of these groups, the best level of a factor in an earlier stage.

    factor: its key in that stage's experiment; None: the key that is taken.
    """

    stage: str
    group: _Groups
    factor: str | None = None


class Stage(Section):
    """Experiments that run together; the gate must be met before the next stage starts.

    trainer, cluster: files of these groups, which win over the command line; None: as it says. gate: names of
    hypotheses of the experiments, or declarations of further ones by name. take: by key.
    """

    experiment: _Experiments
    trainer: str | None = Field(None, description="the name of a file in conf/trainer")
    cluster: str | None = Field(None, description="the name of a file in conf/cluster")
    overrides: Listed[_Word] = Field((), description="a list of overrides as on the command line")
    gate: _Gate = Field(
        {}, description="a list of hypotheses of the experiment, or a mapping of names to declarations (null: its own)"
    )
    take: dict[str, Take] = Field({}, description="a mapping of keys to {stage, group, factor}")

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the hypotheses that must be supported."""
        return tuple(self.gate)

    @property
    def choices(self) -> dict[str, str]:
        """The files that it chooses itself, by configuration group."""
        chosen = {"trainer": self.trainer, "cluster": self.cluster}
        return {group: name for group, name in chosen.items() if name is not None}

    @property
    def declared(self) -> Mapping[str, Declared]:
        """The hypotheses that the gate itself declares."""
        return {name: one for name, one in self.gate.items() if one is not None}

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
            if not re.fullmatch(_NAME, name):
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
