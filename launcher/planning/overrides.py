"""The command line's overrides, in Hydra's grammar: which experiments, choices of groups, values and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from launcher.config.hydra_compose import Composer
from launcher.errors import Problem
from launcher.planning import method_parts
from launcher.planning.hypotheses import HYPOTHESIS
from launcher.text import nearest, one_line

COMMAND_LINE = "command line"
# What is one for the whole experiment: it can be set, not swept.
WHOLE = ("experiment", "analysis", "cluster", "tracking", "base", "multirun")
# Hydra's flags that a value follows.
_VALUED = ("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
WHOLE_GROUPS = ("cluster", "scale", HYPOTHESIS)


@dataclass
class Arguments:
    """What the command line asks for; every list and mapping in the order given.

    more_hypotheses: files that `+hypothesis=NAME` puts beside those of the experiment.
    """

    experiments: list[str | None] = field(default_factory=lambda: [None])
    methods: list[tuple[str, ...]] | None = None
    seeds: list[Any] | None = None
    choices: dict[str, str] = field(default_factory=dict)
    more_hypotheses: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    choice_factors: dict[str, list[str]] = field(default_factory=dict)
    value_factors: dict[str, list[Any]] = field(default_factory=dict)


def is_override(argument: str) -> bool:
    """Whether a word of the command line is an override rather than a flag or its value."""
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def is_bare(argument: str, before: str) -> bool:
    """Whether a word is neither flag nor override, nor the value of the flag `before` it: `quickstart` alone."""
    return not argument.startswith("-") and not is_override(argument) and before not in _VALUED


def is_hydras(word: str) -> bool:
    """Whether an override, or its key, is Hydra's own."""
    key = word.lstrip("+~").partition("=")[0]
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))


def parse(composer: Composer, arguments: Sequence[str], problems: list[Problem]) -> Arguments:
    """Read all arguments; what cannot be read is added to `problems`. Hydra's own (`hydra.*`) are passed over.

    Of two that set one key the last counts, be it a value or a sweep. `+hypothesis=NAME` adds up.
    """
    parsed = Arguments()
    wanted: dict[str, Override] = {}
    for argument in arguments:
        if not is_override(argument):
            close = nearest(argument, composer.options("experiment"))
            rule, fix = "no override, KEY=VALUE", f"write experiment={close}" if close else "write key=value"
            problems.append(Problem(COMMAND_LINE, argument, None, rule, fix))
            continue
        try:
            override = composer.parse(argument)
        except HydraException as error:
            rule = f"not an override in Hydra's grammar ({one_line(str(error))})"
            problems.append(Problem(COMMAND_LINE, argument, None, rule, "write key=value; quote special characters"))
            continue
        key = override.key_or_group
        if is_hydras(key):
            continue
        if override.is_delete() or override.package is not None:
            rule = "a plan's keys can be set, not deleted or moved to another package"
            problems.append(Problem(COMMAND_LINE, argument, None, rule, "write key=value"))
            continue
        adds = key == HYPOTHESIS and override.is_add()
        wanted[argument if adds else key] = override
    for override in wanted.values():
        _add(composer, parsed, override.key_or_group, override, problems)
    return parsed


