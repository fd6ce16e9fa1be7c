"""Waiting for another process, with an end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 120.0  # seconds after which a process that does nothing is a failure, not slow


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Wait for a condition; its value. Asking takes a tenth of the time at most: what is waited for needs the rest."""
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        found = condition()
        if found:
            return found
        time.sleep(min(max(0.02, 9 * (time.monotonic() - began)), 1.0))
    raise AssertionError("the condition never came true")


def ended(process: subprocess.Popen[str], code: int = 0, seconds: float = 600.0) -> str:
    """Wait for a process that must end with this code; what it said."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, said
    return said or ""
