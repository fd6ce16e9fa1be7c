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
from types import ModuleType
from typing import Any

import yaml

from analysis.data.normalized import factor_of
from analysis.data.selection import check_factors
from analysis.importing import console_files, csv_files, event_files, trainer_files, verl_files, wandb_files
from analysis.importing.found import Found
from analysis.importing.log import BadImport, refuse
from analysis.importing.naming import Named, Naming, name
from analysis.spec.levels import key_of
from analysis.spec.settings import settings
from analysis.spec.validation import some
from launcher import files
from launcher.run import whole
from launcher.run.folder import RESERVED, can_be_named, read_provenance, run_folder, runs_folder, write_state
from launcher.run.lifecycle import RunState
from launcher.run.records import FORMAT, PLAN_FORMAT, State

__all__ = ["Asked", "BadImport", "Done", "Naming", "import_runs"]

#: Each reader, and those that are read instead where a tool logged a run twice: the Trainer writes event files too,
#: others a CSV file beside, and W&B a file of what was printed.
_READERS: dict[ModuleType, tuple[ModuleType, ...]] = {
    trainer_files: (),
    event_files: (trainer_files,),
    wandb_files: (),
    verl_files: (),
    console_files: (trainer_files, event_files, wandb_files, verl_files),
    csv_files: (trainer_files, event_files, wandb_files, verl_files),
}
_LISTED = 20
_WINDOW = 20  # points: the steps of other tools are environment steps, episodes or updates, at any distance


@dataclass(frozen=True)
class Asked:
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
class Done:
    """What was imported: groups with how many runs, the gaps, the runs that the map leaves out, the groups that are
    compared by seed and share none with the baseline, and how many rows and numbers were read and what was not used."""

    plan: Path
    groups: Mapping[str, int]
    gaps: tuple[str, ...]
    left_out: tuple[str, ...]
    strangers: tuple[str, ...]
    read: tuple[str, ...]


def import_runs(asked: Asked) -> Done:
    """Write run folders beside INTO and INTO/plan.json.

    Raises BadImport with all problems, before anything is written, and validation.BadPlan where the analysis asks for
    something unknown.
    """
    place = asked.into.absolute()
    beside = (place.parent / "plan.json", *place.parent.glob("*/state.json"))  # of an experiment, or of runs
    if not can_be_named(place.name) or any(path.exists() for path in beside):
        rule = f"not the folder of an experiment, which is MULTIRUN/NAME; the names {', '.join(RESERVED)} are taken"
        raise BadImport(f"--into {asked.into}: {rule}; fix: write --into multirun/NAME")
    former = asked.into / "plan.json"
    if former.exists() and "imported" not in json.loads(former.read_bytes()):
        raise BadImport(f"--into {asked.into}: an experiment of launch.py has this folder; fix: choose another name")
    multirun = asked.into.parent
    multirun.mkdir(parents=True, exist_ok=True)
    # The folder of the runs may be a link to another disk, where they are moved to.
    disk = runs_folder(multirun) if runs_folder(multirun).is_dir() else multirun
    with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=disk) as aside:
        runs = sorted(_read(asked, Path(aside)), key=lambda run: (run.kind, run.name))
        if not runs:
            raise BadImport(
                f"{', '.join(map(str, asked.sources))}: there is no run-*.wandb file, no event file of TensorBoard, no "
                ".jsonl file of verl, no trainer_state.json and no CSV file with a known column of steps; fix: give "
                "the folders that contain them, or name the column by --step"
            )
        _refuse_twins(runs)
        named, left_out = name(runs, asked.naming)
        groups = _groups(named, asked.baseline)
        order = list(groups)
        named.sort(key=lambda run: (order.index(run.group), run.seed, json.dumps(run.factors, sort_keys=True)))
        section = _analysis(asked, runs)
        plan = _plan(asked, named, groups, section)
        needed = settings(section, str(asked.analysis or "--metric"), plan["groups"], plan["baseline"])
        _check_recorded(asked, needed.keys(), runs)
        levels = [tuple(run.factors.items()) for run in named]
        if needed.normalize:
            factor_of(needed.normalize, levels, str(asked.analysis))
        check_factors(needed.select, levels, str(asked.analysis))
        for named_run, entry in zip(named, plan["runs"], strict=True):
            _check_place(run_folder(multirun, entry["id"]), asked.into.name, named_run)
        runs_folder(multirun).mkdir(exist_ok=True)
        for number, (named_run, entry) in enumerate(zip(named, plan["runs"], strict=True)):
            former_run = Path(aside) / f"former-{number}"
            _put(named_run, run_folder(multirun, entry["id"]), asked.into.name, former_run)
    asked.into.mkdir(exist_ok=True)
    files.write_json(asked.into / "plan.json", plan)
    counts = {group: sum(entry["group"] == group for entry in plan["runs"]) for group in plan["groups"]}
    gaps = tuple(f"{run.place}: {run.found.problem} ({run.found.place})" for run in named if run.found.problem)
    seeds = {group: {entry["seed"] for entry in plan["runs"] if entry["group"] == group} for group in plan["groups"]}
    base = seeds.get(plan["baseline"] or "", set()) if needed.pairing == "seed" else set()
    apart = tuple(group for group, own in seeds.items() if base and group != plan["baseline"] and not own & base)
    return Done(asked.into / "plan.json", counts, gaps, tuple(left_out), apart, tuple(_said(named)))


