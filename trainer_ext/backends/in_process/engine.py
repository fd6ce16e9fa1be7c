"""The policy in training, and a critic: verl's FSDP engines on padded batches, in this process."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoConfig, AutoModelForTokenClassification, LlamaConfig

from trainer_ext.backends.in_process import linear, platform
from trainer_ext.backends.in_process.batch import Batch

platform.use()  # before verl's engines read the device's name

# verl warns of each engine whose packages are not installed; none of them is used here
warnings.filterwarnings("ignore", r".*engine is not available", UserWarning)


def _import_on_use(package: str) -> None:
    """Let modules of a package be imported before its __init__ has run; that runs when a name of it is asked for."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    assert spec and spec.loader  # verl is installed
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def load(name: str) -> Any:
        if name.startswith("__"):  # whoever looks through all modules, such as inspect
            raise AttributeError(name)
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, name)

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    setattr(sys.modules[parent], name, module)


# verl's engines import an enumeration from it; its __init__ imports datasets and pandas: 85 MB and half a second
_import_on_use("verl.utils.dataset")

from verl.utils import hf_tokenizer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.model import get_hf_auto_model_class  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402

from trainer_ext.backends.in_process.logits import entropy, log_probs  # noqa: E402
from trainer_ext.fits import devices  # noqa: E402
from trainer_ext.fits.architectures import causal_models  # noqa: E402
from trainer_ext.methods.losses import Loss  # noqa: E402

# Asking verl for a model's class loads the configuration of every kind of model: once here, not in every fork.
get_hf_auto_model_class(LlamaConfig(architectures=["LlamaForCausalLM"]))


#: Before the names of our engines: under verl's own names they would replace verl's engines everywhere.
_PADDED = "rlsweep_padded_"
_EVERYWHERE = {"backend": ["fsdp2"], "device": ["cpu", "cuda"]}


class _OnPaddedBatches(FSDPEngineWithLMHead):
    """verl's FSDP2 engine on padded batches, for sequences so short that packing costs more than it saves.

    With one rank there is nothing to shard: the module stays as it is, because FSDP2 would copy all weights and
    gradients of each micro-batch.
    """

    def _build_fsdp_module(self, module: Any) -> Any:
        if self._is_offload_param:  # only FSDP2's module can leave the device
            return super()._build_fsdp_module(module)
        self._autocast_dtype, self.scaler = torch.float32, None
        return module.to(devices.kind())

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: micro_batch[name] for name in ("input_ids", "attention_mask", "position_ids")}, {}


@EngineRegistry.register(f"{_PADDED}language_model", **_EVERYWHERE)
class PaddedEngine(_OnPaddedBatches):
    """The policy's engine: `log_probs` and `entropy` of the responses, (B, T) as the losses want them.

    The head is applied to the response's positions alone.
    """

    def _build_module(self) -> Any:
        self.model_config.model_type = "language_model"  # verl's method reads it to choose a class of transformers
        return linear.use(super()._build_module())

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, more = super().prepare_model_inputs(micro_batch)
        length = micro_batch["responses"].shape[1]
        return {**inputs, "logits_to_keep": length + 1}, more  # each position predicts the next one

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        logits = output.logits[:, :-1].float()
        temperature = tu.get_non_tensor_data(micro_batch, "temperature", 1.0)
        if temperature != 1.0:
            logits = logits / temperature
        outputs = {"log_probs": log_probs(logits, micro_batch["responses"])}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            outputs["entropy"] = entropy(logits)
        return outputs


