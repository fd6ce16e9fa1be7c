"""Seeds that were added after a look are named; runs that waited, failed or belonged to others before are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.added_seeds import added
from analysis.findings.verdicts import judge
from analysis.tables.comparison import tables
from launcher.run.folder import runs_folder, write_state
from launcher.run.records import State
from tests.analysis.conftest import ANALYSIS, MakeSweep
from tests.analysis.test_headline import studied

GROUPS = ("C0", "C1")
H1 = {"claim": "C1 is above C0.", "kind": "greater", "group": "C1", "metric": "analysis/reward_sum_mean"}


def times(folder: Path, at: Mapping[str, tuple[float | None, float | None]]) -> Path:
    """Runs by the beginning of their id: when they were planned, and when they ended (None: not yet)."""
    for place in runs_folder(folder.parent).iterdir():
        for name, (created, finished) in at.items():
            if place.name.startswith(name):
                state = State(place.name, "done" if finished else "running", 1, created, created, finished)
                write_state(place, state)
    return folder


@pytest.mark.parametrize(
    ("at", "late", "known"),
    [
        pytest.param({"C": (10, 90)}, [], [], id="all at once"),
        pytest.param({"C0-0": (10, 20), "C1-0": (10, 25), "C0-1": (10, 90), "C1-1": (10, 95)}, [], [], id="waited"),
        pytest.param({"C0-0": (10, 20), "C1-0": (10, 25), "C0-1": (30, 90), "C1-1": (30, 95)}, [1], [0], id="added"),
        pytest.param({"C0-0": (10, 20), "C1-0": (10, 25), "C0-1": (30, None), "C1-1": (30, None)}, [1], [0], id="run"),
        pytest.param({"C0-0": (10, 20), "C1-0": (30, 90), "C0-1": (30, 90), "C1-1": (30, 95)}, [], [], id="one group"),
        pytest.param({"C0-0": (10, 20), "C1-0": (10, 25), "C0-1": (10, 20), "C1-1": (30, 95)}, [1], [0], id="shared"),
        pytest.param({"C": (None, 90)}, [], [], id="nobody said"),
    ],
)
def test_a_seed_is_added_where_others_could_be_compared_before_it_was_planned(
    make_sweep: MakeSweep, at: Mapping[str, tuple[float | None, float | None]], late: list[int], known: list[int]
) -> None:
    assert added(read_sweep(times(make_sweep(GROUPS, seeds=(0, 1), steps=8), at))) == (late, known)


def test_it_is_marked_below_the_tables_that_rest_on_the_seeds(make_sweep: MakeSweep) -> None:
    folder = make_sweep(GROUPS, seeds=(0, 1, 2, 3), steps=8, analysis={**ANALYSIS, "hypotheses": {"H1": H1}})
    times(
        folder,
        {f"{group}-{seed}": (10 + 90 * (seed > 1), 90 + 90 * (seed > 1)) for group in GROUPS for seed in range(4)},
    )
    runs = studied(folder)
    found = {table.name: table for table in tables(runs, [judge(runs.settings.hypotheses[0], runs)])}
    for name in ("main", "hypotheses"):
        assert any(note.startswith("Seeds 2, 3 were added when seeds 0, 1 had results.") for note in found[name].notes)
    assert found["hypotheses"].rows[0][-1] == "not recorded; seeds were added later"
