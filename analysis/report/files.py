"""The files of a report: their content, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.figures.canvas import Figure
from analysis.figures.traces import to_csv
from analysis.tables import formats
from analysis.tables.table import Table

FORMATS = {"tables": ("md", "tex", "csv"), "figures": ("svg", "csv", "pdf", "png")}  # the last two: on request


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
