"""The digest of the values in a pickle, which does not depend on how its writer has shared them.

Equal values have other bytes where one object stands in two places and where two equal ones do, such as after a
resume. Nothing of what a pickle names is imported or called. A file of torch.save is an archive with a pickle and the
bytes of its tensors.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1))
#: Whose items are in no order; protocol 2, which torch.save takes, has Python 2's name of the module.
_SETS = tuple(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("set", "frozenset"))
_CLOCKS = re.compile(
    r"(time(stamp)?s?|elapsed|duration|seconds?|sec|fps|sps|clock|\b(.*_)?(date|(start|finish|end|creat)ed_at))(?![a-z])"
)


def clocked(name: str) -> bool:
    """Whether a metric depends on a clock, by the ends of its words: time, train_runtime, samples_per_second."""
    return _CLOCKS.search(name.lower()) is not None


def digest(path: Path, whole: bytes, own: bytes = b"") -> str | None:
    """The digest of what a file holds, in an archive without the name `own`; None: no pickle, no file of torch.save."""
    try:
        if whole.startswith(_STARTS):
            return _digest(list(_loads(whole)), {})
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                [pickled] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
                folder = pickled.removesuffix("data.pkl")

                def storage(given: tuple[Any, ...]) -> Any:
                    kind, of, key, *rest = given
                    return kind, of, archive.read(f"{folder}data/{key}"), rest

                return _digest(list(_loads(archive.read(pickled).replace(own, b"-" * len(own)), storage)), {})
    except Exception:  # whatever the bytes of another format make of the parser
        pass
    return None


class _Named:
    """Stands for an object of a class, or for the result of a function, that a pickle names: what that was given."""

    name: str

    def __new__(cls, *given: Any, **named: Any) -> _Named:
        made = super().__new__(cls)
        made.parts = [given, named]
        return made

    parts: list[Any]

    def __init__(self, *given: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append((key, value))

    append = add = __setstate__


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storage: Callable[[tuple[Any, ...]], Any] | None) -> None:
        super().__init__(file)
        self._storage = storage

    def find_class(self, module: str, name: str) -> type[_Named]:
        return type(name, (_Named,), {"name": f"{module}.{name}"})

    def persistent_load(self, given: Any) -> Any:
        if self._storage is None:
            raise pickle.UnpicklingError("refers to something outside of the pickle")
        return self._storage(given)


def _loads(whole: bytes, storage: Callable[[tuple[Any, ...]], Any] | None = None) -> Iterator[Any]:
    """The values of the pickles in a file, one after the other."""
    file = io.BytesIO(whole)
    while file.tell() < len(whole):
        yield _Reader(file, storage).load()


def _is_time(key: object, value: object) -> bool:
    """Whether an item of a dict depends on a clock: numbers or texts, and no weights of a time embedding."""
    values = value if isinstance(value, list | tuple) else [value]
    return isinstance(key, str) and clocked(key) and all(isinstance(one, int | float | str) for one in values)


def _digest(value: Any, known: dict[int, tuple[Any, str]]) -> str:
    """The digest of a value: by what it holds, and not where; known: those of containers, by identity."""
    if id(value) in known:
        return known[id(value)][1]
    parts: list[str] = []
    if isinstance(value, _Named):
        parts = [value.name, *(_digest(part, known) for part in value.parts)]
        if value.name in _SETS:
            parts = [value.name, *sorted(_digest(item, known) for item in value.parts[0][0])]
    elif isinstance(value, type):
        return f"class {value.name}"  # type: ignore[attr-defined]
    elif isinstance(value, dict):
        items = ((key, one) for key, one in value.items() if not _is_time(key, one))
        parts = ["dict", *sorted(f"{_digest(key, known)} {_digest(one, known)}" for key, one in items)]
    elif isinstance(value, set | frozenset):
        parts = ["set", *sorted(_digest(item, known) for item in value)]
    elif isinstance(value, list | tuple):
        parts = [type(value).__name__, *(_digest(item, known) for item in value)]
    elif isinstance(value, bytes | bytearray):
        return f"bytes {hashlib.sha256(value).hexdigest()}"
    else:
        return repr(value)
    known[id(value)] = value, hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return known[id(value)][1]
