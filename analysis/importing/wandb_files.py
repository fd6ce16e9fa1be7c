"""W&B's offline runs: offline-run-*/run-ID.wandb, read without a server.

Such a file is a log in LevelDB's format (https://github.com/google/leveldb/blob/main/doc/log_format.md), with a header
of 7 bytes before the first block and zlib's CRC-32. Its records are described by the package `wandb` (wandb.proto),
which has no reader of the format any more.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.importing.found import Found
from analysis.importing.log import BadImport, Log

KIND = "W&B"
FILES = (".wandb",)
_IDENT, _BLOCK, _HEADER = b":W&B", 32768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_STEP, _TIME = "_step", "_timestamp"


@dataclass
class _Part:
    """One file: a run, or what a resume of it logged. history: the step, time and line of each row."""

    path: Path
    run: Any
    config: dict[str, Any]
    history: list[tuple[int, float | None, dict[str, Any]]]
    exit_code: int | None = None
    unused: int = 0


def find(source: Path, step: str | None) -> dict[Path, str]:
    """The files of W&B below a folder, or the file itself, and the ids of their runs."""
    files = source.rglob("run-*.wandb") if source.is_dir() else [source]
    return {path: path.stem.removeprefix("run-") for path in files}


def read(files: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[Found]:
    """The runs of these files; files of one run id are one run, in the order they began. step: the metric that counts
    the steps; None: W&B's own.

    Raises BadImport with every file that is not W&B's, and for files of one run that both begin at its first step.
    """
    begun: dict[str, list[tuple[int, Path]]] = {}
    killed: list[Path] = []
    problems = []
    for path in files:
        try:
            run = next((record.run for kind, record in _records(path) if kind == "run"), None)
        except BadImport as error:
            problems.append(str(error))
            continue
        if run is None:
            killed.append(path)
            continue
        key = "/".join((run.entity, run.project, run.run_id))
        begun.setdefault(key, []).append((run.start_time.ToNanoseconds(), path))
    if problems:
        raise BadImport("\n".join(problems))
    for key, paths in begun.items():
        yield _found(key, [_part(path) for _, path in sorted(paths)], step)
    ids = {key.rpartition("/")[2] for key in begun}
    for path in killed:
        if (name := files[path]) not in ids:
            log = Log(path)
            log.resolve()
            yield Found(KIND, name, {}, log, {"wandb.id": name}, "it was killed before W&B wrote its configuration")


def _found(key: str, parts: Sequence[_Part], step: str | None) -> Found:
    run, last, log = parts[0].run, parts[-1], Log(parts[-1].path)
    for part in parts:
        log.begin()
        log.unused["before the first row with a step"] += part.unused
        for own, time, line in part.history:
            histograms = _histograms(line)
            log.add(own, _values(line, histograms), time=time)
            for name, histogram in histograms.items():
                log.add_histogram(name, *histogram)
    if step is not None and len(log) and step not in log.metrics:
        raise BadImport(
            f"{last.path}: --step {step}: no line has this metric; fix: name a metric that the run recorded"
        )
    log.resolve(step)
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
        config=config,
        log=log,
        labels={f"wandb.{word}": value for word, value in of_run.items() if value},
        problem=problem,
        started=run.start_time.ToNanoseconds() / 1e9 or None,
        key=key,
        place=last.path.parent.name,
        commit=run.git.commit,
    )


def _part(path: Path) -> _Part:
    part = _Part(path, None, {}, [])
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
            now = line.get(_STEP, now)
            if now is None:
                part.unused += 1
                continue
            part.history.append((now, line.get(_TIME), line))
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


def _histograms(line: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The edges and counts of each histogram of a line of W&B's history."""
    names = [
        key.removesuffix("._type") for key, value in line.items() if key.endswith("._type") and value == "histogram"
    ]
    return {name: (line[f"{name}.bins"], line[f"{name}.values"]) for name in names if f"{name}.bins" in line}


def _values(line: Mapping[str, Any], histograms: Collection[str]) -> dict[str, Any]:
    """The rest of the line, without what W&B itself adds, and without what a table or picture consists of."""
    media = {key.removesuffix("._type") for key in line if key.endswith("._type")} | set(histograms)
    return {
        key: value
        for key, value in sorted(line.items())
        if not key.startswith("_") and not any(key.startswith(f"{name}.") for name in media)
    }


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
