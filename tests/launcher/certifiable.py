"""A small trainer for certifications: a loader with epochs, an optimizer, an average of the weights, and random noise.

The environment plants one of BUGS into its resume. Each is known of real trainers.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.application import Application, Length
from launcher.run.lifecycle import FailureKind
from tests.launcher.steps import Preempted

BUG = "CERTIFIABLE_BUG"
STEPS, EVERY, ROWS, BATCH, EVALUATE = 9, 2, 6, 2, 3  # an epoch has three steps
#: By bug, what differs first after the checkpoint of the step, and from which step on.
BUGS = {
    "the data start at row 0": (4, "data order", 5),
    "the loader is exhausted at the end of an epoch": (6, "log", 7),
    "the optimizer is not restored": (4, "optimizer", 4),
    "the random state is not restored": (4, "random state", 4),
    "the log has stale rows": (4, "log", 4),
    "the grid of evaluations is shifted": (4, "metrics", 6),
    "the average of the weights is lost": (4, "average", 4),
    "the step is off by one": (4, "log", 5),
    "other data are accepted": (4, "prompts", 5),
    "the checkpoint is older than the log": (4, "random state", 4),
}


class Certifiable(Application):
    """Its runs are done by `train` below."""

    work = f"{__name__}:train"
    failures = MappingProxyType({f"{Preempted.__module__}:Preempted": FailureKind.PREEMPTED})
    contents = ("weights", "optimizer", "random", "average")

    def length(self, config: Mapping[str, Any]) -> Length:
        return Length(None, EVERY, checkpoints_kept=2)


def train(config: Mapping[str, Any], run: Any) -> dict[str, Any]:
    """Train from the newest checkpoint."""
    generator, done = random.Random(int(config["seed"])), 0
    made: dict[str, Any] = {"weights": 1.0, "optimizer": 0.0, "average": 0.0, "random": None}
    newest = run.latest_checkpoint()
    bug = os.environ.get(BUG, "") if newest is not None else ""

    def save(folder: Path) -> None:
        for name, value in {**made, "random": generator.getstate()}.items():
            (folder / f"{name}.json").write_text(json.dumps(value))

    if newest is not None:
        done, folder = newest
        if bug == "the checkpoint is older than the log":
            folder = folder.with_name(f"step_{done - EVERY:06d}")
        made = {name: json.loads((folder / f"{name}.json").read_text()) for name in made}
        state = made["random"]
        if bug != "the random state is not restored":
            generator.setstate((state[0], tuple(state[1]), state[2]))
        made["optimizer"] *= bug != "the optimizer is not restored"
        made["average"] *= bug != "the average of the weights is lost"
        run.trace(done, {}, save)
    if bug == "the log has stale rows":
        run.log(done, {"loss": 0.0})
    for step in range(done + 1 + (bug == "the step is off by one"), STEPS + 1):
        first = (step - 1) * BATCH - (done * BATCH if bug == "the data start at row 0" else 0)
        epoch, place = divmod(first, ROWS)
        if bug == "the loader is exhausted at the end of an epoch" and place == 0:
            break
        order = random.Random(epoch).sample(range(ROWS), ROWS)[place : place + BATCH]
        prompts = [f"prompt {row}{' changed' if bug == 'other data are accepted' else ''}" for row in order]
        noise = generator.random()
        made["optimizer"] = 0.9 * made["optimizer"] + made["weights"] - sum(order) - len(prompts[0]) - noise
        made["weights"] -= 0.1 * made["optimizer"]
        made["average"] = 0.9 * made["average"] + 0.1 * made["weights"]
        evaluated = (step - (done if bug == "the grid of evaluations is shifted" else 0)) % EVALUATE == 0
        run.log(step, {"loss": made["optimizer"] ** 2, **({"eval/average": made["average"]} if evaluated else {})})
        run.trace(step, {"data": order, "prompts": prompts}, save)
        stopping = run.stop_requested() and step < STEPS
        if stopping or step % EVERY == 0:
            with run.checkpoint(step) as folder:
                save(folder)
        if stopping:
            raise Preempted(f"stopped after step {step}")
    return {"average": made["average"], "train_seconds": 0.0}
