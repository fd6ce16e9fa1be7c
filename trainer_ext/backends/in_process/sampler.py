"""Sampling and scoring with a Hugging Face module that shares the policy's weights: no copy, no FSDP, no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer
from verl.workers.config import HFModelConfig

from trainer_ext.backends.in_process import linear
from trainer_ext.backends.in_process.batch import Batch, Request
from trainer_ext.fits import devices
from trainer_ext.fits.architectures import causal_models
from trainer_ext.sampling import draws
from trainer_ext.sampling.proposal import Proposal, from_policy


@dataclass(frozen=True)
class Samples:
    """Responses with their log-probabilities and entropies, all (B, T); zeros where the mask is false.

    log_probs, entropy: the policy's; behaviour: log-probabilities under the distribution that the tokens were drawn
    from; collision: sum of the policy's squared probabilities over the whole vocabulary.
    """

    batch: Batch
    log_probs: Tensor
    behaviour: Tensor
    entropy: Tensor
    collision: Tensor


class _Room(DynamicLayer):
    """The keys and values of a layer, with room for so many tokens after the prompt, so that appending copies no other.

    As long as there are few, they are copied, which then takes less time than writing into the room.
    """

    _FEW = 2**15  # elements of the keys; measured on one core: 5 and 8 us with half as many, 16 and 9 with twice

    def __init__(self, tokens: int):
        super().__init__()
        self._tokens = tokens
        self._rooms: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (rows, heads, tokens, width) each; all until now."""
        begin, new = self.get_seq_length(), key_states.shape[-2]
        if begin == 0 or self.keys.numel() < self._FEW:
            return super().update(key_states, value_states)
        if not self._rooms:
            held = (self.keys, self.values)
            self._rooms = [torch.cat([x, x.new_empty((*x.shape[:2], self._tokens, x.shape[3]))], dim=2) for x in held]
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, begin : begin + new] = states
        self.keys, self.values = (room[:, :, : begin + new] for room in self._rooms)
        return self.keys, self.values


