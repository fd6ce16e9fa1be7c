"""Sampling and scoring with a Hugging Face module that shares the policy's weights: no copy, no FSDP, no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from verl.workers.config import HFModelConfig

from trainer_ext.backends.batch import Batch


@dataclass(frozen=True)
class Samples:
    """Responses with what the policy thought of them, all (B, T); zeros where the mask is false.

    collision: sum of the squared probabilities of the whole vocabulary.
    """

    batch: Batch
    log_probs: Tensor
    entropy: Tensor
    collision: Tensor


def load_module(path: str, config: HFModelConfig, weights: dict[str, Tensor] | None = None) -> Any:
    """A causal language model for inference from a folder, under the engine's own configuration of the model.

    With `weights` it shares that memory instead of its own.
    """
    module = AutoModelForCausalLM.from_pretrained(
        path, config=config.hf_config, dtype=torch.float32, trust_remote_code=config.trust_remote_code
    )
    if torch.cuda.is_available():
        module.cuda()
    module.eval().requires_grad_(False)
    for name, parameter in module.named_parameters():
        if weights is not None:
            parameter.data = weights[name]
    return module


@torch.no_grad()
def sample(
    module: Any,
    prompts: Tensor,
    prompt_mask: Tensor,
    *,
    n: int,
    length: int,
    temperature: float,
    eos_id: int,
    pad_id: int,
    generator: torch.Generator,
) -> Samples:
    """n responses of at most `length` tokens to each prompt, rows of one prompt adjacent.

    prompts, prompt_mask: (prompts, P), left-padded. The prompt is run once and its cache repeated for the group.
    Log-probabilities and entropies are those of the distribution sampled from, at `temperature` (above 0).
    FloatingPointError: the policy's logits are not numbers.
    """
    count, width = prompts.shape
    positions = (prompt_mask.long().cumsum(dim=1) - 1).clamp_min(0)
    output = module(
        input_ids=prompts,
        attention_mask=prompt_mask.long(),
        position_ids=positions,
        past_key_values=DynamicCache(config=module.config),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = output.past_key_values
    cache.batch_repeat_interleave(n)
    logits = output.logits[:, -1].repeat_interleave(n, dim=0)
    position = positions[:, -1:].repeat_interleave(n, dim=0)
    rows = count * n
    attention = torch.cat([prompt_mask.repeat_interleave(n, dim=0), prompt_mask.new_ones(rows, length)], dim=1).long()
    responses = prompts.new_full((rows, length), pad_id)
    mask = torch.zeros(rows, length, dtype=torch.bool, device=prompts.device)
    log_probs = torch.zeros(rows, length, device=prompts.device)
    entropy, collision = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
    alive = torch.ones(rows, dtype=torch.bool, device=prompts.device)
    for t in range(length):
        logp = torch.log_softmax(logits.float() / temperature, dim=-1)
        if not torch.isfinite(logp).all():
            raise FloatingPointError("logits")
        p = logp.exp()
        token = torch.multinomial(p, 1, generator=generator)
        responses[:, t] = torch.where(alive, token[:, 0], pad_id)
        mask[:, t] = alive
        log_probs[:, t] = torch.where(alive, logp.gather(1, token)[:, 0], 0.0)
        entropy[:, t] = torch.where(alive, torch.special.entr(p).sum(dim=-1), 0.0)
        collision[:, t] = torch.where(alive, (p * p).sum(dim=-1), 0.0)
        alive = alive & (token[:, 0] != eos_id)
        if t + 1 == length or not bool(alive.any()):
            break
        position = position + 1
        logits = module(
            input_ids=responses[:, t : t + 1],
            attention_mask=attention[:, : width + t + 1],
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
    batch = Batch(
        prompts=prompts.repeat_interleave(n, dim=0),
        prompt_mask=prompt_mask.repeat_interleave(n, dim=0),
        responses=responses,
        mask=mask,
    )
    return Samples(batch, log_probs, entropy, collision)


@torch.no_grad()
def score(module: Any, batch: Batch, *, temperature: float, rows: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the responses and entropies under `module`, each (B, T), `rows` rows at a time."""
    length = batch.responses.shape[1]
    log_probs, entropy = [], []
    for ids, attention, positions, responses in zip(
        *(x.split(rows) for x in (batch.input_ids, batch.attention_mask, batch.position_ids, batch.responses)),
        strict=True,
    ):
        output = module(
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=length + 1,
        )
        logp = torch.log_softmax(output.logits[:, :-1].float() / temperature, dim=-1)
        log_probs.append(logp.gather(-1, responses.unsqueeze(-1)).squeeze(-1))
        entropy.append(torch.special.entr(logp.exp()).sum(dim=-1))
    return torch.cat(log_probs) * batch.mask, torch.cat(entropy) * batch.mask
