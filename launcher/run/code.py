"""Which code made a run: the content of the modules of ours that its process loaded, its data files, its libraries,
and what it loaded from the hub.

    multirun/code/<id>.json                     one file for all attempts with equal code; state.json names it
    multirun/<experiment>/code_choices.jsonl    a line for each `accept_code=true`

A module is named by its path below the folder of its top-level package: analysis/stats/paired.py. It has two
hashes: of the file, and of the syntax tree without docstrings, which neither comments nor the layout change.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from launcher.application import application
from launcher.files import content_digest, create_atomic, json_lines
from launcher.project import ROOT
from launcher.run.records import FORMAT, LATER, Record, read_record, to_json

_DIGITS = 16
GONE = "gone"


@dataclass(frozen=True)
class Code(Record):
    """code/<id>.json. `modules` has the hash of each module's file, `syntax` that of its syntax tree, both by module.

    `data` has the hash of each data file that the task read and that is not part of the run's identity, by path;
    `libraries` the versions of the application's libraries; `hub` the commits of the hub's models/NAME and
    datasets/NAME.
    """

    format: Literal[1] = field(default=FORMAT, kw_only=True)
    modules: Mapping[str, str] = field(default_factory=dict)
    syntax: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    hub: Mapping[str, str] = field(default_factory=dict, metadata=LATER)

    @cached_property
    def id(self) -> str:
        """The hash of the content."""
        return digest_of(to_json(self))

    def values(self) -> dict[str, str]:
        """What may change a result, by name: a hash of each module and data file, the version of each library, the
        commit of each model and data set of the hub. Modules of `launcher` compute nothing.
        """
        syntax = {name: digest for name, digest in self.syntax.items() if counts(name)}
        return {**syntax, **self.data, **self.libraries, **self.hub}


def counts(module: str) -> bool:
    """Whether a change of this module may change a result."""
    return not module.startswith("launcher/")


def digest_of(value: Any) -> str:
    """The hash of a record's content, and of a difference, by which a user's decision about it is known again."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


# ---------------------------------------------------------------- modules


def hashes(path: Path) -> tuple[str, str]:
    """The hash of a module's file, and that of its syntax tree; equal where the file is not Python."""
    return _hashes(path.read_bytes(), path.suffix == ".py")


@lru_cache(maxsize=4096)
def _hashes(content: bytes, is_python: bool) -> tuple[str, str]:
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    if not is_python:
        return digest, digest
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return digest, digest
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                node.body = node.body[1:]
    return digest, hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:_DIGITS]


def find(module: str) -> Path | None:
    """The file of a recorded module as it is now, or None: it is gone. Nothing of its package is imported."""
    own = ROOT / module
    if own.is_file():
        return own
    top = module.partition("/")[0].removesuffix(".py")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        places = [Path(place).parent for place in spec.submodule_search_locations]
    else:
        places = [Path(spec.origin).parent] if spec.origin else []
    return next((place / module for place in places if (place / module).is_file()), None)


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """The installed versions of the application's libraries; those that are not installed are left out."""
    found = {}
    for name in application().libraries:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


# ---------------------------------------------------------------- records


def path_of(multirun: Path, code_id: str) -> Path:
    """The file of a record."""
    return multirun / "code" / f"{code_id}.json"


def keep(multirun: Path, code: Code) -> str:
    """Write a record, unless it is there; its id."""
    path = path_of(multirun, code.id)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_atomic(path, json.dumps(to_json(code), indent=1) + "\n")
    return code.id


def read(multirun: Path, code_id: str) -> Code | None:
    """A record; None if it is gone. BadRunFolder: it cannot be read."""
    try:
        return read_record(Code, path_of(multirun, code_id))
    except FileNotFoundError:
        return None


def choices_path(experiment: Path) -> Path:
    """The user's decisions to accept other code in an experiment; `experiment` is its folder."""
    return experiment / "code_choices.jsonl"


def choices(experiment: Path) -> list[dict[str, Any]]:
    """These decisions, the oldest first: `time`, `difference` (digest_of), `changes`, `codes`, `runs`, `command`."""
    return json_lines(choices_path(experiment))


# ---------------------------------------------------------------- differences


def changes(then: Code) -> dict[str, tuple[str, str]]:
    """What a record has that is otherwise now, by name: its value then and now (`gone` for a file that is gone)."""
    different: dict[str, tuple[str, str]] = {}
    for name, digest in then.modules.items():
        if counts(name):
            path = find(name)
            file, syntax = (GONE, GONE) if path is None else hashes(path)
            # The syntax tree alone does not decide: each version of Python dumps it in its own way.
            if file != digest and syntax != then.syntax.get(name):
                different[name] = then.syntax.get(name, digest), syntax
    for name, digest in then.data.items():
        present = content_digest(Path(name)) if Path(name).is_file() else GONE
        if present != digest:
            different[name] = digest, present
    installed = versions()
    for name, version in then.libraries.items():
        if installed.get(name, GONE) != version:
            different[name] = version, installed.get(name, GONE)
    for name, commit in then.hub.items():
        present = hub_commit(name) or commit  # one that is not on this machine is not another one
        if present != commit:
            different[name] = commit, present
    return dict(sorted(different.items()))


def hub_commit(name: str) -> str | None:
    """The commit of models/NAME or datasets/NAME in the hub's cache on this machine; None: it is not there."""
    try:
        return (hub_folder(name) / "refs" / "main").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def hub_folder(name: str) -> Path:
    """The folder of models/NAME or datasets/NAME in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, name.replace("/", "--"))


def between(records: Iterable[Code]) -> list[str]:
    """The names that do not have one value in all the records that have them.

    What only some of the records have is not a difference: runs of other methods load other modules.
    """
    files: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.values().items():
            values.setdefault(name, set()).add(value)
            files.setdefault(name, set()).add(record.modules.get(name, value))
    # Either of the two hashes may tell that a module is the same.
    return sorted(name for name in values if len(values[name]) > 1 and len(files[name]) > 1)


def said(name: str, value: tuple[str, str]) -> str:
    """One change in words: a file's name, or a library's with both versions."""
    then, now = value
    if now == GONE:
        return f"{name} is gone"
    if name.startswith(("models/", "datasets/")):
        then, now = then[:12], now[:12]
    elif name not in application().libraries:
        return name
    return f"{name} {then} is {now}"
