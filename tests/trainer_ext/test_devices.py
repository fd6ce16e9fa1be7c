"""Devices of `trainer=verl_ray` as far as a machine without a GPU shows them: settings, weights, shared sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from launcher.run import lifecycle
from tests.configuration import configuration
from trainer_ext.backends.in_process import engine, platform, trainer  # noqa: F401  (registers the parts of a method)
from trainer_ext.backends.verl_ray import servers
from trainer_ext.backends.verl_ray.tree import whole_tree
from trainer_ext.fits import devices
from trainer_ext.methods.update import Method

LENGTHS = [5, 1, 9, 4]  # of the packed sequences; together no multiple of the ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small model."""
    folder = tmp_path_factory.mktemp("model")
    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "architectures": ["LlamaForCausalLM"]}
    LlamaForCausalLM(LlamaConfig(**small, **heads)).save_pretrained(folder)
    return str(folder)


def tree(model: str, *overrides: str) -> Any:
    """verl's tree of a run with a critic."""
    config = configuration("trainer=verl_ray", "method=c0_ppo", *overrides)
    nodes, _ = devices.asked(config["model"])
    return whole_tree(config, Method.read(config["method"], 10), model, None, nodes)


def test_verl_gets_the_devices_the_precision_and_how_the_model_is_shared(model: str) -> None:
    cpu = tree(model, "trainer.dtype=bfloat16", "model.parallel.rows=3")
    assert cpu.trainer.device == "cpu" and cpu.trainer.n_gpus_per_node == 1
    assert not cpu.actor_rollout_ref.model.use_remove_padding
    assert cpu.actor_rollout_ref.rollout.max_num_seqs == 3 and cpu.actor_rollout_ref.rollout.dtype == "bfloat16"
    vllm = tree(model, "trainer.rollout=vllm", "model.parallel.rows=3")
    assert vllm.actor_rollout_ref.rollout.max_num_seqs == 256  # rows are those of servers of transformers
    gpus = ["model.resources.devices=4", "model.resources.nodes=2"]
    gpu = tree(model, *gpus, "model.parallel.offload=true", "model.parallel.sequence=2")
    assert (gpu.trainer.device, gpu.trainer.n_gpus_per_node, gpu.trainer.nnodes) == ("cuda", 4, 2)
    assert gpu.actor_rollout_ref.model.use_remove_padding and gpu.actor_rollout_ref.model.enable_gradient_checkpointing
    for part in (gpu.actor_rollout_ref.actor.fsdp_config, gpu.actor_rollout_ref.ref.fsdp_config, gpu.critic.fsdp):
        assert part.offload_policy and part.ulysses_sequence_parallel_size == 2
        assert part.mixed_precision == {"param_dtype": "bfloat16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    # the four groups of two ranks share a mini-batch
    actor = gpu.actor_rollout_ref.actor
    assert actor.ppo_micro_batch_size_per_gpu <= actor.ppo_mini_batch_size * gpu.actor_rollout_ref.rollout.n // 4


@pytest.mark.parametrize("betas", ["[0,0.999]", "[0.9,0.0]"])
def test_torch_gets_betas_that_are_floats(model: str, betas: str) -> None:
    """It refuses a float beside an integer, which YAML has for 0."""
    words = ("method=c0_ppo", "trainer.steps=2", f"verl.actor_rollout_ref.actor.optim.betas={betas}")
    trained = engine.Trained("language_model", engine._tree(configuration(*words)["verl"], model, 2))
    given = [
        trained.engine.optimizer.param_groups[0]["betas"],
        tree(model, *words[1:]).actor_rollout_ref.actor.optim.betas,
    ]
    assert all([*map(type, pair)] == [float, float] for pair in given)


def test_processes_of_a_run_without_devices_see_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.environment("cpu") == {devices.KIND: "cpu", "CUDA_VISIBLE_DEVICES": ""}
    assert devices.environment("cuda") == {devices.KIND: "cuda"}
    monkeypatch.setenv(devices.KIND, "cuda")
    assert devices.kind() == "cuda"  # of the run, also in its processes that have no device themselves


def test_weights_are_handed_over_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of the server; a tensor larger than a part goes alone; the originals may change meanwhile."""
    monkeypatch.setattr(servers, "PART", 32)
    weights = {"a": torch.rand(8), "large": torch.rand(5, 7), "b": torch.rand(3), "c": torch.rand(())}
    parts = list(servers.parts(weights.items(), torch.bfloat16))
    assert [list(part) for part in parts] == [["a"], ["large"], ["b", "c"]]
    before = {name: tensor.bfloat16() for name, tensor in weights.items()}
    for tensor in weights.values():
        tensor.zero_()
    found = dict(pair for part in parts for pair in servers.received(servers.sent(part)))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())


def _log_probs(module: Any, tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = module(input_ids=tokens, position_ids=positions, attention_mask=None, use_cache=False).logits
    return torch.log_softmax(logits.float(), dim=-1)[0].gather(1, labels[0, :, None])[:, 0]


def _shared(rank: int, ranks: int, folder: str, model: str) -> None:
    """One of the ranks that share packed sequences; rank 0 writes the log-probabilities and a gradient."""
    platform.use()
    from verl.utils import ulysses

    from trainer_ext.backends.verl_ray.attention import PACKED

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{ranks}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(model)
    own = {"config": config, "state_dict": LlamaForCausalLM(config).state_dict(), "attn_implementation": PACKED}
    module = LlamaForCausalLM.from_pretrained(None, **own)
    tokens = torch.randint(0, config.vocab_size, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    labels = tokens.roll(-1, dims=1)
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD if ranks > 1 else None)
    pad = 0
    if ranks > 1:
        tokens, positions, pad = ulysses.ulysses_pad_and_slice_inputs(tokens, positions, ranks)
        labels, _, _ = ulysses.ulysses_pad_and_slice_inputs(labels, None, ranks)
    found = _log_probs(module, tokens, positions, labels)
    if ranks > 1:
        found = ulysses.gather_outputs_and_unpad(found, gather_dim=0, unpad_dim=0, padding_size=pad)
    found.square().sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
    dist.all_reduce(gradient)
    if rank == 0:
        torch.save((found.detach(), gradient / ranks), f"{folder}/found-{ranks}")
    dist.destroy_process_group()


@pytest.mark.train
def test_ranks_that_share_sequences_compute_what_one_computes(model: str, tmp_path: Path) -> None:
    """Ulysses over two ranks on gloo, and without: each sequence of a packed row as alone, and the same gradient."""
    for ranks in (1, 2):
        multiprocessing.spawn(_shared, (ranks, str(tmp_path), model), nprocs=ranks)
    one, two = (torch.load(tmp_path / f"found-{ranks}") for ranks in (1, 2))
    torch.testing.assert_close(two[0], one[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(two[1], one[1], atol=1e-5, rtol=1e-4)

    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig.from_pretrained(model))
    tokens = torch.randint(0, plain.config.vocab_size, (1, sum(LENGTHS)))
    labels = tokens.roll(-1, dims=1)
    parts = zip(tokens.split(LENGTHS, dim=1), labels.split(LENGTHS, dim=1), strict=True)
    alone = [_log_probs(plain, part, torch.arange(part.shape[1])[None], label) for part, label in parts]
    torch.testing.assert_close(one[0], torch.cat(alone).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.train
@pytest.mark.parametrize("kind", ["language_model", "value_model"])
def test_a_rank_in_half_precision_goes_on_from_its_checkpoint_with_the_same_bits(
    model: str, tmp_path: Path, kind: str
) -> None:
    """It computes in bfloat16, and its parameters and the optimizer's state are float32. A critic has our engine."""
    platform.use()
    platform.start_process_group()
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig

    from trainer_ext.backends.in_process import checkpoint
    from trainer_ext.backends.verl_ray.workers import ModelWorker

    whole = tree(model, "trainer.dtype=bfloat16").actor_rollout_ref
    OmegaConf.set_struct(whole, False)
    whole.model.load_tokenizer = False

    def worker() -> Any:
        actor, model = omega_conf_to_dataclass(whole.actor), omega_conf_to_dataclass(whole.model)
        own = {"engine": actor.engine, "optimizer": actor.optim, "checkpoint": actor.checkpoint, "model": model}
        settings = TrainingWorkerConfig(model_type=kind, **{f"{name}_config": value for name, value in own.items()})
        made = ModelWorker(config=settings)
        made.reset()
        return made

    def step(made: Any, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in made.engine.module.parameters():
            parameter.grad = torch.randn_like(parameter)
        made.engine.optimizer_step()
        made.engine.lr_scheduler_step()

    one, two = worker(), worker()
    step(one, 1)
    one.save_shards(str(tmp_path / "first"))
    two.load_shards(str(tmp_path / "first"))
    tokens = torch.arange(4)[None]
    outputs = [made.engine.module(input_ids=tokens, use_cache=False).logits for made in (one, two)]
    assert outputs[0].dtype == torch.bfloat16 and torch.equal(*outputs)
    for made, folder in ((one, "one"), (two, "two")):
        step(made, 2)
        made.save_shards(str(tmp_path / folder))
    for name in (checkpoint.WEIGHTS, checkpoint.OPTIMIZER):
        found = [load_file(tmp_path / folder / "rank00000-of-00001" / name) for folder in ("one", "two")]
        assert found[0].keys() == found[1].keys() and {x.dtype for x in found[0].values()} == {torch.float32}
        assert all(torch.equal(tensor, found[1][key]) for key, tensor in found[0].items())


def test_what_torch_says_on_a_full_disk_is_known():
    """The device that is always full stands for the disk."""
    with pytest.raises(RuntimeError) as raised:
        torch.save(torch.zeros(10**6), "/dev/full")
    assert lifecycle.kind_of(RuntimeError(str(raised.value)), {}) == "disk_full"
