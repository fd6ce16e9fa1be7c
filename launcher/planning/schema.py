"""The parameters that YAML files declare (method, model, task, trainer): their keys, types, ranges, files that must
exist.

`allowed:` inside any mapping holds JSON-Schema fragments for its sibling keys; a fragment without a type takes that of
the sibling's default, and so does a key without a fragment. A null default takes any type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators

from analysis.spec import validation
from analysis.spec.validation import KEY_ALONE, NO_SUCH_KEY, closest, words
from launcher.application import application
from launcher.config.content import HUB_NAME, PATH_KEY
from launcher.config.hydra_compose import MISSING
from launcher.errors import Diagnostics, Objection
from launcher.text import one_line, shown

ALLOWED = "allowed"
# What describes the configuration and is not part of it: never frozen.
_ABOUT = (ALLOWED, *application().descriptions)
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
    """The tree without `allowed`, and without the application's own descriptions."""
    return {key: strip(item) if isinstance(item, Mapping) else item for key, item in tree.items() if key not in _ABOUT}


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
        self._seen: dict[tuple[str, str, type], Objection | None] = {}

    def describes(self, key: str) -> bool:
        """Whether a mapping has a schema, which says what keys it may have beside its defaults."""
        return key in self._schemas

    def check(self, tree: Mapping[str, Any]) -> Iterator[Objection]:
        """Every objection to a resolved, stripped tree."""
        return self._walk(tree, self._defaults, "")

    def _walk(self, tree: Mapping[str, Any], defaults: Any, at: str) -> Iterator[Objection]:
        for key, value in tree.items():
            path = f"{at}{key}"
            if isinstance(defaults, Mapping) and key not in defaults and not self.describes(at.removesuffix(".")):
                otherwise = f"remove it, or use one of {', '.join(defaults)}" if defaults else "remove it"
                yield Objection(path, value, NO_SUCH_KEY, closest(key, list(defaults), at, otherwise))
                continue
            default = defaults.get(key) if isinstance(defaults, Mapping) else None
            nested = isinstance(value, Mapping)
            if isinstance(default, Mapping) and default and not nested and not self.describes(path):
                yield not_a_mapping(path, value, default)
                continue
            below = nested and not isinstance(default, (bool, int, float, str, list))
            objection = self._leaf(path, value) if not below or self.describes(path) else None
            if objection is not None:
                yield objection
            elif below:
                yield from self._walk(value, default, f"{path}.")

    def _leaf(self, path: str, value: Any) -> Objection | None:
        memo = (path, repr(value), type(value))
        if memo not in self._seen:
            self._seen[memo] = self._judge(path, value)
        return self._seen[memo]

    def _judge(self, path: str, value: Any) -> Objection | None:
        if value == MISSING:
            return Objection(path, value, "a value is required", f"set {path}")
        schema = self._schemas.get(path)
        if schema is not None and not self._validators[path].is_valid(value):
            return Objection(path, value, f"must be {words(schema)}", f"give {words(schema)}")
        if isinstance(value, float) and value - value != 0:
            return Objection(path, value, "must be finite", "give a finite number")
        if (missing := missing_file(path, value)) is not None:
            fix = "correct the path, create the file, or give a hub name"
            return Objection(path, value, f"the file {missing} does not exist", fix)
        return None


def not_a_mapping(path: str, value: Any, default: Mapping[str, Any]) -> Objection:
    """The objection to a value in the place of a mapping."""
    below = ", ".join(f"{path}.{key}" for key in default if key not in _ABOUT)
    return Objection(path, value, "must be a mapping", f"set one of {below}")


def missing_file(path: str, value: Any) -> Path | None:
    """The local file or folder that a `*path` key of task, model or method names, if it is missing; hub names pass, but
    not below a folder that is here, nor those that no model could have."""
    if not isinstance(value, str) or not PATH_KEY.fullmatch(path):
        return None
    folder, _, below = value.partition("/")
    on_hub = path.startswith("task.") or HUB_NAME.fullmatch(value)
    if on_hub and not _is_file(value) and not (below and os.path.isdir(folder)):
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


def report(
    problems: Diagnostics, where: str, objection: Objection | validation.Objection, key: str | None = None
) -> None:
    """Add an objection to the problems; key: what the user knows it by, if not its own."""
    where, key = (where, key or objection.key) if objection.file is None else (objection.file, objection.key)
    alone = objection.value is KEY_ALONE or (objection.file is not None and objection.value is None)
    problems.add(where, key, None if alone else brief(objection.value), one_line(objection.rule), objection.fix)
