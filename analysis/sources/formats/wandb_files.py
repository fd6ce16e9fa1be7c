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
from pathlib import Path
from typing import Any

from analysis.sources.log import BadImport, Log
from analysis.sources.source import LoggedRun, below, source
from analysis.spec.validation import KEY_ALONE, Diagnostics, Objection

_IDENT, _BLOCK, _HEADER = b":W&B", 32768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_STEP, _TIME = "_step", "_timestamp"


@source
class WandbFiles:
    """Files of one run id are one run, in the order in which they began."""

    kind, files, beats = "W&B", (".wandb",), ("JSONL", "verl's console", "CSV", "Parquet")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """See Source.found; the names are the ids of the runs."""
        return {path: path.stem.removeprefix("run-") for path in below(place, "run-*.wandb")}

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        """See Source.read. Files of one run that both begin at its first step are refused."""
        begun: dict[str, list[tuple[int, Path]]] = {}
        killed: list[Path] = []
        problems = Diagnostics()
        for path in places:
            try:
                run = next((record.run for kind, record in _records(path) if kind == "run"), None)
            except BadImport as error:
                problems += error.args
                continue
            if run is None:
                killed.append(path)
                continue
            key = "/".join((run.entity, run.project, run.run_id))
            begun.setdefault(key, []).append((run.start_time.ToNanoseconds(), path))
        problems.raise_any(BadImport)
        for key, paths in begun.items():
            yield _run(self.kind, key, [path for _, path in sorted(paths)], step)
        ids = {key.rpartition("/")[2] for key in begun}
        for path in killed:
            if (name := places[path]) not in ids:
                log, why = Log(path), "it was killed before W&B wrote its configuration"
                log.resolve()
                yield LoggedRun(self.kind, name, {}, log, {"wandb.id": name}, why)


def _run(kind: str, key: str, paths: Sequence[Path], step: str | None) -> LoggedRun:
    """A run from its files; those after the first are what its resumes logged."""
    run: Any = None
    log, config = Log(paths[-1]), dict[str, Any]()
    log.by = _STEP
    for path in paths:
        log.begin()
        exit_code, now, of_file = None, None, dict[str, Any]()
        for content, record in _records(path):
            if content == "run":
                run = record.run if path == paths[0] else run
                _update(of_file, record.run.config)
            elif content == "config":
                _update(of_file, record.config)
            elif content == "exit":
                exit_code = record.exit.exit_code
            elif content == "history":
                items = record.history.item
                row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
                now = row.get(_STEP, now)
                _add(log, now, row)
        config |= of_file
    log.resolve(step)
    of_run = {"id": run.run_id, "name": run.display_name, "group": run.run_group, "job_type": run.job_type,
              "project": run.project, "tags": ",".join(run.tags)}  # fmt: skip
    ended = "its file has no end: it was killed, or still runs" if exit_code is None else f"exit code {exit_code}"
    return LoggedRun(
        kind=kind,
        name=run.run_id,
        config=config,
        log=log,
        labels={f"wandb.{word}": value for word, value in of_run.items() if value},
        problem=None if exit_code == 0 else ended,
        started=run.start_time.ToNanoseconds() / 1e9 or None,
        key=key,
        place=paths[-1].parent.name,
        commit=run.git.commit,
    )


def _add(log: Log, step: int | None, row: Mapping[str, Any]) -> None:
    if step is None:
        log.unused["before the first row with a step"] += 1
        return
    # W&B itself adds the keys with an underscore in front. A picture, or a table, has a type and further keys below it.
    media = {key.removesuffix("._type"): value for key, value in row.items() if key.endswith("._type")}
    values = {
        key: value
        for key, value in sorted(row.items())
        if not key.startswith("_") and not any(key.startswith(f"{name}.") for name in media)
    }
    log.add(step, values, time=row.get(_TIME))
    for name, kind in media.items():
        if kind == "histogram" and f"{name}.bins" in row:
            log.add_histogram(name, row[f"{name}.bins"], row[f"{name}.values"])


def _update(config: dict[str, Any], record: Any) -> None:
    for item in record.update:
        *outer, last = list(item.nested_key) or [item.key]
        if (outer or [last])[0] == "_wandb":
            continue
        level = config
        for key in outer:
            level = level.setdefault(key, {})
        level[last] = json.loads(item.value_json)


def _records(path: Path) -> Iterator[tuple[str | None, Any]]:
    """The complete records of a file with their kinds, up to the first torn one, which a crash leaves."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # generated, and without types
    data = path.read_bytes()
    if not data.startswith(_IDENT):
        fix = "give a run-*.wandb file, or a folder of them"
        raise BadImport(Objection(str(path), KEY_ALONE, "not a file of W&B", fix))
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
