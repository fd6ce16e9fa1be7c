"""Speculative decoding from q with two Hugging Face models: the policy drafts, one forward of the target verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trainer_ext import registry
from trainer_ext.backends.in_process.batch import Request
from trainer_ext.backends.in_process.sampler import Samples, log_probabilities
from trainer_ext.sampling import draws, speculative
from trainer_ext.sampling.proposal import FromGeometric

#: (kept, tested), the tokens of this batch so far -> how many tokens to draft.
Drafting = Callable[[int, int], int]
#: Prior counts of `adaptive`: tokens kept, tokens tested.
_BELIEVED = 8, 10


class _Reader:
    """A model that reads rows which grow unevenly; rejected drafts stay in the cache, masked."""

    def __init__(self, module: Any, request: Request):
        self._module = module
        prompts, mask = request.prompts[:, :-1], request.prompt_mask[:, :-1].long()
        # Without the last token of the prompt, which the first draft reads.
        self._cache = DynamicCache(config=module.config)
        if prompts.shape[1]:
            module(
                input_ids=prompts,
                attention_mask=mask,
                position_ids=(mask.cumsum(dim=1) - 1).clamp_min(0),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self._cache.batch_repeat_interleave(request.n)
        self.attention = mask.repeat_interleave(request.n, dim=0)

    def read(self, tokens: Tensor, position: Tensor, temperature: float) -> Tensor:
        """Log-probabilities (rows, m, V) of what follows each of (rows, m) tokens at those positions."""
        self.attention = torch.cat([self.attention, torch.ones_like(tokens)], dim=1)
        logits = self._module(
            input_ids=tokens,
            attention_mask=self.attention,
            position_ids=position,
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        return log_probabilities(logits, temperature)

    def forget(self, kept: Tensor, width: int) -> None:
        """Mask all but the first `kept` (rows,) of the last `width` columns."""
        columns = torch.arange(width, device=kept.device)
        self.attention[:, -width:] = (columns < kept[:, None]).long()


@torch.no_grad()
def sample_speculatively(
    policy: Any, target: Any, request: Request, keys: Sequence[int], proposal: FromGeometric, drafting: Drafting
) -> tuple[Samples, dict[str, float]]:
    """As `sampler.sample` of policy and target: the same distribution, with fewer forwards of the target; and the
    speculative/* metrics that need no other run.

    `proposal` is asked once a round, for (rows x positions, V) at a time; it remembers those that tokens come from.
    Each position of a row has three random numbers of its own, made from the row's key: to draft a token, to keep it,
    to draw another one. A round that drafts a position again uses them again: what stands at a position depends on its
    own numbers alone, because a draft after one that was not kept changes nothing. `constant` drafting then gives a row
    the same tokens in every batch; `adaptive` drafts as many tokens as the batch so far suggests.
    """
    prompts, n, length, temperature = request.prompts, request.n, request.length, request.temperature
    rows, device = len(prompts) * n, prompts.device
    draft_reader, target_reader = _Reader(policy, request), _Reader(target, request)
    last = prompts[:, -1:].repeat_interleave(n, dim=0)
    position = request.prompt_mask.long().sum(dim=1).repeat_interleave(n)[:, None] - 1  # of `last`
    responses = torch.full((rows, length), request.pad_id, dtype=torch.long, device=device)
    columns = torch.zeros(4, rows, length, device=device)  # log_probs, behaviour, entropy, collision
    size = torch.zeros(rows, dtype=torch.long, device=device)
    alive = torch.ones(rows, dtype=torch.bool, device=device)
    # of the rows that still grew: drafted tokens within the response up to the first that was not kept, those that were
    # kept, forwards of the target, and the sum of 1 - TV(q, pi_theta) over the tested positions
    tested = kept_tokens = forwards = 0
    expected = 0.0
    row = torch.arange(rows, device=device)
    uniform = draws.uniforms(keys, 3 * length).reshape(rows, length, 3).to(device)
    while bool(alive.any()):
        k = drafting(kept_tokens, tested)
        tokens, log_p, order = [last], [], torch.arange(k + 1, device=device)
        # tokens beyond the response's length are drafted like its last one, and cut off
        numbers = uniform[row[:, None], (size[:, None] + order).clamp_max(length - 1)]
        for step in range(k + 1):
            log_p.append(draft_reader.read(tokens[-1], position + step, temperature))
            if step < k:
                tokens.append(draws.choose(log_p[-1][:, 0].double().exp(), numbers[:, step, 0])[:, None])
        block = torch.cat(tokens, dim=1)
        theta = torch.cat(log_p, dim=1)
        log_t = target_reader.read(block, position + order, temperature)
        flat = [x.flatten(0, 1) for x in (theta, log_t)]
        log_q = proposal(flat, torch.ones_like(flat[0][:, 0], dtype=torch.bool)).unflatten(0, (rows, k + 1))
        accepted, next_token = speculative.verify(block[:, 1:], theta[:, :-1], log_q, numbers[..., 1:])
        emitted = torch.cat([block[:, 1:], next_token[:, None]], dim=1)
        emitted[row, accepted] = next_token
        # emitted[:, :accepted + 1] is part of the response, up to the end token and the length
        ended = ((emitted == request.eos_id).long().cumsum(dim=1) - (emitted == request.eos_id).long()) > 0
        stands = (order <= accepted[:, None]) & ~ended & (size[:, None] + order < length) & alive[:, None]
        proposal.keep(stands.flatten())
        p = theta.exp()
        values = torch.stack(
            [
                theta.gather(-1, emitted.unsqueeze(-1))[..., 0],
                log_q.gather(-1, emitted.unsqueeze(-1))[..., 0],
                torch.special.entr(p).sum(dim=-1),
                (p * p).sum(dim=-1),
            ]
        )
        at, which = stands.nonzero(as_tuple=True)
        responses[at, size[at] + which] = emitted[at, which]
        columns[:, at, size[at] + which] = values[:, at, which]
        seen = stands[:, :k]  # drafts beyond the end of the response do not count
        tested += int(seen.sum())
        kept_tokens += int((seen & (order[:k] < accepted[:, None])).sum())
        forwards += int(alive.sum())
        expected += float(speculative.acceptance(theta[:, :-1], log_q[:, :-1])[seen].sum())
        for reader in (draft_reader, target_reader):
            reader.forget(accepted + 1, k + 1)
        last = next_token[:, None]
        position = position + accepted[:, None] + 1
        size = size + stands.sum(dim=1)
        alive = alive & ~((emitted == request.eos_id) & stands).any(dim=1) & (size < length)
    mask = torch.arange(length, device=device) < size[:, None]
    log_probs, behaviour, entropy, collision = columns
    metrics = {
        "speculative/acceptance_rate": kept_tokens / max(tested, 1),
        "speculative/expected_acceptance": expected / max(tested, 1),
        "speculative/tokens_per_target_forward": int(mask.sum()) / max(forwards, 1),
    }
    return Samples(request.batch(responses, mask), log_probs, behaviour, entropy, collision), metrics


registry.drafting.declare("none")


@registry.drafting("speculative", prefix="draft_")
def constant(tokens: int) -> Drafting:
    """Always this number of tokens."""
    return lambda kept, tested: tokens


@registry.drafting("adaptive", prefix="draft_")
def adaptive(cost: float, most: int) -> Drafting:
    """The k up to `most` with the most expected tokens for their cost, at the share kept so far.

    cost: of a draft forward over a target's. (1 - a^(k+1)) / (1 - a) tokens are expected of k drafts that are each kept
    with probability a (Leviathan et al. 2023, equation 1); they cost k drafts, one more to go on, and one verification.
    a is the mean of a beta distribution that starts at 8 of 10 kept, because the first few tokens tell little.
    """

    def choose(kept: int, tested: int) -> int:
        a = (kept + _BELIEVED[0]) / (tested + _BELIEVED[1])
        return max(range(1, most + 1), key=lambda k: (1 - a ** (k + 1)) / (1 - a) / ((k + 1) * cost + 1))

    return choose
