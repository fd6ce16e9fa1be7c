"""For runs of verl itself: `VERL_USE_EXTERNAL_MODULES=trainer_ext.backends.plugin python -m verl.trainer.main_ppo ...`.

verl imports the module in each of its processes. It brings the policy loss `rlsweep_parts` and the advantage estimators
`rlsweep_grpo` and `rlsweep_raw`, and adds the analysis metrics to each step (docs/plain-verl.md).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import verl
from torch import Tensor
from verl.trainer.ppo import metric_utils
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.utils import config as verl_config
from verl.workers.config import PolicyLossConfig

from trainer_ext import metrics, registry
from trainer_ext.methods import advantage, policy_loss  # noqa: F401  (advantage registers its estimators)

#: The version whose functions are extended here.
VERL = "0.9.1"
#: The policy loss, as the value of loss_mode.
LOSS = "rlsweep_parts"
_AT = "actor_rollout_ref.actor.policy_loss"


@dataclass
class PartsConfig(PolicyLossConfig):
    """verl's policy loss configuration with `method`: the choices of smoothing, ratio and trust_region, and all of
    their settings.

    verl makes it before it starts Ray. ValueError: a choice is unknown, a setting is missing, unknown or impossible.
    """

    method: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss_mode != LOSS:
            raise ValueError(
                f"{_AT}.loss_mode={self.loss_mode!r} does not read {_AT}.method; fix: set {_AT}.loss_mode={LOSS}, or "
                f"remove {_AT}._target_"
            )
        try:
            registry.check_parts(self.method, policy_loss.PARTS)
        except ValueError as error:
            raise ValueError(f"{_AT}: {error}") from error
        one = torch.ones(1, 1)
        settings = ", ".join(f"{key}={value!r}" for key, value in self.method.items())
        try:  # values, too, are refused before anything starts
            ratio, _ = policy_loss.importance_ratio(torch.zeros(1, 1), one, self.method)
            loss = registry.trust_region.choice(self.method)(ratio, one)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_AT}.method cannot be used: {error}; it has {settings}") from error
        if not loss.isfinite():
            raise ValueError(f"{_AT}.method gives the loss {float(loss)} at the ratio 1; it has {settings}")


@register_policy_loss(LOSS)
def parts_loss(*given: Any, **named: Any) -> tuple[Tensor, dict[str, float]]:
    """`policy_loss.policy_loss` of config.policy_loss.method for verl's own ppo_loss.

    Metrics are means over the micro-batch, as those of verl's losses are: verl averages them over micro-batches and
    ranks.
    """
    loss, means = policy_loss.policy_loss(*given, **named, in_shares=False)
    means = policy_loss.finish(means)
    # only where the ratios differ, and verl refuses metrics that some micro-batches lack
    means.pop("ema/variance_reduction_ratio", None)
    return loss, means


def check_loss(section: Mapping[str, Any]) -> None:
    """ValueError: verl's section actor.policy_loss names the loss, but not the class that holds its settings."""
    target = f"{__name__}.{PartsConfig.__name__}"
    if section["loss_mode"] == LOSS and section["_target_"] != target:
        raise ValueError(
            f"{_AT}._target_={section['_target_']}: {_AT}.loss_mode={LOSS} has its settings in another class; fix: set "
            f"{_AT}._target_={target}, and the parts and their settings with +{_AT}.method.KEY=VALUE"
        )


def step_metrics(columns: Mapping[str, Tensor]) -> dict[str, float]:
    """The analysis metrics of the whole batch of a step, from verl's columns, (B, T) each.

    Empty where verl has not kept the log-probabilities of the policy before the update.
    """
    if "old_log_probs" not in columns:
        return {}
    names = ("old_log_probs", "advantages", "token_level_scores", "response_mask")
    return metrics.analysis_metrics(*(columns[name] for name in names))


def _replace(function: Callable[..., Any], by: Callable[..., Any]) -> None:
    """Put a function in the place of one of verl's, also in the modules that have imported that by name."""
    wrapped = functools.wraps(function)(by)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "verl" and vars(module).get(function.__name__) is function:
            setattr(module, function.__name__, wrapped)


def _extend() -> None:
    """Check the configuration before verl starts Ray, and add the metrics to those of each step."""
    validate, compute = verl_config.validate_config, metric_utils.compute_data_metrics
    read = metric_utils.get_metric_data_with_optional_routed_experts

    def checked(config: Any, *given: Any, **named: Any) -> None:
        check_loss(config.actor_rollout_ref.actor.policy_loss)
        validate(config, *given, **named)

    def with_log_probs(*given: Any, fields: Sequence[str], **named: Any) -> Any:
        return read(*given, fields=[*fields, "old_log_probs"], **named)

    def with_analysis(batch: Any, *given: Any, **named: Any) -> dict[str, Any]:
        return {**compute(batch, *given, **named), **step_metrics(batch.batch)}

    _replace(validate, checked)
    _replace(read, with_log_probs)
    _replace(compute, with_analysis)


if verl.__version__ != VERL:
    raise ImportError(
        f"{__name__} extends the trainer of verl {VERL}; verl {verl.__version__} is installed; fix: install "
        f"verl=={VERL}, or remove {__name__} from VERL_USE_EXTERNAL_MODULES"
    )
_extend()
