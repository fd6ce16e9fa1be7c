"""What was declared before there were results, read from multirun/<experiment>/hypotheses.json.

The launcher keeps every declaration with the runs that were done by then (launcher/planning/preregistration.py has the
format).
"""

from __future__ import annotations

import json

from analysis.data.sweep import Sweep, sweep_of
from analysis.findings.study import Study, study
from analysis.spec import declaration
from analysis.spec.declaration import Declaration, Registration
from analysis.spec.settings import settings

_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)


def registered(sweep: Sweep) -> Registration | None:
    """How the plan of a sweep compares with what was declared; None: that is not recorded, or cannot be read."""
    runs = {run.id: run.done for run in sweep.runs}
    try:
        kept = json.loads((sweep.folder / "hypotheses.json").read_text(encoding="utf-8"))["declarations"]
        return declaration.registration(kept, sweep.plan, Declaration(sum(runs.values()), len(runs)))
    except _BROKEN:
        return None


def as_declared(compared: Study, found: Registration) -> Study | None:
    """The primary measure as it was declared, on the runs that were declared; None: it cannot be computed."""
    # Normalised scores cannot be normalised again.
    known = {} if compared.settings.normalize else {run.id: run for run in compared.sweep.runs}
    try:
        plan = {**compared.sweep.plan, **(found.plan or {})}
        section = {**plan["analysis"], "metrics": [], "figures": [], "hypotheses": None}
        asked = settings(section, groups=plan["groups"], baseline=plan["baseline"])
        return study(sweep_of(compared.sweep.folder, plan, known), asked)
    except _BROKEN:
        return None
