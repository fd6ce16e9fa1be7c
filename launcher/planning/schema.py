"""The parameters that YAML files declare (method, model, task, trainer): their keys, types, ranges, files that must
exist.

`allowed:` inside any mapping holds JSON-Schema fragments for its sibling keys; a fragment without a type takes that of
the sibling's default, and so does a key without a fragment. A null default takes any type.

`requires` maps dotted keys of a run's configuration to JSON-Schema fragments, each with `description` (what is needed,
and why) and `fix`. `writes` maps the metrics that a run writes to null. Both may have conditions: dotted keys with the
fragments that their values must meet, in a requirement under `when`, for a metric in the place of null. A requirement
that is null drops those of the files before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators

from analysis.spec.validation import NO_SUCH_KEY, Breach, closest, words
from launcher.config import hydra_compose, identity
from launcher.config.hydra_compose import File
from launcher.config.verl_tree import BadDifference
from launcher.errors import Diagnostics
from launcher.text import shown

ALLOWED = "allowed"
VERL_KEYS = "verl_keys"
WRITES, REQUIRES, ARCHITECTURE = "writes", "requires", "architecture"
# What describes the configuration and is not part of it: never frozen.
_ABOUT = (ALLOWED, VERL_KEYS, WRITES, REQUIRES, ARCHITECTURE)
MISSING = "???"
#: JSON Schema, but 3.0 is not an integer: a run would get it as it is, and count or divide with it.
Validator: Any = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)
_DATA = (".jsonl", ".jsonl.gz", ".parquet")
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def strip(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without what only describes it: `allowed`, `verl_keys`, `writes`, `requires` and `architecture`."""
    return {
        key: strip(value) if isinstance(value, Mapping) else value for key, value in tree.items() if key not in _ABOUT
    }


def schemas(defaults: Mapping[str, Any], at: str = "") -> dict[str, dict[str, Any]]:
    """The JSON-Schema fragment of every leaf of a tree of defaults, by dotted key."""
    fragments: dict[str, dict[str, Any]] = {}
    for key, value in strip({**defaults, ALLOWED: {}}).items():
        fragment = dict((defaults.get(ALLOWED) or {}).get(key) or {})
        if isinstance(value, Mapping):
            fragments.update(schemas(defaults[key], f"{at}{key}."))
        free = isinstance(value, str) and ("${" in value or value == MISSING)
        if not {"type", "enum"} & set(fragment) and type(value) in _KINDS and not free:
            fragment["type"] = _KINDS[type(value)]
        if fragment:
            fragments[f"{at}{key}"] = fragment
    return fragments


class Checker:
    """Checks trees against one set of defaults; a (key, value) seen before costs a look-up."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._schemas = schemas(defaults)
        self._validators = {key: Validator(schema) for key, schema in self._schemas.items()}
        self._defaults = strip(defaults)
        self._seen: dict[tuple[str, str, type], Breach | None] = {}

    def check(self, tree: Mapping[str, Any]) -> Iterator[Breach]:
        """Every breach in a resolved, stripped tree."""
        yield from self._walk(tree, self._defaults, "")

    def _walk(self, tree: Mapping[str, Any], defaults: Any, at: str) -> Iterator[Breach]:
        for key, value in tree.items():
            path = f"{at}{key}"
            # The schema of a mapping says which keys it may have beside the defaults.
            if isinstance(defaults, Mapping) and key not in defaults and at.removesuffix(".") not in self._schemas:
                otherwise = f"remove it, or use one of {', '.join(defaults)}" if defaults else "remove it"
                yield Breach(path, value, NO_SUCH_KEY, closest(key, list(defaults), at, otherwise))
                continue
            default = defaults.get(key) if isinstance(defaults, Mapping) else None
            if (
                isinstance(default, Mapping)
                and default
                and path not in self._schemas
                and not isinstance(value, Mapping)
            ):
                yield not_a_mapping(path, value, default)
                continue
            below = isinstance(value, Mapping) and not isinstance(default, (bool, int, float, str, list))
            breach = self._leaf(path, value) if not below or path in self._schemas else None
            if breach is not None:
                yield breach
            elif below:
                yield from self._walk(value, default, f"{path}.")

    def _leaf(self, path: str, value: Any) -> Breach | None:
        memo = (path, repr(value), type(value))
        if memo not in self._seen:
            self._seen[memo] = self._judge(path, value)
        return self._seen[memo]

    def _judge(self, path: str, value: Any) -> Breach | None:
        if value == MISSING:
            return Breach(path, value, "a value is required", f"set {path}")
        schema = self._schemas.get(path)
        if schema is not None and not self._validators[path].is_valid(value):
            return Breach(path, value, f"must be {words(schema)}", f"give {words(schema)}")
        if isinstance(value, float) and value - value != 0:
            return Breach(path, value, "must be finite", "give a finite number")
        missing = missing_file(path, value)
        if missing is not None:
            fix = "correct the path, create the file, or give a hub name"
            return Breach(path, value, f"the file {missing} does not exist", fix)
        return None


def not_a_mapping(path: str, value: Any, default: Mapping[str, Any]) -> Breach:
    """The breach of a value in the place of a mapping."""
    below = ", ".join(f"{path}.{key}" for key in default if key not in _ABOUT)
    return Breach(path, value, "must be a mapping", f"set one of {below}")


def missing_file(path: str, value: Any) -> Path | None:
    """The local file or folder that a `*path` key of task, model or method names, if it is missing; hub names pass."""
    section, _, rest = path.partition(".")
    name = rest.rpartition(".")[2]
    named = section in ("task", "model", "method") and (name == "path" or name.endswith("_path"))
    if not named or not _is_file(value):
        return None
    file = os.path.expanduser(value)  # unlike pathlib's, these two take any text
    return None if os.path.exists(file) else Path(file)


def _is_file(value: Any) -> bool:
    """Whether a path names a local file or folder; other texts are names on a hub."""
    return isinstance(value, str) and (value.startswith(("/", "./", "../", "~")) or value.endswith(_DATA))


def is_local(section: Mapping[str, Any]) -> bool:
    """Whether none of a section's `*path` keys names something on a hub."""
    paths = [value for key, value in section.items() if key == "path" or key.endswith("_path")]
    return all(value is None or _is_file(value) for value in paths)


