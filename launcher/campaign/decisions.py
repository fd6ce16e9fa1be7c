"""What the reports of a stage say of its gate, and of the levels that later stages take.

The analysis judges. This module only reads `report.json`, the file for machines that a report writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.campaign.stages import Pin
from launcher.files import BadRunFolder
from launcher.run.campaign_record import Figure, Taken

#: The only verdict that meets a gate.
SUPPORTED = "supported"


class Undecided(Exception):
    """A report has no level that a stage could take; the message says why."""


def figures(multirun: Path, experiments: Sequence[str], needs: Sequence[str]) -> list[Figure]:
    """The verdicts on the hypotheses of a gate, in every experiment of the stage that declares them.

    BadRunFolder: a report cannot be read.
    """
    found = []
    for experiment in experiments:
        by_id = {one["id"]: one for one in _report(multirun, experiment)["hypotheses"]}
        found += [_figure(by_id[name], experiment) for name in needs if name in by_id]
    return found


def _figure(judged: Mapping[str, Any], experiment: str) -> Figure:
    keys = ("claim", "verdict", "quantity", "shown", "decided")
    return Figure(hypothesis=judged["id"], experiment=experiment, **{key: str(judged[key]) for key in keys})


def take(multirun: Path, pins: Sequence[Pin]) -> list[Taken]:
    """The levels that a stage takes, as the reports of earlier stages have them now. Raises Undecided with every one
    that has no best level; BadRunFolder: a report cannot be read."""
    taken, problems = [], []
    for pin in pins:
        try:
            taken.append(_take(multirun, pin))
        except Undecided as error:
            problems.append(str(error))
    if problems:
        raise Undecided("; ".join(problems))
    return taken


def _take(multirun: Path, pin: Pin) -> Taken:
    every = _report(multirun, pin.experiment)["levels"]
    matches = [one for one in every if (one["group"], one["factor"]) == (pin.into, pin.factor)]
    where = f"{pin.experiment}: {pin.into}"
    if not matches:
        raise Undecided(f"{where} does not read {pin.factor}, or has one level of it")
    (levels,) = matches
    means = "; ".join(_at(one) for one in levels["levels"])
    if levels["best"] is None:
        raise Undecided(f"{where} has no best level of {pin.factor}, for none has all of its results ({means})")
    return Taken(
        key=pin.key,
        into=pin.into,
        value=levels["best"]["level"],
        stage=pin.take.stage,
        experiment=pin.experiment,
        group=pin.into,
        factor=pin.factor,
        means=means,
        time=time.time(),
    )


def _at(level: Mapping[str, Any]) -> str:
    """A level with its mean, as `0.0001: 0.43`."""
    mean = "no result" if level["mean"] is None else f"{level['mean']:.3g}"
    few = "" if level["results"] == level["planned"] else f" ({level['results']} of {level['planned']} results)"
    return f"{level['level']}: {mean}{few}"


def _report(multirun: Path, experiment: str) -> dict[str, Any]:
    path = multirun / experiment / "report" / "report.json"
    fix = f"write the report again: python -m analysis report {multirun / experiment}"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadRunFolder(path, f"cannot be read ({error})", fix) from error
    lists = ("hypotheses", "levels")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in lists):
        raise BadRunFolder(path, "is the report of an older version", fix)
    return content
