"""Imports runs of other tools as an experiment: run folders and a plan.json, which the report reads like any other.

Everything is read and named before anything is written. Importing again replaces what was imported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.sources.log import ASKED, ATTEMPTS, BadImport, written
from analysis.sources.naming import (
    Named,
    Naming,
    counted_apart,
    in_names,
    is_planned,
    name,
    refuse_several_logs,
    with_seeds,
)
from analysis.sources.source import PASSED, LoggedRun, pass_over, sources
from analysis.spec.cell import grouped, key_of
from analysis.spec.metric_catalog import CLOCKS
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import KEY_ALONE, BadPlan, Diagnostics, Objection, closest, counted, some
from launcher import files
from launcher.run import whole
from launcher.run.folder import (
    FORMAT,
    PLAN_FORMAT,
    RESERVED,
    can_be_named,
    metrics_path,
    read_provenance,
    run_folder,
    runs_folder,
)
from launcher.run.lifecycle import RunState, State, write_state

_LISTED = 20
_DIFFER = 6  # keys named
_WHOLE = ("rlsweep", "W&B", "Trainer")  # the formats that may leave several logs below the folder of a run
_MADE = ("W&B", "MLflow")  # the formats that make a folder for each run, and keep files of it there
_RENAME = "rename other files: lines of JSON to .jsonl, a table of text to .csv"
_ROUNDED = 1e-3  # of the largest value: how far a log may round
_Rows = Mapping[int, Mapping[str, Any]]  # by step


@dataclass(frozen=True)
class ImportRequest:
    """What to import, and the questions for its analysis.

    into: multirun/NAME. groups: of the runs of a source, where it says their group. metrics: the first is the question.
    direction: which way is better for it. paired: whether the same seed of two groups is a pair. step: the metric, or
    the column of CSV files, that counts the steps. analysis: the section, for which the metrics, the direction and the
    pairs count first; file: which has it. since: in unix seconds; logs that were last written before are left out.
    """

    sources: tuple[Path, ...]
    into: Path
    naming: Naming = field(default_factory=Naming)
    groups: Mapping[Path, str] = field(default_factory=dict)
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    direction: str | None = None
    paired: bool = False
    step: str | None = None
    analysis: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None
    command: str = ""
    since: float = 0.0


@dataclass(frozen=True)
class Imported:
    """What was imported: groups with how many runs, the gaps, the runs that the map leaves out, the groups that are
    compared by seed and share none with the baseline, and how many rows and numbers were read and what was not used."""

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
    former = _check_into(request.into)
    request = replace(request, into=request.into.resolve(), metrics=tuple(map(written, request.metrics)))
    multirun, new = request.into.parent, not request.into.parent.exists()
    multirun.mkdir(parents=True, exist_ok=True)
    try:
        return copy_context().run(_import, request, former, multirun)
    except BaseException:
        if new and not any(multirun.iterdir()):
            multirun.rmdir()
        raise


def _import(request: ImportRequest, former: frozenset[str], multirun: Path) -> Imported:
    ASKED.set(_asked(request))
    PASSED.set(passed := dict[Path, str]())
    # The folder of the runs may be a link to another disk, where they are moved to.
    disk = runs_folder(multirun) if runs_folder(multirun).is_dir() else multirun
    with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=disk) as aside:
        runs = sorted(_read(request, Path(aside)), key=lambda run: (run.kind, run.name))
        if passed and not runs:
            (path, why), *more = sorted(passed.items())
            rule = why + (f"; {counted(len(more), 'more file')} cannot be read either" if more else "")
            fix = "name what counts the steps by --step, or give the files themselves as PATHs"
            raise BadImport(Objection(os.path.relpath(path), KEY_ALONE, rule, fix))
        named, left_out, plan, needed = _named(request, runs)
        plan["notes"] += (not_read := _not_read(passed, runs))
        folders = [run_folder(multirun, entry["id"]) for entry in plan["runs"]]
        for member, folder in zip(named, folders, strict=True):
            _check_place(folder, request.into.name, member)
        runs_folder(multirun).mkdir(exist_ok=True)
        for number, (member, folder) in enumerate(zip(named, folders, strict=True)):
            _put(member, folder, request.into.name, Path(aside) / f"former-{number}")
    request.into.mkdir(exist_ok=True)
    files.write_json(request.into / "plan.json", plan)
    for gone in former - {entry["id"] for entry in plan["runs"]}:
        shutil.rmtree(run_folder(multirun, gone), ignore_errors=True)
    seeds = {group: [entry["seed"] for entry in plan["runs"] if entry["group"] == group] for group in plan["groups"]}
    labels = {group: entry["label"] for group, entry in plan["groups"].items()}
    base = {*seeds.get(plan["baseline"] or "", ())} if needed.pairing == "seed" else set()
    return Imported(
        groups={labels[group]: len(of_group) for group, of_group in seeds.items()},
        gaps=tuple(f"{member.place}: {member.run.problem} ({member.run.place})" for member in named
                   if member.run.problem),
        left_out=tuple(left_out),
        strangers=tuple(labels[group] for group, of_group in seeds.items() if base and base.isdisjoint(of_group)),
        read=(*_counts([member.run for member in named]), *not_read),
    )  # fmt: skip


def collect(folder: Path, into: Path, since: float = 0.0, attempts: int = 1) -> tuple[Sequence[str], bool]:
    """Make a run's metrics of the logs that other tools have left below a folder and written since, in unix seconds;
    notes on what they do not say clearly, and whether all can be read but those beside which there are better ones.

    A metric of several logs that differ is named after each; of those that agree, that with the most rows counts.
    attempts: how many may have written to one log.
    """
    refused, worse = list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=into) as aside:
        written_by, passed_by = ATTEMPTS.set(attempts), PASSED.set(passed := dict[Path, str]())
        try:
            read = list(_read(request := ImportRequest((folder,), into, since=since), Path(aside), refused))
            read += _read(request, Path(aside), worse, beaten=True)
        finally:
            ATTEMPTS.reset(written_by)
            PASSED.reset(passed_by)
        runs = sorted((run for run in read if run.log.read), key=lambda run: -run.log.read)
        lines, apart = _as_one(runs) if runs[1:] else ([], [])
        for log in runs[0].folder.iterdir() if runs else ():
            log.replace(into / log.name)
    if lines:
        files.write_atomic(metrics_path(into), "".join(f"{json.dumps(line)}\n" for line in lines))
    notes = [*(f"not read: {error}" for error in (*refused, *worse)), *_not_read(passed, runs)]
    if apart:
        notes.append(f"several logs have other values of {some(apart, _DIFFER)}; each is named after its log")
    return notes, not refused


def _as_one(runs: Sequence[LoggedRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of several logs of one run as those of one; the metrics of several logs that do not agree."""
    logs = list(map(_standing, runs))
    having = grouped((metric, place) for place, run in enumerate(runs) for metric in run.log.cells)
    apart = {
        metric: places
        for metric, places in having.items()
        if not all(_agree(metric, logs[places[0]], logs[place]) for place in places[1:])
    }
    renamed: dict[tuple[int, str], str] = {}
    for metric, places in apart.items():
        owns = [run.name.partition("/")[2] for run in (runs[place] for place in places)]
        common = os.path.commonpath([f"/{own}" for own in owns])
        for place, own in zip(places, owns, strict=True):
            otherwise = "" if place == places[0] else runs[place].kind
            short = os.path.relpath(f"/{own}", common).removeprefix(".") or otherwise
            renamed[place, metric] = written(f"{short}/{metric}" if short else metric)
    lines: dict[int, dict[str, Any]] = {}
    for place, (run, log) in enumerate(zip(runs, logs, strict=True)):
        for step, row in log.items():
            line = lines.setdefault(step, {"step": step, "attempt": 1, "time": row["time"]})
            for metric in row.keys() & run.log.cells.keys():
                line.setdefault(renamed.get((place, metric), metric), row[metric])
    return [lines[step] for step in sorted(lines)], sorted(apart)


