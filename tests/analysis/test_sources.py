"""Formats of logs: each keeps the promises of the protocol, and another package adds one with one module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.data.sweep import BadPlan, read_sweep
from analysis.sources import ImportRequest, Naming, import_runs, source
from analysis.spec import registry
from tests.analysis.source_conformance import check
from tests.analysis.test_importing import events, trainer_state
from tests.analysis.test_registry import install

#: A format that no module of this project knows: a line for each step, `step=1 reward=0.5`.
MODULE = """
from analysis.sources.log import Log
from analysis.sources.source import LoggedRun, names, source

@source
class PairFiles:
    kind, files, beats = "pairs", (".pairs",), ("CSV",)

    def found(self, place, step):
        root = place.resolve()
        return names(place, [root] if root.is_file() else root.rglob("*.pairs"), ending=True)

    def read(self, places, step, keys):
        for path, name in places.items():
            log = Log(path)
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("\\n"):  # a crash cut it off
                    log.unused["incomplete last line"] += 1
                    continue
                cells = dict(cell.split("=") for cell in line.split())
                log.add(int(cells.pop("step")), cells)
            log.resolve(step)
            yield LoggedRun(self.kind, name, {}, log)
"""
NAMED = Naming(match=r"(?P<group>[a-z]+)-s(?P<seed>\d)")


@pytest.fixture(autouse=True)
def known_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    source.sources()
    monkeypatch.setattr(source, "_sources", dict(source._sources))
    registry.load.cache_clear()


def _tables(folder: Path) -> None:
    (folder / "a-s0.csv").write_text("step,reward\n1,0.5\n2,0.6\n")


def _verl(folder: Path) -> None:
    lines = [{"step": step, "data": {"reward": step / 10}} for step in (1, 2)]
    (folder / "a-s0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _printed(folder: Path) -> None:
    (folder / "a-s0.log").write_text("".join(f"step:{step} - reward:{step / 10}\n" for step in (1, 2)))


SAMPLES: dict[str, Callable[[Path], None]] = {
    "CSV": _tables,
    "JSONL": _verl,
    "verl's console": _printed,
    "TensorBoard": lambda folder: events(folder / "a-s0", {1: 0.5, 2: 0.6}),
    "Trainer": lambda folder: trainer_state(folder / "a-s0" / "checkpoint-20", 20, 1.0),
}  # W&B's own files are in tests/analysis/test_importing.py, which starts W&B


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_format_keeps_the_promises_of_a_source(tmp_path: Path, kind: str) -> None:
    logs, aside = tmp_path / "logs", tmp_path / "aside"
    logs.mkdir()
    aside.mkdir()
    SAMPLES[kind](logs)
    (run,) = check(source.sources()[kind], logs, aside)
    assert run.log.last_step in (2, 20)


def test_another_package_brings_a_format_in_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, logs = tmp_path / "site", tmp_path / "logs"
    for folder in (site, logs, tmp_path / "aside"):
        folder.mkdir()
    install(site, monkeypatch, "pair_files", MODULE, group=source.GROUP)
    for group, height in (("ppo", 1), ("dqn", 2)):
        for seed in (0, 1):
            text = "".join(f"step={step} reward={height * step + seed}\n" for step in (1, 2, 3))
            (logs / f"{group}-s{seed}.pairs").write_text(text)
    (logs / "dqn-s0.csv").write_text("step,reward\n1,9\n")  # the same run, as a format that this one beats
    assert len(check(source.sources()["pairs"], logs, tmp_path / "aside")) == 4
    into = tmp_path / "multirun" / "theirs"
    assert import_runs(ImportRequest((logs,), into, NAMED, metrics=("reward",))).groups == {"dqn": 2, "ppo": 2}
    values = {(run.group, run.seed): run.curves.values["reward"].tolist() for run in read_sweep(into).runs}
    assert values["dqn", 1] == [3, 5, 7] and values["ppo", 0] == [1, 2, 3]


def test_a_format_that_is_registered_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "second_csv", MODULE.replace('"pairs"', '"CSV"', 1), group=source.GROUP)
    with pytest.raises(BadPlan, match=r"source CSV: registered twice, by analysis\.sources\.formats\.csv_files\.Csv"):
        source.sources()
