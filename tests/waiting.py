"""Waiting for another process, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE = 120.0  # seconds after which a process that does nothing is a failure, not slow


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("the condition never came true")
