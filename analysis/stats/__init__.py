"""Statistics: numbers in, numbers out; no files and no clock.

The public names are imported from here: `from analysis.stats import paired`. A module is imported when one of its names
is first used, so that a plan, which needs only `resolution`, does not load SciPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "compare": ("PairedResult", "EquivalenceResult", "paired", "equivalence", "slopes"),
    "multiplicity": ("FamilyResult", "family", "holm", "benjamini_hochberg", "ranks"),
    "sequential": ("Look", "boundary", "chance", "looks", "spending"),
    "exact": ("signflip", "wilcoxon", "mann_whitney", "relabel"),
    "t_test": ("t_interval", "welch", "mean_interval", "outer_interval", "share_interval"),
    "contrast": ("Contrast",),
    "power": ("seeds_to_find", "detectable", "power_of"),
    "resolution": ("cannot_decide", "seeds_needed"),
    "resample": ("stratified", "probability_of_improvement", "performance_profile", "iqm", "median", "optimality_gap"),
    "curve_summaries": ("auc", "final", "best", "early", "time_to", "survival", "restricted_mean"),
    "mean_curves": ("simultaneous",),
    "trend": ("theil_sen", "kendall", "mann_kendall"),
    "factorial": ("effects", "separable"),
    "ratings": ("Strengths", "bradley_terry"),
    "dispersion": ("against", "variation"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