def _standing(run: LoggedRun) -> dict[int, Mapping[str, Any]]:
    """The rows of a log by step, without those that a later attempt supersedes."""
    rows, attempt = dict[int, Mapping[str, Any]](), 0
    for row in files.json_lines(metrics_path(run.folder)):
        if row["attempt"] > attempt:
            attempt = row["attempt"]
            rows = {step: of for step, of in rows.items() if step < row["step"]}
        rows[row["step"]] = row
    return rows


def _agree(metric: str, log: _Rows, other: _Rows) -> bool:
    """Whether two logs have the same metric, which one of them may have rounded."""
    rows = ((log[at], other[at]) for at in log.keys() & other.keys())
    both = [(row[metric], of[metric]) for row, of in rows if metric in row and metric in of]
    bound = _ROUNDED * max((abs(value) for pair in both for value in pair if math.isfinite(value)), default=0.0)
    alike = (one == another or abs(one - another) <= bound or (one != one and another != another)
             for one, another in both)  # fmt: skip
    return bool(both) and all(alike)


def _check_into(into: Path) -> frozenset[str]:
    """The ids of the runs of the import that is there, which this one replaces."""
    place = into.resolve()
    beside = (place.parent / "plan.json", *place.parent.glob("*/state.json"))  # of an experiment, or of runs
    if not can_be_named(place.name) or any(path.exists() for path in beside):
        rule = f"not the folder of an experiment, which is MULTIRUN/NAME; the names {', '.join(RESERVED)} are taken"
        raise BadImport(Objection("--into", into, rule, "write --into multirun/NAME"))
    if not into.exists() or (into.is_dir() and not any(into.iterdir())):
        return frozenset()
    former = json.loads(path.read_bytes()) if (path := into / "plan.json").exists() else {}
    if "imported" not in former:
        rule = "an experiment of launch.py has this folder" if former else "this folder has files of something else"
        raise BadImport(Objection("--into", into, rule, "choose another name"))
    return frozenset(entry["id"] for entry in former["runs"])


