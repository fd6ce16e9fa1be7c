"""What the stages of a campaign cost, and what each gate needs, before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.campaign.stages import PlannedStage, shared_budget
from launcher.execution.costs import Forecast, added_words, budget_line, print_costs, sized, storage_words, totals
from launcher.planning import hypotheses
from launcher.planning.plan import Plan
from launcher.run import lifecycle
from launcher.run.campaign_record import CampaignRecord, StageRecord
from launcher.text import counted, hours


def whole(stages: Sequence[PlannedStage]) -> Plan:
    """One plan with the runs of all stages, each once."""
    runs = {run_id: run for stage in stages for run_id, run in stage.plan.runs.items()}
    experiments = tuple(experiment for stage in stages for experiment in stage.experiments)
    prefixes = {run_id: prefix for stage in stages for run_id, prefix in stage.plan.prefixes.items()}
    budget = shared_budget(stages)
    return dataclasses.replace(stages[0].plan, experiments=experiments, runs=runs, prefixes=prefixes, budget=budget)


def document(campaign: str, stages: Sequence[PlannedStage], record: CampaignRecord | None) -> dict[str, Any]:
    """The JSON object. Costs are those of the runs that are not done, as in the plan of an experiment.

    `sequential` has the rules by which experiments add seeds, and what these can cost at most; `needs` the hypotheses
    of a gate with their claims; `undecidable` those that the planned seeds cannot decide; `power` what the seeds can
    find, in words (null: it is not computed); `figures` what the reports said of them.
    """
    plan = whole(stages)
    found = lifecycle.find_states(plan.multirun, plan.runs)
    states, forecast = lifecycle.present_states(plan.multirun, found), Forecast(plan, found)
    return {
        "campaign": campaign,
        **totals(plan, states, forecast),
        "budget": budget_line(plan, forecast),
        "stages": [_stage(stage, states, forecast, record) for stage in stages],
    }


def _stage(
    stage: PlannedStage, states: Mapping[str, str], forecast: Forecast, record: CampaignRecord | None
) -> dict[str, Any]:
    ids = list(stage.plan.runs)
    cost = forecast.estimate(ids)
    needs = {
        name: str(experiment.analysis["hypotheses"][name]["claim"])
        for experiment in stage.experiments
        for name in stage.stage.gate
        if name in (experiment.analysis.get("hypotheses") or {})
    }
    lost = {
        claim["id"]: {"seeds": claim["seeds"], "needed": claim["needed"]}
        for experiment in stage.experiments
        for claim in hypotheses.undecidable(experiment)
        if claim["id"] in needs
    }
    judged = stage.experiments if needs else ()
    powers = {name: said for experiment in judged for name, said in hypotheses.powers(experiment).items()}
    known = {entry.name: entry for entry in record.stages} if record is not None else {}
    recorded = known.get(stage.name) or StageRecord(stage.name, [])
    return {
        "name": stage.name,
        "experiments": [experiment.name for experiment in stage.experiments],
        "commands": [experiment.command for experiment in stage.experiments][:1],
        **sized(ids, states, cost),
        "sequential": {experiment.name: forecast.of_added_seeds(experiment) for experiment in stage.experiments},
        "needs": needs,
        "undecidable": lost,
        "power": {name: powers.get(name) for name in needs},
        "takes": [
            {
                "key": pin.key, "group": pin.into, "stage": pin.take.stage, "factor": pin.factor,
                "value": level.value if (level := stage.taken.get((pin.key, pin.into))) is not None else None,
            }
            for pin in stage.pins
        ],
        "incomplete": recorded.incomplete,
        "met": recorded.met,
        "figures": [figure.sentence() for figure in recorded.gate],
        "forced": recorded.forced_by is not None,
    }  # fmt: skip


def show(document: Mapping[str, Any]) -> None:
    stages = {f"{number} {stage['name']}": stage for number, stage in enumerate(document["stages"], 1)}
    print(f"campaign {document['campaign']}: {counted(len(stages), 'stage')}, {counted(document['total'], 'run')}, "
          f"{document['done']} done")  # fmt: skip
    print_costs(stages, document["unit"], "stage")
    for line in _lines(document["stages"], document["unit"]):
        print(line)
    space = storage_words(document["storage_bytes"])
    spent = f"; {hours(document['spent_device_hours'])} were spent until now" if document["spent_device_hours"] else ""
    print(f"remaining if every gate is met: {document['device_hours']:.2f} {document['unit']}, {space}{spent}")
    for line in filter(None, (document["budget"], *document["warnings"])):
        print(line)


def _lines(stages: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    """What each stage may add and takes, and what its gate needs."""
    for stage in stages:
        yield f"{stage['name']}: {', '.join(stage['experiments'])}"
        yield from (f"  {name}: {added_words(rule, unit)}" for name, rule in stage["sequential"].items() if rule)
        by_source: dict[tuple[str, str, str], list[str]] = {}
        for take in stage["takes"]:
            by_source.setdefault((take["key"], take["stage"], take["factor"]), []).append(
                take["group"] if take["value"] is None else f"{take['group']} = {take['value']}"
            )
        for (key, source, factor), groups in by_source.items():
            of = "" if factor == key else f" of {factor}"
            yield f"  takes {key} for {', '.join(groups)}: the best level{of} in stage {source}"
        if stage["incomplete"] is not None:
            yield f"  cannot be judged: {stage['incomplete']}"
        if not stage["needs"]:
            continue
        state = {True: " (met)", False: " (not met)", None: ""}[stage["met"]] + (" (forced)" if stage["forced"] else "")
        yield f"  gate{state}: each of these must be supported"
        for name, claim in stage["needs"].items():
            lost = stage["undecidable"].get(name)
            cannot = f" It cannot be met: {lost['seeds']} seeds, and {lost['needed']} are needed." if lost else ""
            yield f"    {name}: {claim}{cannot}"
            if lost is None:
                yield f"      {stage['power'][name] or 'its power is not computed'}"
        yield from (f"    {figure}" for figure in stage["figures"])