class Stream:
    """A model reading the responses to a batch of prompts token by token; equal prompts are read once."""

    def __init__(self, module: Any, request: Request):
        self._module = module
        prompts, mask, row = request.distinct()
        positions = (mask.long().cumsum(dim=1) - 1).clamp_min(0)
        cache = DynamicCache(config=module.config)
        cache.layers = [_Room(request.length) if type(layer) is DynamicLayer else layer for layer in cache.layers]
        output = module(
            input_ids=prompts,
            attention_mask=mask.long(),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        self._cache.batch_select_indices(row)
        #: (rows, V), of the next token
        self.logits = output.logits[:, -1][row]
        self._position = positions[:, -1:][row]
        mask = mask[row]
        self._attention = torch.cat([mask, mask.new_ones(len(mask), request.length)], dim=1).long()
        self._width = request.prompts.shape[1]

    def read(self, tokens: Tensor) -> None:
        """Append one token to each row; tokens: (rows, 1)."""
        self._position, self._width = self._position + 1, self._width + 1
        output = self._module(
            input_ids=tokens,
            attention_mask=self._attention[:, : self._width],
            position_ids=self._position,
            past_key_values=self._cache,
            use_cache=True,
        )
        self.logits = output.logits[:, -1]


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Single-precision log-softmax of (..., V) logits. FloatingPointError: they are not numbers."""
    log_p = torch.log_softmax(logits.float() / temperature, dim=-1)
    if not torch.isfinite(log_p).all():
        raise FloatingPointError("logits")
    return log_p


def load_module(
    path: str,
    config: HFModelConfig | None = None,
    weights: dict[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
) -> Any:
    """A causal language model for inference from a folder, on this process's device; `config`: the engine's
    configuration of it; dtype: of its weights; trust_remote_code: whether code that comes with the model may run.

    With `weights` the module shares their memory. Objection: weights are missing in the folder.
    """
    if config is None:
        settings: dict[str, Any] = {"attn_implementation": causal_models.attention_of(path, trust_remote_code)}
    else:
        settings, trust_remote_code = {"config": config.hf_config}, config.trust_remote_code
    settings |= {"dtype": dtype, "trust_remote_code": trust_remote_code, "output_loading_info": True}
    module, info = AutoModelForCausalLM.from_pretrained(path, **settings)
    causal_models.check_loaded(path, info)
    module.to(devices.kind()).eval().requires_grad_(False)
    for name, parameter in module.named_parameters():
        if weights is not None:
            parameter.data = weights[name]
    return linear.use(module)


def sample(
    modules: Sequence[Any],
    request: Request,
    keys: Sequence[int],
    proposal: Proposal = from_policy,
    most: int | None = None,
) -> Samples:
    """The responses that a request asks for, rows of one prompt adjacent; each row is drawn with its own key.

    modules: the policy first, then the others that `proposal` takes. `proposal` turns the log-probabilities of the next
    token into those to draw from. Log-probabilities and entropies are at the request's temperature. most: how many
    responses are drawn at a time, of whole prompts; None: all.
    FloatingPointError: a model's logits are not numbers.
    """
    parts, left = request.parts(most) if most is not None else [request], iter(keys)
    with linear.packed(modules, len(parts) * request.length):
        drawn = [_sample(modules, part, [*islice(left, len(part.prompts) * request.n)], proposal) for part in parts]
    if len(drawn) == 1:
        return drawn[0]
    responses, mask = (torch.cat([getattr(part.batch, name) for part in drawn]) for name in ("responses", "mask"))
    rest = (torch.cat([getattr(part, name) for part in drawn]) for name in _OF_TOKENS)
    return Samples(request.batch(responses, mask), *rest)


_OF_TOKENS = ("log_probs", "behaviour", "entropy", "collision")


@torch.no_grad()
def _sample(modules: Sequence[Any], request: Request, keys: Sequence[int], proposal: Proposal) -> Samples:
    streams = [Stream(module, request) for module in modules]
    prompts, length, pad_id = request.prompts, request.length, request.pad_id
    rows = len(prompts) * request.n
    responses = prompts.new_full((rows, length), pad_id)
    mask = torch.zeros(rows, length, dtype=torch.bool, device=prompts.device)
    of_tokens: list[tuple[Tensor, ...]] = []
    alive = torch.ones(rows, dtype=torch.bool, device=prompts.device)
    uniform = draws.uniforms(keys, length).to(prompts.device)
    for t in range(length):
        log_p = [log_probabilities(stream.logits, request.temperature) for stream in streams]
        logp, log_q = log_p[0], proposal(log_p, alive)
        p = logp.exp()
        token = draws.choose(p if log_q is logp else log_q.exp(), uniform[:, t])[:, None]
        responses[:, t] = torch.where(alive, token[:, 0], pad_id)
        mask[:, t] = alive
        of_token = logp.gather(1, token)[:, 0]
        drawn_from = of_token if log_q is logp else log_q.gather(1, token)[:, 0]
        of_tokens.append((of_token, drawn_from, torch.special.entr(p).sum(dim=-1), (p * p).sum(dim=-1)))
        alive = alive & (token[:, 0] != request.eos_id)
        if t + 1 == length or not bool(alive.any()):
            break
        for stream in streams:
            stream.read(responses[:, t : t + 1])
    ended = length - len(of_tokens)
    whole = (pad(torch.stack(values, dim=1), (0, ended)) for values in zip(*of_tokens, strict=True))
    return Samples(request.batch(responses, mask), *(torch.where(mask, values, 0.0) for values in whole))


@torch.no_grad()
def score(module: Any, batch: Batch, *, temperature: float, rows: int) -> Tensor:
    """Log-probabilities of the responses under `module`, (B, T), `rows` rows at a time."""
    length = batch.responses.shape[1]
    log_probs = []
    for ids, attention, positions, responses in zip(
        *(x.split(rows) for x in (batch.input_ids, batch.attention_mask, batch.position_ids, batch.responses)),
        strict=True,
    ):
        output = module(
            input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False, logits_to_keep=length + 1
        )
        logp = torch.log_softmax(output.logits[:, :-1].float() / temperature, dim=-1)
        log_probs.append(logp.gather(-1, responses.unsqueeze(-1)).squeeze(-1))
    return torch.cat(log_probs) * batch.mask
