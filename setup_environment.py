"""Make the virtual environment .venv and install all that pyproject.toml and constraints.txt ask for: `make setup`.

It needs nothing but Python's standard library. This file parses on Python 3.6 and newer, so that an interpreter that is
too old is told so instead of failing with a syntax error.

An interruption at any point, SIGKILL and a power cut included, must leave something that the next call completes. pip
alone does not promise that: it takes a distribution whose files were only partly unpacked for an installed one. So the
record `.venv/installed` is removed first and written last. While it is absent, everything that pip left unfinished is
removed before pip runs, and all that pip installed is compared with what its RECORD says after it.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))


def refuse(problem: str, fix: str) -> None:
    """End with what is wrong and what to do about it."""
    sys.stderr.write(f"\nmake setup: {problem}\n  {fix}\n")
    raise SystemExit(1)


def check_python() -> None:
    """Refuse an interpreter that pyproject.toml excludes. All that follows may use what Python 3.11 has."""
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        (low, high) = map(int, re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', file.read())[0])
    if sys.version_info[0] == 3 and low <= sys.version_info[1] < high and sys.implementation.name == "cpython":
        return
    from shutil import which
    from subprocess import DEVNULL, call

    names = [f"python3.{minor}" for minor in range(high - 1, low - 1, -1)]
    works = (name for name in names if which(name) and call([name, "-c", ""], stdout=DEVNULL, stderr=DEVNULL) == 0)
    name = next(works, "")
    version = ".".join(map(str, sys.version_info[:3]))
    refuse(
        f"Python 3.{low} to 3.{high - 1} is needed (CPython); {sys.executable} is {sys.implementation.name} {version}.",
        f"Run: make setup PYTHON={name}"
        if name
        else f"Install one of {', '.join(names)}, then: make setup PYTHON={names[0]}",
    )


check_python()

import contextlib  # noqa: E402
import csv  # noqa: E402
import hashlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sysconfig  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import tomllib  # noqa: E402
from base64 import urlsafe_b64encode  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import IO, NamedTuple  # noqa: E402

with contextlib.suppress(ImportError):  # Windows, which check_platform refuses
    import fcntl

VENV = Path(ROOT, ".venv")
PYTHON = VENV / "bin" / "python"
INSTALLED = VENV / "installed"
LOG = VENV / "setup.log"
LOCK = VENV / "setup.lock"
# pip's temporary files: on the disk that was checked, and where the next call finds what a killed one left.
TEMPORARY = VENV / "setup.tmp"
# pip's cache, for as long as set-up takes, where the user has none that can be written.
CACHE = VENV / "setup.cache"
OURS = (INSTALLED, LOG, LOCK, TEMPORARY, CACHE)

# Measured on Linux x86-64, Python 3.11: what is fetched, and what .venv then takes. Linux gets torch with CUDA
# from the standard index; what that takes on the disk is an estimate.
CPU_MB, CPU_DISK_MB = 630, 2700
CUDA_MB, CUDA_DISK_MB = 3200, 8500
MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")}
STEPS = 5
ATTEMPTS = 3

CAUSES = (
    (r"No space left on device|Errno 28|Disk quota exceeded", "The disk is full.", "Free some space."),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The package index's certificate is not trusted (often a company's proxy).",
        "Name the file of trusted certificates: PIP_CERT=/path/to/certificates.pem make setup",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeoutError|ProxyError"
        r"|Network is unreachable|Failed to establish a new connection|ConnectionResetError|ReadTimeoutError"
        r"|IncompleteRead|Connection broken|RemoteDisconnected|HTTP error 5\d\d",
        "The package index cannot be reached, or the connection broke.",
        "Check the network (behind a proxy: set HTTPS_PROXY). What was fetched so far is not fetched again.",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system",
        "A file could not be written.",
        "The log names it. Set-up needs no root: it must own this folder and .venv.",
    ),
    (
        # pip takes a pinned version that is not to be had for a conflict.
        r"No matching distribution found|Could not find a version|ResolutionImpossible",
        "The package index has no fitting build of a pinned package.",
        "The log names it. Does the index (PIP_INDEX_URL, pip config list) hold all packages?",
    ),
)


class Failed(Exception):
    """A step that did not end well: what is wrong, and what to do."""

    def __init__(self, problem: str, fix: str = "", log: bool = True) -> None:
        super().__init__(problem)
        self.fix = fix
        self.log = log


def say(text: str = "") -> None:
    print(text, flush=True)


def gb(megabytes: int) -> str:
    return f"{megabytes / 1000:.1f} GB"


def step(number: int, text: str) -> None:
    say(f"[{number}/{STEPS}] {text}")


# ---- what is wanted, and whether it is there


def pins() -> dict[str, str]:
    """The version that constraints.txt gives each package, by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", Path(ROOT, "constraints.txt").read_text(), re.MULTILINE)
    return {normalized(name): version for name, version in found}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def fingerprint() -> str:
    """Of all that decides what set-up installs: a checkout that only touches files asks for nothing new."""
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())
    wanted = [project["build-system"], project["project"], project.get("tool", {}).get("setuptools")]
    venv = (VENV / "pyvenv.cfg").read_text()
    return hashlib.sha256(json.dumps([wanted, pins(), venv, ROOT], sort_keys=True).encode()).hexdigest()


