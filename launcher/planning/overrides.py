"""The command line's overrides, in Hydra's grammar: which experiments, choices of groups, values and sweeps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from analysis.spec.validation import closest
from launcher import secrets
from launcher.application import application
from launcher.config.hydra_compose import Composer, spelled
from launcher.errors import Diagnostics, Objection
from launcher.planning.plan import CodeChoice
from launcher.text import one_line, shown

COMMAND_LINE = "command line"
HYPOTHESIS = "hypothesis"  # the configuration group: conf/hypothesis
# Sections that hold for the whole experiment: they can be set, not swept.
WHOLE = ("experiment", "analysis", "cluster", "tracking", "budget", "base", "multirun")
# Hydra's flags that a value follows.
_VALUED = ("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
WHOLE_GROUPS = ("cluster", "scale", HYPOTHESIS)
# What to do, in this command alone, with runs that were made by other code; each key has one value.
CODE_CHOICES: Mapping[str, tuple[Any, CodeChoice]] = {
    "rerun": ("changed", CodeChoice.RERUN),
    "accept_code": (True, CodeChoice.ACCEPT),
}


@dataclass
class Arguments:
    """What the command line asks for; every list and mapping in the order given.

    adds_seeds: whether the seeds are added to those of the plan (`seed=+5,6`). more_hypotheses: files that
    `+hypothesis=NAME` adds to those of the experiment.
    """

    experiments: list[str | None] = field(default_factory=lambda: [None])
    methods: list[tuple[str, ...]] | None = None
    seeds: list[Any] | None = None
    adds_seeds: bool = False
    choices: dict[str, str] = field(default_factory=dict)
    more_hypotheses: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    choice_factors: dict[str, list[str]] = field(default_factory=dict)
    value_factors: dict[str, list[Any]] = field(default_factory=dict)
    code_choice: CodeChoice = CodeChoice.REFUSE

    @property
    def keys(self) -> set[str]:
        """Every key that is set or swept, except the experiment, its methods and its seeds."""
        return {*self.values, *self.choices, *self.choice_factors, *self.value_factors}

    def origin(self, key: str, otherwise: str) -> str:
        """Who set a key: the command line, or else `otherwise`."""
        return COMMAND_LINE if is_within(key, self.values) else otherwise


def key_of(word: str) -> str:
    """The key of an override."""
    return word.lstrip("+~").partition("=")[0]


def command_line(words: Iterable[str]) -> str:
    """The command of a launch with these overrides, without secrets."""
    # Quoted, a secret with a quote in it would no longer be recognized.
    return " ".join(["python launch.py -m", *(shlex.quote(secrets.mask(word)) for word in words)])


def is_within(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of the names, or below one."""
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in names)


def is_override(argument: str) -> bool:
    """Whether a word of the command line is an override rather than a flag or its value."""
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def is_bare(argument: str, before: str) -> bool:
    """Whether a word is neither flag nor override, nor the value of the flag `before` it: `quickstart` alone."""
    return not argument.startswith("-") and not is_override(argument) and before not in _VALUED


def is_hydras(word: str) -> bool:
    """Whether an override, or its key, is Hydra's own."""
    key = key_of(word)
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))


def is_code_choice(word: str) -> bool:
    """Whether an override holds for one command alone, and is not part of the command that the plan records."""
    return word.partition("=")[0] in {*CODE_CHOICES, "hydra.sweeper.code"}


def parse(composer: Composer, arguments: Sequence[str], problems: Diagnostics) -> Arguments:
    """Read all arguments; what cannot be read is added to `problems`. Of Hydra's own (`hydra.*`) only their grammar.

    If two arguments set the same key, the last one counts, whether it is a value or a sweep. `+hypothesis=NAME` adds to
    the others.
    """
    overrides: dict[str, Override] = {}
    for argument in arguments:
        if not is_override(argument):
            close = closest(argument, composer.options("experiment"), "experiment=", "write key=value")
            problems.add(COMMAND_LINE, argument, None, "not an override of the form KEY=VALUE", close)
            continue
        try:
            override = composer.parse(argument)
        except HydraException as error:
            rule = f"not an override in Hydra's grammar ({one_line(str(error))})"
            problems.add(COMMAND_LINE, argument, None, rule, "write key=value; quote special characters")
            continue
        key = override.key_or_group
        if is_hydras(key):
            continue
        if override.is_delete() or override.package is not None:
            rule = "a key of a plan can be set, but not deleted or moved to another package"
            problems.add(COMMAND_LINE, argument, None, rule, "write key=value")
            continue
        overrides[argument if key == HYPOTHESIS and override.is_add() else key] = override
    parsed = Arguments()
    for override in overrides.values():
        _add(composer, parsed, override.key_or_group, override, problems)
    return parsed


