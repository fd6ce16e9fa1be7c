"""The policy in training: verl's TrainingWorker and FSDP2 engine over padded batches, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoConfig, LlamaConfig

from trainer_ext.backends import cpu

cpu.use()  # before verl's engines read the device's name

# verl warns of every engine whose packages are not installed; none of them is wanted here
warnings.filterwarnings("ignore", r".*engine is not available", UserWarning)

from verl.utils import hf_tokenizer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.model import get_hf_auto_model_class  # noqa: E402
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits  # noqa: E402
from verl.workers.config import TrainingWorkerConfig  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.engine_workers import TrainingWorker  # noqa: E402

# Asking verl for a model's class loads the configuration of every kind of model: once here, not in every fork.
get_hf_auto_model_class(LlamaConfig(architectures=["LlamaForCausalLM"]))

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]


@EngineRegistry.register("language_model", ["fsdp2"], device="cpu")
@EngineRegistry.register("language_model", ["fsdp2"], device="cuda", vendor="nvidia")
class PaddedEngine(FSDPEngineWithLMHead):
    """verl's FSDP2 engine on padded batches, for sequences so short that packing costs more than it saves.

    The head is applied to the response's positions alone, so `log_probs` and `entropy` are (B, T) as the losses want
    them. It also keeps each micro-batch's gradient long enough to measure how much they differ (`grad_variance`).
    """

    def initialize(self) -> None:
        super().initialize()
        # Of this mini-batch: each micro-batch adds its share of the mean gradient.
        self._accumulated: Tensor | None = None
        self._forwards, self._share_squares = 0, 0.0
        # Of all mini-batches since take_grad_variance.
        self._gradient_sum: Tensor | None = None
        self._square_sum, self._gradient_count = 0.0, 0

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        length = micro_batch["responses"].shape[1]
        inputs = {
            "input_ids": micro_batch["input_ids"],
            "attention_mask": micro_batch["attention_mask"],
            "position_ids": micro_batch["position_ids"],
            "logits_to_keep": length + 1,  # each position predicts the next one
        }
        return inputs, {}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        logits = output.logits[:, :-1].float()
        temperature = tu.get_non_tensor_data(micro_batch, "temperature", 1.0)
        if temperature != 1.0:
            logits = logits / temperature
        outputs = {"log_probs": logprobs_from_logits(logits, micro_batch["responses"], inplace_backward=False)}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            outputs["entropy"] = entropy_from_logits(logits)
        return outputs

    def optimizer_zero_grad(self) -> None:
        super().optimizer_zero_grad()
        self._accumulated, self._forwards, self._share_squares = None, 0, 0.0

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        if not forward_only:
            if self._forwards:
                self._take_gradient()
            self._forwards += 1
        return super().forward_step(micro_batch, loss_function, forward_only)

    def optimizer_step(self) -> float:
        self._take_gradient()
        # A micro-batch's own mean gradient is n times its share: their sum is n times what has accumulated.
        n, total = self._forwards, self._accumulated
        assert total is not None
        self._gradient_sum = n * total if self._gradient_sum is None else self._gradient_sum.add_(total, alpha=n)
        self._square_sum += n**2 * self._share_squares
        self._gradient_count += n
        return float(super().optimizer_step())

    def _take_gradient(self) -> None:
        total = torch.cat([_local(p.grad).flatten() for p in self.module.parameters() if p.grad is not None])
        share = total if self._accumulated is None else total - self._accumulated
        self._share_squares += _square(share)
        self._accumulated = total

    def take_grad_variance(self) -> float | None:
        """Unbiased variance of the gradient over the micro-batches since the last call, summed over the parameters.

        None with fewer than two micro-batches. The gradients are those before clipping.
        """
        total, squares, count = self._gradient_sum, self._square_sum, self._gradient_count
        self._gradient_sum, self._square_sum, self._gradient_count = None, 0.0, 0
        if total is None or count < 2:
            return None
        return max(0.0, (squares - _square(total) / count) / (count - 1))


def _square(vector: Tensor) -> float:
    return float((vector * vector).sum(dtype=torch.float64))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Actor:
    """A policy that can be updated; its weights are shared with the modules that sample from it."""

    def __init__(self, verl: DictConfig, model_path: str, total_steps: int):
        """Load `model_path` (a folder) as verl's whole tree says, for a schedule of `total_steps` steps."""
        cpu.start_process_group()
        tree = OmegaConf.create(OmegaConf.to_container(verl.actor_rollout_ref, resolve=False))
        tree._set_parent(verl)  # interpolations are absolute
        with open_dict(tree):
            tree.model.path = model_path
            tree.model.load_tokenizer = False  # it would look for processors of images and sound too
            tree.model.use_remove_padding = False
            # Dropout would make the ratio of a policy to itself differ from 1, and draw from a generator of its own.
            plain = AutoConfig.from_pretrained(model_path, trust_remote_code=tree.model.trust_remote_code).to_dict()
            tree.model.override_config = {name: 0.0 for name in plain if "dropout" in name or name.endswith("pdrop")}
            tree.model.override_config.attn_implementation = "sdpa"
            tree.actor.strategy = tree.actor.fsdp_config.strategy = "fsdp2"
            # The sampler shares these weights; computing in another type would give it other log-probabilities.
            tree.actor.fsdp_config.mixed_precision = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
            if not torch.cuda.is_available():
                tree.actor.fsdp_config.use_torch_compile = False
                tree.model.enable_gradient_checkpointing = False
            tree.actor.fsdp_config.reshard_after_forward = False  # one rank: nothing to free
            # each micro-batch's gradient must arrive for its variance to be measured; one rank has nothing to defer
            tree.actor.fsdp_config.use_no_sync_for_gradient_accumulation = False
            tree.actor.optim.total_training_steps = total_steps
        self.config = omega_conf_to_dataclass(tree.actor)
        self.model_config = omega_conf_to_dataclass(tree.model)
        self.tokenizer = hf_tokenizer(model_path, trust_remote_code=self.model_config.trust_remote_code)
        engine = self.config.engine
        engine.use_dynamic_bsz = False
        engine.micro_batch_size_per_gpu = self.config.ppo_micro_batch_size_per_gpu
        self.worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=self.model_config,
                engine_config=engine,
                optimizer_config=self.config.optim,
                checkpoint_config=self.config.checkpoint,
            )
        )
        self.worker.reset()

    @property
    def engine(self) -> PaddedEngine:
        return self.worker.engine

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, as the very memory that the optimizer writes."""
        return {name: _local(tensor.detach()) for name, tensor in self.engine.module.named_parameters()}

    def update(self, batch: TensorDict, loss: Loss, **info: Any) -> dict[str, Any]:
        """One optimizer step on `batch`, in micro-batches of the configured size.

        batch: columns input_ids, attention_mask, position_ids (B, P + T), responses and loss_mask (B, T), and those of
        the loss; info: plain values that engine and loss read (temperature, global_batch_size).
        Returns the loss's metrics.
        """
        size = min(self.config.ppo_micro_batch_size_per_gpu, len(batch))
        if len(batch) % size:
            raise ValueError(
                f"verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={size} does not divide a mini-batch of "
                f"{len(batch)} responses (ppo_mini_batch_size prompts times rollout.n): make it a divisor"
            )
        tu.assign_non_tensor(batch, micro_batch_size_per_gpu=size, use_dynamic_bsz=False, **info)
        self.worker.set_loss_fn(loss)
        return dict(tu.get(self.worker.train_batch(batch), "metrics"))
