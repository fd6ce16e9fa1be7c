"""The metrics of an experiment as a pandas DataFrame."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.data.sweep import read_sweep

if TYPE_CHECKING:
    import pandas as pd


def frame(folder: str | PathLike[str]) -> pd.DataFrame:
    """A row for each run and logged step of an experiment, unfinished runs included.

    folder: of the experiment, such as multirun/quickstart. The columns are `run` (its id), `group`, `seed`, `state`, a
    column for each factor, `step`, and a column for each metric, with NaN where a run did not log it. A run of several
    groups has its rows in each. Raises BadPlan (a ValueError) if the folder has no plan that can be read.
    """
    import pandas as pd

    tables = []
    for run in read_sweep(Path(folder)).runs:
        about = {"run": run.id, "group": run.group, "seed": run.seed, "state": str(run.state), **dict(run.cell)}
        tables.append(pd.DataFrame({**about, "step": run.curves.steps, **run.curves.values}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
