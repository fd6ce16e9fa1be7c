"""Which runs of a plan continue a finished run of fewer steps, and why others start again.

The identity of a run is a hash of its configuration. The id of the same run with fewer steps can therefore be computed,
and no index of prefixes is needed: a plan tries every number of steps that some run of the multirun folder has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from launcher.application import application
from launcher.config import identity
from launcher.errors import Objection
from launcher.files import BadRunFolder
from launcher.planning.plan import CodeChoice, Plan, PlannedRun, Prefix
from launcher.planning.schema import brief
from launcher.run import catalog, code
from launcher.run.folder import checkpoints, run_folder
from launcher.run.lifecycle import find_state, is_done
from launcher.text import counted, one_line

# To parse ten thousand files as YAML takes half a minute, but few of them have different sections `trainer`.
_TRAINER = re.compile(r"^trainer:\n(?: .*\n)+", re.MULTILINE)


def continued(plan: Plan) -> Plan:
    """The plan with the finished runs that its new runs continue, and why others start again. Writes nothing."""
    run_ids = list[str]()
    with suppress(NotADirectoryError):  # the launch says so
        run_ids = catalog.run_ids(plan.multirun)
    folders = {run_id: run_folder(plan.multirun, run_id) for run_id in plan.runs.keys() & {*run_ids}}
    old = {run_id for run_id, folder in folders.items() if (folder / "state.json").exists()}
    new = [run for run in plan.runs.values() if run.id not in old]
    lengths, objections = _lengths(plan, run_ids) if new else [], dict[str, Sequence[Objection]]()
    outcomes = {run.id: _prefix_of(plan, run, lengths, objections) for run in new}
    return replace(
        plan,
        prefixes={run_id: outcome for run_id, outcome in outcomes.items() if isinstance(outcome, Prefix)},
        restarts={run_id: outcome for run_id, outcome in outcomes.items() if isinstance(outcome, str)},
    )


def _lengths(plan: Plan, run_ids: Iterable[str]) -> list[int]:
    """The numbers of steps of these runs of the multirun folder, the largest first."""
    lengths = (_trainer(run_folder(plan.multirun, run_id)).get("steps") for run_id in run_ids)
    return sorted({steps for steps in lengths if isinstance(steps, int)}, reverse=True)


def _trainer(folder: Path) -> Mapping[str, Any]:
    """The section `trainer` of a frozen configuration; empty if it cannot be read."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        match = _TRAINER.search((folder / "config.yaml").read_text(encoding="utf-8"))
        if match and isinstance(section := _parsed(match[0]), Mapping):
            return section
    return {}


@functools.lru_cache(maxsize=1024)
def _parsed(section: str) -> Any:
    return yaml.load(section, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["trainer"]


def _prefix_of(
    plan: Plan, run: PlannedRun, lengths: Sequence[int], objections: dict[str, Sequence[Objection]]
) -> Prefix | str | None:
    """The longest finished run that this one continues; or why it does not continue the longest; None: no such."""
    why: str | None = None
    for length in (length for length in lengths if length < int(run.config["trainer"]["steps"])):
        config = {**run.config, "trainer": {**run.config["trainer"], "steps": length}}
        judged = _judged(plan, run, identity.run_id(identity.identity(run.base, config)), length, objections)
        if isinstance(judged, Prefix):
            return judged
        why = why or judged
    return why


def _judged(
    plan: Plan, run: PlannedRun, shorter: str, steps: int, objections: dict[str, Sequence[Objection]]
) -> Prefix | str | None:
    """Whether a run continues `shorter`, its run of fewer steps. objections: of earlier calls, most of them alike."""
    folder, begin = run_folder(plan.multirun, shorter), f"although {counted(steps, 'step')} are done, because"
    with suppress(BadRunFolder):  # `status` reports what is wrong with it
        if not is_done(state := find_state(folder)):
            return None
        if steps not in dict(checkpoints(folder)):
            fix = "`gc --keep last`, the default, keeps the last checkpoints of done runs"
            return f"{begin} the checkpoint of step {steps} was deleted. Fix: {fix}"
        records = (code.read(plan.multirun, code_id) for code_id in state.code_ids())
        if plan.code_choice == CodeChoice.RERUN and any(record and code.changes(record) for record in records):
            return f"{begin} other code computed them. Fix: write accept_code=true in place of rerun=changed"
        config, before = {key: value for key, value in run.config.items() if key != "seed"}, _trainer(folder)
        memo = repr((run.base, config, before))
        if memo not in objections:
            objections[memo] = application(config).continuing(config, plan.bases[run.base], before)
        for objection in objections[memo]:
            rule = one_line(objection.rule)
            return f"{begin} {objection.key} = {brief(objection.value)}: {rule}. Fix: {objection.fix}"
        return Prefix(shorter, steps)
    return None
