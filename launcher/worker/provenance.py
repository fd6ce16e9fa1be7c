"""Where a run came from: the code that this process has loaded, with the content that its files had then; the user's
code from outside of the project; commit, uncommitted changes, packages, machine, devices, command. Secrets are masked.

The user's code is found by reading, from the packages that extend this project and from the rewards that
configurations name; nothing is imported. A package counts as a whole.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.application import application, packages
from launcher.config import content, installed_parts
from launcher.config.identity import INPUTS
from launcher.files import content_digest
from launcher.project import COPIES, ROOT, copied, output_of, root
from launcher.run import code, launch_record
from launcher.run.code import Code, hashes, hub_commit, read, versions
from launcher.run.folder import multirun_of
from launcher.secrets import is_credentials_file, mask, mask_patch

_LIBRARY_FOLDERS = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}

#: By the module's name: its path below the folder of its top-level package, and the hashes of its file. A module keeps
#: the hashes of the first call of `note` after its import, whatever happens to its file later. Forks inherit them.
_noted: dict[str, tuple[str, str, str]] = {}
_seen: set[str] = set()  # of sys.modules
_by_path: set[str] = set()  # the folders of files that were loaded by their path


def note() -> None:
    """Note every module that was loaded since the last call, and the versions of the libraries."""
    versions()
    new = [key for key in list(sys.modules) if key not in _seen]
    _seen.update(new)
    for key, module in ((key, sys.modules.get(key)) for key in new):
        spec = getattr(module, "__spec__", None)
        name = getattr(module, "__name__", None) if spec is None or key == "__main__" else spec.name
        file = getattr(module, "__file__", None)
        if not isinstance(name, str) or not isinstance(file, str) or name in _noted:
            continue
        path, top = Path(file), name.partition(".")[0]
        if path == ROOT / "launch.py":  # it starts sweeps, and computes nothing
            continue
        if top not in packages() and top not in _user_packages() and is_library(path):
            continue
        with suppress(OSError):  # it was deleted since its import
            place = _place(name, path)
            _noted[name] = (place, *hashes(copied(file) or path, parsed=code.computes(place)))


def loaded_code(config: Mapping[str, Any], hub: Mapping[str, str] | None = None) -> Code:
    """The code of this process, and the data files of a run with this configuration, but for those in its identity.

    hub: the commits of the models and data sets of the hub that it uses.
    """
    note()
    inputs = [Path(text) for text in config.get(INPUTS) or {}]
    scripts = [file for file in inputs if file.suffix == ".py" and file.is_file()]
    modules = [path for script in scripts for path in content.with_imports(script)]
    known = {_shown(path) for path in (*inputs, *modules)}
    loaded = {*_noted.values(), *later_modules(config)}
    cwd = (config.get("start") or {}).get("cwd")  # of a program of @hydra.main
    folder = f"{root(Path(cwd))}/" if cwd else ""
    noted = sorted(
        (f"./{place.removeprefix(folder)}" if cwd and place.startswith(folder) else place, *both)
        for place, *both in loaded
        if place not in known
    )
    return Code(
        modules={place: file for place, file, _ in noted},
        syntax={place: syntax for place, _, syntax in noted},
        root=folder.rstrip("/"),
        data={path: digest for path, digest in _data(config).items() if path not in known},
        libraries=versions(),
        hub=hub or {},
    )


def later_modules(config: Mapping[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """The path and the hashes of each module that a run may load in processes of its own; None: any run."""
    return [(_shown(path), *hashes(path)) for path in application(config).code_files(config)]


def _shown(path: Path) -> str:
    """A file's path in a record: of a launch's copy that of the original, of the project's files that below it."""
    if path.is_relative_to(COPIES):
        return f"/{path.relative_to(COPIES)}"
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _place(name: str, path: Path) -> str:
    """How a module is recorded: by its path below the folder of its top-level package.

    A file that was loaded by its path, under another name than its own, or as a program, is recorded by that path, and
    so are the modules beside it: another process does not have their folder on sys.path.
    """
    parts = name.split(".")
    if name == "__main__" or path.stem not in (parts[-1], "__init__"):
        _by_path.add(_shown(path.parent))
    if _shown(path.parent) in _by_path:
        return _shown(path)
    return "/".join([*parts, path.name] if path.stem == "__init__" else [*parts[:-1], path.name])


def is_library(file: Path) -> bool:
    """Whether a module's file is Python's own, or that of an installed package which is not editable."""
    return not content.INSTALLED.isdisjoint(file.parts) or any(map(file.is_relative_to, _LIBRARY_FOLDERS))


def hub_commits(config: Mapping[str, Any], code_ids: Iterable[str], folder: Path) -> dict[str, str]:
    """The commit of each name on the hub: that of earlier attempts, or that in the hub's cache on this machine.

    code_ids: the records of code of these attempts. A name that is not in the cache yet is left out.
    """
    records = (read(multirun_of(folder), code_id) for code_id in code_ids)
    earlier = {name: commit for record in records if record is not None for name, commit in record.hub.items()}
    commits = {name: earlier.get(name) or hub_commit(name) for name in content.hub_names(config)}
    return {name: commit for name, commit in commits.items() if commit is not None}


