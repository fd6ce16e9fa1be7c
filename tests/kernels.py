"""The numbers under other processors' code: `python -m tests.kernels`.

numpy, scipy, torch and the C library choose their code by the processor that they run on, and can be told to choose
that of another one. Each kernel below is what one kind of processor chooses. The tests in which numbers are computed
run under every kernel that this processor can run, and under a stand-in for yet another one (tests/last_bits.py). As a
plugin of pytest, this module makes sure that a setting took effect in the process that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WANTED = "RLSWEEP_TEST_KERNEL"  # what the plugin makes sure of
# Fast, without figures, and each computes numbers. What holds of whole reports is in tests/analysis/test_processors.py.
NUMBERS = ("effects", "functions", "joint", "numbers", "resample", "dispersion", "study", "summarize")
# Where the code or its oracle multiplies or solves matrices: other threads sum in another order.
MATRICES = ("effects", "resample")
# The trainer's pure modules that need little time beside the import of torch. Under the oldest kernel.
TRAINER = ("geometric", "preference", "weights")


@dataclass(frozen=True)
class Kernel:
    """A processor's choice of code.

    needs: flags in /proc/cpuinfo. cores: names that OpenBLAS gives to it. numpy: of numpy's dispatched features those
    that the processor has. libc: what the C library is to leave out. torch: its capability.
    """

    name: str
    needs: frozenset[str]
    cores: frozenset[str]
    numpy: frozenset[str] | None
    libc: str
    torch: str


KERNELS = (
    Kernel("SkylakeX", frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"}), frozenset({"SkylakeX"}), None, "",
           "avx512"),
    Kernel("Haswell", frozenset({"avx2", "fma"}), frozenset({"Haswell"}), frozenset({"X86_V3", "AVX", "F16C", "FMA3",
           "AVX2"}), "-AVX512F,-AVX512VL", "avx2"),
    Kernel("SandyBridge", frozenset({"avx"}), frozenset({"Sandybridge"}), frozenset({"AVX"}), "-AVX2,-FMA,-AVX512F",
           "default"),
    Kernel("Prescott", frozenset({"pni"}), frozenset({"Prescott", "Katmai"}), frozenset(), "-AVX,-AVX2,-FMA,-AVX512F",
           "default"),
)  # fmt: skip


def dispatched() -> frozenset[str]:
    """The features of processors for which numpy has code of its own."""
    from numpy._core import _multiarray_umath

    return frozenset(_multiarray_umath.__cpu_dispatch__)


def settings(kernel: Kernel, threads: int) -> dict[str, str]:
    """The environment in which a new process computes as with this processor."""
    off = frozenset() if kernel.numpy is None else dispatched() - kernel.numpy
    wanted = {"cores": sorted(kernel.cores), "threads": min(threads, os.cpu_count() or 1), "off": sorted(off)}
    chosen = {
        "OPENBLAS_CORETYPE": kernel.name,
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "NPY_DISABLE_CPU_FEATURES": " ".join(sorted(off)),
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={kernel.libc}" if kernel.libc else "",
        "ATEN_CPU_CAPABILITY": kernel.torch,
        "ARROW_USER_SIMD_LEVEL": "" if kernel.numpy is None or "X86_V3" in kernel.numpy else "NONE",
        WANTED: json.dumps(wanted),
    }
    return {name: value for name, value in chosen.items() if value}


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this processor can do; nothing where it is none of Intel's kind, or not Linux."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return frozenset(found[1].split()) if found else frozenset()


def runnable(known: frozenset[str]) -> tuple[list[Kernel], dict[str, str]]:
    """The kernels that a processor with these flags can run, and why it cannot run the others."""
    lacking = {kernel.name: sorted(kernel.needs - known) for kernel in KERNELS}
    return (
        [kernel for kernel in KERNELS if not lacking[kernel.name]],
        {name: f"this processor lacks {', '.join(missing)}" for name, missing in lacking.items() if missing},
    )


def no_effect(wanted: Mapping[str, object]) -> list[str]:
    """What of a setting did not take effect in this process."""
    import scipy.linalg  # noqa: F401  (with an OpenBLAS of its own)
    from numpy._core import _multiarray_umath
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    wrong = [] if len(pools) > 1 else [f"{len(pools)} OpenBLAS found: numpy and scipy have one each"]
    for pool in pools:
        for key, right in (("architecture", wanted["cores"]), ("num_threads", [wanted["threads"]])):
            if pool[key] not in right:  # type: ignore[operator]
                wrong.append(f"{Path(pool['filepath']).name}: {key} is {pool[key]}, not {right}")
    wrong += [f"numpy uses {name}" for name in wanted["off"] if _multiarray_umath.__cpu_features__[name]]  # type: ignore[attr-defined]
    return wrong


def pytest_configure() -> None:
    if wrong := no_effect(json.loads(os.environ[WANTED])):
        pytest.exit(f"the setting did not take effect: {'; '.join(wrong)}", returncode=9)


def files_of(folder: str, names: Sequence[str]) -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for name in names]


def main() -> int:
    kernels, skipped = runnable(flags())
    for name, why in skipped.items():
        print(f"skipped: {name}: {why}")
    if len(kernels) < 2:
        print(f"WARNING: {len(kernels)} of {len(KERNELS)} kernels can run here: the stand-in is all there is")
    runs: list[tuple[str, Mapping[str, str], str, list[str]]] = []
    for kernel in kernels:
        files = files_of("analysis", NUMBERS) + (files_of("trainer_ext", TRAINER) if kernel == kernels[-1] else [])
        runs.append((f"{kernel.name}, 1 thread", settings(kernel, 1), "tests.kernels", files))
        files = files_of("analysis", MATRICES)
        runs.append((f"{kernel.name}, 2 threads", settings(kernel, 2), "tests.kernels", files))
    runs.append(("stand-in for another processor", {}, "tests.last_bits", files_of("analysis", NUMBERS)))
    failed = []
    for name, environment, plugin, files in runs:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin]
        if subprocess.run([*command, *files], cwd=ROOT, env={**os.environ, **environment}).returncode:
            failed.append(name)
    print(f"{len(kernels)} kernels and the stand-in: {'FAILED: ' + '; '.join(failed) if failed else 'passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
