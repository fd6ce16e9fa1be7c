"""A copy of the code of a launch, so that later edits do not change runs that wait in a queue."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# What runs and reports need, if git cannot list it.
_ROOMS = ("launcher", "trainer_ext", "analysis", "conf", "hydra_plugins", "launch.py")


def copy(root: Path, to: Path, multirun: Path) -> Path:
    """Copy the project's sources (tracked and new files, not ignored ones) to a new folder, and return it.

    Files in `multirun`, the folder of results, and deleted files are left out. Links stay links.
    """
    for name in _sources(root):
        source = root / name
        if source.resolve().is_relative_to(multirun.resolve()) or not os.path.lexists(source):
            continue
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    return to


def _sources(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
        names = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    except (OSError, subprocess.CalledProcessError):
        names = []
    if "launcher/__init__.py" in names:
        return [name for name in names if not (root / name).is_dir()]  # a submodule is a folder
    return [
        str(path.relative_to(root))
        for room in _ROOMS
        for path in sorted([root / room, *(root / room).rglob("*")])
        if path.is_file() and "__pycache__" not in path.parts
    ]