def up_to_date() -> bool:
    try:
        done = INSTALLED.read_text() == fingerprint() and os.access(PYTHON, os.X_OK)
    except OSError:
        return False
    if done:
        os.utime(INSTALLED)  # what make compares
    return done


# ---- what is installed, and whether all of it is there


class Distribution(NamedTuple):
    """One `.dist-info` folder. `problem`: why it is not what its RECORD says, or None."""

    info: Path
    name: str
    version: str
    files: list[Path]
    problem: str | None


def distributions(site: Path, hashes: bool = False) -> list[Distribution]:
    """All in a site-packages folder, compared with their RECORDs: each file's presence and size, its hash if asked."""
    records = {info: read_record(info) for info in sorted(site.glob("*.dist-info")) if not info.name.startswith("~")}
    # Two distributions may ship the same file (a namespace's __init__.py): the second one's is there.
    owners = Counter(path for rows in records.values() for path, _, _ in rows or [])
    found = []
    for info, rows in records.items():
        name, _, version = info.name[: -len(".dist-info")].partition("-")
        problem: str | None = "its RECORD is missing or not finished"
        if rows is not None:
            checks = (check_file(row, hashes) for row in rows if owners[row[0]] == 1)
            problem = next((text for text in checks if text), None)
        files = [path for path, _, _ in rows or []]
        found.append(Distribution(info, normalized(name), version, files, problem))
    return found


