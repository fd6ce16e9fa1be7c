"""Logs that other tools wrote, and the experiments that are made of them.

Its modules:

    import_runs   makes an experiment of logs: run folders and a plan.json
    naming        the group, seed and factors of a run: from its configuration, its name, or a map file
    source        what a format of logs is, and a run that was read from one
    formats       one module a format
    log           the rows of a run: which of them count, and what was left out
    notation      text as numbers, in the notation of its column
"""

from analysis.sources.import_runs import Imported as Imported
from analysis.sources.import_runs import ImportRequest as ImportRequest
from analysis.sources.import_runs import import_runs as import_runs
from analysis.sources.log import BadImport as BadImport
from analysis.sources.naming import Naming as Naming
