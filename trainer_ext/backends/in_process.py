"""GRPO on verl in one process: sampling, scoring, advantages and updates of one step, without Ray."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import Metric

from trainer_ext import metrics, models, tasks
from trainer_ext.backends import checkpoint, cpu, losses
from trainer_ext.backends.actor import Actor, Critic, Trained
from trainer_ext.backends.batch import Batch, pad
from trainer_ext.backends.sampler import Samples, load_module, sample, score
from trainer_ext.methods import composition, control, shaping


class Prompts:
    """A task's prompts as tokens; the order of an epoch depends on the seed and the epoch alone."""

    def __init__(self, path: Path, tokenizer: Any, max_length: int, seed: int):
        table = pq.read_table(path, columns=["prompt", "reward_model"]).to_pylist()
        encoded: dict[str, list[int]] = {}
        self._rows: list[tuple[list[int], str]] = []
        for row in table:
            messages = row["prompt"]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            if text not in encoded:
                encoded[text] = tokenizer.encode(text, add_special_tokens=False)
            if len(encoded[text]) <= max_length:  # as verl's filter_overlong_prompts
                self._rows.append((encoded[text], row["reward_model"]["ground_truth"]))
        if not self._rows:
            raise ValueError(f"{path}: no prompt has at most data.max_prompt_length={max_length} tokens")
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def of_step(self, step: int, size: int) -> list[tuple[list[int], str]]:
        """`size` prompts (token ids, ground truth) of step 1, 2, ...; no prompt twice before all have come once."""
        return [self._at(index) for index in range((step - 1) * size, step * size)]

    def _at(self, index: int) -> tuple[list[int], str]:
        epoch, place = divmod(index, len(self._rows))
        if epoch not in self._orders:
            generator = seeded(self._seed, "order", epoch)
            self._orders = {epoch: torch.randperm(len(self._rows), generator=generator).tolist()}
        return self._rows[self._orders[epoch][place]]


