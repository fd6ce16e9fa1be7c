"""Folders as a test describes them: the texts of their files by path, and git in them."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t.org", "-c", "commit.gpgsign=false"]


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files, with the folders that they need and without the indentation that all of their lines have; the
    folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def git(tree: Path, *words: str) -> str:
    """What a command of git says in this tree."""
    done = subprocess.run([*GIT, "-C", str(tree), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(tree: Path) -> None:
    """Commit everything in the tree, which becomes one of git's if it is none."""
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "all")
