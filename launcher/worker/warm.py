"""Imported once by the fork server: loads the modules whose import is slow, so that runs start with them in memory.

A failing import must not end the server, and must not be ignored as in the server's own preload list. It is kept here;
each worker imports the same module again, and reports the error as its run's.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import traceback

from launcher.worker import loaded, provenance

MODULES = "RLSWEEP_WARM"

failure: str | None = None

if os.environ.get(MODULES):  # in the server alone
    # A signal to the whole process group stops the runs. The server must outlive them to report their exit codes. Users
    # also press Ctrl-C while it imports, when they see a mistake in the command.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

for name in filter(None, os.environ.get(MODULES, "").split(",")):
    try:
        importlib.import_module(name)
        loaded.note()  # before anybody edits the files
    except Exception:
        failure = traceback.format_exc()
if os.environ.get(MODULES):  # what every worker would compute
    provenance.packages()
    loaded.later_modules()
# A garbage collection would write to every page, and the forks would no longer share the memory.
gc.freeze()
