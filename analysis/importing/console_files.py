"""What verl prints for each step (trainer.logger=[console]), in a file: `step:NUMBER - METRIC:NUMBER - ...`.

Ray puts the name of a process before each line, and colours. verl also prints the run's configuration, which is read if
it is complete. Early versions of verl round to three decimals, so that a learning rate is printed as 0.000.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.importing.found import Found, names
from analysis.importing.log import BadImport, Log

KIND = "verl's console"
FILES = (".log", ".out", ".txt")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
#: The process whose line it is, such as `(TaskRunner pid=87031, ip=10.0.0.1) `.
_PROCESS = re.compile(r"\([^()]* pid=\d+[^()]*\) ?")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
#: What a run prints before its first step.
_BEGUN = re.compile(r"\(TaskRunner pid=|\{'(?:actor_rollout_ref|algorithm)': ")
_SECTIONS = {"data", "trainer", "algorithm"}  # of verl's configuration
_LONGEST = 5000  # lines of a configuration


def find(source: Path, step: str | None) -> dict[Path, str]:
    """The files below a folder that a run of verl printed, or the file itself, and their names.

    Raises BadImport for another file that is named itself.
    """
    root = source.resolve()
    if root.is_file() and not is_printed(root):
        shape = "no line has the shape step:NUMBER - METRIC:NUMBER - ..., which verl prints for each step"
        raise BadImport(f"SOURCE {source}: {shape}; fix: give a file that has what verl printed")
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.suffix in FILES]
    return names(source, filter(is_printed, files), ending=True)


def read(files: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[Found]:
    """The runs of these files. A last line without an end, which a crash leaves, is not used."""
    for path, name in files.items():
        lines = list(_lines(path))
        log = Log(path)
        for match in filter(None, map(_STEP.search, lines)):
            parts = (part.rpartition(":") for part in match[2].split(" - "))
            log.add(int(match[1]), {key: text for key, _, text in parts if key})
        log.resolve(step)
        yield Found(KIND, name, _configuration(lines), log)


def _lines(path: Path) -> Iterator[str]:
    """The lines that are complete, without colours. Progress bars return to the start of a line to write it again."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.endswith("\n"):
                yield from _CONTROL.sub("", line).rstrip("\r\n").split("\r")


def is_printed(path: Path) -> bool:
    """Whether a file has a line of a step, or the beginning of a run of verl; a folder has neither."""
    return path.is_file() and any(_STEP.search(line) or _BEGUN.search(line) for line in _lines(path))


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
                found = ast.literal_eval(text)
                if isinstance(found, dict) and found.keys() >= _SECTIONS:
                    return found
                break
    return {}


def _process(line: str) -> str:
    match = _PROCESS.match(line)
    return match[0] if match else ""
