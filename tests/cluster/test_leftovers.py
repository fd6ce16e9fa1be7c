"""What a killed test process has started is ended, and removed, by the next; what a living one has started stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.run import claim
from tests.cluster import leftovers
from tests.cluster.rays import ROOT

TESTS = """
import os, subprocess, sys
from pathlib import Path
from tests.cluster import leftovers
folder = leftovers.folder(Path(sys.argv[1]), "a-")
environment = {**os.environ, leftovers.MARK: leftovers.mark()}
print(subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True).pid, folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_only_what_nobody_owns_any_more_is_cleared(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    tests = [subprocess.Popen([sys.executable, "-c", TESTS, str(tmp_path)], cwd=ROOT, **pipes) for _ in range(2)]
    killed, living = (one.stdout.readline().split() for one in tests)
    try:
        tests[0].kill()
        tests[0].wait()
        leftovers.clear((tmp_path, "a-*"))
        assert claim.process_start(int(killed[0])) is None and not Path(killed[1]).exists()
        assert claim.process_start(int(living[0])) is not None and Path(living[1]).exists()
    finally:
        os.kill(int(living[0]), 9)
        tests[1].kill()
        tests[1].wait()
