"""Programs with tests in the sandbox, beside a bare subprocess without any isolation, in one run.

    python -m benchmarks.sandbox

Each program is a small function with three tests. The peer starts a Python for each program, with a time limit and
nothing else, as many at a time. Prints programs a second; exit code 1 where the sandbox is slower than the peer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.size import exit_code, size
from trainer_ext.scoring import sandbox

PROGRAMS = size(200, 10)
LIMITS = sandbox.Limits("namespaces", seconds=10, memory_mb=512, processes=8, file_mb=16)
TESTS = ["assert count('banana', 'a') == 3", "assert count('', 'a') == 0", "assert count('abc', 'd') == 0"]
SOURCE = "from collections import Counter\n\ndef count(text, letter):\n    return Counter(text)[letter]  # {}\n"


def isolated(source: str) -> bool:
    """Whether a program passes, in the sandbox."""
    return sandbox.run(LIMITS, [source], {"tests": TESTS}).right


def bare(source: str) -> bool:
    """Whether a program passes, in a Python of its own."""
    code = "\n".join([source, *TESTS])
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=10, capture_output=True).returncode == 0


def rate(passes: Callable[[str], bool], sources: Sequence[str]) -> float:
    """Programs a second."""
    with ThreadPoolExecutor(sandbox.parallel()) as threads:
        list(threads.map(passes, sources[: 2 * sandbox.parallel()]))  # starts the servers
        began = time.perf_counter()
        assert all(threads.map(passes, sources))
        return len(sources) / (time.perf_counter() - began)


def main() -> int:
    """Measure both in turn, print, compare."""
    sources = [SOURCE.format(number) for number in range(PROGRAMS)]
    rates = [(rate(isolated, sources), rate(bare, sources)) for _ in range(3)]
    ours, theirs = (max(of) for of in zip(*rates, strict=True))
    print(f"{PROGRAMS} programs, {sandbox.parallel()} at a time, the best of 3")
    print(f"sandbox          {ours:6.1f} programs a second")
    print(f"bare subprocess  {theirs:6.1f} programs a second, without isolation")
    return exit_code(ours < theirs)


if __name__ == "__main__":
    sys.exit(main())
