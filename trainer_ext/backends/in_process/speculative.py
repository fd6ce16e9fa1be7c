"""Speculative decoding from q with two Hugging Face models: the policy drafts, one forward of the target verifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trainer_ext.backends.in_process.batch import Batch
from trainer_ext.backends.in_process.sampler import Samples, log_probabilities
from trainer_ext.sampling import speculative
from trainer_ext.sampling.proposal import FromGeometric

#: How many tokens to draft, from how many were kept and tested so far in this batch.
Drafting = Callable[[int, int], int]
#: What stands for the tokens not tested yet: so many, of which so many were kept.
_BELIEVED = 8, 10


@dataclass(frozen=True)
class Speculation:
    """What drafting came to, over rows that still grew. tested: drafted tokens up to the first that was not kept, where
    the response goes on; forwards: of the target; emitted: tokens; expected: sum over the tested positions of
    1 - TV(q, pi_theta)."""

    tested: int
    kept: int
    forwards: int
    emitted: int
    expected: float

    @property
    def metrics(self) -> dict[str, float]:
        """The speculative/* values that need no other run."""
        return {
            "speculative/acceptance_rate": self.kept / max(self.tested, 1),
            "speculative/expected_acceptance": self.expected / max(self.tested, 1),
            "speculative/tokens_per_target_forward": self.emitted / max(self.forwards, 1),
        }


class _Reader:
    """A model reading rows that grow unevenly: what was drafted in vain stays in the cache, masked out."""

    def __init__(self, module: Any, prompts: Tensor, prompt_mask: Tensor, n: int):
        self._module = module
        position = (prompt_mask.long().cumsum(dim=1) - 1).clamp_min(0)
        # All but the prompt's last token, with which the first draft begins.
        self._cache = DynamicCache(config=module.config)
        if prompts.shape[1] > 1:
            module(
                input_ids=prompts[:, :-1],
                attention_mask=prompt_mask[:, :-1].long(),
                position_ids=position[:, :-1],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self._cache.batch_repeat_interleave(n)
        self.attention = prompt_mask[:, :-1].repeat_interleave(n, dim=0).long()

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
        """Of the last `width` columns only the first kept (rows,) count from now on."""
        columns = torch.arange(width, device=kept.device)
        self.attention[:, -width:] = (columns < kept[:, None]).long()


@torch.no_grad()
def sample_speculatively(
    policy: Any,
    target: Any,
    prompts: Tensor,
    prompt_mask: Tensor,
    *,
    n: int,
    length: int,
    temperature: float,
    eos_id: int,
    pad_id: int,
    generator: torch.Generator,
    proposal: FromGeometric,
    drafting: Drafting,
) -> tuple[Samples, Speculation]:
    """As `sampler.sample` of policy and target: the same distribution, with fewer forwards of the target.

    `proposal` is asked once a round, for (rows x positions, V) at a time; it remembers those that tokens come from.
    """
    rows, device = len(prompts) * n, prompts.device
    draft_reader, target_reader = (_Reader(module, prompts, prompt_mask, n) for module in (policy, target))
    last = prompts[:, -1:].repeat_interleave(n, dim=0)
    position = prompt_mask.long().sum(dim=1).repeat_interleave(n)[:, None] - 1  # of `last`
    responses = torch.full((rows, length), pad_id, dtype=torch.long, device=device)
    columns = torch.zeros(4, rows, length, device=device)  # log_probs, behaviour, entropy, collision
    size = torch.zeros(rows, dtype=torch.long, device=device)
    alive = torch.ones(rows, dtype=torch.bool, device=device)
    tested = kept_tokens = forwards = 0
    expected = 0.0
    row = torch.arange(rows, device=device)
    while bool(alive.any()):
        k = drafting(kept_tokens, tested)
        tokens, log_p = [last], []
        for step in range(k + 1):
            log_p.append(draft_reader.read(tokens[-1], position + step, temperature))
            if step < k:
                tokens.append(torch.multinomial(log_p[-1][:, 0].exp(), 1, generator=generator))
        block = torch.cat(tokens, dim=1)
        theta = torch.cat(log_p, dim=1)
        there = position + torch.arange(k + 1, device=device)
        log_t = target_reader.read(block, there, temperature)
        flat = [x.flatten(0, 1) for x in (theta, log_t)]
        log_q = proposal(flat, torch.ones_like(flat[0][:, 0], dtype=torch.bool)).unflatten(0, (rows, k + 1))
        found = speculative.verify(block[:, 1:], theta[:, :-1], log_q, generator=generator)
        emitted = torch.cat([block[:, 1:], found.next_token[:, None]], dim=1)
        emitted[row, found.accepted] = found.next_token
        # emitted[:, :accepted + 1] stands, up to the end token and the length
        order = torch.arange(k + 1, device=device)
        ended = ((emitted == eos_id).long().cumsum(dim=1) - (emitted == eos_id).long()) > 0
        stands = (order <= found.accepted[:, None]) & ~ended & (size[:, None] + order < length) & alive[:, None]
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
        seen = stands[:, :k]  # what was drafted beyond the response's end says nothing of it
        tested += int(seen.sum())
        kept_tokens += int((seen & (order[:k] < found.accepted[:, None])).sum())
        forwards += int(alive.sum())
        expected += float(speculative.acceptance(theta[:, :-1], log_q[:, :-1])[seen].sum())
        for reader in (draft_reader, target_reader):
            reader.forget(found.accepted + 1, k + 1)
        last = found.next_token[:, None]
        position = position + found.accepted[:, None] + 1
        size = size + stands.sum(dim=1)
        alive = alive & ~((emitted == eos_id) & stands).any(dim=1) & (size < length)
    mask = torch.arange(length, device=device) < size[:, None]
    batch = Batch(
        prompts=prompts.repeat_interleave(n, dim=0),
        prompt_mask=prompt_mask.repeat_interleave(n, dim=0),
        responses=responses,
        mask=mask,
    )
    log_probs, behaviour, entropy, collision = columns
    total = Speculation(tested, kept_tokens, forwards, int(mask.sum()), expected)
    return Samples(batch, log_probs, behaviour, entropy, collision), total


def constant(k: int) -> Drafting:
    """Always k tokens."""
    return lambda kept, tested: k


def adaptive(cost: float, most: int = 10) -> Drafting:
    """The k up to `most` with the most expected tokens for their cost, at the share kept so far.

    cost: of a draft forward over a target's. (1 - a^(k+1)) / (1 - a) tokens are expected of k drafts that are each kept
    with probability a (Leviathan et al. 2023, equation 1); they cost k drafts, one more to go on, and one verification.
    a is the mean of a beta distribution that began at 8 of 10 kept, for the first few tokens tell little.
    """

    def choose(kept: int, tested: int) -> int:
        a = (kept + _BELIEVED[0]) / (tested + _BELIEVED[1])
        return max(range(1, most + 1), key=lambda k: (1 - a ** (k + 1)) / (1 - a) / ((k + 1) * cost + 1))

    return choose
