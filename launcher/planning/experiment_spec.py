"""The `experiment` section of a configuration: groups, factors, zips, exclusions, seeds, baseline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from analysis.spec.settings import Sequential
from analysis.spec.validation import Listed, Objection, Section, closest, explain, refusal, refusals
from launcher.errors import Diagnostics
from launcher.planning.design import distinct
from launcher.planning.overrides import COMMAND_LINE, Arguments
from launcher.planning.plan import Entry, FactorLevels
from launcher.planning.schema import report
from launcher.run.folder import NAME, RESERVED, can_be_named

_LETTERS = "a-z, A-Z, 0-9 and _ . + -, the first of them a letter or a digit"
_FOLDER = f"a folder name of 1 to 100 of {_LETTERS}; and not, in upper or lower case, {', '.join(RESERVED)}"

Item = TypeVar("Item")


def _text_keys(value: Any) -> Any:
    """The mapping with its keys as text: YAML reads the names 1 and 2024 as numbers. Anything else is unchanged."""
    if not isinstance(value, Mapping):
        return value
    named = {str(key): item for key, item in value.items()}
    if len(named) < len(value):
        twice = next(str(key) for key in value if [*map(str, value)].count(str(key)) > 1)
        raise refusals([((twice,), value[twice], refusal("two groups have this name", "rename one", False))])
    return named


def _or_null(schema: dict[str, Any]) -> None:
    """Allow null as an entry in the JSON Schema of a mapping."""
    schema["additionalProperties"] = {"anyOf": [schema["additionalProperties"], {"type": "null"}]}


def _distinct_levels(levels: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(distinct(levels)) < len(levels):
        raise refusal("a level is named twice", "name each level once")
    return levels


def _zipped(keys: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The levels of each key of a zip, refused if their numbers differ or a combination occurs twice."""
    counts = {key: len(levels) for key, levels in keys.items()}
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise refusal(f"each key of a zip must have the same number of levels; {named}", "add or remove levels")
    if len(distinct(list(zip(*keys.values(), strict=True)))) < max(counts.values()):
        raise refusal("a combination of levels is named twice", "name each once")
    return keys


_LEVELS = "a list of one level or more"
Levels = Annotated[
    Listed[Any],
    Field(min_length=1, description=_LEVELS, json_schema_extra={"type": ["array", "string"], "pattern": r"^\$\{.+\}$"}),
]
#: A mapping of names to items, where in a file null drops the entry of another.
_Entries = Annotated[dict[str, Item], Field(json_schema_extra=_or_null)]
Zip = Annotated[
    dict[str, Levels],
    Field(min_length=2, description="a mapping of two keys or more to their levels, which go together"),
    AfterValidator(_zipped),
]
_Exclusion = Annotated[dict[str, Any], Field(min_length=1, description="a mapping of factors, group or seed to levels")]
_Scale = Annotated[dict[str, Any], Field(description="a mapping of dotted keys to values, or of groups to choices")]
# The largest seed that every seeded library takes: NumPy's legacy generators take 32 bits.
_MOST = 2**32 - 1
_Seed = Annotated[int, Field(ge=0, le=_MOST, description=f"an integer from 0 to {_MOST}")]


def _seeds_once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise refusal(f"seed {seed} is named twice", "name each seed once")
    return seeds


_LIST_OF_SEEDS = TypeAdapter(
    Annotated[Listed[_Seed], Field(min_length=1), AfterValidator(_seeds_once)], config=ConfigDict(strict=True)
)


def _read_seeds(given: Any) -> tuple[int, ...] | Sequential:
    return Sequential.model_validate(given) if isinstance(given, Mapping) else _LIST_OF_SEEDS.validate_python(given)


_Seeds = Annotated[
    tuple[int, ...] | Sequential,
    PlainValidator(_read_seeds),
    WithJsonSchema(
        {
            "anyOf": [_LIST_OF_SEEDS.json_schema(), Sequential.model_json_schema()],
            "description": "a list of one seed or more, such as [0, 1, 2], or {start: 4, max: 12, until: decided}",
        }
    ),
]
_Methods = Annotated[
    str | Annotated[Listed[str], Field(min_length=1)],
    Field(description="the name of a file in conf/method, or a list of them"),
]


