"""Campaigns as stories: a gate that is met, one that is not, one that is forced; levels that are taken; bad files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from analysis.data.sweep import read_sweep
from analysis.tables.levels import condition_lines
from hydra_plugins.rlsweep import RlsweepSweeper
from launcher import files
from launcher.application.isolated import Isolated
from launcher.campaign import campaign, stages
from launcher.campaign.forecast import document, show
from launcher.commands import sweeper
from launcher.config.hydra_compose import Composer, as_override
from launcher.execution import sweep
from launcher.execution.reconciler import Outcome
from launcher.execution.sweep import Swept
from launcher.planning import freeze, planner
from launcher.run import campaign_record
from launcher.run.campaign_record import Taken
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from tests.launcher.conftest import ROOT, Sweeps
from tests.launcher.experiments import SHIPPED, refusal, refused, rows, shipped, write_experiment
from tests.waiting import DEADLINE, ended, until

LR = "verl.actor_rollout_ref.actor.optim.lr"
CLAIM = {"claim": 'B, say, is "above" A\'s.', "kind": "greater", "group": "B", "metric": "analysis/reward_sum_mean"}
GROUPS = {"A": {"method": "c0_grpo"}, "B": {"method": "ptrw", "label": "B: p", "overrides": {"method.sigma": 0.3}}}
STAGES: dict[str, Any] = {
    "check": {"experiment": "small", "overrides": ["trainer.steps=5"], "gate": {"better": CLAIM, "H": None}},
    "tune": {"experiment": "tuning"},
    "main": {"experiment": "large", "take": {LR: {"stage": "tune", "group": ["A", "B"]}}, "gate": ["H"]},
    "more": {"experiment": ["more_a", "more_b"]},
}


def changed(stage: str, **keys: Any) -> dict[str, Any]:
    """STAGES with these keys of one stage."""
    return {**STAGES, stage: {**STAGES[stage], **keys}}


class World:
    """A folder of configurations with a campaign, and a sweep that finishes every run and reports what it is told."""

    def __init__(self, conf: Path, multirun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.conf, self.multirun = conf, multirun
        self.verdicts = {"better": "supported", "H": "supported"}
        self.best: dict[str, float | None] = {"A": 1e-3, "B": 1e-4}
        self.state: dict[str, RunState] = {}  # of every run of an experiment, if it is not done
        self.outcome = Outcome()
        self.reports = 0  # the exit code
        self.swept: list[Any] = []
        hypotheses = {"H": {**CLAIM, "claim": "so it is", "summary": "auc"}}
        for name in ("small", "large", "more_a", "more_b"):
            write_experiment(conf, GROUPS, name, seeds=[0, 1], analysis={"hypotheses": hypotheses})
        write_experiment(conf, GROUPS, "tuning", seeds=[7], factors={LR: [1e-4, 1e-3]})
        self.write(STAGES)
        monkeypatch.setattr(sweep, "sweep", self.sweep)

    def write(self, declared: Any) -> None:
        (self.conf / "campaign").mkdir(exist_ok=True)
        (self.conf / "campaign/c.yaml").write_text(yaml.safe_dump({"stages": declared}, sort_keys=False))
        self.composer = Composer(self.conf, "config")  # what it composed for one launch serves the next ones

    def read(self, *words: str) -> stages.Campaign:
        words = ("campaign=c", f"multirun={self.multirun}", *words)
        return stages.read(ROOT, words, self.composer)

    def launch(self, *words: str) -> int:
        words = ("campaign=c", f"multirun={self.multirun}", *words)
        return campaign.launch(stages.read(ROOT, words, self.composer), words)

    def refused(self, *words: str) -> list[str]:
        return refusal(lambda: stages.plan_all(self.read(*words), None))

    def sweep(self, root: Path, plan: Any, plugin: Any, again: Any) -> Swept:
        self.swept.append(plan)
        freeze.freeze(plan)
        states = {}
        for experiment in plan.experiments:
            for entry in experiment.entries:
                folder = run_folder(self.multirun, entry.id)
                state = read_state(folder).replace(state=self.state.get(experiment.name, RunState.DONE))
                write_state(folder, state)
                states[entry.id] = state
            self._report(experiment)
        return Swept(self.outcome, states, (self.reports,))

    def _report(self, experiment: Any) -> None:
        judged = [
            {"id": name, "claim": "-", "verdict": verdict, "quantity": f"of {name}", "shown": "0.93 [0.7, 1.2]",
             "decided": "so few seeds"}
            for name, verdict in self.verdicts.items()
            if name in (experiment.analysis.get("hypotheses") or {})
        ]  # fmt: skip
        levels = [
            {"group": group, "factor": LR, "best": None if best is None else {"level": best},
             "levels": [{"level": 1e-4, "mean": 0.25, "results": 1, "planned": 1},
                        {"level": 1e-3, "mean": None, "results": 0, "planned": 1}]}
            for group, best in self.best.items()
        ]  # fmt: skip
        folder = self.multirun / experiment.name / "report"
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / "report.json", {"hypotheses": judged, "levels": levels})

    def stages(self) -> list[str]:
        """The experiments that were swept, by launch and stage."""
        return ["+".join(experiment.name for experiment in plan.experiments) for plan in self.swept]

    def record(self) -> campaign_record.CampaignRecord:
        record = campaign_record.find(self.multirun, "c")
        assert record is not None
        return record

    def lr(self, plan: Any) -> dict[str, float]:
        (experiment,) = plan.experiments
        runs = {entry.group: plan.runs[entry.id].config for entry in experiment.entries}
        return {group: config["verl"]["actor_rollout_ref"]["actor"]["optim"]["lr"] for group, config in runs.items()}


@pytest.fixture
def world(conf, tmp_path, monkeypatch):
    return World(conf, tmp_path / "multirun", monkeypatch)


# ---------------------------------------------------------------- gates


def test_with_every_gate_met_all_stages_run_in_order_and_again_nothing_changes(world, capsys, monkeypatch):
    asked, call = [], Isolated.call
    monkeypatch.setattr(Isolated, "call", lambda *given: asked.append(repr(given[1:])) or call(*given))
    assert world.launch() == 0
    assert asked and len(asked) == len(set(asked)), "a user's code is asked once for all stages"
    assert world.stages() == ["small", "tuning", "large", "more_a+more_b"]
    assert "campaign c: all 4 stages are done" in capsys.readouterr().out
    path = world.multirun / "c/campaign.json"
    before, ids = path.read_bytes(), [list(plan.runs) for plan in world.swept]
    assert world.launch() == 0
    assert path.read_bytes() == before and [list(plan.runs) for plan in world.swept[4:]] == ids
    assert [stage.met for stage in world.record().stages] == [True, True, True, True]


def test_an_unmet_gate_stops_with_the_figure_that_fell_short(world, capsys, worded):
    world.verdicts["better"] = "inconclusive"
    assert world.launch() == 1
    assert world.stages() == ["small"]
    worded("".join(capsys.readouterr()))
    record = world.record()
    assert record.stage("check").met is False and record.stage("tune").started is None
    assert world.launch() == 1 and world.record() == record, "repeated, it says the same"
    world.verdicts["better"] = "supported"
    assert world.launch() == 0 and world.record().stage("check").met is True


TRIPPED = Outcome(tripped="budget.device_hours = 1, of which 1.00 are used")


@pytest.mark.parametrize(
    ("changes", "words", "code", "stages", "said"),
    [
        ({"verdicts": {"better": "supported", "H": "equivalent"}}, (), 1, 1, "H: equivalent"),
        ({}, ("force_gate=check",), 0, 4, ""),  # it is met
        ({"state": {"small": RunState.DIVERGED}}, (), 1, 4, ""),  # they have ended, and are judged
        ({"state": {"small": RunState.PLANNED}}, ("force_gate=check",), 1, 1, ""),
        ({"state": {"small": RunState.PLANNED}, "outcome": TRIPPED}, ("force_gate=check",), 1, 1, ""),
        ({"reports": 1}, (), 1, 1, "stage check: its report could not be written"),
        ({"outcome": Outcome(interrupted=True)}, (), 130, 1, ""),
        ({"outcome": Outcome(detached=True)}, (), 0, 1, "when its runs have ended, repeat this command"),
    ],
)
def test_what_ends_a_launch_and_the_next_one_goes_on(world, capsys, changes, words, code, stages, said):
    usual = {name: getattr(world, name) for name in changes}
    vars(world).update(changes)
    assert world.launch(*words) == code and len(world.stages()) == stages
    assert said in "".join(capsys.readouterr())
    assert world.record().stage("check").forced_by is None
    vars(world).update(usual)
    assert world.launch() == 0 and world.stages()[stages:] == ["small", "tuning", "large", "more_a+more_b"]
    assert not any(line.startswith("Forced") for line in condition_lines(read_sweep(world.multirun / "large")))


def test_a_forced_gate_goes_on_and_every_later_report_says_so_first(world, capsys):
    world.verdicts["better"] = "contradicted"
    assert world.launch("force_gate=check") == 0
    assert world.stages() == ["small", "tuning", "large", "more_a+more_b"]
    assert "Forced: later reports of this campaign say so first" in capsys.readouterr().err
    stage = world.record().stage("check")
    assert stage.forced_by.endswith("force_gate=check") and [one.hypothesis for one in stage.forced] == ["better"]
    for name in ("tuning", "large", "more_a", "more_b"):
        first, *_ = condition_lines(read_sweep(world.multirun / name))
        assert first.startswith("Forced gate: campaign c went on although the gate of its stage check was not met")
        assert "better: contradicted: of better 0.93 [0.7, 1.2]" in first
    assert condition_lines(read_sweep(world.multirun / "small")) == []
    # Repeated without the word, for example after an interruption, it goes on: the decision was made.
    assert world.launch() == 0 and "It was forced before" in capsys.readouterr().err
    assert world.record().stage("check") == stage
    world.verdicts["better"] = "supported"
    assert world.launch() == 0
    assert condition_lines(read_sweep(world.multirun / "large"))[0].endswith("It is met since.")


def test_a_stage_with_failed_runs_is_not_judged_unless_it_is_forced(world, capsys, worded):
    world.state["small"] = RunState.FAILED
    assert world.launch() == 1
    worded(capsys.readouterr().err)
    stage = world.record().stage("check")
    assert (stage.met, stage.gate) == (None, [])
    show(document("c", *campaign.plan_and_check(world.read())))
    assert f"check: small\n  cannot be judged: {stage.incomplete}\n" in capsys.readouterr().out
    assert world.launch("force_gate=check") == 1 and len(world.stages()) == 5, "it goes on, and not all runs are done"
    first, *_ = condition_lines(read_sweep(world.multirun / "large"))
    assert "not all runs are done (4 failed)" in first


def test_killed_between_any_two_stages_it_goes_on_as_if_it_had_not_been(world, conf, tmp_path, monkeypatch):
    assert world.launch() == 0
    disturbed = World(conf, tmp_path / "killed", monkeypatch)
    start, died = campaign._start, []

    class Killed(BaseException):
        """Nothing catches it: of the launch, no further line runs."""

    def killed_once(declared: stages.Campaign, stage: stages.PlannedStage, *rest: Any) -> Any:
        if stage.name not in died:
            died.append(stage.name)
            raise Killed
        return start(declared, stage, *rest)

    monkeypatch.setattr(campaign, "_start", killed_once)
    while len(died) < len(STAGES):
        with pytest.raises(Killed):
            disturbed.launch()
    assert disturbed.launch() == 0 and died == list(STAGES)

    def decided(one: World) -> list[Any]:
        timeless = [replace(stage, started=None) for stage in one.record().stages]
        return [replace(stage, taken=[replace(level, time=0.0) for level in stage.taken]) for stage in timeless]

    assert decided(disturbed) == decided(world)
    assert disturbed.swept[-1].runs.keys() == world.swept[-1].runs.keys()


# ---------------------------------------------------------------- levels that are taken


def test_a_stage_takes_the_best_levels_which_are_frozen_then_and_part_of_its_command(world, capsys):
    assert world.launch() == 0
    assert world.lr(world.swept[2]) == {"A": 1e-3, "B": 1e-4}
    said = f"A: {LR} = 0.001, taken from stage tune (0.0001: 0.25; 0.001: no result (0 of 1 results))"
    assert said in capsys.readouterr().out
    (experiment,) = world.swept[2].experiments
    assert {name: group["label"] for name, group in experiment.groups.items()} == {"A": "A", "B": "B: p"}
    sigmas = {world.swept[2].runs[entry.id].config["method"].get("sigma") for entry in experiment.entries}
    assert sigmas == {None, 0.3}, "the group's own overrides stay"
    world.best = {"A": 1e-4, "B": 1e-3}
    assert world.launch() == 0 and world.lr(world.swept[6]) == {"A": 1e-3, "B": 1e-4}
    lines = condition_lines(read_sweep(world.multirun / "large"))
    assert lines[1].startswith(f"B: p has {LR} = 0.0001, which stage tune chose (tuning, B: 0.0001: 0.25;")


def test_a_rehearsal_decides_nothing_of_the_campaign_and_neither_is_forgotten(world, capsys):
    world.verdicts["better"] = "contradicted"
    assert world.launch("trainer.steps=2", "force_gate=check") == 0
    world.best = {"A": 1e-4, "B": 1e-3}
    planned = document("c", *campaign.plan_and_check(world.read()))["stages"]
    assert {take["value"] for take in planned[2]["takes"]} == {None}
    assert [(stage["met"], stage["figures"], stage["forced"]) for stage in planned] == [(None, [], False)] * 4
    assert world.launch() == 1 and "It was forced before" not in capsys.readouterr().err
    world.verdicts["better"] = "supported"
    assert world.launch() == 0 and world.lr(world.swept[-2]) == {"A": 1e-4, "B": 1e-3}
    lines = condition_lines(read_sweep(world.multirun / "large"))
    assert [line.split(", which")[0] for line in lines] == [f"A has {LR} = 0.0001", f"B: p has {LR} = 0.001"]
    world.verdicts["better"] = "contradicted"
    record = world.record()
    assert world.launch("trainer.steps=2") == 0 and "It was forced before" in capsys.readouterr().err
    assert world.lr(world.swept[-2]) == {"A": 1e-3, "B": 1e-4}
    assert condition_lines(read_sweep(world.multirun / "large"))[0].startswith("Forced gate: campaign c")
    world.verdicts["better"] = "supported"
    assert world.launch() == 0 and world.record().stages == record.stages


@pytest.mark.parametrize(
    ("tune", "main", "lr"),
    [
        ({"seeds": [7, 8]}, {}, 1e-4),
        ({"factors": {LR: [1e-4, 1e-2]}}, {}, 1e-4),  # without the level that was chosen
        ({"factors": {LR: [1e-4, 1e-3, 1e-2]}}, {}, 1e-4),
        ({}, {"seeds": [0, 1, 2]}, 1e-3),  # the deciding runs are the same
    ],
)
def test_levels_and_forced_gates_hold_for_the_runs_that_decided_them(world, capsys, tune, main, lr):
    world.verdicts["H"] = "inconclusive"
    assert world.launch("force_gate=check,main") == 0
    write_experiment(world.conf, GROUPS, "tuning", **{"seeds": [7], "factors": {LR: [1e-4, 1e-3]}, **tune})
    write_experiment(world.conf, GROUPS, "large", analysis={"hypotheses": {"H": CLAIM}}, **{"seeds": [0, 1], **main})
    world.write(STAGES)
    world.best = {"A": 1e-4, "B": 1e-4}
    capsys.readouterr()
    assert world.launch() == 1
    assert world.lr(world.swept[-1])["A"] == lr
    assert "stage check: its gate is not met by H (inconclusive: 0.93 [0.7, 1.2]). It was forced before" in (
        said := capsys.readouterr().err
    )
    assert "stage main: its gate is not met by H (inconclusive: 0.93 [0.7, 1.2])\n" in said


def test_a_report_names_what_its_present_runs_rest_on_and_nothing_of_another_campaign(world):
    (world.conf / "campaign").mkdir(exist_ok=True)
    other = {"check": {**STAGES["check"], "overrides": ["trainer.steps=6"]}, "main": {"experiment": "large"}}
    (world.conf / "campaign/d.yaml").write_text(yaml.safe_dump({"stages": other}, sort_keys=False))
    assert world.launch() == 0
    levels = condition_lines(read_sweep(world.multirun / "large"))
    world.verdicts["better"] = "contradicted"
    assert len(levels) == 2 and world.launch("campaign=d", "force_gate=check") == 0
    (line,) = condition_lines(read_sweep(world.multirun / "large"))
    assert line.startswith("Forced gate: campaign d went on")
    world.verdicts["better"] = "supported"
    assert world.launch() == 0 and condition_lines(read_sweep(world.multirun / "large")) == levels


def test_the_command_of_a_stage_that_took_levels_plans_the_same_runs(world):
    assert world.launch() == 0
    for plan in world.swept[:4]:  # each stage by hand
        words = shlex.split(plan.experiments[0].command)[3:]
        assert list(planner.make(ROOT, words, world.composer).runs) == list(plan.runs)


def test_a_level_that_no_report_decides_stops_the_campaign(world, capsys, worded):
    world.best["B"] = None
    assert world.launch() == 1 and world.stages() == ["small", "tuning"]
    worded(capsys.readouterr().err)
    assert world.record().stage("main").taken == []


# ---------------------------------------------------------------- the budget, the plan and status


def test_the_budget_is_that_of_all_stages(world):
    assert world.launch("budget.device_hours=7") == 0
    ids = {run_id for plan in world.swept for run_id in plan.runs}
    for plan in world.swept:
        assert plan.budget == 7 and set(plan.runs) <= plan.charged
    assert ids <= world.swept[-1].charged


def test_an_experiments_own_budget_is_not_that_of_the_campaign(world):
    write_experiment(world.conf, GROUPS, "more_a", seeds=[0, 1], budget={"device_hours": 3})
    world.write(changed("more", experiment="more_a"))
    assert world.launch() == 0
    assert [plan.budget for plan in world.swept] == [None, None, None, 3]
    assert not any(plan.charged for plan in world.swept)
    assert document("c", stages.plan_all(world.read(), None), None)["budget_device_hours"] is None


def test_the_plan_names_stages_costs_needs_and_what_is_taken(world, capsys, worded):
    show(document("c", stages.plan_all(world.read(), None), None))
    worded(capsys.readouterr().out)
    assert not world.multirun.exists()


@pytest.mark.parametrize(("seeds", "words"), [([7, 1, 0], ()), ([7], ("seed=7",))])
def test_levels_are_not_chosen_on_the_seeds_that_judge_them(world, seeds, words, worded):
    write_experiment(world.conf, GROUPS, "tuning", seeds=seeds, factors={LR: [1e-4, 1e-3]})
    worded(world.refused(*words))


def test_the_plan_says_what_the_seeds_of_a_gate_find_and_when_they_cannot_meet_it(world, worded):
    times = {"sooner": {**CLAIM, "kind": "ratio", "summary": "time_to", "at": 0.5, "at_most": 1.0}}
    for changes in ({"overrides": ["seed=0,1,2,3,4,5,6"], "gate": times}, {"overrides": ["seed=0"]}):
        world.write(changed("check", **changes))
        check, *_ = document("c", stages.plan_all(world.read(), None), None)["stages"]
        worded(f"{kind} {name}: {said}" for kind in ("power", "undecidable") for name, said in check[kind].items())


def test_the_plan_of_a_campaign_says_how_many_seeds_its_stages_may_add(world, capsys):
    rule = {"start": 2, "batch": 1, "max": 5, "until": "decided"}
    write_experiment(world.conf, GROUPS, "tuning", seeds=rule, factors={LR: [1e-4, 1e-3]})
    world.write(changed("main", overrides=["seed=5,6"]))  # those that do not choose
    show(document("c", stages.plan_all(world.read(), None), None))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "seeds are added" in line]
    how = "seeds are added until each comparison of the primary measure is decided: 1 at a time, at most 5"
    assert line.startswith(f"  tuning: {how}; this adds at most 12 runs and ")


def test_the_plan_of_a_campaign_says_what_was_run_and_decided(world, capsys, worded):
    world.verdicts["better"] = "inconclusive"
    world.launch("force_gate=check")
    capsys.readouterr()
    show(document("c", *campaign.plan_and_check(world.read())))
    worded(capsys.readouterr().out)


# ---------------------------------------------------------------- bad files and words


#: By what is read first: a file is refused for all that is wrong of one kind.
BAD = [
    {},
    {"a b": STAGES["check"]},
    changed("check", gat=[], overrides=["steps"], gate=["H", "H"], cluster=3),
    changed("check", gate={"better": {**CLAIM, "kind": "more"}}),
    changed("more", take={LR: {"stage": "tune", "group": "A"}}),
    changed("main", take={LR: {"stage": "more", "group": "A"}}),
    changed("check", experiment="smal", trainer="veryl_ray", overrides=["multirun=x"]),
    changed("check", gate={"better": {**CLAIM, "group": "C"}, "other": {**CLAIM, "metric": "qstar/ess_ratio"}}),
    changed("check", gate={"H9": None, "b": {**CLAIM, "kind": "range", "low": 0}, "d": {**CLAIM, "summary": "best"},
                           "e": {**CLAIM, "kind": "variation", "at_most": 1},
                           "c": {"claim": "x", "kind": "all", "of": ["b", "H"]}}),
    changed("main", take={LR: {"stage": "tune", "group": "C"}, "method.sigma": {"stage": "tune", "group": "B"}}),
    changed("more", experiment="large"),
]  # fmt: skip


def test_a_bad_file_is_refused_with_file_key_value_rule_and_fix(world, worded):
    for declared in BAD:
        world.write(declared)
        worded(re.sub(r"available: bnto_grid,[\w, ]+", "available: {experiments}", line) for line in world.refused())
    world.write(changed("more", experiment="large", overrides=["experiment.name=again"]))
    assert len(stages.plan_all(world.read(), None)) == 4


def test_all_problems_of_all_stages_come_at_once_and_nothing_is_written(world, worded):
    world.write(
        changed("check", overrides=["trainer.stepz=3"]) | {"more": {"experiment": "more_a", "overrides": ["modl=x"]}}
    )
    worded(world.refused("trainer.checkpoint_evry=3"))
    assert not world.multirun.exists()


WORDS = """
campaign=d
campaign=c,qstar
campaign=c experiment=small method=ptrw
campaign=c force_gate=chek
campaign=c force_gate=tune
force_gate=check
"""


def test_bad_words_are_refused(world, worded):
    for words in rows(WORDS):
        worded(refusal(lambda words=words: stages.read(ROOT, words.split(), world.composer)))
    (world.conf / "campaign/c.yaml").rename(world.conf / "campaign/small.yaml")  # an experiment has this name
    worded(refusal(lambda: stages.read(ROOT, ["campaign=small"], Composer(world.conf, "config"))))
    (line,) = refused("campaign=qstar")
    assert line.startswith("command line: campaign = qstar: this command is about experiments")


def test_launch_py_recognises_a_campaign_and_leaves_experiments_alone(world, monkeypatch):
    assert sweeper.run(["experiment=small", f"multirun={world.multirun}"], world.conf) == 0
    assert world.stages() == ["small"]
    assert sweeper.run(["campaign=c", f"multirun={world.multirun}"], world.conf) == 0
    assert len(world.stages()) == 1 + len(STAGES)
    assert sweeper.run(["campaign=nothing"], world.conf) == 2
    monkeypatch.setattr(sweeper, "run", lambda words, *_: 5 if words == ["campaign=c"] else 0)
    with pytest.raises(sweeper.SweepExit) as ended:
        RlsweepSweeper(["campaign=c"]).sweep([])
    assert ended.value.code == 5


# ---------------------------------------------------------------- records, words, shipped files


def test_a_record_is_read_as_it_was_written_and_a_torn_one_is_named(world):
    world.launch()
    record = world.record()
    campaign_record.update(world.multirun, "c", lambda before: replace(before, command="x"))
    assert world.record() == replace(record, command="x")
    (world.multirun / "c/campaign.json").write_text("{")
    (line,) = condition_lines(read_sweep(world.multirun / "large"))
    assert "is not known" in line and "campaign.json" in line


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-1e6, 1e6)
    | st.text("ab ,:{}[]='\"*.\\%$", max_size=8).filter(lambda text: "${" not in text)
    | st.sampled_from(["true", "Null", "nan", "inf", "a/b-c.d", "e5", "_x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "method.rho", "method/alpha"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(VALUES)
def test_any_value_of_a_file_survives_hydras_grammar(value):
    assert SHIPPED.parse(as_override("key", value)).value() == value


@cache
def planned_of(name: str, *words: str) -> tuple[stages.Campaign, dict[str, stages.PlannedStage]]:
    """A shipped campaign and its stages by name."""
    declared = stages.read(ROOT, [f"campaign={name}", *words, "multirun=/nonexistent"], SHIPPED)
    return declared, {stage.name: stage for stage in stages.plan_all(declared, None)}


DESIGNS = ("scale=design", "trainer=verl_ray", "cluster=slurm")


@pytest.mark.parametrize("words", [("scale=full",), ("scale=tiny",), DESIGNS], ids=" ".join)
@pytest.mark.parametrize("name", shipped("campaign"))
def test_every_shipped_campaign_plans_at_every_scale_with_gates_that_can_be_met(name, words):
    _, planned = planned_of(name, *words)
    found = document(name, list(planned.values()), None)["stages"]
    assert all(stage["total"] and not stage["undecidable"] for stage in found)
    for stage in planned.values() if words == DESIGNS else ():
        (base, *_) = stage.plan.runs.values()
        backend = "in_process" if stage.name == "speculative" else "verl_ray"
        assert base.config["trainer"]["backend"] == backend and stage.plan.cluster["name"] == "slurm"
    assert f"\n# python launch.py -m campaign={name}\n" in (ROOT / f"conf/campaign/{name}.yaml").read_text()


def test_tuned_and_fixed_baselines_of_qstar_stand_in_one_report():
    declared, above = planned_of("qstar", "scale=tiny")
    assert len(above["settings"].plan.runs) == 48 + 42  # while nothing is decided, the most that it can be
    runs = {entry.group: above["settings"].plan.runs[entry.id] for entry in above["settings"].experiments[0].entries}
    fixed = runs["ppo_fixed"].config["verl"]["actor_rollout_ref"]["actor"]["optim"]["lr"]
    for level, others in ((10 * fixed, 42), (fixed, 0)):  # the best rate may be the fixed one
        taken = [
            Taken(pin.key, pin.into, level, "tune", "-", pin.into, pin.factor, "-", 0.0, above["tune"].runs[pin.into])
            for pin in above["main"].pins
        ]
        planned = [stages.plan_stage(declared, name, taken, above).plan for name in ("main", "settings")]
        main, settings = (plan.runs.keys() for plan in planned)
        assert main <= settings and len(settings - main) == others


@pytest.mark.processes
def test_a_real_campaign_stops_is_forced_killed_and_finished(sweeps: Sweeps, conf: Path):
    """Over launch.py, the real pool and real reports: two stages of one method."""
    entropy = "analysis/entropy_per_token_mean"
    claim = {"claim": "Far above.", "kind": "ratio", "group": "B", "metric": entropy, "summary": "mean"}
    method = {"method": "c0_grpo"}
    write_experiment(conf, {"A": method, "B": method | {"overrides": {LR: 1e-5}}}, "first", seeds=[0, 1])
    write_experiment(conf, {"A": method}, "second", seeds=[0, 1])
    declared = {
        "one": {"experiment": "first", "gate": {"low": {**claim, "at_least": 100}}},
        "two": {"experiment": "second", "overrides": ["method.loss_agg_mode=seq-mean-token-sum"]},
    }
    (conf / "campaign/c.yaml").write_text(yaml.safe_dump({"stages": declared}, sort_keys=False))

    def launch(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "launch.py", "--config-path", str(conf), "-m", "campaign=c", "scale=tiny"]
        command.append(f"multirun={sweeps.multirun}")
        # The starting model learns next to nothing, which takes seconds instead of a minute.
        command += ["verl.data.train_batch_size=4", "verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"]
        command += ["task.warm_start.steps=2", "trainer.steps=2", "trainer.checkpoint_every=1", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)

    output = ended(launch(), 1)
    assert "its gate is not met by low (contradicted" in output, output
    forced = launch("force_gate=one")
    until(lambda: (sweeps.multirun / "second/plan.json").exists())
    forced.kill()
    forced.communicate(timeout=DEADLINE)
    ended(launch())
    assert {state["state"] for state in sweeps.states().values()} == {"done"} and len(sweeps.states()) == 6
    page = (sweeps.multirun / "second/report/index.html").read_text()
    assert "Forced gate: campaign c went on although the gate of its stage one was not met" in page
