"""A run as another tool left it, with its logs converted to those of a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from analysis.data.sweep import leaves
from analysis.importing.log import BadImport, Log, called
from launcher.run.folder import histograms_path, metrics_path

# Of docs/metrics.md: what a run says of its own size, and the key of a summary that says the same.
_COUNTED = {"samples/total": "samples", "tokens/total": "tokens"}
# Where others leave a run's configuration: Lightning, many, Hydra, RLlib.
_CONFIGURATIONS = ("hparams.yaml", "config.yaml", ".hydra/config.yaml", "params.json")


@dataclass(frozen=True)
class Staged:
    """The logs of a run in a folder. metrics: names; summary: of the run's end; finished: in unix seconds; rows,
    numbers: read; used: rows that count; unused, left_out, read_as: as of a Log."""

    folder: Path
    last_step: int
    finished: float | None
    metrics: frozenset[str]
    summary: Mapping[str, Any]
    attempts: int
    rows: int
    used: int
    numbers: int
    unused: Mapping[str, int]
    left_out: Mapping[str, str]
    read_as: Mapping[str, str]


@dataclass
class Found:
    """A run in another tool's files.

    kind: the tool; name: as messages and --map call it; config: its configuration as it was; log: its rows, until
    `stage`; problem: why it did not end well, or None; started: in unix seconds; about: its configuration with dotted
    keys, and what the tool knows of the run; key: what makes it the same run when it is imported again; commit: of its
    code, "" where it is not known.
    """

    kind: str
    name: str
    config: Mapping[str, Any]
    log: Log | None
    labels: InitVar[Mapping[str, str]] = MappingProxyType({})
    problem: str | None = None
    started: float | None = None
    key: str = ""
    place: str = ""
    commit: str = ""
    about: Mapping[str, Any] = field(init=False)
    staged: Staged = field(init=False)

    def __post_init__(self, labels: Mapping[str, str]) -> None:
        self.about = {**leaves(self.config), **labels}
        self.key, self.place = self.key or self.name, self.place or self.name
        if not self.log:  # whatever the tool says of its end
            self.problem = self.problem or "it ended before it had logged a step"

    def stage(self, folder: Path) -> None:
        """Write the metrics.jsonl and histograms.jsonl of the log, which is resolved, into a new folder."""
        assert self.log is not None, "a run is staged once"
        log, self.log = self.log, None
        folder.mkdir()
        finished = None
        counted: dict[str, int] = {}
        with open(metrics_path(folder), "w", encoding="utf-8") as file:
            for row in log.rows():
                file.write(json.dumps(row) + "\n")
                finished = row["time"]
                counted |= {word: int(row[key]) for key, word in _COUNTED.items() if key in row}
        if log.histograms:
            with open(histograms_path(folder), "w", encoding="utf-8") as file:
                for at, histogram in log.histograms:
                    place = {"step": int(log.steps[at]), "attempt": int(log.attempts[at])}
                    file.write(json.dumps({**place, **histogram}) + "\n")
        attempts = int(log.attempts.max(initial=1))
        last = int(log.steps[log.attempts == attempts].max(initial=0))
        cells = {called(name): len(values) for name, (values, _) in log.metrics.items() if name not in log.left_out}
        unused = {why: count for why, count in log.unused.items() if count}
        self.staged = Staged(folder, last, finished, frozenset(cells), {"steps": last, **counted}, attempts, len(log),
                             log.used, sum(cells.values()), unused, log.left_out, log.read_as)  # fmt: skip


def names(source: Path, paths: Iterable[Path], ending: bool = False) -> dict[Path, str]:
    """By path, the name of each run of a source: its path from the last part of the source, or of a file that was given
    itself from its folder, without the file's ending, if it has one."""
    root = source.resolve()
    base = (root if root.is_dir() else root.parent).parent
    return {path: str((path.with_suffix("") if ending else path).relative_to(base)) for path in paths}


def configuration_in(folders: Iterable[Path]) -> dict[str, Any]:
    """The content of the first file in these folders that holds a run's configuration; empty where none does.

    Raises BadImport for a file that is not YAML, or JSON by its name.
    """
    for path in (folder / name for folder in folders for name in _CONFIGURATIONS):
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
                content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            except (yaml.YAMLError, ValueError) as error:
                why, kind = " ".join(str(error).split()), "JSON" if path.suffix == ".json" else "plain YAML"
                raise BadImport(f"{path}: not {kind} ({why}); fix: name the runs in a --map file") from error
            return dict(content) if isinstance(content, Mapping) else {}
    return {}
