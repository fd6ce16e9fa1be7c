"""What finished runs say: from run folders to paired statistics, tables, figures and a report.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    __main__    the program `python -m analysis`
    report      the page, the paper, the terminal output and the files of a report
    sections    sections that only some reports have: grids, many cells, model sizes, unpaired seeds, win rates
    judging     which of two responses is better, by a language model, a score or people
    figures     figures, and the values behind them
    tables      tables as text, Markdown, LaTeX and CSV; the words for outcomes
    findings    comparisons and verdicts of an experiment, as values
    importing   experiments made from runs of W&B, TensorBoard and verl
    data        finished runs as arrays
    spec        the section `analysis` of an experiment, checked without any run
    stats       statistics: numbers in, numbers out
    numbers     numbers as text, with no more digits than the data justify
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def frame(folder: str | PathLike[str]) -> pd.DataFrame:
    """The metrics of an experiment as a DataFrame, a row for each run and step: see `analysis.data.frame.frame`."""
    from analysis.data.frame import frame

    return frame(folder)
