"""The content of a report, which all of its files show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis.figures.canvas import Figure
from analysis.findings.responses import Responses
from analysis.findings.study import Study
from analysis.findings.verdicts import Verdict
from analysis.report.headline import Answer
from analysis.sections import Section
from analysis.tables.table import Table


@dataclass(frozen=True)
class Report:
    """index: the page's path. answer: its first lines. tables and figures: all of them, those of the sections too.
    verdicts: on the hypotheses. responses: None where no run recorded any."""

    index: Path
    study: Study
    answer: Answer
    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[Figure, ...]
    sections: tuple[Section, ...]
    responses: Responses | None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.study.sweep.plan.get("experiment") or self.study.sweep.folder.name)

    @property
    def command(self) -> str | None:
        """The command that made the runs, which a plan may have as a list of words; None if it has none."""
        command = self.study.sweep.plan.get("command")
        return command if command is None or isinstance(command, str) else " ".join(map(str, command))
