"""Parquet files with a row for each step, such as the histories that W&B exports. pyarrow reads them."""

from __future__ import annotations

from analysis.sources.formats.csv_files import CsvFiles
from analysis.sources.source import source


@source
class ParquetFiles(CsvFiles):
    """As CSV files, in columns and runs."""

    kind, files, beats = "Parquet", (".parquet",), ("CSV",)
    patterns = ("*.parquet",)
