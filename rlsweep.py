"""What a program of @hydra.main may call when rlsweep runs it: `log` and `context`. It need call neither."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.worker.current import Context

__all__ = ["context", "log"]

_CURRENT = "launcher.worker.current"  # it is loaded where a sweep runs this process


def log(step: int, metrics: Mapping[str, float]) -> None:
    """Append one step's metrics to the run's metrics.jsonl: one JSON object a line, `step` and `time` first.

    Outside of a sweep, the file is in the folder of Hydra's output, without Hydra in the working directory. Numbers may
    be those of NumPy or torch; metrics called step, attempt or time become log/step and so on. ValueError: the step is
    no integer from 0 on.
    """
    step = _plain(step)
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"rlsweep.log: step = {step!r}: it must be an integer, 0 or more")
    own = ("step", "attempt", "time")
    metrics = {f"log/{name}" if name in own else name: _plain(value) for name, value in metrics.items()}
    current = sys.modules.get(_CURRENT)
    if current is not None and current.log(step, metrics):
        return
    run, _, attempt = os.environ.get("RLSWEEP_RUN", "").rpartition(":")
    record = {"step": step, **({"attempt": int(attempt)} if run else {}), "time": time.time(), **metrics}
    with open(Path(run or _output()) / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def context() -> Context | None:
    """The run that this process does: its folder, attempt and earlier attempts, and whether to stop; None: no run.

    It puts the files that the last attempt has left back into the folder, so that the program can load a checkpoint.
    """
    current = sys.modules.get(_CURRENT)
    found: Context | None = current.context() if current is not None else None
    return found


def _plain(value: Any) -> Any:
    """A number of NumPy or torch as Python's."""
    return value.item() if hasattr(value, "item") else value


def _output() -> str:
    core = sys.modules.get("hydra.core.hydra_config")
    if core is not None and core.HydraConfig.initialized():
        return str(core.HydraConfig.get().runtime.output_dir)
    return "."
