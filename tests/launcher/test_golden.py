"""A multirun folder that an earlier version made is read, continued and reported as that version did.

tests/golden/multirun.tar.xz: two groups of three seeds over tests/launcher/steps.py; of each group one run is done, one
failed, and one was interrupted. `expected/` has what the earlier version printed and reported.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.__main__ import main
from launcher.run import launch_record
from launcher.run.folder import metrics_path, parse, read_config, read_provenance, to_json
from launcher.run.lifecycle import read_state, write_state
from tests.launcher.conftest import ROOT, Sweeps
from tests.launcher.made import read_log
from tests.launcher.steps import walk
from tests.schemas import MetricLine

ARCHIVE = ROOT / "tests" / "golden" / "multirun.tar.xz"
MADE_AT = "/tmp/golden/multirun"
COMMAND = "method=c0_grpo,bnto_minimal seed=0,1,2 experiment.name=golden experiment.baseline=c0_grpo trainer.steps=12 "
COMMAND += "trainer.checkpoint_every=2 cluster.slots=2 tracking.wandb=none"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        # as tarfile's documentation has it for Python below 3.11.4, which knows no filter
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path)
    return tmp_path / "multirun"


def expected(multirun: Path, name: str) -> str:
    return (multirun.parent / "expected" / name).read_text().replace(MADE_AT, str(multirun))


def test_every_record_is_read_and_a_state_is_written_with_the_same_bytes(golden):
    folders = sorted((golden / "runs").iterdir())
    assert len(folders) == 6
    for folder in folders:
        before = (folder / "state.json").read_bytes()
        state = read_state(folder)
        write_state(folder, state)
        assert (folder / "state.json").read_bytes() == before
        assert read_config(folder)["id"] == folder.name == state.id and read_provenance(folder)["commit"]
        for record in read_log(metrics_path(folder)).records:
            parse(MetricLine, metrics_path(folder), record)
    for record in golden.glob("launches/*.json"):
        assert to_json(launch_record.read(record)) == json.loads(record.read_text())


def test_commands_print_the_same(golden, capsys):
    for name, code in (("status", 1), ("logs", 0)):
        assert main([name, "golden", "--json", "--multirun", str(golden)]) == code
        printed = json.loads(capsys.readouterr().out)
        if name == "status":  # which has told nothing of these then
            later = ("jobs", "device_hours", "unfinished_device_hours")
            assert [printed["golden"].pop(key) for key in later] == [{}, 0.0, 0.0]
        assert json.dumps(printed, indent=1) + "\n" == expected(golden, f"{name}.json")


@pytest.mark.processes
def test_the_report_has_the_same_runs(golden):
    command = [sys.executable, "-m", "analysis", "report", str(golden / "golden")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    written = (golden / "golden" / "report" / "tables" / "runs.csv").read_text().splitlines()
    rows, before = list(csv.DictReader(written)), list(csv.DictReader(expected(golden, "runs.csv").splitlines()))
    assert all(row.pop("label") == row["group"] for row in rows)  # which that version did not write
    for row in (*rows, *before):
        row.pop("remark", None)  # it is a sentence
    assert rows == before


def conf_of(golden: Path) -> Path:
    """The present configuration with the earlier version's section `trainer`, so that it plans that version's runs."""
    conf = Path(shutil.copytree(ROOT / "conf", golden.parent / "conf"))
    path = conf / "trainer" / "common" / "training.yaml"
    content = yaml.safe_load(path.read_text())
    frozen = read_config(next((golden / "runs").iterdir()))["trainer"]
    content["trainer"] = {**frozen, **{key: content["trainer"][key] for key in ("verl_keys", "writes")}}
    path.write_text("# @package _global_\n" + yaml.safe_dump(content))
    return conf


@pytest.mark.processes
def test_interrupted_runs_are_continued_and_the_others_left(golden):
    def content(folder: Path) -> dict[str, Any]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}

    states = {folder.name: read_state(folder).state for folder in (golden / "runs").iterdir()}
    interrupted = sorted(run_id for run_id, state in states.items() if state == "preempted")
    others = {run_id: content(golden / "runs" / run_id) for run_id in states if run_id not in interrupted}
    sweeps = Sweeps(golden)
    _, output = sweeps.run(*COMMAND.split(), DRIVE_CONF=str(conf_of(golden)))
    assert f"RAN {' '.join(interrupted)}\n" in output
    assert {run_id: content(golden / "runs" / run_id) for run_id in others} == others
    for run_id in interrupted:
        state = sweeps.states()[run_id]
        assert (state["state"], state["attempt"], state["from_step"]) == ("done", 2, 6)
        assert sweeps.values()[run_id] == walk(read_config(golden / "runs" / run_id)["seed"], 12)
