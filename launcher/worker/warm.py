"""Imported once by the fork server: loads the modules whose import is slow, so that runs start with them in memory.

A failing import must not kill the server (nor vanish, as an ImportError in the server's own preload list would): it is
kept here, and each worker, importing the same module again, reports it as its run's error.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import traceback

MODULES = "RLSWEEP_WARM"

failure: str | None = None

if os.environ.get(MODULES):  # in the server alone
    # A signal to the whole process group stops the runs, which know how to; the server must outlive them to say how.
    # While it imports, too: that is when one sees a mistake in the command and presses Ctrl-C.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

for name in filter(None, os.environ.get(MODULES, "").split(",")):
    try:
        importlib.import_module(name)
    except Exception:
        failure = traceback.format_exc()
# What was loaded stays shared between the forks: a collection would write to every page.
gc.freeze()
