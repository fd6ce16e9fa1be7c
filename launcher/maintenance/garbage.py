"""What of a multirun folder nothing needs any more, found by looking and removed only after looking again.

Never a run's configuration, metrics, summary, provenance or logs (but of a run that never ran and no plan names), and
nothing of a run that may have an owner.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher import files
from launcher.run import catalog, claim, launch_record
from launcher.run import folder as folders

# What a live process writes aside or freezes is younger.
OLD_S = 3600.0
NEVER_RUN = "runs that no plan names and that never ran"
UNFINISHED_WRITE = "left by interrupted writes"
SUPERSEDED = "checkpoints that a newer one supersedes"
OF_DONE = "checkpoints of done runs"
BASE = "verl trees that no run names"
LAUNCH = "records of launches that no run names"
KEPT = "code, lists and logs of launches whose runs are done"

_AT_WORK = (folders.SUBMITTED, folders.RUNNING)
# What a scheduler keeps of a launch (run/launch_record.py), by its token.
_KEPT = re.compile(r"([0-9a-f]+)(\.closed|\.ray\.log)?")
_BASE = re.compile(r"^base: *['\"]?([0-9A-Za-z_-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Leftover:
    """A file or folder to remove. `what` says why it is not needed; `size` is in bytes; `run` is the id of its run."""

    path: Path
    what: str
    size: int
    run: str | None = None


@dataclass(frozen=True)
class Policy:
    """`keep_last`: a done run keeps its last checkpoint. `old`: seconds after which a file is not being written."""

    keep_last: bool = True
    old: float = OLD_S


def find(multirun: Path, policy: Policy) -> list[Leftover]:
    """Everything that may go, runs first. Writes nothing."""
    planned = planned_ids(multirun)
    runs = catalog.run_ids(multirun)
    found = [one for run_id in runs for one in of_run(multirun, run_id, planned, policy)]
    never_run = {one.run for one in found if one.what == NEVER_RUN}
    found += _asides(multirun, policy)
    found += _bases(multirun, [run_id for run_id in runs if run_id not in never_run], policy)
    found += _launches(multirun, runs, policy)
    return found


def delete(multirun: Path, found: list[Leftover], policy: Policy) -> list[Leftover]:
    """Remove what is still not needed, and return it. Of a run, under its lock and while it has no owner."""
    gone: list[Leftover] = []
    planned = planned_ids(multirun)
    for run_id in dict.fromkeys(one.run for one in found if one.run is not None):
        wanted = {one.path for one in found if one.run == run_id}
        # A run that somebody is at stays as it is.
        with suppress(claim.Locked), claim.locked(folders.run_folder(multirun, run_id), claim.PATIENCE_S):
            now = [one for one in of_run(multirun, run_id, planned, policy) if one.path in wanted]
            gone += [one for one in now if _remove(one.path)]
    shared = {one.path for one in found if one.run is None}
    runs = catalog.run_ids(multirun)
    again = [*_asides(multirun, policy), *_bases(multirun, runs, policy), *_launches(multirun, runs, policy)]
    return gone + [one for one in again if one.path in shared and _remove(one.path)]


def planned_ids(multirun: Path) -> set[str]:
    """The runs that some plan names. Raises Usage for a plan that cannot be read: nothing is known to be unneeded."""
    plans = (catalog.read_plan(multirun, name) for name in catalog.experiments(multirun))
    return {run_id for plan in plans for run_id in catalog.entries(plan)}


# ---------------------------------------------------------------- one run


def of_run(multirun: Path, run_id: str, planned: set[str], policy: Policy) -> list[Leftover]:
    """What of this run may go; nothing while it may have an owner or its state cannot be read."""
    folder = folders.run_folder(multirun, run_id)
    try:
        state = folders.find_state(folder)
    except files.BadRunFolder:
        return []
    if state is None or claim.live_claim(folder) is not None:
        return []
    fresh = state.state == folders.PLANNED and state.attempt == 0
    if run_id not in planned and fresh and not _has_run(folder) and _is_old(folder / "config.yaml", policy):
        return [Leftover(folder, NEVER_RUN, size_of(folder), run_id)]
    found = [
        Leftover(path, UNFINISHED_WRITE, size_of(path), run_id)
        for place in (folder, folders.checkpoints_folder(folder))
        for path in _named(place, _is_aside, policy)
    ]
    checkpoints = folders.checkpoints(folder)
    found += [Leftover(path, SUPERSEDED, size_of(path), run_id) for _, path in checkpoints[:-1]]
    if state.state == folders.DONE and not policy.keep_last:
        found += [Leftover(path, OF_DONE, size_of(path), run_id) for _, path in checkpoints[-1:]]
    return found


def _has_run(folder: Path) -> bool:
    places = (folders.metrics_path(folder), folder / "attempts", folders.checkpoints_folder(folder))
    return any(place.exists() for place in places)


# ---------------------------------------------------------------- what runs share


def _asides(multirun: Path, policy: Policy) -> list[Leftover]:
    experiments = [multirun / name for name in catalog.experiments(multirun)]
    places = (multirun, multirun / "bases", launch_record.launches_folder(multirun), *experiments)
    return [
        Leftover(path, UNFINISHED_WRITE, size_of(path)) for place in places for path in _named(place, _is_aside, policy)
    ]


def _bases(multirun: Path, runs: list[str], policy: Policy) -> list[Leftover]:
    """The trees that no run names; none where a run's configuration does not tell its own."""
    named: set[str] = set()
    for run_id in runs:
        try:
            # Reading ten thousand of them as YAML takes half a minute. Top-level keys stand at the beginning of a line.
            match = _BASE.search((folders.run_folder(multirun, run_id) / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        if match is None:
            return []
        named.add(match[1])
    paths = _named(multirun / "bases", lambda name: name.endswith(".yaml"), policy)
    return [Leftover(path, BASE, size_of(path)) for path in paths if path.stem not in named]


def _launches(multirun: Path, runs: list[str], policy: Policy) -> list[Leftover]:
    """Records of launches without a run, and patches that no run shares; none while any run is at work.

    What a scheduler keeps goes when every run of the launch is done. Until then a job that waits in a queue may need
    its code, and the cause of a failure may name its log; a while longer the report of a detached launch may wait.
    """
    named: set[str] = set()
    needed: set[str] = set()
    for run_id in runs:
        try:
            state = folders.find_state(folders.run_folder(multirun, run_id))
        except files.BadRunFolder:
            return []
        if state is None:
            continue
        if state.state in _AT_WORK:
            return []
        named.add(state.job or "")
        if state.state != folders.DONE or time.time() - (state.finished or 0.0) < policy.old:
            needed.add(state.job or "")
    place = launch_record.launches_folder(multirun)
    records = set(_named(place, lambda name: name.endswith(".json"), policy))
    kept = {path for path in records if path.stem in named}
    patches = {launch_record.read(path).patch for path in kept}
    # A run's dirty.patch is the same file under another name.
    free = [
        path
        for path in _named(place, lambda name: name.endswith(".patch"), policy)
        if path.stat().st_nlink == 1 and path.name not in patches
    ]
    found = [Leftover(path, LAUNCH, size_of(path)) for path in (*sorted(records - kept), *free)]
    for path in _named(place, lambda name: _KEPT.fullmatch(name) is not None, policy):
        if path.name.partition(".")[0] not in needed:
            found.append(Leftover(path, KEPT, size_of(path)))
    return found


# ---------------------------------------------------------------- files


def _named(place: Path, chosen: Callable[[str], bool], policy: Policy) -> Iterator[Path]:
    """The old entries of a folder whose name is chosen."""
    try:
        names = sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if chosen(name) and _is_old(place / name, policy):
            yield place / name


def _is_aside(name: str) -> bool:
    return name.startswith(files.ASIDE)


def _is_old(path: Path, policy: Policy) -> bool:
    try:
        return time.time() - path.lstat().st_mtime >= policy.old
    except FileNotFoundError:
        return False


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size
    return sum(size_of(path / name) for name in os.listdir(path))


def _remove(path: Path) -> bool:
    """Remove a file, a link, or a folder with what is in it; whether it is gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return not path.exists()
