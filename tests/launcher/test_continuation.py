"""Longer training without starting again: what continues a finished run, what starts again and why, and what a launch
does about it."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from launcher import files
from launcher.errors import InvalidPlan
from launcher.execution import checks
from launcher.planning import freeze
from launcher.run import code
from launcher.run.folder import checkpoints, latest_checkpoint, metrics_path, read_config, run_folder
from launcher.run.lifecycle import RunState, find_state, read_state, write_state
from launcher.worker import prefix
from tests.launcher.experiments import make
from tests.launcher.made import make_checkpoint
from tests.launcher.steps import walk
from tests.launcher.test_code import HEALTH, decide, record
from tests.waiting import ended, until

OPTIM = "verl.actor_rollout_ref.actor.optim"


def plan_of(multirun, *words, steps=160, method="c0_grpo"):
    return make(f"method={method}", "experiment.name=adhoc", f"trainer.steps={steps}", *words, f"multirun={multirun}")


def finished(multirun, *words, steps=160, code_id=None, **more):
    """A done run of so many steps, with its last checkpoint."""
    planned = plan_of(multirun, *words, steps=steps, **more)
    freeze.freeze(planned)
    folder = run_folder(multirun, *planned.runs)
    own = {"1": code_id} if code_id else {}
    write_state(folder, read_state(folder).replace(state=RunState.DONE, attempt=1, code=own))
    make_checkpoint(folder, steps)
    metrics_path(folder).write_text("".join(f'{{"step": {one}, "attempt": 1}}\n' for one in range(1, steps + 1)))
    return folder


# ---------------------------------------------------------------- what a plan finds


def test_a_run_of_more_steps_continues_the_longest_that_is_done(tmp_path):
    for steps in (40, 160, 200):
        folder = finished(tmp_path, steps=steps)
    write_state(folder, read_state(folder).replace(state=RunState.FAILED))
    finished(tmp_path, "seed=1")
    planned = plan_of(tmp_path, "seed=0,1,2", steps=320)
    by_seed = {run.config["seed"]: planned.prefixes.get(run.id) for run in planned.runs.values()}
    assert {seed: own and own.step for seed, own in by_seed.items()} == {0: 160, 1: 160, 2: None}
    assert by_seed[0] is not None and read_config(run_folder(tmp_path, by_seed[0].run))["trainer"]["steps"] == 160
    assert not planned.restarts
    # The result is that of a run from the first step, and so is the identity.
    assert set(planned.runs) == set(plan_of(tmp_path / "none", "seed=0,1,2", steps=320).runs)
    assert not plan_of(tmp_path, steps=20).prefixes, "a shorter run is not the continuation of a longer one"
    freeze.freeze(planned)
    assert {find_state(run_folder(tmp_path, one)).prefix_step for one in planned.runs} == {160, None}
    assert not plan_of(tmp_path, "seed=0,1,2", steps=320).prefixes, "what a run continues is decided once"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (f"{OPTIM}.lr_scheduler_type=cosine", ""),
        (f"{OPTIM}.lr_warmup_steps_ratio=0.1", ""),
        ("method=bnto_minimal", ""),
        ("trainer.eval_every=50", ""),
        ("trainer.eval_every=40", "trainer.eval_responses=33"),
        ("trainer.hist_every=0.1", "trainer.hist_every=0.09"),
    ],
)
def test_what_depends_on_the_number_of_steps_starts_again_with_the_reason(tmp_path, then, now, worded):
    finished(tmp_path, then)
    planned = plan_of(tmp_path, then, *now.split(), steps=320)
    assert len(planned.restarts) == 1 and not planned.prefixes
    worded(planned.continuations())


@pytest.mark.parametrize(
    "words",
    [
        [f"{OPTIM}.lr_warmup_steps=7", f"{OPTIM}.lr_warmup_steps_ratio=0.1"],
        ["method=bnto_plateau"],
        ["trainer.eval_every=40"],
        ["method=c0_ppo", "method.critic_warmup=3"],
        ["method=temporal_decay"],
    ],
)
def test_what_does_not_depend_on_it_continues(tmp_path, words):
    finished(tmp_path, *words)
    assert [own.step for own in plan_of(tmp_path, *words, steps=320).prefixes.values()] == [160]


def test_bnto_continues_where_its_window_is_full(tmp_path):
    finished(tmp_path, method="bnto_minimal", steps=991)
    (why,) = plan_of(tmp_path, method="bnto_minimal", steps=2000).restarts.values()
    assert "because trainer.hist_every = " in why
    share = why.partition("Fix: set it to ")[2].partition(",")[0]
    assert plan_of(tmp_path, f"trainer.hist_every={share}", method="bnto_minimal", steps=2000).prefixes


def test_a_checkpoint_that_was_deleted_is_named_and_the_next_shorter_run_is_taken(tmp_path, capsys):
    finished(tmp_path, steps=40)
    shutil.rmtree(finished(tmp_path) / "checkpoints")
    assert [own.step for own in plan_of(tmp_path, steps=320).prefixes.values()] == [40]
    shutil.rmtree(tmp_path / "runs" / next(iter(plan_of(tmp_path, steps=40).runs)))
    (said,) = plan_of(tmp_path, steps=320).continuations()
    assert "although 160 steps are done, because the checkpoint of step 160 was deleted" in said


def test_a_plan_shows_what_is_saved(tmp_path, said):
    plan = f"plan method=c0_grpo experiment.name=adhoc seed=0,1 trainer.steps=320 multirun={tmp_path}"
    before = json.loads(said(f"{plan} --json"))
    finished(tmp_path)
    found = json.loads(said(f"{plan} --json"))
    assert list(found["continued"].values()) == [160]
    assert before["device_hours"] - found["device_hours"] == pytest.approx(160 * 0.15 / 3600)
    assert "1 run continues a run from step 160 on\n" in said(plan)


def test_a_prefix_of_other_code_is_refused_run_anew_or_accepted(tmp_path):
    finished(tmp_path, code_id=record(tmp_path, **{HEALTH: "0" * 16}))
    with pytest.raises(InvalidPlan, match=f"1 with a checkpoint by other code: {HEALTH} changed since"):
        decide(plan_of(tmp_path, steps=320))
    anew = plan_of(tmp_path, "rerun=changed", steps=320)
    (why,) = anew.restarts.values()
    assert not anew.prefixes and "other code computed them" in why and decide(anew) == {}
    accepted = plan_of(tmp_path, "accept_code=true", steps=320)
    checks.carry_out(accepted, decide(accepted))
    (choice,) = code.choices(tmp_path / "adhoc")
    assert choice["runs"] == list(accepted.prefixes) == list(accepted.runs)
    assert not decide(plan_of(tmp_path, steps=320)), "an accepted difference is not asked about again"


# ---------------------------------------------------------------- taking over


def prepared(tmp_path):
    """The folder of a done run with logs, and that of a frozen run that continues it."""
    source = finished(tmp_path, "trainer.eval_every=40")
    lines = [{"step": step, "attempt": 1, "name": "entropy"} for step in range(16, 161, 16)]
    (source / "histograms.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = [{"step": step, "attempt": 1, "id": str(one)} for step in (40, 80, 120, 160) for one in range(4)]
    (source / "responses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in shown))
    (source / "evaluations").mkdir()
    for step in (40, 80, 120, 160):
        (source / "evaluations" / f"{step:06d}.json.gz").write_bytes(b"e")
    longer = plan_of(tmp_path, "trainer.eval_every=40", "trainer.eval_responses=3", steps=320)
    freeze.freeze(longer)
    return source, run_folder(tmp_path, *longer.runs)


def test_the_folder_is_whole_by_itself(tmp_path):
    source, folder = prepared(tmp_path)
    state = prefix.adopt(folder, read_state(folder))
    assert metrics_path(folder).read_text() == metrics_path(source).read_text()
    assert [line["step"] for line in files.json_lines(folder / "histograms.jsonl")] == [32, 64, 96, 128, 160]
    assert [line["id"] for line in files.json_lines(folder / "responses.jsonl")] == ["0", "1", "2"] * 4
    assert len(list((folder / "evaluations").iterdir())) == 4
    assert [step for step, _ in checkpoints(folder)] == [160] and state.prefix == source.name
    shutil.rmtree(source)
    assert latest_checkpoint(folder)[1].joinpath("weights").read_bytes() == b"w" * 1000
    assert prefix.adopt(folder, state) == state, "it is taken over once"


def test_an_interruption_at_any_file_is_begun_again(tmp_path, monkeypatch):
    source, folder = prepared(tmp_path)
    whole = shutil.copytree(tmp_path / "runs", tmp_path / "kept")
    before, link = read_state(folder), os.link
    for last in range(6):
        shutil.rmtree(tmp_path / "runs")
        shutil.copytree(whole, tmp_path / "runs")
        calls = iter(range(last))

        def killed(a, b, calls=calls):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            link(a, b)

        monkeypatch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt) if last < 5 else pytest.MonkeyPatch.context():
            prefix.adopt(folder, before)
        assert (latest_checkpoint(folder) is None) == (last < 5)
        monkeypatch.setattr(os, "link", link)
        prefix.adopt(folder, before)
        assert latest_checkpoint(folder)[0] == 160 and len(list((folder / "evaluations").iterdir())) == 4
        assert metrics_path(folder).read_text() == metrics_path(source).read_text()


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    source, folder = prepared(tmp_path)

    def refuses(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuses)
    prefix.adopt(folder, read_state(folder))
    (source / "checkpoints/step_000160/weights").write_bytes(b"")
    assert latest_checkpoint(folder)[1].joinpath("weights").read_bytes() == b"w" * 1000


def test_without_the_checkpoint_the_run_begins_from_its_first_step(tmp_path):
    source, folder = prepared(tmp_path)
    shutil.rmtree(source / "checkpoints")
    state = prefix.adopt(folder, read_state(folder))
    assert (state.prefix, state.prefix_step, latest_checkpoint(folder)) == (None, None, None)
    assert not metrics_path(folder).exists()


SMALL = ("method=c0_grpo", "seed=0,1", "trainer.checkpoint_every=2", "cluster.slots=2")


@pytest.mark.processes
def test_a_longer_sweep_computes_only_the_new_steps_also_when_it_is_killed(sweeps, tmp_path):
    ledger = tmp_path / "ledger"
    said = sweeps.run(*SMALL, "trainer.steps=4")
    assert said[0] == 0, said[1]
    first = set(sweeps.states())
    launcher = sweeps.start_held(*SMALL, "trainer.steps=12", STEPS_LEDGER=str(ledger))
    longer = until(lambda: {one.name for one in sweeps.logging()} - first)
    until(lambda: all(one[-1][0] == 5 for name, one in sweeps.values().items() if name not in first))
    victim = sorted(longer)[0]
    os.kill(sweeps.states()[victim]["pid"], signal.SIGKILL)
    sweeps.release()
    output = ended(launcher)
    assert output.count("from step 4") >= 2, output
    states = {name: state for name, state in sweeps.states().items() if name not in first}
    for name, state in states.items():
        seed = read_config(run_folder(sweeps.multirun, name))["seed"]
        assert sweeps.values()[name] == walk(seed, 12)
        assert (state["state"], state["prefix_step"]) == ("done", 4) and state["prefix"] in first
        assert state["attempt"] == (3 if name == victim else 2)
    computed = [line.split() for line in ledger.read_text().splitlines()]
    assert min(int(step) for *_, step in computed) == 5
    assert "RAN \n" in sweeps.run(*SMALL, "trainer.steps=12")[1]