def _add(composer: Composer, parsed: Arguments, key: str, override: Override, problems: Diagnostics) -> None:
    try:
        levels = _levels(override)
    except HydraException as error:
        problems.add(COMMAND_LINE, key, None, one_line(str(error)), "list the values: key=a,b")
        return
    if key in CODE_CHOICES:
        _add_code_choice(parsed, key, levels, problems)
    elif not levels:
        problems.add(COMMAND_LINE, override.input_line or key, None, "this sweep has no value", "list the values")
    elif key == "campaign":
        fix = "rlsweep launch campaign=NAME, or rlsweep plan campaign=NAME"
        problems.add(COMMAND_LINE, key, str(levels[0]), "this command is about experiments", fix)
    elif key == "experiment" and levels == [None]:
        parsed.experiments = [None]
    elif composer.is_group(key):
        _add_choices(composer, parsed, key, levels, override.is_add(), problems)
    elif isinstance(levels[0], list) if key == "seed" else key == "experiment.seeds" and override.is_sweep_override():
        seeds = ",".join(map(str, levels[0] if isinstance(levels[0], list) else levels))
        rule = "on the command line seeds are listed without brackets, under the key seed"
        problems.add(COMMAND_LINE, key, shown(levels[0] if key == "seed" else levels), rule, f"write seed={seeds}")
    elif key == "seed":
        parsed.seeds, parsed.adds_seeds = levels, (override.input_line or "").partition("=")[2].startswith("+")
    elif "/" in key:
        close = closest_group(composer, key)
        fix = f"{close}=..." if close.startswith("write") else close
        problems.add(COMMAND_LINE, key, str(levels[0]), "this configuration group does not exist", fix)
    elif len(levels) == 1 and not override.is_sweep_override():
        parsed.values[key] = levels[0]
    elif key.partition(".")[0] in WHOLE:
        rule = "this key belongs to a whole experiment and cannot be swept"
        joined = ",".join(map(str, levels))
        fix = (
            f"give one value; a text with commas is quoted twice, \"{key}='{joined}'\", and a list is {key}=[{joined}]"
        )
        problems.add(COMMAND_LINE, key, str(levels), rule, fix)
    else:
        parsed.value_factors[key] = levels


def _add_code_choice(parsed: Arguments, key: str, levels: list[Any], problems: Diagnostics) -> None:
    value, choice = CODE_CHOICES[key]
    only = f"{key}={str(value).lower()}"
    if levels != [value] or type(levels[0]) is not type(value):
        given = ",".join(map(str, levels))
        problems.add(COMMAND_LINE, key, given, f"the only value is {str(value).lower()}", f"write {only}, or remove it")
    elif parsed.code_choice not in (CodeChoice.REFUSE, choice):
        rule = "runs are either run anew or accepted"
        problems.add(COMMAND_LINE, key, str(value).lower(), rule, "give rerun=changed or accept_code=true, not both")
    else:
        parsed.code_choice = choice


def _add_choices(
    composer: Composer, parsed: Arguments, key: str, levels: list[Any], adds: bool, problems: Diagnostics
) -> None:
    if None in levels:
        fix = f"name one, or write {key}=[]" if _takes_list(composer, key) else "name one"
        problems.add(COMMAND_LINE, key, "null", "this group needs a choice", fix)
        return
    if (choices := choice_levels(composer, key, levels, COMMAND_LINE, key, problems)) is None:
        return
    listed = [_listed(level) for level in levels]
    names = [name for level in listed for name in level]
    if key == "experiment":
        parsed.experiments = [*names]
    elif key == "method":
        parsed.methods = listed
    elif key == HYPOTHESIS and adds:
        parsed.more_hypotheses += names
    elif len(listed) == 1:
        (parsed.choices[key],) = choices
    elif key in WHOLE_GROUPS:
        rule, fix = f"a launch uses one {key}, so it cannot be swept", "choose one"
        if key == HYPOTHESIS:
            rule = "hypotheses belong to a whole experiment and cannot be swept"
            fix = f"write {key}=[{','.join(names)}]"
        problems.add(COMMAND_LINE, key, ",".join(names), rule, fix)
    else:
        parsed.choice_factors[key] = list(dict.fromkeys(choices))


def _levels(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    if not override.is_discrete_sweep():
        raise HydraException("an interval is not allowed here")
    return [Override._convert_value(level) for level in override.sweep_iterator()]


def _listed(level: Any) -> tuple[str, ...]:
    return tuple(map(str, level)) if isinstance(level, (list, tuple)) else (str(level),)


def _takes_list(composer: Composer, key: str) -> bool:
    return key == HYPOTHESIS or application().parts().is_list_part(composer, key)


def choice_levels(
    composer: Composer, key: str, levels: Sequence[Any], where: str, at: str, problems: Diagnostics
) -> list[str] | None:
    """Levels over a configuration group, as Hydra's overrides spell them; None (and problems) if one is not a
    choice."""
    choices = [_listed(level) for level in levels]
    unknown = [name for names in choices for name in names if name not in composer.options(key)]
    for name in unknown:
        problems.append(unknown_option(composer, where, at, key, name))
    if unknown:
        return None
    if _takes_list(composer, key):
        return list(map(spelled, choices))
    if () in choices:
        problems.add(where, at, "[]", "this group needs a choice", "name one")
        return None
    if several := [list(names) for names in choices if len(names) > 1 and key != "method"]:
        fix = "write a,b without brackets to run each in turn"
        problems.add(where, at, str(several[0]), "this group takes one choice", fix)
        return None
    return [name for names in choices for name in names]


def closest_group(composer: Composer, name: str, at: str = "") -> str:
    """The fix for a configuration group that does not exist."""
    groups = [*composer.subgroups(""), *(f"method/{part}" for part in composer.subgroups("method"))]
    return closest(name, groups, at, f"use one of {', '.join(groups)}")


def unknown_option(composer: Composer, where: str, key: str, group: str, name: str) -> Objection:
    """The problem of a choice that a group does not offer."""
    options = composer.options(group)
    rule = f"there is no conf/{group}/{name.removesuffix('.yaml')}.yaml; available: {', '.join(options)}"
    meant = application().option(group, name, options)
    fix = f"use {meant}" if meant else closest(name, options, otherwise="use one of these, or add the file")
    if meant and name.endswith(".yaml"):
        rule = f"a file is chosen by its name, without folder and ending; available: {', '.join(options)}"
    return Objection(key, name, rule, fix.replace("write ", "use ", 1), where)