def read_record(info: Path) -> list[tuple[Path, str, str]] | None:
    """The files of a distribution with their hashes and sizes. None: pip did not finish it.

    A wheel brings a RECORD of its own, which pip replaces as its very last act by one that also lists INSTALLER.
    """
    try:
        with open(info / "RECORD", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except (OSError, ValueError, csv.Error):
        return None
    if not any(row[0].endswith("INSTALLER") for row in rows):
        return None
    return [(Path(os.path.normpath(info.parent / name)), digest, size) for name, digest, size in rows]


def check_file(row: tuple[Path, str, str], hashes: bool) -> str | None:
    """What is wrong with a file. Compiled ones are not checked: Python writes each at once and whole, and virtualenv
    lists some that nobody wrote."""
    path, digest, size = row
    if path.suffix == ".pyc" or "__pycache__" in path.parts:
        return None
    try:
        if size and path.stat().st_size != int(size):
            return f"{path.name} does not have its recorded size"
        if hashes and digest.startswith("sha256="):
            with open(path, "rb") as file:
                actual = hashlib.file_digest(file, "sha256").digest()
            if urlsafe_b64encode(actual).decode().rstrip("=") != digest[len("sha256=") :]:
                return f"{path.name} does not have its recorded content"
        elif not path.exists():
            return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return None


def remove_unfinished(site: Path, hashes: bool = False) -> list[str]:
    """Remove what pip would take for installed, or would install over, though it is incomplete. Its names."""
    found = distributions(site, hashes)
    kept = {path for one in found if one.problem is None for path in one.files}
    removed = []
    for one in found:
        if one.problem is not None:
            removed.append(f"{one.name} {one.version}: {one.problem}")
            remove(one.info, one.files, kept)
    # What pip set aside while it replaced a distribution, and did not come to delete.
    for aside in sorted(site.glob("~*")):
        remove(aside, [path for path, _, _ in read_record(aside) or []], kept)
    return removed


def remove(folder: Path, files: list[Path], kept: set[Path]) -> None:
    """A distribution's files, but for those that a complete one shares, and its folder. Only what lies in .venv."""
    inside = folder.parents[3]
    for path in set(files) - kept:
        if inside in path.parents and not path.is_dir():
            path.unlink(missing_ok=True)
    # Last: as long as it is there, the next call removes the files that this one did not come to.
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def wrong_versions(found: list[Distribution]) -> list[str]:
    """The installed packages that are not the pinned ones. A local version (+cpu) is another build of the same one."""
    wanted = pins()
    return [
        f"{one.name} {one.version} instead of {wanted[one.name]}"
        for one in found
        if one.name in wanted and one.version.partition("+")[0] != wanted[one.name]
    ]


# ---- step 1: the machine


def check_platform() -> str:
    """Refuse a machine for which there are no packages; what it is, in words."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) not in MACHINES:
        raise Failed(
            f"there are no packages for {system} on {machine}: torch and others are built for Linux (x86-64, aarch64) "
            "and macOS (arm64).",
            "On Windows, use Linux in WSL 2.",
            log=False,
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Failed(
            "this is a free-threaded Python, for which not all packages are built.", "Use the usual build.", False
        )
    if system == "Linux":
        name, version = platform.libc_ver()
        if name != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 28):
            raise Failed(
                f"the packages need glibc 2.28 or newer; this system has {name or 'another C library'} {version}.",
                "Use a newer system or a container (Debian 10, Ubuntu 20.04, RHEL 8 or newer; not Alpine).",
                log=False,
            )
    elif int(platform.mac_ver()[0].partition(".")[0]) < 14:
        raise Failed(f"torch needs macOS 14 or newer; this is {platform.mac_ver()[0]}.", "Update macOS.", log=False)
    return f"{system} {machine}"


def check_folder() -> None:
    if os.pathsep in ROOT:
        raise Failed(
            f"no virtual environment can lie in a path that contains '{os.pathsep}': {ROOT}", "Rename it.", False
        )
    try:
        VENV.mkdir(exist_ok=True)
        LOCK.touch()
    except OSError as error:
        raise Failed(
            f"{VENV} cannot be written ({error.strerror}).",
            "Set-up needs no root, but this folder must be yours: copy or clone the project to a place that is.",
            log=False,
        ) from None


def used_mb() -> int:
    """What .venv takes now."""
    total = 0
    for folder, _, names in os.walk(VENV):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total // 10**6


def check_disk() -> None:
    free = shutil.disk_usage(VENV).free // 10**6
    needed = CPU_MB + CPU_DISK_MB - used_mb()
    say(f"      {gb(free)} are free on the disk of {VENV}")
    if free < needed:
        raise Failed(
            f"too little disk space: set-up needs about {gb(needed)} more, and {gb(free)} are free.",
            "Free some space, or put the project on another disk.",
            log=False,
        )


@contextlib.contextmanager
def lock() -> Iterator[IO[bytes]]:
    """One set-up at a time. The handle becomes the standard input (empty) of all that is started, and so the lock also
    lasts while something that a killed set-up started is still at work."""
    with open(LOCK, "r+b") as handle:
        progress = Progress()
        waiting = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say("Another set-up of this folder is at work (or what a killed one had started): waiting for it.")
                    waiting = True
                progress.show("waits")
                time.sleep(0.2)
            except OSError:
                say("This file system has no locks: take care that no second set-up runs here.")
                break
        progress.end()
        yield handle


# ---- running things, with progress


class Progress:
    """What a long step does: one line that changes on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.since = time.monotonic()
        self.next = self.since + (0 if self.terminal else 20)

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        minutes, seconds = divmod(int(now - self.since), 60)
        line = f"      {text} ({minutes}:{seconds:02d})"
        if self.terminal:
            self.next = now + 0.2
            sys.stdout.write("\r" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
            sys.stdout.flush()
        else:
            self.next = now + 20
            say(line)

    def end(self) -> None:
        if self.terminal:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()


class Pip:
    """What pip's lines say about how far it is. `lines`: all of them."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.since = time.time()
        self.lines: list[str] = []
        self.packages: set[str] = set()
        self.fetched = False
        self.installing = 0
        self.doing = "asks the package index"

    def read(self, line: str) -> None:
        self.lines.append(line)
        found = re.match(r"(?:Collecting|Processing|Requirement already satisfied:) ([^\s\[=<>!~;(]+)", line)
        file = re.match(r"\s+(Downloading|Using cached) (\S+?-[^-]+)\S*(.*)", line)
        if found:
            self.packages.add(found[1])
            self.doing = "finds " + os.path.basename(found[1])
        elif file:
            self.fetched = True
            self.doing = f"{'downloads' if file[1] == 'Downloading' else 'has'} {os.path.basename(file[2])}{file[3]}"
        elif line.endswith(": started"):  # Installing build dependencies, Building wheel for ...
            self.doing = line.strip()[: -len(": started")].lower()
        elif line.startswith("Installing collected packages: "):
            self.installing = line.count(",") + 1

    def text(self) -> str:
        # pip removes folders while they are looked at: os.walk and these two helpers do not mind, as glob would.
        if self.installing:
            infos = (path for path in os.listdir(self.site) if path.endswith(".dist-info"))
            done = sum(modified(self.site / info / "RECORD") >= self.since for info in infos)
            return f"installs package {min(done + 1, self.installing)} of {self.installing}"
        fetched = sum(
            size(Path(folder, name))
            for folder, _, names in os.walk(TEMPORARY)
            if "pip-unpack-" in folder
            for name in names
        )
        return f"{len(self.packages)} packages, {fetched / 1e6:.0f} MB; {self.doing}"


def modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def environment() -> dict[str, str]:
    """Without what would lead pip or Python elsewhere than into .venv."""
    away = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_REQUIREMENT",
        "PIP_CONSTRAINT",
    }
    kept = {name: value for name, value in os.environ.items() if name not in away}
    return {**kept, "TMPDIR": str(TEMPORARY), "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUTF8": "1"}


def run(
    command: list[str], handle: IO[bytes], more: dict[str, str], read: Callable[[str], object], text: Callable[[], str]
) -> int:
    """Run something whose lines go to the log and to `read`; meanwhile `text` says how far it is. Its exit status."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(), **more},
        stdin=handle,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None

    def follow(lines: IO[str]) -> None:
        with open(LOG, "a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            for line in lines:
                log.write(line)
                log.flush()
                read(line.rstrip("\n"))

    reader = threading.Thread(target=follow, args=(process.stdout,), daemon=True)
    progress = Progress()
    try:
        reader.start()
        while reader.is_alive():
            progress.show(text())
            reader.join(0.2)
        return process.wait()
    finally:
        progress.end()
        if process.poll() is None:
            process.terminate()
            process.wait()


def cause(lines: list[str]) -> tuple[str, str]:
    """Why pip failed, and what to do, as far as its lines say."""
    text = "\n".join(lines)
    for pattern, problem, fix in CAUSES:
        if re.search(pattern, text):
            return problem, fix
    return "pip failed.", "The lines above say why; the log has all of them."


def tail(count: int = 20) -> list[str]:
    """The log's last lines, without pip's remarks on its attempts and on places where it found nothing."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    noise = ("WARNING: Location ", "WARNING: Retrying ")
    return [line for line in lines if line.strip() and not line.startswith(noise)][-count:]


# ---- steps 2 to 5


class Setup:
    def __init__(self, handle: IO[bytes]) -> None:
        self.handle = handle
        self.more: dict[str, str] = {}
        self.site = VENV

    def python(self, *arguments: str) -> str | None:
        """What a few lines in the environment's Python print; None if it, or they, fail."""
        try:
            done = subprocess.run(
                [str(PYTHON), *arguments],
                stdin=self.handle,
                capture_output=True,
                text=True,
                env={**environment(), **self.more},
                cwd=ROOT,
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def defect(self) -> str | None:
        """Why .venv's Python cannot be used; None if it can."""
        if not (VENV / "pyvenv.cfg").exists():
            return "it is not finished"
        try:
            scripts = [(VENV / "bin" / name).read_text() for name in ("activate", "activate.csh", "activate.fish")]
        except OSError:
            return "it is not finished"
        if not all(str(VENV) in script or str(VENV.resolve()) in script for script in scripts):
            return "it is not finished, or was made in another folder"
        answer = self.python(
            "-c", "import sys, sysconfig; print(sys.version_info[:2]); print(sysconfig.get_path('purelib'))"
        )
        if answer is None:
            return "its Python does not start"
        version, site = answer.splitlines()
        if version != str(sys.version_info[:2]):
            return f"it is for Python {version.strip('()').replace(', ', '.')}"
        self.site = Path(os.path.normpath(site))
        pip = [one.problem for one in distributions(self.site) if one.name == "pip"]
        return None if pip == [None] else "its pip is not finished"

    def make_venv(self) -> None:
        defect = self.defect()
        if defect is None:
            return say("      there already")
        left = [path for path in VENV.iterdir() if path not in OURS]
        if left:
            say(f"      the one that is there cannot be used ({defect}): it is made anew")
        for path in left:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if importlib.util.find_spec("ensurepip"):
            module = ["venv"]
        elif importlib.util.find_spec("virtualenv"):
            module = ["virtualenv", "--no-periodic-update"]
        else:
            raise Failed(
                f"{sys.executable} has no ensurepip, which `python3 -m venv` needs.",
                f"Debian, Ubuntu: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv\n"
                f"  Without root: {sys.executable} -m pip install --user virtualenv\n"
                "  (with --break-system-packages where pip asks for it), or another Python: make setup PYTHON=...",
                log=False,
            )
        command = [sys.executable, "-m", *module, str(VENV)]
        if run(command, self.handle, {}, lambda line: None, lambda: "makes .venv") != 0 or self.defect() is not None:
            raise Failed(f"`{' '.join(command)}` failed: {self.defect()}.", "The lines above say why.")

    def choose_cache(self) -> None:
        """pip fetches nothing twice only if it has a cache."""
        answer = self.python("-m", "pip", "cache", "dir")
        if answer is None:  # switched off
            return
        place = Path(answer.splitlines()[-1])
        while not place.exists():
            place = place.parent
        # pip uses no cache in a folder that is not the user's.
        usable = place.stat().st_uid == 0 if os.geteuid() == 0 else os.access(place, os.W_OK)
        if not usable:
            self.more["PIP_CACHE_DIR"] = str(CACHE)

    def announce(self, version: str) -> None:
        """How much will be fetched: it depends on whether torch comes with CUDA, and the index alone knows."""
        offered = self.python("-m", "pip", "index", "versions", "torch")
        cpu = platform.system() == "Darwin" or f"{version}+cpu" in re.findall(r"[^\s,]+", offered or "")
        fetched, disk = (CPU_MB, CPU_DISK_MB) if cpu else (CUDA_MB, CUDA_DISK_MB)
        if offered is None and not cpu:
            return say(f"      to fetch: about {gb(CPU_MB)}, or {gb(CUDA_MB)} if torch comes with CUDA")
        say(f"      in all {gb(fetched)} to fetch, less what pip's cache has; then .venv takes about {gb(disk)}")
        if not cpu:
            say(f"      torch comes with CUDA here. Without a GPU, {gb(CUDA_MB - CPU_MB)} less need to be fetched:")
            say("      let PIP_EXTRA_INDEX_URL name PyTorch's index of CPU builds")
            free = shutil.disk_usage(VENV).free // 10**6
            if free + used_mb() < fetched + disk:
                say(f"      WARNING: {gb(free)} are free, which may not be enough for that")

    def pip(self, *arguments: str) -> None:
        """`pip install`, tried again when a connection broke."""
        command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--no-compile", "--progress-bar", "off"]
        command += ["-c", "constraints.txt"]
        for attempt in range(1, ATTEMPTS + 1):
            clear(TEMPORARY)
            TEMPORARY.mkdir()
            watch = Pip(self.site)
            if run([*command, *arguments], self.handle, self.more, watch.read, watch.text) == 0:
                break
            problem, fix = cause(watch.lines)
            if attempt == ATTEMPTS or "connection broke" not in problem or not watch.fetched:
                raise Failed(problem, fix)
            say(f"      the connection broke: attempt {attempt + 1} of {ATTEMPTS}")
        clear(TEMPORARY)

    def install(self) -> None:
        torch = "torch==" + pins()["torch"]
        step(3, f"Install {torch}, alone: with other packages pip may choose another build")
        self.announce(pins()["torch"])
        self.pip(torch)
        step(4, f"Install the other packages (about {len(pins())})")
        self.pip("-e", ".[dev]")
        self.compile()

    def compile(self) -> None:
        """Compile the packages on all cores; pip would use one. Python itself compiles what this leaves out."""
        command = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0", str(self.site)]
        run(command, self.handle, self.more, lambda line: None, lambda: "compiles")

    def verify(self) -> list[Distribution]:
        step(5, "Verify what is installed")
        # A second round repairs what the first left incomplete, which nothing is known to do but a failing disk.
        for _ in range(2):
            found = distributions(self.site)
            broken = [f"{one.name} {one.version}: {one.problem}" for one in found if one.problem]
            if not broken:
                break
            say("      incomplete, and so installed again: " + "; ".join(broken))
            remove_unfinished(self.site)
            self.pip("torch==" + pins()["torch"])
            self.pip("-e", ".[dev]")
        else:
            raise Failed(
                "packages are incomplete even after a second installation: " + "; ".join(broken), "Is the disk sound?"
            )
        wrong = wrong_versions(found)
        if wrong:
            raise Failed(
                "packages differ from constraints.txt: " + ", ".join(wrong), "Run: make clean setup", log=False
            )
        for arguments in (["-m", "pip", "check"], ["-c", "import torch"]):
            lines: list[str] = []
            if run([str(PYTHON), *arguments], self.handle, self.more, lines.append, lambda: "checks"):
                raise Failed(f"`.venv/bin/python {' '.join(arguments)}` failed.", "The lines above say why.")
        return found


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def set_up(handle: IO[bytes]) -> None:
    since = time.monotonic()
    resumes = VENV.joinpath("pyvenv.cfg").exists() and not INSTALLED.exists()
    INSTALLED.unlink(missing_ok=True)
    LOG.write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sys.executable} {sys.version}\n")
    check_disk()
    step(2, f"Virtual environment: {VENV}")
    setup = Setup(handle)
    TEMPORARY.mkdir(exist_ok=True)
    setup.make_venv()
    setup.choose_cache()
    # A power cut, other than a kill, may also leave files of the right size with nothing in them.
    for text in remove_unfinished(setup.site, hashes=resumes):
        say(f"      left by an interruption, and so installed again: {text}")
    setup.install()
    found = setup.verify()
    clear(TEMPORARY)
    clear(CACHE)
    os.sync()
    INSTALLED.write_text(fingerprint())
    minutes, seconds = divmod(int(time.monotonic() - since), 60)
    say(f"Done in {minutes} min {seconds} s: {len(found)} packages, {gb(used_mb())} in .venv. Next: make quickstart")


def main() -> int:
    # As Ctrl-C: what was started ends, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if up_to_date():
            return 0
        version = ".".join(map(str, sys.version_info[:3]))
        step(1, f"Check: Python {version} ({sys.executable}), {check_platform()}")
        check_folder()
        with lock() as handle:
            if not up_to_date():
                set_up(handle)
        return 0
    except Failed as error:
        problem, fix, log = str(error), error.fix, error.log
    except OSError as error:
        problem, fix, log = f"{type(error).__name__}: {error}", cause([str(error)])[1], LOG.is_file()
    except KeyboardInterrupt:
        say("\nInterrupted. The next `make setup` goes on from here.")
        return 130
    if log:
        print("", *tail(), sep="\n  | ", file=sys.stderr)
        fix += f"\n  The whole log: {LOG}. The next `make setup` goes on from here."
    refuse(problem, fix)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
