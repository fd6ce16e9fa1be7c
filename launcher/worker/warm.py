"""Imported once by the fork server: loads the modules whose import is slow, so that runs start with them in memory.

A failing import must not end the server: each worker imports the same module again, and reports the error as its run's.
"""

from __future__ import annotations

import importlib
import os
import signal
from contextlib import suppress

from launcher.project import uncollected
from launcher.worker import provenance

MODULES = "RLSWEEP_WARM"

if names := os.environ.get(MODULES):  # in the server alone
    # A signal to the whole process group stops the runs. The server must outlive them to report their exit codes. Users
    # also press Ctrl-C while it imports, when they see a mistake in the command.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uncollected():
        for name in names.split(","):
            with suppress(Exception):
                importlib.import_module(name)
                provenance.note()  # before anybody edits the files
        # what every worker would compute
        provenance.installed_packages()
        provenance.later_modules()
