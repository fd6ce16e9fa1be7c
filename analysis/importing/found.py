"""A run as another tool left it, with its logs converted to those of a run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analysis.data.sweep import leaves
from launcher.run.folder import histograms_path, metrics_path

# Of docs/metrics.md: what a run says of its own size, and the key of a summary that says the same.
_COUNTED = {"samples/total": "samples", "tokens/total": "tokens"}
# Where others leave a run's configuration: Lightning, many, Hydra, RLlib.
_CONFIGURATIONS = ("hparams.yaml", "config.yaml", ".hydra/config.yaml", "params.json")


class BadImport(ValueError):
    """Runs that cannot be imported as asked; the message names run, key, value, alternatives and fix."""


@dataclass(frozen=True)
class Staged:
    """The logs of a run in a folder. metrics: names; summary: of the run's end; finished: in unix seconds."""

    folder: Path
    last_step: int
    finished: float | None
    metrics: frozenset[str]
    summary: Mapping[str, Any]


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
    attempts: int
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
        attempts: int = 1,
        started: float | None = None,
    ) -> Found:
        """A run that is known by the name of its files alone. labels: what these say of it beside its configuration."""
        about = {**leaves(config), **(labels or {})}
        return cls(kind, name, name, name, config, about, staged, problem, attempts, started)


def stage(folder: Path, rows: Iterable[Mapping[str, Any]], histograms: Iterable[Mapping[str, Any]]) -> Staged:
    """Write metrics.jsonl and histograms.jsonl into a new folder. rows: step, attempt, time and metrics."""
    folder.mkdir()
    names: set[str] = set()
    last, finished = 0, None
    counted: dict[str, int] = {}
    with open(metrics_path(folder), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            names.update(row)
            last, finished = int(row["step"]), row["time"]
            counted |= {word: int(row[key]) for key, word in _COUNTED.items() if key in row}
    lines = [json.dumps(histogram) + "\n" for histogram in histograms]
    if lines:
        histograms_path(folder).write_text("".join(lines), encoding="utf-8")
    return Staged(folder, last, finished, frozenset(names - {"step", "attempt", "time"}), {"steps": last, **counted})


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
