"""The project's folder, the exit codes and streams of its commands, and the processes that it starts."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parent.parent
#: The configurations that come with rlsweep; a wheel installs conf/ as rlsweep_conf.
CONF = next((place for place in (ROOT / "rlsweep_conf", ROOT / "conf") if place.is_dir()), ROOT / "conf")
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


def root(folder: Path | None = None) -> Path:
    """The project that a folder is in, by default the working directory: the nearest folder above it with the file
    rlsweep.toml, else the nearest git repository, else the folder itself."""
    folder = (folder or Path.cwd()).absolute()
    for marker in ("rlsweep.toml", ".git"):
        for place in (folder, *folder.parents):
            if (place / marker).exists():
                return place
    return folder


def copied(path: str) -> Path | None:
    """The copy that the launch has made of a file, or of what a run imports from a folder; None: it has made none."""
    copy = COPIES / path.lstrip("/")
    return copy if copy.exists() else None


def multirun() -> Path:
    """Where runs and reports go: RLSWEEP_MULTIRUN, else multirun/ of the project that the working directory is in."""
    named = os.environ.get("RLSWEEP_MULTIRUN")
    return Path(named).absolute() if named else root() / "multirun"


def activate() -> None:
    """Make the present project's package known, with its entry points, to this process and those that it starts.

    A package that is installed is known. For another, its pyproject.toml is written as the metadata that Python looks
    for, in multirun/cache. Ends the process, with a message, where that file cannot be read.
    """
    if root() == ROOT:
        return
    import tomllib
    from importlib import metadata

    file = root() / "pyproject.toml"
    try:
        declared = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        groups = {group: own for group, own in declared.get("entry-points", {}).items() if group.startswith("rlsweep.")}
        lines = [line for group, own in groups.items() for line in (f"[{group}]", *(f"{n} = {own[n]}" for n in own))]
        if not groups or any(metadata.Distribution.discover(name=declared["name"])):
            return
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        why = "project has no name" if isinstance(error, LookupError) else error
        print(f"error: {file}: its entry points cannot be read: {why}. Fix: correct the file", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from error
    place = multirun() / "cache" / "project"
    info = place / f"{re.sub('[^A-Za-z0-9]+', '_', declared['name'])}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 0\n", encoding="utf-8")
    sys.path[1:1] = [str(root()), str(place)]  # a script's folder stays first, as in processes with this PYTHONPATH
    os.environ["PYTHONPATH"] = python_path(root(), place)


def program() -> str:
    """What a user of this project types for a command of the launcher."""
    return spelled("python -m launcher")


def spelled(text: str) -> str:
    """A text in which commands stand as rlsweep's own repository has them, as a user of this project types them."""
    if root() == ROOT:
        return text
    return text.replace("python launch.py -m", "rlsweep launch").replace("python -m launcher", "rlsweep")


def python_path(*first: Path) -> str:
    """PYTHONPATH with these folders before what it has now; all paths are absolute."""
    paths = [*map(str, first), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return os.pathsep.join(dict.fromkeys(paths))


def output_of(
    command: Sequence[str],
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> bytes | None:
    """The output of a command; None if it fails, or does not end within so many seconds."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, env=environment, input=stdin)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


_freeze_once = cache(gc.freeze)


@contextmanager
def uncollected() -> Iterator[None]:
    """A block that makes what this process needs to its end, such as modules, without garbage collections.

    They would take a tenth to a third of its time. What there is after the first such block of a process is never
    collected: forks share its memory, and Python does not search through it at exit.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _freeze_once()  # a process that does several runs also makes garbage
        if enabled:
            gc.enable()


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
