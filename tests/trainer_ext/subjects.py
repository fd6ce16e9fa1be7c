"""Each function that the methods are made of, with its loop in plain Python: test_laws.py holds all of them to the same
laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.configuration import configuration
from tests.trainer_ext import equations as loops
from tests.trainer_ext.batches import Batch, Rows
from tests.trainer_ext.equations import COMBINATIONS, RATIOS, REGIONS, SMOOTHINGS, by_row, each
from trainer_ext import metrics, registry
from trainer_ext.methods import advantage, control, credit, ratio, trust_region
from trainer_ext.methods import policy_loss as composition


def ratio_settings(smoothing: float | None, choice: str) -> dict[str, Any]:
    """The parts `smoothing` and `ratio` of a method."""
    smoothed = {"smoothing": "none"} if smoothing is None else {"smoothing": "ema", "ema_beta": smoothing}
    return {**smoothed, "ratio": choice}


def loss_config(smoothing: float | None, choice: str, region: str, **parameters: Any) -> SimpleNamespace:
    """What verl hands to a policy loss, for a composed method."""
    method = {**ratio_settings(smoothing, choice), "trust_region": region, **REGIONS[region][1], **parameters}
    return SimpleNamespace(policy_loss=SimpleNamespace(**composition.policy_loss_config(method)), global_batch_info={})


def own_policy_loss(b: Batch, smoothing: float | None, choice: str, region: str) -> dict[str, float]:
    loss, found = composition.policy_loss(
        -0.25 * b.log_ratio, 0.75 * b.log_ratio, b.advantages, b.mask, config=loss_config(smoothing, choice, region)
    )
    # of no token at all verl's average is NaN, and it is verl's
    return {"loss": float(loss) if any(map(any, b.valid)) else 0.0, **composition.finish(found)}


@cache  # properties ask for them in every example
def _shipped_dual_settings() -> control.DualSettings:
    settings = registry.control.choice(configuration("method=bnto_minimal")["method"])()
    assert isinstance(settings, control.DualSettings)
    return settings


def dual_settings(**changes: Any) -> control.DualSettings:
    """The settings of conf/method/control/dual.yaml with some changed."""
    return replace(_shipped_dual_settings(), **changes)


@dataclass(frozen=True)
class Subject:
    """A function of the project and its loop: both take a batch and give (B, T), or numbers by name."""

    function: Callable[[Batch], Tensor | dict[str, float]]
    loop: Callable[[Batch], Rows | dict[str, float]]
    everywhere: bool = False  # whether the value is also said where the mask is false
    half: bool = True  # whether it takes half precision


def _estimated(b: Batch, **method: Any) -> Tensor:
    return advantage.advantages(registry.advantage.choice(method)(), b.rewards, b.mask, b.group)[0]


def _dual(weight: str) -> control.DualController:
    controller = control.DualController(dual_settings(weight=weight, gamma=1.5), total_steps=10)
    controller.load_state_dict({**controller.state_dict(), "lam": 2.0, "beta": 0.5})
    return controller


def _collision(b: Batch) -> Tensor:
    return (b.logits.double().softmax(-1) ** 2).sum(-1)


def _statistics(b: Batch, weight: str) -> dict[str, float]:
    rewards = torch.tensor(loops.returns(b), dtype=torch.float64)
    return vars(control.statistics(b.logp, b.reference, b.advantages, b.mask, rewards, weight))


def _of_tokens(b: Batch, loop: Callable[..., float], **settings: Any) -> Rows:
    return each(partial(loop, **settings), b.floats.logp, b.floats.advantages, b.floats.reference)


PROXY, EXACT = ({"gradient_adaptive": {"tau": 0.7, "norm": norm}} for norm in ("proxy", "exact"))
DECAY = {"temporal_decay": {"gamma": 0.8, "schedule": "exponential", "normalize": "mean"}}

SUBJECTS: dict[str, Subject] = {}
for beta in (0.9, 0.3, 0.001):
    SUBJECTS[f"ema {beta}"] = Subject(
        lambda b, beta=beta: ratio.ema(b.ratio, b.mask, beta),
        lambda b, beta=beta: by_row(loops.ema, b.floats.ratio, b.valid, beta),
    )
SUBJECTS["sequence_arithmetic"] = Subject(
    lambda b: ratio.sequence_arithmetic(b.ratio, b.mask),
    lambda b: by_row(loops.sequence_arithmetic, b.floats.ratio, b.valid),
    everywhere=True,
)
SUBJECTS["sequence_geometric"] = Subject(
    lambda b: ratio.sequence_geometric(b.log_ratio, b.mask),
    lambda b: by_row(loops.sequence_geometric, b.floats.log_ratio, b.valid),
    everywhere=True,
)
for schedule, normalize in product(("exponential", "log_position"), ("mean", "sum", "none")):
    settings = (0.8, schedule, normalize)
    SUBJECTS[f"temporal_decay {schedule} {normalize}"] = Subject(
        lambda b, settings=settings: credit.temporal_decay(b.mask.to(b.logp.dtype), *settings),
        lambda b, settings=settings: [loops.temporal_decay(marks, *settings) for marks in b.valid],
        everywhere=True,
    )
SUBJECTS["gradient_adaptive"] = Subject(
    lambda b: credit.gradient_adaptive(b.logp, b.mask, tau=0.7),
    lambda b: by_row(loops.gradient_adaptive, each(abs, b.floats.logp), b.valid, 0.7),
    everywhere=True,
)
SUBJECTS["gradient_adaptive logits"] = Subject(
    lambda b: credit.gradient_adaptive(b.logp, b.mask, tau=0.2, logits=b.logits),
    lambda b: by_row(loops.gradient_adaptive, each(loops.score_norm, b.floats.logp, b.floats.logits), b.valid, 0.2),
    everywhere=True,
)
for name, chosen in {"none": {}, "exact": EXACT, "both": {**PROXY, **DECAY}}.items():
    SUBJECTS[f"credit_weights {name}"] = Subject(
        lambda b, chosen=chosen: credit.credit_weights(chosen, b.logp, b.mask, _collision(b))[0],
        lambda b, chosen=chosen: loops.credit_product(b, chosen)[0],
    )
    SUBJECTS[f"credit metrics {name}"] = Subject(
        lambda b, chosen=chosen: credit.credit_weights(chosen, b.logp, b.mask, _collision(b))[1],
        lambda b, chosen=chosen: loops.credit_product(b, chosen)[1],
    )
for own, loop, parameters in (
    (trust_region.clip, loops.clip, ()),
    (trust_region.clip, loops.clip, (0.2, 0.28, 10.0)),
    (trust_region.asymmetric_clip, loops.asymmetric_clip, ()),
    (trust_region.asymmetric_clip, loops.asymmetric_clip, (0.05, 0.4)),
    (trust_region.gaussian, loops.gaussian, ()),
    (trust_region.gaussian, loops.gaussian, (0.5,)),
):
    SUBJECTS[" ".join(map(str, (own.__name__, *parameters)))] = Subject(
        lambda b, own=own, parameters=parameters: own(b.ratio, b.advantages, *parameters),
        lambda b, loop=loop, parameters=parameters: each(
            lambda r, a: loop(r, a, *parameters), b.floats.ratio, b.floats.advantages
        ),
    )
for name, method, loop in (
    ("grpo", {"advantage": "grpo", "norm_adv_by_std_in_grpo": True}, loops.grpo),
    ("dr_grpo", {"advantage": "grpo", "norm_adv_by_std_in_grpo": False}, partial(loops.grpo, normalize=False)),
    ("raw", {"advantage": "raw"}, loops.raw),
):
    SUBJECTS[name] = Subject(lambda b, method=method: _estimated(b, **method), loop, everywhere=True)
for weight in ("entropy", "kl_gated"):
    SUBJECTS[f"token_weight {weight}"] = Subject(
        lambda b, weight=weight: control.token_weight(b.logp, b.advantages, b.reference, weight),
        lambda b, weight=weight: _of_tokens(b, loops.token_weight, weight=weight),
    )
    SUBJECTS[f"dual advantages {weight}"] = Subject(
        lambda b, weight=weight: _dual(weight).advantages(b.logp, b.reference, b.advantages),
        lambda b, weight=weight: _of_tokens(b, loops.dual_advantage, weight=weight, gamma=1.5, lam=2.0, beta=0.5),
    )
    SUBJECTS[f"dual statistics {weight}"] = Subject(
        partial(_statistics, weight=weight), partial(loops.dual_statistics, weight=weight)
    )
SUBJECTS["analysis"] = Subject(
    lambda b: metrics.analysis_metrics(b.logp, b.advantages, b.rewards, b.mask), loops.analysis
)
for smoothing, choice in product(SMOOTHINGS, RATIOS):
    SUBJECTS[f"importance_ratio {smoothing} {choice}"] = Subject(
        lambda b, smoothing=smoothing, choice=choice: composition.importance_ratio(
            b.log_ratio, b.mask, ratio_settings(smoothing, choice)
        )[0],
        lambda b, smoothing=smoothing, choice=choice: loops.importance(b, smoothing, choice)[0],
    )
for combination in COMBINATIONS:
    SUBJECTS[" ".join(["policy_loss", *map(str, combination)])] = Subject(
        lambda b, combination=combination: own_policy_loss(b, *combination),
        lambda b, combination=combination: loops.policy_loss(b, *combination),
        half=False,
    )
