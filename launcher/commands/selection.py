"""The runs that a command is about: experiments and runs by name, less what the filters leave out.

    NAME ... --group C1 --seed 0,1 --state failed method.sigma=0.2

A filter KEY=VALUE compares a factor of the plan, by its key or label, or else a key of the run's frozen configuration.
All filters must hold; several values of one filter are alternatives.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import Usage
from launcher.files import BadRunFolder
from launcher.run import catalog, whole
from launcher.run.folder import checkpoints, is_imported, read_config, read_state, run_folder
from launcher.run.lifecycle import NEW, RunState
from launcher.status import tables
from launcher.text import nearest, shown

_STATES = {**{state: state for state in (NEW, *RunState)}, tables.QUEUED: RunState.SUBMITTED}
_ABSENT = object()


@dataclass(frozen=True)
class Place:
    """A run's place in a plan: the experiment and the plan's entry; both empty for a run that no plan names."""

    run_id: str
    experiment: str | None
    entry: Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The selected runs with their places, in the order of the plans. `experiments`: those that were named."""

    places: tuple[Place, ...]
    experiments: tuple[str, ...]

    @property
    def ids(self) -> list[str]:
        """The ids, each once."""
        return list(dict.fromkeys(place.run_id for place in self.places))


def add(parser: argparse.ArgumentParser, nargs: str = "*", default: str = "") -> None:
    """Add the names and the filters to a command's arguments."""
    named = "an experiment, a run's id, or a filter KEY=VALUE such as method.sigma=0.2"
    described = named + (f"; default: {default}" if default else "")
    parser.add_argument("names", nargs=nargs, metavar="EXPERIMENT|RUN", help=described)
    listed = "several with commas"
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help=f"only these groups, {listed}")
    parser.add_argument("--seed", action="append", default=[], metavar="SEED", help=f"only these seeds, {listed}")
    parser.add_argument("--state", action="append", default=[], metavar="STATE", help=f"only these states, {listed}")


def select(given: argparse.Namespace, known: Sequence[str] = ()) -> Selection:
    """The runs that the arguments name. Raises Usage for a name, group, seed, state or key that does not exist.

    Without a name: the runs of every planned experiment. `known`: words with `=` that are no filters. With --all, also
    the runs that no plan names.
    """
    multirun: Path = given.multirun
    plans = catalog.plans(multirun)
    words = [name for name in given.names if name not in known]
    # An experiment's name may contain `=`.
    names = [word for word in words if "=" not in word or word in plans]
    filters = [word for word in words if word not in names]
    experiments = tuple(dict.fromkeys(name for name in names if name in plans))
    # One run may have several places in a plan, and a name may be given twice.
    places = {
        (place.experiment, place.run_id, place.entry.get("group")): place for place in _places(multirun, plans, names)
    }
    kept = list(places.values())
    if getattr(given, "all", False):
        planned = {run_id for plan in plans.values() for run_id in catalog.entries(plan)}
        kept += [Place(run_id, None, {}) for run_id in catalog.run_ids(multirun) if run_id not in planned]
    for option in ("group", "seed", "state"):
        if wanted := [word for listed in getattr(given, option) for word in listed.split(",")]:
            kept = _only(multirun, kept, option, wanted)
    for word in filters:
        kept = _with_value(multirun, plans, kept, word)
    return Selection(tuple(kept), experiments)


