"""The local files and folders that a run's configuration names: their content counts in its identity, not their paths.

A text is a path if that file or folder exists, and if the text has a `/` or a suffix, or its key is `path`, `*_path`,
`model` or `reward_model`. `FILE.py:FUNCTION` is the path of the file. Relative paths begin in the folder in which the
command runs; in a frozen run all paths are absolute. Any other name of a model or data set is a name on the hub.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.application import KEY, application, packages
from launcher.config.identity import DATA, INPUTS, content_hash, replaced
from launcher.files import content_digest

#: The keys that name models and data sets, by a path or on the hub; and the names on the hub.
PATH_KEY = re.compile(r"(model|method|task)\.(.*\.)?(\w*_)?path")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_KEYS = (".path", "_path", ".model", ".reward_model")
_LIKE_A_PATH = re.compile(r"\w/|/.*\w|\.[A-Za-z]\w*$")
_FUNCTION = re.compile(r"(.+\.py)(:\w*)")
_IGNORED = re.compile(rf"({'|'.join(map(re.escape, sorted(application().identity.ignored)))}|\w+\.name)(\.|$)")
#: The names of folders that pip installs into.
INSTALLED = frozenset({"site-packages", "dist-packages"})
# Names of files that describe a model or a package and cannot change a result.
_ABOUT = re.compile(r"\..*|__pycache__|.*\.md|card\.json")


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with absolute paths, and the digest of each file or folder under `inputs`.

    Raises OSError if a file cannot be read.
    """
    inputs: dict[str, str] = {}

    def absolute(key: str, text: str) -> str:
        if (named := _named(key, text)) is None:
            return text
        path, function = named
        inputs[str(path)] = inputs.get(str(path)) or digest(path)
        return f"{path}{function}"

    sections = _each_text(config, absolute)
    return {**config, **sections, INPUTS: dict(sorted(inputs.items()))} if inputs else dict(config)


def unrecorded(config: Mapping[str, Any]) -> list[str]:
    """The paths that a frozen configuration names, and whose content an older version did not record."""
    if INPUTS in config or KEY in config:
        return []
    named = filter(None, (_named(key, text) for key, text in texts(config)))
    recorded = {os.path.abspath(os.path.expanduser(text)) for text in config.get(DATA) or {}}
    return [str(path) for path, _ in named if str(path) not in recorded]


def located(config: Mapping[str, Any], copies: Path) -> dict[str, Any]:
    """A frozen configuration with the copies of its files that a launch has made in the folder `copies`."""
    places = {path: str(copies / path.lstrip("/")) for path in config.get(INPUTS) or {}}
    present = {path: place for path, place in places.items() if os.path.exists(place)}
    inputs = {present.get(path, path): then for path, then in (config.get(INPUTS) or {}).items()}
    return {**replaced(dict(config), present), INPUTS: inputs} if present else dict(config)


def changes(config: Mapping[str, Any]) -> dict[str, str]:
    """For each file or folder that has changed since the configuration was frozen, what changed, in words."""
    wrong: dict[str, str] = {}
    for text, then in {**(config.get(DATA) or {}), **(config.get(INPUTS) or {})}.items():
        path = Path(text).expanduser()
        if not path.exists():
            wrong[text] = "is gone"
        elif digest(path) != then:
            wrong[text] = "has other content than when the run was planned"
    return wrong


def outputs(multirun: Path) -> dict[str, str]:
    """The named files that jobs have written, by absolute path: the digest with which they still count, or "" for none.

    It is the digest that the plan of the first job that wrote the file had for it.
    """
    path = multirun / "outputs.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: then for name, _, then in (line.partition("\t") for line in reversed(lines))}


