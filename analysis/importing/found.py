"""A run as another tool left it, with its logs converted to those of a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
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

    @property
    def problem(self) -> str | None:
        """Why there is no result, whatever the tool says of the run's end."""
        return None if self.rows else "it ended before it had logged a step"


@dataclass(frozen=True)
class Found:
    """A run in another tool's files, with its logs converted to those of a run folder.

    kind: the tool; name: as messages and --map call it; key: what makes it the same run when it is imported again;
    config: its configuration as it was; about: that with dotted keys, and what the tool knows of the run; problem: why
    it did not end well, or None; started: in unix seconds; commit: of its code, "" where it is not known.
    """

    kind: str
    name: str
    key: str
    place: str
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    staged: Staged
    problem: str | None
    started: float | None
    commit: str = ""

    @classmethod
    def in_files(
        cls,
        kind: str,
        name: str,
        config: Mapping[str, Any],
        staged: Staged,
        labels: Mapping[str, str] | None = None,
        problem: str | None = None,
        started: float | None = None,
    ) -> Found:
        """A run that is known by the name of its files alone. labels: what these say of it beside its configuration."""
        about = {**leaves(config), **(labels or {})}
        return cls(kind, name, name, name, config, about, staged, problem or staged.problem, started)


def stage(folder: Path, log: Log) -> Staged:
    """Write the metrics.jsonl and histograms.jsonl of a resolved log into a new folder."""
    folder.mkdir()
    finished = None
    counted: dict[str, int] = {}
    with open(metrics_path(folder), "w", encoding="utf-8") as file:
        for row in log.rows():
            file.write(json.dumps(row) + "\n")
            finished = row["time"]
            counted |= {word: int(row[key]) for key, word in _COUNTED.items() if key in row}
    if log.histograms:
        lines = ({"step": int(log.steps[row]), "attempt": int(log.attempts[row]), **of} for row, of in log.histograms)
        histograms_path(folder).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    attempts = int(log.attempts.max(initial=1))
    last = int(log.steps[log.attempts == attempts].max(initial=0))
    metrics = frozenset(called(name) for name in log.metrics if name not in log.left_out)
    numbers = sum(len(values) for name, (values, _) in log.metrics.items() if name not in log.left_out)
    summary = {"steps": last, **counted}
    unused = {why: count for why, count in log.unused.items() if count}
    return Staged(folder, last, finished, metrics, summary, attempts, len(log), log.used, numbers, unused,
                  log.left_out, log.read_as)  # fmt: skip


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
