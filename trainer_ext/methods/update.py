"""One step of a method: from the whole scored batch to the columns that the updates read, and the step's metrics.

The order is fixed here for every backend: advantages, analysis metrics, credit, control, importance weights, columns of
the loss. A backend scores the batch, hands it to `update`, and carries the columns to its optimisers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig

from trainer_ext import metrics, registry
from trainer_ext.methods import advantage, control, credit, policy_loss
from trainer_ext.methods.losses import Loss, best_and_worst

# w of tokens and which of them are valid, (B, T) of the whole batch -> weights
registry.weights("none")(lambda w, valid: torch.ones_like(w))
registry.weights("raw")(lambda w, valid: w)
registry.weights("clipped", prefix="weight_")(lambda w, valid, low, high: w.clamp(low, high))
registry.weights("normalized")(lambda w, valid: w / w[valid].mean())


@dataclass(frozen=True)
class Scored:
    """A step's whole batch of B responses of at most T tokens, at the policy that is about to be updated.

    mask: (B, T) bool; rewards: (B,); group: (B,) int64, a number for each prompt, whose responses are adjacent and as
    many as any other's. The others are (B, T): log-probabilities of the tokens under the policy (old), the reference
    (None where nothing reads it in the step), and what they were drawn from (behaviour); the policy's entropy and sum
    of squared probabilities (collision); a critic's values. pair_reference: (2 P, T), the reference's log-probabilities
    of the task's own pairs.
    """

    mask: Tensor
    rewards: Tensor
    group: Tensor
    old: Tensor
    reference: Tensor | None
    behaviour: Tensor
    entropy: Tensor
    collision: Tensor
    values: Tensor | None = None
    pair_reference: Tensor | None = None


@dataclass(frozen=True)
class Update:
    """What the updates of a step read beside the responses.

    advantages: (B, T), before credit and control. policy, critic: columns by the names that the losses read; None: no
    update in this step. rows: the rows of the batch that the policy's columns are for; None: all, or the task's pairs.
    """

    advantages: Tensor
    metrics: dict[str, float]
    policy: dict[str, Tensor] | None
    critic: dict[str, Tensor] | None
    rows: Tensor | None


@dataclass(frozen=True)
class Method:
    """A method read into its parts. The controller is the only one with a state, which a backend saves."""

    section: Mapping[str, Any]
    algorithm: AlgoConfig
    controller: control.Controller | None

    @classmethod
    def read(cls, section: Mapping[str, Any], total_steps: int) -> Method:
        """ValueError: a choice is unknown, or a setting is missing or read by no choice."""
        registry.check(section)
        return cls(section, registry.advantage.choice(section)(), control.controller(section, total_steps))

    @property
    def reads_pairs_of_task(self) -> bool:
        """Whether DPO is to learn from pairs of the task instead of drawn responses."""
        return bool(self.section["loss"] == "dpo" and self.section["dpo_pairs"] == "data")

    def reads_reference(self, actor: Any) -> bool:
        """Whether each step reads the reference's log-probabilities of the drawn responses; actor: verl's section."""
        kl_loss = self.section["loss"] == "policy_gradient" and bool(actor.use_kl_loss)
        drawn_pairs = self.section["loss"] == "dpo" and not self.reads_pairs_of_task
        return kl_loss or drawn_pairs or self.controller is not None

    def actor_settings(self) -> dict[str, Any]:
        """The keys of verl's `actor` section that the method sets."""
        settings = {key: value for key, value in self.section.items() if key == "loss_agg_mode"}
        return {**settings, "policy_loss": policy_loss.policy_loss_config(self.section)}

    def loss(self, actor_config: Any) -> Loss | None:
        """The loss of the policy's update under verl's signature; None: nothing is trained."""
        loss: Loss | None = registry.loss.choice(self.section)(actor_config)
        return loss


