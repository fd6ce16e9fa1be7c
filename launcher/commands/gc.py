"""python -m launcher gc: files that are no longer needed; --delete deletes them.

Without --orphans, it keeps every configuration, metric, summary, log and provenance of a run that was started. It
always keeps files that a live process may be writing, and the newest checkpoint of a planned run that is not done.
Files are deleted only if a second search finds them again.
Exit codes: 0 fine, 2 usage.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher import files, text
from launcher.commands import output
from launcher.project import EXIT_FINE
from launcher.run import catalog, launch_record, lifecycle, whole
from launcher.run.folder import checkpoints, checkpoints_folder, metrics_path, run_folder
from launcher.run.lifecycle import RunState, find_state, known_state

HELP = "list files that are no longer needed (old checkpoints, unfinished files); --delete deletes them"
# Files that a live process is writing or freezing are younger.
_OLD_S = 3600.0
NEVER_RUN = "runs that no plan names and that never ran"
ORPHAN = "runs that no plan names"
UNFINISHED_WRITE = "left by interrupted writes"
SUPERSEDED = "checkpoints that a newer one supersedes"
OF_DONE = "checkpoints of done runs"
KEPT = "code, lists and logs of launches whose runs are done"

_ACTIVE = (RunState.SUBMITTED, RunState.RUNNING)
# What a scheduler keeps of a launch (run/launch_record.py), by its token.
_KEPT = re.compile(r"([0-9a-f]+)(\.closed|\.ray\.log)?")


@dataclass(frozen=True)
class Garbage:
    """A file or folder to delete. `what` says why it is not needed; `size` is in bytes; `run` is the id of its run."""

    path: Path
    what: str
    size: int
    run: str | None = None


@dataclass(frozen=True)
class Policy:
    """`keep_last`: keep the last checkpoint of a done run. `orphans`: delete whole runs that no plan names."""

    keep_last: bool = True
    orphans: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delete", action="store_true", help="delete what is listed")
    parser.add_argument(
        "--keep", choices=("last", "none"), default="last", help="checkpoints of done runs to keep; default: last"
    )
    parser.add_argument("--orphans", action="store_true", help="also runs that no plan names, with their results")


def run(given: argparse.Namespace) -> int:
    """JSON: deleted (true or false), bytes, items (what, path, bytes, run)."""
    policy = Policy(keep_last=given.keep == "last", orphans=given.orphans)
    items = find(given.multirun, policy)
    if given.delete:
        items = delete(given.multirun, items, policy)
    size = sum(item.size for item in items)
    listed = [{"what": item.what, "path": str(item.path), "bytes": item.size, "run": item.run} for item in items]
    end = f"{len(items)} files and folders, {text.byte_size(size)}"
    end += ": deleted" if given.delete else "; nothing was deleted; add --delete to delete them, --json to list them"
    lines = [*_lines(items), end] if items else [f"{given.multirun}: there is no file to delete"]
    output(given, {"deleted": given.delete, "bytes": size, "items": listed}, lines)
    return EXIT_FINE


def _lines(items: Sequence[Garbage]) -> Iterator[str]:
    """How many there are of each kind, with an example."""
    kinds: dict[str, list[Garbage]] = defaultdict(list)
    for item in items:
        kinds[item.what].append(item)
    for what, members in kinds.items():
        size = text.byte_size(sum(item.size for item in members))
        yield f"{len(members)} {what}, {size}, such as {text.clean(str(members[0].path))}"


def find(multirun: Path, policy: Policy) -> list[Garbage]:
    """Everything that may be deleted, runs first. Writes nothing."""
    planned = planned_ids(multirun)
    runs = catalog.run_ids(multirun)
    of_runs = [item for run_id in runs for item in of_run(multirun, run_id, planned, policy)]
    return of_runs + _shared(multirun, runs)


def delete(multirun: Path, items: list[Garbage], policy: Policy) -> list[Garbage]:
    """Delete what is still not needed, and return it. Each run is changed under its lock, while it has no owner."""
    deleted: list[Garbage] = []
    planned = planned_ids(multirun)
    for run_id in dict.fromkeys(item.run for item in items if item.run is not None):
        paths = {item.path for item in items if item.run == run_id}
        with suppress(lifecycle.Locked), lifecycle.locked(run_folder(multirun, run_id), lifecycle.PATIENCE_S):
            again = [item for item in of_run(multirun, run_id, planned, policy) if item.path in paths]
            deleted += [item for item in again if remove(item.path)]
    paths = {item.path for item in items if item.run is None}
    runs = catalog.run_ids(multirun)
    return deleted + [item for item in _shared(multirun, runs) if item.path in paths and remove(item.path)]


def planned_ids(multirun: Path) -> set[str]:
    """The runs that some plan names: all runs if a plan cannot be read, because it may name each of them."""
    plans = catalog.plans(multirun)
    if len(plans) < len(catalog.experiments(multirun)):
        return set(catalog.run_ids(multirun))
    return {run_id for plan in plans.values() for run_id in catalog.entries(plan)}


# ---------------------------------------------------------------- one run


def of_run(multirun: Path, run_id: str, planned: set[str], policy: Policy) -> list[Garbage]:
    """What may be deleted of this run; nothing if it may have an owner or its state cannot be read."""
    folder = run_folder(multirun, run_id)
    state = known_state(folder)
    if state is None or lifecycle.live_claim(folder) is not None:
        return []
    began = (metrics_path(folder), folder / "attempts", checkpoints_folder(folder))
    fresh = state.state == RunState.PLANNED and state.attempt == 0 and not any(path.exists() for path in began)
    if run_id not in planned and fresh and _is_old(folder / "config.yaml"):
        return _garbage(NEVER_RUN, [folder], run_id)
    if run_id not in planned and policy.orphans and state.state not in _ACTIVE and _is_old(folder / "state.json"):
        return _garbage(ORPHAN, [folder], run_id)
    items = _unfinished((folder, checkpoints_folder(folder)), run_id)
    paths = [path for _, path in checkpoints(folder)]
    if state.state == RunState.DONE:
        damaged = sorted(folder.glob("attempts/*/checkpoints"))
        items += _garbage(SUPERSEDED, (*paths[:-1], *damaged), run_id)
        if not policy.keep_last and whole.problem(folder, state) is None:
            items += _garbage(OF_DONE, paths[-1:], run_id)
    elif paths and not (paths[-1] / whole.MANIFEST).exists():  # else the run needs all that it keeps
        items += _garbage(SUPERSEDED, paths[:-1], run_id)
    return items


# ---------------------------------------------------------------- what runs share


def _shared(multirun: Path, runs: list[str]) -> list[Garbage]:
    """What belongs to no single run."""
    experiments = [multirun / name for name in catalog.experiments(multirun)]
    parents = (multirun, multirun / "bases", launch_record.launches_folder(multirun), *experiments)
    return [*_unfinished(parents), *_launches(multirun, runs)]


def _launches(multirun: Path, runs: list[str]) -> list[Garbage]:
    """What schedulers have kept of launches all of whose runs are done; none while any run is active.

    Before that, a job in a queue may need its code, and the message of a failure may name its log; the report of a
    detached launch may follow a while later.
    """
    needed: set[str] = set()
    for run_id in runs:
        try:
            state = find_state(run_folder(multirun, run_id))
        except files.BadRunFolder:
            return []
        if state is None:
            continue
        if state.state in _ACTIVE:
            return []
        if state.state != RunState.DONE or time.time() - (state.finished or 0.0) < _OLD_S:
            needed.add(state.launch_id or "")
    paths = sorted(path for path in launch_record.launches_folder(multirun).glob("*") if _KEPT.fullmatch(path.name))
    return _garbage(KEPT, [path for path in paths if _is_old(path) and path.name.partition(".")[0] not in needed])


# ---------------------------------------------------------------- files


def _garbage(what: str, paths: Iterable[Path], run: str | None = None) -> list[Garbage]:
    return [Garbage(path, what, files.size_of(path), run) for path in paths]


def _unfinished(parents: Iterable[Path], run: str | None = None) -> list[Garbage]:
    paths = [path for parent in parents for path in sorted(parent.glob(f"{files.ASIDE}*")) if _is_old(path)]
    return _garbage(UNFINISHED_WRITE, paths, run)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime >= _OLD_S
    except FileNotFoundError:
        return False


def remove(path: Path) -> bool:
    """Delete a file, a link, or a folder with its content; whether it is gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return not path.exists()