def _add(composer: Composer, parsed: Arguments, key: str, override: Override, problems: list[Problem]) -> None:
    try:
        levels = _levels(override)
    except HydraException as error:
        problems.append(Problem(COMMAND_LINE, key, None, one_line(str(error)), "list the values: key=a,b"))
        return
    if not levels:
        problems.append(
            Problem(COMMAND_LINE, override.input_line or key, None, "this names nothing", "list the values")
        )
    elif key == "experiment" and levels == [None]:
        parsed.experiments = [None]
    elif composer.is_group(key) and None in levels:
        fix = f"name one, or write {key}=[]" if _takes_list(composer, key) else "name one"
        problems.append(Problem(COMMAND_LINE, key, "null", "this group needs a choice", fix))
    elif composer.is_group(key):
        chosen = [_listed(level) for level in levels]
        if not _sound(composer, key, chosen, COMMAND_LINE, key, problems):
            return
        if key == "experiment":
            parsed.experiments = [name for one in chosen for name in one]
        elif key == "method":
            parsed.methods = chosen
        elif key == HYPOTHESIS and override.is_add():
            parsed.more_hypotheses += [name for one in chosen for name in one]
        elif len(chosen) == 1:
            (parsed.choices[key],) = _spelled(composer, key, chosen)
        elif key in WHOLE_GROUPS:
            names = ",".join(name for one in chosen for name in one)
            rule, fix = f"a sweep has one {key}", "choose one"
            if key == HYPOTHESIS:
                rule, fix = "hypotheses are of the whole sweep", f"write {key}=[{names}]"
            problems.append(Problem(COMMAND_LINE, key, names, rule, fix))
        else:
            parsed.choice_factors[key] = list(dict.fromkeys(_spelled(composer, key, chosen)))
    elif key == "seed":
        parsed.seeds = levels
    elif "/" in key:
        groups = [*composer.subgroups(""), *(f"method/{part}" for part in composer.subgroups("method"))]
        close = nearest(key, groups)
        fix = f"write {close}=..." if close else f"use one of {', '.join(groups)}"
        problems.append(Problem(COMMAND_LINE, key, str(levels[0]), "there is no such configuration group", fix))
    elif len(levels) == 1 and not override.is_sweep_override():
        parsed.values[key] = levels[0]
    elif key.partition(".")[0] in WHOLE:
        rule = "this holds for a whole experiment and cannot be swept"
        problems.append(Problem(COMMAND_LINE, key, str(levels), rule, "give one value"))
    else:
        parsed.value_factors[key] = levels


def _levels(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    if not override.is_discrete_sweep():
        raise HydraException("an interval is not a list of levels")
    return [Override._convert_value(level) for level in override.sweep_iterator()]


def choice_levels(
    composer: Composer, key: str, levels: Sequence[Any], where: str, at: str, problems: list[Problem]
) -> list[str] | None:
    """A factor's levels over a group, as Hydra's overrides spell them; None (and problems) if one is no choice."""
    chosen = [_listed(level) for level in levels]
    return _spelled(composer, key, chosen) if _sound(composer, key, chosen, where, at, problems) else None


def _listed(level: Any) -> tuple[str, ...]:
    return tuple(map(str, level)) if isinstance(level, (list, tuple)) else (str(level),)


def _sound(
    composer: Composer, key: str, chosen: list[tuple[str, ...]], where: str, at: str, problems: list[Problem]
) -> bool:
    unknown = [name for one in chosen for name in one if name not in composer.options(key)]
    problems.extend(unknown_option(composer, where, at, key, name) for name in unknown)
    if unknown or _takes_list(composer, key):
        return not unknown
    if () in chosen:
        problems.append(Problem(where, at, "[]", "this group needs a choice", "name one"))
        return False
    several = [list(one) for one in chosen if len(one) > 1 and key != "method"]
    if several:
        fix = "write a,b without brackets to run each in turn"
        problems.append(Problem(where, at, str(several[0]), "this group has one choice at a time", fix))
    return not several


def _takes_list(composer: Composer, key: str) -> bool:
    return key == HYPOTHESIS or method_parts.is_list_part(composer, key)


def _spelled(composer: Composer, key: str, chosen: list[tuple[str, ...]]) -> list[str]:
    if _takes_list(composer, key):
        return list(map(method_parts.spelled, chosen))
    return [name for one in chosen for name in one]


def unknown_option(composer: Composer, where: str, key: str, group: str, name: str) -> Problem:
    """The problem of a choice that a group does not offer."""
    options = composer.options(group)
    close = nearest(name, options)
    rule = f"there is no conf/{group}/{name}.yaml; available: {', '.join(options)}"
    return Problem(where, key, name, rule, f"use {close}" if close else "use one of these, or add the file")
