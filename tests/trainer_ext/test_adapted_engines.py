"""verl's engine with adapters (LoRA), on one rank and on two: beside peft alone, saved, resumed and exported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.configuration import configuration
from tests.trainer_ext.engines import batch_of, engine_of, on_ranks
from tests.trainer_ext.twins import config_of, tokenizer_of
from trainer_ext.backends import protocol
from trainer_ext.backends.in_process import platform

ADAM = "verl.actor_rollout_ref.actor.optim"
RANK, ALPHA, RATE, SEED = 3, 12, 1e-2, 5
LINEAR = {"gpt2": ["c_attn", "c_proj", "c_fc"], "qwen2": ["q_proj", "v_proj"]}
ROWS = [[5, 9, 4, 7], [6, 3, 8], [11, 4, 6, 9, 2], [7, 7, 3]]


def base(folder: Path, family: str) -> Path:
    """A random model with tied weights: of linear layers, or of GPT-2's, whose weights are transposed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = AutoModelForCausalLM.from_config(config_of(family, tokenizer_of(family)))
    module.save_pretrained(folder / "base")
    tokenizer_of(family).save_pretrained(folder / "base")
    return folder / "base"


def run_of(model: Path, family: str) -> dict[str, Any]:
    lora = "verl.actor_rollout_ref.model"
    own = [f"{lora}.lora_rank={RANK}", f"{lora}.lora_alpha={ALPHA}"]
    own += [f"{lora}.target_modules=[{','.join(LINEAR[family])}]"] if family != "gpt2" else []  # all of GPT-2's
    own += ["model=pretrained", f"model.path={model}", f"{ADAM}.lr={RATE}", f"{ADAM}.clip_grad=1000", f"seed={SEED}"]
    return configuration("trainer=verl_ray", "method=c0_grpo", *own)


def likelihood(model_output: Mapping[str, Tensor], data: Any, dp_group: Any) -> tuple[Tensor, dict[str, Any]]:
    from verl.utils import tensordict_utils as tu

    total = torch.stack([row[:-1].sum() for row in model_output["log_probs"].unbind()]).sum()
    return -total * tu.get_non_tensor_data(data, "dp_size", 1) / len(ROWS), {}


def step(engine: Any, rank: int = 0, ranks: int = 1) -> None:
    """The reference's log-probabilities first, as DPO on pairs of the task computes them; then an update."""
    with engine.eval_mode(), engine.disable_adapter():
        engine.infer_batch(batch_of(ROWS[rank::ranks]))
    with engine.train_mode():
        engine.train_batch(batch_of(ROWS[rank::ranks]), likelihood)


def log_probs(module: Any) -> Tensor:
    """Of all rows' tokens, one forward pass each."""
    found = []
    for row in ROWS:
        logits = module(input_ids=torch.tensor([row])).logits[0, :-1]
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(row[1:])[:, None])[:, 0])
    return torch.cat(found)


def scored(engine: Any) -> Tensor:
    with engine.eval_mode():
        output = engine.infer_batch(batch_of(ROWS))["model_output"]["log_probs"]
    return torch.cat([row[:-1] for row in output.unbind()])


def trained(module: Any) -> dict[str, Tensor]:
    from trainer_ext.backends.verl_ray.adapters import _whole

    return {name: _whole(p.detach()).clone() for name, p in module.named_parameters() if p.requires_grad}


