"""Matplotlib's settings for the figures, while they are drawn and while they are rendered."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

INK, GRID = "#1a1a1b", "#d8d8d9"  # replaced by the page's own colours in a page
_SETTINGS: dict[str, object] = {
    "svg.hashsalt": "rlsweep", "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "axes.unicode_minus": False, "path.simplify_threshold": 0.2,
    "text.parse_math": False,  # a method's label is the reader's own: $ is a dollar in it
}  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib without a display, with the settings of the figures."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # docs/report.md says so
        yield
