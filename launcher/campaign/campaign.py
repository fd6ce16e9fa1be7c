"""One launch of a campaign: its stages in their order, until a gate is not met. Repeating it continues, and changes
nothing that is decided."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import secrets
from launcher.campaign import decisions
from launcher.campaign.decisions import Undecided
from launcher.execution import checks, sweep, sweeper
from launcher.execution.sweep import Swept
from launcher.planning import campaign_stages as stages
from launcher.planning import planner
from launcher.planning.campaign_stages import PlannedStage
from launcher.planning.plan import Plan
from launcher.planning.planner import AddedSeeds
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED, ROOT
from launcher.run import campaign_record, catalog
from launcher.run.campaign_record import CampaignRecord, StageRecord
from launcher.run.lifecycle import RESUMABLE, RunState
from launcher.text import counted
from launcher.worker import worker

# A run that diverged has ended: it says something of its method. The others say nothing.
_ENDED = frozenset({RunState.DONE, RunState.DIVERGED})


def run_words(
    arguments: Sequence[str], conf: Path = ROOT / "conf", plugin: Any = None, more: Sequence[Path] = ()
) -> int:
    """Launch the campaign that a command line names, or else its experiments; the exit code. The arguments are those of
    `sweeper.run_sweep`."""
    if not stages.is_campaign(arguments):
        return sweeper.run_sweep(arguments, conf, plugin, more)
    from launcher.config.hydra_compose import Composer

    def launch() -> int:
        planned = stages.Planner(ROOT, arguments, Composer(conf, planner.ROOT_CONFIG, more))
        return Campaign(ROOT, planned, arguments, plugin).run()

    return sweeper.without_traceback(launch)


class Campaign:
    """One launch of a campaign. `words`: of its command line."""

    def __init__(
        self, root: Path, planned: stages.Planner, words: Sequence[str], plugin: Any = None, train: str = worker.TRAIN
    ) -> None:
        self._root, self._planner, self._plugin, self._train = root, planned, plugin, train
        self._name = planned.asked.campaign
        shown = (shlex.quote(secrets.mask(word)) for word in words)
        self._command = " ".join(["python launch.py -m", *shown])
        self._multirun = Path()

    def run(self) -> int:
        """Run the stages. Raises InvalidPlan, before anything is written, with the problems of every stage."""
        planned = self._planner.all(None)
        for stage in planned:
            checks.refuse(stage.plan, None, launches=False, plugin=self._plugin is not None)
        self._multirun = planned[0].plan.multirun
        record = campaign_record.find(self._multirun, self._name)
        if record is not None:
            planned = self._planner.all(record)
        campaign_record.update(self._multirun, self._name, lambda before: self._recorded(before, planned))
        shared = stages.shared_budget(planned) is not None
        charged = frozenset(run_id for stage in planned for run_id in stage.plan.runs)
        code, above = EXIT_FINE, dict[str, PlannedStage]()
        for number, stage in enumerate(planned, 1):
            names = ", ".join(experiment.name for experiment in stage.experiments)
            print(f"campaign {self._name}, stage {number} of {len(planned)}: {stage.name} ({names})", flush=True)
            started = self._start(stage, above)
            if started is None:
                return EXIT_FAILED
            above[stage.name] = started
            charged |= started.plan.runs.keys()  # with the levels that were decided meanwhile
            plan = dataclasses.replace(started.plan, charged=charged if shared else frozenset())
            again = self._again(started, above, plan.charged)
            swept = sweep.sweep(self._root, plan, self._train, self._plugin, again)
            if swept.outcome.interrupted:
                return EXIT_INTERRUPTED
            if swept.outcome.detached:
                self._say(f"stage {stage.name} was submitted; when its runs have ended, repeat this command to go on")
                return swept.code
            if not self._passes(started, swept):
                return EXIT_FAILED
            code = max(code, swept.code)
        print(f"campaign {self._name}: all {counted(len(planned), 'stage')} are done", flush=True)
        return code

    # ------------------------------------------------------------ the record

    def _recorded(self, before: CampaignRecord | None, planned: Sequence[PlannedStage]) -> CampaignRecord:
        """The record with the stages as they are planned now; what was decided stays."""
        known = {stage.name: stage for stage in before.stages} if before is not None else {}
        listed = []
        for stage in planned:
            names = [experiment.name for experiment in stage.experiments]
            blank = StageRecord(stage.name, names)
            listed.append(replace(known.get(stage.name, blank), experiments=names, needs=list(stage.stage.needs)))
        return CampaignRecord(self._name, self._command, listed)

    def _change(self, name: str, **changes: Any) -> StageRecord:
        return campaign_record.change_stage(self._multirun, self._name, name, lambda stage: replace(stage, **changes))

    # ------------------------------------------------------------ the beginning of a stage

    def _start(self, stage: PlannedStage, above: dict[str, PlannedStage]) -> PlannedStage | None:
        """The stage with the levels that it takes, which are frozen now; None if one of them is not decided."""
        if len(stage.values) < len(stage.pins):
            try:
                taken = decisions.take(self._multirun, stage.pins)
            except Undecided as error:
                self._say(f"stage {stage.name} cannot start, because it takes levels that are not decided: {error}")
                return None
            # Another launch of the campaign may have been faster.
            frozen = campaign_record.change_stage(
                self._multirun, self._name, stage.name, lambda now: now if now.taken else replace(now, taken=taken)
            )
            values = {(one.key, one.into): one.value for one in frozen.taken}
            for one in frozen.taken:
                print(f"{one.into}: {one.key} = {one.value}, taken from stage {one.stage} ({one.means})", flush=True)
            stage = self._planner.one(stage.name, values, above)
        campaign_record.change_stage(
            self._multirun, self._name, stage.name, lambda now: replace(now, started=now.started or time.time())
        )
        return stage

    def _again(self, stage: PlannedStage, above: Mapping[str, PlannedStage], charged: frozenset[str]) -> sweep.Again:
        """How a stage is planned with further seeds, where their number depends on results."""

        def plan(added: AddedSeeds) -> Plan:
            whole = self._planner.one(stage.name, stage.values, above, added).plan
            return dataclasses.replace(whole, charged=charged | whole.runs.keys() if charged else charged)

        return plan

    # ------------------------------------------------------------ the end of a stage

    def _passes(self, stage: PlannedStage, swept: Swept) -> bool:
        """Whether the next stage may start; what fell short is recorded and printed."""
        incomplete = self._incomplete(stage, swept)
        recorded = self._change(stage.name, complete=incomplete is None, incomplete=incomplete)
        figures, short = [], []
        if incomplete is None:
            names = [experiment.name for experiment in stage.experiments]
            figures = decisions.figures(self._multirun, names, stage.stage.needs)
            short = decisions.short(figures)
            recorded = self._change(stage.name, met=not short, gate=figures)
            for figure in figures:
                print(f"gate of {stage.name}: {figure.sentence()}", flush=True)
            if not short:
                return True
        why = incomplete or f"its gate is not met by {', '.join(figure.brief() for figure in short)}"
        ended = all(state is not None and state.state not in RESUMABLE for state in swept.states.values())
        if recorded.forced_by is not None and ended:
            self._say(f"stage {stage.name}: {why}. It was forced before: {recorded.forced_by}")
            return True
        if stage.name in self._planner.asked.forced and ended and not swept.outcome.tripped:
            self._change(stage.name, forced=short, forced_by=self._command, forced_at=time.time())
            self._say(f"stage {stage.name}: {why}. Forced: later reports of this campaign say so first")
            return True
        self._say(f"stage {stage.name}: {why}")
        if ended:
            words = f"{self._command} {stages.FORCE}={stage.name}"
            self._say(f"the campaign stops here. To go on regardless, which every later report says first: {words}")
        return False

    def _incomplete(self, stage: PlannedStage, swept: Swept) -> str | None:
        """Why a stage cannot be judged; None if it can."""
        states = Counter(state.state if state is not None else "new" for state in swept.states.values())
        left = {state: count for state, count in states.items() if state not in _ENDED}
        if left:
            counts = ", ".join(f"{count} {state}" for state, count in sorted(left.items()))
            failed = [one.name for one in stage.experiments] if left.keys() & {RunState.FAILED} else []
            fix = "; ".join(catalog.command(self._multirun, "retry", name) for name in failed)
            return f"not all runs are done ({counts})" + (f"; {fix}" if fix else "")
        if swept.outcome.tripped is not None:
            return swept.outcome.tripped
        if swept.reports is None or any(swept.reports):
            return "its report could not be written"
        return None

    def _say(self, text: str) -> None:
        print(f"campaign {self._name}: {text}", file=sys.stderr, flush=True)
