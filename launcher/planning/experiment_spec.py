"""The `experiment` section of a composed configuration, checked: groups, factors, zips, exclusions, seeds, baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import Problem
from launcher.planning.design import distinct
from launcher.planning.overrides import Arguments
from launcher.text import nearest, shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_KEYS = ("name", "groups", "baseline", "factors", "zip", "exclude", "seeds", "scales")
_GROUP_KEYS = ("method", "label", "overrides")
_RESERVED = ("runs", "bases", "cache", "launches")


@dataclass(frozen=True)
class Group:
    """One comparison group: its method files (several are combined), label, pinned values, pinned choices of parts."""

    name: str
    methods: tuple[str, ...]
    label: str
    overrides: Mapping[str, Any]
    choices: Mapping[str, Any]


@dataclass(frozen=True)
class Declared:
    """An experiment as its file and the command line declare it.

    zips: factors of several keys whose levels go together, by a name that the file gives; exclude: for each exclusion
    levels by key.
    """

    name: str
    where: str
    groups: Mapping[str, Group]
    baseline: str | None
    factors: Mapping[str, tuple[Any, ...]]
    zips: Mapping[str, Mapping[str, tuple[Any, ...]]]
    exclude: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]
    scales: Mapping[str, Mapping[str, Any]]

    @property
    def multiplied(self) -> frozenset[str]:
        """The keys of all factors and zips."""
        return frozenset([*self.factors, *(key for keys in self.zips.values() for key in keys)])


def declared(
    section: Mapping[str, Any], seed: Any, method: str, arguments: Arguments, where: str, problems: list[Problem]
) -> Declared:
    """Read the section. `method` is the method chosen by default; `where` the experiment's file.

    Every breach is added to `problems`; the parts that could not be read are left out of the result.
    """
    for key in section:
        if key not in _KEYS:
            _unknown(where, f"experiment.{key}", str(key), _KEYS, problems)
    name = section.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        rule = f"a folder name of up to 100 letters, digits and _ . + -, and not {', '.join(_RESERVED)}"
        problems.append(Problem(where, "experiment.name", shown(name), rule, "give the experiment a name"))
        name = "unnamed"
    groups = _groups(section.get("groups") or {}, method, arguments, where, problems)
    baseline = section.get("baseline")
    if baseline is not None and not (isinstance(baseline, str) and baseline in groups):
        rule = f"the baseline is one of the groups: {', '.join(groups)}"
        close = nearest(str(baseline), list(groups))
        fix = f"use {close}" if close else "name a group, or null for none"
        problems.append(Problem(where, "experiment.baseline", shown(baseline), rule, fix))
        baseline = None
    return Declared(
        name=name,
        where=where,
        groups=groups,
        baseline=baseline,
        factors=_factors(section.get("factors") or {}, where, problems),
        zips=_zips(section.get("zip") or {}, where, problems),
        exclude=_exclude(section.get("exclude") or [], where, problems),
        seeds=_seeds(section.get("seeds"), seed, arguments, where, problems),
        scales=_scales(section.get("scales") or {}, where, problems),
    )


def _unknown(where: str, key: str, name: str, known: tuple[str, ...], problems: list[Problem]) -> None:
    close = nearest(name, known)
    fix = f"write {close}" if close else "remove it"
    problems.append(Problem(where, key, None, f"no such key; allowed: {', '.join(known)}", fix))


def _groups(value: Any, method: str, arguments: Arguments, where: str, problems: list[Problem]) -> dict[str, Group]:
    if not isinstance(value, Mapping):
        rule = "a mapping of group names to {method, label, overrides}"
        problems.append(Problem(where, "experiment.groups", shown(value), rule, "write NAME: {method: FILE}"))
        return {}
    if not value and arguments.experiments != [None]:
        problems.append(Problem(where, "experiment.groups", shown(value), "empty", "write NAME: {method: FILE}"))
        return {}
    if not value:
        chosen = {"+".join(files): files for files in arguments.methods or [(method,)]}
        return {name: Group(name, files, name, {}, {}) for name, files in chosen.items()}
    if arguments.methods is not None:
        rule = "this experiment's groups choose their own methods"
        fix = f"drop it, or run one method without experiment=; the groups are in {where}"
        problems.append(Problem("command line", "method", ", ".join(map("+".join, arguments.methods)), rule, fix))
    groups: dict[str, Group] = {}
    for raw, item in value.items():
        name, at = str(raw), f"experiment.groups.{raw}"
        if not _NAME.fullmatch(name):
            rule = "a group's name has up to 100 letters, digits and _ . + -"
            problems.append(Problem(where, at, None, rule, "rename it"))
        if name in groups:
            problems.append(Problem(where, at, None, "two groups have this name", "rename one"))
            continue
        if not isinstance(item, Mapping):
            problems.append(
                Problem(where, at, shown(item), "a mapping {method, label, overrides}", "write {method: FILE}")
            )
            continue
        for key in item:
            if key not in _GROUP_KEYS:
                _unknown(where, f"{at}.{key}", str(key), _GROUP_KEYS, problems)
        methods = item.get("method", method)
        names = methods if isinstance(methods, (list, tuple)) else [methods]
        if not names or not all(isinstance(one, str) for one in names):
            rule = "the name of a file in conf/method, or a list of them"
            problems.append(Problem(where, f"{at}.method", shown(methods), rule, "write method: c0_grpo"))
            continue
        overrides = item.get("overrides") or {}
        if not isinstance(overrides, Mapping):
            rule = "a mapping of dotted keys to values"
            problems.append(Problem(where, f"{at}.overrides", shown(overrides), rule, "write {method.rho: 0.3}"))
            overrides = {}
        values = {str(key): level for key, level in overrides.items() if "/" not in str(key)}
        choices = {str(key): level for key, level in overrides.items() if "/" in str(key)}
        label = str(item.get("label") or name)
        other = next((one.name for one in groups.values() if one.label == label), None)
        if other is not None:
            rule = f"group {other} has this label, and the report could not tell the two"
            problems.append(Problem(where, f"{at}.label", shown(label), rule, "write another"))
        groups[name] = Group(name, tuple(names), label, values, choices)
    return groups


def _factors(value: Any, where: str, problems: list[Problem]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(value, Mapping):
        rule = "a mapping of keys to lists of levels"
        problems.append(Problem(where, "experiment.factors", shown(value), rule, "write KEY: [LEVEL, LEVEL]"))
        return {}
    factors: dict[str, tuple[Any, ...]] = {}
    for key, levels in value.items():
        at = f"experiment.factors.{key}"
        if not _listed(levels, where, at, problems):
            continue
        if len(distinct(levels)) < len(levels):
            problems.append(Problem(where, at, shown(levels), "a level is named twice", "name each level once"))
        else:
            factors[str(key)] = tuple(levels)
    return factors


def _listed(levels: Any, where: str, at: str, problems: list[Problem]) -> bool:
    if isinstance(levels, (list, tuple)) and levels:
        return True
    problems.append(Problem(where, at, shown(levels), "a list of one level or more", "write [LEVEL, LEVEL]"))
    return False


def _zips(value: Any, where: str, problems: list[Problem]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Each sound zip: two keys or more, each with as many levels as the others, no combination twice."""
    fix = "write NAME: {KEY: [LEVEL, LEVEL], OTHER: [LEVEL, LEVEL]}"
    if not isinstance(value, Mapping):
        rule = "a mapping of names to factors whose levels go together"
        problems.append(Problem(where, "experiment.zip", shown(value), rule, fix))
        return {}
    zips: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, keys in value.items():
        at = f"experiment.zip.{name}"
        if not isinstance(keys, Mapping) or len(keys) < 2:
            rule = "a mapping of two keys or more to their levels, which go together"
            problems.append(Problem(where, at, shown(keys), rule, fix))
            continue
        if not all([_listed(levels, where, f"{at}.{key}", problems) for key, levels in keys.items()]):
            continue
        counts = {str(key): len(levels) for key, levels in keys.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{key} has {count}" for key, count in counts.items())
            rule = "the levels of a zip go together, so each key has as many as the others"
            problems.append(Problem(where, at, said, rule, "add or remove levels"))
        elif len(distinct(list(zip(*keys.values(), strict=True)))) < max(counts.values()):
            rule = "a combination of levels is named twice"
            problems.append(Problem(where, at, shown(dict(keys)), rule, "name each once"))
        else:
            zips[str(name)] = {str(key): tuple(levels) for key, levels in keys.items()}
    return zips


def _exclude(value: Any, where: str, problems: list[Problem]) -> tuple[Mapping[str, Any], ...]:
    good = isinstance(value, (list, tuple)) and all(isinstance(one, Mapping) and one for one in value)
    if good:
        return tuple({str(key): level for key, level in one.items()} for one in value)
    rule = "a list of mappings of factors, group or seed to the levels left out"
    fix = "write [{group: NAME, KEY: LEVEL}]"
    problems.append(Problem(where, "experiment.exclude", shown(value), rule, fix))
    return ()


def _scales(value: Any, where: str, problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(values, Mapping) for values in value.values()):
        rule = "a mapping of scales to dotted keys and their values"
        fix = "write {tiny: {trainer.steps: 200}}"
        problems.append(Problem(where, "experiment.scales", shown(value), rule, fix))
        return {}
    return {str(scale): {str(key): level for key, level in values.items()} for scale, values in value.items()}


def _seeds(value: Any, seed: Any, arguments: Arguments, where: str, problems: list[Problem]) -> tuple[int, ...]:
    key = "experiment.seeds"
    if arguments.seeds is not None:
        where, key, value = "command line", "seed", arguments.seeds
    elif value is None:
        where, key, value = "conf/config.yaml", "seed", [seed]
    if not isinstance(value, (list, tuple)) or not value:
        problems.append(Problem(where, key, shown(value), "a list of one seed or more", "write [0, 1, 2]"))
        return ()
    good = [one for one in value if _is_seed(one)]
    if len(good) < len(value):
        bad = next(one for one in value if not _is_seed(one))
        problems.append(Problem(where, key, shown(bad), "a seed is an integer from 0 on", "write for example 0, 1, 2"))
    if len(set(good)) < len(good):
        twice = next(one for one in good if good.count(one) > 1)
        problems.append(Problem(where, key, shown(value), f"seed {twice} is named twice", "name each seed once"))
    return tuple(dict.fromkeys(good))


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# ---------------------------------------------------------------- what a file takes over from another's

# Through Hydra's `defaults: [other, _self_]`, which merges the two: mappings key by key, anything else whole. A null
# drops an entry: `groups: {C2: null}`.
EXPERIMENT = ("groups", "factors", "zip", "scales")
ANALYSIS = ("hypotheses",)


def kept(
    at: str,
    parts: Sequence[str],
    section: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    where: str,
    problems: list[Problem],
) -> dict[str, Any]:
    """A merged section without the entries of its `parts` that are dropped.

    at: the section's key; files: the same sections of the composition's files, unmerged. A null for what none of them
    declares is added to `problems`.
    """
    result = dict(section)
    for part in parts:
        entries = section.get(part)
        if not isinstance(entries, Mapping):
            continue
        declared = {
            str(name)
            for file in files
            if isinstance(file.get(part), Mapping)
            for name, entry in file[part].items()
            if entry is not None
        }
        for name in [str(name) for name, entry in entries.items() if entry is None and str(name) not in declared]:
            close = nearest(name, sorted(declared))
            rule = "null drops what another file declares, and none does"
            others = f"; declared: {', '.join(sorted(declared))}" if declared else ""
            fix = f"write {close}" if close else f"remove it, or say what it is{others}"
            problems.append(Problem(where, f"{at}.{part}.{name}", None, rule, fix))
        result[part] = {name: entry for name, entry in entries.items() if entry is not None}
    return result


def own_name(section: Mapping[str, Any], source: str | None, where: str, problems: list[Problem]) -> None:
    """Add a problem when the experiment's name is another file's, and so its folder. source: the file that set it."""
    if source is not None and source != where and source.startswith(f"{where.rpartition('/')[0]}/"):
        rule = f"{source} has this name, and its plan and report lie in the folder of that name"
        problems.append(Problem(where, "experiment.name", str(section.get("name")), rule, "give this one its own name"))
