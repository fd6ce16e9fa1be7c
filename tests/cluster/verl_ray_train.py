"""A run by `trainer_ext.train` in a folder: `python -m tests.cluster.verl_ray_train FOLDER CACHE OVERRIDE ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.trainer_ext.conftest import MemoryRun, configuration
from trainer_ext.train import train


def main() -> None:
    folder, cache, *overrides = sys.argv[1:]
    Path(folder).mkdir(exist_ok=True)
    run = MemoryRun(Path(folder), Path(cache))
    summary = train(configuration(*overrides), run)
    (Path(folder) / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in run.lines))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
