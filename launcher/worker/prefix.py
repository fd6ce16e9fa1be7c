"""A run that continues another one takes over its first steps before its first attempt: logs, evaluations, checkpoint.

The files of the other run are linked or copied, so that the folder needs no other one. The checkpoint is taken last: if
the worker dies earlier, the run has no checkpoint, and the next worker takes everything over again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from launcher import files
from launcher.application import application
from launcher.run import evaluations, lifecycle, whole
from launcher.run.folder import (
    checkpoint_name,
    checkpoints,
    checkpoints_folder,
    histograms_path,
    latest_checkpoint,
    metrics_path,
    multirun_of,
    read_config,
    responses_path,
    run_folder,
)
from launcher.run.lifecycle import State, known_state


def attempts(folder: Path, state: State) -> int:
    """The number of attempts so far; if the run is about to continue another one, at least those of the other run."""
    source = known_state(_source(folder, state)) if _is_pending(folder, state) else None
    return max(state.attempt, source.attempt if source is not None else 0)


def adopt(folder: Path, state: State) -> State:
    """Take over the first steps of the run `state.prefix`, unless that was done before. Returns the new state.

    If these steps are gone, the run begins at its first step, with the same result. The caller must hold the folder's
    lock and its claim.
    """
    if not _is_pending(folder, state):
        return state
    source, step = _source(folder, state), state.prefix_step or 0
    with suppress(FileNotFoundError), lifecycle.locked(source):  # `gc` deletes checkpoints under this lock
        before, checkpoint = known_state(source), dict(checkpoints(source)).get(step)
        if lifecycle.is_done(before) and not whole.problem(source, before) and checkpoint is not None:
            _take_logs(source, folder, step)
            _take_checkpoint(checkpoint, folder, step)
            return state.replace(code=before.code)
    return state.replace(prefix=None, prefix_step=None)


def _is_pending(folder: Path, state: State) -> bool:
    return state.prefix is not None and latest_checkpoint(folder) is None


def _source(folder: Path, state: State) -> Path:
    return run_folder(multirun_of(folder), str(state.prefix))


def _take_logs(source: Path, folder: Path, step: int) -> None:
    """Write the log records up to a step that a run of this length would have; the application selects them."""
    config = read_config(folder)
    kept = application(config).first_steps(config)
    for path in (metrics_path, histograms_path, responses_path):
        is_kept = kept.get(path(folder).name)
        records = [line for line in files.json_lines(path(source)) if line["step"] <= step]
        records = records if is_kept is None else list(filter(is_kept, records))
        if records:
            files.write_atomic(path(folder), "".join(json.dumps(line) + "\n" for line in records))
    for evaluated, file in evaluations.paths(source).items():
        if evaluated <= step:
            parent = evaluations.evaluations_folder(folder)
            parent.mkdir(exist_ok=True)
            (parent / file.name).unlink(missing_ok=True)
            files.link_or_copy(file, parent / file.name)


def _take_checkpoint(checkpoint: Path, folder: Path, step: int) -> None:
    parent = checkpoints_folder(folder)
    with files.new_folder(parent / checkpoint_name(step)) as aside:
        for at, _, names in os.walk(checkpoint):
            target = aside / Path(at).relative_to(checkpoint)
            target.mkdir(exist_ok=True)
            for name in names:
                files.link_or_copy(Path(at) / name, target / name)
            files.fsync_folder(target)
    files.fsync_folder(parent)
