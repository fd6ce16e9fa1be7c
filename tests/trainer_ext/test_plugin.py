"""What verl gets from the plug-in: the loss and its settings, the estimators, and the analysis metrics."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import metric_utils
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.utils import config as verl_config
from verl.utils.config import omega_conf_to_dataclass

from tests.configuration import configuration
from tests.trainer_ext.batches import batch
from tests.trainer_ext.conftest import refusal
from tests.wording import Worded
from trainer_ext.backends import plugin
from trainer_ext.methods import policy_loss
from trainer_ext.metrics import analysis_metrics

ROOT = Path(__file__).parents[2]
PTRW = {"smoothing": "none", "ratio": "token", "trust_region": "gaussian", "sigma": 0.2, "differentiable": False}
TARGET = "trainer_ext.backends.plugin.PartsConfig"
AT = "actor_rollout_ref.actor.policy_loss"


def section(method: Any, **more: Any) -> Any:
    """verl's section actor.policy_loss, as its command line makes it."""
    return OmegaConf.create({"_target_": TARGET, "loss_mode": plugin.LOSS, "method": method, **more})


@pytest.mark.parametrize("name", ["c0_grpo", "ema", "amic", "gspo", "ptrw", "asymmetric_clip"])
def test_the_loss_is_the_one_of_a_run_and_its_metrics_are_means_over_the_micro_batch(name: str) -> None:
    method = policy_loss.policy_loss_config(configuration(f"method={name}")["method"])["method"]
    config = type("ActorConfig", (), {})()
    config.policy_loss, config.global_batch_info = omega_conf_to_dataclass(section(method)), {}
    b = batch(3, rows=8, length=9)
    given = (b.reference, b.reference + b.log_ratio, b.advantages, b.mask, "token-mean", config)
    loss, found = get_policy_loss_fn(plugin.LOSS)(*given)
    ours, shares = policy_loss.policy_loss(*given)
    assert torch.equal(loss, ours) and found
    expected = policy_loss.finish(shares)
    expected.pop("ema/variance_reduction_ratio", None)
    assert found == pytest.approx(expected)
    # verl's mini-batch is larger than the micro-batch: shares of it would be smaller, means are not
    config.global_batch_info = {"dp_size": 1, "batch_num_tokens": 1000, "global_batch_size": 100}
    assert get_policy_loss_fn(plugin.LOSS)(*given)[1] == found


def test_a_loss_reports_the_same_metrics_of_every_micro_batch() -> None:
    """verl refuses metrics that some micro-batches lack."""
    config = type("ActorConfig", (), {"global_batch_info": {}})()
    config.policy_loss = omega_conf_to_dataclass(section({**PTRW, "smoothing": "ema", "ema_beta": 0.5}))
    b = batch(3, rows=8, length=9)
    same, moved = (
        plugin.parts_loss(b.reference, b.reference + size * b.log_ratio, b.advantages, b.mask, config=config)[1]
        for size in (0, 1)
    )
    assert set(same) == set(moved) and moved["ema/raw_weights_variance"] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"sigma": None}, {"trust_region": None}, {"trust_region": "clipp"}, {"sigmma": 0.2}, {"credit": {}},
        {"smoothing": "ema", "ema_beta": 2.0}, {"sigma": "wide"}, {"sigma": 0.0},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_where_verl_reads_them(changes: dict[str, Any], worded: Worded) -> None:
    method = {key: value for key, value in {**PTRW, **changes}.items() if value is not None}
    worded(refusal(lambda: omega_conf_to_dataclass(section(method)), Exception))


def test_the_class_of_the_settings_and_the_loss_belong_together() -> None:
    with pytest.raises(Exception, match=f"{AT}.loss_mode='vanilla' does not read {AT}.method; fix: set"):
        omega_conf_to_dataclass(section(PTRW, loss_mode="vanilla"))
    theirs = OmegaConf.create({"_target_": "verl.workers.config.PolicyLossConfig", "loss_mode": plugin.LOSS})
    tree = OmegaConf.create({"actor_rollout_ref": {"actor": {"policy_loss": theirs}}})
    with pytest.raises(ValueError, match=f"fix: set {AT}._target_={TARGET}, and the parts"):
        verl_config.validate_config(tree, use_reference_policy=False, use_critic=False)
    plugin.check_loss({**theirs, "loss_mode": "vanilla"})
    plugin.check_loss(section(PTRW))


