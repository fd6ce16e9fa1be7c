"""What a report holds, the files that show it, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.data.responses import Responses
from analysis.figures.canvas import Figure
from analysis.figures.traces import to_csv
from analysis.findings.study import Study
from analysis.findings.verdicts import Verdict
from analysis.report.headline import Answer
from analysis.sections import PageSection
from analysis.tables import formats
from analysis.tables.table import Table

FORMATS = {"tables": ("md", "tex", "csv"), "figures": ("svg", "csv", "pdf", "png")}  # the last two: on request


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
    sections: tuple[PageSection, ...]
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


def files_of(shown: Sequence[Table], drawn: Sequence[Figure], further: Sequence[str]) -> dict[str, bytes]:
    """Each table, and each figure as SVG with its values as CSV, by path below the report. further: formats of the
    figures beside these, "pdf" and "png"."""
    files: dict[str, bytes] = {}
    for table in shown:
        files[f"tables/{table.name}.md"] = formats.to_markdown(table).encode()
        files[f"tables/{table.name}.tex"] = formats.to_latex(table).encode()
        files[f"tables/{table.name}.csv"] = formats.to_csv(table).encode()
    for figure in drawn:
        files[f"figures/{figure.name}.svg"] = figure.svg
        files[f"figures/{figure.name}.csv"] = to_csv(figure.traces).encode()
        files |= {f"figures/{figure.name}.{suffix}": figure.rendered(suffix) for suffix in further}
    return files


def write_all(out: Path, files: Mapping[str, bytes]) -> None:
    """Write each file aside and rename it, so that a reader never sees half a file. A file with this content is not
    touched."""
    for name, content in files.items():
        path = out / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        aside.write_bytes(content)
        os.replace(aside, path)