def brief(value: Any) -> str:
    """A value for a message. A text that YAML would read as something else has quotes."""
    plain = isinstance(value, str) and value and " " not in value and value not in ("null", "true", "false")
    return value if plain else shown(value)


def report(problems: Diagnostics, where: str, breach: Breach | BadDifference, key: str | None = None) -> None:
    """Add a breach to the problems; key: what the user knows it by, if not the breach's own."""
    value = None if isinstance(breach, Breach) and not breach.shown else brief(breach.value)
    problems.add(where, key or breach.key, value, breach.rule, breach.fix)


def refused_by_trainer(
    given: Mapping[str, Any], differing: Mapping[str, Any], keys: Mapping[str, Any]
) -> Iterator[BadDifference]:
    """Every value of verl's tree that the trainer does not read, or reads and cannot use.

    given: what a run sets, where a key that is not read is refused even if it equals verl's default; differing: the
    part that differs from the default; keys: the trainer's `verl_keys`. `read` has a JSON-Schema fragment for each key
    that it reads, and a mapping includes all keys below it; `elsewhere` says for some others what to set instead.
    """
    read, elsewhere = keys["read"], keys["elsewhere"]

    def is_read(path: str) -> bool:
        return path not in elsewhere and any(f"{path}.".startswith(f"{known}.") for known in read)

    for path, value in _leaves(given):
        if not is_read(path):
            instead = next((fix for known, fix in elsewhere.items() if f"{path}.".startswith(f"{known}.")), "remove it")
            rule = "the chosen trainer does not read this key (trainer.verl_keys lists the keys that it reads)"
            yield BadDifference(f"verl.{path}", value, rule, instead)
    for path, value in _leaves(differing):
        schema = read.get(path) or {}
        if schema and not {"type", "enum", "const"} & set(schema):
            schema = {"type": "integer", **schema}
        if is_read(path) and not Validator(schema).is_valid(value):
            yield BadDifference(f"verl.{path}", value, f"must be {words(schema)}", f"give {words(schema)}")


def _leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key that holds no mapping, or an empty one, with its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


# ---------------------------------------------------------------- what files require, and which metrics runs write

_Conditions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Promises:
    """The declarations of all files of one composition. requirements: dotted keys, each with a fragment."""

    requirements: tuple[tuple[str, Mapping[str, Any]], ...]
    metrics: Mapping[str, tuple[_Conditions, ...]]
    _judged: dict[tuple[int, str], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, files: tuple[File, ...]) -> Promises:
        """Read file by file: Hydra would merge what two files require of one key into one fragment."""
        requirements: list[tuple[str, Mapping[str, Any]]] = []
        metrics: dict[str, list[_Conditions]] = {}
        for file in files:
            for section in _sections(file.content, REQUIRES):
                dropped = [key for key, fragment in section.items() if fragment is None]
                requirements = [(key, fragment) for key, fragment in requirements if key not in dropped]
                requirements += [(str(key), fragment) for key, fragment in section.items() if fragment is not None]
            for section in _sections(file.content, WRITES):
                for metric, conditions in section.items():
                    metrics.setdefault(str(metric), []).append(conditions or {})
        return cls(tuple(requirements), {metric: tuple(each) for metric, each in metrics.items()})

    @staticmethod
    def declared(content: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a file declares, whatever their conditions."""
        return frozenset(str(metric) for section in _sections(content, WRITES) for metric in section)

    def unmet(self, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """(key, rule, fix) of each requirement that applies to a run's configuration and that it does not meet."""
        for key, fragment in self.requirements:
            if self._hold(fragment.get("when") or {}, config) and not self._valid(fragment, key, config):
                allowed = words(fragment)
                yield key, f"must be {allowed}", str(fragment.get("fix") or f"set {key} to {allowed}")

    def written(self, config: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a run of this configuration writes."""
        return frozenset(
            metric
            for metric, each in self.metrics.items()
            if any(self._hold(conditions, config) for conditions in each)
        )

    def _hold(self, conditions: _Conditions, config: Mapping[str, Any]) -> bool:
        return all(self._valid(fragment, key, config) for key, fragment in conditions.items())

    def _valid(self, fragment: Mapping[str, Any], key: str, config: Mapping[str, Any]) -> bool:
        value = hydra_compose.lookup(config, key)[1]
        memo = (id(fragment), identity.canonical_json(value) if isinstance(value, (Mapping, list)) else repr(value))
        if memo not in self._judged:
            self._judged[memo] = bool(Validator(fragment).is_valid(value))
        return self._judged[memo]


def _sections(content: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Every mapping of that name in a file."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if key == name and isinstance(value, Mapping):
                yield value
            else:
                yield from _sections(value, name)
