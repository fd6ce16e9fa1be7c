"""Tasks that a test registers, and packages that it installs, for itself alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.config import installed_parts
from trainer_ext import registry
from trainer_ext.scoring import tasks


def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tasks that are registered from here on when the test ends.

    The included ones are imported first: a module is imported once, so a task that is forgotten stays unknown.
    """
    with pytest.raises(ValueError):
        tasks.get("")
    monkeypatch.setattr(tasks.task, "_entries", dict(tasks.task._entries))


def declare(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, group: str = "rlsweep.analysis"
) -> None:
    """Work in a project that has this module and its entry point, and is not installed."""
    (site / f"{name}.py").write_text(module)
    (site / "rlsweep.toml").touch()
    points = f'[project.entry-points."{group}"]\n{name} = "{name}"\n'
    (site / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n{points}')
    monkeypatch.chdir(site)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@contextmanager
def other_packages() -> Iterator[None]:
    """Within, and afterwards, it is asked anew which packages are installed."""
    caches = (installed_parts.entries, installed_parts.folders, registry.load)
    for cached in caches:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in caches:
            cached.cache_clear()