def _named(
    request: ImportRequest, runs: Sequence[LoggedRun]
) -> tuple[list[Named], list[str], dict[str, Any], Settings]:
    """The runs with their places, in the order of the plan; the names that a map leaves out; the plan; and what it asks
    for."""
    if not runs:
        rule = f"there is neither a plan.json nor a log of a known format ({', '.join(sources())})"
        fix = f"give the folders that contain them, or name the column of steps by --step; {_RENAME}"
        raise BadImport(Objection(", ".join(map(str, request.sources)), KEY_ALONE, rule, fix))
    _refuse_twins(runs)
    refuse_several_logs(runs, request.naming)
    if rows := in_names(runs, request.naming):
        of_path = {run.group: rows[run.name]["group"] for run in runs if run.group is not None}
        first = of_path.get(request.baseline or "", request.baseline)
        request = replace(request, naming=replace(request.naming, map=rows), groups={}, baseline=first)
        for run in runs:
            run.group = None
    request = replace(request, naming=with_seeds(runs, request.naming))
    given, left_out = name(runs, request.naming)
    named = counted_apart(given) if _section(request)["pairing"] == "none" else given
    recounted = named != given
    _check_steps(request.step, [member.run for member in named])
    # where nothing says it, the others are compared with a group called baseline, else with the first; with none if
    # there is no other
    several = sorted({member.group for member in named}, key=lambda group: (group.lower() != "baseline", group))
    chosen = several[0] if request.baseline is None and len(several) > 1 else None
    request = replace(request, baseline=request.baseline or chosen)
    groups = _groups(named, request.baseline)
    order = list(groups)
    named.sort(key=lambda member: (order.index(member.group), member.seed, json.dumps(member.factors, sort_keys=True)))
    section = _analysis(request, runs)
    plan = _plan(request, named, groups, section)
    if unread := sorted(frozenset().union(*(run.log.recorded - run.log.cells.keys() for run in runs))):
        plan["not_read"] = unread
        names = some(unread, _DIFFER)
        plan["notes"].append(f"Recorded, not read: {counted(len(unread), 'metric')} ({names}). --metric reads more.")
    if recounted:
        plan["notes"].append("No seed is in two cells, so the seeds of each cell are counted from 1.")
    plan["notes"] += [*_steps(request, runs), *_copies(named), *_formats(named), *_same_levels(named)]
    if chosen is not None:
        plan["notes"].append(f"Baseline: {chosen}, because no option names one (--baseline).")
    cells = [tuple(member.factors.items()) for member in named]
    needed = settings(section, request.file or "--metric", plan["groups"], plan["baseline"], cells)
    asked = needed.keys()
    read_as = {(name not in asked, f"{name}: {cell}") for run in runs for name, cell in run.log.read_as.items()}
    if read_as:  # what is asked for comes first
        plan["notes"].append(f"{some([said for _, said in sorted(read_as)], _DIFFER)}.")
    _check_recorded(request, asked, runs)
    clock = CLOCKS.get(needed.axis)
    if clock is not None and not any(clock in run.log.cells for run in runs):
        rule = f"no run recorded {clock}, which this axis needs"
        raise BadImport(Objection("analysis.axis", needed.axis, rule, "choose analysis.axis: steps", request.file))
    return named, left_out, plan, needed