def update(method: Method, scored: Scored, step: int) -> Update:
    """The step's update; `step` counts from 1. A controller takes its own step with each update of the policy."""
    mask, old = scored.mask, scored.old
    rewards = _at_last_token(scored.rewards.to(old.dtype), mask)
    plain, returns = advantage.advantages(method.algorithm, rewards, mask, scored.group, scored.values)
    values = metrics.analysis_metrics(old, plain, rewards, mask)
    values["analysis/entropy_full_mean"] = float(scored.entropy.double().sum() / mask.sum())
    if scored.reference is not None:
        drawn_by = importance_weights(old, scored.behaviour, mask)  # 1 where the policy drew the token
        values["actor/kl_init"] = control.kl_per_token(old, scored.reference, mask, drawn_by)

    critic: dict[str, Tensor] | None = None
    columns: dict[str, Tensor] | None = None
    rows: Tensor | None = None
    loss = method.section["loss"]
    if loss == "sft":
        columns = {}
    elif loss == "dpo":
        rows, columns = _pair_columns(scored)
    elif loss == "policy_gradient":
        if scored.values is not None:
            critic = {"values": scored.values, "returns": returns}
        if scored.values is None or step > method.section["critic_warmup"]:
            columns = _policy_columns(method, scored, plain, values)
    return Update(plain, values, columns, critic, rows)


def _policy_columns(method: Method, scored: Scored, plain: Tensor, values: dict[str, float]) -> dict[str, Tensor]:
    """Credit, control and importance weights; their metrics are added to `values`."""
    section, mask, old, reference = method.section, scored.mask, scored.old, scored.reference
    weights, reported = credit.credit_weights(section["credit"], old, mask, scored.collision)
    values |= reported
    advantages = plain * weights
    columns = {"old_log_probs": old}
    if reference is not None:
        columns["ref_log_prob"] = reference
    if method.controller is not None:
        assert reference is not None
        statistics = control.statistics(old, reference, advantages, mask, scored.rewards, method.controller.weight)
        method.controller.update(statistics)
        values |= method.controller.metrics(statistics)
        advantages = method.controller.advantages(old, reference, advantages) * mask
    columns["advantages"] = advantages
    if section["sampler"] in registry.WITH_TARGET:
        treatment = registry.weights.choice(section)
        columns["rollout_is_weights"] = importance_weights(old, scored.behaviour, mask, treatment)
        values |= weight_metrics(importance_weights(old, scored.behaviour, mask), mask)  # before their treatment
    return columns


def importance_weights(
    log_probs: Tensor, behaviour: Tensor, mask: Tensor, treatment: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """w = pi_theta(y) / q(y) of each token, (B, T), no gradient; 0 where the mask is false.

    log_probs: under the policy; behaviour: under the distribution drawn from, both (B, T). treatment: a choice of the
    part `weights`; None: w as it is.
    """
    valid = mask.bool()
    w = torch.where(valid, log_probs.detach() - behaviour.detach(), 0.0).clamp(-20.0, 20.0).exp()
    return torch.where(valid, treatment(w, valid) if treatment else w, 0.0)


def weight_metrics(weights: Tensor, mask: Tensor) -> dict[str, float]:
    """The qstar/weight_* values over the valid tokens."""
    valid = weights[mask.bool()].double()
    mean = float(valid.mean())
    return {
        "qstar/weight_max": float(valid.max()),
        "qstar/weight_min": float(valid.min()),
        "qstar/weight_mean": mean,
        "qstar/weight_cv": float(valid.std(unbiased=False)) / mean,
    }


def positions(method: Method, scored: Scored, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of tokens by the name of their histogram: those that the sampler saw, and the logarithm of the importance
    weights before their treatment."""
    if method.section["sampler"] not in registry.WITH_TARGET or method.section["loss"] != "policy_gradient":
        return dict(drawn)
    return {**drawn, "log_weight": (scored.old - scored.behaviour)[scored.mask.bool()]}


def _pair_columns(scored: Scored) -> tuple[Tensor | None, dict[str, Tensor] | None]:
    """Rows and columns of DPO's pairs; no columns where no prompt has two responses of different reward."""
    rows: Tensor | None = None
    if (reference := scored.pair_reference) is not None:
        differ = torch.ones(len(reference) // 2, dtype=torch.bool)
    else:
        responses = len(scored.rewards) // int(torch.unique(scored.group).numel())
        rows, differ = best_and_worst(scored.rewards, responses)
        assert scored.reference is not None
        reference = scored.reference[rows]
    if not bool(differ.any()):
        return rows, None
    # the mean weight over the step is one, whatever the share of pairs whose rewards differ
    weight = (differ / differ.float().mean()).repeat_interleave(2)
    return rows, {"ref_log_prob": reference, "pair_weight": weight}


def _at_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """(B,) rewards of responses as rewards of tokens, (B, T): each at the last valid token of its row."""
    last = (mask.long() * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(dim=1, keepdim=True)
    return torch.zeros(mask.shape, dtype=rewards.dtype, device=mask.device).scatter_(1, last, rewards[:, None])
