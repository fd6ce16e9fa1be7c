"""setup_environment.py: what it takes for installed, what it removes, what it says; and that a kill never breaks it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "setup_environment.py"
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1.0"
requires-python = ">=3.11,<3.13"
"""
PINS = {"torch": "2.0", "alpha": "1.0", "beta": "1.5", "gamma": "3.1"}


def row(name: str, content: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a small project"
    folder.mkdir()
    return folder


@pytest.fixture
def script(folder: Path) -> ModuleType:
    """The script, in a project of its own."""
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "constraints.txt").write_text("".join(f"{name}=={version}\n" for name, version in PINS.items()))
    shutil.copy(SCRIPT, folder)
    spec = importlib.util.spec_from_file_location("setup_of_a_copy", folder / SCRIPT.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(script: ModuleType) -> Path:
    site = script.VENV / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    return site


def put(site: Path, name: str, version: str = "1.0", files: dict[str, bytes] | None = None) -> Path:
    """Install a distribution as pip leaves it."""
    info = site / f"{name}-{version}.dist-info"
    contents = {f"{name}/__init__.py": b"x = 1\n", **(files or {}), f"{info.name}/INSTALLER": b"pip\n"}
    for path, content in contents.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    rows = "".join(row(path, content) for path, content in contents.items())
    (info / "RECORD").write_text(f"{rows}{name}/__pycache__/__init__.cpython-311.pyc,,\n{info.name}/RECORD,,\n")
    return info


def test_a_complete_distribution_stays(script: ModuleType, site: Path) -> None:
    info = put(site, "alpha", files={"../../../bin/alpha": b"#!"})
    assert [one.problem for one in script.distributions(site, hashes=True)] == [None]
    assert script.remove_unfinished(site, hashes=True) == []
    assert (info / "RECORD").exists() and (script.VENV / "bin/alpha").exists()


def without_record(site: Path, info: Path) -> None:
    (info / "RECORD").unlink()


def with_the_wheels_record(site: Path, info: Path) -> None:
    """pip writes its own RECORD last; until then the one of the wheel is there, and scripts may be missing."""
    rows = (info / "RECORD").read_text().splitlines(keepends=True)
    (info / "RECORD").write_text("".join(line for line in rows if "INSTALLER" not in line))


def with_half_a_record(site: Path, info: Path) -> None:
    (info / "RECORD").write_bytes(b"")


def with_a_file_less(site: Path, info: Path) -> None:
    (site / "alpha/__init__.py").unlink()


def with_half_a_file(site: Path, info: Path) -> None:
    (site / "alpha/__init__.py").write_bytes(b"x =")


@pytest.mark.parametrize(
    "damage", [without_record, with_the_wheels_record, with_half_a_record, with_a_file_less, with_half_a_file]
)
def test_what_is_incomplete_is_removed_so_that_pip_installs_it_again(
    script: ModuleType, site: Path, damage: Callable[[Path, Path], None]
) -> None:
    info, other = put(site, "alpha"), put(site, "beta")
    damage(site, info)
    found = {one.name: one.problem for one in script.distributions(site)}
    assert found["alpha"] is not None and found["beta"] is None
    (text,) = script.remove_unfinished(site)
    assert text.startswith("alpha 1.0: ")
    assert not info.exists() and (other / "RECORD").exists() and (site / "beta/__init__.py").exists()
    assert script.remove_unfinished(site) == []


def test_a_file_that_lost_its_content_in_a_power_cut_is_found_by_its_hash(script: ModuleType, site: Path) -> None:
    put(site, "alpha")
    (site / "alpha/__init__.py").write_bytes(b"\0\0\0\0\0\n")
    assert script.remove_unfinished(site) == []
    assert script.remove_unfinished(site, hashes=True) == [
        "alpha 1.0: __init__.py does not have its recorded content",
    ]


def test_a_file_that_two_distributions_ship_is_nobodys_damage_and_stays(script: ModuleType, site: Path) -> None:
    info = put(site, "alpha", files={"shared/__init__.py": b"longer than beta's\n"})
    put(site, "beta", files={"shared/__init__.py": b"\n"})
    assert script.remove_unfinished(site, hashes=True) == []
    (site / "alpha/__init__.py").unlink()
    assert len(script.remove_unfinished(site)) == 1
    assert not info.exists() and (site / "shared/__init__.py").exists()


def test_what_pip_set_aside_goes_with_the_files_that_it_did_not_come_to(script: ModuleType, site: Path) -> None:
    """pip replaces alpha 1.0: it has set aside the .dist-info folder and one module when it is killed."""
    info = put(site, "alpha", files={"alpha/gone_in_2.py": b""})
    info.rename(site / "~lpha-1.0.dist-info")
    (site / "~lpha").mkdir()
    (site / "~lpha/__init__.py").write_bytes(b"")
    other = put(site, "beta")
    script.remove_unfinished(site)
    assert sorted(path.name for path in site.iterdir()) == ["alpha", "beta", other.name]
    assert list((site / "alpha").iterdir()) == []


def test_nothing_outside_the_environment_is_removed(script: ModuleType, site: Path, folder: Path) -> None:
    outside = folder / "mine.py"
    outside.write_text("x = 1\n")
    put(site, "alpha", files={"../../../../mine.py": outside.read_bytes()})
    (site / "alpha/__init__.py").unlink()
    assert len(script.remove_unfinished(site)) == 1
    assert outside.exists()


def test_versions_are_compared_with_the_pins(script: ModuleType, site: Path) -> None:
    put(site, "torch", "2.0+cpu")
    put(site, "Beta", "1.4")
    put(site, "unpinned", "9")
    assert script.wrong_versions(script.distributions(site)) == ["beta 1.4 instead of 1.5"]


def test_what_is_installed_is_known_by_content_and_not_by_time(script: ModuleType, folder: Path) -> None:
    assert not script.up_to_date()
    script.PYTHON.parent.mkdir(parents=True)
    script.PYTHON.symlink_to(sys.executable)
    (script.VENV / "pyvenv.cfg").write_text("version = 3\n")
    script.INSTALLED.write_text(script.fingerprint())
    os.utime(script.INSTALLED, (1, 1))
    (folder / "pyproject.toml").write_text(PROJECT + "\n[tool.ruff]\nline-length = 1\n")
    assert script.up_to_date()
    assert script.INSTALLED.stat().st_mtime >= (folder / "pyproject.toml").stat().st_mtime - 1
    (folder / "constraints.txt").write_text("torch==2.1\n")
    assert not script.up_to_date()


def test_an_old_python_can_read_the_script() -> None:
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize(
    "version, implementation", [((3, 6, 15), "cpython"), ((3, 14, 0), "cpython"), ((3, 12, 0), "pypy")]
)
def test_a_python_that_is_not_supported_is_told_which_are(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: tuple[int, ...],
    implementation: str,
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys.implementation, "name", implementation)
    with pytest.raises(SystemExit):
        script.check_python()
    said = capsys.readouterr().err
    assert "Python 3.11 to 3.12 is needed" in said and "make setup PYTHON=python3.1" in said
    assert f"is {implementation} {'.'.join(map(str, version))}" in said


def interpreters(supported: bool) -> list[str]:
    """The Pythons of this machine, on PATH or made by pyenv."""
    places = [str(path) for path in Path.home().glob(".pyenv/versions/*/bin")] + os.get_exec_path()
    found = []
    for minor in range(6, 20):
        for place in places:
            python = os.path.join(place, f"python3.{minor}")
            if ("shims" in place) or (minor in (11, 12)) != supported or not os.access(python, os.X_OK):
                continue
            found.append(python)
            break
    return found


def test_the_machines_other_pythons_get_that_message() -> None:
    others = interpreters(supported=False)
    if not others:
        pytest.skip("this machine has no unsupported Python 3.6 or newer")
    for python in (others[0], others[-1]):
        done = subprocess.run([python, str(SCRIPT)], capture_output=True, text=True)
        assert done.returncode == 1 and "Python 3.11 to 3.12 is needed" in done.stderr


def test_the_code_compiles_for_every_supported_python() -> None:
    """For the oldest by its grammar, and for each that this machine has by its compiler."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    files = [ROOT / name for name in names] or [
        path for path in ROOT.rglob("*.py") if not {".venv", "build", "multirun"} & set(path.relative_to(ROOT).parts)
    ]
    files = [path for path in files if path.exists()]
    assert len(files) > 100
    if sys.version_info >= (3, 12):
        for path in files:
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 11))
    program = "import sys; [compile(open(p, encoding='utf-8').read(), p, 'exec') for p in sys.argv[1:]]"
    others = [python for python in interpreters(supported=True) if not python.endswith(f".{sys.version_info[1]}")]
    for python in (sys.executable, *others):
        subprocess.run([python, "-W", "error::SyntaxWarning", "-c", program, *map(str, files)], check=True)


@pytest.mark.parametrize(
    "line, problem",
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying, connection broken by 'NewConnectionError(...): Temporary failure in name resolution'"
            "\nERROR: No matching distribution found for torch==2.13.0",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "no fitting build"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate", "not trusted"),
        ("ERROR: [Errno 13] Permission denied: '/x'", "could not be written"),
        ("ERROR: something else", "pip failed"),
    ],
)
def test_pips_errors_are_said_in_a_line(script: ModuleType, line: str, problem: str) -> None:
    assert problem in script.cause(line.splitlines())[0]


def test_a_machine_without_packages_is_refused(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.platform, "system", lambda: "Linux")
    monkeypatch.setattr(script.platform, "machine", lambda: "riscv64")
    with pytest.raises(script.Failed, match="no packages for Linux on riscv64"):
        script.check_platform()
    monkeypatch.setattr(script.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(script.platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(script.Failed, match=r"glibc 2\.28"):
        script.check_platform()
    monkeypatch.setattr(script.platform, "libc_ver", lambda: ("glibc", "2.28"))
    assert script.check_platform() == "Linux aarch64"
    monkeypatch.setattr(script.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(script.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(script.platform, "mac_ver", lambda: ("13.6", ("", "", ""), ""))
    with pytest.raises(script.Failed, match="macOS 14"):
        script.check_platform()


def test_too_small_a_disk_is_refused_at_once(script: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(site)._replace(free=10**9)
    monkeypatch.setattr(script.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(script.Failed, match=r"needs about \d\.\d GB more, and 1\.0 GB are free"):
        script.check_disk()


def test_a_folder_that_cannot_be_written_is_refused(script: ModuleType) -> None:
    script.VENV.write_text("not a folder")
    with pytest.raises(script.Failed, match="cannot be written"):
        script.check_folder()


def test_a_python_without_ensurepip_says_what_to_install(
    script: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    with open(os.devnull, "rb") as nothing, pytest.raises(script.Failed, match="has no ensurepip") as caught:
        script.Setup(nothing).make_venv()
    assert f"apt-get install python3.{sys.version_info[1]}-venv" in caught.value.fix


# ---- real set-ups, of a small project whose packages lie beside it


def wheel(folder: Path, name: str, version: str, needs: str = "", files: int = 1) -> None:
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/__init__.py": b"x = 1\n", **{f"{name}/m{at}.py": b"y = 2\n" * 40 for at in range(files)}}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:x\n".encode()
    record = "".join(row(path, content) for path, content in contents.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in {**contents, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(path, content)


BACKEND = '''\
"""Builds an editable wheel without setuptools: the tests have no network."""
from pathlib import Path
from zipfile import ZipFile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "small-1.0-py3-none-any.whl"
    with ZipFile(Path(folder, name), "w") as archive:
        archive.writestr("small.pth", str(Path.cwd()) + "\\n")
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n"
                         "Provides-Extra: dev\\nRequires-Dist: torch\\nRequires-Dist: gamma; extra == 'dev'\\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: hand\\n"
                         "Root-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr("small-1.0.dist-info/RECORD", "small.pth,,\\nsmall-1.0.dist-info/METADATA,,\\n"
                         "small-1.0.dist-info/WHEEL,,\\nsmall-1.0.dist-info/RECORD,,\\n")
    return name
'''


class Small:
    """A project in a folder with a space in its name, and its packages."""

    def __init__(self, script: ModuleType, folder: Path) -> None:
        self.script = script
        (folder / "backend.py").write_text(BACKEND)
        wheels = folder / "some wheels"
        wheels.mkdir()
        wheel(wheels, "torch", "2.0")
        wheel(wheels, "torch", "2.1")
        wheel(wheels, "alpha", "1.0", files=300)
        wheel(wheels, "beta", "1.5", "Requires-Dist: alpha\n", files=300)
        wheel(wheels, "gamma", "3.1", "Requires-Dist: beta\n")
        wheel(wheels, "gamma", "3.2", "Requires-Dist: beta\n")
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "COV_"))},
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": wheels.as_uri(),
            "HOME": str(folder / "no home"),
        }

    def start(self, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.folder / SCRIPT.name)],
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def set_up(self, **more: str) -> str:
        process = self.start(**more)
        said = process.communicate()[0]
        assert process.returncode == 0, said
        return said

    def wait(self) -> None:
        """Wait for what a killed set-up had started: it holds the lock as long as it is at work."""
        with open(self.script.LOCK, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)

    def check(self) -> None:
        """All is installed, and whole."""
        site = next((self.folder / ".venv/lib").glob("python3*/site-packages"))
        found = self.script.distributions(site, hashes=True)
        assert {one.name: one.version for one in found if one.name not in ("pip", "setuptools")} == {
            **PINS,
            "small": "1.0",
        }
        assert [one.problem for one in found] == [None] * len(found)
        for name in ("torch", "alpha", "beta", "gamma", "pip", "activate"):
            assert (self.folder / ".venv/bin" / name).exists()
        assert not list(site.glob("~*")) and self.script.up_to_date()
        for name in ("alpha", "beta"):
            assert len(list((site / name).glob("__pycache__/*.pyc"))) == len(list((site / name).glob("*.py")))
        left = {path.name for path in self.folder.joinpath(".venv").glob("setup.*")}
        assert left == {"setup.log", "setup.lock"}


@pytest.fixture
def small(script: ModuleType, folder: Path) -> Small:
    return Small(script, folder)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_set_up_says_its_steps_and_a_second_one_nothing(small: Small) -> None:
    said = small.set_up()
    small.check()
    for number in range(1, 6):
        assert f"[{number}/5] " in said
    assert "Done in " in said
    assert small.set_up() == ""
    # A damage that comes later is mended, and new pins are heeded, in the environment that is there.
    site = next((small.folder / ".venv/lib").glob("python3*/site-packages"))
    (site / "beta/m7.py").unlink()
    (site / "alpha-1.0.dist-info/RECORD").unlink()
    small.script.INSTALLED.unlink()
    said = small.set_up()
    assert (
        "installed again: beta 1.5: m7.py" in said and "installed again: alpha 1.0" in said and "there already" in said
    )
    small.check()
    pins = (small.folder / "constraints.txt").read_text()
    (small.folder / "constraints.txt").write_text(pins.replace("gamma==3.1", "gamma==3.2"))
    small.set_up()
    assert {one.name: one.version for one in small.script.distributions(site)}["gamma"] == "3.2"
    # A folder that was moved: its scripts name the old place.
    moved = small.folder.with_name("moved")
    small.folder.rename(moved)
    small.folder = moved
    assert "it is made anew" in small.set_up(PIP_FIND_LINKS=(moved / "some wheels").as_uri())
    done = subprocess.run([moved / ".venv/bin/pip", "--version"], capture_output=True, text=True)
    assert str(moved) in done.stdout


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_kill_at_any_moment_leaves_what_the_next_set_up_completes(small: Small) -> None:
    """Random moments, the whole process group or the script alone (pip then lives on for a while)."""
    choice = random.Random(5)
    since = time.monotonic()
    small.set_up()
    duration = time.monotonic() - since
    for kill in range(6):
        small.wait()  # what a killed script had started may still write into the folders that go now
        if kill in (0, 3):
            shutil.rmtree(small.folder / ".venv")
        elif small.script.up_to_date():
            for name in ("alpha", "gamma", "torch"):
                for path in small.folder.glob(f".venv/lib/python3*/site-packages/{name}*"):
                    shutil.rmtree(path)
            small.script.INSTALLED.unlink()
        process = small.start()
        assert process.stdout is not None
        time.sleep(choice.uniform(0, duration))
        if kill % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        process.stdout.close()
    small.set_up()
    small.check()


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_second_set_up_waits_for_the_first(small: Small) -> None:
    small.script.check_folder()
    with open(small.script.LOCK, "r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        second = small.start()
        assert second.stdout is not None
        lines = [second.stdout.readline() for _ in range(2)]
        assert lines[1].startswith("Another set-up of this folder is at work")
        assert not (small.folder / ".venv/bin").exists()
    said = second.communicate()[0]
    assert "Done in " in said, said
    small.check()


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_without_ensurepip_virtualenv_makes_the_environment(small: Small) -> None:
    hiding = small.folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'ensurepip' else find(name, package)\n"
    )
    small.set_up(PYTHONPATH=str(hiding))
    assert "virtualenv" in (small.folder / ".venv/pyvenv.cfg").read_text()
    small.check()


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_package_that_cannot_be_had_is_named_and_the_next_set_up_goes_on(small: Small) -> None:
    wheels = small.folder / "some wheels"
    (wheels / "beta-1.5-py3-none-any.whl").rename(small.folder / "away")
    process = small.start()
    said = process.communicate()[0]
    assert process.returncode == 1
    assert "make setup: The package index has no fitting build" in said
    assert "beta==1.5" in said and "setup.log" in said
    (small.folder / "away").rename(wheels / "beta-1.5-py3-none-any.whl")
    small.set_up()
    small.check()
