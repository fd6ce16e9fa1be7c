"""What verl prints for each step (trainer.logger=[console]), in a file: `step:NUMBER - METRIC:NUMBER - ...`.

Ray puts the name of a process before each line, and colours. verl also prints the run's configuration, which is read if
it is complete. Early versions of verl round to three decimals, so that a learning rate is printed as 0.000.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.sources.log import BadImport, Log
from analysis.sources.source import LoggedRun, below, configuration_in, names, opened, source
from analysis.spec.validation import Objection

_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
#: The process whose line it is, such as `(TaskRunner pid=87031, ip=10.0.0.1) `.
_PROCESS = re.compile(r"\([^()]* pid=\d+[^()]*\) ?")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
#: What a run prints before its first step.
_BEGUN = re.compile(r"\(TaskRunner pid=|\{'(?:actor_rollout_ref|algorithm)': ")
_SECTIONS = {"data", "trainer", "algorithm"}  # sections of verl's configuration
_LONGEST = 5000  # lines of a configuration


@source
class ConsoleFiles:
    """A run is a file. A last line without an end, which a crash leaves, is not used."""

    kind, files, beats = "verl's console", (".log", ".out", ".txt"), ()

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        found = names(place, filter(_is_printed, below(place, *(f"*{ending}" for ending in self.files))), ending=True)
        if place.is_file() and not found:
            shape = "no line has the shape step:NUMBER - METRIC:NUMBER - ..., which verl prints for each step"
            raise BadImport(Objection("SOURCE", place, shape, "give what verl printed; rename a table to .csv"))
        return found

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        together = Counter(path.parent for path in places)
        for path, name in places.items():
            lines = list(_lines(path))
            log = Log(path)
            for match in filter(None, map(_STEP.search, lines)):
                parts = (part.rpartition(":") for part in match[2].split(" - "))
                log.add(int(match[1]), {key: text for key, _, text in parts if key})
            log.resolve(step)
            beside = configuration_in([path.parent], keys) if together[path.parent] == 1 else {}
            yield LoggedRun(self.kind, name, _configuration(lines) or beside, log)


def _lines(path: Path) -> Iterator[str]:
    """The lines that are complete, without colours. Progress bars return to the start of a line to write it again."""
    with io.TextIOWrapper(opened(path), encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.endswith("\n"):
                yield from _CONTROL.sub("", line).rstrip("\r\n").split("\r")


def _is_printed(path: Path) -> bool:
    """Whether a file has a line of a step, or the beginning of a run of verl."""
    return any(_STEP.search(line) or _BEGUN.search(line) for line in _lines(path))


def _configuration(lines: Sequence[str]) -> Mapping[str, Any]:
    """verl's configuration as it prints it, over many lines of one process; empty if it is not there, or not whole."""
    for first, line in enumerate(lines):
        process = _process(line)
        if not line.startswith("{'", len(process)):
            continue
        text = ""
        for other in lines[first : first + _LONGEST]:
            if _process(other) != process:
                continue  # of another process, in between
            text += other[len(process) :] + "\n"
            if not other.endswith("}"):
                continue
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                printed = ast.literal_eval(text)
                if isinstance(printed, dict) and printed.keys() >= _SECTIONS:
                    return printed
                break
    return {}


def _process(line: str) -> str:
    match = _PROCESS.match(line)
    return match[0] if match else ""
