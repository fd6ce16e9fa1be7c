"""Which drawings the files of a report show, so that a later report renders those alone that have changed.

A drawing is told by everything in it: its artists with all their values and settings, Matplotlib's settings, and the
code that draws. A file counts only while its content is what was written.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Files = dict[str, bytes]  # by suffix
_FORMAT = 1
_PACKAGES = ("matplotlib", "numpy", "pillow", "fonttools")  # which make the files; other code is told by its files


class _Pickler(pickle.Pickler):
    """Pickles the same drawing to the same bytes in every process, and notes the modules of what is in it."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, protocol=5)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        from matplotlib.transforms import TransformNode

        self.modules.add(getattr(value, "__module__", None) or type(value).__module__)
        if not isinstance(value, TransformNode):
            return NotImplemented
        state: Any = value.__getstate__()
        state["_parents"] = None  # by the parents' addresses, which are other ones in each process
        return object.__new__, (type(value),), state


def fingerprint(canvas: Canvas) -> str | None:
    """What tells a drawing that has been laid out from every other; None if it holds something that cannot be
    pickled."""
    import matplotlib

    out = io.BytesIO()
    pickler = _Pickler(out)
    try:
        pickler.dump(canvas)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    digest = hashlib.sha256(out.getbuffer())
    digest.update(repr(sorted(matplotlib.rcParams.items())).encode())
    digest.update(repr([(name, version(name)) for name in _PACKAGES]).encode())
    for name in sorted({*pickler.modules, f"{__package__}.rendering"}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and name.partition(".")[0] not in _PACKAGES:
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()


class Kept:
    """The record of the drawings that the figures in a folder show. A lost or torn record costs nothing but time."""

    def __init__(self, record: Path, folder: Path) -> None:
        self._folder = folder
        self._drawings: dict[str, str] = {}
        self._before: dict[str, Any] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            read = orjson.loads(record.read_bytes())
            self._before = read["drawings"] if read["format"] == _FORMAT else {}

    def told(self, name: str, drawing: str | None) -> Files | None:
        """The files of a figure that shows this drawing, if all of them are there as they were written."""
        if drawing is None:
            return None
        self._drawings[name] = drawing
        before = self._before.get(name)
        if before is None or before["drawing"] != drawing:
            return None
        found = {suffix: _content(self._folder / f"{name}.{suffix}") for suffix in before["files"]}
        return found if {suffix: _digest(content) for suffix, content in found.items()} == before["files"] else None

    def record(self, files: Mapping[str, Files]) -> bytes:
        """The record that tells these files of the figures, by name, to a later report."""
        drawings = {
            name: {"drawing": drawing, "files": {suffix: _digest(content) for suffix, content in files[name].items()}}
            for name, drawing in self._drawings.items()
        }
        return orjson.dumps({"format": _FORMAT, "drawings": drawings})


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
