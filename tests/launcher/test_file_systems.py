"""Folders of multirun on other disks, and file systems that lack what runs need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.sources.import_runs import import_runs
from launcher import files
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, State, archive, read_state, write_state
from tests.analysis.test_importing import asked, config, events
from tests.launcher.conftest import Sweeps
from tests.launcher.made import make_plan, make_run

ROOT = Path(__file__).parents[2]
PLACES = (Path("/dev/shm"), Path("/tmp"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than tmp_path."""
    own = tmp_path.stat().st_dev
    others = [place for place in PLACES if os.access(place, os.W_OK) and place.stat().st_dev != own]
    if not others:
        pytest.skip(f"there is no second file system at {' or '.join(map(str, PLACES))}")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        yield Path(folder)


def linked(folder: Path, target: Path) -> Path:
    """Make `folder` a link to a new folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir()
    folder.symlink_to(target)
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("names", [("runs", "adhoc"), ("bases", "code", "launches", "cache", "archive"), (".",)])
def test_folders_of_multirun_may_be_links_to_another_disk(
    names: tuple[str, ...], sweeps: Sweeps, elsewhere: Path
) -> None:
    for name in names:
        linked(sweeps.multirun if name == "." else sweeps.multirun / name, elsewhere / f"of-{name}")
    words = ("method=c0_grpo", "seed=0,1", "trainer.steps=12", "trainer.checkpoint_every=4", "cluster.slots=2")
    code, output = sweeps.run(*words)
    assert code == 0, output
    states = sweeps.states()
    assert {state["state"] for state in states.values()} == {"done"} and len(states) == 2
    folders = [sweeps.multirun / "runs" / run_id for run_id in states]
    assert all((folder / "provenance.json").is_file() for folder in folders)
    status = [sys.executable, "-m", "launcher", "status", "adhoc", "--multirun", str(sweeps.multirun)]
    assert "2 done" in subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_run_is_archived_across_disks(tmp_path: Path, elsewhere: Path) -> None:
    folder = linked(tmp_path / "runs", elsewhere / "runs") / "abc"
    (folder / "checkpoints/step_000001").mkdir(parents=True)
    (folder / "checkpoints/step_000001/w").write_text("weights")
    (folder / "latest").symlink_to("checkpoints")
    write_state(folder, State("abc", RunState.DONE))
    archived = archive(tmp_path, "abc")
    assert archived == tmp_path / "archive/abc.1" and read_state(archived).state == RunState.DONE
    assert (archived / "latest/step_000001/w").read_text() == "weights" and (archived / "latest").is_symlink()
    assert list((elsewhere / "runs").iterdir()) == [] and list((tmp_path / "archive").iterdir()) == [archived]


def test_runs_of_other_tools_are_imported_across_disks(tmp_path: Path, elsewhere: Path) -> None:
    linked(tmp_path / "multirun/runs", elsewhere / "runs")
    for seed in (0, 1):
        events(tmp_path / f"logs/{seed}", {1: 0.5, 2: 0.7}, config("theirs", seed))
    for _ in range(2):  # again: the former runs are replaced
        import_runs(asked(tmp_path / "logs", tmp_path / "multirun/theirs"))
    assert len(list((elsewhere / "runs").iterdir())) == 2


def test_a_file_that_cannot_be_linked_is_copied_with_its_permissions(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "a.patch").write_text("x")
    (tmp_path / "a.patch").chmod(0o600)
    files.link_or_copy(tmp_path / "a.patch", elsewhere / "b.patch")
    assert (elsewhere / "b.patch").read_text() == "x" and (elsewhere / "b.patch").stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- what a file system lacks

LACKING = """
#include <errno.h>
int {name}() {{ errno = {error}; return -1; }}
"""
CASES = {
    "flock": ("flock", "ENOLCK", "No locks available: '{}/adhoc-c0_grpo/.lock'"),
    "hard links": ("link", "EPERM", "Operation not permitted: '{}/runs/"),
    "fsync": ("fsync", "EINVAL", "Invalid argument: '{}/"),
    "rename": ("rename", "EACCES", "Permission denied: '{}/"),
}


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("case", CASES)
def test_what_a_file_system_lacks_is_named_before_anything_is_submitted(case: str, tmp_path: Path) -> None:
    name, error, message = CASES[case]
    (tmp_path / "lacking.c").write_text(LACKING.format(name=name, error=error))
    library = tmp_path / "lacking.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "lacking.c"], check=True)
    multirun = tmp_path / "multirun"
    command = [sys.executable, "launch.py", "-m", "method=c0_grpo", "seed=0", f"multirun={multirun}"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("error: ") and message.format(multirun) in line
    assert "started" not in done.stdout


def test_errors_of_calls_that_know_only_a_handle_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match=f"Invalid argument: '{tmp_path / 'a.txt'}'"):
        files.write_atomic(tmp_path / "a.txt", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_run_that_this_user_may_not_read_is_listed_beside_the_others(tmp_path: Path) -> None:
    for run_id in ("a1", "a2"):
        make_run(tmp_path, run_id, RunState.PLANNED)
    make_plan(tmp_path, "study", {"A": ["a1", "a2"]})
    folder = run_folder(tmp_path, "a1")
    folder.chmod(0o700)
    os.chown(folder, 1234, 1234)
    lost = "-dac_override,-dac_read_search"  # which let root read everything
    command = ["setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}", sys.executable, "-m", "launcher", "status"]
    done = subprocess.run([*command, "study", f"--multirun={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert "2 runs of 10 steps: 1 planned, 1 unreadable" in done.stdout, done
    assert f"{folder}/state.json: Permission denied. Fix: let this user read it" in done.stdout
