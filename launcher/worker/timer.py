"""A process that ends a worker which hangs so that none of its threads can run: python -I -S timer.py PID.

A line on its standard input gives the seconds that the worker may take until the next line. Time counts only while the
two can run, not while one of them is stopped or the machine sleeps; a timer in the worker would expire meanwhile. The
worker's handler of SIGUSR1 writes the stacks, and needs no thread of Python. This process ends with the worker.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

_EVERY_S = 1.0


def main(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    left, last = float("inf"), time.monotonic()
    while left > 0:
        ready = select.select([0], [], [], _EVERY_S)[0]
        now = time.monotonic()
        passed, last = now - last, now
        if ready:
            lines = os.read(0, 4096).split()
            if not lines:
                return
            left = float(lines[-1])
        elif Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt":
            left -= min(passed, 2 * _EVERY_S)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(_EVERY_S)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
