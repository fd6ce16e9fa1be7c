"""Where the project lies, and the exit codes of its commands."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

EXIT_FINE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as shells count: 128 and the signal's number
