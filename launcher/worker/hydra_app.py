"""Any program of @hydra.main as an application: what the sweep engine asks, answered without the program's help.

A run of such a program is one job of Hydra: its frozen configuration has the job's composed configuration under
`config`, and under `start` what starts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.application import KEY, Application, Identity, Length, Shape, seconds
from launcher.config import content

#: What a run's `application` says.
NAME = f"{__name__}:HydraApplication"


class HydraApplication(Application):
    """Answers for a program that the launcher does not know."""

    identity = Identity(sections=(KEY, "program", "config"), frozen=("seed", "start", "resources"))
    libraries = ("hydra-core", "omegaconf")
    work = "launcher.worker.hydra_job:work"
    clocked = ("timing_s/", "timing_per_token_ms/", "perf/throughput", "perf/mfu", "perf/max_memory", "perf/cpu_memory")

    def length(self, config: Mapping[str, Any]) -> Length:
        """A job may log as many steps as it likes."""
        return Length(steps=None, checkpoint_every=1)

    def resources(self, config: Mapping[str, Any]) -> Shape:
        asked = config["resources"]
        return Shape(asked["nodes"], asked["gpus"], asked["cpus"], asked["memory_gb"], seconds(asked["time"]) or 0)

    def requested_in(self, config: Mapping[str, Any], name: str) -> tuple[str, str]:
        key = "gpus" if name == "devices" else name
        return f"the configuration of {config['start']['name']}", f"hydra.sweeper.resources.{key}"

    def kinds(self, config: Mapping[str, Any]) -> tuple[str, str, str]:
        """All jobs of a program are of one kind: what one took is expected of the others."""
        return (config["program"],) * 3

    def imports(self, config: Mapping[str, Any]) -> Sequence[str]:
        """The program's file and module, and what its configuration names as `_target_`."""
        start = config["start"]
        targets = {text for key, text in content.texts(config) if key.endswith("._target_")}
        return [*filter(None, (start["file"], start["module"])), *targets]
