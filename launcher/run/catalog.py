"""The experiments and runs that a user's words name.

A word is compared with the names that there are; it is never used as a pattern or as part of a path.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import Usage
from launcher.project import ROOT
from launcher.run import claim
from launcher.run import folder as folders
from launcher.run.folder import NEW
from launcher.text import nearest, shown

_LISTED = 5


@dataclass(frozen=True)
class Named:
    """What a word names: the runs' ids in the plan's order, and the experiment where it was one's name."""

    ids: tuple[str, ...]
    experiment: str | None = None


def experiments(multirun: Path) -> list[str]:
    """The experiments that have a plan."""
    return sorted(path.parent.name for path in multirun.glob("*/plan.json"))


def declared() -> list[str]:
    """The experiments that conf/experiment offers."""
    return sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))


def run_ids(multirun: Path) -> list[str]:
    """Every run that has a folder."""
    try:
        with os.scandir(folders.runs_folder(multirun)) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except FileNotFoundError:
        return []


def read_plan(multirun: Path, experiment: str) -> dict[str, Any]:
    """An experiment's plan.json. Raises Usage where no plan has this name."""
    if experiment not in experiments(multirun):
        raise Usage(_unknown("planned experiment", experiment, multirun, experiments(multirun)))
    path = multirun / experiment / "plan.json"
    again = f"say its command again, python launch.py -m experiment={experiment}, to write it anew"
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Usage(f"{path}: not JSON ({error}). Fix: {again}") from error
    wanted = folders.PLAN_FORMAT
    if not isinstance(value, dict) or value.get("format") != wanted or not isinstance(value.get("runs"), list):
        raise Usage(f"{path}: no plan of format {wanted}, which this version reads. Fix: {again}")
    return value


def entries(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Each run's first entry of a plan (group, factors, seed), by id."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in plan["runs"]:
        found.setdefault(entry["id"], entry)
    return found


def title(entry: Mapping[str, Any]) -> str:
    """What a person knows a run by: its group, factors and seed."""
    levels = [f"{key}={value}" for key, value in entry["factors"].items()]
    return " ".join([str(entry["group"]), *levels, f"seed {entry['seed']}"])


def titles(multirun: Path) -> dict[str, str]:
    """The title of every planned run by id, from the first plan that names it."""
    found: dict[str, str] = {}
    for name in experiments(multirun):
        for run_id, entry in entries(read_plan(multirun, name)).items():
            found.setdefault(run_id, title(entry))
    return found


def find_run(multirun: Path, beginning: str) -> Path:
    """The folder of the one run whose id begins so. Raises Usage for none and for several."""
    found = [run_id for run_id in run_ids(multirun) if beginning and run_id.startswith(beginning)]
    if beginning in found:
        found = [beginning]
    if len(found) == 1:
        folder = folders.run_folder(multirun, found[0])
        if not (folder / "state.json").exists():
            raise Usage(f"{folder}: no state.json, for the launch that made this folder was cut short; say it again")
        return folder
    if found:
        listed = ", ".join(found[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
        raise Usage(f"RUN = {shown(beginning)}: {len(found)} runs begin so: {listed}. Give more of the id")
    if beginning in experiments(multirun):
        of = entries(read_plan(multirun, beginning))
        listed = "; ".join(f"{run_id} {title(entry)}" for run_id, entry in list(of.items())[:_LISTED])
        more = f"; and {len(of) - _LISTED} more" if len(of) > _LISTED else ""
        raise Usage(f"{beginning} is an experiment; give one of its runs: {listed}{more}")
    raise Usage(_unknown("run", beginning, multirun, run_ids(multirun)))


def named(multirun: Path, word: str) -> Named:
    """The runs of the experiment with this name, or the run whose id begins so. Raises Usage for neither."""
    known = experiments(multirun)
    if word in known:
        return Named(tuple(entries(read_plan(multirun, word))), word)
    ids = run_ids(multirun)
    if word and any(run_id.startswith(word) for run_id in ids):
        return Named((find_run(multirun, word).name,))
    raise Usage(_unknown("planned experiment or run", word, multirun, [*known, *ids], listed=known))


def _unknown(what: str, word: str, multirun: Path, names: Sequence[str], *, listed: Sequence[str] | None = None) -> str:
    """The message about a name that nothing has: what was probably meant, or what there is."""
    if word in declared():
        run_it = f"python launch.py -m experiment={word}"
        return f"{word}: conf/experiment has it, and {multirun} no plan of it yet; {run_it} makes one and runs it"
    close = nearest(word, names)
    there = names if listed is None else listed
    many = ", ".join(there[:_LISTED]) + (f" and {len(there) - _LISTED} more" if len(there) > _LISTED else "")
    meant = f"did you mean {close}? " if close else ""
    return f"{shown(word)}: no such {what} in {multirun}; {meant}there is: {many or 'none'}"


def present_state(folder: Path) -> str:
    """A run's state as it stands: `new` without a folder, `lost` when it says running but no process has it."""
    state = folders.find_state(folder)
    return NEW if state is None else true_state(folder, state.state)


def true_state(folder: Path, state: str) -> str:
    """The state that a state file told, but `lost` when it said running and no process has the run."""
    if state != folders.RUNNING or claim.live_claim(folder) is not None:
        return state
    # It may have ended between the two looks.
    again = folders.find_state(folder)
    if again is None:
        return NEW
    return folders.LOST if again.state == folders.RUNNING and claim.live_claim(folder) is None else again.state


def command(multirun: Path, *words: str) -> str:
    """A command of ours as a user would type it, for this multirun folder."""
    place = () if multirun == ROOT / "multirun" else ("--multirun", str(multirun))
    return shlex.join(["python", "-m", "launcher", *words, *place])