def apart(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    assert one.keys() == two.keys() and one
    return max(float((value - two[name]).abs().max()) for name, value in one.items())


@pytest.mark.train
@pytest.mark.parametrize("family", LINEAR)
def test_it_trains_as_peft_does_and_its_reference_is_the_model_itself(tmp_path: Path, family: str) -> None:
    model = base(tmp_path, family)
    platform.start_process_group()
    engine = engine_of(run_of(model, family))
    assert type(engine).__name__ == "AdaptedEngine"
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    at_first = log_probs(plain).detach()
    assert torch.allclose(scored(engine), at_first, atol=1e-6)  # adapters begin without effect
    first = trained(engine.module)
    settings = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules=LINEAR[family])
    alone = get_peft_model(plain, settings)
    alone.load_state_dict(first, strict=False)
    mine = [parameter for parameter in alone.parameters() if parameter.requires_grad]
    assert {name.split(".")[-4] for name in first} == set(LINEAR[family])
    decay = float(engine.optimizer.param_groups[0]["weight_decay"])
    optimizer = torch.optim.AdamW(mine, lr=RATE, weight_decay=decay)
    for _ in range(3):
        step(engine)
        optimizer.zero_grad()
        (-log_probs(alone).sum() / len(ROWS)).backward()
        optimizer.step()
    assert apart(trained(engine.module), first) > RATE
    assert apart(trained(engine.module), trained(alone)) < 1e-5
    assert torch.allclose(scored(engine), log_probs(alone), atol=1e-4)
    with engine.disable_adapter():
        assert torch.allclose(scored(engine), at_first, atol=1e-6)
    sent, none = engine.get_per_tensor_param()
    weights = dict(sent)
    whole = alone.merge_and_unload()
    assert none is None and weights.keys() == whole.state_dict().keys()
    assert apart(weights, whole.state_dict()) < 1e-5
    other = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    other.load_state_dict(weights)
    assert torch.allclose(log_probs(other), scored(engine), atol=1e-5)


def _rank(folder: str, rank: int, ranks: int) -> None:
    from trainer_ext.backends.verl_ray import shards

    platform.use()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group("cpu:gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # the adapters do not depend on it
    engine = engine_of(run_of(Path(folder, "base"), "qwen2"))
    for number in (1, 2, 3):
        step(engine, rank, ranks)
        shards.save(Path(folder, str(number), "actor"), engine, rank, ranks)
    shards.load(Path(folder, "2", "actor"), engine, rank, ranks)
    step(engine, rank, ranks)
    shards.save(Path(folder, "again", "actor"), engine, rank, ranks)
    weights = dict(engine.get_per_tensor_param()[0])
    torch.save(weights, Path(folder, f"sent-{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.train
def test_two_ranks_are_one_resumed_they_have_the_same_bits_and_an_export_has_the_merged_weights(tmp_path: Path) -> None:
    from trainer_ext.backends.verl_ray import shards

    model = base(tmp_path, "qwen2")
    on_ranks(_rank, tmp_path, 240)

    def files(name: str) -> dict[Path, bytes]:
        folder = tmp_path / name
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.safetensors")}

    assert files("3") == files("again") != files("2")
    part = load_file(tmp_path / "2" / "actor" / "rank00001-of-00002" / "weights.safetensors")
    assert part and all(".lora_" in name for name in part)  # nothing of the model itself

    platform.start_process_group()
    config = run_of(model, "qwen2")
    engine = engine_of(config)
    for _ in range(3):
        step(engine)
    end = shards.whole_weights(tmp_path / "3" / "actor")
    assert apart(trained(engine.module), end) < 1e-5
    shards.load(tmp_path / "2" / "actor", engine, 0, 1)
    assert apart(trained(engine.module), shards.whole_weights(tmp_path / "2" / "actor")) == 0.0
    step(engine)
    assert apart(trained(engine.module), end) < 1e-5

    (tmp_path / "out").mkdir()
    protocol.export(config, tmp_path / "3", tmp_path / "cache", tmp_path / "out", "float32")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    sent = [torch.load(tmp_path / f"sent-{rank}.pt") for rank in range(2)]
    assert apart(*sent) == 0.0
    assert apart(exported.state_dict(), sent[0]) < 1e-7
    assert apart(exported.state_dict(), AutoModelForCausalLM.from_pretrained(model).state_dict()) > 1e-3
    config["verl"].actor_rollout_ref.model.target_modules = "all-linear"
    with pytest.raises(ValueError, match="the checkpoint's parameters are not those of the model"):
        protocol.export(config, tmp_path / "3", tmp_path / "cache", tmp_path / "out", "float32")


def test_an_unknown_layer_is_named_with_those_that_the_model_has(tmp_path: Path) -> None:
    from trainer_ext.backends.verl_ray import adapters

    model = base(tmp_path, "gpt2")
    settings = run_of(model, "gpt2")["verl"].actor_rollout_ref.model
    # each of two layers: from 32 numbers to 96, to 32, to 128, and from 128 to 32
    assert adapters.count(str(model), settings) == 2 * RANK * (128 + 64 + 160 + 160)
    settings.target_modules = ["c_attn", "lm_head"]
    with pytest.raises(ValueError, match=r"no linear layer lm_head below its head\. Fix: use all-linear, or some"):
        adapters.count(str(model), settings)
