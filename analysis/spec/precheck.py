"""python -m analysis.spec.precheck: whether the report will take what a plan asks of it, and its seeds can decide it.

Reads {"analysis", "groups", "baseline", "seeds": {group: [...]}} as JSON from standard input and prints {"refused":
null or {"key", "value", "rule"}, "undecidable": [{"id", "seeds", "needed"}, ...], "otherwise": {"settings": {...},
"undecidable": [...]}}: the same under the tests that need the fewest seeds, which assume normal differences.
Standard library only, so that every plan may afford it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from analysis.spec import derived_metric
from analysis.spec.settings import Settings, settings
from analysis.spec.validation import KEY, OWN_METRIC, BadValue, refuse
from analysis.stats.resolution import multiplied, seeds_needed

# Two seeds are as far from their median as each other. Of three, one is the median: stats.dispersion's t is at most 2,
# and this is its two-sided p with two degrees of freedom.
_SPREAD_OF_THREE = 1 - 2 / math.sqrt(6)
_FEWEST_SEEDS = {"test": "paired_t", "family": "holm"}  # they have no smallest p


@dataclass(frozen=True)
class Undecidable:
    """A hypothesis that its runs can neither support nor contradict, whatever they show: seeds that both groups have,
    and seeds needed at least."""

    id: str
    seeds: int
    needed: int


def undecidable(asked: Settings, seeds: Mapping[str, Sequence[int]]) -> tuple[Undecidable, ...]:
    """The hypotheses `greater` and `less` whose smallest adjusted p is above alpha, `spread` with too few seeds for its
    t test, and all whose groups share fewer than two seeds. Those made of other hypotheses are as good as these.

    seeds: of each group of the plan.
    """
    found = []
    for hypothesis in asked.hypotheses:
        if hypothesis.of:
            continue
        groups = [seeds[group] for group in (hypothesis.group, *hypothesis.against)]
        n = len(set.intersection(*map(set, groups)))
        needed = 2
        if hypothesis.kind in ("greater", "less"):
            test = "signflip" if hypothesis.summary == "time_to" else asked.test
            times = multiplied(asked.family, test, len(seeds) - 1)
            needed = seeds_needed(asked.alpha, times) if times else 2
        elif hypothesis.kind == "spread":
            needed = 3 if asked.alpha > _SPREAD_OF_THREE else 4
        if n < needed:
            found.append(Undecidable(hypothesis.id, n, needed))
    return tuple(found)


def _check_own(asked: Settings) -> None:
    """Raise BadValue for a hypothesis on a metric that the trainer never writes; its schema has checked the others."""
    for hypothesis in asked.hypotheses:
        for metric in hypothesis.metrics:
            if not all(map(OWN_METRIC.fullmatch, derived_metric.keys(metric))):
                key = "metric" if len(hypothesis.metrics) == 1 else "metrics"
                raise refuse("plan.json", f"hypotheses.{hypothesis.id}.{key}", metric, KEY)


def main() -> None:
    """Check what standard input asks."""
    asked = json.load(sys.stdin)
    refused: dict[str, str | None] | None = None
    lost: tuple[Undecidable, ...] = ()
    left: tuple[Undecidable, ...] = ()
    try:
        found = settings(asked["analysis"], "plan.json", asked["groups"], asked["baseline"])
        _check_own(found)
    except BadValue as error:
        refused = {"key": error.key, "value": error.value, "rule": error.rule}
    else:
        lost = undecidable(found, asked["seeds"])
        left = undecidable(replace(found, test=_FEWEST_SEEDS["test"], family=_FEWEST_SEEDS["family"]), asked["seeds"])
    otherwise = {"settings": _FEWEST_SEEDS, "undecidable": list(map(asdict, left))}
    print(json.dumps({"refused": refused, "undecidable": list(map(asdict, lost)), "otherwise": otherwise}))


if __name__ == "__main__":
    main()
