"""The files of verl's `file` logger (trainer.logger=[console,file]): PROJECT/EXPERIMENT.jsonl, a line for each step.

Such a file does not contain the configuration of its run, when its lines were written, or how the run ended. The
configuration is taken from the file that Hydra leaves beside it, if there is one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from analysis.sources.log import BadImport, Log
from analysis.sources.source import LoggedRun, configuration_in, names, source
from analysis.spec.validation import KEY_ALONE, Diagnostics

_KEYS = {"step", "data"}


@source
class VerlFiles:
    """A run is a file. A last line without an end, which a crash leaves, is not used."""

    kind, files, beats = "verl", (".jsonl",), ("verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """See Source.found. A .jsonl file below a folder that begins with a line of another program is left out; so is
        one without a whole line that stands among such files."""
        root = place.resolve()
        if root.is_file():
            return names(place, [root], ending=True)
        ours = {path: _is_ours(path) for path in root.rglob("*.jsonl") if path.is_file()}
        others = {path.parent for path in ours if ours[path] is False} - {path.parent for path in ours if ours[path]}
        logs = [path for path in ours if ours[path] or (ours[path] is None and path.parent not in others)]
        return names(place, logs, ending=True)

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        """See Source.read."""
        problems = Diagnostics()
        together = Counter(path.parent for path in places)
        for path, name in places.items():
            log = _log(path, problems)
            if problems:
                continue
            log.resolve(step)
            beside = path.with_suffix("")
            # a folder's configuration says nothing where the folder holds the files of several runs
            config = configuration_in([beside, path.parent] if together[path.parent] == 1 else [beside])
            yield LoggedRun(self.kind, name, config, log)
        problems.raise_any(BadImport)


def _is_ours(path: Path) -> bool | None:
    """Whether the first line that is JSON is one of verl's logger; None for a file without a whole line, of a run that
    ended before its first step."""
    with path.open("rb") as file:
        for number, text in enumerate(file):
            try:
                line = json.loads(text)
            except ValueError:
                torn = text.strip(b"\0\r\n ")
                if number == 0 and not text.endswith(b"\n") and b'{"step"'.startswith(torn[:7]):
                    return None
                continue
            return isinstance(line, dict) and set(line) == _KEYS
    return False if path.stat().st_size else None


def _log(path: Path, problems: Diagnostics) -> Log:
    log = Log(path)
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
            except ValueError as error:
                if not text.endswith(b"\n"):  # a crash cut it off: verl writes each line with its end at once
                    log.unused["incomplete last line"] += 1
                    continue
                fix = "remove this line, or move the file away"
                problems.add(f"line {number}", KEY_ALONE, f"not JSON ({error})", fix, path)
                continue
            if not isinstance(line, dict) or set(line) != _KEYS or not isinstance(line["data"], dict):
                shape = 'must be {"step": NUMBER, "data": {METRIC: NUMBER, ...}}'
                fix = "give files of verl's logger `file` alone as SOURCE"
                problems.add(f"line {number}", KEY_ALONE, shape, fix, path)
                continue
            step = line["step"]
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                rule = "must be a whole number, 0 or more"
                problems.add(f"line {number}: step", step, rule, "remove this line", path)
                continue
            # orjson, with which verl writes, has no word for what is not a number, or infinite, but null
            values = {key: math.nan if value is None else value for key, value in line["data"].items()}
            log.add(step, values, f"line {number}")
    return log
