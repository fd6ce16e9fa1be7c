"""Imports runs of other tools as an experiment: run folders and a plan.json, which the report reads like any other.

Everything is read and named before anything is written. Importing again replaces what was imported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from analysis.sources.log import BadImport
from analysis.sources.naming import Named, Naming, name
from analysis.sources.source import LoggedRun, sources
from analysis.spec.cell import key_of
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import KEY_ALONE, Diagnostics, Objection, some
from launcher import files
from launcher.run import whole
from launcher.run.folder import RESERVED, can_be_named, read_provenance, run_folder, runs_folder, write_state
from launcher.run.lifecycle import RunState
from launcher.run.records import FORMAT, PLAN_FORMAT, State

_LISTED = 20
_WINDOW = 20  # points: the steps of other tools are environment steps, episodes or updates, at any distance


@dataclass(frozen=True)
class ImportRequest:
    """What to import, and the questions for its analysis.

    into: multirun/NAME. metrics: the first is the question. direction: which way is better for it. analysis: a YAML
    file with the whole section instead. paired: whether the same seed of two groups is a pair. step: the metric, or the
    column of CSV files, that counts the steps.
    """

    sources: tuple[Path, ...]
    into: Path
    naming: Naming = field(default_factory=Naming)
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    direction: str | None = None
    analysis: Path | None = None
    paired: bool = False
    step: str | None = None
    command: str = ""


@dataclass(frozen=True)
class Imported:
    """What was imported: groups with how many runs, the gaps, the runs that the map leaves out, the groups that are
    compared by seed and share none with the baseline, and how many rows and numbers were read and what was not used."""

    plan: Path
    groups: Mapping[str, int]
    gaps: tuple[str, ...]
    left_out: tuple[str, ...]
    strangers: tuple[str, ...]
    read: tuple[str, ...]


def import_runs(request: ImportRequest) -> Imported:
    """Write run folders beside INTO and INTO/plan.json.

    Raises BadImport with all problems, before anything is written, and validation.BadPlan where the analysis asks for
    something unknown.
    """
    _check_into(request.into)
    multirun = request.into.parent
    multirun.mkdir(parents=True, exist_ok=True)
    # The folder of the runs may be a link to another disk, where they are moved to.
    disk = runs_folder(multirun) if runs_folder(multirun).is_dir() else multirun
    with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=disk) as aside:
        runs = sorted(_read(request, Path(aside)), key=lambda run: (run.kind, run.name))
        named, left_out, plan, needed = _named(request, runs)
        folders = [run_folder(multirun, entry["id"]) for entry in plan["runs"]]
        for member, folder in zip(named, folders, strict=True):
            _check_place(folder, request.into.name, member)
        runs_folder(multirun).mkdir(exist_ok=True)
        for number, (member, folder) in enumerate(zip(named, folders, strict=True)):
            _put(member, folder, request.into.name, Path(aside) / f"former-{number}")
    request.into.mkdir(exist_ok=True)
    files.write_json(request.into / "plan.json", plan)
    seeds = {group: [entry["seed"] for entry in plan["runs"] if entry["group"] == group] for group in plan["groups"]}
    base = {*seeds.get(plan["baseline"] or "", ())} if needed.pairing == "seed" else set()
    return Imported(
        plan=request.into / "plan.json",
        groups={group: len(of_group) for group, of_group in seeds.items()},
        gaps=tuple(f"{member.place}: {member.run.problem} ({member.run.place})" for member in named
                   if member.run.problem),
        left_out=tuple(left_out),
        strangers=tuple(group for group, of_group in seeds.items() if base and base.isdisjoint(of_group)),
        read=tuple(_counts([member.run for member in named])),
    )  # fmt: skip


def collect(folder: Path, into: Path) -> str | None:
    """Move the log that another tool has left below a folder into a run's folder; the format, None where there is none.

    Of several logs, the one with the most rows. Raises BadImport if one cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=into) as aside:
        runs = [run for run in _read(ImportRequest((folder,), into), Path(aside)) if run.log.read]
        if not runs:
            return None
        largest = max(runs, key=lambda run: run.log.read)
        for log in largest.folder.iterdir():
            log.replace(into / log.name)
        return largest.kind


