"""The driver of a run whose steps are kept in the folder KEPT_STEPS: see tests/cluster/verl_ray_steps.py."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_ext.backends.verl_ray import driver, node

STEPS = "KEPT_STEPS"


def main() -> None:
    node.collect_rarely()
    from tests.cluster import verl_ray_steps
    from trainer_ext.backends.verl_ray.session import Session

    verl_ray_steps.recorded(Session, Path(os.environ[STEPS]))
    driver.main()


if __name__ == "__main__":
    main()
