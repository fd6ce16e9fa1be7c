"""Forks: the runs of an experiment continue the runs of one group, which are trained once for each seed."""

from __future__ import annotations

import json
import shutil

import pytest

from analysis.data.sweep import Fork, read_sweep
from analysis.findings.study import study
from analysis.report.headline import answer
from analysis.spec.settings import settings
from launcher.config import identity
from launcher.errors import InvalidPlan
from launcher.planning import continuation, freeze
from launcher.planning.plan import Prefix
from launcher.run import catalog
from launcher.run.folder import (
    read_config,
    read_state,
    run_folder,
    write_state,
)
from launcher.run.lifecycle import RunState
from launcher.worker import worker
from tests.launcher.experiments import make, refused, write_experiment
from tests.launcher.made import make_checkpoint
from tests.launcher.test_continuation import walk

LEVELS = [0.05, 0.1, 0.15, 0.25, 0.3, 0.35, 0.4]
FORK = {"at": 6, "from": "GRPO"}
#: The control and seven late changes.
GRID = {"GRPO": {"method": "c0_grpo"}, "PTRW": {"method": "ptrw"}}
TRAINER = {"steps": 12, "checkpoint_every": 2, "hist_every": 0.1}


def declare(conf, fork=FORK, groups=GRID, trainer=TRAINER, **more):
    own = {"factors": {"method.sigma": LEVELS}, "seeds": [0, 1], **more}
    write_experiment(conf, groups, "late", trainer=trainer, **own)
    path = conf / "experiment" / "late.yaml"
    path.write_text(
        f"{path.read_text()}"
        if fork is None
        else path.read_text().replace("experiment:\n", f"experiment:\n  fork: {json.dumps(fork)}\n", 1)
    )
    return conf


def planned(conf, tmp_path, *words):
    return make("experiment=late", *words, f"multirun={tmp_path / 'multirun'}", conf=conf)


def test_a_fork_is_another_result_than_a_direct_run_and_the_control_is_the_direct_run(conf, tmp_path):
    direct = planned(declare(conf, fork=None), tmp_path)
    forked = planned(declare(conf), tmp_path)
    assert len(direct.runs) == 16 and len(forked.runs) == 16 + 2
    ids = {group: {entry.id for entry in forked.experiments[0].entries if entry.group == group} for group in GRID}
    assert ids["GRPO"] == {entry.id for entry in direct.experiments[0].entries if entry.group == "GRPO"}
    assert not ids["PTRW"] & set(direct.runs)
    prefixes = {entry.seed: entry.id for entry in forked.experiments[0].prefixes}
    assert list(prefixes) == [0, 1] and list(forked.runs)[:2] == list(prefixes.values())
    for entry in forked.experiments[0].entries:
        run = forked.runs[entry.id]
        source = forked.runs[prefixes[entry.seed]]
        assert forked.prefixes[entry.id] == Prefix(source.id, 6, fork=entry.group == "PTRW")
        own = {"at": 6, "run": source.hash} if entry.group == "PTRW" else None
        assert run.config.get(identity.FORK) == own and source.config["trainer"]["steps"] == 6
    later = planned(declare(conf, fork={**FORK, "at": 8}), tmp_path)
    assert not ids["PTRW"] & set(later.runs) and ids["GRPO"] <= set(later.runs)


def test_the_plan_names_the_runs_that_are_continued(conf, tmp_path):
    forked = planned(declare(conf), tmp_path)
    freeze.freeze(forked)
    plan = catalog.read_plan(forked.multirun, "late")
    assert plan["fork"] == {"at": 6, "source": "GRPO"} and len(plan["runs"]) == 16
    entries = catalog.entries(plan)
    assert set(entries) == set(forked.runs)
    assert catalog.title(entries[next(iter(forked.runs))]) == "GRPO steps=6 seed 0"
    arm = next(run for run in forked.runs.values() if identity.FORK in run.config)
    frozen = read_config(run_folder(forked.multirun, arm.id))
    identity.verify(frozen, arm.id)
    assert frozen["fork"] == arm.config["fork"]
    with pytest.raises(ValueError, match="the configuration was changed after it was frozen"):
        identity.verify({**frozen, "fork": {**frozen["fork"], "at": 5}})
    assert "fork" not in planned(declare(conf, fork=None), tmp_path).experiments[0].document()


@pytest.mark.parametrize(
    ("changes", "key", "rule"),
    [
        ({"fork": {**FORK, "at": 12}}, "experiment.fork.at = 12", "must be below trainer.steps=12"),
        ({"fork": {**FORK, "at": 0}}, "experiment.fork.at = 0", "must be a step, 1 or more"),
        ({"fork": {**FORK, "from": "C9"}}, "experiment.fork", "must be one of the groups: GRPO, PTRW"),
        ({"fork": {**FORK, "from": "PTRW"}}, "experiment.fork.from = PTRW", "it has 7 cells of factors"),
        ({"trainer": {**TRAINER, "eval_every": 4}}, "experiment.fork.at = 6", "trainer.eval_every = 4"),
        (
            {"groups": {**GRID, "GRPO": {"method": "bnto_minimal"}}, "trainer": {**TRAINER, "steps": 40},
             "fork": {**FORK, "at": 20}},
            "experiment.fork.at = 20", "method.decay = usage",
        ),
        (
            {"groups": {**GRID, "PTRW": {"method": "ptrw", "overrides": {"model.layers": 3}}}},
            "model", "must be that of",
        ),
        (
            {"groups": {**GRID, "PTRW": {"method": "ptrw", "overrides": {"task.train_prompts": 99}}}},
            "task", "must be that of",
        ),
        ({"exclude": [{"group": "GRPO", "seed": 1}]}, "experiment.fork.from = GRPO", "has no run of seed 1"),
    ],
)  # fmt: skip
def test_a_fork_that_cannot_be_is_refused(conf, changes, key, rule):
    lines = refused("experiment=late", conf=declare(conf, **changes))
    assert any(key in line and rule in line for line in lines), lines


