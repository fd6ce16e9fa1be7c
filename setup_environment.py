"""Make the virtual environment .venv and install what pyproject.toml and constraints.txt ask for: `make setup`.

The record .venv/installed is written last. Without it, .venv is what an interrupted set-up left, and it is made anew:
pip's cache has what was downloaded. Until the interpreter is checked, Python 3.6 must be able to run this file.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
INSTALLED = VENV / "installed"
DISK_GB = 3  # Linux x86-64, torch for the CPU; about 12 with CUDA
# A third of what packages have: their tests, hundreds of models, Ray's libraries. What is imported is compiled then.
SELDOM = r"/\.venv/lib/.+/(tests/|transformers/models/\w+/mod|ray/(data|rllib|train|tune)/)"
AWAY = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_CONSTRAINT"}  # from .venv


def refuse(problem: str, fix: str) -> None:
    """End with what is wrong and what to do about it."""
    raise SystemExit(f"\nmake setup: {problem}\n  {fix}")


def check_machine(project: str) -> None:
    """Refuse an interpreter that pyproject.toml excludes, a folder that cannot hold .venv, and a full disk."""
    low, high = map(int, re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project)[0])
    if not ((3, low) <= sys.version_info[:2] < (3, high) and sys.implementation.name == "cpython"):
        names = [f"python3.{minor}" for minor in range(high - 1, low - 1, -1)]
        name = next(filter(shutil.which, names), names[0])
        version = f"{sys.implementation.name} {platform.python_version()}"
        problem = f"Python 3.{low} to 3.{high - 1} (CPython) is needed; {sys.executable} is {version}."
        refuse(problem, f"Install one of {', '.join(names)} if you have none. Run: make setup PYTHON={name}")
    if os.pathsep in str(ROOT) or not os.access(str(ROOT), os.W_OK):
        refuse(f"{ROOT} contains '{os.pathsep}' or cannot be written.", "Copy or clone the project to another folder.")
    free = shutil.disk_usage(str(ROOT)).free / 1e9
    if free < DISK_GB and not INSTALLED.exists():
        refuse(f"set-up needs {DISK_GB} GB, and {free:.1f} GB are free in {ROOT}.", "Free some space.")


def lock() -> None:
    """Wait for another set-up of this folder, also for what a killed one had started: it inherits the lock."""
    descriptor = os.open(os.path.abspath(__file__), os.O_RDWR)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another set-up of this folder is running: waiting for it.", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def run(*command: object) -> None:
    """Run a command, or refuse."""
    words = [str(word) for word in command]
    kept = {name: value for name, value in os.environ.items() if name not in AWAY}
    if subprocess.call(words, cwd=str(ROOT), env=kept, close_fds=False):
        fix = "The lines above say why. Then run make setup again: pip does not download again what is in its cache."
        refuse(f"`{' '.join(words)}` failed.", fix)


def set_up(project: str, pins: str) -> None:
    """Make or update .venv, unless its record says that it is up to date."""
    place = f"{platform.python_version()} {ROOT}\n"  # a moved folder and another Python need a new environment
    wanted = place + hashlib.sha256((project + pins).encode()).hexdigest()
    record = INSTALLED.read_text() if INSTALLED.exists() and os.access(str(PYTHON), os.X_OK) else ""
    if record == wanted:
        return INSTALLED.touch()  # what make compares
    if record.startswith(place):
        INSTALLED.unlink()
    else:
        shutil.rmtree(str(VENV), ignore_errors=True)
        run(sys.executable, "-m", "venv", VENV)
    install = [PYTHON, "-m", "pip", "install", "--no-input", "--no-compile", "-c", "constraints.txt"]
    # A pip that resolves in half the time; torch by itself, since beside others pip may take another build; the rest.
    for pin in re.findall(r"^(?:pip|torch)==\S+", pins, re.MULTILINE):
        run(*install, pin)
    # pip takes one core, and what is installed needs compiling: that of torch beside the rest, which is far longer.
    # Packages ship templates that do not compile, so the status says nothing.
    compile_all = [str(PYTHON), "-m", "compileall", "-qq", "-x", SELDOM, str(VENV / "lib")]
    with subprocess.Popen(compile_all, close_fds=False):
        run(*install, "-e", ".[dev]")
    subprocess.call([*compile_all, "-j", "0"])
    run(PYTHON, "-m", "pip", "check")
    os.sync()
    (VENV / "new").write_text(wanted)
    (VENV / "new").replace(INSTALLED)
    print(f"Set up in {VENV}. Next: make quickstart")


if __name__ == "__main__":
    project = (ROOT / "pyproject.toml").read_text()
    check_machine(project)
    lock()
    set_up(project, (ROOT / "constraints.txt").read_text())
