"""The project's folder, the exit codes of its commands, and the environment of the processes that it starts."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: In a launch's copy of the project: the copies of files from outside of it, by absolute path, and those of packages.
COPIES = ROOT / ".outside"
PACKAGES = ".packages"

EXIT_FINE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 and the number of SIGINT, as in a shell

#: With more threads small models are slower, and sums depend on their number.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: The value of CUDA_VISIBLE_DEVICES that hides all devices.
NO_DEVICES = ""


def python_path(root: Path) -> str:
    """PYTHONPATH with `root` before what it has now; all paths are absolute."""
    paths = [str(root), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return os.pathsep.join(dict.fromkeys(paths))
