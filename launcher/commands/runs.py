"""python -m launcher runs: a line for each run: id, group, factors, seed, state, job, step, folder.

Without a name, the runs of every planned experiment; with --all, also those that no plan names. Exit codes: 0 fine, 2
no such run or experiment.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.commands import output, selection
from launcher.project import EXIT_FINE
from launcher.run import catalog, launch_record, lifecycle
from launcher.run.folder import run_folder
from launcher.status import tables
from launcher.status.standing import Index
from launcher.text import counted

HELP = "list runs: id, group, factors, seed, state, job, step, folder"


def arguments(parser: argparse.ArgumentParser) -> None:
    selection.add(parser, nargs="*", default="every planned run")
    parser.add_argument("--all", action="store_true", help="also the runs that no plan names")


def run(given: argparse.Namespace) -> int:
    """JSON: runs, each with id, experiment, group, factors, seed, state, kind, cause, job, step, folder."""
    places = _places(given.multirun, given.names, given.all)
    index = Index(given.multirun)
    rows = index.refresh({entry["id"]: None for _, entry in places})
    index.save()
    jobs = launch_record.jobs_of(given.multirun, {run_id: row.launch_id for run_id, row in rows.items()})
    listed = []
    for experiment, entry in places:
        row, folder = rows.get(entry["id"]), run_folder(given.multirun, entry["id"])
        listed.append(
            {
                "id": entry["id"],
                "experiment": experiment,
                "group": entry.get("group"),
                "factors": entry.get("factors") or {},
                "seed": entry.get("seed"),
                "state": lifecycle.true_state(folder, row.state if row else None),
                "kind": row.failure_kind if row else None,
                "cause": row.message if row else None,
                "job": jobs.get(entry["id"]),
                "step": row.step if row else 0,
                "folder": str(folder),
            }
        )
    output(given, {"runs": listed}, _lines(listed) if listed else [f"{given.multirun}: no run is planned"])
    return EXIT_FINE


def _places(multirun: Path, names: Sequence[str], everything: bool) -> list[tuple[str | None, Mapping[str, Any]]]:
    """The experiment and the plan's entry of each run; of one that no plan names, None and its id alone.

    A run has several places in a plan that has it in several groups.
    """
    plans = catalog.plans(multirun)
    every = [(name, entry) for name, plan in plans.items() for entry in plan["runs"]]
    chosen: list[tuple[str | None, Mapping[str, Any]]] = [] if names else [*every]
    for name in names:
        ids = catalog.named(multirun, name)
        if name in plans:
            chosen += [place for place in every if place[0] == name]
        else:
            found = [place for place in every if place[1]["id"] == ids[0]]
            chosen += found[:1] if found else [(None, {"id": ids[0]})]
    if everything:
        planned = {run_id for plan in plans.values() for run_id in catalog.entries(plan)}
        chosen += [(None, {"id": run_id}) for run_id in catalog.run_ids(multirun) if run_id not in planned]
    return list({(name, entry["id"], entry.get("group")): (name, entry) for name, entry in chosen}.values())


def _lines(listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    several = len({row["experiment"] for row in listed}) > 1
    columns = ["id", *(["experiment"] if several else []), "group", "factors", "seed", "state"]
    columns += [*(["job"] if any(row["job"] for row in listed) else []), "step", "folder"]
    yield from tables.lines(columns, [[_cell(row, column) for column in columns] for row in listed], ("seed", "step"))
    yield counted(len({row["id"] for row in listed}), "run")


def _cell(row: Mapping[str, Any], column: str) -> str:
    value = row[column]
    if column == "factors":
        return " ".join(f"{key}={level}" for key, level in value.items())
    if column == "state":
        return tables.state_name(value)
    return "" if value is None else str(value)
