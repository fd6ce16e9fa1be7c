"""A launcher over steps.py, as a process: python -m tests.launcher.drive MULTIRUN [overrides].

The environment may name another folder than conf/: DRIVE_CONF.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.config.hydra_compose import Composer
from launcher.execution import sweep
from launcher.planning import freeze, planner
from tests.launcher.experiments import FURTHER

ROOT = Path(__file__).parents[2]


def main() -> int:
    words = [*sys.argv[2:], f"multirun={sys.argv[1]}"]
    if not any(word.startswith(("experiment=", "experiment.name=")) for word in words):
        words.append("experiment.name=adhoc")
    conf = Path(os.environ.get("DRIVE_CONF", ROOT / "conf"))
    planned = planner.make(ROOT, words, Composer(conf, "config", [FURTHER]))
    wanted = freeze.missing(planned)
    outcome = sweep.launch(ROOT, planned, wanted, "tests.launcher.steps:train")
    print(f"RAN {' '.join(sorted(outcome.ran))}")
    return 1 if outcome.tripped or any(state.state != "done" for state in outcome.states.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
