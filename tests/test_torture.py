"""The short form of `make torture`."""

from __future__ import annotations

import pytest

from tests import torture


@pytest.mark.root
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_runs_survive_what_befalls_launchers_and_workers():
    torture.torture(rounds=12, seed=20)