class GradVariance:
    """Follows an engine of verl through its updates, and sums up the gradients of its micro-batches.

    On several ranks, an engine has a part of each gradient, and the k-th micro-batches of all ranks are one gradient,
    their mean. Its variance times the number of ranks is the variance of a micro-batch's own gradient, if the rows of a
    mini-batch are dealt to the ranks without regard to their gradients.

    Two further copies of the gradients stay in memory during an update, and one afterwards.
    """

    def __init__(self, engine: Any):
        """engine: with its module, and before its first update; it must add up the ranks' gradients at once."""
        self._engine = engine
        # Of this mini-batch: each micro-batch adds its share of the mean gradient.
        self._total: dict[Any, Tensor] = {}
        self._forwards, self._share_squares = 0, 0.0
        # Of all mini-batches since `take`.
        self._gradient_sum: dict[Any, Tensor] = {}
        self._square_sum, self._gradient_count = 0.0, 0
        before = {"optimizer_zero_grad": self._start, "forward_step": self._forward, "optimizer_step": self._step}
        for name, setting in before.items():
            setattr(engine, name, _after(setting, getattr(engine, name)))

    def _start(self, *_: Any, **__: Any) -> None:
        self._total, self._forwards, self._share_squares = {}, 0, 0.0

    def _forward(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> None:
        if not forward_only:
            if self._forwards:
                self._take_gradient()
            self._forwards += 1

    @torch.no_grad()
    def _step(self) -> None:
        self._take_gradient()
        # A micro-batch's mean gradient is n times its share, so the sum of all is n times the total.
        n = self._forwards
        for parameter, total in self._total.items():
            parameter.grad = total
            if parameter in self._gradient_sum:
                self._gradient_sum[parameter].add_(total, alpha=n)
            else:
                self._gradient_sum[parameter] = n * total
        self._total = {}
        self._square_sum += n**2 * self._share_squares
        self._gradient_count += n

    @torch.no_grad()
    def _take_gradient(self) -> None:
        """Move the gradient of a micro-batch from the parameters into the total, where it is added as autograd does."""
        for parameter in self._engine.module.parameters():
            if (gradient := parameter.grad) is None:
                continue
            self._share_squares += _square(local(gradient))
            self._total[parameter] = self._total[parameter].add_(gradient) if parameter in self._total else gradient
            parameter.grad = None

    def take(self) -> float | None:
        """Unbiased variance of the gradient over the micro-batches since the last call, summed over the parameters.

        None with fewer than two micro-batches on a rank. The gradients are those before clipping. All ranks call it.
        """
        sums, squares, count = self._gradient_sum, self._square_sum, self._gradient_count
        self._gradient_sum, self._square_sum, self._gradient_count = {}, 0.0, 0
        if count < 2:
            return None
        ranks = int(self._engine.get_data_parallel_size())
        of_mean = sum(_square(local(total)) for total in sums.values())
        if ranks > 1:
            device = torch.cuda.current_device() if dist.get_backend() == dist.Backend.NCCL else "cpu"
            parts = torch.tensor([squares, of_mean], dtype=torch.float64, device=device)
            dist.all_reduce(parts)
            squares, of_mean = parts.tolist()
        return ranks * max(0.0, (squares - of_mean / count) / (count - 1))


def _after(first: Any, then: Any) -> Any:
    """A function that calls both with what it is given, and returns what the second returns."""

    def both(*given: Any, **named: Any) -> Any:
        first(*given, **named)
        return then(*given, **named)

    return both


def value_module(model_config: Any, with_weights: bool = True) -> Any:
    """A critic's module, from verl's configuration of its model: a value head, which starts at 0, on the model's body.

    with_weights: read them; otherwise the module is on the meta device, for a rank that gets its part from another.
    verl's own requires flash attention and draws the head at random.
    """
    config = model_config.hf_config
    config.num_labels, config.classifier_dropout = 1, 0.0
    more = {"dtype": torch.float32, "trust_remote_code": model_config.trust_remote_code}
    if with_weights:
        module = AutoModelForTokenClassification.from_pretrained(model_config.local_path, config=config, **more)
    else:
        with torch.device("meta"):
            module = AutoModelForTokenClassification.from_config(config, **more)
    head = module.score if hasattr(module, "score") else module.classifier  # GPT-2's name
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    if model_config.enable_gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module


@EngineRegistry.register(f"{_PADDED}value_model", **_EVERYWHERE)
class PaddedValueEngine(_OnPaddedBatches):
    """A critic's engine: `values` (B, T), each before its token is known."""

    def _build_module(self) -> Any:
        return linear.use(value_module(self.model_config))

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        length = micro_batch["responses"].shape[1]
        return {"values": output.logits[:, -length - 1 : -1, 0].float()}


def _square(vector: Tensor) -> float:
    return float((vector * vector).sum(dtype=torch.float64))


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Trained:
    """A model that an engine of verl updates on padded batches, and whose weights can be read and written.

    verl's TrainingWorker around an engine gathers metrics of all ranks and counts operations. It also imports Ray's
    actors and HTTP servers.
    """

    def __init__(self, kind: str, tree: DictConfig):
        """kind: after _PADDED, the kind of the engine; tree: of `_tree`."""
        self.config, self.model_config = omega_conf_to_dataclass(tree.actor), omega_conf_to_dataclass(tree.model)
        self.model_config.model_type = f"{_PADDED}{kind}"
        engine = self.config.engine
        engine.use_dynamic_bsz, engine.micro_batch_size_per_gpu = False, self.config.ppo_micro_batch_size_per_gpu
        self.engine = EngineRegistry.new(
            model_type=self.model_config.model_type,
            backend=engine.strategy,
            model_config=self.model_config,
            engine_config=engine,
            optimizer_config=self.config.optim,
            checkpoint_config=self.config.checkpoint,
        )
        self.engine.initialize()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.engine.optimizer.param_groups[0]["lr"])

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name; they share the memory that the optimizer writes."""
        return {name: local(tensor.detach()) for name, tensor in self.engine.module.named_parameters()}

    def update(self, batch: TensorDict, loss: Loss, ends_step: bool = False, **info: Any) -> dict[str, Any]:
        """One optimizer step on `batch`, in micro-batches of the configured size; ends_step: the last one of a step,
        after which the learning rate is that of the next.

        batch: columns input_ids, attention_mask, position_ids (B, P + T), responses and loss_mask (B, T), and those of
        the loss; info: plain values that engine and loss read (temperature, global_batch_size).
        Returns the loss's metrics.
        """
        size = min(self.engine.engine_config.micro_batch_size_per_gpu, len(batch))
        tu.assign_non_tensor(batch, micro_batch_size_per_gpu=size, use_dynamic_bsz=False, **info)
        with self.engine.train_mode():
            metrics = self.engine.train_batch(batch, loss_function=loss)["metrics"]
        if ends_step:
            self.engine.lr_scheduler_step()
        return dict(metrics)


class Actor(Trained):
    """A policy that can be updated; its weights are shared with the modules that sample from it."""

    def __init__(self, verl: DictConfig, model_path: str, total_steps: int):
        """Load `model_path` (a folder) as verl's whole tree says, for a schedule of `total_steps` steps."""
        super().__init__("language_model", _tree(verl, model_path, total_steps))
        self.tokenizer = load_tokenizer(model_path, verl.actor_rollout_ref.model)
        self.grad_variance = GradVariance(self.engine)


