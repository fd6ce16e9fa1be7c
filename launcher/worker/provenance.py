"""The provenance of a run: commit, uncommitted changes, packages, machine, devices, command. Secrets are masked."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.config import content
from launcher.run import launch_record
from launcher.secrets import is_credentials_file, mask, mask_patch
from launcher.worker.loaded import Source

# New files beyond these sizes are data rather than code: only their names are kept.
LARGEST_FILE = 1 << 20
LARGEST_SUM = 8 << 20
_GIT_S = 30
_NAMED_LIKE_CREDENTIALS, _PRIVATE = "named like credentials", "only its owner may read it"
_LISTED = 5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Provenance:
    """What is the same for all runs of a launch (folder.Provenance), and the patch of a tree with changes, or None.

    In the record, `user_code` has the texts of its patches in place of their names.
    """

    record: Mapping[str, Any]
    patch: str | None

    def warning(self) -> str | None:
        """The new files that the patch leaves out because they may hold secrets, in one line for the user."""
        reasons = (f"({_NAMED_LIKE_CREDENTIALS})", f"({_PRIVATE})")
        files = [file for file in self.record["patch"]["left_out"] if file.endswith(reasons)]
        more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
        return f"dirty.patch will not have these new files: {', '.join(files[:_LISTED])}{more}" if files else None


def collect(root: Path, command: str, multirun: Path | None = None, user_code: Iterable[Source] = ()) -> Provenance:
    """Collect the provenance, once for each launch. user_code: the code from outside of `root` that its runs import.

    Files in the folder `multirun` are results, and do not count as changes of the code.
    """
    tree, patch = _tree(root, _without(root, multirun))
    record = {
        **tree,
        launch_record.USER_CODE: _sources(user_code),
        "command": mask(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        **here({}),
        "packages": packages(),
    }
    return Provenance(record, patch)


def _tree(root: Path, paths: Sequence[str]) -> tuple[dict[str, Any], str | None]:
    """The commit of a repository, and the patch of its changes at these paths (git's pathspecs; none: all)."""
    # What an installed wheel is in may be the repository of somebody else.
    commit = _git(root, ["rev-parse", "HEAD"]) if (root / ".git").exists() else None
    changes = _git(root, ["status", "--porcelain", "--untracked-files=no", "--", *paths]) if commit else None
    new, left_out = _new_files(root, paths) if commit else ([], {})
    patch, exact = _patch(root, new, left_out, paths) if changes or new else (None, True)
    record = {
        "commit": commit.decode().strip() if commit else None,
        "dirty": None if changes is None else bool(changes or new or left_out),
        "patch": {
            "exact": exact,
            "left_out": [f"{name.decode(errors='replace')} ({reason})" for name, reason in left_out.items()],
        },
    }
    return record, patch


def _sources(sources: Iterable[Source]) -> dict[str, dict[str, Any]]:
    """The provenance of the user's packages and files, by path: the content of each, and the commit of its repository
    with the changes of all that are in it."""
    top_of = {source: _top(source.path.resolve().parent) for source in sources}
    trees: dict[Path | None, dict[str, Any]] = {None: dict.fromkeys(("repository", "commit", "dirty", "patch"))}
    for top in filter(None, {*top_of.values()}):
        files = [file for source in top_of for file in ([source.path] if source.path.is_dir() else source.files)]
        inside = {f":(literal){file.relative_to(top)}" for file in map(Path.resolve, files) if file.is_relative_to(top)}
        tree, patch = _tree(top, sorted(inside))
        trees[top] = {"repository": str(top), **tree, "patch": patch}
    return {str(source.path): {"digest": content.digest(source.path), **trees[top]} for source, top in top_of.items()}


def _top(folder: Path) -> Path | None:
    """The git repository that a folder is in."""
    output = _git(folder, ["rev-parse", "--show-toplevel"])
    return None if output is None else Path(os.fsdecode(output.rstrip(b"\n")))


@cache
def packages() -> dict[str, str]:
    """Every installed distribution's version, by name."""
    versions = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return {name: versions[name] for name in sorted(filter(None, versions), key=str.lower)}


def here(record: Mapping[str, Any]) -> dict[str, Any]:
    """What may differ from the launch's record in this process: its visible devices and its threads.

    The list of GPUs is taken from a record of the same host, because it takes a moment to ask the driver.
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
    query = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=_GIT_S, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


# ---------------------------------------------------------------- uncommitted changes


def _new_files(root: Path, paths: Sequence[str]) -> tuple[list[bytes], dict[bytes, str]]:
    """The files at these paths that are not in the commit, as paths for git: those of the patch, and why it leaves out
    the others.

    Large and binary files are left out unless they are staged; files that may hold secrets always.
    """
    listing = ["ls-files", "--others", "--exclude-standard", "-z", "--", *paths]
    untracked = set((_git(root, listing) or b"").split(b"\0"))
    added = ["diff", "HEAD", "--name-only", "--no-renames", "--diff-filter=A", "-z", "--", *paths]
    staged = _git(root, added) or b""
    kept: list[bytes] = []
    left_out: dict[bytes, str] = {}
    total = 0
    index = _index(root)
    # The umask of the user may make every file private, and so also this one.
    private_is_usual = index is not None and _is_private(index)
    for name in sorted({*untracked, *staged.split(b"\0")} - {b""}):
        path = root / os.fsdecode(name)
        try:
            size = path.lstat().st_size
            inside = path.relative_to(root)
            reason = _NAMED_LIKE_CREDENTIALS if is_credentials_file(inside) else None
            places = (path, *(root / folder for folder in list(inside.parents)[:-1]))
            if reason is None and not private_is_usual and any(map(_is_private, places)):
                reason = _PRIVATE
            if reason is None and name in untracked:
                if size > LARGEST_FILE or total + size > LARGEST_SUM:
                    reason = f"{size} bytes"
                elif not path.is_symlink() and b"\0" in path.read_bytes():
                    reason = "binary"
        except OSError:
            continue
        if reason is not None:
            left_out[name] = reason
        elif name in untracked:
            total += size
            kept.append(name)
    return kept, left_out


def _is_private(path: Path) -> bool:
    """Whether only the owner may read a file or a folder."""
    return not path.lstat().st_mode & 0o077


def _index(root: Path) -> Path | None:
    """The file of git's index, or None if there is none yet."""
    name = _git(root, ["rev-parse", "--git-path", "index"])
    path = None if name is None else root / os.fsdecode(name.strip())
    return path if path is not None and path.is_file() else None


def _without(root: Path, multirun: Path | None) -> list[str]:
    if multirun is None or not multirun.resolve().is_relative_to(root.resolve()):
        return []
    return [".", f":(exclude,literal){multirun.resolve().relative_to(root.resolve()).as_posix()}"]


def _patch(
    root: Path, new: Sequence[bytes], left_out: Iterable[bytes], paths: Sequence[str]
) -> tuple[str | None, bool]:
    """The difference to HEAD with these new files, masked, and whether `git apply` restores the tree exactly.

    The new files are added to a copy of git's index; the user's index stays as it is.
    """
    with tempfile.TemporaryDirectory(prefix="rlsweep-index-") as folder:
        index = Path(folder) / "index"
        original = _index(root)
        if original is not None:
            shutil.copyfile(original, index)
        environment = {**os.environ, "GIT_INDEX_FILE": str(index)}
        if new:
            adding = ["add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul"]
            _git(root, adding, {**environment, "GIT_LITERAL_PATHSPECS": "1"}, b"\0".join(new))
        _git(root, ["update-index", "--force-remove", "-z", "--stdin"], environment, b"\0".join(left_out))
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"]
        patch = _git(root, ["diff", "HEAD", "--binary", *plain, "--", *paths], environment)
    if not patch:
        return None, patch is not None
    masked = mask_patch(patch.decode("utf-8", "replace"))
    return masked, masked.encode() == patch


def _git(
    root: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> bytes | None:
    """The output of a git command, or None if it failed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            timeout=_GIT_S,
            check=False,
            env=environment,
            input=stdin,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
