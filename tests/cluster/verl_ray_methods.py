"""Every method of conf/method under Ray and in one process: do both train the same, to rounding?

    python -m tests.cluster.verl_ray_methods [METHOD ...] [--steps 4] [--ranks 1]

The steps have the 256 responses of the default settings. Two lines are printed for each method. The first one compares
the run under Ray with the run in one process. The second one is a control: it compares the run in one process with
another one there, whose micro-batches have half as many rows. Both differ by rounding alone, so the control shows what
rounding does to a method. Parameters may differ by more than 1e-5 in 1 of 10,000, and by 1e-8 on average.

Weights that differ by rounding move the boundaries between tokens, and a random number can then fall on the other side.
So the script prints how far the random number was from the nearest boundary, for each response whose tokens differ. It
fails if a reward or mask differs while all tokens are equal, or if the first tokens that differ were drawn further than
1e-4 from a boundary. It stops to compare a method at the first step whose tokens differ, because the batches of later
steps are others. Takes about a minute a method.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.cluster import verl_ray_driver
from tests.cluster.rays import Rays
from tests.cluster.verl_ray_steps import compared, without_ray
from tests.trainer_ext.conftest import METHODS, configuration, quick_settings
from trainer_ext.backends.verl_ray import process

LIMIT_S = 900
#: Of a random number from the nearest boundary between two tokens, where other tokens are drawn.
NEAR = 1e-4
MICRO = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


def line(found: dict[str, Any]) -> str:
    """What a comparison found, in words. AssertionError: it is more than rounding."""
    steps, parameters = found["steps"], found["parameters"]
    same = next((place for place, step in enumerate(steps) if not step["tokens"]), len(steps))
    for step in steps[:same]:
        assert step["mask"] and step["rewards"], "the tokens are equal, and masks or rewards are not"
    said = f"tokens equal in {same} of {len(steps)} steps"
    if same:
        said += f", advantages {max(step['advantages'] for step in steps[:same]):.1e}"
        if weighted := [step["columns"]["advantages"] for step in steps[:same] if "advantages" in step["columns"]]:
            said += f" (with credit and control {max(weighted):.1e})"
    if same == len(steps):
        said += f", parameters {parameters['max']:.1e}, mean {parameters['mean']:.0e}, "
        said += f"{parameters['beyond']} of {parameters['count']} beyond 1e-5"
        assert parameters["beyond"] <= parameters["count"] / 10_000 and parameters["mean"] < 1e-8, said
        return said
    flips = steps[same]["flips"]
    assert max(flips) < NEAR, f"step {same + 1} draws other tokens, up to {max(flips):.1e} from a boundary"
    return f"{said}; then {len(flips)} responses differ, drawn at most {max(flips):.1e} from a boundary"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__)[0])
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args(arguments)
    names = given.methods or METHODS
    place = Path(tempfile.mkdtemp(prefix="verl-ray-methods-"))
    space, failed = Rays(), 0
    space.environment = process.environment(space.environment)
    try:
        for name in names:
            own = [f"method={name}", *quick_settings(name), f"trainer.steps={given.steps}"]
            own += ["trainer=verl_ray", f"trainer.ranks={given.ranks}"]
            if configuration(*own)["method"]["drafting"] != "none":
                print(f"{name}: not compared; trainer=verl_ray refuses methods that draft tokens", flush=True)
                continue
            failed += not method(space, place / name, place / "cache", name, own, given.steps)
    finally:
        space.stop()
    print(f"{failed} of {len(names)} methods differ by more than rounding; what they saw is in {place}")
    return int(failed > 0)


def method(space: Rays, folder: Path, cache: Path, name: str, own: Sequence[str], steps: int) -> bool:
    """Compare a method's runs, and print what they differ in; whether this is rounding alone."""
    kept = {verl_ray_driver.STEPS: str(folder / "steps")}
    folder.mkdir()
    program = [sys.executable, "-m", "tests.cluster.verl_ray_train", str(folder), str(cache), *own]
    run = space.run(*program, f"trainer.checkpoint_every={steps}", **kept)
    said, _ = run.communicate(timeout=LIMIT_S)
    if run.returncode:
        print(f"{name}: failed: {said[-2000:]}", flush=True)
        return False
    half = int(configuration(*own)["verl"].actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu) // 2
    with redirect_stdout(StringIO()):  # what verl says
        control = [without_ray(settings, cache, steps) for settings in (own, [*own, f"{MICRO}={half}"])]
    rounding = True
    for what, found in (
        ("under Ray", json.loads((folder / "compared.json").read_text())),
        ("in one process, other micro-batches", compared(control[0], control[1])),
    ):
        try:
            print(f"{name}, {what}: {line(found)}", flush=True)
        except AssertionError as error:
            print(f"{name}, {what}: {error}", flush=True)
            rounding = False
    return rounding


if __name__ == "__main__":
    sys.exit(main())
