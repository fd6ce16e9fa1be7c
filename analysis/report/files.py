"""What a report holds, the files that show it, and how they are written."""

from __future__ import annotations

import csv
import filecmp
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from analysis.data.responses import Responses
from analysis.data.run_values import value_of
from analysis.figures.canvas import Sketch
from analysis.figures.traces import to_csv
from analysis.findings.study import Study, range_of
from analysis.findings.verdicts import Verdict
from analysis.report.headline import Answer
from analysis.sections import PageSection
from analysis.spec.validation import BadPlan
from analysis.tables.table import Table, literal, to_latex, to_markdown
from analysis.tables.table import to_csv as table_to_csv

FORMATS = {"tables": ("md", "tex", "csv"), "figures": ("svg", "csv", "pdf", "png")}  # the last two: on request
Content = bytes | Iterable[str] | Callable[[], bytes | Iterable[str]]  # of a file: bytes, text in parts, what makes it


@dataclass(frozen=True)
class Report:
    """index: the page's path. answer: its first lines. tables and figures: all of them, those of the sections too.
    verdicts: on the hypotheses. responses: None where no run recorded any."""

    index: Path
    study: Study
    answer: Answer
    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[Sketch, ...]
    sections: tuple[PageSection, ...]
    responses: Responses | None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.study.sweep.plan.get("experiment") or self.study.sweep.folder.name)

    @property
    def command(self) -> str | None:
        """The command that made the runs; None if the plan has none."""
        command: str | None = self.study.sweep.plan.get("command")
        return command


def files_of(shown: Sequence[Table], drawn: Sequence[Sketch], further: Sequence[str]) -> dict[str, Content]:
    """Each table, and each figure as SVG with its values as CSV, by path below the report. further: formats of the
    figures beside these, "pdf" and "png"."""
    files: dict[str, Content] = {}
    for table in shown:
        files[f"tables/{table.name}.md"] = to_markdown(table).encode()
        files[f"tables/{table.name}.tex"] = to_latex(table).encode()
        files[f"tables/{table.name}.csv"] = table_to_csv(table).encode()
    for figure in drawn:
        files[f"figures/{figure.name}.svg"] = figure.svg
        files[f"figures/{figure.name}.csv"] = partial(to_csv, figure.traces)
        files |= {f"figures/{figure.name}.{suffix}": figure.rendered(suffix) for suffix in further}
    return files


def write_all(out: Path, files: Mapping[str, Content]) -> None:
    """Write all files aside and rename them, so that a reader never sees half a file. A file with this content is not
    touched. BadPlan: they cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=out) as folder:
            aside = {name: Path(folder, name) for name in files}
            for name, content in files.items():
                made = content() if callable(content) else content
                aside[name].parent.mkdir(exist_ok=True)
                with open(aside[name], "wb") as file:
                    file.writelines([made] if isinstance(made, bytes) else map(str.encode, made))
            for name, path in aside.items():
                if not ((out / name).is_file() and filecmp.cmp(path, out / name, shallow=False)):
                    (out / name).parent.mkdir(exist_ok=True)
                    os.replace(path, out / name)
    except OSError as error:
        rule = f"the report cannot be written here ({error.strerror})"
        raise BadPlan(f"{out}: {rule}. Fix: free space, or make the folder writable, and repeat the command") from error


def results(study: Study) -> Iterable[str]:
    """The lines of results.csv, to be read once: run, group, label, seed, metric, summary, value; one for each run
    and summary, for every metric that was read."""
    runs, settings = study.sweep.runs, study.settings
    labels = {group: literal(label) for group, label in study.sweep.labels.items()}
    file = tempfile.TemporaryFile("w+", encoding="utf-8", newline="")  # noqa: SIM115 - until it is copied
    table = csv.writer(file, lineterminator="\n")
    table.writerow(("run", "group", "label", "seed", "metric", "summary", "value"))
    for metric in sorted({name for run in runs for name in run.curves.values}):
        common = study.ranges.get(metric) or range_of(study.sweep, settings, metric)
        direction = settings.direction_of(metric)
        for run in runs:
            if metric not in run.curves.values:
                continue
            for summary in ("auc", "best", "final") if direction else ("auc", "final"):
                value = value_of(common, run.id, summary, direction)
                table.writerow((run.id, run.group, labels[run.group], run.seed, metric, summary, value.value))
    for block in study.blocks:
        if block.measure.summary == "time_to":
            name = f"time_to {block.measure.threshold!r}{' (lower)' if block.measure.falls else ''}"
            for run in runs:
                about = run.id, run.group, labels[run.group], run.seed, block.measure.metric
                table.writerow((*about, name, block.values[run.id].value))
    file.seek(0)
    return file
