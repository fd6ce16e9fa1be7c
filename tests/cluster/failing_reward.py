"""A reward that fails when it is told to: for one response once there is a file FAIL_ONCE, which it takes away.

As a program, `python -m tests.cluster.failing_reward FOLDER CACHE STEPS OVERRIDE ...`: STEPS steps with the task's own
reward, which are also done in one process; FOLDER/compared.json gets what they differ in. Then one session more: a step
with a response that fails, one in which the process that trains is killed, and one in which the agent loop is. While a
file HOLD_REWARDS is there, no reward is given, so that they are killed within their steps. It prints the exceptions.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from trainer_ext.backends.verl_ray import reward


def compute_score(*given: Any, **named: Any) -> dict[str, float]:
    """The task's reward, or an exception."""
    while os.path.exists(os.environ["HOLD_REWARDS"]):
        time.sleep(0.05)
    try:
        os.unlink(os.environ["FAIL_ONCE"])
    except FileNotFoundError:
        return reward.compute_score(*given, **named)
    raise ArithmeticError("a reward that fails")


def main() -> None:
    import ray
    from omegaconf import OmegaConf

    from tests.cluster.verl_ray_steps import compared, read, recorded, weights_of, without_ray
    from tests.trainer_ext.conftest import configuration
    from trainer_ext.backends.verl_ray import session

    folder, cache, steps, overrides = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    hold, whole_tree = Path(os.environ["HOLD_REWARDS"]), session.whole_tree

    def failing(*given: Any) -> Any:
        tree = whole_tree(*given)
        tree.reward.custom_reward_function.path = __file__
        return tree

    config = configuration(*overrides)
    plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
    recorded(session.Session, folder / "steps")
    with tempfile.TemporaryDirectory(prefix="vr-") as ours, patch.object(session, "whole_tree", failing):
        run = session.Session(plain, str(cache), ours)
        for step in range(1, steps + 1):
            run.step(step)
        (folder / "end").mkdir()
        run.save(str(folder / "end"), {})
        (trains,), (loop,) = run.trainer.actor_rollout_wg.workers, run.trainer.agent_loop_manager.agent_loop_workers

        def kill(actor: Any) -> None:
            ray.kill(actor)
            hold.unlink()

        Path(os.environ["FAIL_ONCE"]).touch()
        for step, killed in enumerate((None, trains, loop), steps + 1):
            if killed is not None:
                hold.touch()
                threading.Timer(1.0, kill, [killed]).start()
            try:
                run.step(step)
            except Exception as error:
                print(f"RAISED {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        run.close()
    found = read(folder / "steps", steps), weights_of(folder / "end")
    (folder / "compared.json").write_text(json.dumps(compared(without_ray(overrides, cache, steps), found)))


if __name__ == "__main__":
    main()
