"""What finished runs say: from run folders to paired statistics, tables, figures and a report.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    __main__    the program `python -m analysis`
    report      the page, the paper, the terminal output and the files of a report
    sections    sections that only some reports have: grids, many cells, model sizes, win rates
    figures     figures, and the values behind them
    tables      tables as text, Markdown, LaTeX and CSV; the words for outcomes
    findings    comparisons and verdicts of an experiment, as values
    judging     which of two responses is better, by a language model or a score
    data        finished runs as arrays
    sources     formats of logs that other tools write, and experiments made of them
    compat      the names of other libraries on these statistics
    spec        the section `analysis` of an experiment, checked without any run
    stats       statistics: numbers in, numbers out; numbers as text, with no more digits than the data justify

`analysis.frame(FOLDER)` is the metrics of an experiment as a DataFrame (`analysis.data.sweep.frame`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["frame"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.data.sweep"), name)
