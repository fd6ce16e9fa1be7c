"""The project's folder, the exit codes and streams of its commands, and the environment of processes that it starts."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parent.parent
#: In a launch's copy of the project: the copies of files from outside of it, by absolute path, and those of packages.
COPIES = ROOT / ".outside"
PACKAGES = ".packages"

# A wheel has conf/ as rlsweep_conf, because many projects have a package `conf`.
INSTALLED = (ROOT / "rlsweep_conf").is_dir()
CONF = ROOT / ("rlsweep_conf" if INSTALLED else "conf")

EXIT_FINE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 and the number of SIGINT, as in a shell

#: With more threads small models are slower, and sums depend on their number.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: The value of CUDA_VISIBLE_DEVICES that hides all devices.
NO_DEVICES = ""


def root(folder: Path | None = None) -> Path:
    """The project that a folder is in, by default the working directory: the nearest folder above it with the file
    rlsweep.toml, else the nearest git repository, else the folder itself."""
    folder = (folder or Path.cwd()).absolute()
    for marker in ("rlsweep.toml", ".git"):
        for place in (folder, *folder.parents):
            if (place / marker).exists():
                return place
    return folder


def multirun() -> Path:
    """Where runs and reports go: RLSWEEP_MULTIRUN, else multirun/ of the project that the working directory is in."""
    named = os.environ.get("RLSWEEP_MULTIRUN")
    return Path(named).absolute() if named else root() / "multirun"


def program() -> str:
    """What a user of this project types for a command of the launcher."""
    return "python -m launcher" if root() == ROOT else "rlsweep"


def python_path(root: Path) -> str:
    """PYTHONPATH with `root` before what it has now; all paths are absolute."""
    paths = [str(root), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return os.pathsep.join(dict.fromkeys(paths))


# ---------------------------------------------------------------- streams that cannot be written


class Dropping(io.FileIO):
    """A stream that leads to /dev/null after its first error. `failed`: it was standard output's, and not EPIPE."""

    failed: ClassVar[bool] = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if error.errno != errno.EPIPE and self.fileno() == 1:
                Dropping.failed = True
                print(f"standard output cannot be written ({error.strerror}); it is dropped", file=sys.stderr)
            return len(data)


def drop_what_cannot_be_written() -> None:
    """Let no print of this process raise: neither after `>&-`, nor on a full disk, nor when a reader has ended."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would get its number, and what is printed
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        if before is getattr(sys, f"__{name}__"):  # otherwise somebody captures it
            encoding, errors = getattr(before, "encoding", None), getattr(before, "errors", None)
            lines = bool(before and (before.line_buffering or before.write_through))
            buffer = io.BufferedWriter(Dropping(number, "wb", closefd=False))
            setattr(sys, name, io.TextIOWrapper(buffer, encoding, errors, line_buffering=lines))
