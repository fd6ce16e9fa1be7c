"""Logs that other tools wrote, and the experiments that are made of them."""

from analysis.sources.import_runs import Imported as Imported
from analysis.sources.import_runs import ImportRequest as ImportRequest
from analysis.sources.import_runs import import_runs as import_runs
from analysis.sources.log import BadImport as BadImport
from analysis.sources.naming import Naming as Naming
