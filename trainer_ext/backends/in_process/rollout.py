"""A step's responses and rewards, drawn as the method's sampler says."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainer_ext import tasks
from trainer_ext.backends.in_process.batch import Batch, pad
from trainer_ext.backends.in_process.prompts import Prompt, Prompts, seeded
from trainer_ext.backends.in_process.sampler import Samples, sample, score
from trainer_ext.backends.in_process.speculative import adaptive, constant, sample_speculatively
from trainer_ext.sampling.proposal import FromGeometric, Proposal, from_policy, from_target


@dataclass(frozen=True)
class Drawn:
    """B responses: what was sampled, rewards (B,), the batch to train on (its mask is empty in rows that are not), what
    there is to report, and the alphas of a geometric sampler."""

    samples: Samples
    rewards: Tensor
    trained: Batch
    metrics: dict[str, float]
    alphas: Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """A response of the policy to a prompt, and its reward."""

    prompt: Prompt
    response: str
    reward: float


@dataclass(frozen=True)
class Evaluation:
    """The mean reward of all answers, in the order of the task's prompts."""

    reward_mean: float
    answers: list[Answer]


class Rollout:
    """Draws responses from the policy, the target, or between them; also evaluates the policy."""

    def __init__(
        self,
        method: Mapping[str, Any],
        verl: Any,
        task: str,
        tokenizer: Any,
        prompts: Prompts,
        modules: Mapping[str, Any],
        seed: int,
        device: str,
    ):
        """modules: `policy`, `reference`, and where the method has one `target`."""
        self._method, self._verl, self._modules = method, verl, modules
        self._task, self._score = task, tasks.get(task).compute_score
        self._tokenizer, self._prompts, self._seed, self._device = tokenizer, prompts, seed, device

    @property
    def models(self) -> list[Any]:
        """Those that read every token while sampling."""
        return self._streams()

    def draw(self, step: int) -> Drawn:
        """The responses of a step; the same ones whenever it is drawn with the same models."""
        rollout = self._verl.actor_rollout_ref.rollout
        rows = self._prompts.of_step(step, int(self._verl.data.train_batch_size))
        if self._method["drafting"] != "none":
            return self._draw_speculatively(step, rows)
        proposal = self._proposal()
        began = time.perf_counter()
        samples = self._sample(
            rows, self._streams(), int(rollout.n), proposal, seeded(self._seed, "sample", step, self._device)
        )
        metrics = {"cost/sample_seconds": time.perf_counter() - began}
        rewards = self._rewards(rows, samples)
        if isinstance(proposal, FromGeometric):
            return Drawn(samples, rewards, samples.batch, metrics | proposal.metrics(), proposal.alphas)
        if self._method["sampler"] == "rejection":
            accepted = self._accepted(samples, step)
            metrics["rejection/accepted_fraction"] = float(accepted.float().mean())
            trained = replace(samples.batch, mask=samples.batch.mask & accepted[:, None])
            return Drawn(samples, rewards, trained, metrics)
        return Drawn(samples, rewards, samples.batch, metrics)

    def _draw_speculatively(self, step: int, rows: list[Prompt]) -> Drawn:
        """The same distribution by speculative decoding; a run that only decodes also times the plain way."""
        method, rollout = self._method, self._verl.actor_rollout_ref.rollout
        proposal = self._proposal()
        assert isinstance(proposal, FromGeometric)
        drafting = (
            constant(int(method["draft_tokens"]))
            if method["drafting"] == "speculative"
            else adaptive(float(method["draft_cost"]), int(method["draft_most"]))
        )
        plain_token = 0.0  # seconds
        if method["loss"] == "none":
            began = time.perf_counter()
            generator = seeded(self._seed, "plain", step, self._device)
            plain = self._sample(rows, self._streams(), int(rollout.n), self._proposal(), generator)
            plain_token = (time.perf_counter() - began) / int(plain.batch.mask.sum())
        began = time.perf_counter()
        samples, speculation = sample_speculatively(
            self._modules["policy"],
            self._modules["target"],
            generator=seeded(self._seed, "sample", step, self._device),
            n=int(rollout.n),
            proposal=proposal,
            drafting=drafting,
            **self._settings(rows),
        )
        seconds = time.perf_counter() - began
        metrics = {"cost/sample_seconds": seconds, **speculation.metrics, **proposal.metrics()}
        if plain_token:
            metrics["speculative/speedup"] = plain_token * int(samples.batch.mask.sum()) / seconds
        return Drawn(samples, self._rewards(rows, samples), samples.batch, metrics, proposal.alphas)

    def evaluate(self, step: int, count: int) -> Evaluation:
        """The policy's own responses to the task's first `count` prompts, one each."""
        rows = self._prompts.first(count)
        generator = seeded(self._seed, "evaluate", step, self._device)
        samples = self._sample(rows, [self._modules["policy"]], 1, from_policy, generator)
        rewards = self._rewards(rows, samples)
        answered = zip(rows, self._texts(samples), rewards.tolist(), strict=True)
        return Evaluation(float(rewards.double().mean()), [Answer(*one) for one in answered])

    def pairs(self, step: int) -> Batch:
        """The task's own pairs for the step's prompts, rows of chosen and rejected in turn.

        ValueError: the task has none.
        """
        module, tokenizer = tasks.get(self._task), self._tokenizer
        if not hasattr(module, "preference"):
            raise ValueError(f"method.dpo_pairs=data: task {self._task} has no pairs; set method.dpo_pairs=group")
        generator = random.Random(f"{self._seed}/pairs/{step}")
        rows = self._prompts.of_step(step, int(self._verl.data.train_batch_size))
        texts = [text for row in rows for text in module.preference(row.ground_truth, generator)]
        answers = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
        width = int(self._verl.data.max_response_length)
        prompts, prompt_mask = pad([row.tokens for row in rows for _ in range(2)], tokenizer.pad_token_id, left=True)
        responses, mask = pad([one[:width] for one in answers], tokenizer.pad_token_id, left=False, width=width)
        return Batch(*(x.to(self._device) for x in (prompts, prompt_mask, responses, mask)))

    def _streams(self) -> list[Any]:
        names = ["policy"]
        if self._method["sampler"] in ("target", "geometric"):
            names.append("target")
        if self._method["alpha"] == "snr_max":
            names.append("reference")
        return [self._modules[name] for name in names]

    def _proposal(self) -> Proposal:
        method = self._method
        if method["sampler"] == "geometric":
            return FromGeometric(
                method=method["alpha"],
                solver=method.get("solver", "newton"),
                iterations=int(method.get("iterations", 20)),
                value=method.get("alpha_value"),
                temperature=float(method["temperature"]),
            )
        return from_target if method["sampler"] == "target" else from_policy

    def _sample(
        self,
        rows: list[Prompt],
        modules: list[Any],
        n: int,
        proposal: Proposal,
        generator: torch.Generator,
    ) -> Samples:
        return sample(modules, n=n, generator=generator, proposal=proposal, **self._settings(rows))

    def _settings(self, rows: list[Prompt]) -> dict[str, Any]:
        """What every way of sampling takes."""
        tokenizer = self._tokenizer
        prompts, mask = pad([row.tokens for row in rows], tokenizer.pad_token_id, left=True)
        return {
            "prompts": prompts.to(self._device),
            "prompt_mask": mask.to(self._device),
            "length": int(self._verl.data.max_response_length),
            "temperature": self._verl.actor_rollout_ref.rollout.temperature,
            "eos_id": tokenizer.eos_token_id,
            "pad_id": tokenizer.pad_token_id,
        }

    def _texts(self, samples: Samples) -> list[str]:
        """What each response says."""
        return list(self._tokenizer.batch_decode(samples.batch.responses.tolist(), skip_special_tokens=True))

    def _rewards(self, rows: list[Prompt], samples: Samples) -> Tensor:
        texts = self._texts(samples)
        n = len(texts) // len(rows)
        truths = [row.ground_truth for row in rows for _ in range(n)]
        found = [self._score(self._task, text, truth) for text, truth in zip(texts, truths, strict=True)]
        return torch.tensor(found, dtype=torch.float32, device=samples.batch.responses.device)

    def _accepted(self, samples: Samples, step: int) -> Tensor:
        """Rejection sampling towards the target: kept with probability pi_t / (m pi_theta), m the prompt's largest."""
        rollout, actor = self._verl.actor_rollout_ref.rollout, self._verl.actor_rollout_ref.actor
        rows = int(actor.ppo_micro_batch_size_per_gpu)
        target, _ = score(self._modules["target"], samples.batch, temperature=rollout.temperature, rows=rows)
        ratio = ((target - samples.log_probs) * samples.batch.mask).double().sum(dim=1).reshape(-1, int(rollout.n))
        chance = (ratio - ratio.amax(dim=1, keepdim=True)).exp().flatten()
        generator = seeded(self._seed, "accept", step, self._device)
        return torch.rand(len(chance), generator=generator, dtype=torch.float64, device=chance.device) <= chance
