"""The code of a launch, copied, so that what is edited later does not change runs that wait in a queue."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# Without git: what runs and reports are made of.
_ROOMS = ("launcher", "trainer_ext", "analysis", "conf", "hydra_plugins", "launch.py")


def copy(root: Path, to: Path, multirun: Path) -> Path:
    """Copy the sources (what git tracks or would) of the project to a new folder, without results; returns it.

    `multirun` is the folder of results. What was deleted but is still tracked is left out; links stay links.
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
        found = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    except (OSError, subprocess.CalledProcessError):
        found = []
    if "launcher/__init__.py" in found:
        return [name for name in found if not (root / name).is_dir()]  # a submodule is a folder
    return [
        str(path.relative_to(root))
        for room in _ROOMS
        for path in sorted([root / room, *(root / room).rglob("*")])
        if path.is_file() and "__pycache__" not in path.parts
    ]
