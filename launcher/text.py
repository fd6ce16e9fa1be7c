"""Text for people: counts, durations, sizes, suggestions for names, and foreign text made safe to print."""

from __future__ import annotations

import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """A duration in at most two units; `?` if it is unknown."""
    if seconds is None:
        return "?"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < _DAY_S:
        hours, rest = divmod(round(seconds / _MINUTE_S), 60)
        return f"{hours} h {rest} min"
    days, rest = divmod(round(seconds / _HOUR_S), 24)
    return f"{days} d {rest} h"


def hours(number: float) -> str:
    """A number of hours to two decimals."""
    return "less than 0.01" if 0 < number < 0.01 else f"{number:.2f}"


def more_than(number: float) -> str:
    """A number of hours that is about a tenth larger, short enough to be typed."""
    return f"{1.1 * number:.2f}" if number >= 1 else f"{1.1 * number:.2g}"


def clean(text: str) -> str:
    """One line of foreign text (a log, a message, a name) without control characters.

    Escape sequences are removed. Of a line that was overwritten (a progress bar), the last version is kept.
    """
    line = _ESCAPES.sub("", text).rstrip("\r\n").rsplit("\r", 1)[-1]
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line)


def byte_size(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


_LONGEST = 80


def shown(value: Any) -> str:
    """A value on one line, shortened. Words such as null are those of YAML, in which users write values."""
    text = " ".join(_in_yaml(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _in_yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_in_yaml(key)}: {_in_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_yaml, value))}]"
    return repr(value)


def say(line: str, file: TextIO | None = None) -> None:
    """Print a line. On a terminal it breaks between words."""
    file = file or sys.stdout
    if file.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=file, flush=True)


def printable(text: str) -> str:
    """The text on one line. Control characters (line breaks, escape sequences) are written as escapes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    return " ".join(text.split())


def without_numbers(text: str) -> str:
    """A message without its numbers (addresses, sizes, steps, seeds), so that similar messages are equal."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant, or None."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return close[0] if close else None