def _check_into(into: Path) -> None:
    place = into.absolute()
    beside = (place.parent / "plan.json", *place.parent.glob("*/state.json"))  # of an experiment, or of runs
    if not can_be_named(place.name) or any(path.exists() for path in beside):
        rule = f"not the folder of an experiment, which is MULTIRUN/NAME; the names {', '.join(RESERVED)} are taken"
        raise BadImport(Objection("--into", into, rule, "write --into multirun/NAME"))
    former = into / "plan.json"
    if former.exists() and "imported" not in json.loads(former.read_bytes()):
        raise BadImport(Objection("--into", into, "an experiment of launch.py has this folder", "choose another name"))


def _named(
    request: ImportRequest, runs: Sequence[LoggedRun]
) -> tuple[list[Named], list[str], dict[str, Any], Settings]:
    """The runs with their places, in the order of the plan; the names that a map leaves out; the plan; and what it asks
    for."""
    if not runs:
        rule = f"there is no log of a known format ({', '.join(sources())})"
        fix = "give the folders that contain them, or name the column of steps by --step"
        raise BadImport(Objection(", ".join(map(str, request.sources)), KEY_ALONE, rule, fix))
    _refuse_twins(runs)
    named, left_out = name(runs, request.naming)
    groups = _groups(named, request.baseline)
    order = list(groups)
    named.sort(key=lambda member: (order.index(member.group), member.seed, json.dumps(member.factors, sort_keys=True)))
    section = _analysis(request, runs)
    plan = _plan(request, named, groups, section)
    cells = [tuple(member.factors.items()) for member in named]
    needed = settings(section, str(request.analysis or "--metric"), plan["groups"], plan["baseline"], cells)
    _check_recorded(request, needed.keys(), runs)
    return named, left_out, plan, needed


def _counts(runs: Sequence[LoggedRun]) -> Iterator[str]:
    """What was read, and what of it was not used and why."""
    logs = [run.log for run in runs]
    read, used = sum(log.read for log in logs), sum(log.used for log in logs)
    yield f"Rows: {read} read, {used} used; numbers: {sum(sum(log.cells.values()) for log in logs)}"
    dropped = [f"run {run.name}: rows not used: {count} ({why})"
               for run in runs for why, count in sorted(run.log.unused.items()) if count]  # fmt: skip
    cells = {name: f"is left out: {cell}" for log in logs for name, cell in log.left_out.items()}
    cells |= {name: f"has a notation of its own: {cell}" for log in logs for name, cell in log.read_as.items()}
    dropped += [f"{name} {cell}" for name, cell in sorted(cells.items())]
    yield from dropped[:_LISTED]
    if len(dropped) > _LISTED:
        yield f"and {len(dropped) - _LISTED} more, which provenance.json of the runs has"


def _check_place(folder: Path, name: str, member: Named) -> None:
    """Refuse to overwrite a run folder of another experiment."""
    if not folder.exists():
        return
    try:
        imported = (read_provenance(folder) or {}).get("imported")
    except ValueError:
        imported = None
    if not isinstance(imported, Mapping) or imported.get("experiment") != name:
        rule = f"{folder} belongs to another experiment"
        raise BadImport(Objection(f"run {member.run.name}", KEY_ALONE, rule, "choose another --into"))


