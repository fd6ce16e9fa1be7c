"""How much a benchmark measures: all of it, or the smallest amount with which every line of it runs.

`make benchmark-smallest` sets BENCHMARK_SIZE=smallest. Then wrong answers and errors fail a benchmark, but limits of
time and memory are only printed: they are stated for the full size and for a machine without other work.
"""

from __future__ import annotations

import os
from typing import TypeVar

SMALLEST = os.environ.get("BENCHMARK_SIZE") == "smallest"
Size = TypeVar("Size")


def size(full: Size, smallest: Size) -> Size:
    """The one of the two that this run measures."""
    return smallest if SMALLEST else full


def exit_code(missed: bool) -> int:
    """1 if a limit was missed at the full size, else 0."""
    return int(missed and not SMALLEST)
