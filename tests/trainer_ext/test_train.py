"""One run of the real trainer: it learns, is reproducible, and resumes as if it had not stopped."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.trainer_ext.conftest import CONF, MemoryRun, configuration, science
from trainer_ext import tasks
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.train import Diverged, Preempted, train

pytestmark = pytest.mark.train
# A short warm start keeps the tests quick; the methods do not know the difference.
ROOT = Path(__file__).parents[2]
SHORT = ["task.warm_start.steps=20", "trainer.steps=6"]
LR = "verl.actor_rollout_ref.actor.optim.lr"
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
DECODING = {"q_decode", "q_speculative", "q_speculative_adaptive"}  # these train nothing
TRAINING = [name for name in METHODS if name not in DECODING]
TOWARDS_TARGET = {"q_star", "q_star_grpo", "uniform_alpha", "entropy_alpha", "off_policy", "rejection", "sft"}


def folder_of(run: MemoryRun, step: int) -> Path:
    return run.folder / f"step_{step:06d}"


def own_settings(method: str) -> list[str]:
    """What makes everything of a dual controller happen within a few steps, and a target quickly."""
    if "bnto" in method:
        return ["method.warmup_steps=2", "method.patience=1", "method.alpha_lambda=50"]
    return ["method.target_steps=5"] if method in TOWARDS_TARGET else []


def saved(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, by file, but for the clock."""
    found: dict[str, Any] = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}
    for path in folder.rglob("state.json"):
        state = json.loads(path.read_text())
        for clock in ("train_seconds", "wall_seconds"):
            state.get("run", {}).pop(clock, None)
        found[str(path.relative_to(folder))] = state
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_run_interrupted_at_any_step_ends_as_one_that_was_not(method, new_run):
    """From the first step to the end; from any other to the next, where the checkpoints are the same again."""
    config = configuration(*SHORT, f"method={method}", *own_settings(method), "trainer.checkpoint_every=1")
    whole = new_run("whole")
    summary = train(config, whole)
    for step in range(1, 6):
        last = 6 if step in (1, 5) else step + 1
        run = new_run(f"from{step}", stop_after=last)
        run.folder.mkdir()
        shutil.copytree(folder_of(whole, step), folder_of(run, step))
        if last == 6:
            assert train(config, run)["samples"] == summary["samples"]
        else:
            with pytest.raises(Preempted):
                train(config, run)
        assert science(run.lines) == science(whole.lines[step:last])
        assert saved(folder_of(run, last)) == saved(folder_of(whole, last))
    if "bnto" in method:
        state = saved(folder_of(whole, 6))["state.json"]["controller"]
        assert state["budget"] and state["lam"] and state["waited"] + state["plateaus"], "or nothing was tested"


def test_a_run_that_is_asked_to_stop_saves_where_it_stands(new_run):
    config = configuration(*SHORT, "trainer.steps=3")
    whole, first = new_run("whole"), new_run("parts", stop_after=1)
    train(config, whole)
    with pytest.raises(Preempted) as stopped:
        train(config, first)
    assert stopped.value.step == 1
    second = new_run("parts")
    train(config, second)
    assert science(first.lines + second.lines) == science(whole.lines)


def test_seeds_differ_and_a_seed_repeats(new_run):
    runs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        runs.append(new_run(name))
        train(configuration(*SHORT, f"seed={seed}", "trainer.steps=2"), runs[-1])
    a, b, c = (science(run.lines) for run in runs)
    assert a == b
    assert a != c


@pytest.mark.parametrize("method", TRAINING)
def test_micro_batches_change_nothing_but_the_rounding(method, cache):
    """Four updates of 64 responses, in 1, 2 and 4 micro-batches. Adam divides small gradients by their own size, and so
    turns their rounding into a share of the learning rate: hence a small one."""
    key = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    found = []
    for rows in (64, 32, 16):
        own = [*own_settings(method), f"{key}={rows}", f"{LR}=1e-4"]
        trainer = InProcess(configuration(*SHORT, f"method={method}", *own), cache)
        if "bnto" in method:  # as if in the middle of a run, so that both prices act
            state = trainer._controller.state_dict()
            trainer._controller.load_state_dict({**state, "lam": 5.0, "beta": 0.5, "budget_start": 0.01})
        (line,) = science([trainer.step(1)])
        models = [trainer.actor, *([trainer.critic] if trainer.critic else [])]
        found.append((line, [{k: v.clone() for k, v in model.weights().items()} for model in models]))
    (expected, weights), *others = found
    for line, theirs in others:
        for ours, other in zip(weights, theirs, strict=True):
            assert max(float((other[name] - tensor).abs().max()) for name, tensor in ours.items()) < 1e-6
        assert "actor/grad_variance" in line  # which compares micro-batches, and so is another number
        line.pop("actor/grad_variance")
        assert line == {key: pytest.approx(expected[key], rel=1e-4, abs=1e-6) for key in line}


def test_every_metric_of_the_vocabulary_is_written(new_run):
    documented = {
        line.split("`")[1] for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if line.startswith("| `")
    }
    written: set[str] = set()
    for method in ("bnto_minimal", "all_variants", "asymmetric_clip", "c0_ppo", "q_star", "rejection", "sft", "dpo"):
        run = new_run(method)
        own = [*own_settings(method), "trainer.steps=3", "trainer.hist_every=1", "trainer.eval_every=3"]
        train(configuration(*SHORT, f"method={method}", *own), run)
        assert all(math.isfinite(value) for line in run.lines for value in line.values())
        written |= set(run.lines[-1]) - {"step"}
        assert {(step, name) for step, name, _, _ in run.histograms} == {
            (step, name)
            for step in (1, 2, 3)
            for name in ("entropy", "covariance", *(["alpha"] if method == "q_star" else []))
        }
        total = {0: 0, **{line["step"]: line["tokens/total"] for line in run.lines}}
        for step, _, edges, counts in run.histograms:
            assert len(edges) == 65 and sum(counts) == total[step] - total[step - 1]
    run = new_run("q_speculative")
    own = ["method/target=expert", "method.target_steps=5", "trainer.steps=1"]
    train(configuration(*SHORT, "method=q_speculative", *own), run)
    assert written | set(run.lines[-1]) - {"step"} == documented


