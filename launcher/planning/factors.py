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
    return _Resolution(context, spec, where).resolve()


class _Resolution:
    """Reads the factors of one experiment."""

    def __init__(self, context: PlanningContext, spec: ExperimentSpec, where: str) -> None:
        self._spec, self._where, self._arguments = spec, where, context.arguments
        self._composer, self._problems = context.composer, context.problems

    def resolve(self) -> Factors:
        declared = [
            *(({key: levels}, f"experiment.factors.{key}") for key, levels in self._spec.factors.items()),
            *((keys, f"experiment.zip.{name}") for name, keys in self._spec.zip.items()),
        ]
        read = [factor for keys, at in declared if (factor := self._factor(keys, at)) is not None]
        places = [key for factor in read for key in factor.keys]
        for key in dict.fromkeys(key for key in places if places.count(key) > 1):
            self._add(f"experiment.zip: {key}", None, "two factors, or zips, have this key", "keep it in one of them")
        swept = [
            *(Factor((key,), (), tuple((one,) for one in own)) for key, own in self._arguments.choice_factors.items()),
            *(Factor((), (key,), tuple((one,) for one in own)) for key, own in self._arguments.value_factors.items()),
        ]
        kept = [factor.without(self._arguments.keys) for factor in read]
        factors = [*(factor for factor in kept if factor is not None), *swept]
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
        return Factors(tuple(factors), choices, values, tuple(self._exclusions({**choices, **values})))

    def _add(self, at: str, value: str | None, rule: str, fix: str) -> None:
        self._problems.add(self._where, at, value, rule, fix)

    def _factor(self, keys: Mapping[str, Sequence[Any]], at: str) -> Factor | None:
        """One declared factor; None (and problems) when a key cannot be one."""
        choices: dict[str, list[Any]] = {}
        values: dict[str, list[Any]] = {}
        for key, levels in keys.items():
            at_key = at if len(keys) == 1 else f"{at}.{key}"
            if self._composer.is_group(key):
                spelled = self._choice(key, levels, at_key)
                if spelled is None:
                    return None
                choices[key] = spelled
            elif key.partition(".")[0] in SECTIONS and key != "seed":
                values[key] = list(levels)
            else:
                fix = "declare seeds under experiment.seeds" if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
                self._add(at_key, brief(list(levels)), "this key cannot be a factor", fix)
                return None
        columns = [*choices.values(), *values.values()]
        return Factor(tuple(choices), tuple(values), tuple(zip(*columns, strict=True)))

    def _choice(self, key: str, levels: Sequence[Any], at: str) -> list[str] | None:
        if key in ("method", "experiment", *overrides.WHOLE_GROUPS):
            fix = "declare one group for each method" if key == "method" else "remove it"
            self._add(at, brief(list(levels)), f"{key} is not a factor", fix)
            return None
        return overrides.choice_levels(self._composer, key, levels, self._where, at, self._problems)

    # ------------------------------------------------------------ exclusions

    def _exclusions(self, levels: Mapping[str, Any]) -> list[tuple[Exclusion, str | None]]:
        arguments = self._arguments
        changed = arguments.keys | ({"seed"} if arguments.seeds is not None else set())
        levels = {
            **levels,
            **{key: [value] for key, value in (*arguments.choices.items(), *arguments.values.items())},
            "group": list(self._spec.groups),
            "seed": list(self._spec.all_seeds),
        }
        exclusions: list[tuple[Exclusion, str | None]] = []
        for number, declared in enumerate(self._spec.exclude):
            at = f"experiment.exclude[{number}]"
            read = {key: self._alternatives(key, value) for key, value in declared.items()}
            sound = [self._known(key, own, levels, f"{at}.{key}", key in changed) for key, own in read.items()]
            if all(sound):
                exclusions.append((Exclusion(read), None if changed & set(declared) else at))
        return exclusions

    def _alternatives(self, key: str, value: Any) -> tuple[Any, ...]:
        """The levels that an exclusion names for a key: a list of them, or one."""
        if method_parts.is_list_part(self._composer, key):
            several = isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value)
            choices = list(value) if several else [value]
            return tuple(method_parts.spelled([one] if isinstance(one, str) else map(str, one)) for one in choices)
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    def _known(self, key: str, own: Sequence[Any], levels: Mapping[str, Any], at: str, changed: bool) -> bool:
        if changed:
            return True
        if key not in levels:
            rule = f"not a factor of this experiment; it has {', '.join(levels)}"
            fix = closest(key, list(levels), otherwise="name a factor, group or seed")
            self._add(at, brief(list(own)), rule, fix)
            return False
        unknown = [one for one in own if not any(equal(one, level) for level in levels[key])]
        for one in unknown:
            names = list(map(str, levels[key]))
            fix = closest(str(one), names, otherwise="correct the level, or remove the exclusion")
            self._add(at, brief(one), f"not a level of {key}; its levels are {', '.join(names)}", fix)
        return not unknown
