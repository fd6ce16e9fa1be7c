"""An attempt that is followed: python -m tests.launcher.live FOLDER ATTEMPT LAST END

Logs the squares of the steps after the newest checkpoint up to LAST, with a checkpoint every second step, and ends in
the state END, or, `killed`, by SIGKILL once its standard input is closed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from launcher import tracking
from launcher.run.folder import (
    checkpoint_name,
    checkpoints_folder,
    histograms_path,
    last_final_step,
    metrics_path,
    read_config,
)
from launcher.worker import attempt as attempts

HISTOGRAM = {"edges": [0.0, 1.0, 2.0], "counts": [3, 4]}


def main() -> None:
    folder, attempt, last, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    attempts.prepare(folder, attempt)
    settings = {"wandb": "online", "project": "live", "entity": None, "tensorboard": True}
    tracker = tracking.start(folder, read_config(folder), attempt, settings)
    for step in range(last_final_step(folder) + 1, last + 1):
        value = step**2
        with open(metrics_path(folder), "a") as file:
            file.write(json.dumps({"step": step, "attempt": attempt, "time": 1.7e9 + step, "value": value}) + "\n")
        tracker.log(step, {"value": value})
        if step % 2 == 0:
            tracker.histogram(step, "entropy", **HISTOGRAM)
            with open(histograms_path(folder), "a") as file:
                file.write(json.dumps({"step": step, "attempt": attempt, "name": "entropy", **HISTOGRAM}) + "\n")
            (checkpoints_folder(folder) / checkpoint_name(step)).mkdir(parents=True, exist_ok=True)
    if end == "killed":
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)
    tracker.close(end)


if __name__ == "__main__":
    main()