class Group(Section):
    """One comparison group: its method files (several are combined), its label, and the values and choices of parts
    that it holds fixed (overrides). may_equal: an earlier group that may turn out to have the same runs, because a
    campaign chooses its levels."""

    method: _Methods | None = None
    label: str | int | float | None = None
    may_equal: str | None = Field(None, description="the name of a group, or null")
    overrides: Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})] = Field(
        {}, description="a mapping of dotted keys to values, such as {method.rho: 0.3}"
    )

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its files in conf/method; empty where it has none of its own."""
        return (self.method,) if isinstance(self.method, str) else self.method or ()

    @property
    def values(self) -> dict[str, Any]:
        """The values that it holds fixed, by dotted key."""
        return {key: value for key, value in self.overrides.items() if "/" not in key}

    @property
    def choices(self) -> dict[str, Any]:
        """The choices of parts that it holds fixed, by group of files."""
        return {key: choice for key, choice in self.overrides.items() if "/" in key}


class ExperimentSpec(Section):
    """An experiment as its file and the command line declare it.

    zip: by a name that the file gives, several keys whose levels go together. exclude: of each exclusion, by factor,
    group or seed, the levels left out. scales: by scale, values by dotted key and choices by group of files.
    """

    name: Annotated[str, Field(pattern=f"^{NAME}$", description=_FOLDER)]
    groups: Annotated[_Entries[Group], BeforeValidator(_text_keys)] = Field(
        {}, description="a mapping of group names to {method, label, overrides, may_equal}"
    )
    baseline: str | None = Field(None, description="the name of a group, or null")
    factors: _Entries[Annotated[Levels, AfterValidator(_distinct_levels)]] = Field(
        {}, description="a mapping of keys to lists of levels"
    )
    zip: _Entries[Zip] = Field({}, description="a mapping of names to factors whose levels go together")
    exclude: Listed[_Exclusion] = Field(
        (), description="a list of mappings of factors, group or seed to the levels left out"
    )
    seeds: _Seeds | None = None
    scales: _Entries[_Scale] = Field(
        {}, description="a mapping of scales to dotted keys and their values, such as {tiny: {trainer.steps: 200}}"
    )

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if not can_be_named(name):
            raise refusal(f"must be {_FOLDER}", "give the experiment another name")
        return name

    @field_validator("groups")
    @classmethod
    def _are_told_apart(cls, groups: dict[str, Group]) -> dict[str, Group]:
        """The groups, all with a label: their name if they have none. Equal labels are refused."""
        labelled: dict[str, Group] = {}
        wrong: list[tuple[tuple[str, ...], str, PydanticCustomError]] = []
        for name, group in groups.items():
            if not re.fullmatch(NAME, name):
                rule = f"a group's name must have 1 to 100 of {_LETTERS}"
                wrong.append(((name,), name, refusal(rule, "rename it", False)))
            label = str(group.label or name)
            for other in (other for other, earlier in labelled.items() if earlier.label == label):
                rule = f"group {other} has the same label, so a reader of the report could not distinguish them"
                wrong.append(((name, "label"), label, refusal(rule, "write another")))
            if group.may_equal is not None and group.may_equal not in groups:
                rule, fix = f"must be one of the groups: {', '.join(groups)}", closest(group.may_equal, list(groups))
                wrong.append(((name, "may_equal"), group.may_equal, refusal(rule, fix)))
            labelled[name] = group.model_copy(update={"label": label})
        if wrong:
            raise refusals(wrong)
        return labelled

    @field_validator("baseline")
    @classmethod
    def _is_a_group(cls, baseline: str | None, info: ValidationInfo) -> str | None:
        groups = list(info.data.get("groups", [baseline]))  # not there if they were refused
        if baseline is not None and baseline not in groups:
            fix = closest(baseline, groups, otherwise="name a group, or null for none")
            raise refusal(f"must be one of the groups: {', '.join(groups)}", fix)
        return baseline

    @property
    def rule(self) -> Sequential | None:
        """How seeds are added, if their number depends on results; None if it is fixed."""
        return self.seeds if isinstance(self.seeds, Sequential) else None

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds that runs may have; by a rule, from 0 up to those of its last look."""
        return tuple(range(self.seeds.max)) if isinstance(self.seeds, Sequential) else self.seeds or ()

    @property
    def multiplied(self) -> frozenset[str]:
        """The keys of all factors and zips, by whose levels the runs are multiplied."""
        return frozenset([*self.factors, *(key for keys in self.zip.values() for key in keys)])


