"""The hypotheses of a plan: whether its seeds can decide them, before anything runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.spec import precheck
from analysis.spec.settings import settings
from launcher.planning.plan import Experiment
from launcher.text import counted


def undecidable(experiment: Experiment) -> list[dict[str, Any]]:
    """The hypotheses that the runs can neither support nor contradict, whatever they show: id, seeds, needed."""
    return list(map(asdict, _undecidable(experiment, {})))


def _undecidable(experiment: Experiment, otherwise: dict[str, str]) -> tuple[precheck.Undecidable, ...]:
    section = {**experiment.analysis, **otherwise}
    asked = settings(section, groups=experiment.groups, baseline=experiment.baseline)
    return precheck.undecidable(asked, experiment.seeds_of())


def warning(experiment: Experiment) -> str | None:
    """One line that names the undecidable hypotheses, and what would make them decidable."""
    lost = _undecidable(experiment, {})
    if not lost:
        return None
    names = ", ".join(one.id for one in lost)
    fewest, most = min(one.seeds for one in lost), max(one.needed for one in lost)
    text = f"{experiment.name}: {counted(fewest, 'seed')} cannot decide {names}: {most} are needed"
    left = _undecidable(experiment, precheck.FEWEST_SEEDS)
    if len(left) < len(lost):
        words = " ".join(f"analysis.{key}={value}" for key, value in precheck.FEWEST_SEEDS.items())
        text += f", or {words}, which assumes normal differences"
        if left:
            names = ", ".join(one.id for one in left)
            text += f"; {names} would then need {max(one.needed for one in left)}"
    return text
