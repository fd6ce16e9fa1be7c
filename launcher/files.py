"""Files that are replaced whole, YAML and JSON lines.

Standard library only at import, so that every reader (analysis, the command line, a worker) may afford it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What is being written, or was when its writer died.
ASIDE = ".tmp-"


class BadRunFolder(ValueError):
    """A file of a run folder that does not have the format this version reads."""

    def __init__(self, path: Path, why: str, fix: str | None = None) -> None:
        fix = fix or f"restore the file, or move {path.parent} away to run it anew"
        super().__init__(f"{path}: {why}. Fix: {fix}")


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash at any moment, sees either the old or the new content whole."""
    with _written_aside(path, text) as aside:
        os.replace(aside, path)
    fsync_folder(path.parent)


def create_atomic(path: Path, text: str) -> bool:
    """Write a file whole, unless there is one already (of two at once, one writes it); whether it was written."""
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
def _written_aside(path: Path, text: str) -> Iterator[Path]:
    aside = path.with_name(f"{ASIDE}{path.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically; NaN and infinities are written as Python's json does."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=False) + "\n")


def mark_used(path: Path) -> bool:
    """Whether a shared file is there, with its time set to now: `gc` spares what somebody asked for lately."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's; it is there
        return True
    return True


def load_yaml(path: Path) -> Any:
    """Read YAML with the safe loader (the C one where PyYAML has it)."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader=loader)


def dump_yaml(value: Any) -> str:
    """YAML of plain values, keys in their own order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)
    return text


def parse_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    """Each line's object; None for a line that is not a complete JSON object (torn by a crash)."""
    for line in lines:
        if not line.strip():
            continue
        value: Any = None
        if line.endswith(b"\n"):
            try:
                value = json.loads(line)
            except ValueError:
                value = None
        yield value if isinstance(value, dict) else None
