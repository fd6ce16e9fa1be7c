"""Freezes a plan: writes the files that it needs and that do not exist yet. A frozen file is rewritten only if the
files that an unfinished run names have moved.

It also records when an experiment declared what decides its question, in multirun/<experiment>/hypotheses.json:

    {"format": 1, "declarations": [{"hash", "time", "planned", "done", "hypotheses", "plan"}, ...]}

The first declaration is written with the first submission. One that differs from the last one is added after it, and
none is ever changed. `plan` has the parts of the plan that a verdict depends on (analysis/spec/declaration.py);
declarations of older versions have only `hypotheses`. `done` holds the ids of the runs that had results at that time,
of all runs that the experiment has ever planned at this scale, and `planned` counts these runs. `hash` is that of the
canonical declaration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.spec import declaration
from analysis.spec.declaration import Declaration
from launcher import files
from launcher.application import Base, application
from launcher.config import content, hydra_compose, identity
from launcher.errors import Diagnostics
from launcher.planning import added_seeds
from launcher.planning.plan import Experiment, Plan, PlannedRun
from launcher.run import lifecycle
from launcher.run.folder import FORMAT, base_path, create_record, read_config, run_folder
from launcher.run.lifecycle import RunState, find_state
from launcher.text import one_line


def freeze(plan: Plan) -> None:
    """Write base trees, run folders, and for each experiment its declaration and plan.json, unless they are there.

    Raises InvalidPlan, before it writes anything, when the frozen configuration of a run that is not done was changed.
    """
    problems = Diagnostics()
    moved = _moved(plan, problems)
    check_declarations(plan, problems)
    problems.raise_any()
    archived = lifecycle.archived(plan.multirun)
    for experiment in plan.experiments:
        folder = plan.multirun / experiment.name
        folder.mkdir(parents=True, exist_ok=True)
        with lifecycle.locked(folder):  # two launches at once must not overwrite each other's declaration
            declare(plan.multirun, experiment, archived)
    for base in plan.bases.values():
        freeze_base(plan.multirun, base)
    for run in plan.runs.values():
        folder = run_folder(plan.multirun, run.id)
        folder.mkdir(parents=True, exist_ok=True)
        if not files.mark_used(folder / "config.yaml") or run.id in moved:
            files.write_atomic(folder / "config.yaml", _frozen(run))
        if not (folder / "state.json").is_file():  # the state is written after the configuration
            state = lifecycle.created(run.id, *plan.prefixes.get(run.id, (None, None)))
            create_record(folder / "state.json", state)
    for experiment in plan.experiments:
        path = plan.multirun / experiment.name / "plan.json"
        text = json.dumps(experiment.document(), indent=1) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            files.write_atomic(path, text)


def freeze_base(multirun: Path, base: Base) -> Path:
    """Write the tree below multirun/bases unless it is there already."""
    path = base_path(multirun, base.hash)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, base.text)
    return path


def _frozen(run: PlannedRun) -> str:
    """What a run's config.yaml says."""
    rules = application(run.config).identity
    frozen = {
        "format": FORMAT,
        "id": run.id,
        "identity": {"version": identity.VERSION, "hash": run.hash},
        "base": run.base,
        **{key: run.config[key] for key in (*rules.sections, *rules.frozen, identity.INPUTS) if key in run.config},
    }
    return "".join(_section(json.dumps({key: value})) for key, value in frozen.items())


@lru_cache(maxsize=1024)
def _section(text: str) -> str:
    """A section in YAML, from JSON: most sections of a run are those of many others."""
    return files.dump_yaml(json.loads(text))


def _moved(plan: Plan, problems: Diagnostics) -> set[str]:
    """The unfinished runs that name files which are not there any more, but have the same content elsewhere.

    It adds a problem for each run whose frozen configuration was changed to that of another run.
    """
    moved = set()
    for run_id, state in lifecycle.find_states(plan.multirun, plan.runs).items():
        folder = run_folder(plan.multirun, run_id)
        path = folder / "config.yaml"
        if state is None or state.state == RunState.DONE or not path.is_file():
            continue
        if path.read_bytes() == _frozen(plan.runs[run_id]).encode("utf-8"):
            continue
        try:
            config = read_config(folder)
            identity.verify(config, run_id)  # labels and resources may differ
        except (ValueError, *hydra_compose.ERRORS) as error:
            away = f"move the folder {folder.name} away; the next launch then runs it from the start"
            problems.add(str(path), "identity", None, one_line(str(error)), f"restore the file, or {away}")
            continue
        if plan.runs[run_id].config.get(identity.INPUTS) and content.changes(config):
            moved.add(run_id)
    return moved


def missing(plan: Plan) -> list[str]:
    """The runs that the same command runs or resumes, in the plan's order: not those done or waiting for `resume`."""
    states = lifecycle.find_states(plan.multirun, plan.runs)
    return [run_id for run_id, state in states.items() if lifecycle.is_missing(state)]


