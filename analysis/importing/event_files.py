"""TensorBoard's event files, read with TensorBoard's own loader: a folder that holds some is a run.

An event file does not contain the configuration of its run, nor how the run ended. The configuration is taken from
TensorBoard's hyperparameters if there are any, else from a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.importing.found import Found, configuration_in, stage

KIND = "TensorBoard"
_PATTERN = "*tfevents*"


@dataclass
class _Logged:
    """The content of a folder's event files: rows and histograms by (attempt, step), and hyperparameters."""

    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    histograms: dict[tuple[int, int, str], dict[str, Any]] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    attempt: int = 1


def find(source: Path) -> list[tuple[str, Path]]:
    """The folders below `source` that hold event files, and their names: the path from the last part of `source`."""
    root = source.resolve()
    folders = sorted({path.parent for path in root.rglob(_PATTERN) if path.is_file()})
    return [(str(folder.relative_to(root.parent)), folder) for folder in folders]


def read(folders: Sequence[tuple[str, Path]], stage_in: Path) -> Iterator[Found]:
    """The runs of these folders. A folder with hyperparameters below another run's folder belongs to that run, as
    torch's SummaryWriter.add_hparams leaves it.

    Raises BadImport for a configuration file that is not YAML.
    """
    places = {folder for _, folder in folders}
    of_parent: dict[Path, dict[str, Any]] = {}
    for number, (name, folder) in reversed(list(enumerate(folders))):  # what is below a folder comes before it
        logged = _read(folder)
        if logged.hparams and folder.parent in places:
            of_parent.setdefault(folder.parent, {}).update(logged.hparams)
            continue
        rows = [logged.rows[key] for key in sorted(logged.rows)]
        if not rows:
            continue
        config = logged.hparams or of_parent.get(folder) or configuration_in([folder, folder.parent])
        staged = stage(stage_in / f"tensorboard-{number}", rows, logged.histograms.values())
        yield Found.in_files(KIND, name, config, staged, attempts=logged.attempt, started=logged.started)


def _read(folder: Path) -> _Logged:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    logged = _Logged()
    plugins: dict[str, str] = {}  # a tag's first value alone says what it is
    for path in sorted(folder.glob(_PATTERN)):
        for event in EventFileLoader(str(path)).Load():
            if logged.started is None:
                logged.started = event.wall_time
            if event.HasField("session_log") and event.session_log.status == SessionLog.START and event.step > 0:
                logged.attempt += 1  # what follows supersedes all from this step on: SummaryWriter(purge_step=...)
                logged.rows = {key: row for key, row in logged.rows.items() if key[1] < event.step}
                logged.histograms = {key: row for key, row in logged.histograms.items() if key[1] < event.step}
            for value in event.summary.value:
                plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                _take(logged, plugin, event, value)
    return logged


def _take(logged: _Logged, plugin: str, event: Any, value: Any) -> None:
    from tensorboard.util.tensor_util import make_ndarray

    if plugin == "hparams":
        logged.hparams |= _hparams(value)
        return
    if not value.HasField("tensor") or plugin not in ("scalars", "histograms", ""):
        return
    about = {"step": int(event.step), "attempt": logged.attempt}
    key = (logged.attempt, int(event.step))
    tensor = np.asarray(make_ndarray(value.tensor))
    if plugin == "histograms":
        if tensor.ndim == 2 and len(tensor):  # rows of left edge, right edge and count
            edges = [float(tensor[0, 0]), *tensor[:, 1].tolist()]
            histogram = {**about, "name": value.tag, "edges": edges, "counts": tensor[:, 2].tolist()}
            logged.histograms[(*key, value.tag)] = histogram
    elif tensor.size == 1 and np.issubdtype(tensor.dtype, np.number):
        row = logged.rows.setdefault(key, {**about, "time": event.wall_time})
        row[value.tag] = float(tensor.reshape(()))


def _hparams(value: Any) -> dict[str, Any]:
    from tensorboard.plugins.hparams import metadata

    if value.tag != metadata.SESSION_START_INFO_TAG:
        return {}
    content = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    return {key: getattr(v, v.WhichOneof("kind")) for key, v in content.hparams.items() if v.WhichOneof("kind")}
