"""The experiments and runs that a user's names refer to.

A name is compared with the existing ones; it is never used as a pattern or as part of a path.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher import project
from launcher.errors import Usage
from launcher.project import CONF
from launcher.run.folder import PLAN_FORMAT, run_folder, runs_folder
from launcher.text import nearest, shown

_LISTED = 5


def experiments(multirun: Path) -> list[str]:
    """The experiments that have a plan."""
    return sorted(path.parent.name for path in multirun.glob("*/plan.json"))


def declared(group: str = "experiment") -> list[str]:
    """The files of conf/experiment, or of another group, in rlsweep's conf/ and the project's own."""
    return sorted({path.stem for conf in (CONF, project.root() / "conf") for path in (conf / group).glob("*.yaml")})


def run_ids(multirun: Path) -> list[str]:
    """Every run that has a folder."""
    try:
        with os.scandir(runs_folder(multirun)) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except FileNotFoundError:
        return []


def read_plan(multirun: Path, experiment: str) -> dict[str, Any]:
    """An experiment's plan.json. Raises Usage if no plan has this name."""
    if experiment not in experiments(multirun):
        raise Usage(_unknown("planned experiment", experiment, multirun, experiments(multirun)))
    path = multirun / experiment / "plan.json"
    command = f", {_launch(experiment, multirun)}," if experiment in declared() else ""
    fix = f"repeat its command{command} which writes it again"
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Usage(f"{path}: cannot be read as JSON ({error}). Fix: {fix}") from error
    if not _is_plan(value):
        raise Usage(f"{path}: not a plan of format {PLAN_FORMAT}, the only one that this version reads. Fix: {fix}")
    return dict(value)


def _is_plan(value: Any) -> bool:
    kinds: dict[str, Any] = {"experiment": str, "steps": (int, type(None)), "analysis": dict, "runs": list}
    if not isinstance(value, dict) or value.get("format") != PLAN_FORMAT:
        return False
    if not all(isinstance(value.get(key, ...), kind) for key, kind in kinds.items()):
        return False
    return isinstance(value["analysis"].get("primary") or {}, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) and {"group", "seed", "factors"} <= entry.keys()
        for entry in _all_entries(value)
    )


def plans(multirun: Path) -> dict[str, dict[str, Any]]:
    """The plans that can be read, by experiment; the others are named on standard error, once."""
    read = {}
    for name in experiments(multirun):
        try:
            read[name] = read_plan(multirun, name)
        except Usage as error:
            warn(str(error))
    return read


@functools.cache
def warn(text: str) -> None:
    """Name a file that is left out, once in a process."""
    print(f"warning: left out: {text}", file=sys.stderr, flush=True)


def entries(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Each run's first entry of a plan (group, factors, seed), by id; then those that old forks continue."""
    by_id: dict[str, Mapping[str, Any]] = {}
    for entry in _all_entries(plan):
        by_id.setdefault(entry["id"], entry)
    return by_id


def _all_entries(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*plan["runs"], *plan.get("prefixes", ())]


def title(entry: Mapping[str, Any]) -> str:
    """A run's title for people: its group, factors and seed."""
    levels = [f"{key}={value}" for key, value in entry["factors"].items()]
    return " ".join([str(entry["group"]), *levels, f"seed {entry['seed']}"])


def titles(multirun: Path) -> dict[str, str]:
    """The title of every planned run by id, from the first plan that names it."""
    known: dict[str, str] = {}
    for plan in reversed(plans(multirun).values()):
        known |= {run_id: title(entry) for run_id, entry in entries(plan).items()}
    return known


def _matching(multirun: Path, beginning: str) -> str | None:
    """The id of the only run that has a folder, or else is planned, and begins so; None: none does. Raises Usage if
    several do."""
    matches = [run_id for run_id in run_ids(multirun) if beginning and run_id.startswith(beginning)]
    if not matches and beginning:
        planned = {run_id for plan in plans(multirun).values() for run_id in entries(plan)}
        matches = sorted(run_id for run_id in planned if run_id.startswith(beginning))
    if len(matches) > 1 and beginning not in matches:
        listed = ", ".join(matches[:_LISTED]) + (", ..." if len(matches) > _LISTED else "")
        rule = f"{len(matches)} run ids begin like this: {listed}"
        raise Usage(f"RUN = {shown(beginning)}: {rule}. Fix: give more of the id")
    return beginning if beginning in matches else next(iter(matches), None)


def find_run(multirun: Path, beginning: str) -> Path:
    """The folder of the only run whose id begins with `beginning`. Raises Usage if no run or several runs match."""
    if (match := _matching(multirun, beginning)) is not None:
        folder = run_folder(multirun, match)
        with suppress(PermissionError):  # which the command names where it reads
            if not (folder / "state.json").exists():
                raise Usage(f"{folder}: no state.json: the run's launch was interrupted, or has not begun; repeat it")
        return folder
    if beginning in experiments(multirun):
        planned = entries(read_plan(multirun, beginning))
        listed = "; ".join(f"{run_id} {title(entry)}" for run_id, entry in list(planned.items())[:_LISTED])
        more = f"; and {len(planned) - _LISTED} more" if len(planned) > _LISTED else ""
        raise Usage(f"{beginning} is an experiment; give one of its runs: {listed}{more}")
    raise Usage(_unknown("run", beginning, multirun, run_ids(multirun)))


def named(multirun: Path, name: str) -> list[str]:
    """The runs of the experiment with this name in the plan's order, or the run whose id begins with it. Raises Usage
    if there is neither."""
    known = experiments(multirun)
    if name in known:
        return list(entries(read_plan(multirun, name)))
    if (match := _matching(multirun, name)) is not None:
        return [find_run(multirun, match).name if run_folder(multirun, match).is_dir() else match]
    raise Usage(_unknown("planned experiment or run", name, multirun, [*known, *run_ids(multirun)], listed=known))


def resolve(multirun: Path, names: Iterable[str]) -> list[str]:
    """The runs that these names refer to, each once. Raises Usage as `named` does."""
    return list(dict.fromkeys(run_id for name in names for run_id in named(multirun, name)))


def _unknown(what: str, name: str, multirun: Path, names: Sequence[str], *, listed: Sequence[str] | None = None) -> str:
    """The message about an unknown name: what was probably meant, or which names exist."""
    if name in declared():
        fix = f"{_launch(name, multirun)} writes the plan and runs it"
        return f"{name}: {multirun} has no plan of this experiment yet. Fix: {fix}"
    close = nearest(name, names)
    existing = names if listed is None else listed
    many = ", ".join(existing[:_LISTED]) + (f" and {len(existing) - _LISTED} more" if len(existing) > _LISTED else "")
    meant = f"did you mean {close}? " if close else ""
    return f"{shown(name)}: no such {what} in {multirun}; {meant}existing: {many or 'none'}"


def _launch(experiment: str, multirun: Path) -> str:
    """The command of an experiment that has a file, for this multirun folder."""
    option = "" if multirun == project.multirun() else f" {shlex.quote(f'multirun={multirun}')}"
    return project.spelled(f"python launch.py -m experiment={experiment}{option}")


def command(multirun: Path, *words: str) -> str:
    """A command of the launcher as a user would type it, for this multirun folder."""
    option = () if multirun == project.multirun() else ("--multirun", str(multirun))
    return f"{project.program()} {shlex.join([*words, *option])}"