def frozen_plan(folder: Path) -> Experiment | None:
    """The plan in an experiment's folder; None if there is none that can be read, which other checks report."""
    try:
        return Experiment.model_validate_json((folder / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


# ---------------------------------------------------------------- declarations

DECLARATIONS_FORMAT = 1
DECLARATIONS = "hypotheses.json"


def check_declarations(plan: Plan, problems: Diagnostics) -> None:
    """Add a problem for each experiment whose record of declarations cannot be read."""
    for experiment in plan.experiments:
        record = plan.multirun / experiment.name / DECLARATIONS
        try:
            _read_declarations(record)
        except (OSError, ValueError) as error:
            problems.add(str(record), "declarations", None, str(error), "move the file away to begin a new record")


def declare(multirun: Path, experiment: Experiment, archived: Mapping[str, Sequence[Path]]) -> None:
    """Record what an experiment declares, unless its last declaration is the same. Its folder exists, and is locked.

    archived: as `lifecycle.archived` says.
    """
    record, said = multirun / experiment.name / DECLARATIONS, _said(experiment)
    earlier = _read_declarations(record)
    last = declaration.registration(earlier[-1:], experiment.document(), Declaration(1, 1))
    if last is not None and last.plan is not None and not last.changes:
        return
    plans = _plans(experiment.document(), frozen_plan(multirun / experiment.name), earlier)
    known, done = _results(multirun, plans, earlier, archived)
    digest = identity.content_hash(identity.canonical_json(said))
    now = {"hash": digest, "time": time.time(), "planned": len(known), "done": done, **said}
    files.write_json(record, {"format": DECLARATIONS_FORMAT, "declarations": [*earlier, now]})


def declaration_warnings(plan: Plan) -> list[str]:
    """A line for each experiment of which a launch changes what was declared, after results."""
    return [line for experiment in plan.experiments if (line := _warning(plan, experiment)) is not None]


def runs_of_all_plans(plan: Plan) -> set[str]:
    """The runs of a plan, and of those that its experiments have had at this scale, as far as records can be read."""
    ids = {*plan.runs}
    for experiment in plan.experiments:
        folder = plan.multirun / experiment.name
        with suppress(ValueError):  # which the launch refuses
            plans = _plans(experiment.document(), frozen_plan(folder), _read_declarations(folder / DECLARATIONS))
            ids |= {run["id"] for each in plans for run in each["runs"]}
    return ids


def _warning(plan: Plan, experiment: Experiment) -> str | None:
    """What a launch changes of what was declared, or else of the plan that it replaces, or that earlier plans have
    results of more seeds, with the command that keeps every seed. None: none of these, or the record cannot be read,
    which the launch refuses."""
    multirun = plan.multirun
    former, document = frozen_plan(multirun / experiment.name), experiment.document()
    try:
        earlier = _read_declarations(multirun / experiment.name / DECLARATIONS)
    except ValueError:
        return None
    before = earlier
    if former is not None and not any("plan" in entry for entry in earlier):
        before = [{"done": [], "planned": 0, **_said(former)}]
    plans = _plans(document, former, earlier)
    seeds = sorted({seed for each in plans for seed in each["seeds"]})
    more = {*seeds} - {*experiment.seeds} if experiment.sequential is None else set()
    changed = declaration.registration(before, document, Declaration(1, 1))
    if not more and (changed is None or changed.plan is None or not changed.changes):
        return None  # without a look at thousands of runs
    known, done = _results(multirun, plans, earlier, lifecycle.archived(multirun))
    changed = declaration.registration(before, document, Declaration(len(done), len(known)))
    again = added_seeds.with_seeds(experiment.command, seeds, plan.seed_key)
    keep = f" To keep every seed: {again}" if more else ""
    if changed is not None and changed.plan is not None and changed.changes:
        return f"{experiment.name}: {changed.sentence()} Every report says so first.{keep}"
    lost = {run["seed"] for each in plans for run in each["runs"] if run["seed"] in more and run["id"] in done}
    if not lost:
        return None
    named = f"seed{'s' if len(lost) > 1 else ''} {', '.join(map(str, sorted(lost)))}"
    return f"{experiment.name}: runs of {named} are done, but this plan leaves them out.{keep}"


def _said(experiment: Experiment) -> dict[str, Any]:
    """What a plan declares, as a record keeps it."""
    plan = experiment.document()
    section = dict(plan["analysis"])
    hypotheses = section.pop("hypotheses", None) or {}
    return {"hypotheses": hypotheses, "plan": {key: plan[key] for key in declaration.PARTS} | {"analysis": section}}


def _plans(
    plan: Mapping[str, Any], former: Experiment | None, earlier: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The plan, and those that its experiment has had at this scale. former: the one that was frozen last; earlier: its
    declarations."""
    kept = [*earlier, *([{"plan": former.document()}] if former is not None else [])]
    return [plan, *(entry["plan"] for entry in declaration.of_scale(kept, plan) if "plan" in entry)]


def _results(
    multirun: Path,
    plans: Iterable[Mapping[str, Any]],
    earlier: Sequence[Mapping[str, Any]],
    archived: Mapping[str, Sequence[Path]],
) -> tuple[list[str], list[str]]:
    """The runs of some plans, and those of them that have had results."""
    known = list(dict.fromkeys(run["id"] for document in plans for run in document["runs"]))
    seen = {run_id for entry in earlier for run_id in entry["done"]}
    folders = {run_id: [run_folder(multirun, run_id), *archived.get(run_id, ())] for run_id in known}
    return known, [run_id for run_id in known if run_id in seen or any(map(_has_result, folders[run_id]))]


def _has_result(folder: Path) -> bool:
    try:
        return lifecycle.is_done(find_state(folder))
    except files.BadRunFolder:
        return True  # what cannot be read may have been a result


def _read_declarations(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    known = isinstance(value, dict) and value.get("format") == DECLARATIONS_FORMAT
    entries = value.get("declarations") if known else None
    whole = {"done", "planned", "hypotheses"}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and whole <= entry.keys() for entry in entries):
        raise ValueError(f"not a record of declarations in format {DECLARATIONS_FORMAT}")
    return entries
