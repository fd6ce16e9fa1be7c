"""Seeds that are added until the comparisons are decided: the runs, what is frozen, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main as analysis
from launcher.execution import sweep
from launcher.planning import added_seeds, freeze
from launcher.planning.plan import Plan
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import SHIPPED, make, planner, refused
from tests.wording import Worded

WORDS = ("method=c0_grpo,ptrw,gspo", "experiment.baseline=c0_grpo", "experiment.name=looks", "trainer.steps=2")
RULE = "experiment.seeds={start:4,batch:4,max:12,until:decided}"


def seeds_of(plan: Plan) -> dict[str, list[int]]:
    return plan.experiments[0].seeds_of()


def with_results(plan: Plan) -> Plan:
    """The plan, frozen, with one done run."""
    freeze.freeze(plan)
    folder = run_folder(plan.multirun, next(iter(plan.runs)))
    write_state(folder, read_state(folder).replace(state=RunState.DONE))
    return plan


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    return (*WORDS, f"multirun={tmp_path}", "cluster.slots=2")


def test_a_plan_has_the_seeds_of_the_first_look_and_then_those_that_were_frozen(words: tuple[str, ...]) -> None:
    first = make(*words, RULE)
    assert seeds_of(first) == {group: [0, 1, 2, 3] for group in ("c0_grpo", "ptrw", "gspo")}
    assert first.experiments[0].analysis["sequential"] == {"start": 4, "batch": 4, "max": 12, "until": "decided"}
    added = {"looks": {"c0_grpo": range(8), "gspo": range(8)}}
    second = planner.make(ROOT, [*words, RULE], SHIPPED, added)
    grown = {"c0_grpo": [*range(8)], "ptrw": [0, 1, 2, 3], "gspo": [*range(8)]}
    assert seeds_of(second) == grown and second.experiments[0].seeds == tuple(range(8))
    assert seeds_of(make(*words, RULE)) == {group: [0, 1, 2, 3] for group in grown}
    freeze.freeze(second)
    assert seeds_of(make(*words, RULE)) == grown
    assert {run for run in first.runs} < set(second.runs)


def test_seeds_that_an_exclusion_names_need_not_be_there_yet(words: tuple[str, ...]) -> None:
    plan = make(*words, RULE, "experiment.exclude=[{seed:11,group:gspo}]")
    assert seeds_of(plan)["gspo"] == [0, 1, 2, 3]


WIN_RATES = ("analysis.primary.metric=eval/win_rate", "trainer.eval_every=1", "trainer.eval_responses=2")


def test_a_rule_stays_when_there_are_results(words: tuple[str, ...], worded: Worded) -> None:
    freeze.freeze(make(*words, RULE))
    assert seeds_of(make(*words, "seed=0,1"))["ptrw"] == [0, 1]  # nobody has seen anything yet
    with_results(make(*words, RULE))
    worded([*refused(*words, RULE.replace("12", "16")), *refused(*words, "seed=0,1,2,3,4")])


@pytest.mark.parametrize("other", ["trainer.steps=1", "scale=tiny"])
def test_results_of_another_scale_or_length_neither_fix_the_rule_nor_the_seeds(
    words: tuple[str, ...], other: str
) -> None:
    words = tuple(word for word in words if not word.startswith("trainer.steps"))
    with_results(make(*words, other, "seed=0"))  # a run that measures
    first = make(*words, RULE)
    assert seeds_of(first)["ptrw"] == [0, 1, 2, 3]
    freeze.freeze(first)
    with_results(planner.make(ROOT, [*words, other, RULE], SHIPPED, {"looks": {"ptrw": range(8)}}))  # a rehearsal
    assert make(*words, RULE).runs.keys() == first.runs.keys()
    assert seeds_of(make(*words, RULE.replace("12", "16")))["ptrw"] == [0, 1, 2, 3]
    assert seeds_of(make(*words, other, RULE))["ptrw"] == [*range(8)]  # resumed


def test_a_fixed_number_may_become_another_one_but_no_rule(words: tuple[str, ...], worded: Worded) -> None:
    with_results(make(*words, "seed=0,1,2,3"))
    assert seeds_of(make(*words, "seed=0,1,2,3,4"))["ptrw"] == [0, 1, 2, 3, 4]
    worded(refused(*words, RULE))


def test_a_plan_that_drops_seeds_with_results_says_so_with_the_command_that_keeps_them(
    words: tuple[str, ...], said: Callable[..., str]
) -> None:
    plan, fewer = make(*words, "seed=0,1,2,3,4"), make(*words, "seed=0,1")
    freeze.freeze(plan)
    assert freeze.declaration_warnings(fewer) == []  # without a result
    with_results(plan)
    (line,) = freeze.declaration_warnings(fewer)
    assert line.startswith("looks: Changed after 1 of 15 runs were done: seeds = 0, 1 (declared: 0, 1, 2, 3, 4). ")
    assert line.endswith(" seed=0,1,2,3,4") and "To keep every seed: python launch.py -m " in line
    assert line in said(f"plan {' '.join(words)} seed=0,1")
    assert freeze.declaration_warnings(plan) == []
    (changed,) = freeze.declaration_warnings(make(*words, "seed=0,1,2,3,4", "analysis.alpha=0.1"))
    assert "alpha = 0.1 (declared: 0.05)" in changed and "keep" not in changed
    (plan.multirun / "looks/hypotheses.json").unlink()  # as by an older version
    assert freeze.declaration_warnings(fewer) == [line]


def test_seeds_of_all_launches_are_kept(words: tuple[str, ...]) -> None:
    for seeds in ("0,1", "0,1,2", "0,1"):
        freeze.freeze(plan := make(*words, f"seed={seeds}"))
        for run_id in plan.runs:
            folder = run_folder(plan.multirun, run_id)
            write_state(folder, read_state(folder).replace(state=RunState.DONE))
    (line,) = freeze.declaration_warnings(make(*words, "seed=0,1,2"))
    assert "seeds = 0, 1, 2 (declared: 0, 1)" in line and "keep" not in line
    (line,) = freeze.declaration_warnings(make(*words, "seed=0,1"))
    assert line.startswith("looks: runs of seed 2 are done, but this plan leaves them out. To keep every seed: python ")
    assert line.endswith(" seed=0,1,2")
    (line,) = freeze.declaration_warnings(make(*words, "seed=0,1,7"))
    assert "seeds = 0, 1, 7" in line and line.endswith(" seed=0,1,2,7")


@pytest.mark.parametrize(
    ("command", "key", "kept"),
    [
        ("python launch.py -m seed=0 a=1", "seed", "python launch.py -m a=1 seed=0,1"),
        ("python train.py -m seed=7 rng=0,1 'a=[x, y]'", "rng", "python train.py -m seed=7 'a=[x, y]' rng=0,1"),
        ("cd in && python train.py -m +more.rng=0", "more.rng", "cd in && python train.py -m +more.rng=0,1"),
        ("cd 'a && b' && python t.py -m 'a=c && d'", "seed", "cd 'a && b' && python t.py -m 'a=c && d' seed=0,1"),
        ("python train.py -m 'note=c && d' seed=7", "seed", "python train.py -m 'note=c && d' seed=0,1"),
    ],
)
def test_seeds_are_set_where_the_command_sets_them(command: str, key: str, kept: str) -> None:
    assert added_seeds.with_seeds(command, [0, 1], key) == kept


def test_a_launch_with_nothing_to_run_says_what_it_replaces(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = with_results(make(*words, "seed=0,1"))
    for run_id in plan.runs:
        folder = run_folder(plan.multirun, run_id)
        write_state(folder, read_state(folder).replace(state=RunState.DONE))
    monkeypatch.setattr(sweep, "report", lambda *_: 0)  # a program of its own
    assert sweep.sweep(ROOT, make(*words, "seed=0")).code == 0
    assert "seeds = 0 (declared: 0, 1)" in capsys.readouterr().out


def test_plus_adds_seeds_to_the_recorded_plan(words: tuple[str, ...]) -> None:
    assert make(*words, "seed=+5,6").experiments[0].seeds == (0, 5, 6)  # those of the configuration
    freeze.freeze(make(*words, "seed=0,1,2"))
    more = make(*words, "seed=+5,6")
    assert more.experiments[0].seeds == (0, 1, 2, 5, 6)
    assert more.experiments[0].command == make(*words, "seed=0,1,2,5,6").experiments[0].command
    assert make(*words, "seed=+1").experiments[0].seeds == (0, 1, 2)
    freeze.freeze(more)
    assert make(*words, "seed=+9").experiments[0].seeds == (0, 1, 2, 5, 6, 9)


def test_a_launch_cannot_look_at_win_rates_which_come_after_it(words: tuple[str, ...], worded: Worded) -> None:
    worded(refused(*words, RULE, *WIN_RATES))


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_launch_adds_seeds_to_what_is_not_decided(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    def again(added: planner.AddedSeeds | None = None) -> Plan:
        return planner.make(ROOT, [*words, RULE], SHIPPED, added)

    def launch(grow: Callable[[planner.AddedSeeds], Plan] | None) -> tuple[dict[str, list[int]], str]:
        assert sweep.sweep(ROOT, again(), "tests.launcher.steps:judged", again=grow).code == 0
        return seeds_of(again()), capfd.readouterr().out

    first, said = launch(None)  # as a launch that was killed before it asked the analysis
    assert first == {group: [0, 1, 2, 3] for group in first} and "added" not in said
    after, said = launch(again)
    assert after["ptrw"] == [0, 1, 2, 3]  # decided at the first look
    assert after["gspo"] == after["c0_grpo"] and len(after["gspo"]) in (8, 12)
    assert "looks: not decided with 4 seeds; seeds 4, 5, 6, 7 (of at most 12) are added to c0_grpo, gspo" in said
    assert analysis(["looks", str(again().multirun / "looks")]) == 0
    ptrw, gspo = capfd.readouterr().out.splitlines()
    assert ptrw == "ptrw and c0_grpo: decided (look 1 of 3, 4 of at most 12 seeds)"
    assert gspo.startswith("gspo and c0_grpo: ") and f"{len(after['gspo'])} of at most 12 seeds" in gspo
    # the same command again: no run is missing, and no seed is added
    assert freeze.missing(again()) == [] and sweep.further_seeds(ROOT, again()) == {}


def standings(monkeypatch: pytest.MonkeyPatch, *looks: tuple[str, int, str]) -> None:
    """What the analysis, a program of its own, says of each group: its last look, and its status."""
    said = [{"group": group, "baseline": "c0_grpo", "look": look, "status": status} for group, look, status in looks]
    done = subprocess.CompletedProcess([], 0, json.dumps(said))
    monkeypatch.setattr(sweep, "_analysis", lambda *_, **__: done)


@pytest.mark.parametrize(
    ("looks", "added"),
    [
        ((("ptrw", 2, "continue"), ("gspo", 1, "continue")), {"c0_grpo": 12, "ptrw": 12, "gspo": 8}),
        ((("gspo", 1, "continue"), ("ptrw", 2, "continue")), {"c0_grpo": 12, "ptrw": 12, "gspo": 8}),
        ((("ptrw", 2, "futile"), ("gspo", 1, "continue")), {"c0_grpo": 8, "gspo": 8}),
        ((("ptrw", 0, "continue"), ("gspo", 1, "decided")), {"c0_grpo": 4, "ptrw": 4}),
        ((("ptrw", 3, "ended"), ("gspo", 1, "decided")), {}),
    ],
)
def test_the_baseline_has_the_seeds_of_the_latest_next_look(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, looks: Any, added: dict[str, int]
) -> None:
    standings(monkeypatch, *looks)
    expected = {group: range(n) for group, n in added.items()}
    assert sweep.further_seeds(ROOT, make(*words, RULE)).get("looks", {}) == expected


@pytest.mark.parametrize(("status", "code"), [("continue", 1), ("futile", 0)])
def test_a_launch_that_can_add_no_seed_to_what_is_not_decided_says_so(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    words = (*words, RULE, "experiment.exclude=[{seed:[4,5,6,7]}]")  # the second look cannot have 8 seeds
    freeze.freeze(plan := make(*words))
    for run_id in plan.runs:
        folder = run_folder(plan.multirun, run_id)
        write_state(folder, read_state(folder).replace(state=RunState.DONE))
    standings(monkeypatch, ("ptrw", 1, status), ("gspo", 1, "decided"))
    monkeypatch.setattr(sweep, "report", lambda *_: 0)
    again = partial(planner.make, ROOT, [*words], SHIPPED)
    assert sweep.sweep(ROOT, plan, again=again).code == code
    said = capsys.readouterr().err
    assert ("looks: a comparison is not decided, but no seed is added: " in said) == bool(code)


def test_a_seed_is_added_and_seeds_are_added(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    first = make(*words, RULE)
    for groups in ({"gspo": [4]}, {"gspo": [4, 5], "ptrw": [4]}, {}):
        sweep._say_added(
            *first.experiments, *planner.make(ROOT, [*words, RULE], SHIPPED, {"looks": groups}).experiments
        )
    assert capsys.readouterr().out.splitlines() == [
        "looks: not decided with 4 seeds; seed 4 (of at most 12) is added to gspo",
        "looks: not decided with 4 seeds; seeds 4, 5 (of at most 12) are added to ptrw, gspo",
    ]


def test_a_rule_that_is_changed_before_any_result_starts_with_its_own_first_look(words: tuple[str, ...]) -> None:
    for before in (RULE, "seed=0,1,2,3,4"):
        freeze.freeze(make(*words, before))
        assert seeds_of(make(*words, RULE.replace("start:4", "start:3")))["ptrw"] == [0, 1, 2]
