"""Steps of every method with the default trainer, on the device that this process sees, kept in files.

`python -m tests.cluster.gpu_methods FOLDER CACHE STEPS`: FOLDER/METHOD.pt gets the tokens of each step's responses, its
metrics, and the parameters at the end. With one CACHE, two processes on different devices train the same models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tests.trainer_ext.conftest import FEW_PROMPTS, METHODS, SHORT, configuration, quick_settings
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.fits import devices


def main() -> None:
    folder, cache, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        asked = [f"model.resources.devices={int(devices.kind() == devices.CUDA)}"]
        own = [f"method={method}", *quick_settings(method), *SHORT, *FEW_PROMPTS, *asked]
        trainer = InProcess(configuration("trainer=in_process", *own), cache)
        draw, drawn = trainer._rollout.draw, []
        found: list[Any] = []
        trainer._rollout.draw = lambda step, draw=draw, drawn=drawn: drawn.append(draw(step)) or drawn[-1]
        for step in range(1, steps + 1):
            metrics = trainer.step(step)
            batch = drawn[-1].samples.batch
            tokens = [row[keep].tolist() for row, keep in zip(batch.responses, batch.mask, strict=True)]
            found.append((dict(metrics), tokens))
        weights: dict[str, Any] = {name: x.to("cpu", copy=True) for name, x in trainer.actor.weights().items()}
        torch.save((found, weights, str(next(iter(trainer.actor.weights().values())).device)), folder / f"{method}.pt")
        trainer.close()


if __name__ == "__main__":
    main()
