"""Atomic writes, YAML and JSON lines.

Only the standard library is imported at the top, so that every reader (analysis, commands, a worker) can afford it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

# How the names of unfinished files begin: of those being written, and of those whose writer died.
ASIDE = ".tmp-"
# Files from this size on have their digests remembered, unless they were written so recently that a further change
# might leave the same time.
_LARGE = 1 << 24
_SETTLED_NS = 2_000_000_000
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


class BadRunFolder(ValueError):
    """A file of a run folder that is not of the format that this version reads."""

    def __init__(self, path: Path, why: str, fix: str | None = None) -> None:
        fix = fix or f"restore the file, or move {path.parent} away; the next launch then runs it from the start"
        super().__init__(f"{path}: {why}. Fix: {fix}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an OSError of a call that knows only its handle, such as fsync."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str | bytes, mode: int = 0o666, beside: Path | None = None) -> None:
    """Replace a file, with these permissions. A reader sees all of the old or all of the new content, also after a
    crash. beside: what the unfinished file is beside, by default the file itself."""
    with _written_aside(path, text, mode, beside) as aside:
        os.replace(aside, path)
    fsync_folder(path.parent)


def create_atomic(path: Path, text: str) -> bool:
    """Write a file unless it exists; whether it was written. Of two processes at the same time, one writes it."""
    with _written_aside(path, text) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
    fsync_folder(path.parent)
    return True


@contextmanager
def _written_aside(path: Path, text: str | bytes, mode: int = 0o666, beside: Path | None = None) -> Iterator[Path]:
    aside = (beside or path).with_name(f"{ASIDE}{path.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        opener = partial(os.open, mode=mode)
        with naming(path), open(aside, "wb", opener=opener) as file:
            file.write(text.encode("utf-8") if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends; after an exception nothing of it is left.

    path: it does not exist, or is an empty folder. Parents are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{ASIDE}{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that had this number
    try:
        draft.mkdir()
        yield draft
        draft.rename(path)  # also over an empty folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name of a file that nobody changes; a copy where the file system has no links, or on another one."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy(source, target)
        with open(target, "rb") as file, naming(target):
            os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically; NaN and infinities are written as Python's json does."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=False) + "\n")


def read_from(path: Path, position: int) -> bytes:
    """The bytes of a file from a position on, counted from its end if negative; none of an absent file."""
    try:
        with open(path, "rb") as file:
            file.seek(position if position >= 0 else max(0, file.seek(0, os.SEEK_END) + position))
            return file.read()
    except FileNotFoundError:
        return b""


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 if it is absent. Links are not followed."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            return sum(map(size_of, path.iterdir()))
        return path.lstat().st_size
    return 0


def mark_used(path: Path) -> bool:
    """Set a file's modification time to now, so that `gc` keeps it; whether the file exists."""
    with suppress(PermissionError):  # another user's file
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
    return True


def content_digest(path: Path) -> str:
    """The first 16 hex digits of the sha256 of a file's content. It is read again only if its size, times or inode
    changed; for a large file, this is remembered in the user's cache."""
    status = path.stat()
    return _content_digest(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _content_digest(path: Path, size: int, *stamp: int) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rlsweep", "digests")
    kept = cache / hashlib.sha256(repr((str(path), size, stamp)).encode()).hexdigest()
    if size >= _LARGE:
        with suppress(OSError, UnicodeDecodeError):
            if re.fullmatch("[0-9a-f]{16}", known := kept.read_text()):
                return known
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    if size >= _LARGE and time.time_ns() - max(stamp[:2]) > _SETTLED_NS:
        with suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, digest)
    return digest


def load_yaml(path: Path) -> Any:
    """Read YAML with the safe loader (the C one where PyYAML has it). ValueError: it is not YAML, or not UTF-8."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def dump_yaml(value: Any) -> str:
    """YAML of plain values, keys in their own order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)
    return text


def json_lines(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file, or of its first `length` bytes, in order; none of an absent file."""
    lines = read_from(path, 0)[:length].splitlines(keepends=True)
    return [record for record in parse_lines(lines) if record is not None]


def parse_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    """Each line's object; None for a line that is not a complete JSON object (torn by a crash)."""
    for line in lines:
        if not line.strip():
            continue
        value: Any = None
        if line.endswith(b"\n"):
            with suppress(ValueError):
                value = json.loads(line)
        yield value if isinstance(value, dict) else None
