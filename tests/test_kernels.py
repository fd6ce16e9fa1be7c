"""Settings of other processors' code: which can run here, and that one without effect is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from tests import kernels

AVX2 = frozenset({"pni", "avx", "avx2", "fma"})


def test_a_kernel_is_left_out_with_the_reason() -> None:
    able, skipped = kernels.runnable(AVX2)
    assert [kernel.name for kernel in able] == ["Haswell", "SandyBridge", "Prescott"]
    assert skipped == {"SkylakeX": "this processor lacks avx512bw, avx512dq, avx512f, avx512vl"}
    assert kernels.runnable(frozenset())[0] == []


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: a\nflags\t\t: avx fma\n\nflags\t\t: none\n")
    assert kernels.flags(tmp_path / "cpuinfo") == {"avx", "fma"}
    (tmp_path / "cpuinfo").write_text("Features\t: asimd\n")
    assert kernels.flags(tmp_path / "cpuinfo") == kernels.flags(tmp_path / "none") == frozenset()


def test_an_older_processor_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "dispatched", lambda: frozenset({"X86_V3", "X86_V4", "AVX512_ICL"}))
    off = [kernels.settings(kernel, 2).get("NPY_DISABLE_CPU_FEATURES") for kernel in kernels.KERNELS]
    assert off == [None, "AVX512_ICL X86_V4", "AVX512_ICL X86_V3 X86_V4", "AVX512_ICL X86_V3 X86_V4"]


def test_a_setting_without_effect_is_told() -> None:
    pools = [pool for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    if not pools:
        pytest.skip("numpy has another BLAS than OpenBLAS")
    right = {"cores": [pools[0]["architecture"]], "threads": pools[0]["num_threads"], "off": []}
    assert kernels.no_effect(right) == []
    wrong = " ".join(kernels.no_effect({**right, "cores": ["Atom"], "threads": 1 + right["threads"]}))
    assert "architecture is" in wrong and "not ['Atom']" in wrong and "num_threads is" in wrong


def test_every_file_that_is_named_exists() -> None:
    named = [("analysis", name) for name in kernels.NUMBERS + kernels.MATRICES]
    named += [("trainer_ext", name) for name in kernels.TRAINER]
    for folder, name in named:
        (path,) = kernels.files_of(folder, [name])
        assert (kernels.ROOT / path).is_file(), path


def test_the_stand_in_moves_last_bits_and_no_exact_mean() -> None:
    """In a process of its own: the plugin changes numpy for good."""
    code = """
import numpy as np
plain = np.linalg.lstsq, np.mean, np.log
import tests.last_bits
a, b = np.array([[1.0, 1], [1, -1]]), np.array([0.0, 1])
assert np.linalg.lstsq(a, b, rcond=None)[0].tolist() == [np.nextafter(0.5, 1), np.nextafter(-0.5, 1)]
assert np.mean([1.0, 2, 6]) == 3 and np.mean([[1.0, 2], [3, 4]], axis=0).tolist() == [2, 3]
assert np.mean([1e16, 1.0, 1.0]) != np.mean([1.0, 1.0, 1e16])
assert np.log(2.0) == np.nextafter(plain[2](2.0), 1) and np.log(1.0) == 0 and np.exp([1.0, 2]).shape == (2,)
assert type(np.log(2.0)) is np.float64 and np.log(np.float32(2)) == plain[2](np.float32(2))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=kernels.ROOT)
    assert done.returncode == 0 and np.log(2.0) == pytest.approx(0.6931471805599453, abs=0)
