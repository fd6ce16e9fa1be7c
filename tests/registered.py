"""Tasks that a test registers, and packages that it installs, for itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
