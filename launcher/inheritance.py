"""What an experiment's file takes over from another's, through Hydra's `defaults: [other, _self_]`.

Hydra merges the two: mappings key by key, anything else whole. A null drops an entry: `groups: {C2: null}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import Problem
from launcher.text import nearest

EXPERIMENT = ("groups", "factors", "zip", "scales")
ANALYSIS = ("hypotheses",)


def kept(
    at: str,
    parts: Sequence[str],
    section: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    where: str,
    problems: list[Problem],
) -> dict[str, Any]:
    """A merged section without the entries of its `parts` that are dropped.

    at: the section's key; files: the same sections of the composition's files, unmerged. A null for what none of them
    declares is added to `problems`.
    """
    result = dict(section)
    for part in parts:
        entries = section.get(part)
        if not isinstance(entries, Mapping):
            continue
        declared = {
            str(name)
            for file in files
            if isinstance(file.get(part), Mapping)
            for name, entry in file[part].items()
            if entry is not None
        }
        for name in [str(name) for name, entry in entries.items() if entry is None and str(name) not in declared]:
            close = nearest(name, sorted(declared))
            rule = "null drops what another file declares, and none does"
            others = f"; declared: {', '.join(sorted(declared))}" if declared else ""
            fix = f"write {close}" if close else f"remove it, or say what it is{others}"
            problems.append(Problem(where, f"{at}.{part}.{name}", None, rule, fix))
        result[part] = {name: entry for name, entry in entries.items() if entry is not None}
    return result


def own_name(section: Mapping[str, Any], source: str | None, where: str, problems: list[Problem]) -> None:
    """Add a problem when the experiment's name is another file's, and so its folder. source: the file that set it."""
    if source is not None and source != where and source.startswith(f"{where.rpartition('/')[0]}/"):
        rule = f"{source} has this name, and its plan and report lie in the folder of that name"
        problems.append(Problem(where, "experiment.name", str(section.get("name")), rule, "give this one its own name"))