def read(
    section: Mapping[str, Any], seed: Any, method: str, arguments: Arguments, where: str, problems: Diagnostics
) -> ExperimentSpec:
    """Read the `experiment` section with what the command line says of it.

    seed: used if no seeds are declared; method: that of groups without one, and of a launch without groups; where: the
    experiment's file, for messages. Every breach is added to `problems`, and the result is without the entries that
    have one (see `_sound`).
    """
    given = {str(key): value for key, value in section.items() if value is not None}
    if not given.get("groups") and arguments.experiments == [None]:
        given["groups"] = {"+".join(files): {"method": list(files)} for files in arguments.methods or [(method,)]}
    elif given.get("groups") == {}:
        problems.add(where, "experiment.groups", "{}", "must name at least one group", "write NAME: {method: FILE}")
    elif arguments.methods is not None:
        named = ", ".join(map("+".join, arguments.methods))
        fix = f"remove it, or run one method without experiment=; the groups are in {where}"
        problems.add(COMMAND_LINE, "method", named, "this experiment's groups choose their own methods", fix)
    where_seeds = where
    if arguments.seeds is not None:
        given["seeds"], where_seeds = arguments.seeds, COMMAND_LINE
    elif "seeds" not in given:
        given["seeds"], where_seeds = [seed], "conf/config.yaml"
    breaches, spec = _sound(given)
    for breach in breaches:
        if breach.key.startswith("experiment.seeds") and where_seeds != where:
            report(problems, where_seeds, breach, "seed")
        else:
            report(problems, arguments.origin(breach.key, where), breach)
    groups = {name: group.model_copy(update={"method": group.method or method}) for name, group in spec.groups.items()}
    return spec.model_copy(update={"groups": groups})


def _sound(section: dict[str, Any]) -> tuple[list[Objection], ExperimentSpec]:
    """Every breach of a section, and the section without the entries that have one. A refused name is replaced by
    "unnamed", and refused seeds by those among them that are valid, or by 0."""
    breaches: list[Objection] = []
    while True:
        try:
            return breaches, ExperimentSpec.model_validate(section)
        except ValidationError as error:
            breaches = breaches or explain(error, ExperimentSpec, "experiment")
            for name, *below in (detail["loc"] for detail in error.errors()):
                value = section.pop(str(name), None)
                if name == "name":
                    section["name"] = "unnamed"
                elif name == "seeds":
                    listed = value if isinstance(value, (list, tuple)) else ()
                    seeds = [seed for seed in listed if type(seed) is int and 0 <= seed <= _MOST]
                    section["seeds"] = list(dict.fromkeys(seeds)) or [0]
                elif isinstance(value, Mapping) and below:
                    kept = {key: entry for key, entry in value.items() if str(key) != str(below[0])}
                    section |= {str(name): kept} if len(kept) < len(value) else {}


def check_groups(
    spec: ExperimentSpec, entries: Iterable[Entry], where: str, arguments: Arguments, problems: Diagnostics
) -> None:
    """Add a problem for each group whose runs are those of an earlier group, and for several groups without a baseline.

    Equal groups are allowed if the command line sets or sweeps a key of the method, such as `method/control=none`, or
    if `may_equal` of the later group names the earlier one. where: the experiment's file, for messages.
    """
    runs: dict[str, set[str]] = {}
    for entry in entries:
        runs.setdefault(entry.group, set()).add(entry.id)
    seen: dict[frozenset[str], str] = {}
    for group, ids in runs.items():
        other = seen.setdefault(frozenset(ids), group)
        declared = spec.groups[group]
        if other not in (group, declared.may_equal) and not any(key.startswith("method") for key in arguments.keys):
            method = "+".join(declared.methods)
            rule = f"its runs are those of group {other}, and a comparison of the two says nothing"
            fix = "change its method or overrides, or remove it"
            problems.add(where, f"experiment.groups.{group}", method, rule, fix)
    if len(runs) > 1 and spec.baseline is None:
        first = next(iter(runs))
        at = COMMAND_LINE if arguments.methods is not None else where
        rule = f"one of the groups, which the others are compared with: {', '.join(runs)}"
        fix = f"write experiment.baseline={first}" if at == COMMAND_LINE else f"write baseline: {first}"
        problems.add(at, "experiment.baseline", "null", rule, fix)


def check_factors(
    factors: Mapping[str, FactorLevels],
    entries: Sequence[Entry],
    places: Mapping[str, tuple[str, str]],
    problems: Diagnostics,
) -> None:
    """Add a problem for each factor whose levels are the same runs, because its key does not change what they compute.

    places: by factor, the file that declares it, and under which key.
    """
    if len({entry.id for entry in entries}) == len(entries):
        return
    for key, factor in factors.items():
        cells: dict[tuple[str, int, str], tuple[set[str], set[str]]] = {}  # the levels of each, and its runs
        for entry in entries:
            if (label := factor["label"]) in entry.factors:
                cell = entry.group, entry.seed, repr({**entry.factors, label: None})
                levels, runs = cells.setdefault(cell, (set(), set()))
                levels.add(repr(entry.factors[label]))
                runs.add(entry.id)
        several = [runs for levels, runs in cells.values() if len(levels) > 1]
        if several and all(len(runs) == 1 for runs in several):
            rule = "its levels are the same runs, because this key does not change what a run computes"
            problems.add(*places[key], ",".join(map(str, factor["levels"])), rule, "set one value")
