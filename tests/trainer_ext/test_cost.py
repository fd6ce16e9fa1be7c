"""What a run costs: the operations that it has counted so far, and the seconds of a step by arithmetic."""

from __future__ import annotations

import copy
import json
import time

import pytest
import yaml

from tests.needs import ROOT
from tests.trainer_ext.conftest import MemoryRun
from trainer_ext.application import price
from trainer_ext.fits.architectures import Architecture
from trainer_ext.train import Preempted, _train

SETTINGS = {"steps": 6, "checkpoint_every": 2, "hist_every": 0.1}
SETTINGS |= {"eval_before_train": False, "eval_every": 0, "eval_responses": 0}


class Backend:
    """Four responses a step, each of ten times as many operations as the step's number."""

    devices, parameters, peak_memory_bytes, tokens, drawn = 1, 1, 1, 0, {}

    def __init__(self):
        self.samples = 0

    def step(self, step):
        self.samples += 4
        return {"cost/flops_per_sample": 10.0 * step}

    def histograms(self):
        return {}

    def save(self, folder, state):
        (folder / "state.json").write_text(json.dumps([self.samples, state]))

    def load(self, folder):
        self.samples, state = json.loads((folder / "state.json").read_text())
        return state


def trained(run):
    """The operations that its lines have."""
    try:
        _train(SETTINGS, run, Backend(), time.monotonic(), 0.0)
    except Preempted:
        assert run.stop_after
    return [line.get("cost/flops") for line in run.lines]


def test_operations_add_up_over_a_stop(tmp_path):
    expected = [40.0, 120.0, 240.0, 400.0, 600.0, 840.0]
    assert trained(MemoryRun(tmp_path / "whole", tmp_path)) == expected
    first = trained(MemoryRun(tmp_path / "cut", tmp_path, stop_after=3))
    assert first == expected[:3] and trained(MemoryRun(tmp_path / "cut", tmp_path)) == expected[3:]


#: Every layer has 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8 parameters, the ends have 10 * 8 (tied) and 8.
MODEL = Architecture("llama", 10, 8, 16, 2, 2, 2, 4, 100, True)
N = 2 * (4 * 64 + 3 * 128 + 16) + 80 + 8
CONFIG = {
    "method": {"loss": "policy_gradient", "sampler": "policy", "advantage": "grpo", "alpha": "none", "target": "none"},
    "trainer": {"backend": "in_process", "steps": 10, "eval_every": 0, "eval_before_train": False, "judged": None},
    "model": {
        "resources": {"nodes": 1, "devices": 1, "device_type": "A100"},
        "parallel": {"offload": False, "sequence": 1, "tensor": 1, "rows": None},
    },
}
OF_MODEL = {"enable_gradient_checkpointing": True, "lora_rank": 0, "target_modules": "all-linear"}
VERL = {
    "data": {"train_batch_size": 4, "max_prompt_length": 12, "max_response_length": 8},
    "algorithm": {"rollout_correction": {"bypass_mode": True}},
    "actor_rollout_ref": {"rollout": {"n": 2, "max_num_seqs": 4}, "actor": {"ppo_epochs": 1}, "model": OF_MODEL},
}
EVALUATED = {"trainer__eval_every": 5, "trainer__eval_prompts": 2, "trainer__eval_samples": 3}
REACHED = 19.5e12 * 0.7
TOKENS = 4 * 2 * 20 / 4  # of 8 responses with their prompts, at a quarter of the allowed length
DRAWN = 2 * 8 * 2 * 6e-4  # 4 of 8 responses at a time, 8 tokens each, through 2 layers


def seconds(**changes):
    config, verl = copy.deepcopy(CONFIG), copy.deepcopy(VERL)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        place = config["model"][section] if section in ("resources", "parallel") else {**config, "verl": verl}[section]
        place[name] = value
    return price.step_seconds(config, verl, MODEL, MODEL)


@pytest.mark.parametrize(
    ("changes", "passes", "drawn"),
    [
        ({}, 2 + 6 + 2, DRAWN),  # reference; update; activations again
        ({"method__advantage": "gae"}, 2 + 2 + 2 * (6 + 2), DRAWN),  # and the critic's values and updates
        ({"method__loss": "none"}, 2, DRAWN),
        ({"method__loss": "dpo"}, 2 + 6 + 2, DRAWN),  # pairs: here as many rows as responses
        ({"method__sampler": "geometric"}, 2 + 6 + 2, 2 * DRAWN),  # both models read each token
        ({"method__sampler": "target"}, 2 + 6 + 2, 2 * DRAWN),
        ({"method__sampler": "rejection"}, 2 + 2 + 6 + 2, DRAWN),
        ({"trainer__rollout": "vllm"}, 2 + 6 + 2, 8 * 2 * 5e-5),  # as long as its longest response
        ({"parallel__rows": 2}, 2 + 6 + 2, 2 * DRAWN),
    ],
)
def test_a_step_is_its_operations_and_its_drawing(changes, passes, drawn):
    assert seconds(**changes) == pytest.approx(passes * N * TOKENS / REACHED + drawn, rel=1e-10)


def test_devices_share_the_work_and_evaluations_are_spread_over_the_steps():
    one, two = seconds(), seconds(resources__devices=2)
    assert two == pytest.approx(one / 2, rel=1e-9)
    # Twice in 10 steps 3 splits x 2 prompts x 4 responses, 4 at a time.
    assert seconds(**EVALUATED) - one == pytest.approx(2 / 10 * 6 * 8 * 2 * 6e-4)
    judged = {**EVALUATED, "trainer__judged": {"every": 5, "prompts": 1}}
    assert seconds(**judged) - one == pytest.approx(2 / 10 * 7 * 8 * 2 * 6e-4)


@pytest.mark.parametrize(("sampler", "models"), [("policy", 1), ("target", 2), ("geometric", 2)])
def test_a_vllm_server_computes_all_of_its_models_in_evaluations_too(sampler, models):
    of_vllm = {"trainer__rollout": "vllm", "method__sampler": sampler}
    token = models * 2 * 5e-5  # of each model two layers; 24 responses, 4 at a time, are a quarter as long as allowed
    assert seconds(**of_vllm, **EVALUATED) - seconds(**of_vllm) == pytest.approx(2 / 10 * token * 8 * 6 / 4)


def test_the_devices_are_those_that_a_model_can_ask_for():
    allowed = yaml.safe_load((ROOT / "conf/config.yaml").read_text())["model"]["resources"]["allowed"]
    assert allowed["device_type"]["enum"] == list(price.PEAKS)
