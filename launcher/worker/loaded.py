"""The code of runs: what this process has loaded, with the content that its files had then; and what the user's code
imports from outside of the project, of site-packages and of the standard library.

The latter is found by reading, from the packages that extend this project and from the rewards that configurations
name; nothing is imported. A package counts as a whole.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.application import application, packages
from launcher.config import content, installed_parts
from launcher.config.identity import INPUTS
from launcher.files import content_digest
from launcher.project import COPIES, ROOT, root
from launcher.run import code
from launcher.run.code import Code, hashes, hub_commit, read, versions
from launcher.run.folder import multirun_of

_LIBRARY_FOLDERS = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}

#: By the module's name: its path below the folder of its top-level package, and the hashes of its file. A module keeps
#: the hashes of the first call of `note` after its import, whatever happens to its file later. Forks inherit them.
_noted: dict[str, tuple[str, str, str]] = {}
_seen: set[str] = set()  # of sys.modules
_by_path: set[Path] = set()  # the folders of files that were loaded by their path


def note() -> None:
    """Note every module that was loaded since the last call, and the versions of the libraries."""
    versions()
    new = [key for key in list(sys.modules) if key not in _seen]
    _seen.update(new)
    for key, module in ((key, sys.modules.get(key)) for key in new):
        spec = getattr(module, "__spec__", None)
        name = getattr(module, "__name__", None) if spec is None or key == "__main__" else spec.name
        file = getattr(module, "__file__", None)
        if not isinstance(name, str) or not isinstance(file, str) or name in _noted:
            continue
        path, top = Path(file), name.partition(".")[0]
        if path == ROOT / "launch.py":  # it starts sweeps, and computes nothing
            continue
        if top not in packages() and top not in _user_packages() and is_library(path):
            continue
        try:
            _noted[name] = (_place(name, path), *hashes(path))
        except OSError:  # it was deleted since its import
            continue


def record(config: Mapping[str, Any], hub: Mapping[str, str] | None = None) -> Code:
    """The code of this process, and the data files of a run with this configuration, but for those in its identity.

    hub: the commits of the models and data sets of the hub that it uses.
    """
    note()
    inputs = [Path(text) for text in config.get(INPUTS) or {}]
    modules = [
        path for file in inputs if file.suffix == ".py" and file.is_file() for path in content.with_imports(file)
    ]
    known = {_shown(path) for path in (*inputs, *modules)}
    loaded = {*_noted.values(), *later_modules(config)}
    cwd = (config.get("start") or {}).get("cwd")  # of a program of @hydra.main
    folder = f"{root(Path(cwd))}/" if cwd else ""
    noted = sorted(
        (f"./{place.removeprefix(folder)}" if cwd and place.startswith(folder) else place, *both)
        for place, *both in loaded
        if place not in known
    )
    return Code(
        modules={place: file for place, file, _ in noted},
        syntax={place: syntax for place, _, syntax in noted},
        root=folder.rstrip("/"),
        data={path: digest for path, digest in _data(config).items() if path not in known},
        libraries=versions(),
        hub=hub or {},
    )


def later_modules(config: Mapping[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """The path and the hashes of each module that a run may load in processes of its own; None: any run."""
    return [(_shown(path), *hashes(path)) for path in application(config).code_files(config)]


def _shown(path: Path) -> str:
    """A file's path in a record: of a launch's copy that of the original, of the project's files that below it."""
    if path.is_relative_to(COPIES):
        return f"/{path.relative_to(COPIES)}"
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _place(name: str, path: Path) -> str:
    """How a module is recorded: by its path below the folder of its top-level package.

    A file that was loaded by its path, under another name than its own, or as a program, is recorded by that path, and
    so are the modules beside it: another process does not have their folder on sys.path.
    """
    parts = name.split(".")
    if name == "__main__" or path.stem not in (parts[-1], "__init__"):
        _by_path.add(path.parent)
    if path.parent in _by_path:
        return _shown(path)
    return "/".join([*parts, path.name] if path.stem == "__init__" else [*parts[:-1], path.name])


def is_library(file: Path) -> bool:
    """Whether a module's file is Python's own, or that of an installed package which is not editable."""
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _LIBRARY_FOLDERS)


def hub_commits(config: Mapping[str, Any], code_ids: Iterable[str], folder: Path) -> dict[str, str]:
    """The commit of each name on the hub: that of earlier attempts, or that in the hub's cache on this machine.

    code_ids: the records of code of these attempts. A name that is not in the cache yet is left out.
    """
    records = (read(multirun_of(folder), code_id) for code_id in code_ids)
    earlier = {name: commit for record in records if record is not None for name, commit in record.hub.items()}
    commits = {name: earlier.get(name) or hub_commit(name) for name in content.hub_names(config)}
    return {name: commit for name, commit in commits.items() if commit is not None}


_user_packages = functools.cache(installed_parts.packages)


def _data(config: Mapping[str, Any]) -> dict[str, str]:
    """The hashes of the data files that the configuration names, and of those that the application adds."""
    data = dict(config.get("data") or {})
    for path in application(config).data_files(config):
        if str(path) not in data and path.is_file():
            data[str(path)] = content_digest(path)
    return data


# ---------------------------------------------------------------- the user's code


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
    sources: dict[Path, Source] = {}
    waiting = set(installed_parts.packages())
    for config in configs:
        named = application(config).imports(config)
        waiting |= {name.partition(".")[0] for name in named if "/" not in name}
        for text in (*(name for name in named if "/" in name), *(config.get(INPUTS) or {})):
            if text.endswith(".py") and Path(text) not in sources:
                sources[Path(text)] = Source(Path(text), imported=False)
    waiting |= _imports(sources.values())
    seen: set[str] = set(packages())
    while waiting := waiting - seen:
        seen |= waiting
        new = {path: Source(path) for name in sorted(waiting) for path in code.places(name) if _is_users(path)}
        sources = {**new, **sources}
        waiting = _imports(new.values())
    return sorted(sources.values(), key=lambda source: source.path)


def _imports(sources: Iterable[Source]) -> set[str]:
    return {name for source in sources for file in source.files for name in content.imported_names(file)}


def _is_users(place: Path) -> bool:
    return place.is_absolute() and not is_library(place) and not place.is_relative_to(ROOT)
