"""Statistics: numbers in, numbers out. No file, no clock, no sentence.

What others call is offered here by name: `from analysis.stats import paired`. A name's module is imported when the name
is first asked for, so that a plan, which needs `resolution` alone, does not load SciPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "compare": ("PairedResult", "UnpairedResult", "EquivalenceResult", "paired", "unpaired", "equivalence"),
    "multiplicity": ("FamilyResult", "family", "holm", "benjamini_hochberg"),
    "exact": ("signflip", "wilcoxon", "mann_whitney"),
    "t_test": ("t_interval", "welch", "seeds_to_find", "detectable"),
    "resolution": ("cannot_decide", "seeds_needed"),
    "resample": ("stratified", "probability_of_improvement", "performance_profile", "iqm", "median", "optimality_gap"),
    "curve_summaries": ("auc", "final", "best", "early", "time_to", "survival", "restricted_mean"),
    "trend": ("theil_sen", "kendall", "mann_kendall"),
    "factorial": ("effects", "separable"),
    "scaling": ("size_trend",),
    "dispersion": ("against", "variation", "seeds_to_bound"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