def test_another_backend_is_refused(conf):
    lines = refused("experiment=late", "trainer=verl_ray", conf=declare(conf))
    assert any("trainer.backend = verl_ray: group PTRW cannot continue" in line for line in lines), lines


# ---------------------------------------------------------------- what a launch checks


@pytest.fixture
def frozen(conf, tmp_path):
    """A frozen plan whose prefixes are done."""
    forked = planned(declare(conf, seeds=[0]), tmp_path)
    freeze.freeze(forked)
    (entry,) = forked.experiments[0].prefixes
    folder = run_folder(forked.multirun, entry.id)
    write_state(folder, read_state(folder).replace(state=RunState.DONE, attempt=1))
    make_checkpoint(folder, 6)
    return forked, folder


def test_a_checkpoint_that_was_deleted_is_a_problem_only_while_a_fork_needs_it(frozen):
    forked, folder = frozen
    missing = freeze.missing(forked)
    continuation.check(forked, missing)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(
        InvalidPlan, match=rf"this checkpoint was deleted. Fix: `python -m launcher rerun {folder.name}`"
    ):
        continuation.check(forked, missing)
    for run_id in missing:
        make_checkpoint(run_folder(forked.multirun, run_id), 6)
    continuation.check(forked, missing)


def test_a_prefix_whose_histograms_do_not_fit_is_a_problem(frozen):
    forked, folder = frozen
    config = (folder / "config.yaml").read_text()
    share = next(line for line in config.splitlines() if line.startswith("  hist_every:"))
    (folder / "config.yaml").write_text(config.replace(share, "  hist_every: 0.5"))
    with pytest.raises(InvalidPlan, match=r"trainer\.hist_every = 0\.5|trainer\.hist_every = 0\.1"):
        continuation.check(forked, freeze.missing(forked))


def test_a_launch_that_nobody_waits_for_is_refused(conf, tmp_path):
    forked = planned(declare(conf), tmp_path, "cluster=slurm", "cluster.detach=true")
    with pytest.raises(InvalidPlan, match="16 runs can begin when the runs that they continue are done"):
        continuation.check(forked, list(forked.runs))
    continuation.check(forked, [run_id for run_id in forked.runs if run_id not in forked.prefixes])


def test_a_fork_without_its_prefix_fails_with_the_fix(frozen):
    forked, folder = frozen
    arm = next(run_id for run_id, prefix in forked.prefixes.items() if prefix.fork)
    shutil.rmtree(folder / "checkpoints")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker, "_redirect", lambda _: None)
        assert worker.execute(run_folder(forked.multirun, arm), "tests.launcher.steps:train") == 1
    state = read_state(run_folder(forked.multirun, arm))
    assert f"`python -m launcher rerun {folder.name}`" in state.message and state.prefix == folder.name


# ---------------------------------------------------------------- as a user


@pytest.mark.processes
def test_a_late_grid_of_8_arms_costs_at_most_60_percent_of_training_each_from_the_start(conf, sweeps, tmp_path):
    ledger = tmp_path / "ledger"
    environment = {"DRIVE_CONF": str(declare(conf, seeds=[0])), "STEPS_LEDGER": str(ledger)}
    code, said = sweeps.run("experiment=late", "cluster.slots=2", **environment)
    assert code == 0, said
    states = sweeps.states()
    assert len(states) == 9 and {state["state"] for state in states.values()} == {"done"}
    arms = [name for name in states if read_config(run_folder(sweeps.multirun, name))["trainer"]["steps"] == 12]
    assert len(arms) == 8 and all(sweeps.values()[name] == walk(0, 12) for name in arms)
    computed = len(ledger.read_text().splitlines())
    assert computed == 6 + 8 * 6 and computed <= 0.6 * 8 * 12
    assert {states[name]["from_step"] for name in arms} == {6}
    assert "RAN \n" in sweeps.run("experiment=late", **environment)[1]


@pytest.mark.processes
def test_a_failed_prefix_starts_no_fork_and_the_next_launch_goes_on(conf, sweeps):
    environment = {"DRIVE_CONF": str(declare(conf))}
    code, said = sweeps.run("experiment=late", "cluster.slots=2", **environment, STEPS_END='{"1": "raise"}')
    assert code == 1 and said.count("which it continues, is not done") == 8, said
    states = [state["state"] for state in sweeps.states().values()]
    assert sorted(states) == ["done"] * 9 + ["failed"] + ["planned"] * 8
    (failed,) = [name for name, state in sweeps.states().items() if state["state"] == "failed"]
    folder = run_folder(sweeps.multirun, failed)
    write_state(folder, read_state(folder).replace(state=RunState.PLANNED))
    code, said = sweeps.run("experiment=late", "cluster.slots=2", **environment)
    assert code == 0 and {state["state"] for state in sweeps.states().values()} == {"done"}, said


# ---------------------------------------------------------------- the report


def test_the_report_says_what_its_claims_are_conditional_on(frozen):
    forked, _ = frozen
    sweep = read_sweep(forked.multirun / "late")
    assert sweep.fork == Fork(at=6, source="GRPO")
    asked = settings(sweep.plan["analysis"], "plan.json", sweep.groups, sweep.baseline)
    assert answer(study(sweep, asked)).limits[0] == (
        "Every run continues the first 6 steps of GRPO with the same seed. The claims are conditional on these first "
        "steps, of 1 seed: they are about a change of method at that step, and not about methods that train from the "
        "first step."
    )
