"""Training on verl in one process: sampling, scoring, advantages and updates of one step, without Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import Metric

from trainer_ext import metrics, tasks
from trainer_ext.backends.in_process import checkpoint, initial_model, losses, platform, target_model
from trainer_ext.backends.in_process.batch import Batch
from trainer_ext.backends.in_process.engine import Actor, Critic, Trained
from trainer_ext.backends.in_process.prompts import Prompts, seeded
from trainer_ext.backends.in_process.rollout import Answer, Drawn, Rollout
from trainer_ext.backends.in_process.sampler import load_module, score
from trainer_ext.methods import control, estimators, policy_loss, preference
from trainer_ext.methods.importance_weights import importance_weights, weight_metrics


class InProcess:
    """One run's training; `step` does one step and gives its metrics, `save` and `load` carry everything over."""

    def __init__(self, config: Mapping[str, Any], cache: Path):
        verl: DictConfig = config["verl"]
        method = config["method"]
        self._verl, self._seed = verl, int(config["seed"])
        self._device = platform.use()
        temperature = verl.actor_rollout_ref.rollout.temperature
        if not temperature > 0:
            raise ValueError(f"verl.actor_rollout_ref.rollout.temperature={temperature}: sampling needs one above 0")
        _check_sizes(verl, method)
        model_path = initial_model.start(config, cache)
        verl = OmegaConf.create(OmegaConf.to_container(verl, resolve=False))
        with open_dict(verl):
            verl.actor_rollout_ref.actor.policy_loss = policy_loss.policy_loss_config(method)
            verl.actor_rollout_ref.actor.loss_agg_mode = method.get("loss_agg_mode", "token-mean")
        self._method, steps = method, int(config["trainer"]["steps"])
        self._algorithm = estimators.algorithm_config(method)
        self.actor = Actor(verl, model_path, total_steps=steps)
        self.critic: Critic | None = None
        if method["advantage"] == "gae":
            self.critic = Critic(verl, model_path, total_steps=steps, lr_ratio=float(method["critic_lr_ratio"]))
        self._policy = load_module(model_path, self.actor.model_config, self.actor.weights())
        self._reference = load_module(model_path, self.actor.model_config)
        self._controller = policy_loss.controller(method, steps)
        modules = {"policy": self._policy, "reference": self._reference}
        if method["target"] != "none":
            modules["target"] = load_module(target_model.start(config, cache, model_path))
        path = tasks.prepare(initial_model.plain(config["task"]), cache)
        prompts = Prompts(path, self.actor.tokenizer, int(verl.data.max_prompt_length), self._seed)
        task = config["task"]["name"]
        self._rollout = Rollout(method, verl, task, self.actor.tokenizer, prompts, modules, self._seed, self._device)
        self._trainer = config["trainer"]
        self.parameters = sum(p.numel() for p in self._policy.parameters())
        # of a response's token: read by each model that samples, and passed forward and back by each that is trained
        self._read, self._trained = sum(map(_multiplied, self._rollout.models)), _multiplied(self._policy)
        self._updated_tokens = 0  # in this step
        self.samples = 0
        self.tokens = 0

    def step(self, step: int) -> dict[str, float]:
        """Sample, score, update. Returns the step's metrics but for those that `train` measures."""
        self._answers: list[Answer] = []
        self._updated_tokens = 0
        drawn = self._rollout.draw(step)
        batch, mask, rewards = drawn.samples.batch, drawn.samples.batch.mask, drawn.rewards
        temperature = self._verl.actor_rollout_ref.rollout.temperature
        rows = int(self.actor.config.ppo_micro_batch_size_per_gpu)
        old = drawn.samples.log_probs
        if not self._verl.algorithm.rollout_correction.bypass_mode:
            old, _ = score(self._policy, batch, temperature=temperature, rows=rows)
        reference, _ = score(self._reference, batch, temperature=temperature, rows=rows)
        token_rewards = torch.zeros_like(old).scatter_(1, mask.sum(dim=1, keepdim=True) - 1, rewards[:, None])
        group = torch.arange(len(rewards), device=rewards.device) // self._verl.actor_rollout_ref.rollout.n
        seen = self.critic.values(batch) if self.critic is not None else None
        plain, returns = estimators.advantages(self._algorithm, token_rewards, mask, group, seen)

        self._newest = (old, plain, mask, drawn.alphas)
        values = {**drawn.metrics, **metrics.analysis_metrics(old, plain, token_rewards, mask)}
        values["analysis/entropy_full_mean"] = float(drawn.samples.entropy.double().sum() / mask.sum())
        drawn_by = importance_weights(old, drawn.samples.behaviour, mask, "raw")  # 1 where the policy drew
        values["actor/kl_init"] = control.kl_per_token(old, reference, mask, drawn_by)
        if self._method["loss"] == "sft":
            values |= self._update_sft(step, drawn.trained)
        elif self._method["loss"] == "dpo":
            values |= self._update_dpo(step, drawn, reference)
        elif self._method["loss"] == "policy_gradient":
            if seen is not None:
                values |= self._update_critic(step, batch, values=seen, returns=returns)
            if self.critic is None or step > self._method["critic_warmup"]:
                values |= self._update_policy(step, drawn, old, reference, plain)

        self.samples += len(rewards)
        new_tokens = int(mask.sum())
        self.tokens += new_tokens
        values |= {"samples/total": float(self.samples), "tokens/total": float(self.tokens)}
        flops = 2 * self._read * new_tokens + 6 * self._trained * self._updated_tokens  # a critic is of about that size
        values["cost/flops_per_sample"] = flops / len(rewards)
        every = self._trainer["eval_every"]
        if every and (step % every == 0 or step == self._trainer["steps"]):
            found = self._rollout.evaluate(step, int(self._trainer["eval_prompts"]))
            values["eval/reward_mean"], self._answers = found.reward_mean, found.answers
        return values

    def answers(self, most: int) -> list[Answer]:
        """The first `most` answers of the newest step's evaluation, to the same prompts every time; or none."""
        return self._answers[:most]

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        """Histograms over the newest step's tokens."""
        old, plain, mask, alphas = self._newest
        return metrics.histograms(old, plain, mask, alphas)

    def _update_policy(
        self, step: int, drawn: Drawn, old: Tensor, reference: Tensor, advantages: Tensor
    ) -> dict[str, float]:
        """Credit, control, importance weights, and the policy's updates."""
        mask = drawn.samples.batch.mask
        weights, values = estimators.credit_weights(self._method["credit"], old, mask, drawn.samples.collision)
        advantages = advantages * weights
        if self._controller is not None:
            weight = self._controller.settings.weight
            statistics = control.statistics(old, reference, advantages, mask, drawn.rewards, weight)
            self._controller.update(statistics)
            values |= self._controller.metrics(statistics)
            advantages = self._controller.advantages(old, reference, advantages) * mask
        columns = {"old_log_probs": old, "ref_log_prob": reference, "advantages": advantages}
        if self._method["sampler"] in ("target", "geometric"):
            treatment = self._method["weights"]
            bounds = {k: float(self._method[f"weight_{k}"]) for k in ("low", "high") if treatment == "clipped"}
            columns["rollout_is_weights"] = importance_weights(old, drawn.samples.behaviour, mask, treatment, **bounds)
            values |= weight_metrics(columns["rollout_is_weights"], mask)
        return values | self._update(step, drawn.trained, **columns)

    def _update_sft(self, step: int, batch: Batch) -> dict[str, float]:
        config = self.actor.config
        loss = partial(losses.likelihood, config.loss_agg_mode, loss_scale_factor=config.loss_scale_factor)
        return self._updated(step, batch.columns(), loss)

    def _update_dpo(self, step: int, drawn: Drawn, reference: Tensor) -> dict[str, float]:
        """Pairs of the group or of the task; without a pair whose rewards differ nothing is updated."""
        if self._method["dpo_pairs"] == "group":
            rows, differ = preference.best_and_worst(drawn.rewards, int(self._verl.actor_rollout_ref.rollout.n))
            data = drawn.samples.batch.columns(ref_log_prob=reference)[rows]
        else:
            batch = self._rollout.pairs(step)
            temperature = self._verl.actor_rollout_ref.rollout.temperature
            micro = int(self.actor.config.ppo_micro_batch_size_per_gpu)
            reference, _ = score(self._reference, batch, temperature=temperature, rows=micro)
            data, differ = batch.columns(ref_log_prob=reference), torch.ones(len(batch.mask) // 2, dtype=torch.bool)
        if not bool(differ.any()):
            return {}
        # a mini-batch's pairs have a mean weight of one over the step, whatever share of them says anything
        data["pair_weight"] = (differ / differ.float().mean()).repeat_interleave(2)
        return self._updated(step, data, partial(losses.dpo, float(self._method["dpo_beta"])), unit=2)

    def _update(self, step: int, batch: Batch, **columns: Tensor) -> dict[str, float]:
        info = {"calculate_entropy": bool(self.actor.config.entropy_coeff)}
        loss = partial(losses.policy, self.actor.config)
        return policy_loss.finish(self._updated(step, batch.columns(**columns), loss, **info))

    def _updated(
        self, step: int, data: TensorDict, loss: Any, unit: int | None = None, **info: Any
    ) -> dict[str, float]:
        """The policy's updates of the step; the metrics are means over its mini-batches."""
        rate = self.actor.learning_rate
        values = _means("actor", self._updates(self.actor, step, data, loss, unit, **info))
        values["actor/lr"] = rate
        variance = self.actor.engine.take_grad_variance()
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

    def _updates(
        self, model: Trained, step: int, data: TensorDict, loss: Any, unit: int | None = None, **info: Any
    ) -> Iterator[dict[str, Any]]:
        """Train a model on all mini-batches of the step, in every epoch; gives what each reported.

        unit: rows of a prompt, which a shuffle of pairs keeps together; None: rollout.n, which it need not.
        """
        config, rollout = self.actor.config, self._verl.actor_rollout_ref.rollout
        size = min(int(config.ppo_mini_batch_size) * (unit or rollout.n), len(data))
        for epoch in range(config.ppo_epochs):
            rows = data
            if config.shuffle:
                whole = unit or 1
                order = torch.randperm(len(data) // whole, generator=seeded(self._seed, f"shuffle{epoch}", step))
                rows = data[(order[:, None] * whole + torch.arange(whole)).flatten()]
            # shuffled, a mini-batch may hold no response that rejection sampling accepted
            parts = [part for part in rows.split(size) if bool(part["response_mask"].any())]
            for index, part in enumerate(parts):
                self._updated_tokens += int(part["response_mask"].sum())
                last = epoch == config.ppo_epochs - 1 and index == len(parts) - 1
                info |= {"temperature": rollout.temperature, "global_batch_size": len(part)}
                yield model.update(part.clone(), loss, update_lr_scheduler=last, **info)

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


def _check_sizes(verl: DictConfig, method: Mapping[str, Any]) -> None:
    """ValueError: mini-batches that micro-batches do not divide, or in which DPO finds no pairs."""
    actor, n = verl.actor_rollout_ref.actor, int(verl.actor_rollout_ref.rollout.n)
    if method["loss"] == "none":
        return
    pairs = method["loss"] == "dpo"
    if pairs and method["dpo_pairs"] == "group" and n < 2:
        raise ValueError(
            f"verl.actor_rollout_ref.rollout.n={n}: a pair is of two responses to a prompt; "
            "make it 2 or more, or set method.dpo_pairs=data"
        )
    prompts, key = int(verl.data.train_batch_size), "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    whole = min(int(actor.ppo_mini_batch_size), prompts)
    for one in {whole, prompts % whole} - {0}:
        rows, unit = (2 * one, "2") if pairs else (n * one, "rollout.n")
        micro = min(int(actor.ppo_micro_batch_size_per_gpu), rows)
        if rows % micro or (pairs and micro % 2):
            even = " that is even, for pairs stay together" if pairs else ""
            raise ValueError(
                f"{key}={micro} does not divide a mini-batch of {rows} responses "
                f"(ppo_mini_batch_size prompts, of {prompts}, times {unit}): make it a divisor{even}"
            )


def _multiplied(module: Any) -> int:
    """Parameters without embeddings: those that are multiplied for each token."""
    ends = (module.get_input_embeddings().weight, module.get_output_embeddings().weight)
    embedding = sum({id(weight): weight.numel() for weight in ends}.values())  # tied ones are one
    return sum(p.numel() for p in module.parameters()) - embedding


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