def _read(request: ImportRequest, aside: Path) -> Iterator[LoggedRun]:
    """Every run of the places that the request names, with its log in a folder in `aside`."""
    places = _found(request)
    keys = [key for key in (request.naming.group, request.naming.seed, *request.naming.factors) if key is not None]
    number = itertools.count()
    for kind, format_ in sources().items():
        better = {
            _home(path) for other, beats in sources().items() if kind in beats.beats for path in places.get(other, ())
        }
        kept = {path: name for path, name in sorted(places.get(kind, {}).items())
                if better.isdisjoint([_home(path), *_home(path).parents])}  # fmt: skip
        for run in format_.read(kept, request.step, keys):
            run.folder = aside / f"run-{next(number)}"
            run.log.write(run.folder)
            yield run


def _found(request: ImportRequest) -> dict[str, dict[Path, str]]:
    """The places of the runs, with their names, by format."""
    places: dict[str, dict[Path, str]] = {}
    for place in request.sources:
        if not place.exists():
            raise BadImport(Objection("SOURCE", place, "this file or folder does not exist", "correct the path"))
        readers = [format_ for format_ in sources().values()
                   if place.is_dir() or {place.suffix, place.name} & {*format_.files}]  # fmt: skip
        if not readers:
            known = ", ".join(f"{name} ({kind})" for kind, format_ in sources().items() for name in format_.files)
            rule = f"must be a folder, or a file of a known format: {known}"
            raise BadImport(Objection("SOURCE", place, rule, "give the folder"))
        refused: list[BadImport] = []
        for format_ in readers:
            try:
                places[format_.kind] = format_.found(place, request.step) | places.get(format_.kind, {})
            except BadImport as error:
                refused.append(error)
        if refused and (place.is_dir() or len(refused) == len(readers)):
            raise refused[-1]
    return places