def check(config: Mapping[str, Any], written: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise ValueError if a file or folder is not what it was when the run was frozen. written: as `outputs`."""
    for text, why in changes(config).items():
        if written.get(text) == (config.get(INPUTS) or {}).get(text, ""):
            continue
        fix = "restore it, or repeat the command, which plans runs with the present content"
        raise ValueError(f"{text} {why}. Fix: {fix}")


def digest(path: Path) -> str:
    """The hash of a file's content, or of the names and content of a folder's files.

    A Python file counts with the modules beside it that it imports. Hidden files, *.md and card.json of a folder do not
    count.
    """
    if path.is_dir():
        listed = {str(file.relative_to(path)): content_digest(file) for file in _files(path)}
    else:
        file, *beside = with_imports(path)
        if not beside:
            return content_digest(file)
        listed = {"": content_digest(file)} | {str(m.relative_to(file.parent)): content_digest(m) for m in beside}
    return content_hash(json.dumps(listed, sort_keys=True))


def with_imports(file: Path) -> list[Path]:
    """The resolved file, then, if it is Python, the modules beside it that it imports, directly or not."""
    file = file.resolve()
    if file.suffix != ".py" or file.parent.name in INSTALLED:  # there, all libraries are beside it
        return [file]
    visited: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in visited:
            continue
        visited.add(path)
        for name in imported_names(path) - packages():
            module, package = file.parent / f"{name}.py", file.parent / name
            waiting += [module] if module.is_file() else package.rglob("*.py")
    return [file, *sorted(visited - {file})]


def imported_names(file: Path) -> frozenset[str]:
    """The top-level packages and modules that the text of a Python file imports, anywhere in it."""
    status = file.stat()
    return _imported_names(file, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _imported_names(file: Path, *_stamp: int) -> frozenset[str]:
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return frozenset(name.partition(".")[0] for name in names) - {""}


def hub_names(config: Mapping[str, Any]) -> list[str]:
    """The models and data sets on the hub that a settled configuration names: models/NAME, datasets/NAME."""
    named = [(key, text) for key, text in texts(config) if PATH_KEY.fullmatch(key) and HUB_NAME.fullmatch(text)]
    return sorted(f"{'datasets' if key.startswith('task.') else 'models'}/{text}" for key, text in named)


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not _ABOUT.fullmatch(name)]
        yield from (path for name in names if not _ABOUT.fullmatch(name) and (path := Path(at, name)).is_file())


def _named(key: str, text: str) -> tuple[Path, str] | None:
    """The absolute path of the file or folder that a text names, and its `:FUNCTION`; None if it names no path."""
    place = _place(key, text)
    return place if place is not None and os.path.exists(place[0]) else None  # unlike pathlib's, it takes any text


def _place(key: str, text: str) -> tuple[Path, str] | None:
    function = _FUNCTION.fullmatch(text) if ".py:" in text else None
    place, rest = (function[1], function[2]) if function else (text, "")
    if not place or not (key.endswith(_KEYS) or _LIKE_A_PATH.search(place)) or _IGNORED.match(key):
        return None
    try:
        return Path(place).expanduser().absolute(), rest
    except (OSError, RuntimeError):  # the present folder is gone, or ~ of an unknown user
        return None


def place_of(key: str, text: str) -> str | None:
    """The absolute path of the file that a text under a dotted key names or would name; None if it is no path."""
    place = _place(key, text)
    return str(place[0]) if place is not None and not place[1] else None


def named_files(config: Mapping[str, Any]) -> dict[str, float]:
    """The files, no folders, that a run's configuration names, with the times of their last changes."""
    paths = (place_of(key, text) for key, text in texts(config))
    return {path: os.path.getmtime(path) for path in paths if path is not None and os.path.isfile(path)}


def texts(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The texts in the sections that can change a result, with their dotted keys."""
    texts: list[tuple[str, str]] = []

    def note(key: str, text: str) -> str:
        texts.append((key, text))
        return text

    _each_text(config, note)
    return texts


def _each_text(config: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The sections that can change a result, with change(dotted key, text) in place of each text."""

    def changed(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: changed(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [changed(key, item) for item in value]
        return change(key, value) if isinstance(value, str) else value

    sections = application(config).identity.sections
    return {section: changed(section, config[section]) for section in sections if section in config}
