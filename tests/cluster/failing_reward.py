"""A reward that fails for one response, the first: FAILED_ONCE names the file that remembers it.

As a program, `python -m tests.cluster.failing_reward CACHE`, the first step of a run with this reward; it prints the
exception of the step, and how long it took.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """0, or an exception."""
    try:
        Path(os.environ["FAILED_ONCE"]).touch(exist_ok=False)
    except FileExistsError:
        return 0.0
    raise ArithmeticError("a reward that fails")


def main() -> None:
    from omegaconf import OmegaConf

    from tests.trainer_ext.conftest import SHORT, configuration
    from trainer_ext.backends.verl_ray import session

    whole_tree = session.whole_tree

    def failing(*given: Any) -> Any:
        tree = whole_tree(*given)
        tree.reward.custom_reward_function.path = __file__
        return tree

    config = configuration("trainer=verl_ray", *SHORT)
    plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
    with tempfile.TemporaryDirectory(prefix="vr-") as folder, patch.object(session, "whole_tree", failing):
        run = session.Session(plain, sys.argv[1], folder)
        began = time.monotonic()
        try:
            run.step(1)
        except Exception as error:
            print(f"RAISED {type(error).__name__}: {error} AFTER {time.monotonic() - began:.1f} s", flush=True)
        run.close()


if __name__ == "__main__":
    main()