def test_estimators_are_registered_under_their_documented_names() -> None:
    rewards = torch.zeros(4, 3)
    rewards[:, 0] = torch.tensor([1.0, 0.0, 3.0, 3.0])
    mask = torch.ones(4, 3)
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": False})
    given = {"token_level_rewards": rewards, "response_mask": mask, "index": ["a", "a", "b", "b"], "config": config}
    found, _ = get_adv_estimator_fn("rlsweep_grpo")(**given)
    assert found[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0]
    raw, _ = get_adv_estimator_fn("rlsweep_raw")(**given)
    assert raw[:, 2].tolist() == [1.0, 0.0, 3.0, 3.0]


def data(**more: torch.Tensor) -> DataProto:
    """What verl hands to compute_data_metrics."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    scores = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    prompts, responses = (torch.ones(2, size, dtype=torch.long) for size in (2, 3))
    columns = {"prompts": prompts, "responses": responses, "response_mask": mask, "advantages": torch.randn(2, 3)}
    columns |= {"attention_mask": torch.cat([prompts, mask], 1), "prompt_length": prompts.sum(1).float()}
    columns |= {"response_length": mask.sum(1).float(), "returns": torch.randn(2, 3)}
    columns |= {"token_level_scores": scores, "token_level_rewards": scores - 0.1}
    return DataProto(batch=TensorDict({**columns, **more}, batch_size=2))


def test_verls_metrics_of_a_step_have_the_analysis_metrics() -> None:
    old = torch.tensor([[-0.5, -1.0, -9.0], [-2.0, -9.0, -9.0]])
    given = data(old_log_probs=old)
    found = metric_utils.compute_data_metrics(batch=given, use_critic=False)
    b = given.batch
    expected = analysis_metrics(old, b["advantages"], b["token_level_scores"], b["response_mask"])
    assert expected.items() <= found.items() and "critic/score/mean" in found
    surprise = [math.exp(x) * -x for x in (-0.5, -1.0, -2.0)]
    assert found["analysis/entropy_per_token_mean"] == pytest.approx(sum(surprise) / 3)
    assert found["analysis/reward_sum_mean"] == pytest.approx(0.75)  # without verl's KL penalty
    without = metric_utils.compute_data_metrics(batch=data(), use_critic=False)
    assert "critic/score/mean" in without and not any(key.startswith("analysis/") for key in without)


def test_verl_is_asked_for_the_log_probabilities_too() -> None:
    asked: list[list[str]] = []
    step = {"partition_id": "train", "moe_lb_metrics_interval": 0, "global_steps": 1, "accumulator": None}
    metric_utils.get_metric_data_with_optional_routed_experts(
        keys=["a"], fields=["responses"], kv_batch_get=lambda **given: asked.append(given["select_fields"]), **step
    )
    assert asked == [["responses", "old_log_probs"]]


def test_the_version_is_the_one_that_is_installed() -> None:
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["verl"]
    assert f"verl=={plugin.VERL}" in pins


@pytest.mark.processes
def test_verl_imports_the_plug_in_before_its_trainers_and_another_version_is_refused() -> None:
    """In any order: the modules of a run's own process may import verl first, or the plug-in."""
    look = "import sys, trainer_ext.methods.policy_loss, trainer_ext.backends.plugin as p; "
    look += "import verl.trainer.ppo.metric_utils as m; "
    look += "assert m.compute_data_metrics.__wrapped__ and 'verl.workers.engine' not in sys.modules; "
    look += "import verl, importlib; verl.__version__ = '0.9.2'; importlib.reload(p)"
    own = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "trainer_ext.backends.plugin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=ROOT, env=own)
    said = "trainer_ext.backends.plugin extends the trainer of verl 0.9.1; verl 0.9.2 is installed; fix: install"
    assert said in done.stderr
