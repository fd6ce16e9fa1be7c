"""Where a run came from: commit, uncommitted changes, packages, machine, devices, command. Secrets are masked."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.secrets import mask, mask_patch

__all__ = ["Provenance", "collect", "here", "mask", "packages"]

# New files beyond these sizes are named instead of kept: data, not code.
LARGEST_FILE = 1 << 20
LARGEST_SUM = 8 << 20
_GIT_S = 30
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Provenance:
    """What is the same for every run of a launch, and the patch of a dirty tree (None when clean or without git).

    record["patch"] says of the patch whether it is `exact`, and which new files it leaves out.
    """

    record: Mapping[str, Any]
    patch: str | None


def collect(root: Path, command: str, multirun: Path | None = None) -> Provenance:
    """Read it all once a launch. Without git, commit and dirty are null. multirun: a folder of results, not of code."""
    commit = _git(root, ["rev-parse", "HEAD"])
    changes = _git(root, ["status", "--porcelain", "--untracked-files=no"]) if commit else None
    new, left_out = _new_files(root, multirun) if commit else ([], [])
    patch, exact = _patch(root, new) if changes or new else (None, True)
    record = {
        "commit": commit.decode().strip() if commit else None,
        "dirty": None if changes is None else bool(changes or new or left_out),
        "patch": {"exact": exact, "left_out": left_out},
        "command": mask(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        **here({}),
        "packages": packages(),
    }
    return Provenance(record, patch)


def packages() -> dict[str, str]:
    """Every installed distribution's version, by name."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return dict(sorted(((name, version) for name, version in found.items() if name), key=lambda item: item[0].lower()))


def here(record: Mapping[str, Any]) -> dict[str, Any]:
    """What may differ from the launch's own record in this process: its visible devices and its threads.

    The machine's GPUs are taken from a record of the same host: asking the driver takes a moment.
    """
    known = record.get("devices") if record.get("host") == socket.gethostname() else None
    gpus = known["gpus"] if isinstance(known, Mapping) else _gpus()
    return {
        "devices": {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "gpus": gpus},
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
    }


def _gpus() -> list[str]:
    """The machine's NVIDIA GPUs: name, memory and driver of each, by index."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    asked = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, timeout=_GIT_S, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


# ---------------------------------------------------------------- uncommitted changes


def _new_files(root: Path, multirun: Path | None) -> tuple[list[bytes], list[str]]:
    """The files that git neither tracks nor ignores, as paths for git, and those too large or binary, in words."""
    listed = _git(root, ["ls-files", "--others", "--exclude-standard", "-z", "--", *_but(root, multirun)]) or b""
    kept: list[bytes] = []
    left_out: list[str] = []
    total = 0
    for name in sorted(filter(None, listed.split(b"\0"))):
        path = root / os.fsdecode(name)
        try:
            size = path.lstat().st_size
            reason = "binary" if not path.is_symlink() and size <= LARGEST_FILE and b"\0" in path.read_bytes() else None
        except OSError:
            continue
        if size > LARGEST_FILE or total + size > LARGEST_SUM:
            reason = f"{size} bytes"
        if reason:
            left_out.append(f"{os.fsdecode(name).encode('utf-8', 'replace').decode()} ({reason})")
            continue
        total += size
        kept.append(name)
    return kept, left_out


def _but(root: Path, multirun: Path | None) -> list[str]:
    if multirun is None or not multirun.resolve().is_relative_to(root.resolve()):
        return []
    return [".", f":(exclude,literal){multirun.resolve().relative_to(root.resolve()).as_posix()}"]


def _patch(root: Path, new: Sequence[bytes]) -> tuple[str | None, bool]:
    """The difference to HEAD with these new files in it, masked, and whether `git apply` gives the tree back exactly.

    Git is shown the new files in a copy of its index: the user's own stays as it is.
    """
    with tempfile.TemporaryDirectory(prefix="rlsweep-index-") as folder:
        index = Path(folder) / "index"
        own = _git(root, ["rev-parse", "--git-path", "index"])
        if own is not None and (root / os.fsdecode(own.strip())).is_file():
            shutil.copyfile(root / os.fsdecode(own.strip()), index)
        environment = {**os.environ, "GIT_INDEX_FILE": str(index), "GIT_LITERAL_PATHSPECS": "1"}
        if new:
            adding = ["add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul"]
            _git(root, adding, environment, b"\0".join(new))
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"]
        found = _git(root, ["diff", "HEAD", "--binary", *plain], environment)
    if found is None:
        return None, False
    if not found:
        return None, True
    text = found.decode("utf-8", "replace")
    masked = mask_patch(text)
    return masked, masked.encode() == found


def _git(
    root: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None, given: bytes | None = None
) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            timeout=_GIT_S,
            check=False,
            env=environment,
            input=given if given is not None else b"",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
