"""One step's responses, padded: prompts on the left, responses on the right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B prompts of at most P tokens with a response of at most T tokens each.

    prompts (B, P) int64, left-padded; prompt_mask (B, P) bool; responses (B, T) int64, right-padded;
    mask (B, T) bool: the tokens of the response that count, up to and including the end token.
    """

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    mask: Tensor

    @property
    def input_ids(self) -> Tensor:
        """Prompt and response, (B, P + T)."""
        return torch.cat([self.prompts, self.responses], dim=1)

    @property
    def attention_mask(self) -> Tensor:
        """(B, P + T) int64."""
        return torch.cat([self.prompt_mask, self.mask], dim=1).long()

    @property
    def position_ids(self) -> Tensor:
        """Positions counted from the first token of the prompt, (B, P + T)."""
        return (self.attention_mask.cumsum(dim=1) - 1).clamp_min(0)

    def columns(self, **more: Tensor) -> TensorDict:
        """The columns that the engine reads, and `more` that a loss reads, each with B rows."""
        return TensorDict(
            {
                "input_ids": self.input_ids,
                "attention_mask": self.attention_mask,
                "position_ids": self.position_ids,
                "responses": self.responses,
                "response_mask": self.mask,
                "loss_mask": self.mask,
                **more,
            },
            batch_size=len(self.mask),
        )


def pad(sequences: list[list[int]], pad_id: int, *, left: bool, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Sequences of token ids as one tensor and its mask, each (len(sequences), width)."""
    lengths = [*map(len, sequences)]
    width = max(lengths) if width is None else width
    rest = [[pad_id] * (width - length) for length in lengths]
    rows = [[*more, *tokens] if left else [*tokens, *more] for tokens, more in zip(sequences, rest, strict=True)]
    ids = torch.tensor(rows, dtype=torch.long).reshape(len(rows), width)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    return ids, mask.flip(1) if left else mask


@dataclass(frozen=True)
class Request:
    """What to sample: n responses of at most `length` tokens to each prompt, at a temperature above 0.

    prompts (prompts, P) int64, left-padded; prompt_mask (prompts, P) bool.
    """

    prompts: Tensor
    prompt_mask: Tensor
    n: int
    length: int
    temperature: float
    eos_id: int
    pad_id: int

    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct prompts, their masks, each (D, P), and which of them each response answers, (prompts * n,)."""
        width = self.prompts.shape[1]
        both = torch.cat([self.prompts, self.prompt_mask.to(self.prompts)], dim=1)
        both, row = both.unique(dim=0, return_inverse=True)
        return both[:, :width], both[:, width:].bool(), row.repeat_interleave(self.n)

    def parts(self, most: int) -> list[Request]:
        """Split the request into parts of whole prompts with at most `most` responses each, or one prompt."""
        size = max(1, most // self.n)
        both = zip(self.prompts.split(size), self.prompt_mask.split(size), strict=True)
        return [replace(self, prompts=prompts, prompt_mask=mask) for prompts, mask in both]

    @classmethod
    def from_prompts(cls, prompts: list[list[int]], n: int, tokenizer: Any, verl: Any, device: Any) -> Request:
        """Pad tokenised prompts on a device; verl's tree gives the length and temperature of the responses."""
        tokens, mask = (x.to(device) for x in pad(prompts, tokenizer.pad_token_id, left=True))
        length, temperature = int(verl.data.max_response_length), verl.actor_rollout_ref.rollout.temperature
        return cls(tokens, mask, n, length, temperature, tokenizer.eos_token_id, tokenizer.pad_token_id)

    def batch(self, responses: Tensor, mask: Tensor) -> Batch:
        """The batch of (prompts * n, length) responses and their mask; rows of one prompt are adjacent."""
        prompts, prompt_mask = (x.repeat_interleave(self.n, dim=0) for x in (self.prompts, self.prompt_mask))
        return Batch(prompts, prompt_mask, responses, mask)
