"""A run by `trainer_ext.train` in a folder: `python -m tests.cluster.verl_ray_train FOLDER CACHE OVERRIDE ...`.

Where the environment names the folder KEPT_STEPS, the run is done in one process, too, and FOLDER/compared.json gets
what the steps of the two differ in.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.cluster import verl_ray_driver
from tests.trainer_ext.conftest import MemoryRun, configuration
from trainer_ext.backends.verl_ray import process
from trainer_ext.train import train


def main() -> None:
    folder, cache, *overrides = sys.argv[1:]
    place, kept = Path(folder), os.environ.get(verl_ray_driver.STEPS)
    place.mkdir(exist_ok=True)
    run = MemoryRun(place, Path(cache))
    if kept:
        process._DRIVER = verl_ray_driver.__name__
    summary = train(configuration(*overrides), run)
    (place / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in run.lines))
    print(json.dumps(summary))
    if kept:
        from tests.cluster.verl_ray_steps import compared, read, weights_of, without_ray

        steps = int(summary["steps"])
        ours = read(Path(kept), steps), weights_of(place / f"step_{steps:06d}")
        (place / "compared.json").write_text(json.dumps(compared(without_ray(overrides, Path(cache), steps), ours)))


if __name__ == "__main__":
    main()