def _places(multirun: Path, plans: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Iterator[Place]:
    for name in names or list(plans):
        ids = catalog.named(multirun, name)
        if name in plans:
            yield from (Place(entry["id"], name, entry) for entry in plans[name]["runs"])
            continue
        (run_id,) = ids
        places = [
            Place(run_id, experiment, entry)
            for experiment, plan in plans.items()
            for entry in plan["runs"]
            if entry["id"] == run_id
        ]
        yield from places[:1] or [Place(run_id, None, {})]


def _only(multirun: Path, places: Sequence[Place], option: str, wanted: Sequence[str]) -> list[Place]:
    """The places with one of these groups, seeds or states."""
    if option == "state":
        values = [catalog.present_state(run_folder(multirun, place.run_id)) for place in places]
        known, rule = _STATES, "there is no such state"
    else:
        values = [str(place.entry.get(option)) for place in places]
        known = {value: value for value, place in zip(values, places, strict=True) if option in place.entry}
        rule = f"no selected run has this {option}"
    for word in wanted:
        if word not in known:
            raise Usage(_unknown(f"--{option} = {shown(word)}", rule, word, list(known)))
    chosen = {known[word] for word in wanted}
    return [place for place, value in zip(places, values, strict=True) if value in chosen]


def _with_value(
    multirun: Path, plans: Mapping[str, Mapping[str, Any]], places: Sequence[Place], word: str
) -> list[Place]:
    """The places whose factor or configuration has the value of a filter KEY=VALUE."""
    import yaml

    key, _, text = word.partition("=")
    try:
        wanted = [yaml.safe_load(word) if word else word for word in text.split(",")]
    except yaml.YAMLError as error:
        raise Usage(f"{shown(word)}: the value of a filter is a number or a word: KEY=VALUE") from error
    values = [_value(multirun, plans, place, key) for place in places]
    if places and all(value is _ABSENT for value in values):
        labels = {label for place in places for label in place.entry.get("factors", {})}
        rule = f"no selected run has a factor or a configuration key {shown(key)}"
        raise Usage(_unknown(shown(word), rule, key, sorted(labels)))
    texts = set(text.split(","))
    return [
        place
        for place, value in zip(places, values, strict=True)
        if value is not _ABSENT and (value in wanted or str(value) in texts)
    ]


def _value(multirun: Path, plans: Mapping[str, Mapping[str, Any]], place: Place, key: str) -> Any:
    factors = place.entry.get("factors") or {}
    declared = (plans[place.experiment].get("factors") or {}) if place.experiment is not None else {}
    label = (declared.get(key) or {}).get("label", key)
    if label in factors:
        return factors[label]
    try:
        value: Any = read_config(run_folder(multirun, place.run_id))
    except BadRunFolder:  # a run that no launch has frozen yet
        return _ABSENT
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _unknown(what: str, rule: str, value: str, existing: Sequence[str]) -> str:
    close = nearest(value, existing)
    meant = f"did you mean {close}? " if close else ""
    return f"{what}: {rule}; {meant}existing: {', '.join(existing) or 'none'}"


@contextmanager
def checkpoint(given: argparse.Namespace) -> Iterator[tuple[Path, int, Path]]:
    """Around the use of a run's checkpoint, `--checkpoint` or the newest: the run's folder, and step and folder of the
    checkpoint. Usage: there is none such, it cannot be used so, or a running run has deleted it meanwhile."""
    folder = catalog.find_run(given.multirun.resolve(), given.run)
    if is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, and has no checkpoint; only runs that were trained here have")
    steps = dict(checkpoints(folder))
    if not steps:
        raise Usage(
            f"run {folder.name} ({read_state(folder).state}): it has no checkpoint. A run writes the first after "
            "trainer.checkpoint_every steps; `gc --keep none` deletes those of done runs"
        )
    step = max(steps) if given.checkpoint is None else given.checkpoint
    if step not in steps:
        raise Usage(f"--checkpoint {step}: run {folder.name} has checkpoints of step {', '.join(map(str, steps))} only")
    if damage := whole.checkpoint_problem(steps[step]):
        raise Usage(f"{damage} since it was written. Fix: choose another of {list(steps)}, or `rerun` the run")
    try:
        yield folder, step, steps[step]
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not steps[step].exists():
            error = ValueError(f"it replaced its checkpoint of step {step} meanwhile; repeat the command")
        raise Usage(f"run {folder.name}: {error}") from error


def new_folder(option: str, given: Path) -> Path:
    """The absolute path of a folder to write. Usage: it exists and is not an empty folder."""
    out = given.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Usage(f"{option} = {given}: it exists and is not an empty folder; give another, or delete it first")
    return out
