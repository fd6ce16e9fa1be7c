"""The factors and exclusions of one experiment, as its file and the command line have them, checked.

The command line has the last word: its sweeps replace a factor's levels, its single values remove the factor, and a key
that it takes leaves its zip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config import schema
from launcher.config.identity import SECTIONS
from launcher.errors import Problem
from launcher.planning import method_parts, overrides
from launcher.planning.design import Exclusion, Factor, distinct, equal
from launcher.planning.experiment_spec import Declared
from launcher.planning.variants import Workshop
from launcher.text import nearest

_BESIDE = ("group", "seed")  # what an exclusion may name beside factors


@dataclass(frozen=True)
class Factors:
    """What multiplies an experiment's groups, and what is left out of that.

    excluded: each exclusion with the place that declares it, or None when the command line changed what it speaks of,
    so that it need not match anything.
    """

    factors: tuple[Factor, ...]
    excluded: tuple[tuple[Exclusion, str | None], ...]

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The levels of each factor over a configuration group, by key."""
        return self._levels(lambda factor: factor.choices)

    @property
    def values(self) -> dict[str, list[Any]]:
        """The levels of each other factor, by key."""
        return self._levels(lambda factor: factor.values)

    @property
    def levels(self) -> dict[str, list[Any]]:
        """All of them: those over configuration groups come first."""
        return {**self.choices, **self.values}

    def _levels(self, keys: Any) -> dict[str, list[Any]]:
        return {
            key: distinct([level[factor.keys.index(key)] for level in factor.levels])
            for factor in self.factors
            for key in keys(factor)
        }


def resolve(workshop: Workshop, wanted: Declared) -> Factors:
    """The factors of an experiment. Every breach is added to the workshop's problems."""
    return _Resolution(workshop, wanted).resolve()


class _Resolution:
    """The life of one reading."""

    def __init__(self, workshop: Workshop, wanted: Declared) -> None:
        self._wanted, self._arguments = wanted, workshop.arguments
        self._composer, self._problems = workshop.composer, workshop.problems

    def resolve(self) -> Factors:
        said = self._arguments
        taken = [*said.values, *said.choices, *said.choice_factors, *said.value_factors]
        declared = [
            *(({key: levels}, f"experiment.factors.{key}") for key, levels in self._wanted.factors.items()),
            *((keys, f"experiment.zip.{name}") for name, keys in self._wanted.zips.items()),
        ]
        read = [self._factor(keys, at) for keys, at in declared]
        self._named_twice([factor for factor in read if factor is not None])
        kept = [factor.without(taken) for factor in read if factor is not None]
        swept = [
            *(Factor((key,), (), tuple((one,) for one in levels)) for key, levels in said.choice_factors.items()),
            *(Factor((), (key,), tuple((one,) for one in levels)) for key, levels in said.value_factors.items()),
        ]
        # A sweep of a declared factor stays in its place.
        places = [key for factor in read if factor is not None for key in factor.keys]
        last = len(places)
        factors = [*(factor for factor in kept if factor is not None), *swept]
        factors.sort(key=lambda factor: min(places.index(key) if key in places else last for key in factor.keys))
        found = Factors(tuple(factors), ())
        return Factors(found.factors, tuple(self._exclusions(found)))

    def _factor(self, keys: Mapping[str, Sequence[Any]], at: str) -> Factor | None:
        """One declared factor; None (and problems) when a key cannot be one."""
        choices: dict[str, list[Any]] = {}
        values: dict[str, list[Any]] = {}
        for key, levels in keys.items():
            place = at if len(keys) == 1 else f"{at}.{key}"
            if self._composer.is_group(key):
                spelled = self._choice(key, levels, place)
                if spelled is None:
                    return None
                choices[key] = spelled
            elif key.partition(".")[0] in SECTIONS and key != "seed":
                values[key] = list(levels)
            else:
                rule = "this key cannot be a factor"
                seeds = "declare seeds under experiment.seeds"
                fix = seeds if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
                self._problems.append(Problem(self._wanted.where, place, schema.brief(list(levels)), rule, fix))
                return None
        columns = [*choices.values(), *values.values()]
        return Factor(tuple(choices), tuple(values), tuple(zip(*columns, strict=True)))

    def _choice(self, key: str, levels: Sequence[Any], at: str) -> list[str] | None:
        if key in ("method", "experiment", *overrides.WHOLE_GROUPS):
            fix = "declare one group a method" if key == "method" else "remove it"
            rule = f"{key} is not a factor"
            self._problems.append(Problem(self._wanted.where, at, schema.brief(levels), rule, fix))
            return None
        spelled = [
            overrides.choice_levels(self._composer, key, [one], self._wanted.where, at, self._problems)
            for one in levels
        ]
        return None if None in spelled else [one for own in spelled for one in own or []]

    def _named_twice(self, factors: Sequence[Factor]) -> None:
        seen: set[str] = set()
        for key in [key for factor in factors for key in factor.keys]:
            if key in seen:
                rule = "two factors, or zips, have this key"
                fix = "keep it in one of them"
                self._problems.append(Problem(self._wanted.where, f"experiment.zip: {key}", None, rule, fix))
            seen.add(key)

    # ------------------------------------------------------------ exclusions

    def _exclusions(self, factors: Factors) -> list[tuple[Exclusion, str | None]]:
        said = self._arguments
        changed = {*said.values, *said.choices, *said.choice_factors, *said.value_factors}
        if said.seeds is not None:
            changed.add("seed")
        levels = {
            **factors.levels,
            **{key: [value] for key, value in (*said.choices.items(), *said.values.items())},
            "group": list(self._wanted.groups),
            "seed": list(self._wanted.seeds),
        }
        found: list[tuple[Exclusion, str | None]] = []
        for number, raw in enumerate(self._wanted.exclude):
            at = f"experiment.exclude[{number}]"
            read = {key: self._alternatives(key, value) for key, value in raw.items()}
            sound = [self._known(key, own, levels, f"{at}.{key}", key in changed) for key, own in read.items()]
            if all(sound):
                found.append((Exclusion(read), None if changed & set(raw) else at))
        return found

    def _alternatives(self, key: str, value: Any) -> tuple[Any, ...]:
        """The levels an exclusion names for a key: a list of them, or one."""
        if method_parts.is_list_part(self._composer, key):
            several = isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value)
            listed = list(value) if several else [value]
            return tuple(method_parts.spelled([one] if isinstance(one, str) else map(str, one)) for one in listed)
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    def _known(self, key: str, own: Sequence[Any], levels: Mapping[str, Any], at: str, changed: bool) -> bool:
        if key not in levels:
            if changed:
                return True
            close = nearest(key, list(levels))
            rule = f"no factor of this experiment; it has {', '.join(levels)}"
            fix = f"write {close}" if close else "name a factor, group or seed"
            self._problems.append(Problem(self._wanted.where, at, schema.brief(list(own)), rule, fix))
            return False
        unknown = [] if changed else [one for one in own if not any(equal(one, level) for level in levels[key])]
        for one in unknown:
            close = nearest(str(one), [str(level) for level in levels[key]])
            rule = f"no level of {key}; its levels are {', '.join(map(str, levels[key]))}"
            fix = f"write {close}" if close else "correct the level, or remove the exclusion"
            self._problems.append(Problem(self._wanted.where, at, schema.brief(one), rule, fix))
        return not unknown
