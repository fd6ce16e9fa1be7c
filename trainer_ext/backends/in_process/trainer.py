"""The backend `in_process`: samples, scores and updates the policy with verl's engines in one process, without Ray."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import Metric

from trainer_ext import metrics
from trainer_ext.backends.in_process import checkpoint, initial_model, target_model
from trainer_ext.backends.in_process.batch import Batch
from trainer_ext.backends.in_process.engine import Actor, Critic, Trained
from trainer_ext.backends.in_process.prompts import Prompts, seeded
from trainer_ext.backends.in_process.rollout import Drawn, Rollout
from trainer_ext.backends.in_process.sampler import load_module, score
from trainer_ext.methods import losses, policy_loss
from trainer_ext.methods.continuing import judged, measures_kl
from trainer_ext.methods.update import Method, Scored, positions, update
from trainer_ext.scoring.scores.evaluation import Answer


class InProcess:
    """A `Backend`: trainer_ext/backends/protocol.py documents its methods."""

    devices = 1

    def __init__(self, config: Mapping[str, Any], cache: Path):
        """config: the run's seed, method, model, task, trainer, and verl's merged tree as `verl`; cache: the folder of
        the models and data that runs share. ValueError: a value cannot work."""
        section, steps = config["method"], int(config["trainer"]["steps"])
        self._seed, self._trainer = int(config["seed"]), config["trainer"]
        self._method = Method.read(section, steps)
        self._verl = verl = deepcopy(config["verl"])
        model_path = initial_model.start(config, cache)
        with open_dict(verl):
            verl.actor_rollout_ref.actor.update(self._method.actor_settings())
        self.actor = Actor(verl, model_path, total_steps=steps)
        self.critic: Critic | None = None
        if section["advantage"] == "gae":
            self.critic = Critic(verl, model_path, total_steps=steps, lr_ratio=float(section["critic_lr_ratio"]))
        self._policy = load_module(model_path, self.actor.model_config, self.actor.weights())
        self._reference = load_module(model_path, self.actor.model_config)
        modules = {"policy": self._policy, "reference": self._reference}
        if (target := target_model.start(config, cache, model_path)) is not None:
            trust = bool(verl.actor_rollout_ref.model.trust_remote_code)
            modules["target"] = load_module(target, trust_remote_code=trust)
        self._target_samples = target_model.samples(section)
        self._prompts = Prompts(config, cache, self.actor.tokenizer, self._seed)
        self._rollout = Rollout({**config, "verl": verl}, self.actor.tokenizer, self._prompts, modules)
        self._rollout.asked = self._prompts.of_run(self._trainer)
        self.parameters = sum(p.numel() for p in self._policy.parameters())
        # numbers of parameters without embeddings: of all models that read each token while sampling, and of the policy
        self._read = sum(map(multiplied_parameters, self._rollout.models))
        self._trained = multiplied_parameters(self._policy)
        self._updated_tokens = 0  # tokens that this step's updates have read, in every epoch
        self.samples = 0
        self.tokens = 0

    def close(self) -> None:
        pass

    @property
    def drawn(self) -> Mapping[str, Any]:
        return self._prompts.drawn

    @property
    def peak_memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def step(self, step: int) -> dict[str, float]:
        self._updated_tokens = 0
        drawn = self._rollout.draw(step)
        pairs = self._rollout.pairs(step) if self._method.reads_pairs_of_task else None
        scored = self._scored(step, drawn, pairs)
        updates = update(self._method, scored, step)
        self._newest = (scored.old, updates.advantages, scored.mask, positions(self._method, scored, drawn.positions))
        values = {**drawn.metrics, **updates.metrics}
        if updates.critic is not None:
            values |= self._update_critic(step, drawn.samples.batch, **updates.critic)
        if updates.policy is not None:
            data = (drawn.trained if pairs is None else pairs).columns()
            values |= self._update(step, data if updates.rows is None else data[updates.rows], updates.policy)

        self.samples += len(drawn.rewards)
        new_tokens = int(scored.mask.sum())
        self.tokens += new_tokens
        values |= {"samples/total": float(self.samples), "tokens/total": float(self.tokens), **self._target_samples}
        flops = 2 * self._read * new_tokens + 6 * self._trained * self._updated_tokens  # a critic: as of the policy
        values["cost/flops_per_sample"] = flops / len(drawn.rewards)
        return values

    def evaluate(self, step: int) -> list[Answer]:
        return self._rollout.evaluate(step, int(self._trainer["eval_samples"]), bool(judged(self._trainer, step)))

    def _scored(self, step: int, drawn: Drawn, pairs: Batch | None) -> Scored:
        """The drawn batch with the models' log-probabilities and values. pairs: the task's own, to be trained on."""
        samples, verl = drawn.samples, self._verl
        rows = int(self.actor.config.ppo_micro_batch_size_per_gpu)
        log_probs = partial(score, temperature=verl.actor_rollout_ref.rollout.temperature, rows=rows)
        bypass = verl.algorithm.rollout_correction.bypass_mode
        needs_reference = self._method.reads_reference(self.actor.config) or measures_kl(self._trainer, step)
        group = torch.arange(len(drawn.rewards), device=drawn.rewards.device) // verl.actor_rollout_ref.rollout.n
        return Scored(
            mask=samples.batch.mask,
            rewards=drawn.rewards,
            group=group,
            old=samples.log_probs if bypass else log_probs(self._policy, samples.batch),
            reference=log_probs(self._reference, samples.batch) if needs_reference else None,
            behaviour=samples.behaviour,
            entropy=samples.entropy,
            collision=samples.collision,
            values=self.critic.values(samples.batch) if self.critic is not None else None,
            pair_reference=log_probs(self._reference, pairs) if pairs is not None else None,
        )

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        return metrics.histograms(*self._newest)

    def _update(self, step: int, data: TensorDict, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Update the policy on all mini-batches of `data`, to which `columns` of the loss are added; mean metrics."""
        config, rate = self.actor.config, self.actor.learning_rate  # the step's last update sets the next step's rate
        data.update(columns)
        unit = 2 if self._method.section["loss"] == "dpo" else None
        loss, info = self._method.loss(config), {"calculate_entropy": bool(config.entropy_coeff)}
        values = _means("actor", self._updates(self.actor, step, data, loss, unit, **info))
        values["actor/lr"] = rate
        if (variance := self.actor.grad_variance.take()) is not None:
            values["actor/grad_variance"] = variance
        return policy_loss.finish(values)

    def _update_critic(self, step: int, batch: Batch, **columns: Tensor) -> dict[str, float]:
        """Update the critic on all mini-batches of the step; the metrics are means over them."""
        rate = self.critic.learning_rate
        loss = partial(losses.value, float(self._method.section["cliprange_value"]))
        values = _means("critic", self._updates(self.critic, step, batch.columns(**columns), loss))
        values["critic/lr"] = rate
        return values | metrics.explained_variance(columns["returns"], columns["values"], batch.mask)

    def _updates(
        self, model: Trained, step: int, data: TensorDict, loss: Any, unit: int | None = None, **info: Any
    ) -> Iterator[dict[str, Any]]:
        """Train a model on all mini-batches of the step, in every epoch; yields the metrics of each.

        unit: rows of a prompt that a shuffle keeps together (2 for pairs); None: rollout.n rows, which it may separate.
        info: as in Trained.update.
        """
        config, rollout = self.actor.config, self._verl.actor_rollout_ref.rollout
        size = min(int(config.ppo_mini_batch_size) * (unit or rollout.n), len(data))
        for epoch in range(config.ppo_epochs):
            rows = data
            if config.shuffle:
                whole = unit or 1
                order = torch.randperm(len(data) // whole, generator=seeded(self._seed, f"shuffle{epoch}", step))
                rows = data[(order[:, None] * whole + torch.arange(whole)).flatten()]
            # after a shuffle a mini-batch may hold no response that rejection sampling accepted
            parts = [part for part in rows.split(size) if bool(part["response_mask"].any())]
            for index, part in enumerate(parts):
                self._updated_tokens += int(part["response_mask"].sum())
                last = epoch == config.ppo_epochs - 1 and index == len(parts) - 1
                info |= {"temperature": rollout.temperature, "global_batch_size": len(part)}
                yield model.update(part.clone(), loss, ends_step=last, **info)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        training, controller = {"samples": self.samples, "tokens": self.tokens}, self._method.controller
        dual = controller.state_dict() if controller else None
        checkpoint.save(folder, self.actor.engine, {"training": training, "controller": dual, "run": state})
        if self.critic is not None:
            checkpoint.save(folder / "critic", self.critic.engine, {})

    def load(self, folder: Path) -> dict[str, Any]:
        state = checkpoint.load(folder, self.actor.engine)
        self.samples, self.tokens = state["training"]["samples"], state["training"]["tokens"]
        if self.critic is not None:
            checkpoint.load(folder / "critic", self.critic.engine)
        if self._method.controller:
            self._method.controller.load_state_dict(state["controller"])
        return dict(state["run"])


def multiplied_parameters(module: Any) -> int:
    """The number of parameters without input and output embeddings, N of cost/flops_per_sample in docs/metrics.md."""
    ends = (module.get_input_embeddings().weight, module.get_output_embeddings().weight)
    embedding = sum({id(weight): weight.numel() for weight in ends}.values())  # tied embeddings count once
    return sum(p.numel() for p in module.parameters()) - embedding


def _means(model: str, collected: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Means over the mini-batches of what loss and engine reported and docs/metrics.md names, by these names."""
    values: dict[str, list[float]] = {}
    for reported in collected:
        for key, value in reported.items():
            name = f"{model}/grad_norm" if key == "grad_norm" else key
            if "/" in name and not name.startswith("perf/"):
                values.setdefault(name, []).append(_number(value))
    return {key: sum(items) / len(items) for key, items in values.items()}


def _number(value: Any) -> float:
    if isinstance(value, list):  # one share for each micro-batch
        return sum(map(_number, value))
    return float(value.aggregate() if isinstance(value, Metric) else value)
