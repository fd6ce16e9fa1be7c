"""The hypotheses of an experiment, from files of conf/hypothesis and its own section, and what else of the section no
schema can judge: will the report take it, and can the seeds decide it?"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.hydra_compose import Composed, lookup
from launcher.errors import Problem
from launcher.project import ROOT
from launcher.text import counted

if TYPE_CHECKING:
    from launcher.planning.plan import Experiment

HYPOTHESIS = "hypothesis"  # the configuration group: conf/hypothesis
AT = "analysis.hypotheses"


def problems(
    analysis: Mapping[str, Any],
    seeds: Mapping[str, Sequence[int]],
    baseline: str | None,
    composed: Composed,
    where: str,
) -> list[Problem]:
    """What the report would refuse of an experiment's hypotheses, and of what its schema cannot judge, before anything
    runs.

    analysis: the section, checked by its schema; seeds: of each group; where: the experiment's file, blamed for what no
    file of the group `hypothesis` says.
    """
    files = {file.path: file.content for file in composed.files if file.package == AT}
    found = [
        Problem(f"conf/{path}.yaml", f"{AT}.{name}", None, f"conf/{other}.yaml declares {name} too", "rename one")
        for place, (path, content) in enumerate(files.items())
        for other in list(files)[:place]
        for name in content
        if name in files[other]
    ]
    if found or not _beyond_schema(analysis):
        return found
    refused = _checked(analysis, seeds, baseline)["refused"]
    if refused is None:
        return []
    key, value, rule = refused["key"], refused["value"], refused["rule"]
    if not key.startswith(f"{AT}."):
        return [Problem(where, key, value, rule, "correct it")]
    name = key.removeprefix(f"{AT}.").partition(".")[0]
    owners = [path for path, content in files.items() if lookup(content, name)[0]]
    fix = f"correct it, or leave it out: {AT}.{name}=null"
    if owners:
        others = ",".join(Path(path).name for path in files if path != owners[0])
        where, fix = f"conf/{owners[0]}.yaml", f"{fix}, or with the rest of its file: {HYPOTHESIS}=[{others}]"
    return [Problem(where, key, value, rule, fix)]


def _beyond_schema(analysis: Mapping[str, Any]) -> bool:
    """Whether a section asks for what its schema, which knows no metrics and sees one key at a time, cannot judge."""
    timed = analysis["primary"]["summary"] == "time_to"  # of which metric, time_to says
    ways = any(isinstance(figure, Mapping) and "pareto" in figure for figure in analysis["figures"])
    return timed or ways or analysis.get("hypotheses") not in (None, {})


def undecidable(experiment: Experiment) -> list[dict[str, Any]]:
    """The hypotheses that the runs can neither support nor contradict, whatever they show: id, seeds, needed."""
    return list(_asked(experiment)["undecidable"]) if experiment.analysis.get("hypotheses") else []


def warning(experiment: Experiment) -> str | None:
    """One line for the undecidable ones, with the way out."""
    found = undecidable(experiment)
    if not found:
        return None
    names = ", ".join(one["id"] for one in found)
    fewest, most = min(one["seeds"] for one in found), max(one["needed"] for one in found)
    said = f"{experiment.name}: {counted(fewest, 'seed')} cannot decide {names}: {most} are needed"
    otherwise = _asked(experiment)["otherwise"]
    left = otherwise["undecidable"]
    if len(left) < len(found):
        words = " ".join(f"analysis.{key}={value}" for key, value in otherwise["settings"].items())
        said += f", or {words}, which assumes normal differences"
        if left:
            names = ", ".join(one["id"] for one in left)
            said += f"; {names} would then need {max(one['needed'] for one in left)}"
    return said


def _asked(experiment: Experiment) -> Any:
    return _checked(experiment.analysis, experiment.seeds_of(), experiment.baseline)


def _checked(analysis: Mapping[str, Any], seeds: Mapping[str, Sequence[int]], baseline: str | None) -> Any:
    """What the analysis says, as its check prints it. It judges in a process of its own, as it reports: no statistics
    in the launcher."""
    asked = {"analysis": analysis, "groups": list(seeds), "baseline": baseline, "seeds": {**seeds}}
    return _answer(json.dumps(asked))


@functools.lru_cache(maxsize=256)
def _answer(asked: str) -> Any:
    command = [sys.executable, "-m", "analysis.spec.precheck"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)
