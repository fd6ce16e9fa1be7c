"""The local data files that a run's configuration names: their content counts in its identity.

A value anywhere in the section `task` that is the path of a file names a data file, relative to the folder in which the
command runs. Hub names and other texts are not files, so most runs have none. The files of a folder, such as a reward
model's, are named by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.config.identity import DATA
from launcher.files import content_digest

_NAME = "name"  # of the task's module


def digests(task: Any, further: Iterable[str] = ()) -> dict[str, str]:
    """The hash of the content of each data file of a section `task`, by path. further: paths of more data files."""
    if not isinstance(task, Mapping):
        return {}
    texts = {*further, *(text for key, value in task.items() if key != _NAME for text in _texts(value))}
    return {text: content_digest(Path(text).expanduser()) for text in sorted(texts) if _is_file(text)}


def check(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a data file is not what it was when the run was frozen."""
    for text, digest in (config.get(DATA) or {}).items():
        path = Path(text).expanduser()
        if not path.is_file():
            raise ValueError(f"task: {text} is gone; the run was planned with a file of this name. Fix: restore it")
        if content_digest(path) != digest:
            rule = f"task: {text} has other content than when the run was planned"
            raise ValueError(f"{rule}. Fix: restore it, or repeat the command, which plans runs with the new content")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long for a path, a null byte, or ~ of an unknown user
        return False
