"""What verl prints for each step (trainer.logger=[console]), in a file: `step:NUMBER - METRIC:NUMBER - ...`.

Ray puts the name of a process before each line, and colours. verl also prints the run's configuration, which is read if
it is complete. Early versions of verl round to three decimals, so that a learning rate is printed as 0.000.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.importing.found import BadImport, Found, stage

KIND = "verl's console"
SUFFIXES = (".log", ".out", ".txt")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
#: The process whose line it is, such as `(TaskRunner pid=87031, ip=10.0.0.1) `.
_PROCESS = re.compile(r"\([^()]* pid=\d+[^()]*\) ?")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.*)")
_NUMPY = re.compile(r"np\.\w+\((.*)\)")
_SECTIONS = {"data", "trainer", "algorithm"}  # of verl's configuration
_LONGEST = 5000  # lines of a configuration


def find(source: Path) -> list[tuple[str, Path]]:
    """The files below a folder that have a line of a step, or the file itself, and their names: the path from the last
    part of `source`, without the ending.

    Raises BadImport for a file without such a line that is named itself.
    """
    root = source.resolve()
    if root.is_file():
        if not is_printed(root):
            shape = "no line has the shape step:NUMBER - METRIC:NUMBER - ..., which verl prints for each step"
            raise BadImport(f"SOURCE {source}: {shape}; fix: give a file that has what verl printed")
        return [(f"{root.parent.name}/{root.stem}", root)]
    files = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return [(str(path.relative_to(root.parent).with_suffix("")), path) for path in files if is_printed(path)]


def read(files: Sequence[tuple[str, Path]], stage_in: Path) -> Iterator[Found]:
    """The runs of these files. What is no number is left out, and so is a last line without an end, which a crash
    leaves. Several lines of one step are one. Where the steps go back, the run began again, from that step on."""
    for number, (name, path) in enumerate(files):
        lines = list(_lines(path))
        rows = [{"step": step, "attempt": 1, "time": None, **values} for step, values in _steps(lines).items()]
        yield Found.in_files(KIND, name, _configuration(lines), stage(stage_in / f"console-{number}", rows, ()))


def _lines(path: Path) -> Iterator[str]:
    """The lines that are complete, without colours. Progress bars return to the start of a line to write it again."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.endswith("\n"):
                yield from _CONTROL.sub("", line).rstrip("\r\n").split("\r")


def is_printed(path: Path) -> bool:
    """Whether a file has a line of a step; a folder has none."""
    return path.is_file() and any(_STEP.search(line) for line in _lines(path))


def _steps(lines: Sequence[str]) -> dict[int, dict[str, float]]:
    """The numbers of each step, in the order of the steps."""
    found: dict[int, dict[str, float]] = {}
    last = 0
    for line in lines:
        if (match := _STEP.search(line)) is None:
            continue
        step, values = int(match[1]), {}
        for part in match[2].split(" - "):
            key, _, text = part.rpartition(":")
            if key and (value := _number(text)) is not None:
                values[key] = value
        if step < last:
            found = {earlier: numbers for earlier, numbers in found.items() if earlier < step}
        found[step] = {**found.get(step, {}), **values}
        last = step
    return found


def _number(text: str) -> float | None:
    numpy = _NUMPY.fullmatch(text.strip())  # np.float64(0.5), as NumPy 2 prints a number
    try:
        return float(numpy[1] if numpy else text)
    except ValueError:
        return None


def _configuration(lines: Sequence[str]) -> Mapping[str, Any]:
    """verl's configuration as it prints it, over many lines of one process; empty if it is not there, or not whole."""
    for first, line in enumerate(lines):
        process = _PROCESS.match(line)
        text = line[process.end() :] if process else line
        if not text.startswith("{'"):
            continue
        parts: list[str] = []
        for other in lines[first : first + _LONGEST]:
            own = _PROCESS.match(other)
            if (own[0] if own else None) != (process[0] if process else None):
                continue  # of another process, in between
            parts.append(other[own.end() :] if own else other)
            if not parts[-1].endswith("}"):
                continue
            try:
                found = ast.literal_eval("\n".join(parts))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(found, dict) and found.keys() >= _SECTIONS:
                return found
            break
    return {}