def _check_steps(step: str | None, runs: Sequence[LoggedRun]) -> None:
    """Refuse a metric that is to count the steps, and that a run lacks: its steps would be others."""
    lacking = [run for run in runs if step and run.log.read and written(run.log.by) != written(step)]
    if step is None or not lacking:
        return
    names = some([run.name for run in lacking], _DIFFER)
    rule = f"{counted(len(lacking), 'run')} of {len(runs)} did not record this metric ({names})"
    recorded = sorted({key for run in runs for key in run.log.recorded})
    otherwise = "name one that each run records, or leave these runs out"
    fix = otherwise if written(step) in recorded else closest(step, recorded, otherwise=otherwise)
    raise BadImport(Objection("--step", step, rule, fix))


def _steps(request: ImportRequest, runs: Sequence[LoggedRun]) -> Iterator[str]:
    """Notes for the columns that count the steps and that nobody named, and for the runs whose rows were sorted."""
    by = sorted({run.log.by for run in runs if run.log.by.strip("_").lower() != "step"})
    if by and request.step is None:
        yield f"Steps: {some(by, _DIFFER)}, because no option names what counts them (--step)."
    if unordered := [run.name for run in runs if run.log.unordered]:
        yield f"The rows of these runs are in no order, and are sorted by their steps: {some(unordered, _DIFFER)}."


def _copies(named: Sequence[Named]) -> Iterator[str]:
    """A note for the runs that have the same rows."""
    logged = [(member, metrics_path(member.run.folder)) for member in named if member.run.log.read > 1]
    for alike in grouped((path.stat().st_size, (member, path)) for member, path in logged).values():
        digests = ((hashlib.sha256(path.read_bytes()).digest(), member) for member, path in alike)
        by_rows = grouped(digests) if alike[1:] else {}
        for copies in by_rows.values():
            if copies[1:]:
                names = some([member.run.name for member in copies], _DIFFER)
                yield f"These runs have the same rows, and each counts: {names}."


def _formats(named: Sequence[Named]) -> Iterator[str]:
    """A note for the groups with runs of several formats, which may be the same runs."""
    kinds = grouped((member.group, member.run.kind) for member in named)
    several = {group: Counter(of_group) for group, of_group in kinds.items() if len({*of_group}) > 1}
    said = [f"{group} ({', '.join(f'{n} {kind}' for kind, n in sorted(of.items()))})" for group, of in several.items()]
    if said:
        yield f"Runs of several formats count: {some(said, _DIFFER)}. Give the logs of one if these are the same runs."


def _same_levels(named: Sequence[Named]) -> Iterator[str]:
    """A note for each factor with levels that logs write in several ways."""
    factors = ((member.run.texts, level) for member in named for level in member.factors.items())
    written = grouped(((key, level), texts.get(key, str(level))) for texts, (key, level) in factors)
    ways = ((key, sorted({*texts})) for (key, _), texts in written.items())
    several = grouped((key, " and ".join(texts)) for key, texts in ways if texts[1:])
    for key, levels in several.items():
        yield f"Each is one level of {key}, written in several ways: {some(levels, _DIFFER, '; ')}."


def _counts(runs: Sequence[LoggedRun]) -> Iterator[str]:
    """What was read, and what of it was not used and why."""
    logs = [run.log for run in runs]
    read, used = sum(log.read for log in logs), sum(log.used for log in logs)
    yield f"Rows: {read} read, {used} used; numbers: {sum(sum(log.cells.values()) for log in logs)}"
    dropped = [f"run {run.name}: rows not used: {count} ({why})"
               for run in runs for why, count in sorted(run.log.unused.items()) if count]  # fmt: skip
    cells = {name: f"is left out: {cell}" for log in logs for name, cell in log.left_out.items()}
    dropped += [f"{name} {cell}" for name, cell in sorted(cells.items())]
    yield from dropped[:_LISTED]
    if len(dropped) > _LISTED:
        yield f"and {len(dropped) - _LISTED} more, which provenance.json of the runs has"


