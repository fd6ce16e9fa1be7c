"""What a run requests from a cluster, with one meaning on every scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.application import Shape, application, seconds

__all__ = ["Shape", "seconds", "shape"]


def shape(config: Mapping[str, Any]) -> Shape:
    """What a run requests. config: checked against conf/config.yaml."""
    return application().resources(config)
