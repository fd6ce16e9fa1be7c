"""What the launcher asks after each look: which comparisons of an experiment need further seeds."""

from __future__ import annotations

from pathlib import Path

from analysis.data.sweep import read_sweep
from analysis.findings.looks import Standing
from analysis.findings.study import Study, study
from analysis.spec.settings import settings


def standings(found: Study) -> tuple[Standing, ...]:
    """Where each comparison of the primary measure stands after the finished looks, in the order of the plan; empty if
    the number of seeds was fixed.

    A group whose status is CONTINUE needs the next batch of seeds, and so does the baseline. No other group does.
    """
    return tuple(c.standing for c in found.primary.comparisons if c.standing is not None)


def of_folder(folder: Path) -> tuple[Standing, ...]:
    """The same of multirun/<experiment>, as its report has it. Raises BadPlan as a report does."""
    sweep = read_sweep(folder)
    asked = settings(sweep.plan.get("analysis"), str(folder / "plan.json"), sweep.groups, sweep.baseline)
    return standings(study(sweep, asked))