def _not_read(passed: Mapping[Path, str], runs: Sequence[LoggedRun]) -> list[str]:
    """The files beside the logs, or of the name of one in another folder, that are not read, and why."""
    logs = [Path(str(run.log.place)) for run in runs]
    folders, called = {place for log in logs for place in (log, log.parent)}, {log.name for log in logs}
    unread = sorted(passed.keys() - {*logs})
    beside = [path for path in unread if path.is_dir() or path.parent in folders or path.name in called]
    why = grouped((passed[path], os.path.relpath(path)) for path in beside)
    said = [f"{some(paths, _DIFFER)} ({reason})" for reason, paths in why.items()]
    return [f"Not read: {some(said, _DIFFER, '; ', '; and ')}."] if said else []


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


def _read(
    request: ImportRequest, aside: Path, refused: list[str] | None = None, beaten: bool = False
) -> Iterator[LoggedRun]:
    """Every run of the places that the request names, with its log in a folder in `aside`. refused: gets why a log
    cannot be read, which BadImport says without it; beaten: those instead beside which another format has better ones.
    """
    keys = [key for key in (request.naming.group, request.naming.seed, *request.naming.factors) if key is not None]
    number = itertools.count()
    seen: set[Path] = set()  # a run below the paths of two groups is of the first
    for group in dict.fromkeys(request.groups.get(place) for place in request.sources):
        places = _found(request, [place for place in request.sources if request.groups.get(place) == group])
        homes = {_home(path) for of_kind in places.values() for path in of_kind}
        homes_below = Counter(folder for home in homes for folder in home.parents)
        for kind, format_ in sources().items():
            better = _beaten(kind, places)
            kept = {path: name for path, name in sorted(places.get(kind, {}).items())
                    if path not in seen and (path in better) is beaten}  # fmt: skip
            seen |= kept.keys()
            for path in filter(Path.is_file, better if refused is None else ()):
                pass_over(path, "another log of its run counts; give the file as a PATH to read it")
            apart = grouped((run_name, (path, run_name)) for path, run_name in kept.items()).values()
            for part in [kept] if refused is None else map(dict, apart):
                try:
                    for run in format_.read(part, request.step, keys):
                        if not (run.log or run.log.recorded) and homes_below[_home(Path(str(run.log.place)))] > 1:
                            pass_over(Path(str(run.log.place)), "it has no step, and other runs are below it")
                            continue
                        run.folder, run.group = aside / f"{'beaten' if beaten else 'run'}-{next(number)}", group
                        run.log.write(run.folder)
                        yield run
                except BadImport as error:
                    if refused is None:
                        raise
                    refused.append(str(error))


def _beaten(kind: str, places: Mapping[str, Mapping[Path, str]]) -> set[Path]:
    """The places of a format beside which another one has a better log of the same run: in the same folder, or in one
    above, if that is the folder of a run and not of several; and those below a folder that a tool has made for one run,
    such as copies of event files that W&B and MLflow keep."""
    made = {_home(path) for other in _MADE if other != kind for path in places.get(other, ()) if path.suffix != ".db"}
    above = {path: {_home(path), *_home(path).parents} for path in places.get(kind, ())}
    beaten = {path for path, folders in above.items() if not made.isdisjoint(folders)}
    for other, format_ in sources().items():
        homes = {_home(path) for path in places.get(other, ())} if kind in format_.beats else set()
        inside = Counter(home.parent.parent for home in homes if home.parent.name == "wandb")
        alone = {home for home, runs in inside.items() if runs == 1} - homes  # whose only run of W&B is in its folder
        below = grouped((folder, path) for path, folders in above.items() for folder in folders & {*homes, *alone})
        for folder, paths in below.items():
            one = len(paths if folder in alone else {_home(path) for path in paths if _home(path) != folder}) <= 1
            beaten |= {
                path for path in paths if one or (folder in homes and (other in _WHOLE or _home(path) == folder))
            }
    return beaten


