"""The user's code that runs import from outside of the project, of site-packages and of the standard library.

It is found by reading, from the packages that bring methods and tasks and from the rewards that configurations name;
nothing is imported. A package counts as a whole.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.application import application, packages
from launcher.config import content, installed_parts
from launcher.config.identity import INPUTS
from launcher.project import ROOT
from launcher.worker import loaded


@dataclass(frozen=True)
class Source:
    """A package's folder, or a file. `imported`: by its name, and not by the path of a reward."""

    path: Path
    imported: bool = True

    @property
    def files(self) -> list[Path]:
        """Its Python files, with the modules beside a reward that it imports."""
        if self.path.is_dir():
            return sorted(self.path.rglob("*.py"))
        return [self.path] if self.imported else content.with_imports(self.path)


def sources(configs: Iterable[Mapping[str, Any]]) -> list[Source]:
    """The code that runs with these settled configurations import."""
    found: dict[Path, Source] = {}
    waiting = set(installed_parts.packages())
    for config in configs:
        named = application(config).imports(config)
        waiting |= {name.partition(".")[0] for name in named if "/" not in name}
        for text in (*(name for name in named if "/" in name), *(config.get(INPUTS) or {})):
            if text.endswith(".py") and Path(text) not in found:
                found[Path(text)] = Source(Path(text), imported=False)
    waiting |= _imports(found.values())
    seen: set[str] = set(packages())
    while waiting := waiting - seen:
        seen |= waiting
        new = {path: Source(path) for name in sorted(waiting) for path in _places(name)}
        found = {**new, **found}
        waiting = _imports(new.values())
    return sorted(found.values(), key=lambda source: source.path)


def _imports(sources: Iterable[Source]) -> set[str]:
    return {name for source in sources for file in source.files for name in content.imported_names(file)}


def _places(name: str) -> Iterator[Path]:
    """Where a top-level package or module is imported from, if it is the user's code."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return  # a part of Python itself, or it is not installed
    for place in map(Path, spec.submodule_search_locations or [str(spec.origin)]):
        if place.is_absolute() and not loaded.is_library(place) and not place.is_relative_to(ROOT):
            yield place