class Critic(Trained):
    """A value function for PPO: a copy of the starting model, with the actor's configuration but for the rate."""

    def __init__(self, verl: DictConfig, model_path: str, total_steps: int, lr_ratio: float):
        """lr_ratio: the ratio of its learning rate to the actor's."""
        tree = _tree(verl, model_path, total_steps)
        with open_dict(tree):
            tree.actor.optim.lr = lr_ratio * tree.actor.optim.lr
        super().__init__("value_model", tree)

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """The value before each token of the responses, (B, T); 0 where the mask is false."""
        values = []
        with self.engine.eval_mode():
            for part in batch.columns().split(self.config.ppo_micro_batch_size_per_gpu):
                inputs, _ = self.engine.prepare_model_inputs(part)
                output = self.engine.module(**inputs, use_cache=False)
                values.append(self.engine.prepare_model_outputs(output, {}, part, None)["values"])
        return torch.cat(values) * batch.mask


def _tree(verl: DictConfig, model_path: str, total_steps: int) -> DictConfig:
    """verl's `actor_rollout_ref` section for a model that is trained in this process."""
    platform.start_process_group()
    tree = deepcopy(verl.actor_rollout_ref)
    with open_dict(tree):
        tree.model.path = model_path
        tree.model.load_tokenizer = False  # verl would also look for processors of images and sound
        tree.model.custom_chat_template = None  # verl would give it to the tokenizer that it has not loaded
        tree.model.lora_rank = 0  # models that runs share, such as the starting one, are trained whole
        tree.model.use_remove_padding = False
        tree.model.override_config = model_overrides(model_path, tree.model.trust_remote_code)
        tree.actor.strategy = tree.actor.fsdp_config.strategy = "fsdp2"
        # The sampler shares these weights; in another type the log-probabilities would differ from the sampler's.
        tree.actor.fsdp_config.mixed_precision = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
        if not torch.cuda.is_available():
            tree.actor.fsdp_config.use_torch_compile = False
            tree.model.enable_gradient_checkpointing = False
        tree.actor.fsdp_config.reshard_after_forward = False  # one rank: nothing to free
        # the variance needs the gradient of each micro-batch; with one rank there is no communication to save
        tree.actor.fsdp_config.use_no_sync_for_gradient_accumulation = False
        tree.actor.optim.total_training_steps = total_steps
        tree.actor.optim.betas = [*map(float, tree.actor.optim.betas)]  # 0 is an integer in YAML, which torch refuses
    return tree


def load_tokenizer(path: str, settings: Mapping[str, Any]) -> Any:
    """The tokenizer of a model's folder, with a token for padding in any case, and with the chat template that a run
    gives it. settings: verl's actor_rollout_ref.model."""
    tokenizer = hf_tokenizer(path, trust_remote_code=bool(settings["trust_remote_code"]))
    tokenizer.chat_template = settings["custom_chat_template"] or tokenizer.chat_template
    return tokenizer


def model_overrides(model_path: str, trust_remote_code: bool) -> dict[str, Any]:
    """What a trained model's own configuration is overridden with: no dropout, attention that every device has, and
    what verl reads of every model. Objection: the model cannot be trained.

    With dropout the ratio of a policy to itself would not be 1, and results would depend on one more generator. verl
    would also write the tokenizer's token for padding into the configuration. Where the tokenizer has none, that is the
    token that ends a response, and the embedding of the token for padding is not trained.
    """
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    causal_models.check(config)
    plain = config.to_dict()
    changed: dict[str, Any] = {name: 0.0 for name in plain if "dropout" in name or name.endswith("pdrop")}
    changed["attn_implementation"] = causal_models.attention(config, trust_remote_code)
    changed["pad_token_id"] = plain.get("pad_token_id")
    if plain.get("num_key_value_heads") is None:  # of GPT-2 and GPT-NeoX, for example; verl reads it of every model
        changed["num_key_value_heads"] = config.num_attention_heads  # by whatever name config.json has it
    # verl has no head for GPT2LMHeadModel
    if not any("ForCausalLM" in name for name in plain.get("architectures") or ()):
        changed["architectures"] = ["ForCausalLM"]
    return changed
