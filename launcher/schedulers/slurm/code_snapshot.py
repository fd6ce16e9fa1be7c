"""A copy of the code of a launch, so that later edits do not change runs that wait in a queue."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from launcher.project import COPIES, PACKAGES
from launcher.worker.user_code import Source

#: Larger files, and those beyond this sum, are data rather than code: the copy has links to them.
LARGEST_FILE = 8 << 20
LARGEST_SUM = 256 << 20
# What runs and reports need, if git cannot list it.
_ROOMS = ("launcher", "trainer_ext", "analysis", "conf", "hydra_plugins", "launch.py")


def copy(root: Path, to: Path, multirun: Path, user_code: Iterable[Source] = ()) -> Path:
    """Copy the project's sources (tracked and new files, not ignored ones) to a new folder, and return it.

    Files in `multirun`, the folder of results, and deleted files are left out. Links stay links. user_code: packages
    and files from outside; the files of a package that git ignores, such as compiled modules, become links.
    """
    names = [name for name in _sources(root) if not (root / name).resolve().is_relative_to(multirun.resolve())]
    _copy(root, names, to)
    for source in user_code:
        parent = to / COPIES.name / source.path.parent.relative_to("/")
        place = (to / PACKAGES if source.imported else parent) / source.path.name
        if source.path.is_dir():
            _copy(source.path, _listed(source.path) or _below(source.path), place)
            _link_rest(source.path, place)
        else:
            folder = source.path.resolve().parent
            _copy(folder, [str(file.relative_to(folder)) for file in source.files], place.parent)
            if source.path.is_symlink():
                shutil.copy2(source.path, place)
    return to


def _copy(root: Path, names: Iterable[str], to: Path) -> None:
    total = 0
    for name in names:
        source, target = root / name, to / name
        if not os.path.lexists(source) or os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        size = source.lstat().st_size
        leads_out = source.is_symlink() and not source.resolve().is_relative_to(root.resolve())
        if leads_out or size > LARGEST_FILE or total + size > LARGEST_SUM:
            target.symlink_to(source.resolve())
            continue
        total += size
        shutil.copy2(source, target, follow_symlinks=False)


def _link_rest(folder: Path, to: Path) -> None:
    """Links to the files and folders that were not copied, so that compiled modules and data are found."""
    for source in folder.iterdir():
        target = to / source.name
        if source.name == "__pycache__":
            continue
        if target.is_dir() and not target.is_symlink():
            _link_rest(source, target)
        elif not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())


def _sources(root: Path) -> list[str]:
    names = _listed(root)
    if "launcher/__init__.py" in names:
        return [name for name in names if not (root / name).is_dir()]  # a submodule is a folder
    return [f"{room}/{name}".removesuffix("/") for room in _ROOMS for name in _below(root / room)]


def _below(place: Path) -> list[str]:
    paths = sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    return [str(path.relative_to(place)).removeprefix(".") for path in files]


def _listed(folder: Path) -> list[str]:
    """The files below a folder that git tracks or that are new; none if git cannot list them."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
