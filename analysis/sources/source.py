"""What a format of logs is, and a run that was read from one.

    @source
    class PairFiles:
        kind, files, beats = "pairs", (".pairs",), ("CSV",)
        def found(self, place, step): ...
        def read(self, places, step, keys): ...

A module of this package in analysis/sources/formats is found by its place, one of another installed package by an entry
point of the group `rlsweep.sources` (docs/write-a-source.md).
"""

from __future__ import annotations

import codecs
import fnmatch
import gzip
import io
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol, TypeVar

import yaml

from analysis.sources.log import BadImport, Log
from analysis.spec import registry
from analysis.spec.cell import grouped
from analysis.spec.validation import KEY_ALONE, Diagnostics, Objection

GROUP = "rlsweep.sources"
#: Where others leave a run's configuration: Lightning, many, Hydra, RLlib, tinker-cookbook.
CONFIGURATIONS = ("hparams.yaml", "config.yaml", ".hydra/config.yaml", "params.json", "config.json")
_PACKED, _PART = ".gz", 1 << 20
_FEW = 3

#: Files that look like logs and are not read, each with the reason; None: they are not collected.
PASSED: ContextVar[dict[Path, str] | None] = ContextVar("PASSED", default=None)


@dataclass
class LoggedRun:
    """A run in another tool's files.

    kind: the format; name: as messages and --map call it; config: its configuration as it was; log: its rows; labels:
    what the tool knows of the run; problem: why it did not end well, or None; started: in unix seconds; key: what makes
    it the same run when it is imported again; place: for messages; commit: of its code, "" where it is not known.
    texts: what of its configuration is written without a type, as it is written. about: its configuration with dotted
    keys, and its labels. folder: where an import has written its log; group: what the path that was given says of it,
    None where it says nothing.
    """

    kind: str
    name: str
    config: Mapping[str, Any]
    log: Log
    labels: InitVar[Mapping[str, str]] = MappingProxyType({})
    problem: str | None = None
    started: float | None = None
    key: str = ""
    place: str = ""
    commit: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(init=False)
    folder: Path = field(init=False)
    group: str | None = field(init=False, default=None)

    def __post_init__(self, labels: Mapping[str, str]) -> None:
        self.about = {**leaves(self.config), **labels}
        self.key, self.place = self.key or self.name, self.place or self.name
        if not self.log:  # whatever the tool says of its end
            self.problem = self.problem or "it ended before it had logged a step"


class Source(Protocol):
    """A format of logs. Its three properties may be class attributes, as above."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def files(self) -> Collection[str]:
        """The names, or the endings, of files that may be given themselves."""

    @property
    def beats(self) -> Collection[str]:
        """The formats that are not read where this one has a run in the same folder, or in one above that is of one run
        alone."""

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """The runs below a folder, or in a file: their folders or files, with their names. step: the metric, or the
        column, that counts the steps; None: the format's own.

        Raises BadImport for a file that is named itself and is not of this format.
        """

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        """The runs in these places. keys: those that name the group, the seed and the factors of a run.

        Raises BadImport with everything that cannot be read.
        """


_Format = TypeVar("_Format", bound=type[Source])
_sources: dict[str, Source] = {}


def source(format_: _Format) -> _Format:
    """Register a format of logs. Raises BadPlan if another class has its kind."""
    made = format_()
    former = type(_sources[made.kind]) if made.kind in _sources else None
    registry.refuse_another(f"source {made.kind}", former, format_)
    _sources[made.kind] = made
    return format_


def sources() -> Mapping[str, Source]:
    """All formats, by kind. Raises BadPlan, naming the package, where one cannot be imported."""
    registry.import_modules("analysis.sources.formats")
    registry.load(GROUP)
    return _sources


def names(place: Path, paths: Iterable[Path], ending: bool = False) -> dict[Path, str]:
    """By path, the name of each run of a place: its path from the last part of the place, or of a file that was given
    itself from its folder, without the file's ending, if it has one."""
    root = place.resolve()
    base = (root if root.is_dir() else root.parent).parent
    return {path: str((without_ending(path) if ending else path).relative_to(base)) for path in paths}


