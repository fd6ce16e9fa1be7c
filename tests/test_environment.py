"""setup_environment.py: real set-ups of a small project, killed at random moments; what it refuses."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "setup_environment.py"
# Builds an editable wheel without setuptools: the tests have no network.
BACKEND = """
from zipfile import ZipFile
def wheel(folder, name, version, needs="", files=300):
    info = f"{name}-{version}.dist-info/"
    texts = {f"{name}/m{number}.py": "x = 1" for number in range(files)} | {
        info + "METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{needs}",
        info + "WHEEL": "Wheel-Version: 1.0\\nGenerator: hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    with ZipFile(f"{folder}/{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**texts, info + "RECORD": "".join(f"{path},,\\n" for path in texts)}.items():
            archive.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl"
def build_editable(folder, config_settings=None, metadata_directory=None):
    return wheel(folder, "small", "1.0", "Provides-Extra: dev\\nRequires-Dist: beta; extra == 'dev'\\n", 0)
"""
PROJECT = """build-system = {requires = [], build-backend = "backend", backend-path = ["."]}
[project]
name = "small"
version = "1.0"
requires-python = ">=3.11,<3.13"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder with a space in its name, beside its packages."""
    project = tmp_path / "a small project"
    (project / "wheels").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "backend.py").write_text(BACKEND)
    build = "from backend import wheel as w; w('wheels', 'torch', '2.0'); w('wheels', 'torch', '2.1')\n"
    build += "for version in ('1.0', '1.1'): w('wheels', 'beta', version, 'Requires-Dist: torch\\n')"
    subprocess.run([sys.executable, "-c", build], cwd=project, check=True)
    shutil.copy(SCRIPT, project)
    for name, value in ("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", "wheels"):
        monkeypatch.setenv(f"PIP_{name}", value)
    return project


def start(project: Path, beta: str) -> subprocess.Popen[str]:
    (project / "constraints.txt").write_text(f"torch==2.0\nbeta=={beta}\n")
    command = f"exec '{sys.executable}' '{project / SCRIPT.name}'"
    return subprocess.Popen(command, shell=True, stdout=-1, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def set_up(project: Path, beta: str = "1.0") -> str:
    """Set up, and see that everything is installed once and whole."""
    process = start(project, beta)
    output = process.communicate()[0]
    site = next(project.glob(".venv/lib/python3*/site-packages"))
    infos = {path.stem for name in ("torch", "beta", "small") for path in site.glob(f"{name}-*.dist-info")}
    assert process.returncode == 0 and infos == {"torch-2.0", f"beta-{beta}", "small-1.0"}, output
    assert [len(list((site / name).glob("m*.py"))) for name in ("torch", "beta")] == [300, 300]
    return output


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_kills_throughout_leave_what_the_next_set_up_completes(project: Path) -> None:
    """One at a random moment of each tenth of the time that a set-up takes."""
    since = time.monotonic()
    set_up(project)
    duration = time.monotonic() - since
    for number in range(10):
        (project / ".venv/installed").unlink(missing_ok=True)
        process = start(project, "1.0")
        time.sleep((number + random.Random(number).random()) / 10 * duration)
        (os.kill if number % 2 else os.killpg)(process.pid, signal.SIGKILL)
        process.wait()
    set_up(project)
    assert set_up(project) == ""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_missing_package_two_set_ups_a_changed_pin_and_a_moved_folder(project: Path) -> None:
    processes = start(project, "1.2"), start(project, "1.2")
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [1, 1] and any("waiting for it" in text for text in outputs)
    assert all("beta==1.2" in text and "Then run make setup again" in text for text in outputs)
    set_up(project, "1.1")
    (project / ".venv/kept").touch()
    set_up(project)
    assert (project / ".venv/kept").exists()
    moved = project.rename(project.with_name("moved"))
    set_up(moved)
    assert str(moved) in subprocess.check_output([moved / ".venv/bin/pip", "--version"], text=True)


def test_another_python_is_told_which_are_supported() -> None:
    code = "import sys; sys.version_info = (3, 13); import setup_environment as s; s.check_machine(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, PROJECT], cwd=SCRIPT.parent, capture_output=True, text=True)
    assert done.returncode == 1 and "Python 3.11 to 3.12 (CPython) is needed" in done.stderr
