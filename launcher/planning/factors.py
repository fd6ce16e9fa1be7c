"""The factors and exclusions of one experiment, as its file and the command line declare them, checked.

The command line has the last word: its sweeps replace a factor's levels, its single values remove the factor, and a key
that it sets leaves its zip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.spec.validation import closest
from launcher.config.identity import SECTIONS
from launcher.planning import method_parts, overrides
from launcher.planning.design import Exclusion, Factor, distinct, equal
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.schema import brief
from launcher.planning.variants import PlanningContext


@dataclass(frozen=True)
class Factors:
    """The factors that multiply an experiment's groups, and the cells that are left out.

    choices, values: the levels of each key over a configuration group, and of each other key; excluded: each exclusion
    with the key that declares it, or None if the command line changed one of its keys: then it need not match any cell.
    """

    factors: tuple[Factor, ...]
    choices: Mapping[str, list[Any]]
    values: Mapping[str, list[Any]]
    excluded: tuple[tuple[Exclusion, str | None], ...]

    @property
    def levels(self) -> dict[str, list[Any]]:
        """The levels of every key: those over configuration groups come first."""
        return {**self.choices, **self.values}


def resolve(context: PlanningContext, spec: ExperimentSpec, where: str) -> Factors:
    """The factors of an experiment, whose file is `where`. Every breach is added to the context's problems."""
    arguments = context.arguments
    declared = [
        *(({key: levels}, f"experiment.factors.{key}") for key, levels in spec.factors.items()),
        *((keys, f"experiment.zip.{name}") for name, keys in spec.zip.items()),
    ]
    read = [factor for keys, at in declared if (factor := _factor(context, keys, where, at)) is not None]
    places = [key for factor in read for key in factor.keys]
    for key in dict.fromkeys(key for key in places if places.count(key) > 1):
        rule = "two factors, or zips, have this key"
        context.problems.add(where, f"experiment.zip: {key}", None, rule, "keep it in one of them")
    factors = [factor for whole in read if (factor := whole.without(arguments.keys)) is not None]
    factors += [Factor((key,), (), tuple((one,) for one in own)) for key, own in arguments.choice_factors.items()]
    factors += [Factor((), (key,), tuple((one,) for one in own)) for key, own in arguments.value_factors.items()]
    # A sweep of a declared factor stays in its place.
    factors.sort(key=lambda factor: min(places.index(key) if key in places else len(places) for key in factor.keys))
    choices, values = (
        {
            key: distinct([level[factor.keys.index(key)] for level in factor.levels])
            for factor in factors
            for key in getattr(factor, kind)
        }
        for kind in ("choices", "values")
    )
    return Factors(tuple(factors), choices, values, _exclusions(context, spec, {**choices, **values}, where))


def _factor(context: PlanningContext, keys: Mapping[str, Sequence[Any]], where: str, at: str) -> Factor | None:
    """One declared factor; None (and problems) when a key cannot be one."""
    choices: dict[str, list[Any]] = {}
    values: dict[str, list[Any]] = {}
    for key, levels in keys.items():
        at_key = at if len(keys) == 1 else f"{at}.{key}"
        rule = fix = None
        if key in ("method", "experiment", *overrides.WHOLE_GROUPS):
            fix = "declare one group for each method" if key == "method" else "remove it"
            rule = f"{key} is not a factor"
        elif context.composer.is_group(key):
            spelled = overrides.choice_levels(context.composer, key, levels, where, at_key, context.problems)
            if spelled is None:
                return None
            choices[key] = spelled
        elif key.partition(".")[0] in SECTIONS and key != "seed":
            values[key] = list(levels)
        else:
            fix = "declare seeds under experiment.seeds" if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
            rule = "this key cannot be a factor"
        if rule is not None and fix is not None:
            context.problems.add(where, at_key, brief(list(levels)), rule, fix)
            return None
    columns = [*choices.values(), *values.values()]
    return Factor(tuple(choices), tuple(values), tuple(zip(*columns, strict=True)))


def _exclusions(
    context: PlanningContext, spec: ExperimentSpec, levels: Mapping[str, Any], where: str
) -> tuple[tuple[Exclusion, str | None], ...]:
    arguments = context.arguments
    changed = arguments.keys | ({"seed"} if arguments.seeds is not None else set())
    levels = {
        **levels,
        **{key: [value] for key, value in (*arguments.choices.items(), *arguments.values.items())},
        "group": list(spec.groups),
        "seed": list(spec.all_seeds),
    }
    exclusions: list[tuple[Exclusion, str | None]] = []
    for number, declared in enumerate(spec.exclude):
        at = f"experiment.exclude[{number}]"
        read = {key: _alternatives(context, key, value) for key, value in declared.items()}
        unchanged = [key for key in read if key not in changed]
        if all([_known(context, key, read[key], levels, where, f"{at}.{key}") for key in unchanged]):
            exclusions.append((Exclusion(read), None if changed & set(declared) else at))
    return tuple(exclusions)


def _alternatives(context: PlanningContext, key: str, value: Any) -> tuple[Any, ...]:
    """The levels that an exclusion names for a key: a list of them, or one."""
    if method_parts.is_list_part(context.composer, key):
        several = isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value)
        choices = list(value) if several else [value]
        return tuple(method_parts.spelled([one] if isinstance(one, str) else map(str, one)) for one in choices)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _known(
    context: PlanningContext, key: str, own: Sequence[Any], levels: Mapping[str, Any], where: str, at: str
) -> bool:
    """Whether an exclusion names a factor and its levels."""
    if key not in levels:
        rule = f"not a factor of this experiment; it has {', '.join(levels)}"
        fix = closest(key, list(levels), otherwise="name a factor, group or seed")
        context.problems.add(where, at, brief(list(own)), rule, fix)
        return False
    unknown = [one for one in own if not any(equal(one, level) for level in levels[key])]
    for one in unknown:
        names = list(map(str, levels[key]))
        fix = closest(str(one), names, otherwise="correct the level, or remove the exclusion")
        rule = f"not a level of {key}; its levels are {', '.join(names)}"
        context.problems.add(where, at, brief(one), rule, fix)
    return not unknown