def without_ending(path: Path) -> Path:
    """The path of a file without .csv, or .csv.gz."""
    return (path.with_suffix("") if path.suffix == _PACKED else path).with_suffix("")


def below(place: Path, *patterns: str) -> Iterator[Path]:
    """The files below a folder whose names have one of these patterns, also in linked folders; each folder once. Of a
    file, itself."""
    root = place.resolve()
    if root.is_file():
        yield root
    waiting, seen = [str(root)], set[tuple[int, int]]()
    for folder in waiting:  # what links lead to comes last, so that a folder below this one has its own path
        for home, folders, files in os.walk(folder):
            which = os.stat(home)
            if (which.st_dev, which.st_ino) in seen:
                folders.clear()
                continue
            seen.add((which.st_dev, which.st_ino))
            waiting += [path for path in (os.path.join(home, name) for name in sorted(folders)) if os.path.islink(path)]
            matched = {name for pattern in patterns for name in fnmatch.filter(files, pattern)}
            yield from (path for path in (Path(home, name) for name in sorted(matched)) if path.is_file())


def opened(path: Path) -> BinaryIO:
    """A file of text in UTF-8: one of UTF-16 is recoded, and .gz is unpacked, as far as it goes if it is cut off."""
    file: BinaryIO = io.BytesIO() if path.suffix == _PACKED else path.open("rb")
    if path.suffix == _PACKED:
        with gzip.open(path) as packed, suppress(EOFError, gzip.BadGzipFile, zlib.error):
            while part := packed.read1(_PART):
                file.write(part)
    file.seek(0)
    mark = file.read(2)
    file.seek(0)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        with file:
            return io.BytesIO(file.read().decode("utf-16", errors="replace").encode())
    return file


def pass_over(path: Path, why: str) -> None:
    """Say of a file that looks like a log that it is not read."""
    if (passed := PASSED.get()) is not None:
        passed[path] = why


def as_one(problems: Diagnostics) -> Diagnostics:
    """The objections, those of one rule to many lines of a file as one."""
    made = Diagnostics()
    for of_rule in grouped(((each.file, each.rule), (each.key, each)) for each in problems).values():
        first, *others = dict(of_rule).values()
        rule = f"{first.rule}; and so for {len(others)} more lines"
        many = replace(first, rule=rule, fix=first.fix.replace("this line", "these lines"))
        made += [many] if len(others) > _FEW else [first, *others]
    return made


class _Plain(yaml.SafeLoader):
    """YAML whose unknown tags say nothing: Lightning writes !!python/tuple before a list."""

    def plain(self, tag: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        return self.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value or tag


_Plain.add_multi_constructor("", _Plain.plain)


def configuration_in(folders: Iterable[Path], keys: Collection[str] = ()) -> dict[str, Any]:
    """The content of the first file in these folders that holds a key of a run's configuration; empty where none does.

    Raises BadImport for a file that is not YAML, or JSON by its name, if keys are asked for; else it is passed over.
    """
    for path in (folder / name for folder in folders for name in CONFIGURATIONS):
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
                content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Plain)
            except (yaml.YAMLError, ValueError) as error:
                why = f"not {'JSON' if path.suffix == '.json' else 'plain YAML'} ({' '.join(str(error).split())})"
                if keys:
                    fix = "mend it, or give a --map file in place of the keys"
                    raise BadImport(Objection(str(path), KEY_ALONE, why, fix)) from error
                pass_over(path, why)
                continue
            if content and isinstance(content, Mapping):
                return dict(content)
    return {}


def leaves(config: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The leaves of a configuration by their dotted keys; a list is a leaf, and so is an empty mapping."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= leaves(value, f"{at}{key}.") if isinstance(value, Mapping) and value else {f"{at}{key}": value}
    return flat