def seeded(seed: int, purpose: str, number: int, device: str = "cpu") -> torch.Generator:
    """A generator that depends on its arguments alone, so that a resumed run draws what it would have drawn."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


class InProcess:
    """One run's training; `step` does one step and gives its metrics, `save` and `load` carry everything over."""

    def __init__(self, config: Mapping[str, Any], cache: Path):
        verl: DictConfig = config["verl"]
        method = config["method"]
        self._verl, self._seed = verl, int(config["seed"])
        self._device = cpu.use()
        temperature = verl.actor_rollout_ref.rollout.temperature
        if not temperature > 0:
            raise ValueError(f"verl.actor_rollout_ref.rollout.temperature={temperature}: sampling needs one above 0")
        model_path = models.start(config, cache)
        verl = OmegaConf.create(OmegaConf.to_container(verl, resolve=False))
        with open_dict(verl):
            verl.actor_rollout_ref.actor.policy_loss = composition.policy_loss_config(method)
            verl.actor_rollout_ref.actor.loss_agg_mode = method["loss_agg_mode"]
        self._method, steps = method, int(config["trainer"]["steps"])
        self._algorithm = shaping.algorithm_config(method)
        self.actor = Actor(verl, model_path, total_steps=steps)
        self.critic: Critic | None = None
        if method["advantage"] == "gae":
            self.critic = Critic(verl, model_path, total_steps=steps, lr_ratio=float(method["critic_lr_ratio"]))
        self._policy = load_module(model_path, self.actor.model_config, self.actor.weights())
        self._reference = load_module(model_path, self.actor.model_config)
        self._controller = composition.controller(method, steps)
        self._score = tasks.get(config["task"]["name"]).compute_score
        self._task = config["task"]["name"]
        path = tasks.prepare(models.plain(config["task"]), cache)
        self._prompts = Prompts(path, self.actor.tokenizer, int(verl.data.max_prompt_length), self._seed)
        ends = (self._policy.get_input_embeddings().weight, self._policy.get_output_embeddings().weight)
        embedding = sum({id(weight): weight.numel() for weight in ends}.values())  # tied ones are one
        self._parameters = sum(p.numel() for p in self._policy.parameters()) - embedding
        self.samples = 0
        self.tokens = 0

    def step(self, step: int) -> dict[str, float]:
        """Sample, score, update. Returns the step's metrics but for those that take a clock."""
        rollout, actor = self._verl.actor_rollout_ref.rollout, self.actor.config
        samples, rewards = self._sample(step)
        batch, mask = samples.batch, samples.batch.mask
        rows = int(actor.ppo_micro_batch_size_per_gpu)
        old = samples.log_probs
        if not self._verl.algorithm.rollout_correction.bypass_mode:
            old, _ = score(self._policy, batch, temperature=rollout.temperature, rows=rows)
        reference, _ = score(self._reference, batch, temperature=rollout.temperature, rows=rows)
        token_rewards = torch.zeros_like(old).scatter_(1, mask.sum(dim=1, keepdim=True) - 1, rewards[:, None])
        group = torch.arange(len(rewards), device=rewards.device) // rollout.n
        seen = self.critic.values(batch) if self.critic is not None else None
        plain, returns = shaping.advantages(self._algorithm, token_rewards, mask, group, seen)

        self._newest = (old, plain, mask)
        values = metrics.analysis_metrics(old, plain, token_rewards, mask)
        values["analysis/entropy_full_mean"] = float(samples.entropy.double().sum() / mask.sum())
        values["actor/kl_init"] = control.kl_per_token(old, reference, mask)
        weights, found = shaping.credit_weights(self._method["credit"], old, mask, samples.collision)
        advantages, values = plain * weights, values | found
        if self._controller is not None:
            weight = self._controller.settings.weight
            statistics = control.statistics(old, reference, advantages, mask, rewards, weight)
            self._controller.update(statistics)
            values |= self._controller.metrics(statistics)
            advantages = self._controller.advantages(old, reference, advantages) * mask
        if seen is not None:
            values |= self._update_critic(step, batch, values=seen, returns=returns)
        if self.critic is None or step > self._method["critic_warmup"]:
            values |= self._update(step, batch, old_log_probs=old, ref_log_prob=reference, advantages=advantages)

        self.samples += len(rewards)
        new_tokens = int(mask.sum())
        self.tokens += new_tokens
        values |= {"samples/total": float(self.samples), "tokens/total": float(self.tokens)}
        trained = 1 if self.critic is None else 2  # of about one size
        flops = (2 + 6 * trained * actor.ppo_epochs) * self._parameters * new_tokens
        values["cost/flops_per_sample"] = flops / len(rewards)
        return values

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        """Histograms over the newest step's tokens."""
        return metrics.histograms(*self._newest)

    def _sample(self, step: int) -> tuple[Samples, Tensor]:
        data, rollout, tokenizer = self._verl.data, self._verl.actor_rollout_ref.rollout, self.actor.tokenizer
        rows = self._prompts.of_step(step, int(data.train_batch_size))
        prompts, prompt_mask = pad([tokens for tokens, _ in rows], tokenizer.pad_token_id, left=True)
        samples = sample(
            self._policy,
            prompts.to(self._device),
            prompt_mask.to(self._device),
            n=rollout.n,
            length=int(data.max_response_length),
            temperature=rollout.temperature,
            eos_id=tokenizer.eos_token_id,
            pad_id=tokenizer.pad_token_id,
            generator=seeded(self._seed, "sample", step, self._device),
        )
        texts = tokenizer.batch_decode(samples.batch.responses.tolist(), skip_special_tokens=True)
        truths = [truth for _, truth in rows for _ in range(rollout.n)]
        rewards = [self._score(self._task, text, truth) for text, truth in zip(texts, truths, strict=True)]
        return samples, torch.tensor(rewards, dtype=torch.float32, device=self._device)

    def _update(self, step: int, batch: Batch, **columns: Tensor) -> dict[str, float]:
        """The policy's updates of the step; the metrics are means over its mini-batches."""
        actor = self.actor
        rate = actor.learning_rate
        loss = partial(losses.policy, actor.config)
        info = {"calculate_entropy": bool(actor.config.entropy_coeff)}
        values = composition.finish(_means("actor", self._updates(actor, step, batch.columns(**columns), loss, **info)))
        values["actor/lr"] = rate
        variance = actor.engine.take_grad_variance()
        if variance is not None:
            values["actor/grad_variance"] = variance
        return values

    def _update_critic(self, step: int, batch: Batch, **columns: Tensor) -> dict[str, float]:
        """The critic's updates of the step; the metrics are means over its mini-batches."""
        assert self.critic is not None
        rate = self.critic.learning_rate
        loss = partial(losses.value, float(self._method["cliprange_value"]))
        values = _means("critic", self._updates(self.critic, step, batch.columns(**columns), loss))
        values["critic/lr"] = rate
        returns, error = (x[batch.mask].double() for x in (columns["returns"], columns["returns"] - columns["values"]))
        spread = float(returns.var(unbiased=False))
        if spread > 0:
            values["critic/explained_variance"] = 1 - float(error.var(unbiased=False)) / spread
        return values

    def _updates(self, model: Trained, step: int, data: TensorDict, loss: Any, **info: Any) -> Iterator[dict[str, Any]]:
        """Train a model on all mini-batches of the step, in every epoch; gives what each reported."""
        config, rollout = self.actor.config, self._verl.actor_rollout_ref.rollout
        size = min(int(config.ppo_mini_batch_size) * rollout.n, len(data))
        for epoch in range(config.ppo_epochs):
            rows = data
            if config.shuffle:
                rows = data[torch.randperm(len(data), generator=seeded(self._seed, f"shuffle{epoch}", step))]
            parts = rows.split(size)
            for index, part in enumerate(parts):
                last = epoch == config.ppo_epochs - 1 and index == len(parts) - 1
                info |= {
                    "temperature": rollout.temperature,
                    "global_batch_size": len(part),
                    "update_lr_scheduler": last,
                }
                yield model.update(part.clone(), loss, **info)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint with `state` (JSON values) beside the training's own."""
        own = {"samples": self.samples, "tokens": self.tokens}
        dual = self._controller.state_dict() if self._controller else None
        checkpoint.save(folder, self.actor, {"training": own, "controller": dual, "run": state})
        if self.critic is not None:
            checkpoint.save(folder / "critic", self.critic, {})

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore a checkpoint; returns what `save` was given."""
        state = checkpoint.load(folder, self.actor)
        if self.critic is not None:
            checkpoint.load(folder / "critic", self.critic)
        self.samples, self.tokens = state["training"]["samples"], state["training"]["tokens"]
        if self._controller:
            self._controller.load_state_dict(state["controller"])
        return dict(state["run"])


def _means(model: str, collected: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Means over the mini-batches of what the loss and the engine reported, under the names of docs/metrics.md."""
    values: dict[str, list[float]] = {}
    for one in collected:
        for key, value in one.items():
            name = f"{model}/grad_norm" if key == "grad_norm" else key
            if "/" in name and not name.startswith("perf/"):
                values.setdefault(name, []).append(_number(value))
    return {key: sum(items) / len(items) for key, items in values.items()}


def _number(value: Any) -> float:
    if isinstance(value, list):
        return sum(map(_number, value))
    return float(value.aggregate() if isinstance(value, Metric) else value)
