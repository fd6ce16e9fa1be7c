"""One launch of a campaign: its stages in their order, until a gate is not met. Repeating it continues, and changes
nothing that is decided."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from launcher.campaign import decisions, stages
from launcher.campaign.decisions import Undecided
from launcher.campaign.stages import Campaign, PlannedStage
from launcher.execution import checks, sweep
from launcher.execution.sweep import Swept
from launcher.planning.overrides import command_line
from launcher.planning.plan import Plan
from launcher.planning.planner import AddedSeeds
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED
from launcher.run import campaign_record, catalog
from launcher.run.campaign_record import CampaignRecord, StageRecord
from launcher.run.lifecycle import RESUMABLE, RunState
from launcher.text import counted

# A run that diverged has ended: it says something of its method. The others say nothing.
_ENDED = frozenset({RunState.DONE, RunState.DIVERGED})


def plan_and_check(campaign: Campaign, plugin: bool = False) -> tuple[list[PlannedStage], CampaignRecord | None]:
    """The plans of all stages as they are decided now, and the record. plugin: whether a launcher of Hydra takes the
    place of the cluster. Raises InvalidPlan, before anything is written, with the problems of every stage."""
    planned = stages.plan_all(campaign, None)
    for stage in planned:
        checks.refuse(stage.plan, None, launches=False, plugin=plugin)
    record = campaign_record.find(planned[0].plan.multirun, campaign.name)
    return (planned if record is None else stages.plan_all(campaign, record)), record


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
        started = _start(campaign, stage, above)
        if started is None:
            return EXIT_FAILED
        above[stage.name] = started
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
    """The record with the stages as they are planned now; what was decided stays."""
    known = {stage.name: stage for stage in before.stages} if before is not None else {}
    listed = []
    for stage in planned:
        names = [experiment.name for experiment in stage.experiments]
        blank = StageRecord(stage.name, names)
        listed.append(replace(known.get(stage.name, blank), experiments=names, needs=list(stage.stage.needs)))
    return CampaignRecord(campaign.name, command, listed)


def _start(campaign: Campaign, stage: PlannedStage, above: dict[str, PlannedStage]) -> PlannedStage | None:
    """The stage with the levels that it takes, which are frozen now; None if one of them is not decided."""
    key = stage.plan.multirun, campaign.name, stage.name
    if len(stage.values) < len(stage.pins):
        try:
            taken = decisions.take(stage.plan.multirun, stage.pins)
        except Undecided as error:
            _say(campaign, f"stage {stage.name} cannot start, because it takes levels that are not decided: {error}")
            return None
        # Another launch of the campaign may have been faster.
        frozen = campaign_record.change_stage(*key, lambda now: now if now.taken else replace(now, taken=taken))
        values = {(one.key, one.into): one.value for one in frozen.taken}
        for one in frozen.taken:
            print(f"{one.into}: {one.key} = {one.value}, taken from stage {one.stage} ({one.means})", flush=True)
        stage = stages.plan_stage(campaign, stage.name, values, above)
    campaign_record.change_stage(*key, lambda now: replace(now, started=now.started or time.time()))
    return stage


def _sweep(
    campaign: Campaign, stage: PlannedStage, above: dict[str, PlannedStage], charged: frozenset[str], plugin: Any
) -> Swept:
    """Sweep a stage, with further seeds where their number depends on results. charged: the runs of other stages that
    count for the budget, too."""

    def again(added: AddedSeeds) -> Plan:
        whole = stages.plan_stage(campaign, stage.name, stage.values, above, added).plan
        return dataclasses.replace(whole, charged=charged | whole.runs.keys() if charged else charged)

    return sweep.sweep(campaign.root, replace(stage.plan, charged=charged), plugin=plugin, again=again)


# ---------------------------------------------------------------- the end of a stage


def _passes(campaign: Campaign, stage: PlannedStage, swept: Swept, command: str) -> bool:
    """Whether the next stage may start; what fell short is recorded and printed."""
    multirun, short = stage.plan.multirun, []

    def record(**changes: Any) -> StageRecord:
        return campaign_record.change_stage(
            multirun, campaign.name, stage.name, lambda before: replace(before, **changes)
        )

    why = _incomplete(stage, swept)
    recorded = record(complete=why is None, incomplete=why)
    if why is None:
        names = [experiment.name for experiment in stage.experiments]
        figures = decisions.figures(multirun, names, stage.stage.needs)
        short = [figure for figure in figures if figure.verdict != decisions.SUPPORTED]
        recorded = record(met=not short, gate=figures)
        for figure in figures:
            print(f"gate of {stage.name}: {figure.sentence()}", flush=True)
        if not short:
            return True
        why = f"its gate is not met by {', '.join(figure.brief() for figure in short)}"
    ended = all(state is not None and state.state not in RESUMABLE for state in swept.states.values())
    if recorded.forced_by is not None and ended:
        _say(campaign, f"stage {stage.name}: {why}. It was forced before: {recorded.forced_by}")
        return True
    if stage.name in campaign.forced and ended and not swept.outcome.tripped:
        record(forced=short, forced_by=command, forced_at=time.time())
        _say(campaign, f"stage {stage.name}: {why}. Forced: later reports of this campaign say so first")
        return True
    _say(campaign, f"stage {stage.name}: {why}")
    if ended:
        forcing = f"{command} {stages.FORCE}={stage.name}"
        _say(campaign, f"the campaign stops here. To go on regardless, which every later report says first: {forcing}")
    return False


def _incomplete(stage: PlannedStage, swept: Swept) -> str | None:
    """Why a stage cannot be judged; None if it can."""
    states = Counter(state.state if state is not None else "new" for state in swept.states.values())
    left = {state: count for state, count in states.items() if state not in _ENDED}
    if left:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(left.items()))
        failed = [one.name for one in stage.experiments] if left.keys() & {RunState.FAILED} else []
        fix = "; ".join(catalog.command(stage.plan.multirun, "resume", name) for name in failed)
        return f"not all runs are done ({counts})" + (f"; {fix}" if fix else "")
    if swept.outcome.tripped is not None:
        return swept.outcome.tripped
    if swept.reports is None or any(swept.reports):
        return "its report could not be written"
    return None


def _say(campaign: Campaign, text: str) -> None:
    print(f"campaign {campaign.name}: {text}", file=sys.stderr, flush=True)