_user_packages = cache(installed_parts.packages)


def _data(config: Mapping[str, Any]) -> dict[str, str]:
    """The hashes of the data files that the configuration names, and of those that the application adds."""
    data = dict(config.get("data") or {})
    for path in application(config).data_files(config):
        if str(path) not in data and path.is_file():
            data[str(path)] = content_digest(path)
    return data


# ---------------------------------------------------------------- the user's code


@dataclass(frozen=True)
class Source:
    """A package's folder, or a file. `imported`: by its name, and not by the path of a reward."""

    path: Path
    imported: bool = True

    @property
    def files(self) -> list[Path]:
        """Its Python files, with the modules beside a reward that it imports."""
        if self.path.is_dir():
            return sorted(self.path.rglob("*.py"))
        return [self.path] if self.imported else content.with_imports(self.path)


def sources(configs: Iterable[Mapping[str, Any]]) -> list[Source]:
    """The code that runs with these settled configurations import."""
    sources: dict[Path, Source] = {}
    waiting = set(installed_parts.packages())
    for config in configs:
        named = application(config).imports(config)
        waiting |= {name.partition(".")[0] for name in named if "/" not in name}
        for text in (*(name for name in named if "/" in name), *(config.get(INPUTS) or {})):
            if text.endswith(".py") and Path(text) not in sources:
                sources[Path(text)] = Source(Path(text), imported=False)
    waiting |= _imports(sources.values())
    seen: set[str] = set(packages())
    while waiting := waiting - seen:
        seen |= waiting
        new = {path: Source(path) for name in sorted(waiting) for path in code.places(name) if _is_users(path)}
        sources = {**new, **sources}
        waiting = _imports(new.values())
    return sorted(sources.values(), key=lambda source: source.path)


def _imports(sources: Iterable[Source]) -> set[str]:
    return {name for source in sources for file in source.files for name in content.imported_names(file)}


def _is_users(place: Path) -> bool:
    return place.is_absolute() and not is_library(place) and not place.is_relative_to(ROOT)


# ---------------------------------------------------------------- the provenance of a launch

# New files beyond these sizes are data rather than code: only their names are kept.
LARGEST_FILE = 1 << 20
LARGEST_SUM = 8 << 20
_GIT_S = 30
_NAMED_LIKE_CREDENTIALS, _PRIVATE = "named like credentials", "only its owner may read it"
_LISTED = 5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Provenance:
    """What is the same for all runs of a launch (folder.Provenance).

    `patch` is the name of the patch of the project's uncommitted changes, None without any; `patches` has the bytes of
    each patch that this or the record names, by name.
    """

    record: Mapping[str, Any]
    patch: str | None
    patches: Mapping[str, bytes]

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
    patches: dict[str, bytes] = {}
    tree, patch = _tree(root, _without(root, multirun), patches)
    record = {
        **tree,
        launch_record.USER_CODE: _sources(user_code, patches),
        "command": mask(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        **here({}),
        "packages": installed_packages(),
    }
    return Provenance(record, patch, patches)


def _tree(root: Path, paths: Sequence[str], patches: dict[str, bytes]) -> tuple[dict[str, Any], str | None]:
    """The commit of a repository, and the name of the patch of its changes at these paths (git's pathspecs; none: all),
    which it adds to `patches`. A patch is named by its content and the user."""
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
    if patch is None:
        return record, None
    name = f"{hashlib.sha256(f'{os.getuid()} '.encode() + patch).hexdigest()[:16]}.patch"
    patches[name] = patch
    return record, name


def _sources(sources: Iterable[Source], patches: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """The provenance of the user's packages and files, by path: the content of each, and the commit of its repository
    with the changes of all that are in it."""
    top_of = {source: _top(source.path.resolve().parent) for source in sources}
    trees: dict[Path | None, dict[str, Any]] = {None: dict.fromkeys(("repository", "commit", "dirty", "patch"))}
    for top in filter(None, {*top_of.values()}):
        files = [file for source in top_of for file in ([source.path] if source.path.is_dir() else source.files)]
        inside = {f":(literal){file.relative_to(top)}" for file in map(Path.resolve, files) if file.is_relative_to(top)}
        tree, patch = _tree(top, sorted(inside), patches)
        trees[top] = {"repository": str(top), **tree, "patch": patch}
    return {str(source.path): {"digest": content.digest(source.path), **trees[top]} for source, top in top_of.items()}


def _top(folder: Path) -> Path | None:
    """The git repository that a folder is in."""
    output = _git(folder, ["rev-parse", "--show-toplevel"])
    return None if output is None else Path(os.fsdecode(output.rstrip(b"\n")))


@cache
def installed_packages() -> dict[str, str]:
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
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    lines = (output_of(query, _GIT_S) or b"").decode().splitlines()
    return [line.strip() for line in lines if line.strip()]


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
) -> tuple[bytes | None, bool]:
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
    masked = mask_patch(patch.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return masked, masked == patch


def _git(
    root: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> bytes | None:
    return output_of(["git", "-C", str(root), *arguments], _GIT_S, environment, stdin)
