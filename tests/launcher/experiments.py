"""Plans for tests: of the shipped configuration, or of a copy that a test may spoil."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.hydra_compose import Composer
from launcher.errors import InvalidPlan
from launcher.planning import planner
from launcher.planning.plan import Plan
from tests.launcher.conftest import ROOT

#: Files for tests alone, beside conf/.
FURTHER = Path(__file__).parent / "conf"
SHIPPED = Composer(ROOT / "conf", "config", [FURTHER])  # what it composed for one test serves the others


def make(*arguments: str, conf: Path | None = None, root: Path = ROOT) -> Plan:
    """A plan; of the shipped configuration unless `conf` is given."""
    return planner.make(root, arguments, Composer(conf, "config") if conf is not None else SHIPPED)


#: What makes a plan of models for several devices: none of it is part of a run's identity.
HELD = (
    *(f"model.resources.{one}" for one in ("device_memory_gb=null", "devices=1", "nodes=1")),
    *(f"model.parallel.{one}" for one in ("offload=false", "rows=null")),
)


def at_scale(scale: str) -> list[str]:
    """The words for a plan at a scale. That of the designs has models that no trainer drives yet: of them, what a plan
    refuses is left out."""
    return [f"scale={scale}", *(HELD if scale == "design" else ())]


def refused(*arguments: str, conf: Path | None = None) -> list[str]:
    """The lines of a plan that is refused; each names a fix."""
    return refusal(lambda: make(*arguments, conf=conf))


def refusal(call: Callable[[], Any]) -> list[str]:
    """The lines by which a call refuses a plan; each names a fix."""
    with pytest.raises(InvalidPlan) as raised:
        call()
    lines = str(raised.value).splitlines()
    assert all(". Fix: " in line for line in lines)
    return lines


def rows(table: str) -> list[str]:
    """The lines of a table of commands or settings, a case each."""
    return table.strip().splitlines()


def refusals(words: str, conf: Path | None = None) -> Iterator[str]:
    """The lines that refuse a command, which is quoted as for a shell, for the golden file: of a long list of names,
    which grows with the included files, they have the ends."""

    def ends(names: re.Match[str]) -> str:
        each = names[0].split(", ")
        return ", ".join([*each[:3], "...", *each[-3:]])

    return (re.sub(r"(?:[\w/.-]+, ){7,}[\w/.-]+", ends, line) for line in refused(*shlex.split(words), conf=conf))


def by_group(planned: Plan) -> dict[str, int]:
    """The number of runs of each group of the first experiment."""
    counts: dict[str, set[str]] = {}
    for entry in planned.experiments[0].entries:
        counts.setdefault(entry.group, set()).add(entry.id)
    return {group: len(ids) for group, ids in counts.items()}


def levels(planned: Plan) -> list[tuple[str, int, dict[str, Any]]]:
    """(group, seed, factors by label) of each entry of the first experiment."""
    return [(entry.group, entry.seed, dict(entry.factors)) for entry in planned.experiments[0].entries]


def shipped(group: str) -> list[str]:
    """The names of a group's files."""
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def write_experiment(conf: Path, groups: Mapping[str, Any], name: str = "bad", **more: Any) -> None:
    """An experiment's file, with the first group as baseline; keys of `experiment` go there, others beside it."""
    baseline = str(next(iter(groups))) if isinstance(groups, Mapping) and groups else None
    declared = {"name": name, "groups": groups, "factors": {}, "seeds": [0], "baseline": baseline}
    own = more.keys() & {"factors", "zip", "exclude", "seeds", "baseline", "scales"}
    declared |= {key: more.pop(key) for key in own}
    text = yaml.safe_dump({"experiment": declared, **more})
    (conf / f"experiment/{name}.yaml").write_text(f"# @package _global_\n{text}")
