"""From which policy a run draws the responses that it trains on.

A metric of these responses is about the policy that drew them. Two methods can be compared by it only if both draw from
policies of the same kind: for likelihood training on an expert's responses, the mean reward is the expert's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Of a method, each with keys of its own: what responses are like.
_PARTS = ("sampler", "target", "alpha", "temperature")
_TEMPERATURE = ("actor_rollout_ref", "rollout", "temperature")


def drawn_from(config: Mapping[str, Any]) -> str:
    """The source of a run's responses, by its configuration; equal texts are equal sources, "" is not known."""
    method, value = config.get("method"), config.get("verl")
    if not isinstance(method, Mapping) or "sampler" not in method:
        return ""
    parts = tuple(part for part in _PARTS if method.get(part) not in (None, "none"))
    # without a target, a key such as target_kl is of another part
    chosen = {key: value for key, value in method.items() if key.startswith(parts) and (len(parts) > 1 or key in parts)}
    if method.get("loss") == "dpo" and method.get("dpo_pairs") == "data":
        chosen = {"sampler": "pairs of the task"}
    for key in _TEMPERATURE:
        value = value.get(key) if isinstance(value, Mapping) else None
    words = [str(chosen.pop("sampler")), *(f"{key} {chosen[key]}" for key in sorted(chosen))]
    return ", ".join([*words, *([] if value is None else [f"at temperature {value:g}"])])
