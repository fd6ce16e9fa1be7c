"""trainer.rollout=vllm without vLLM: what is refused, what verl is told. tests/cluster/test_verl_vllm.py runs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher.application import shape
from tests.configuration import configuration
from tests.trainer_ext.twins import write_read
from tests.wording import Worded
from trainer_ext import metrics
from trainer_ext.backends.verl_ray import servers
from trainer_ext.fits import sizes
from trainer_ext.fits.architectures import Architecture

VLLM = ("trainer=verl_ray", "trainer.rollout=vllm")


def installed(monkeypatch: pytest.MonkeyPatch, vllm: Any) -> None:
    """vllm: what is found of it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: vllm if name == "vllm" else find(name))


@pytest.fixture
def with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM were installed."""
    installed(monkeypatch, SimpleNamespace())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Folders with what is read of models before they are loaded."""
    return write_read(tmp_path_factory.mktemp("read"))


def refusals(*overrides: str) -> list[str]:
    return [str(one) for one in sizes.misfits(configuration(*VLLM, *overrides))]


def test_an_environment_without_vllm_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    (found,) = refusals("model.heads=2")
    assert "trainer.rollout = vllm: vLLM is not installed for " in found
    assert "Fix: make setup-gpu, and launch with .venv-gpu/bin/python; or set trainer.rollout=hf" in found
    assert list(sizes.of_vllm(configuration("trainer=verl_ray"))) == []
    assert list(sizes.of_vllm(configuration("trainer=in_process"))) == []


EIGHT = "model.heads=2 model.resources.devices=8"


@pytest.mark.usefixtures("with_vllm")
def test_heads_that_vllm_does_not_have_and_parts_of_ranks_are_refused(worded: Worded) -> None:
    assert refusals("model.heads=2") == refusals(*EIGHT.split(), "model.parallel.tensor=4") == []
    small, parts = "model.heads=2 model.hidden_size=16", "model.heads=2 model.parallel.tensor=2"
    for words in ("model.heads=4", small, f"{EIGHT} model.parallel.tensor=3", parts):
        worded(refusals(*words.split()))


@pytest.mark.usefixtures("with_vllm")
@pytest.mark.parametrize(("heads", "tensor", "fit"), [
    ((28, 4), 8, 4), ((14, 2), 4, 2), ((12, 2), 16, 4), ((12, 3), 2, 1), ((32, 4), 8, 8), ((28, 4), 4, 4),
])  # fmt: skip
def test_a_server_is_shared_by_a_divisor_of_the_ranks_and_of_the_heads(heads, tensor, fit) -> None:
    config = configuration(*VLLM, *EIGHT.split(), f"model.parallel.tensor={tensor}")
    found = [str(one) for one in sizes.misfits(config, Architecture("llama", 100, 64, 96, 1, *heads, 4, 64, False))]
    said = f"Fix: make it a divisor of 8 and of the {heads[0]} heads of the model, such as {fit}"
    assert found == [] if fit == tensor else found[0].endswith(said)


@pytest.mark.usefixtures("with_vllm")
def test_a_target_that_reads_other_tokens_is_refused(models, worded) -> None:
    """Only the run can read a tokenizer that is not in the folder."""
    for target, method in (("target", "q_star"), ("bare", "q_star"), ("llama", "q_star"), ("llama", "sft")):
        paths = (f"model.path={models['policy']}", f"method.target_path={models[target]}")
        found = refusals("model=pretrained", f"method={method}", *paths)
        worded(line.replace(str(Path(models["policy"]).parent), "{models}") for line in found)


def test_a_server_of_the_policy_gets_its_weights_before_the_first_step(models) -> None:
    config = configuration(*VLLM, "method=c0_grpo", "verl.actor_rollout_ref.rollout.max_num_seqs=9000")
    found = servers.vllm_section(config, models["policy"], None)
    length = config["verl"].data.max_prompt_length + config["verl"].data.max_response_length
    assert (found["max_model_len"], found["max_num_batched_tokens"]) == (length, 9000)
    assert (found["load_format"], found["logprobs_mode"]) == ("dummy", "processed_logprobs")
    assert (found["free_cache_engine"], found["enable_sleep_mode"], found["enforce_eager"]) == (False, False, True)
    assert found["engine_kwargs"] == {"vllm": {"generation_config": "vllm"}}
    assert servers.sleep_level(found["engine_kwargs"]["vllm"]) is None


@pytest.mark.parametrize(("method", "count", "level"), [("q_star", 0, 0), ("q_star", 8, 1), ("sft", 8, 1)])
def test_a_server_with_a_target_holds_both_models_and_keeps_them_when_it_sleeps(models, method, count, level) -> None:
    config = configuration(*VLLM, f"method={method}", "model=pretrained", f"model.path={models['policy']}")
    config["model"]["resources"]["devices"] = count
    found = servers.vllm_section(config, models["policy"], models["target"])
    own = found["engine_kwargs"]["vllm"]
    assert found["load_format"] == "auto" and found["enable_sleep_mode"] == bool(count)
    settings = own["hf_overrides"]["qstar"]
    assert own["hf_overrides"]["architectures"] == ["QStarForCausalLM"] and settings["target"] == models["target"]
    assert servers.sleep_level(own) == settings["sleep_level"] == level


def test_a_start_refuses_a_target_that_the_plan_could_not_read(models) -> None:
    config = configuration(*VLLM, "method=q_star")
    with pytest.raises(ValueError, match=r"bare: the folder has no tokenizer\.json or .*, so nothing says"):
        servers.vllm_section(config, models["policy"], models["bare"])


def test_two_runs_on_one_machine_have_different_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for token in ("a" * 64, "b" * 64):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        for run in {servers.run_of(job, address) for job in ("01", "02") for address in ("127.0.0.1:1", "127.0.0.1:2")}:
            names |= {servers.weights_socket(run, replica, rank) for replica in range(2) for rank in range(2)}
    assert len(names) == 32 and all(len(name.removeprefix("ipc://")) < 107 for name in names)
    assert not any("a" * 8 in name for name in names)  # the token stays secret


def test_a_cluster_is_asked_for_the_memory_of_the_servers() -> None:
    one, two = (configuration(*VLLM, f"trainer.ranks={ranks}") for ranks in (1, 2))
    plain = configuration("trainer=verl_ray", "trainer.ranks=1")
    assert shape(one).memory_gb == shape(plain).memory_gb + 4
    assert shape(two).memory_gb == shape(plain).memory_gb + 1 + 2 * 4


def test_differences_are_of_probabilities_and_of_valid_tokens_alone() -> None:
    old, server = torch.tensor([[0.5, 0.25, 0.9]]).log(), torch.tensor([[0.4, 0.25, 0.1]]).log()
    found = metrics.probability_differences(old, server, torch.tensor([[True, True, False]]))
    assert found == pytest.approx({"rollout/probs_diff_max": 0.1, "rollout/probs_diff_mean": 0.05}, abs=1e-7)