def _home(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _refuse_twins(runs: Sequence[LoggedRun]) -> None:
    places: dict[str, list[str]] = {}
    for run in runs:
        places.setdefault(run.name, []).append(run.place)
    wrong = Diagnostics()
    for run_name, at in places.items():
        if at[1:]:
            rule = f"two runs have this name ({', '.join(at)})"
            wrong.add(f"run {run_name}", KEY_ALONE, rule, "import them separately")
    wrong.raise_any(BadImport)


def _groups(named: Sequence[Named], baseline: str | None) -> dict[str, str]:
    """For each group the name used in files and pages; the baseline first."""
    called = sorted({member.group for member in named}, key=lambda group: (group != baseline, group))
    if baseline is not None and baseline not in called:
        rule = f"no run has this group; the groups are {', '.join(called)}"
        raise BadImport(Objection("--baseline", baseline, rule, "name one of them"))
    names: dict[str, str] = {}
    for group in called:
        plain = key_of(group, also=".") or "group"
        numbered = itertools.chain([plain], (f"{plain}_{count}" for count in itertools.count(2)))
        names[group] = next(unique for unique in numbered if unique not in names.values())
    return names


def _analysis(request: ImportRequest, runs: Sequence[LoggedRun]) -> dict[str, Any]:
    if request.analysis is not None:
        try:
            section = yaml.safe_load(request.analysis.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            rule = f"cannot be read: {' '.join(str(error).split())}"
            raise BadImport(Objection("--analysis", request.analysis, rule, "correct the file")) from error
        if not isinstance(section, dict):
            fix = "write, say, primary: {metric: reward}"
            raise BadImport(Objection("--analysis", request.analysis, "must hold a mapping", fix))
        section = section.get("analysis", section)
        primary = section.get("primary") if isinstance(section, dict) else None
        asks = isinstance(primary, Mapping) and "metric" in primary
    else:
        primary = {"metric": request.metrics[0], "summary": "final"} if request.metrics else {}
        section = {"primary": {**primary, **({"direction": request.direction} if request.direction else {})},
                   "metrics": list(request.metrics)}  # fmt: skip
        asks = bool(request.metrics)
    if not asks:
        rule = f"no metric is given; the recorded metrics are {_recorded(runs)}"
        raise BadImport(Objection("--metric", KEY_ALONE, rule, "add it, or --analysis FILE with the key primary"))
    pairing = "seed" if request.paired else "none"
    if request.paired and section.get("pairing", pairing) != pairing:
        rule = f"{request.analysis} has pairing: {section['pairing']}"
        raise BadImport(Objection("--paired", KEY_ALONE, rule, "leave out one of the two"))
    return {"window": {"points": _WINDOW}, "pairing": pairing, **section}


def _check_recorded(request: ImportRequest, metrics: Sequence[str], runs: Sequence[LoggedRun]) -> None:
    recorded = frozenset().union(*(run.log.cells for run in runs))
    option = "--metric" if request.analysis is None else f"--analysis {request.analysis}:"
    rule = f"no run recorded this metric; the recorded metrics are {_recorded(runs)}"
    wrong = Diagnostics()
    for metric in metrics:
        cells = dict.fromkeys(run.log.left_out[metric] for run in runs if metric in run.log.left_out)
        for cell in cells:
            wrong.add(f"{option} {metric}", KEY_ALONE, cell, "mend this cell")
        if not cells and metric not in recorded:
            wrong.add(f"{option} {metric}", KEY_ALONE, rule, "name one of them")
    wrong.raise_any(BadImport)


def _recorded(runs: Sequence[LoggedRun]) -> str:
    return some(sorted(frozenset().union(*(run.log.cells for run in runs))), _LISTED)


def _plan(
    request: ImportRequest, named: Sequence[Named], groups: Mapping[str, str], section: Mapping[str, Any]
) -> dict[str, Any]:
    factors: dict[str, dict[str, list[Any]]] = {}
    for key, level in (item for member in named for item in member.factors.items()):
        known = factors.setdefault(key, {"levels": []})["levels"]
        if level not in known:
            known.append(level)
    return {
        "format": PLAN_FORMAT,
        "experiment": request.into.name,
        "command": request.command,
        "imported": True,
        "baseline": groups[request.baseline] if request.baseline is not None else None,
        "steps": max(member.run.log.last_step for member in named),
        "seeds": sorted({member.seed for member in named}),
        "groups": {label: {"label": called} for called, label in groups.items()},
        "factors": factors,
        "analysis": dict(section),
        "runs": [
            {"id": _id(request.into.name, member.run), "group": groups[member.group], "seed": member.seed,
             "factors": dict(member.factors)}
            for member in named
        ],
    }  # fmt: skip


def _id(experiment: str, run: LoggedRun) -> str:
    """The id of a run: the same whenever it is imported into an experiment of this name, from any place."""
    return hashlib.sha256("\0".join((experiment, run.kind, run.key)).encode()).hexdigest()[:16]


def _put(member: Named, folder: Path, experiment: str, former: Path) -> None:
    """Complete the folder of a log to a run folder, and move it to its place."""
    run, log, made = member.run, member.run.log, member.run.folder
    config = {"format": FORMAT, "id": folder.name, "seed": member.seed, "config": dict(run.config)}
    files.write_atomic(made / "config.yaml", files.dump_yaml(json.loads(json.dumps(config))))
    unused = {why: count for why, count in log.unused.items() if count}
    imported = {"experiment": experiment, "from": run.kind, "run": run.name, "key": run.key, "place": run.place,
                "rows": log.read, "unused": unused, "left_out": log.left_out}  # fmt: skip
    files.write_json(made / "provenance.json", {"commit": run.commit, "dirty": False, "imported": imported})
    if run.problem is None:
        files.write_json(made / "summary.json", {**log.summary, "warnings": {}})
    state = State(
        folder.name,
        RunState.DONE if run.problem is None else RunState.FAILED,
        attempt=log.last_attempt,
        started=run.started,
        finished=log.finished,
        message=run.problem,
        manifest=whole.seal(made, with_times=False) if run.problem is None else None,
    )
    write_state(made, state)
    if folder.exists():
        folder.rename(former)
    made.rename(folder)