def _said(named: Sequence[Named]) -> Iterator[str]:
    """What was read, and what of it was not used and why."""
    runs = [run.found.staged for run in named]
    read, used = sum(run.rows for run in runs), sum(run.used for run in runs)
    yield f"Rows: {read} read, {used} used; numbers: {sum(run.numbers for run in runs)}"
    dropped = [f"run {run.found.name}: rows not used: {count} ({why})"
               for run in named for why, count in sorted(run.found.staged.unused.items())]  # fmt: skip
    cells = {name: f"is left out: {cell}" for run in runs for name, cell in run.left_out.items()}
    cells |= {name: f"has a notation of its own: {cell}" for run in runs for name, cell in run.read_as.items()}
    dropped += [f"{name} {cell}" for name, cell in sorted(cells.items())]
    yield from dropped[:_LISTED]
    if len(dropped) > _LISTED:
        yield f"and {len(dropped) - _LISTED} more, which provenance.json of the runs has"


def _check_place(folder: Path, name: str, run: Named) -> None:
    """Refuse to overwrite a run folder of another experiment."""
    if not folder.exists():
        return
    try:
        imported = (read_provenance(folder) or {}).get("imported")
    except ValueError:
        imported = None
    if not isinstance(imported, Mapping) or imported.get("experiment") != name:
        raise BadImport(f"run {run.found.name}: {folder} belongs to another experiment; fix: choose another --into")


def _read(asked: Asked, stage_in: Path) -> Iterator[Found]:
    places: dict[ModuleType, dict[Path, str]] = {reader: {} for reader in _READERS}
    for source in asked.sources:
        if not source.exists():
            raise BadImport(f"SOURCE {source}: this file or folder does not exist")
        takers = [reader for reader in _READERS if source.is_dir() or {source.suffix, source.name} & {*reader.FILES}]
        if len(takers) == 2:  # a .txt file
            takers = [console_files if console_files.is_printed(source) else csv_files]
        if not takers:
            raise BadImport(
                f"SOURCE {source}: must be a folder, a run-*.wandb file, a .jsonl file of verl, a .log file with what "
                "verl printed, a trainer_state.json or a CSV file; fix: give the folder"
            )
        for reader in takers:
            places[reader] = reader.find(source, asked.step) | places[reader]
    keys = [key for key in (asked.naming.group, asked.naming.seed, *asked.naming.factors) if key is not None]
    count = 0
    for reader, better in _READERS.items():
        others = {_home(path) for other in better for path in places[other]}
        kept = {path: name for path, name in sorted(places[reader].items())
                if others.isdisjoint([_home(path), *_home(path).parents])}  # fmt: skip
        places[reader] = kept
        for run in reader.read(places[reader], asked.step, keys):
            run.stage(stage_in / f"run-{count}")
            count += 1
            yield run


