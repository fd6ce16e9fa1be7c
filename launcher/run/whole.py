"""Whether a run folder, or a checkpoint, is whole: manifest.json has the digest of each of its files.

A run's is written just before `done`; a checkpoint's has the run's logs, too. Those of older versions have none.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from launcher import files
from launcher.run import catalog
from launcher.run.folder import Manifest, find_record, is_imported, metrics_path, multirun_of, read_record, write_record
from launcher.run.lifecycle import RunState, State

MANIFEST = "manifest.json"
_LOGS = frozenset({"config.yaml", "metrics.jsonl", "histograms.jsonl", "responses.jsonl", "evaluations"})
_OF_RUN = _LOGS | {"summary.json", "provenance.json"}


def seal(folder: Path, with_times: bool = True) -> str:
    """Write the manifest of a run that ends; its digest, for the state. Without times, each check reads the files."""
    times = {name: stat.st_mtime_ns for name, stat in _stats(folder, _OF_RUN).items()}
    write_record(folder / MANIFEST, Manifest(_digests(folder, times), times if with_times else {}))
    return _digest(folder / MANIFEST)


def problem(folder: Path, state: State) -> str | None:
    """Which file of a done run is not as it was at the end, and the fix; None also for a run of an older version."""
    if state.state != RunState.DONE or state.manifest is None:
        return None
    changed: str | None = f"{folder / MANIFEST} was changed or lost"
    if _digest(folder / MANIFEST) == state.manifest:
        recorded, stats = read_record(Manifest, folder / MANIFEST), _stats(folder, _OF_RUN)
        old = {name for name, stat in stats.items() if recorded.times.get(name) == stat.st_mtime_ns}
        same = {name: digest for name, digest in recorded.files.items() if name in old}
        changed = _difference(folder, recorded.files, {**same, **_digests(folder, stats.keys() - old)})
    again = f"run `{catalog.command(multirun_of(folder), 'rerun', folder.name)}`"
    with suppress(files.BadRunFolder):
        again = "repeat the import" if changed and is_imported(folder) else again
    return changed and f"{changed} after the run was done. Fix: restore it, or {again}"


def stamp(folder: Path) -> int:
    """A number that changes when a file that a run's manifest covers gets another size or time."""
    stats = _stats(folder, _OF_RUN | {MANIFEST})
    return zlib.crc32(repr(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items())).encode())


def log_problem(folder: Path, steps: int, first: int) -> str | None:
    """Why the metric log does not have each step from `first` to `steps` once; None: it does."""
    path = metrics_path(folder)
    logged = (record.get("step") for record in files.json_lines(path))
    counts = Counter(step for step in logged if isinstance(step, int))
    wrong = next((step for step in range(first, steps + 1) if counts[step] != 1), None)
    return None if wrong is None else f"{path} {'repeats' if counts[wrong] else 'lacks'} step {wrong}"


def seal_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Write the manifest of a complete checkpoint of the run in `folder`, whose logs end with its step."""
    of_run = _digests(folder, _stats(folder, _LOGS))
    write_record(checkpoint / MANIFEST, Manifest(_digests(checkpoint, _stats(checkpoint)), run=of_run))


def checkpoint_problem(checkpoint: Path, folder: Path | None = None) -> str | None:
    """Which file of a checkpoint is not as it was written; None also for a checkpoint of an older version.

    folder: of the run that is to resume from it, whose logs were cut at its step; they must be as they were then, too.
    """
    try:
        recorded = find_record(Manifest, checkpoint / MANIFEST)
    except files.BadRunFolder:
        return f"{checkpoint / MANIFEST} cannot be read"
    if recorded is None:
        return None
    changed = _difference(checkpoint, recorded.files, _digests(checkpoint, _stats(checkpoint).keys() - {MANIFEST}))
    now = _digests(folder, _stats(folder, _LOGS)) if folder is not None and changed is None else {}
    if now.get("config.yaml") != recorded.run.get("config.yaml"):  # another run, which this one continues, wrote it
        return changed
    return changed or _difference(Path(folder or ""), recorded.run, now)


def _difference(folder: Path, recorded: Mapping[str, str], present: Mapping[str, str]) -> str | None:
    for name in sorted({*recorded, *present}):
        if not present.get(name) or present[name] != recorded.get(name):
            how = "added" if name not in recorded else "changed" if name in present else "lost"
            return f"{folder / name} was {how}"
    return None


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file, by its path in the folder; empty: it cannot be read."""
    from concurrent.futures import ThreadPoolExecutor  # slow, and `status` reads the times alone

    names = sorted(names)
    with ThreadPoolExecutor(8) as threads:  # hashlib releases Python's lock
        return dict(zip(names, threads.map(_digest, [folder / name for name in names]), strict=True))


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _stats(folder: Path, chosen: Collection[str] | None = None, within: str = "") -> dict[str, os.stat_result]:
    """The status of the files below a folder, by their paths in it; chosen: only of those entries of the folder."""
    stats: dict[str, os.stat_result] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if chosen is not None and entry.name not in chosen:
                continue
            name = within + entry.name
            if entry.is_dir():
                stats |= _stats(folder / entry.name, None, f"{name}/")
            else:
                stats[name] = entry.stat()
    return stats
