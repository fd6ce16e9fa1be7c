"""W&B's offline runs: offline-run-*/run-ID.wandb, read without a server.

Such a file is a log in LevelDB's format (https://github.com/google/leveldb/blob/main/doc/log_format.md), with a header
of 7 bytes before the first block and zlib's CRC-32. Its records are described by the package `wandb` (wandb.proto),
which has no reader of the format any more.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.data.sweep import leaves
from analysis.importing.found import BadImport, Found, stage

KIND = "W&B"
_IDENT, _BLOCK, _HEADER = b":W&B", 32768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_STEP, _TIME = "_step", "_timestamp"
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass
class _Part:
    """One file: a run, or what a resume of it logged."""

    path: Path
    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    exit_code: int | None


def find(source: Path) -> list[Path]:
    """The files of W&B below a folder, or the file itself."""
    return sorted(source.rglob("run-*.wandb")) if source.is_dir() else [source]


def read(files: Sequence[Path], step: str | None, stage_in: Path) -> Iterator[Found]:
    """The runs of these files; files of one run id are one run, in the order they began. step: the metric that counts
    the steps; None: W&B's own.

    Raises BadImport with every file that holds no run.
    """
    of_run: dict[str, list[tuple[int, Path]]] = {}
    problems = []
    for path in files:
        try:
            run = next((record.run for kind, record in _records(path) if kind == "run"), None)
        except BadImport as error:
            problems.append(str(error))
            continue
        if run is None:
            problems.append(
                f"{path}: holds no run, because its process was killed before W&B wrote a first block; fix: give only "
                "the other folders as SOURCE, or move this folder away"
            )
            continue
        key = "/".join((run.entity, run.project, run.run_id))
        of_run.setdefault(key, []).append((run.start_time.ToNanoseconds(), path))
    if problems:
        raise BadImport("\n".join(problems))
    for number, (key, paths) in enumerate(of_run.items()):
        yield _found(key, [_part(path, step) for _, path in sorted(paths)], stage_in / f"wandb-{number}")


def _found(key: str, parts: Sequence[_Part], folder: Path) -> Found:
    run, last = parts[0].run, parts[-1]
    rows, histograms = [], []
    for attempt, part in enumerate(parts, start=1):
        for line in part.history:
            about = {"step": line["step"], "attempt": attempt}
            rows.append({**about, "time": line["time"], **line["metrics"]})
            histograms += [{**about, "name": name, **histogram} for name, histogram in line["histograms"].items()]
    config = {key: value for part in parts for key, value in part.config.items()}
    of_run = {"id": run.run_id, "name": run.display_name, "group": run.run_group, "job_type": run.job_type,
              "project": run.project, "tags": ",".join(run.tags)}  # fmt: skip
    problem = None
    if last.exit_code is None:
        problem = "its file has no end: it was killed, or still runs"
    elif last.exit_code:
        problem = f"exit code {last.exit_code}"
    return Found(
        kind=KIND,
        name=run.run_id,
        key=key,
        place=last.path.parent.name,
        config=config,
        about={**leaves(config), **{f"wandb.{word}": value for word, value in of_run.items() if value}},
        staged=stage(folder, rows, histograms),
        problem=problem,
        attempts=len(parts),
        started=run.start_time.ToNanoseconds() / 1e9 or None,
        commit=run.git.commit,
    )


def _part(path: Path, step: str | None) -> _Part:
    part = _Part(path, None, {}, [], None)
    now: int | None = None
    for kind, record in _records(path):
        if kind == "run":
            part.run = record.run
            _update(part.config, record.run.config)
        elif kind == "config":
            _update(part.config, record.config)
        elif kind == "exit":
            part.exit_code = record.exit.exit_code
        elif kind == "history":
            line = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            counted = line.get(step or _STEP, now)
            if counted is None:
                continue  # before the first line that says its step
            number = isinstance(counted, (int, float)) and not isinstance(counted, bool)
            if not number or counted != int(counted) or counted < 0:
                raise BadImport(f"{path}: {step or _STEP} = {counted!r}: must be a whole number, 0 or more; fix: name "
                                f"another metric with --step, or omit --step to use W&B's own steps")  # fmt: skip
            now = int(counted)
            part.history.append({"step": now, "time": line.get(_TIME), **_sorted(line)})
    if step is not None and not part.history:
        raise BadImport(f"{path}: --step {step}: no line has this metric; fix: name a metric that the run recorded")
    return part


def _update(config: dict[str, Any], record: Any) -> None:
    for item in record.update:
        *outer, last = list(item.nested_key) or [item.key]
        if (outer or [last])[0] == "_wandb":
            continue
        level = config
        for key in outer:
            level = level.setdefault(key, {})
        level[last] = json.loads(item.value_json)


def _sorted(line: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and histograms of a line of W&B's history; texts, images and tables are left out."""
    histograms = {}
    for key in [key.removesuffix("._type") for key, value in line.items() if key.endswith("._type")]:
        if line[f"{key}._type"] == "histogram" and f"{key}.bins" in line:
            histograms[key] = {"edges": line[f"{key}.bins"], "counts": line[f"{key}.values"]}
    metrics = {}
    for key in sorted(line):
        value = _NUMBERS.get(line[key], line[key]) if isinstance(line[key], str) else line[key]
        kept = not key.startswith("_") and not any(key.startswith(f"{name}.") for name in histograms)
        if kept and isinstance(value, (int, float)):
            metrics[key] = float(value)
    return {"metrics": metrics, "histograms": histograms}


def _records(path: Path) -> Iterator[tuple[str | None, Any]]:
    """The complete records of a file with their kinds, up to the first torn one, which a crash leaves."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # generated, and without types
    data = path.read_bytes()
    if not data.startswith(_IDENT):
        raise BadImport(f"{path}: not a file of W&B; fix: give a run-*.wandb file, or a folder of them")
    offset, whole = 7, b""
    while offset + _HEADER.size <= len(data):
        left = _BLOCK - offset % _BLOCK
        if left < _HEADER.size:  # a header never crosses a block's end
            offset += left
            continue
        crc, length, kind = _HEADER.unpack_from(data, offset)
        body = data[offset + _HEADER.size : offset + _HEADER.size + length]
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
            return
        offset += _HEADER.size + length
        whole = body if kind in (_FULL, _FIRST) else whole + body
        if kind in (_FULL, _LAST):
            record = messages.Record()
            record.ParseFromString(whole)
            yield record.WhichOneof("record_type"), record
