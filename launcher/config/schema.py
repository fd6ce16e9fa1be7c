"""Is a configuration sound: its keys, types, ranges, missing values, files that must exist.

`allowed:` inside any mapping holds JSON-Schema fragments for its sibling keys; a fragment without a type takes that of
the sibling's default, and so does a key without a fragment. A null default takes any type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators

from launcher.text import nearest, shown

ALLOWED = "allowed"
VERL_KEYS = "verl_keys"
# What speaks about the configuration and is no part of it: never frozen.
_ABOUT = (ALLOWED, VERL_KEYS)
MISSING = "???"
NO_SUCH_KEY = "no such key"
#: JSON Schema, but 3.0 is no integer: a run would get it as it is, and count or divide with it.
Validator: Any = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)
_DATA = (".jsonl", ".parquet")
_WORDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "{} or more",
    "exclusiveMaximum": "below {}",
    "maximum": "{} or less",
    "multipleOf": "a multiple of {}",
    "minLength": "of {} characters or more",
    "pattern": "matching {}",
}
_TYPES = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}


@dataclass(frozen=True)
class Breach:
    """A value that is not allowed: its dotted key, the rule, and the fix."""

    key: str
    value: Any
    rule: str
    fix: str


def strip(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without what only speaks about it: `allowed` and `verl_keys`."""
    return {
        key: strip(value) if isinstance(value, Mapping) else value for key, value in tree.items() if key not in _ABOUT
    }


def schemas(defaults: Mapping[str, Any], at: str = "") -> dict[str, dict[str, Any]]:
    """The JSON-Schema fragment of every leaf of a tree of defaults, by dotted key."""
    found: dict[str, dict[str, Any]] = {}
    fragments = defaults.get(ALLOWED) or {}
    for key, value in defaults.items():
        if key in _ABOUT:
            continue
        path = f"{at}{key}"
        fragment = dict(fragments.get(key) or {})
        if isinstance(value, Mapping):
            found.update(schemas(value, f"{path}."))
        inferred = _type(value)
        if "type" not in fragment and "enum" not in fragment and inferred:
            fragment["type"] = inferred
        if fragment:
            found[path] = fragment
    return found


def _type(default: Any) -> str | None:
    if isinstance(default, bool):
        return "boolean"
    if isinstance(default, int):
        return "integer"
    if isinstance(default, float):
        return "number"
    if isinstance(default, str) and "${" not in default and default != MISSING:
        return "string"
    return None


def words(schema: Mapping[str, Any]) -> str:
    """A fragment in words: a number above 0."""
    if "description" in schema:
        return str(schema["description"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kind = _TYPES.get(str(schema.get("type")), str(schema.get("type", "a value")))
    bounds = [text.format(schema[key]) for key, text in _WORDS.items() if key in schema]
    return " ".join([kind, " and ".join(bounds)]).strip()


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
            if isinstance(defaults, Mapping) and key not in defaults:
                close = nearest(key, list(defaults))
                other = f", or use one of {', '.join(defaults)}" if defaults else ""
                fix = f"write {at}{close}" if close else f"remove it{other}"
                yield Breach(path, value, NO_SUCH_KEY, fix)
                continue
            default = defaults.get(key) if isinstance(defaults, Mapping) else None
            if isinstance(value, Mapping) and not isinstance(default, (bool, int, float, str, list)):
                if path in self._schemas:
                    breach = self._leaf(path, value)
                    if breach is not None:
                        yield breach
                        continue
                yield from self._walk(value, default, f"{path}.")
                continue
            if isinstance(default, Mapping) and default and path not in self._schemas:
                yield not_a_mapping(path, value, default)
                continue
            breach = self._leaf(path, value)
            if breach is not None:
                yield breach

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
    return Breach(path, value, "a value where a mapping stands", f"set one of {below}")


def missing_file(path: str, value: Any) -> Path | None:
    """The local file or folder that a `*path` key of task, model or method names, if there is none; hub names pass."""
    section, _, rest = path.partition(".")
    name = rest.rsplit(".", 1)[-1]
    if (
        section not in ("task", "model", "method")
        or not (name == "path" or name.endswith("_path"))
        or not isinstance(value, str)
    ):
        return None
    if not (value.startswith(("/", "./", "../", "~")) or value.endswith(_DATA)):
        return None
    file = os.path.expanduser(value)  # unlike pathlib's, these two take any text
    return None if os.path.exists(file) else Path(file)


def brief(value: Any) -> str:
    """A value for a message."""
    return value if isinstance(value, str) and value and " " not in value else shown(value)
