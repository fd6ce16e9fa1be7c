"""What every format of logs must keep. A package that brings one calls `check` with logs of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from analysis.sources.log import BadImport
from analysis.sources.source import LoggedRun, Source
from launcher.run.folder import metrics_path


def check(source: Source, logs: Path, aside: Path, step: str | None = None) -> list[LoggedRun]:
    """Read a folder of logs, of which at least one run has a row; the runs. aside: an empty folder for copies.

    Raises AssertionError with the promise of `analysis.sources.source.Source` that is broken.
    """
    assert source.kind and all(source.files), "a format has a name, and no empty ending"
    assert source.kind not in source.beats, "a format does not beat itself"
    places = source.found(logs, step)
    assert places, "the runs below a folder are found"
    assert places == source.found(logs, step), "the same folder has the same runs"
    assert all(path.exists() and path.is_relative_to(logs.resolve()) for path in places), "places are below the folder"
    assert len(set(places.values())) == len(places) or source.kind == "CSV", "each place has a name of its own"
    (aside / "empty").mkdir()
    assert source.found(aside / "empty", step) == {}, "an empty folder has no run"
    assert list(source.read({}, step, ())) == [], "no place has no run"
    runs = list(source.read(places, step, ()))
    again = list(source.read(places, step, ()))
    assert [(run.name, run.key) for run in runs] == [(run.name, run.key) for run in again], "keys are the same again"
    assert {run.kind for run in runs} == {source.kind}, "a run names its format"
    assert len({run.name for run in runs}) == len(runs), "names of runs are unique"
    assert any(run.log for run in runs), "a log has rows"
    for number, run in enumerate(runs):
        run.log.write(aside / f"run-{number}")  # which a log that is not resolved refuses
        lines = [json.loads(line) for line in metrics_path(aside / f"run-{number}").read_text().splitlines()]
        assert run.problem or lines, "a run without a row has a problem"
        assert all({"step", "attempt", "time"} <= line.keys() for line in lines)
        assert run.log.read >= run.log.used >= 0, "rows that count are rows that were read"
    shutil.copytree(logs, aside / "torn")
    for path in filter(Path.is_file, (aside / "torn").rglob("*")):
        path.write_bytes(path.read_bytes()[:-3])
    try:
        assert len(list(source.read(source.found(aside / "torn", step), step, ()))) <= len(runs)
    except BadImport as error:
        assert str(aside / "torn") in str(error), "a refusal names the file"
    return runs
