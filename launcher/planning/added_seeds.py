"""Which seeds each group of an experiment has now, where seeds are added by a rule (`experiment.seeds: {start, max}`).

The plan that was frozen last says so: its groups keep their seeds, and each launch adds what it is told to add. So the
same command goes on where the last one stopped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.spec.settings import Sequential
from launcher.errors import Diagnostics
from launcher.planning.overrides import COMMAND_LINE, Arguments
from launcher.planning.plan import Experiment
from launcher.run import lifecycle
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState


def current(
    rule: Sequential, groups: Iterable[str], frozen: Experiment | None, added: Mapping[str, Iterable[int]]
) -> dict[str, set[int]]:
    """The seeds of each group: those of the frozen plan if it has the same rule, those that are added now, and at least
    those of the first look."""
    known = frozen.seeds_of() if frozen is not None and frozen.sequential == rule else {}
    return {group: {*range(rule.start), *known.get(group, ()), *added.get(group, ())} for group in groups}


def recorded(given: Arguments, frozen: Experiment | None, declared: Any, problems: Diagnostics) -> Arguments:
    """The arguments; `seed=+5,6` with the seeds of the plan that was frozen last, or else of the file."""
    if not given.adds_seeds:
        return given
    before = declared if frozen is None or isinstance(declared, Mapping) else list(frozen.seeds)
    if isinstance(before, Mapping) or len(given.experiments) > 1:
        rule = "+ adds to the seeds of one experiment, whose number no rule decides"
        problems.add(COMMAND_LINE, "seed", f"+{given.seeds}", rule, "write all seeds, as in seed=0,1,2")
        return given
    return replace(given, seeds=list(dict.fromkeys([*before, *(given.seeds or ())])))


def with_seeds(command: str, seeds: Iterable[int], key: str = "seed") -> str:
    """An experiment's command with these seeds. key: what sets them."""
    words = shlex.split(command)
    place = 3 if words[:1] == ["cd"] else 0  # where the program is: cd FOLDER && python ...
    folder, words = words[1 : place - 1], words[place:]
    set_by = [word.partition("=")[0] for word in words if word.lstrip("+").startswith(f"{key}=")]
    kept = [word for word in words if word.partition("=")[0] not in set_by]
    all_seeds = f"{[key, *set_by][-1]}={','.join(map(str, seeds))}"
    return f"{f'cd {shlex.join(folder)} && ' if place else ''}{shlex.join([*kept, all_seeds])}"


def check_unchanged(
    rule: Sequential | None, frozen: Experiment, multirun: Path, where: str, key: str, problems: Diagnostics
) -> None:
    """Add a problem if a plan with results has another rule: error rates hold only for a rule that was there before
    them. A fixed number of seeds may become another one, which the report says.

    key: what sets the seeds in `where`.
    """
    before, now = frozen.analysis.get("sequential"), rule.model_dump() if rule is not None else None
    folders = (run_folder(multirun, run_id) for run_id in frozen.members)
    if before == now or not any(lifecycle.present_state(folder) == RunState.DONE for folder in folders):
        return
    said = "fixes the number of seeds" if before is None else f"has seeds: {_in_words(before)}"
    again = str(list(frozen.seeds)) if before is None else _in_words(before)
    problems.add(
        where,
        key,
        "a fixed number" if now is None else _in_words(now),
        f"{multirun / frozen.name / 'plan.json'} {said}, and some of its runs are done: its p values would not hold if "
        "the rule changed after results",
        f"write experiment.seeds: {again}, or give the experiment another name: experiment.name=NAME",
    )


def _in_words(rule: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{key}: {value}' for key, value in rule.items())}}}"
