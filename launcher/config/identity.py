"""A run's identity: a versioned hash of its science configuration. Pure: no files, no clock, no globals.

Canonical JSON: keys sorted, no spaces, ASCII; a float with an integral value is written as an integer (2.0 and 2 are
one value), a bool never is; NaN and infinities are refused. The hash is sha256 of {"version", "base", "config"}.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from launcher.application import Identity, application

VERSION = 1
ID_DIGITS = 16

#: The sections of a composed configuration of this project's application that can change a result.
SECTIONS = application().identity.sections
# Only in runs of older versions that continue a run of another configuration: {at: step, run: that run's identity}.
FORK = "fork"
_ANY_SEED = "\0seed"  # no YAML has such a text
# The content hashes of the local files and folders that a run's configuration names, by absolute path. In the identity,
# the hash stands in the place of the path. A run without such paths does not have this section.
INPUTS = "inputs"
# The same of data files alone, in runs that an older version froze: in their identity, the written paths count.
DATA = "data"


def canonical(value: Any) -> Any:
    """The value with tuples as lists and integral floats as integers. ValueError: NaN, infinity, or no plain value."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not allowed: configuration values must be finite")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not a string")
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    raise ValueError(f"{type(value).__name__} is not a plain value")


def canonical_json(value: Any) -> str:
    """One text for equal values."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def science(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that decides its result: the science sections without the ignored keys, with
    the content of its files in place of their paths, and the fork."""
    config = by_content(config)
    part: dict[str, Any] = {}
    rules = application(config).identity
    for section in rules.sections:
        value = config.get(section)
        if isinstance(value, Mapping):
            part[section] = {key: item for key, item in value.items() if _counts(rules, f"{section}.{key}", item)}
        else:
            part[section] = value
    for key in (DATA, FORK):
        if config.get(key):
            part[key] = config[key]
    return part


def by_content(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the hash of each local file or folder in place of its path."""
    names = {path: f"sha256:{digest}" for path, digest in (config.get(INPUTS) or {}).items()}
    return {**replaced(dict(config), names), INPUTS: config[INPUTS]} if names else config


def replaced(value: Any, names: Mapping[str, str]) -> Any:
    """The value with other names in the place of the texts NAME and NAME:FUNCTION."""
    if isinstance(value, str):
        name, colon, function = value.rpartition(":")
        return names.get(value) or (f"{names[name]}:{function}" if colon and name in names else value)
    if isinstance(value, Mapping):
        return {key: replaced(item, names) for key, item in value.items()}
    return [replaced(item, names) for item in value] if isinstance(value, (list, tuple)) else value


def _counts(rules: Identity, key: str, value: Any) -> bool:
    return key not in rules.ignored and (bool(value) or key not in rules.ignored_if_empty)


def identity(base: str, config: Mapping[str, Any]) -> str:
    """The sha256 (64 hex digits) of a run: the hash of its frozen base tree and its own science configuration."""
    return digest(base, canonical_json(science(config)))


def by_seed(base: str, config: Mapping[str, Any]) -> Callable[[int], str]:
    """The same for runs that differ in their seeds alone, which spells their configuration once."""
    text = canonical_json(science({**config, "seed": _ANY_SEED}))
    before, counts, after = text.partition(json.dumps(_ANY_SEED))
    return lambda seed: digest(base, f"{before}{seed}{after}" if counts else text)


def digest(base: str, science: str) -> str:
    """The `identity` for a science configuration that `canonical_json` has written."""
    return hashlib.sha256(f'{{"base":"{base}","config":{science},"version":{VERSION}}}'.encode("ascii")).hexdigest()


def run_id(digest: str) -> str:
    """The run's folder name: the first 16 hex digits of its identity."""
    return digest[:ID_DIGITS]


def verify(frozen: Mapping[str, Any], name: str | None = None) -> None:
    """Check that a frozen configuration has the identity that it records, and is that of the run `name`.

    ValueError: it was changed after it was frozen, belongs to another run, or has an identity of another version.
    """
    recorded = frozen.get("identity")
    version, digest = (recorded.get("version"), recorded.get("hash")) if isinstance(recorded, Mapping) else (None, None)
    if version != VERSION:
        written = f"another release of rlsweep wrote it, with version {version}" if version else "it is not recorded"
        raise ValueError(f"{written}; this release reads version {VERSION}")
    actual = identity(str(frozen.get("base")), frozen)
    if actual != digest:
        why = f"its content has the identity {run_id(actual)}, but it records {run_id(str(digest))}"
        raise ValueError(f"the configuration was changed after it was frozen: {why}")
    for other in (frozen.get("id"), name):
        if other is not None and other != run_id(actual):
            raise ValueError(f"this is the configuration of the run {run_id(actual)}, not of {other}")


def content_hash(text: str | bytes) -> str:
    """The first 16 hex digits of a text's sha256."""
    return hashlib.sha256(text.encode("utf-8") if isinstance(text, str) else text).hexdigest()[:ID_DIGITS]
