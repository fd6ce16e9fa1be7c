"""What training in one process does beyond tests/trainer_ext/test_backends.py: it learns, and counts as it should."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer_ext import conftest
from tests.trainer_ext.conftest import FEW_PROMPTS, METHODS, SHORT, configuration, quick_settings, refusal, science
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.train import Preempted, train

pytestmark = pytest.mark.train
ROOT = Path(__file__).parents[2]
LR = "verl.actor_rollout_ref.actor.optim.lr"
TRAINING = [name for name in METHODS if name not in conftest.DECODING]


@pytest.mark.parametrize("method", TRAINING)
def test_micro_batches_change_nothing_but_the_rounding(method, cache):
    """Two updates of 32 responses (of dpo, 8), in one micro-batch and in several. Adam divides small gradients by their
    own size, and so turns their rounding into a share of the learning rate: hence a small one, and one parameter in
    10,000 may differ by a tenth of an update."""
    key = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    found = []
    for rows in (32, 4 if method == "dpo" else 8):
        own = [*FEW_PROMPTS, *quick_settings(method), f"{key}={rows}", f"{LR}=1e-4"]
        trainer = InProcess(configuration(*SHORT, f"method={method}", *own), cache)
        if "bnto" in method:  # as if in the middle of a run, so that both prices act
            state = trainer._method.controller.state_dict()
            trainer._method.controller.load_state_dict({**state, "lam": 5.0, "beta": 0.5, "budget_start": 0.01})
        (line,) = science([trainer.step(1)])
        models = [trainer.actor, *([trainer.critic] if trainer.critic else [])]
        found.append((line, [{k: v.clone() for k, v in model.weights().items()} for model in models]))
    (expected, weights), (line, theirs) = found
    for ours, other in zip(weights, theirs, strict=True):
        apart = torch.cat([(other[name] - tensor).abs().flatten() for name, tensor in ours.items()])
        assert apart.max() < 1e-5 and (apart > 1e-6).double().mean() <= 1e-4
    del line["actor/grad_variance"]  # which compares micro-batches, and so is another number
    assert line == {key: pytest.approx(expected[key], rel=1e-4, abs=1e-6) for key in line}


def test_credit_takes_the_norm_that_is_asked_for(cache):
    found = {}
    for norm in ("proxy", "exact"):
        overrides = ["method=gradient_adaptive", f"method.credit.gradient_adaptive.norm={norm}"]
        trainer = InProcess(configuration(*SHORT, *overrides), cache)
        found[norm] = trainer.step(1)["gradient_adaptive/avg_gradient_norm"]
        logp, _, mask, _ = trainer._newest
        assert (found[norm] == pytest.approx(float(-logp[mask].mean()))) == (norm == "proxy")
    assert 0 < found["exact"] < math.sqrt(2)


@pytest.mark.parametrize("task", ["expression", "sorting"])
def test_the_embedded_tasks_start_low_and_are_learned(task, new_run):
    run = new_run()
    train(configuration(f"task={task}", "trainer.steps=48"), run)
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
    "words",
    [
        "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=48",
        "verl.actor_rollout_ref.actor.ppo_mini_batch_size=12",
        "method=dpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "method=c0_ppo method.critic_warmup=99", "model.heads=3",
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_named(words, new_run, worded):
    worded(refusal(lambda: train(configuration(*SHORT, *words.split()), new_run())))


def test_a_run_that_an_older_version_planned_says_what_to_do(new_run):
    config = configuration(*SHORT)
    del config["trainer"]["split"]
    assert "Launch its experiment again to plan it anew" in refusal(lambda: train(config, new_run()))


def test_a_checkpoint_that_cannot_be_loaded_is_named_with_what_to_do(new_run):
    """One of an older version, without digests."""
    run, config = new_run(stop_after=1), configuration(*SHORT, *FEW_PROMPTS, "method=c0_grpo")
    with pytest.raises(Preempted):
        train(config, run)
    _, newest = run.latest_checkpoint()
    for path in list(newest.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:100])
        for _ in ("a part of it", "nothing"):
            with pytest.raises(ValueError, match=rf"{newest} cannot be loaded \(.*\)\. Fix: move it away"):
                train(config, run)
            path.unlink(missing_ok=True)
        path.write_bytes(whole)


def test_a_run_imports_neither_data_frames_nor_servers_and_verl_finds_them_when_it_asks(cache, tmp_path):
    """pandas and datasets are 85 MB and half a second of each start, SciPy 35 MB, FastAPI 18 MB and a quarter."""
    config = tmp_path / "config"
    settings = configuration(*SHORT, *FEW_PROMPTS)
    config.write_bytes(pickle.dumps(settings))
    InProcess(settings, cache)  # which makes what runs share
    program = f"""
import pickle, sys
from pathlib import Path
import trainer_ext.train
from trainer_ext.backends.in_process.trainer import InProcess
InProcess(pickle.loads(Path({str(config)!r}).read_bytes()), Path({str(cache)!r})).step(1)
assert not {{"pandas", "datasets", "fastapi", "scipy"}} & sys.modules.keys()
import verl.utils.dataset
from verl.utils.dataset import RMDataset
from verl.utils.dataset.rl_dataset import RLHFDataset
assert verl.utils.dataset.RLHFDataset is RLHFDataset and verl.utils.dataset.RMDataset is RMDataset
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
