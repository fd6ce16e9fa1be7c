"""What a run that continues another one shares with it.

A longer run continues a shorter one if nothing in it depends on the total number of steps, `trainer.steps`: whoever
reads this key in a new place adds it here.

Pure, and nothing here loads torch: the plan asks before a run exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_ext.objection import Objection

_OPTIM = "verl.actor_rollout_ref.actor.optim"
_LARGEST_SHARE = 0.125  # largest share of trainer.hist_every


def histogram_interval(share: float, steps: int) -> int:
    """Steps between histograms for a share of the run's length: with at most an eighth, a run has eight or more."""
    return max(1, int(share * steps))


def spread_steps(steps: int) -> int:
    """The first steps of a run, a tenth and at most 100, whose largest spread of rewards scales BNTO's budget."""
    return min(100, max(1, math.ceil(0.1 * steps)))


def judged(trainer: Mapping[str, Any], step: int) -> int:
    """How many test prompts have a response kept for judges after a step; trainer: the section."""
    section = trainer.get("judged") or {}
    due = section and (step % int(section["every"]) == 0 or step == int(trainer["steps"]))
    return int(section["prompts"]) if due else 0


def measures_kl(trainer: Mapping[str, Any], step: int) -> bool:
    """Whether a step measures actor/kl_init: those with a regular evaluation, or each of a run that has none."""
    every = int(trainer["eval_every"] or 0)
    return not every or step % every == 0 or step == int(trainer["steps"])


def evaluates(trainer: Mapping[str, Any], step: int) -> bool:
    """Whether a run evaluates its policy after a step; trainer: the section."""
    return bool(trainer["eval_every"] and (measures_kl(trainer, step) or judged(trainer, step)))


def obstacles(config: Mapping[str, Any], shorter: Mapping[str, Any]) -> Iterator[Objection]:
    """Why a finished run does not hold the first steps of the run with this configuration.

    config: method, trainer, and verl's tree merged; shorter: the section `trainer` of the finished run, whose identity
    differs in trainer.steps alone.
    """
    trainer, before, after = config["trainer"], int(shorter["steps"]), int(config["trainer"]["steps"])
    optim = config["verl"]["actor_rollout_ref"]["actor"]["optim"]
    if optim["lr_scheduler_type"] != "constant":
        rule = f"the learning rate of each step depends on trainer.steps, {before} then and {after} now"
        fix = "use lr_scheduler_type=constant for runs that are to be continued"
        yield Objection(f"{_OPTIM}.lr_scheduler_type", optim["lr_scheduler_type"], rule, fix)
    elif optim["lr_warmup_steps"] <= 0:
        share = float(optim["lr_warmup_steps_ratio"])
        warmups = [int(share * steps) for steps in (before, after)]
        if warmups[0] != warmups[1]:
            rule = f"the learning rate's warm-up is a share of the run: {warmups[0]} steps then, {warmups[1]} now"
            fix = "use lr_warmup_steps=N for runs that are to be continued"
            yield Objection(f"{_OPTIM}.lr_warmup_steps_ratio", share, rule, fix)
    method = config["method"]
    if (method["control"], method.get("decay")) == ("dual", "usage") and spread_steps(before) != spread_steps(after):
        rule = (
            "the budget is scaled by the largest spread of rewards in the first tenth of the run, at most 100 steps: "
            f"{spread_steps(before)} steps then, {spread_steps(after)} now"
        )
        yield Objection("method.decay", "usage", rule, "continue runs of 1000 steps or more, or use decay=plateau")
    judging = (trainer.get("judged") or {}).get("every")
    for key, every in (("eval_every", trainer["eval_every"]), ("judged.every", judging)):
        if every and before % int(every):
            rule = f"{before} is not a multiple of it: the last step of the run of {before} steps has an evaluation of "
            fix = "continue a run that ends with a regular evaluation"
            yield Objection(f"trainer.{key}", every, f"{rule}its own", fix)
    yield from log_obstacles(trainer, shorter)


def log_obstacles(trainer: Mapping[str, Any], shorter: Mapping[str, Any]) -> Iterator[Objection]:
    """What a run has to take over of the logs of a shorter one that is not there; both: the section `trainer`."""
    before, after = int(shorter["steps"]), int(trainer["steps"])
    if trainer["eval_every"] and int(trainer["eval_responses"]) > int(shorter["eval_responses"]):
        kept = shorter["eval_responses"]
        rule = f"each evaluation of the run of {before} steps has kept {kept} responses to be read"
        yield Objection("trainer.eval_responses", trainer["eval_responses"], rule, f"set it to {kept} or less")
    then = histogram_interval(float(shorter["hist_every"]), before)
    now = histogram_interval(float(trainer["hist_every"]), after)
    if now % then:
        rule = f"it gives histograms every {now} steps, and the run of {before} steps has them every {then} steps"
        interval = then * max(1, now // then)
        share, fix = (interval + 0.5) / after, "choose a share that gives a multiple of these"
        if share <= _LARGEST_SHARE:
            fix = f"set it to {share:.6g}, which gives histograms every {interval} steps"
        yield Objection("trainer.hist_every", trainer["hist_every"], rule, fix)