def _found(request: ImportRequest, given: Sequence[Path]) -> dict[str, dict[Path, str]]:
    """The places of the runs, with their names, by format. What is below the folder of the study was made of logs."""
    places: dict[str, dict[Path, str]] = {}
    made = request.into.resolve().parent
    for place in given:
        if not place.exists():
            raise BadImport(Objection("PATH", place, "this file or folder does not exist", "correct the path"))
        readers = [format_ for format_ in sources().values()
                   if place.is_dir() or place.name.endswith((*format_.files,))]  # fmt: skip
        if not readers:
            known = ", ".join(f"{name} ({kind})" for kind, format_ in sources().items() for name in format_.files)
            rule = f"must be a folder, or a file of a known format: {known}"
            raise BadImport(Objection("PATH", place, rule, f"give the folder; {_RENAME}"))
        refused: list[BadImport] = []
        outside = not place.resolve().is_relative_to(made)
        for format_ in readers:
            try:
                found = format_.found(place, request.step)
            except BadImport as error:
                refused.append(error)
                continue
            logs = {path: name for path, name in found.items() if not (outside and path.is_relative_to(made))
                    and max(part.stat().st_mtime for part in (path, *path.glob("*"))) >= request.since}  # fmt: skip
            places[format_.kind] = logs | places.get(format_.kind, {})
        if refused and (place.is_dir() or len(refused) == len(readers)):
            raise refused[-1]
    return places


