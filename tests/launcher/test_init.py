"""Repositories of one's own, as `rlsweep init` makes them: what their README says works, from any folder below them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import project
from tests.trees import commit, git, write

ROOT = Path(__file__).parents[2]


def call(folder: Path, *words: str, code: int = 0) -> str:
    """A command of the launcher, in a folder that is not the repository's."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RLSWEEP_MULTIRUN")}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=own, text=True, capture_output=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def rlsweep(folder: Path, *words: str, code: int = 0) -> str:
    return call(folder, "-m", "launcher", *words, code=code)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    rlsweep(tmp_path, "init", "my-study")
    return tmp_path / "my-study"


@pytest.mark.processes
def test_a_plain_study_has_a_report_after_one_command(tmp_path: Path) -> None:
    rlsweep(tmp_path, "init", "--plain", "my-study")
    folder = tmp_path / "my-study"
    call(folder, "train.py", "-m")
    assert (folder / "multirun" / "first" / "report" / "index.html").is_file()
    assert "6 done" in rlsweep(folder / "conf" / "optim", "status")
    assert "first: 6 runs, 6 finished" not in call(folder, "train.py", "-m")  # nothing runs again


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[project]\nname = x.y\n", r"Invalid value \(at line 2, column 8\)"),
        ('[project.entry-points."rlsweep.analysis"]\nx = "y"\n', "project has no name"),
        ('[project]\nname = "x"\nentry-points = {"rlsweep.analysis" = "x.y"}\n', "string indices"),
        ("project = 3", "'int' object"),
    ],
)
def test_a_declaration_of_the_package_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys, text, why) -> None:
    write(tmp_path, {"rlsweep.toml": "", "pyproject.toml": text})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        project.activate()
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/pyproject.toml: its entry points cannot be read: ")
    assert re.search(f"{why}.*\\. Fix: correct the file\n$", said)


@pytest.mark.processes
def test_a_study_is_planned_with_its_own_code_and_files_wherever_it_is(tmp_path: Path, study: Path) -> None:
    rlsweep(tmp_path, "init", "elsewhere/my-study")

    def ids(folder: Path) -> list[str]:
        return [run["id"] for run in json.loads(rlsweep(folder, "plan", "experiment=first", "--json"))["runs"]]

    assert len(ids(study / "data")) == 6 and ids(study / "data") == ids(tmp_path / "elsewhere" / "my-study")
    (study / "my_study" / "method.py").write_text("def x(:\n")
    assert "SyntaxError" in rlsweep(study, "plan", "experiment=first", code=2)


@pytest.mark.processes
def test_a_file_that_hides_one_of_rlsweeps_is_named_with_it(study: Path) -> None:
    hidden = ROOT / "conf" / "method" / "c0_grpo.yaml"
    own = study / "conf" / "method" / "c0_grpo.yaml"
    assert "hides" not in rlsweep(study, "plan", "experiment=first")
    own.write_text(hidden.read_text().replace("name: c0_grpo", "name: mine"))
    assert f"{own} hides {hidden}\n" in rlsweep(study, "plan", "experiment=first")
    assert f"{own} hides {hidden}" in json.loads(rlsweep(study, "plan", "experiment=first", "--json"))["warnings"]
    # The launch says it first, and refuses this one for another reason.
    assert rlsweep(study, "launch", "experiment=first", "no=1", code=2).startswith(f"{own} hides {hidden}\n")


@pytest.mark.processes
def test_the_root_of_another_program_is_named_and_a_copy_of_rlsweeps_is_used(study: Path) -> None:
    root = study / "conf" / "config.yaml"
    root.write_text("defaults:\n  - _self_\n  - model: tiny\nlr: 0.1\n")
    for words in [("plan",), ("plan", "experiment=first"), ("launch", "experiment=first")]:
        assert "conf/config.yaml: application: this file is of another program" in rlsweep(study, *words, code=2)
    root.write_text((ROOT / "conf" / "config.yaml").read_text().replace("hours: null", "hours: 0.7"))
    assert "budget: 0.7 CPU-hours" in rlsweep(study, "plan", "experiment=first")


@pytest.mark.train
def test_a_study_trains_and_reports_at_once_and_a_run_is_repeated_with_the_code_it_had(study: Path) -> None:
    commit(study)
    method = study / "my_study" / "method.py"
    method.write_text(method.read_text() + "# changed\n")
    said = rlsweep(study, "launch", "experiment=first")
    assert "6 done" in said and (study / "multirun" / "first" / "report" / "index.html").is_file()
    (record,) = {path.read_text() for path in study.glob("multirun/launches/*.json")}
    used = json.loads(record)["record"]["user_code"][str(study / "my_study")]
    head = git(study, "rev-parse", "HEAD")
    assert used["commit"] == head and used["dirty"]
    method.write_text("raise ImportError\n")
    run = next(path for path in (study / "multirun" / "runs").iterdir() if "tanh" in (path / "config.yaml").read_text())
    said = rlsweep(study / "data", "verify", run.name, "--run")
    assert f"{study} at commit {head[:12]} with {run / used['patch']}\n" in said and "40 steps are equal" in said
    call(study, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("1", "its name must be"),
        ("taken", "it exists and is not empty"),
        *((name, "would hide the module of this name that is installed") for name in ("json", "YAML", "launcher")),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert why in rlsweep(tmp_path, "init", name, code=2) and [path.name for path in tmp_path.iterdir()] == ["taken"]