def _home(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _refuse_twins(runs: Sequence[Found]) -> None:
    places: dict[str, list[str]] = {}
    for run in runs:
        places.setdefault(run.name, []).append(run.place)
    fix = "fix: import them separately"
    refuse([f"run {name}: two runs have this name ({', '.join(at)}); {fix}" for name, at in places.items() if at[1:]])


def _groups(named: Sequence[Named], baseline: str | None) -> dict[str, str]:
    """For each group the name used in files and pages; the baseline first."""
    called = sorted({run.group for run in named}, key=lambda group: (group != baseline, group))
    if baseline is not None and baseline not in called:
        raise BadImport(f"--baseline {baseline}: no run has this group; the groups are {', '.join(called)}")
    names: dict[str, str] = {}
    for group in called:
        plain = key_of(group, also=".") or "group"
        numbered = itertools.chain([plain], (f"{plain}_{count}" for count in itertools.count(2)))
        names[group] = next(unique for unique in numbered if unique not in names.values())
    return names


def _analysis(asked: Asked, runs: Sequence[Found]) -> dict[str, Any]:
    if asked.analysis is not None:
        try:
            section = yaml.safe_load(asked.analysis.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise BadImport(f"--analysis {asked.analysis}: cannot be read: {' '.join(str(error).split())}") from error
        if not isinstance(section, dict):
            raise BadImport(f"--analysis {asked.analysis}: must hold a mapping, such as primary: {{metric: reward}}")
        section = section.get("analysis", section)
        primary = section.get("primary") if isinstance(section, dict) else None
        asks = isinstance(primary, Mapping) and "metric" in primary
    else:
        primary = {"metric": asked.metrics[0], "summary": "final"} if asked.metrics else {}
        section = {"primary": {**primary, **({"direction": asked.direction} if asked.direction else {})},
                   "metrics": list(asked.metrics)}  # fmt: skip
        asks = bool(asked.metrics)
    if not asks:
        raise BadImport(
            "no metric is given; fix: add --metric KEY, or --analysis FILE with the key primary; "
            f"the recorded metrics are {_recorded(runs)}"
        )
    pairing = "seed" if asked.paired else "none"
    if asked.paired and section.get("pairing", pairing) != pairing:
        raise BadImport(f"--paired: {asked.analysis} has pairing: {section['pairing']}; fix: leave out one of the two")
    return {"window": {"points": _WINDOW}, "pairing": pairing, **section}


def _check_recorded(asked: Asked, metrics: Sequence[str], runs: Sequence[Found]) -> None:
    recorded = frozenset().union(*(run.staged.metrics for run in runs))
    refuse([*dict.fromkeys(f"{run.staged.left_out[metric]}; fix: mend this cell" for run in runs for metric in metrics
                           if metric in run.staged.left_out)])  # fmt: skip
    where = f"--analysis {asked.analysis}:" if asked.analysis else "--metric"
    rule = f"no run recorded this metric; the recorded metrics are {_recorded(runs)}"
    refuse([f"{where} {metric}: {rule}" for metric in metrics if metric not in recorded])


def _recorded(runs: Sequence[Found]) -> str:
    return some(sorted(frozenset().union(*(run.staged.metrics for run in runs))), _LISTED)


def _plan(
    asked: Asked, named: Sequence[Named], groups: Mapping[str, str], section: Mapping[str, Any]
) -> dict[str, Any]:
    levels: dict[str, dict[str, Any]] = {}
    for run in named:
        for key, level in run.factors.items():
            label = levels.setdefault(key, {"levels": []})["levels"]
            if level not in label:
                label.append(level)
    return {
        "format": PLAN_FORMAT,
        "experiment": asked.into.name,
        "command": asked.command,
        "imported": True,
        "baseline": groups[asked.baseline] if asked.baseline is not None else None,
        "steps": max(run.found.staged.last_step for run in named),
        "seeds": sorted({run.seed for run in named}),
        "groups": {label: {"label": called} for called, label in groups.items()},
        "factors": levels,
        "analysis": dict(section),
        "runs": [
            {"id": _id(asked.into.name, run.found), "group": groups[run.group], "seed": run.seed,
             "factors": dict(run.factors)}
            for run in named
        ],
    }  # fmt: skip


def _id(experiment: str, run: Found) -> str:
    """The id of a run: the same whenever it is imported into an experiment of this name, from any place."""
    return hashlib.sha256("\0".join((experiment, run.kind, run.key)).encode()).hexdigest()[:16]


def _put(named: Named, folder: Path, experiment: str, former: Path) -> None:
    """Complete the staged logs to a run folder, and move it to its place."""
    run, staged = named.found, named.found.staged.folder
    config = {"format": FORMAT, "id": folder.name, "seed": named.seed, "config": dict(run.config)}
    files.write_atomic(staged / "config.yaml", files.dump_yaml(json.loads(json.dumps(config))))
    imported = {"experiment": experiment, "from": run.kind, "run": run.name, "key": run.key, "place": run.place,
                "rows": run.staged.rows, "unused": run.staged.unused, "left_out": run.staged.left_out}  # fmt: skip
    files.write_json(staged / "provenance.json", {"commit": run.commit, "dirty": False, "imported": imported})
    if run.problem is None:
        files.write_json(staged / "summary.json", {**run.staged.summary, "warnings": {}})
    state = State(
        folder.name,
        RunState.DONE if run.problem is None else RunState.FAILED,
        attempt=run.staged.attempts,
        started=run.started,
        finished=run.staged.finished,
        message=run.problem,
        manifest=whole.seal(staged, with_times=False) if run.problem is None else None,
    )
    write_state(staged, state)
    if folder.exists():
        folder.rename(former)
    staged.rename(folder)
