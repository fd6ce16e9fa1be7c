"""Tasks that a test registers for itself alone."""

from __future__ import annotations

import pytest

from trainer_ext.scoring import tasks


def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tasks that are registered from here on when the test ends.

    The included ones are imported first: a module is imported once, so a task that is forgotten stays unknown.
    """
    with pytest.raises(ValueError):
        tasks.get("")
    monkeypatch.setattr(tasks.task, "_entries", dict(tasks.task._entries))
