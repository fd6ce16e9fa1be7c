"""The responses and rewards of a step, drawn by the method's sampler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_ext import registry
from trainer_ext.backends.in_process.batch import Batch, Request, pad
from trainer_ext.backends.in_process.engine import load_tokenizer
from trainer_ext.backends.in_process.prompts import Prompt, Prompts, answers_to, pairs_of_task, scores_of
from trainer_ext.backends.in_process.sampler import Samples, load_module, sample, score
from trainer_ext.backends.in_process.speculative import sample_speculatively
from trainer_ext.fits import devices
from trainer_ext.sampling import draws
from trainer_ext.sampling.proposal import Weighted, greedy_where, proposal_of
from trainer_ext.scoring import rewards, tasks
from trainer_ext.scoring.rewards import Score
from trainer_ext.scoring.scores.evaluation import JUDGED, Answer


@dataclass(frozen=True)
class Drawn:
    """B responses with their rewards (B,) and the metrics of drawing them.

    trained: the batch to train on, whose mask is empty in rows that are left out; positions: values of the tokens'
    positions, (positions,), by the name of their histogram.
    """

    samples: Samples
    rewards: Tensor
    trained: Batch
    metrics: dict[str, float]
    positions: dict[str, Tensor]


class Rollout:
    """Draws responses from the policy, the target, or a distribution between them; also evaluates the policy."""

    def __init__(self, config: Mapping[str, Any], tokenizer: Any, prompts: Prompts, modules: Mapping[str, Any]):
        """config: the run's; modules: `policy`, `reference`, and `target` if the method has one."""
        self._method, self._verl, self._modules = config["method"], config["verl"], modules
        self._task, self._score = config["task"]["name"], tasks.scorer(config["task"])
        self._tokenizer, self._prompts, self._seed = tokenizer, prompts, int(config["seed"])
        self._device, self._most = devices.kind(), int(self._verl.actor_rollout_ref.rollout.max_num_seqs)
        self.asked: Sequence[tuple[str, Prompt]] = ()  # prompts of evaluations (Prompts.of_evaluations)

    def draw(self, step: int) -> Drawn:
        """The responses of a step; with the same models, the same responses every time."""
        rows = self._prompts.of_step(step, int(self._verl.data.train_batch_size))
        request, proposal = self._request(rows, int(self._verl.actor_rollout_ref.rollout.n)), proposal_of(self._method)
        drafting = registry.drafting.choice(self._method)()
        # a run that trains nothing also measures plain sampling, for the speed-up
        compared = drafting is not None and self._method["loss"] == "none"
        plain_token = 0.0  # seconds for each token without drafts
        if compared:
            keys, began = self._keys("plain", step, request), time.perf_counter()
            plain = sample(self.models, request, keys, proposal_of(self._method), self._most)
            plain_token = (time.perf_counter() - began) / int(plain.batch.mask.sum())
        keys, began = self._keys("sample", step, request), time.perf_counter()
        if drafting is None:
            samples, speculation = sample(self.models, request, keys, proposal, self._most), {}
        else:
            models = self._modules["policy"], self._modules["target"]
            samples, speculation = sample_speculatively(*models, request, keys, proposal, drafting)
        seconds = time.perf_counter() - began
        metrics = {"cost/sample_seconds": seconds, **speculation}
        trained, positions = samples.batch, {}
        if isinstance(proposal, Weighted):
            metrics |= proposal.metrics()
            positions = proposal.positions
        if compared:
            metrics["speculative/speedup"] = plain_token * int(samples.batch.mask.sum()) / seconds
        if self._method["sampler"] == "rejection":
            kept = self._accepted(samples, step)
            metrics["rejection/accepted_fraction"] = float(kept.float().mean())
            trained = replace(samples.batch, mask=samples.batch.mask & kept[:, None])
        scores = self._scores(rows, samples)
        values = [score.value for score in scores]
        given = torch.tensor(values, dtype=torch.float32, device=samples.batch.responses.device)
        return Drawn(samples, given, trained, metrics | rewards.metrics(scores), positions)

    def evaluate(self, step: int, drawn: int, judged: bool = False) -> list[Answer]:
        """The policy's own responses to the prompts `asked`: to each a greedy one, and `drawn` others. judged:
        also to the prompts for judges.

        With the same policy the same answers every time; nothing that the training draws depends on them.
        """
        asked = [item for item in self.asked if judged or item[0] != JUDGED]
        n = 1 + drawn
        answers: list[Answer] = []
        width = max(1, self._most // n)
        for first in range(0, len(asked), width):
            part = asked[first : first + width]
            rows = [row for _, row in part]
            keys = draws.keys(self._seed, "evaluate", step, range(first * n, (first + len(part)) * n))
            greedy = greedy_where(torch.arange(len(keys), device=self._device) % n == 0)  # the first to each prompt
            samples = sample([self._modules["policy"]], self._request(rows, n), keys, greedy)
            responses = zip(self._texts(samples), self._scores(rows, samples), strict=True)
            answers += answers_to(part, responses, n)
        return answers

    def pairs(self, step: int) -> Batch:
        """The task's own pairs for the step's prompts, rows of chosen and rejected in turn."""
        rows = self._prompts.of_step(step, int(self._verl.data.train_batch_size))
        width = int(self._verl.data.max_response_length)
        answers = pairs_of_task(self._task, rows, self._tokenizer, width, self._seed, step)
        pad_id = self._tokenizer.pad_token_id
        prompts, prompt_mask = pad([row.tokens for row in rows for _ in range(2)], pad_id, left=True)
        responses, mask = pad(answers, pad_id, left=False, width=width)
        return Batch(*(x.to(self._device) for x in (prompts, prompt_mask, responses, mask)))

    @property
    def models(self) -> list[Any]:
        """The models that read every token while sampling."""
        return [self._modules[name] for name in registry.models_read(self._method)]

    def _request(self, rows: list[Prompt], n: int) -> Request:
        return Request.from_prompts([row.tokens for row in rows], n, self._tokenizer, self._verl, self._device)

    def _keys(self, purpose: str, step: int, request: Request) -> list[int]:
        return draws.keys(self._seed, purpose, step, range(len(request.prompts) * request.n))

    def _texts(self, samples: Samples) -> list[str]:
        """The text of each response."""
        return list(self._tokenizer.batch_decode(samples.batch.responses.tolist(), skip_special_tokens=True))

    def _scores(self, rows: list[Prompt], samples: Samples) -> list[Score]:
        return scores_of(self._score, rows, self._texts(samples))

    def _accepted(self, samples: Samples, step: int) -> Tensor:
        """Which of the policy's samples rejection sampling towards the target keeps."""
        rollout, actor = self._verl.actor_rollout_ref.rollout, self._verl.actor_rollout_ref.actor
        rows = int(actor.ppo_micro_batch_size_per_gpu)
        target = score(self._modules["target"], samples.batch, temperature=rollout.temperature, rows=rows)
        keys = draws.keys(self._seed, "accept", step, range(len(target)))
        return draws.accepted(samples.log_probs, target, samples.batch.mask, int(rollout.n), keys)


def evaluate(config: Mapping[str, Any], model: Path, cache: Path, step: int) -> list[Answer]:
    """`trainer_ext.backends.evaluate` of the model in a folder."""
    settings, trainer = config["verl"].actor_rollout_ref.model, config["trainer"]
    tokenizer = load_tokenizer(str(model), settings)
    prompts = Prompts(config, cache, tokenizer, int(config["seed"]))
    modules = {"policy": load_module(str(model), trust_remote_code=bool(settings.trust_remote_code))}
    rollout = Rollout(config, tokenizer, prompts, modules)
    rollout.asked = prompts.of_evaluations(int(trainer["eval_prompts"]))
    return rollout.evaluate(step, int(trainer["eval_samples"]))