def test_responses_are_kept_of_the_same_prompts_and_change_no_number(new_run):
    kept, silent = new_run("kept"), new_run("silent")
    own = [*SHORT, "trainer.steps=2", "trainer.eval_every=1", "trainer.eval_prompts=24"]
    train(configuration(*own, "trainer.eval_responses=24"), kept)
    train(configuration(*own, "trainer.eval_responses=0"), silent)
    assert silent.responses == [] and len(kept.responses) == 2 * 24
    assert science(kept.lines) == science(silent.lines)
    for file in sorted(folder_of(kept, 2).rglob("*.safetensors")):
        assert (folder_of(silent, 2) / file.relative_to(folder_of(kept, 2))).read_bytes() == file.read_bytes()
    at = {step: [one for one in kept.responses if one[0] == step] for step in (1, 2)}
    assert [(prompt, answer) for _, prompt, _, _, answer in at[1]] == [(p, a) for _, p, _, _, a in at[2]]
    for step, line in enumerate(kept.lines, start=1):
        assert sum(reward for *_, reward, _ in at[step]) / 24 == line["eval/reward_mean"]
    for _, prompt, response, reward, answer in kept.responses:
        assert prompt == f"{answer}=" and reward == tasks.get("expression").compute_score("", response, answer)


def test_credit_takes_the_norm_that_is_asked_for(cache):
    found = {}
    for norm in ("proxy", "exact"):
        overrides = ["method=gradient_adaptive", f"method.credit.gradient_adaptive.norm={norm}"]
        trainer = InProcess(configuration(*SHORT, *overrides), cache)
        found[norm] = trainer.step(1)["gradient_adaptive/avg_gradient_norm"]
        logp, _, mask, _ = trainer._newest
        assert (found[norm] == pytest.approx(float(-logp[mask].mean()))) == (norm == "proxy")
    assert 0 < found["exact"] < math.sqrt(2)


def test_weights_that_blow_up_end_the_run_as_diverged(new_run):
    run = new_run()
    with pytest.raises(Diverged) as diverged:
        train(configuration(*SHORT, "verl.actor_rollout_ref.actor.optim.lr=1e30"), run)
    assert len(run.lines) == diverged.value.step - 1


@pytest.mark.parametrize("task", ["expression", "sorting"])
def test_the_embedded_tasks_start_low_and_are_learned(task, new_run):
    run = new_run()
    train(configuration(f"task={task}", "trainer.steps=60"), run)
    rewards = [line["analysis/reward_sum_mean"] for line in run.lines]
    assert 0.1 <= sum(rewards[:3]) / 3 <= 0.45
    assert sum(rewards[-6:]) / 6 > 1.5 * sum(rewards[:3]) / 3


def test_the_common_start_does_not_depend_on_how_a_run_trains(tmp_path):
    from trainer_ext.backends.in_process.initial_model import start

    optim = "verl.actor_rollout_ref.actor.optim"
    found = [
        Path(start(configuration("task.warm_start.steps=3", *more), tmp_path / str(n)))
        for n, more in enumerate(([], [f"{optim}.lr_warmup_steps=9", f"{optim}.clip_grad=0.01", f"{optim}.lr=1"]))
    ]
    assert found[0].name == found[1].name
    first, second = (load_file(folder / "model.safetensors") for folder in found)
    assert all(bool((first[name] == second[name]).all()) for name in first)


def test_the_learning_rate_written_is_the_one_used(new_run):
    run = new_run()
    train(configuration(*SHORT, "trainer.steps=4", "verl.actor_rollout_ref.actor.optim.lr_warmup_steps=3"), run)
    assert [line["actor/lr"] for line in run.lines] == pytest.approx([0, 1e-4, 2e-4, 3e-4])


def test_the_constant_that_sums_are_divided_by_is_that_of_the_configuration_under_sft_too(cache):
    own = ["method=sft", "method.target_steps=5", "method.loss_agg_mode=seq-mean-token-sum-norm"]
    own += [f"verl.actor_rollout_ref.actor.{key}" for key in ("ppo_mini_batch_size=32", "loss_scale_factor=24")]
    usual, scaled = (InProcess(configuration(*SHORT, *said), cache).step(1) for said in (own[:-1], own))
    assert usual["actor/sft_loss"] == pytest.approx(4 * scaled["actor/sft_loss"])  # instead of 6, the longest response


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=48",
            "does not divide a mini-batch of 64 responses",
        ),
        ("verl.actor_rollout_ref.actor.ppo_mini_batch_size=12", "does not divide a mini-batch of 96 responses"),
        ("method=dpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "a divisor that is even"),
        ("method=dpo verl.actor_rollout_ref.rollout.n=1", "make it 2 or more, or set method.dpo_pairs=data"),
        ("verl.actor_rollout_ref.rollout.temperature=0.0", "sampling needs one above 0"),
        ("model.heads=3", "make it a multiple of twice the heads"),
    ],
)
def test_settings_that_cannot_work_are_named(override, said, new_run):
    with pytest.raises(ValueError, match=said):
        train(configuration(*SHORT, *override.split()), new_run())
