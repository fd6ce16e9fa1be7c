"""One launch of a campaign: its stages in their order, until a gate is not met. Repeating it continues, and changes
nothing that is decided.

The analysis judges. Of a stage's reports only `report.json` is read, the file for machines.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import project
from launcher.campaign import stages
from launcher.campaign.stages import Campaign, PlannedStage
from launcher.execution import checks, sweep
from launcher.execution.sweep import Swept
from launcher.files import BadRunFolder
from launcher.planning.overrides import command_line
from launcher.planning.plan import Plan
from launcher.planning.planner import AddedSeeds
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED
from launcher.run import campaign_record, catalog
from launcher.run.campaign_record import CampaignRecord, Figure, StageRecord, Taken
from launcher.run.lifecycle import RESUMABLE, RunState
from launcher.text import counted

# A run that diverged has ended: it says something of its method. The others say nothing.
_ENDED = frozenset({RunState.DONE, RunState.DIVERGED})


def plan_and_check(campaign: Campaign, plugin: bool = False) -> tuple[list[PlannedStage], CampaignRecord | None]:
    """The plans of all stages as they are decided now, and what is recorded of them. plugin: whether a launcher of
    Hydra takes the place of the cluster. Raises InvalidPlan, before anything is written, with the problems of every
    stage."""
    planned = stages.plan_all(campaign, None)
    for stage in planned:
        checks.refuse_dry(stage.plan, plugin)
    record = campaign_record.find(planned[0].plan.multirun, campaign.name)
    if record is None:
        return planned, None
    planned = stages.plan_all(campaign, record)
    return planned, _recorded(record, campaign, record.command, planned)


def launch(campaign: Campaign, words: Sequence[str], plugin: Any = None) -> int:
    """Run the stages; the exit code. words: the command line. Raises InvalidPlan, before anything is written."""
    planned, _ = plan_and_check(campaign, plugin is not None)
    command = command_line(words)
    multirun = planned[0].plan.multirun
    campaign_record.update(multirun, campaign.name, lambda before: _recorded(before, campaign, command, planned))
    shared = stages.shared_budget(planned) is not None
    charged = frozenset(run_id for stage in planned for run_id in stage.plan.runs)
    code, above = EXIT_FINE, dict[str, PlannedStage]()
    for number, stage in enumerate(planned, 1):
        names = ", ".join(experiment.name for experiment in stage.experiments)
        print(f"campaign {campaign.name}, stage {number} of {len(planned)}: {stage.name} ({names})", flush=True)
        if (started := _start(campaign, stage, above)) is None:
            return EXIT_FAILED
        charged |= started.plan.runs.keys()  # with the levels that were decided meanwhile
        swept = _sweep(campaign, started, above, charged if shared else frozenset(), plugin)
        if swept.outcome.interrupted:
            return EXIT_INTERRUPTED
        if swept.outcome.detached:
            _say(campaign, f"stage {stage.name} was submitted; when its runs have ended, repeat this command to go on")
            return swept.code
        if not _passes(campaign, started, swept, command):
            return EXIT_FAILED
        code = max(code, swept.code)
    print(f"campaign {campaign.name}: all {counted(len(planned), 'stage')} are done", flush=True)
    return code


def _recorded(
    before: CampaignRecord | None, campaign: Campaign, command: str, planned: Sequence[PlannedStage]
) -> CampaignRecord:
    """The record with the stages as they are planned now. What was decided of the same runs stays; what was decided of
    others is kept apart."""
    versions, listed = before.versions if before is not None else [], list[StageRecord]()
    for stage in planned:
        entry = StageRecord(stage.name, names := [experiment.name for experiment in stage.experiments])
        for known in (known for version in versions for known in version if known.name == stage.name):
            if known.runs == stage.runs and len(stage.taken) == len(stage.pins):  # else the runs are not known yet
                entry = known
        listed.append(replace(entry, experiments=names, taken=[*stage.taken.values()]))
    former = [version for version in versions if any(known.started and known not in listed for known in version)]
    return CampaignRecord(campaign.name, command, listed, former)


def _start(campaign: Campaign, stage: PlannedStage, above: dict[str, PlannedStage]) -> PlannedStage | None:
    """The stage with the levels that it takes, which are frozen now; None if one of them is not decided."""
    if len(stage.taken) < len(stage.pins):
        undecided: list[str] = []
        taken = _take(stage, above, undecided)
        if undecided:
            why = f"cannot start, because it takes levels that are not decided: {'; '.join(undecided)}"
            _say(campaign, f"stage {stage.name} {why}")
            return None
        key = stage.plan.multirun, campaign.name, stage.name
        # Some may be decided: by this launch before it was edited, or by another one that was faster.
        frozen = campaign_record.change_stage(*key, lambda now: replace(now, taken=[*(taken | now.levels()).values()]))
        for level in frozen.taken:
            source = f"taken from stage {level.stage} ({level.means})"
            print(f"{level.into}: {level.key} = {level.value}, {source}", flush=True)
        stage = stages.plan_stage(campaign, stage.name, frozen.taken, above)
    _record_runs(campaign, stage, above)
    return stage


def _record_runs(campaign: Campaign, stage: PlannedStage, above: dict[str, PlannedStage]) -> None:
    """Before its runs start, record which ones a stage has: those that its levels and its gate are decided by."""
    above[stage.name] = stage
    key = stage.plan.multirun, campaign.name, stage.name
    campaign_record.change_stage(*key, lambda now: replace(now, started=now.started or time.time(), runs=stage.runs))


def _sweep(
    campaign: Campaign, stage: PlannedStage, above: dict[str, PlannedStage], charged: frozenset[str], plugin: Any
) -> Swept:
    """Sweep a stage, with further seeds where their number depends on results. charged: the runs of other stages that
    count for the budget, too."""

    def again(added: AddedSeeds) -> Plan:
        whole = stages.plan_stage(campaign, stage.name, [*stage.taken.values()], above, added)
        _record_runs(campaign, whole, above)
        return replace(whole.plan, charged=charged | whole.plan.runs.keys() if charged else charged)

    return sweep.sweep(campaign.root, replace(stage.plan, charged=charged), plugin=plugin, again=again)


# ---------------------------------------------------------------- the end of a stage


def _passes(campaign: Campaign, stage: PlannedStage, swept: Swept, command: str) -> bool:
    """Whether the next stage may start; what fell short is recorded and printed."""
    why, short = _incomplete(stage, swept), list[Figure]()
    decided: dict[str, Any] = {"incomplete": why}
    if why is None:
        gate = _gate(stage)
        short = [figure for figure in gate if not figure.met]
        decided |= {"met": not short, "gate": gate}
        for figure in gate:
            print(f"gate of {stage.name}: {figure.sentence()}", flush=True)
        if short:
            why = f"its gate is not met by {', '.join(figure.brief() for figure in short)}"
    key = stage.plan.multirun, campaign.name, stage.name
    recorded = campaign_record.change_stage(*key, lambda before: replace(before, **decided))
    if why is None:
        return True
    ended = all(state is not None and state.state not in RESUMABLE for state in swept.states.values())
    if recorded.forced_by is not None and ended:
        _say(campaign, f"stage {stage.name}: {why}. It was forced before: {recorded.forced_by}")
        return True
    if stage.name in campaign.forced and ended and not swept.outcome.tripped:
        forced: dict[str, Any] = {"forced": short, "forced_by": command, "forced_at": time.time()}
        campaign_record.change_stage(*key, lambda before: replace(before, **forced))
        _say(campaign, f"stage {stage.name}: {why}. Forced: later reports of this campaign say so first")
        return True
    _say(campaign, f"stage {stage.name}: {why}")
    if ended:
        forcing = project.spelled(f"{command} {stages.FORCE}={stage.name}")
        _say(campaign, f"the campaign stops here. To go on regardless, which every later report says first: {forcing}")
    return False


def _incomplete(stage: PlannedStage, swept: Swept) -> str | None:
    """Why a stage cannot be judged; None if it can."""
    states = Counter(state.state if state is not None else "new" for state in swept.states.values())
    if left := {state: count for state, count in states.items() if state not in _ENDED}:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(left.items()))
        failed = [experiment.name for experiment in stage.experiments] if RunState.FAILED in left else []
        fixes = [catalog.command(stage.plan.multirun, "resume", name) for name in failed]
        return "; ".join([f"not all runs are done ({counts})", *fixes])
    if swept.outcome.tripped is not None:
        return swept.outcome.tripped
    if swept.reports is None or any(swept.reports):
        return "its report could not be written, or its responses not be judged"
    return None


def _say(campaign: Campaign, text: str) -> None:
    print(f"campaign {campaign.name}: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- what the reports of a stage say


def _gate(stage: PlannedStage) -> list[Figure]:
    """The verdicts on the hypotheses of a gate, in every experiment of the stage that declares them.

    BadRunFolder: a report cannot be read.
    """
    figures = []
    for experiment in stage.experiments:
        judged = {verdict["id"]: verdict for verdict in _report(stage.plan.multirun, experiment.name)["hypotheses"]}
        for name in (name for name in stage.stage.gate if name in judged):
            keys = ("claim", "verdict", "quantity", "shown", "decided")
            figures.append(Figure(name, experiment.name, **{key: str(judged[name][key]) for key in keys}))
    return figures


def _take(stage: PlannedStage, above: Mapping[str, PlannedStage], undecided: list[str]) -> dict[tuple[str, str], Taken]:
    """The levels that a stage takes, as the reports of earlier stages have them now. `undecided` gets a line for each
    that has no best level; BadRunFolder: a report cannot be read."""
    taken = {}
    for pin in stage.pins:
        every, where = _report(stage.plan.multirun, pin.experiment)["levels"], f"{pin.experiment}: {pin.into}"
        match = next((taken for taken in every if (taken["group"], taken["factor"]) == (pin.into, pin.factor)), None)
        if match is None:
            undecided.append(f"{where} does not read {pin.factor}, or has one level of it")
            continue
        means = "; ".join(map(_at, match["levels"]))
        if match["best"] is None:
            undecided.append(f"{where} has no best level of {pin.factor}, for none has all of its results ({means})")
            continue
        taken[pin.key, pin.into] = Taken(
            key=pin.key, into=pin.into, value=match["best"]["level"], stage=pin.take.stage,
            experiment=pin.experiment, group=pin.into, factor=pin.factor, means=means, time=time.time(),
            runs=above[pin.take.stage].runs[pin.into],
        )  # fmt: skip
    return taken


def _at(level: Mapping[str, Any]) -> str:
    """A level with its mean, as `0.0001: 0.43`."""
    mean = "no result" if level["mean"] is None else f"{level['mean']:.3g}"
    few = "" if level["results"] == level["planned"] else f" ({level['results']} of {level['planned']} results)"
    return f"{level['level']}: {mean}{few}"


def _report(multirun: Path, experiment: str) -> dict[str, Any]:
    path = multirun / experiment / "report" / "report.json"
    fix = f"write the report again: rlsweep report {multirun / experiment}"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadRunFolder(path, f"cannot be read ({error})", fix) from error
    lists = ("hypotheses", "levels")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in lists):
        raise BadRunFolder(path, "is the report of an older version", fix)
    return content
