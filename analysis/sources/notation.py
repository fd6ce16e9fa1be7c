"""Text as numbers: by Python's notation, and by the notation that a column of a table has.

A column is read only if each of its cells is a number in one notation; otherwise it has a problem, which names a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_ABSENT = frozenset({"", "na", "n/a", "<na>", "none", "null", "-", "--"})
_WORDS = {"true": "1", "false": "0"}
_NUMPY = re.compile(r"(?:np|numpy)\.\w+\((.*)\)")  # np.float64(0.5), as NumPy 2 prints a number
_GROUPS = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'\u2019](?=\d{3}(?!\d))")  # 1 234, 1'234
#: 1,234 may be 1234 or 1.234, and so may 1.234. A number of thousands does not begin with 0.
_EITHER = {mark: re.compile(rf"[-+]?[1-9]\d{{0,2}}\{mark}\d{{3}}") for mark in ",."}
_THOUSANDS = {mark: re.compile(rf"[-+]?[1-9]\d{{0,2}}(?:\{mark}\d{{3}})+(?:\{point}\d*)?")
              for mark, point in (",.", ".,")}  # fmt: skip
_USUAL = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")  # says nothing new where a decimal point was seen
_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")


def number(text: str) -> float | None:
    """A number as Python, NumPy and JSON write it; None for other text."""
    try:
        return float(_plain(text))
    except ValueError:
        return None


def whole(value: object) -> int | None:
    """A whole number of 64 bits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 and (isinstance(value, str) or number == value) else None


def _plain(text: str) -> str:
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    wrapped = _NUMPY.fullmatch(text)
    return _WORDS.get(text.lower(), _GROUPS.sub("", wrapped[1] if wrapped else text))


def _mark(text: str) -> str | None:
    """The decimal mark of a number: "." or ","; "?" for 1,234, which has either; another text if it does not say; None
    for what is no number."""
    if _EITHER[","].fullmatch(text):
        return "?"
    if _THOUSANDS[","].fullmatch(text):
        return "."
    value = number(text)
    if _COMMA.fullmatch(text) or (value is None and _THOUSANDS["."].fullmatch(text)):
        return ","
    if value is None:
        return None
    return "1.234" if _EITHER["."].fullmatch(text) else "." if "." in text else ""


@dataclass
class Column:
    """The notation of a column. mark: its decimal mark; percent: whether its numbers are percentages, which are read as
    fractions; problem: why it cannot be read, or None."""

    name: str
    mark: str = "."
    percent: bool = False
    problem: str | None = None
    # The first cell with each decimal mark, and with and without a percent sign: its line and text.
    _marks: dict[str, tuple[int, str]] = field(default_factory=dict)
    _percents: dict[bool, tuple[int, str]] = field(default_factory=dict)

    def see(self, line: int, cell: str) -> None:
        """Take a cell as evidence of the notation."""
        usual = ("" in self._marks and cell.isdecimal()) or ("." in self._marks and _USUAL.fullmatch(cell))
        if self.problem or not cell or (usual and False in self._percents):
            return
        if cell.strip().lower() in _ABSENT:
            return
        text = _plain(cell)
        mark = _mark(text.removesuffix("%").rstrip())
        if mark is None:
            self.problem = f"line {line}: {self.name} = {cell!r}: not a number"
            return
        if text.lower() != "nan":
            self._marks.setdefault(mark, (line, cell))
            self._percents.setdefault(text.endswith("%"), (line, cell))

    @property
    def says(self) -> set[str]:
        """The decimal marks that the cells show."""
        return set() if self.problem else {mark for mark in ".," if mark in self._marks}

    @property
    def is_open(self) -> bool:
        """Whether other columns may say the decimal mark of a cell such as 1,234 or 1.234."""
        return not self.problem and not self.says and not self._marks.keys().isdisjoint(("?", "1.234"))

    def settle(self, of_others: str | None, whole: bool, delimiter: str) -> None:
        """Choose the notation. of_others: the decimal mark of the file's other columns, None if they have none, or
        several; whole: whether the numbers are whole, so that 1,234 is 1234; delimiter: what ends a cell."""
        known = {mark: self._marks[mark] for mark in ".," if mark in self._marks}
        self.mark = next(iter(known), None) or of_others or "."
        self.percent = True in self._percents
        if self.problem:
            return
        for cells, what in ((known, "decimal mark"), (self._percents, "use of the percent sign")):
            if len(cells) == 2:
                first, (line, cell) = sorted(cells.values())
                self.problem = f"line {line}: {self.name} = {cell!r} has another {what} than line {first[0]}"
        # beside 64,64, which may be a list, 1.619 is 1619 only if its column has a number without a mark, such as 960
        lists = delimiter == "\t" and of_others == "," and "" not in self._marks
        doubt = "?" if of_others is None else "1.234" if lists else ""
        if doubt and doubt in self._marks and not (known or whole):
            line, cell = self._marks[doubt]
            both = f"{re.sub('[,.]', '', cell)} or {cell.replace(',', '.')}"
            self.problem = f"line {line}: {self.name} = {cell!r} may be {both}, and no other cell says which"

    @property
    def example(self) -> str:
        """A cell that is not read as Python reads it, and as what; empty if there is none."""
        cells = [cell for _, cell in (*self._marks.values(), *self._percents.values())]
        other = next((cell for cell in cells if number(cell) != self.number(cell)), None)
        return f"{other!r} is read as {self.number(other)}" if other and not self.problem else ""

    def number(self, cell: str) -> float | None:
        """A cell as a number; None for an empty one. Raises ValueError for other text."""
        if self.mark == "." and not self.percent:
            try:
                return float(cell)
            except ValueError:
                pass
        if cell.strip().lower() in _ABSENT:
            return None
        text = _plain(cell).removesuffix("%").rstrip()
        group = "," if self.mark == "." else "."
        if _THOUSANDS[group].fullmatch(text):
            text = text.replace(group, "")
        value = float(text.replace(",", "."))
        return value / 100 if self.percent else value


def settle(columns: Mapping[str, Column], whole: Iterable[str], delimiter: str) -> None:
    """Choose the notation of each column of a file. whole: the columns of whole numbers; delimiter: what ends a cell;
    where that is a comma, 64,64 in quotes is a list and says nothing of other columns."""
    for name, column in columns.items():
        others = {mark for other in columns.values() if other is not column for mark in other.says} - {delimiter}
        column.settle(others.pop() if len(others) == 1 else None, name in whole, delimiter)