def _home(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _refuse_twins(runs: Sequence[LoggedRun]) -> None:
    names = Counter(run.name for run in runs)
    for run in runs:
        if run.group is not None:  # below two paths, there may be equal runs
            run.key = f"{run.group}/{run.key}"
            run.name = f"{run.group}/{run.name}" if names[run.name] > 1 else run.name
    wrong = Diagnostics()
    by_name = grouped((run.name, run) for run in runs)
    of_group = grouped((run.group, str(run.log.place)) for same in by_name.values() if same[1:] for run in same)
    for run_name, twins in by_name.items():
        places = {str(run.log.place) for run in twins}
        if len({run.place for run in twins}) == 1 < len(places) == len(twins):
            # files that were given themselves, whose names are short, or that differ in their endings
            for run in twins:
                own = Path(str(run.log.place)).relative_to(os.path.commonpath(of_group[run.group]))
                run.name = run.key = f"{run.group}/{own}" if run.group is not None else str(own)
        elif twins[1:]:
            rule = f"two runs have this name ({', '.join(run.place for run in twins)})"
            wrong.add(f"run {run_name}", KEY_ALONE, rule, "give the folder that holds both, or GROUP=PATH for each")
    wrong.raise_any(BadImport)


def _groups(named: Sequence[Named], baseline: str | None) -> dict[str, str]:
    """For each group the name used in files and pages; the baseline first."""
    called = sorted({member.group for member in named}, key=lambda group: (group != baseline, group))
    if baseline is not None and baseline not in called:
        rule = f"no run has this group; the groups are {', '.join(called)}"
        raise BadImport(Objection("--baseline", baseline, rule, "name one of them"))
    names: dict[str, str] = {}
    # a name that is its own comes first, so that it is no other group's
    for group in sorted(called, key=lambda group: key_of(group, also=".") != group):
        plain = key_of(group, also=".") or "group"
        numbered = itertools.chain([plain], (f"{plain}_{count}" for count in itertools.count(2)))
        names[group] = next(unique for unique in numbered if unique not in names.values())
    return {group: names[group] for group in called}


def _section(request: ImportRequest) -> dict[str, Any]:
    """The section `analysis`, with what the options say."""
    section = {"window": None, "pairing": "seed" if request.paired else "none", **request.analysis}
    if isinstance(primary := section.get("primary", {}), Mapping):  # else the settings refuse it
        given = {"metric": next(iter(request.metrics), None), "direction": request.direction}
        section["primary"] = {**primary, **{key: value for key, value in given.items() if value is not None}}
    more = section.get("metrics", [])
    return {**section, "metrics": [*more, *request.metrics]} if request.metrics and isinstance(more, list) else section


def _asked(request: ImportRequest) -> set[str]:
    """The metrics that the analysis, or the options, ask for, and those of its axes."""
    try:
        metrics = settings(_section(request)).keys()
    except BadPlan:  # which is said when the groups are known
        metrics = ()
    return {written(request.step or ""), *metrics, *CLOCKS.values()}


def _analysis(request: ImportRequest, runs: Sequence[LoggedRun]) -> dict[str, Any]:
    section = _section(request)
    if request.paired and section["pairing"] != "seed":
        rule = f"{request.file} has pairing: {section['pairing']}"
        raise BadImport(Objection("--paired", KEY_ALONE, rule, "leave out one of the two"))
    if section["pairing"] == "seed" and not (request.naming.says("seed") or is_planned(runs)):
        rule = "the same seed of two groups is a pair, and nothing says the seeds"
        raise BadImport(Objection("--paired", KEY_ALONE, rule, "give --seed KEY, or leave it out"))
    primary = section["primary"] if isinstance(section["primary"], Mapping) else {"metric": None}
    if "metric" not in primary:
        rule = f"no metric is given; the recorded metrics are {_recorded(runs)}"
        raise BadImport(Objection("--metric", KEY_ALONE, rule, "name one of them"))
    return section


def _check_recorded(request: ImportRequest, metrics: Sequence[str], runs: Sequence[LoggedRun]) -> None:
    recorded = frozenset().union(*(run.log.recorded for run in runs))
    read = frozenset().union(*(run.log.cells for run in runs))
    option = f"{request.file}:" if request.file else "--metric"
    not_read = [f". {said.rstrip('.')}" for said in _not_read(PASSED.get() or {}, runs)]
    where = " in the logs that were read" if not_read else ""
    rule = f"no run recorded this metric{where}; the recorded metrics are {_recorded(runs)}{''.join(not_read)}"
    wrong = Diagnostics()
    for metric in metrics:
        cells = dict.fromkeys(run.log.left_out[metric] for run in runs if metric in run.log.left_out)
        for cell in cells:
            wrong.add(f"{option} {metric}", KEY_ALONE, cell, "mend this cell")
        if not cells and metric not in read:
            wrong.add(f"{option} {metric}", KEY_ALONE, rule, closest(metric, sorted(recorded), "", "name one of them"))
    wrong.raise_any(BadImport)


def _recorded(runs: Sequence[LoggedRun]) -> str:
    return some(sorted(frozenset().union(*(run.log.recorded for run in runs))), _LISTED)


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
        "notes": [_how(request, named)],
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


def _how(request: ImportRequest, named: Sequence[Named]) -> str:
    """How groups and seeds were found, and what of their configurations differs within a group."""
    naming = request.naming
    by_name = "the map" if isinstance(naming.map, Path) else "the names of the runs"
    said = ["the paths given"] if request.groups else []
    if naming.says("group"):
        said.append(f"the key {naming.group}" if naming.group else by_name)
    text = f"Groups: {' and '.join(said)}. Seeds: "
    if naming.says("seed"):
        return f"{text}{f'the key {naming.seed}' if naming.seed else by_name}. n counts runs."
    if is_planned([member.run for member in named]):
        return f"{text}those of the plans. n counts runs (training seeds); cells that not all groups have are left out."
    text += "counted in the order of the runs' names, because no option says them. n counts runs."
    places = grouped(((member.group, repr(member.factors)), member.run.about) for member in named)
    if len(named) > 1 and max(map(len, places.values())) == 1:
        text += " No group has a second run, so nothing can be decided: to make several paths one group, write "
        return f"{text}them as one pattern in quotes ('wandb/offline-run-*') or as GROUP=PATH, or give --group KEY."
    about = [(place, key, str(value)) for place, runs in places.items() for run in runs for key, value in run.items()]
    levels = Counter((place, key) for place, key, _ in {*about})
    differ = sorted({key for (_, key), count in levels.items() if count > 1 and not key.startswith("wandb.")})
    text += f" The configurations of runs that count as seeds differ in {some(differ, _DIFFER)}." if differ else ""
    return text


def _id(experiment: str, run: LoggedRun) -> str:
    """The id of a run: the same whenever it is imported into an experiment of this name, from any place."""
    return hashlib.sha256("\0".join((experiment, run.kind, run.key)).encode()).hexdigest()[:16]


def _put(member: Named, folder: Path, experiment: str, former: Path) -> None:
    """Complete the folder of a log to a run folder, and move it to its place."""
    run, log, made = member.run, member.run.log, member.run.folder
    config = {"format": FORMAT, "id": folder.name, "seed": member.seed, "config": dict(run.config)}
    files.write_atomic(made / "config.yaml", files.dump_yaml(json.loads(json.dumps(config, default=str))))
    unused = {why: count for why, count in log.unused.items() if count}
    imported = {"experiment": experiment, "from": run.kind, "run": run.name, "key": run.key, "place": run.place,
                "rows": log.read, "unused": unused, "left_out": log.left_out}  # fmt: skip
    files.write_json(made / "provenance.json", {"commit": run.commit, "dirty": False, "imported": imported})
    if run.problem is None:
        files.write_json(made / "summary.json", log.summary)
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
