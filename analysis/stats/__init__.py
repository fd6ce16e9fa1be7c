"""Statistics: numbers in, numbers out; no files and no clock.

The public names are imported from here: `from analysis.stats import paired`. A module is imported when one of its names
is first used, so that a plan, which needs only `resolution`, does not load SciPy.

Its modules:

    compare           two methods over seeds: estimates, tests, equivalence
    contrast          a comparison by the test that decides, and the interval that is its inversion
    power             what that test can find with a number of seeds
    multiplicity      p values that hold for several comparisons together
    sequential        levels, p values and futility of a test that is looked at while seeds are added
    exact             exact tests by counting
    t_test            Student's t intervals and tests
    resolution        the smallest p that a number of seeds can give
    resample          scores of many tasks, with the stratified bootstrap
    shares            the interval of a share of runs
    strata            scores of seeds on several tasks, of which some seeds lack some
    curve_summaries   one number from one curve: area, final value, time to a threshold
    bands             bands that hold a whole mean curve
    bounded           the interval of a mean of values between known limits
    common_grid       curves of different runs on one grid of their common range
    trend             whether a curve rises or falls
    factorial         main effects and interactions of a grid
    scaling           how a difference changes with the model's size
    dispersion        how much the seeds of a method scatter
    shape             whether the seeds of a method fall into two clusters
    strengths         strengths of several methods from comparisons of two
    agreement         how far raters agree beyond chance
    functions         log, exp and distribution functions with the same digits on every processor
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "compare": ("PairedResult", "UnpairedResult", "EquivalenceResult", "paired", "unpaired", "equivalence"),
    "multiplicity": ("FamilyResult", "family", "holm", "benjamini_hochberg"),
    "sequential": ("Look", "boundary", "chance", "looks", "spending"),
    "exact": ("signflip", "wilcoxon", "mann_whitney", "relabel"),
    "t_test": ("t_interval", "welch"),
    "contrast": ("Contrast",),
    "power": ("seeds_to_find", "detectable", "power_of"),
    "resolution": ("cannot_decide", "seeds_needed"),
    "resample": ("stratified", "probability_of_improvement", "performance_profile", "iqm", "median", "optimality_gap"),
    "curve_summaries": ("auc", "final", "best", "early", "time_to", "survival", "restricted_mean"),
    "bands": ("simultaneous",),
    "shares": ("share_interval",),
    "bounded": ("mean_interval", "outer_interval"),
    "trend": ("theil_sen", "kendall", "mann_kendall"),
    "factorial": ("effects", "separable"),
    "scaling": ("size_trend",),
    "strengths": ("Strengths", "bradley_terry"),
    "agreement": ("cohens_kappa", "fleiss_kappa"),
    "dispersion": ("against", "variation"),
    "shape": ("Split", "split"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
