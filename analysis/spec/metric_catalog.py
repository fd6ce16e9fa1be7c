"""How a report names a metric: label, unit, and what a reader must know where it is shown.

Metrics may be made of recorded ones, for hypotheses: |KEY| is the magnitude, |KEY - NUMBER| the distance from a number,
KEY - KEY a difference, KEY + KEY a sum, each step by step.

A metric of the responses that a run trains on is about the policy that drew them. Two methods can be compared by it
only if both draw from policies of the same kind: for likelihood training on an expert's responses, the mean reward is
the expert's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from analysis.spec.cell import grouped

_KEY = r"[^\s|]+"
_NUMBER = r"\d+(?:\.\d+)?"
_ONE = rf"\|(?P<one>{_KEY})(?: - (?P<number>{_NUMBER}))?\|"
_FORM = re.compile(rf"{_ONE}|(?P<left>{_KEY}) (?P<sign>[+-]) (?P<right>{_KEY})")


@dataclass(frozen=True)
class Derived:
    """keys: one metric for a magnitude (sign |), two for a difference (-) or a sum (+). number: that a magnitude is the
    distance from."""

    sign: str
    keys: tuple[str, ...]
    number: float = 0.0


def parse(text: str) -> Derived | None:
    """How a metric is derived; None: it is a recorded one."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    single, left, sign, right = match.group("one", "left", "sign", "right")
    return Derived("|", (single,), float(match["number"] or 0)) if single else Derived(sign, (left, right))


def keys(text: str) -> tuple[str, ...]:
    """The recorded metrics that a metric, derived or not, is made of."""
    derived = parse(text)
    return (text,) if derived is None else derived.keys


SURROGATE = (
    "the selected token's surrogate, mean of -p log p over the sampled tokens: not an entropy "
    "(it read 0.14 where the full entropy was 0.78)"
)
_WH = f"wH weighs {SURROGATE}"
BUDGET = (
    "it bounds the method's own weighted entropy, which is the one shown unless the weight is KL-gated "
    "(then see dual_game/usage_ratio)"
)

#: The metric behind each axis but `steps`.
CLOCKS = {
    "samples": "samples/total",
    "seconds": "cost/wall_seconds",
    "device_seconds": "cost/device_seconds",
    "flops": "cost/flops",
}
#: Not of a run's own log: `python -m analysis judge` makes it.
WIN_RATE = "eval/win_rate"


@dataclass(frozen=True)
class Metric:
    """A metric as shown. direction: which way is better, or None where neither is.

    caveat: wherever the metric is shown; beside[key]: where it is shown in one figure with the metric of that key.
    """

    key: str
    label: str
    unit: str = ""
    direction: Literal["higher", "lower"] | None = None
    caveat: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_drawn(self) -> bool:
        """Whether it is of the responses that a run trains on, whichever policy drew them."""
        return any(key.startswith(_DRAWN) for key in keys(self.key))

    @property
    def axis(self) -> str:
        """Label with its unit, for an axis or a heading."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_KNOWN = {
    metric.key: metric
    for metric in (
        Metric("analysis/reward_sum_mean", "mean reward of drawn responses", "per response", "higher"),
        Metric("analysis/reward_sum_std", "standard deviation of rewards", "over responses"),
        Metric("analysis/entropy_per_token_mean", "entropy surrogate", "nats a token", None, SURROGATE),
        Metric("analysis/entropy_p50", "entropy surrogate, median token", "nats", None, SURROGATE),
        Metric("analysis/entropy_p90", "entropy surrogate, 90% token", "nats", None, SURROGATE),
        Metric("analysis/entropy_full_mean", "entropy of the policy", "nats a token"),
        Metric("analysis/covariance_mean", "covariance of advantage and log-probability", "nats"),
        Metric("analysis/covariance_p50", "covariance, median token", "nats"),
        Metric("analysis/covariance_p90", "covariance, 90% token", "nats"),
        Metric("analysis/correlation", "correlation of advantage and log-probability"),
        Metric("analysis/wH_sum", "weighted entropy surrogate wH, sum", "nats", None, _WH),
        Metric("analysis/wH_per_token", "weighted entropy surrogate wH", "nats a token", None, _WH),
        Metric("dual_game/lambda", "dual variable lambda"),
        Metric("dual_game/beta", "KL weight beta"),
        Metric("dual_game/B_token", "entropy budget B", "nats a token", None, None, {"analysis/wH_per_token": BUDGET}),
        Metric("dual_game/KL_per_token", "KL to the reference", "nats a token"),
        Metric("dual_game/usage_ratio", "use of the entropy budget, wH / B"),
        Metric("dual_game/plateaus", "plateaus of the reward so far"),
        Metric("ema/raw_weights_variance", "variance of importance weights, as they are"),
        Metric("ema/smoothed_weights_variance", "variance of importance weights, smoothed"),
        Metric("ema/variance_reduction_ratio", "share of the weights' variance that smoothing removes"),
        Metric("gradient_adaptive/avg_gradient_norm", "mean gradient norm of a token"),
        Metric("gradient_adaptive/weight_variance", "variance of credit weights"),
        Metric("amic/sequence_weights_variance", "variance of sequence weights"),
        Metric("amic/avg_sequence_length", "mean length of a response", "tokens"),
        Metric("ptrw/trust_weights_mean", "mean trust weight"),
        Metric("ptrw/loss_mean", "mean loss under trust weights"),
        Metric("temporal_decay/weight_sum", "sum of a response's credit weights"),
        Metric("temporal_decay/first_weight", "credit weight of the first token"),
        Metric("temporal_decay/last_weight", "credit weight of the last token"),
        Metric("asymmetric/pos_advantage_ratio", "advantage above 0, share of tokens"),
        Metric("asymmetric/neg_advantage_ratio", "advantage below 0, share of tokens"),
        Metric("actor/pg_loss", "policy loss"),
        Metric("actor/grad_norm", "gradient norm"),
        Metric("actor/grad_variance", "gradient variance"),
        Metric("actor/clipfrac_upper", "clipped above, share of tokens"),
        Metric("actor/clipfrac_lower", "clipped below, share of tokens"),
        Metric("actor/ppo_kl", "KL to the sampling policy", "nats a token"),
        Metric("actor/kl_init", "KL to the initial policy", "nats a token"),
        Metric("actor/lr", "learning rate"),
        Metric("critic/vf_loss", "value loss"),
        Metric("critic/vf_clipfrac", "value clipped, share of tokens"),
        Metric("critic/vpred_mean", "mean predicted value"),
        Metric("critic/grad_norm", "gradient norm of the critic"),
        Metric("critic/explained_variance", "share of the returns' variance that the critic explains"),
        Metric("critic/lr", "learning rate of the critic"),
        Metric("actor/sft_loss", "loss on the target's responses", "nats a token"),
        Metric("actor/dpo_loss", "preference loss"),
        Metric("actor/dpo_accuracy", "pairs ranked as preferred, share"),
        Metric("actor/dpo_margin", "reward margin of preferred responses", "nats"),
        Metric("rollout/probs_diff_max", "largest difference of a drawn token's probability between server and engine"),
        Metric("rollout/probs_diff_mean", "mean difference of drawn tokens' probabilities between server and engine"),
        Metric("rejection/accepted_fraction", "accepted, share of proposals"),
        Metric("qstar/alpha_mean", "alpha, mean over positions"),
        Metric("qstar/alpha_std", "standard deviation of alpha over positions"),
        Metric("qstar/alpha_median", "alpha, median position"),
        Metric("qstar/ess_theta", "effective sample size for the policy"),
        Metric("qstar/ess_t", "effective sample size for the target"),
        Metric("qstar/ess_ratio", "ESS for the policy over ESS for the target"),
        Metric("qstar/ess_ratio_std", "standard deviation of the ESS ratio over positions"),
        Metric("qstar/solver_passes", "passes over the vocabulary that the solver took", "passes"),
        Metric("qstar/solver_residual", "residual of the solver"),
        Metric("qstar/entropy_residual", "residual of the entropy formula"),
        Metric("qstar/degenerate_fraction", "degenerate, share of positions"),
        Metric("qstar/weight_max", "largest importance weight"),
        Metric("qstar/weight_min", "smallest importance weight"),
        Metric("qstar/weight_mean", "mean importance weight"),
        Metric("qstar/weight_cv", "coefficient of variation of importance weights"),
        Metric("speculative/acceptance_rate", "drafted tokens accepted, share", "", "higher"),
        Metric("speculative/expected_acceptance", "expected acceptance, 1 - total variation", "", "higher"),
        Metric("speculative/tokens_per_target_forward", "tokens a pass of the target", "tokens", "higher"),
        Metric("speculative/speedup", "speed-up over standard sampling", "times", "higher"),
        Metric("samples/total", "responses generated", "responses"),
        Metric("tokens/total", "tokens generated", "tokens"),
        Metric("samples/target", "responses that the target learnt from", "responses"),
        Metric("eval/reward_mean", "reward on test prompts", "per response", "higher"),
        Metric("eval/greedy_reward_mean", "reward of greedy responses to test prompts", "per response", "higher"),
        Metric("eval/validation_reward_mean", "reward on validation prompts", "per response", "higher"),
        Metric("eval/train_reward_mean", "reward on training prompts", "per response", "higher"),
        Metric(
            "eval/selected_reward_mean",
            "reward on test prompts, chosen on validation prompts",
            "per response",
            "higher",
        ),
        Metric("eval/distinct_1", "distinct words of the responses to a prompt, share", "", "higher"),
        Metric("eval/distinct_2", "distinct pairs of words of the responses to a prompt, share", "", "higher"),
        Metric("eval/self_bleu", "BLEU of the responses to a prompt with each other", "", "lower"),
        Metric("eval/repetition", "repeated runs of words within a response, share", "", "lower"),
        Metric("eval/empty", "empty responses, share", "", "lower"),
        Metric("eval/words", "words of a response", "words"),
        Metric("eval/rouge_l", "ROUGE-L with the answer", "", "higher"),
        Metric("eval/bleu", "BLEU with the answer", "", "higher"),
        Metric("eval/bertscore_f1", "BERTScore with the answer", "", "higher"),
        Metric("eval/harmlessness", "harmless, probability", "", "higher"),
        Metric(WIN_RATE, "win rate", "share of pairs", "higher"),
        Metric("cost/shared_seconds", "time to build models and data that runs share", "s"),
        Metric("cost/step_seconds", "time of a step", "s", "lower"),
        Metric("cost/sample_seconds", "time of sampling in a step", "s", "lower"),
        Metric("cost/reward_seconds", "time of the reward function in a step", "s", "lower"),
        Metric("cost/wall_seconds", "wall time", "s", "lower"),
        Metric("cost/device_seconds", "device time", "s", "lower"),
        Metric("cost/peak_memory_bytes", "peak memory", "bytes", "lower"),
        Metric("cost/flops_per_sample", "operations a response", "FLOP", "lower"),
        Metric("cost/flops", "operations so far", "FLOP", "lower"),
    )
}

_PASS = "eval/pass@"
_EVAL_REWARD = "eval/reward/"  # the same in evaluations
_REWARD = "reward/"  # prefix of further numbers that a task's reward function returns for drawn responses

_DRAWN = ("analysis/", _REWARD, "amic/avg_sequence_length")  # prefixes of the metrics with Metric.of_drawn

#: The histograms that runs write.
DISTRIBUTIONS = {
    metric.key: metric
    for metric in (
        Metric(
            "entropy", "entropy surrogate of each token", "nats", None,
            "-p log p of a sampled token: not an entropy",
        ),
        Metric(
            "covariance", "covariance of each token", "nats", None,
            "the product of a token's advantage and log-probability, each less its mean",
        ),
        Metric("ess_ratio", "ESS ratio at each position"),
        Metric("alpha", "alpha"),
        Metric("log_weight", "log importance weight"),
    )
}  # fmt: skip


def capital(text: str) -> str:
    """Text with its first letter in upper case, the others as they are."""
    return text[:1].upper() + text[1:]


def describe(key: str) -> Metric:
    """The metric of that key. A derived one has no better direction; an unknown one is shown under its key."""
    if key.startswith(_PASS):
        return Metric(key, f"pass@{key.removeprefix(_PASS)} on test prompts", "share of prompts", "higher")
    if key.startswith(_REWARD):
        return Metric(key, f"{key.removeprefix(_REWARD)} of drawn responses, by the reward function")
    if key.startswith(_EVAL_REWARD):
        return Metric(key, f"{key.removeprefix(_EVAL_REWARD)} on test prompts, by the reward function")
    derived = None if key in _KNOWN else parse(key)
    if derived is None:
        return _KNOWN.get(key) or Metric(key, key)
    first, last = describe(derived.keys[0]), describe(derived.keys[-1])
    if derived.sign != "|":
        label = f"({first.label} {derived.sign} {last.label})"
    else:
        distance = f"distance from {derived.number:g} of " if derived.number else "magnitude of "
        label = f"{distance}{first.label}"
    return Metric(key, label, first.unit, None, first.caveat)


def caveats(keys: Sequence[str]) -> list[str]:
    """What a reader must know where these metrics are shown together: one sentence for each caveat."""
    several = ((m, caveat) for m in map(describe, keys) for caveat in (m.caveat, *map(m.beside.get, keys)))
    named = grouped((caveat, metric.label) for metric, caveat in several if caveat)
    return [f"{capital('; '.join(labels))}: {caveat}." for caveat, labels in named.items()]


#: Of a method, each with keys of its own: what responses are like.
_PARTS = ("sampler", "target", "alpha", "temperature")
_TEMPERATURE = ("actor_rollout_ref", "rollout", "temperature")


def drawn_from(config: Mapping[str, Any]) -> str:
    """The source of a run's responses, by its configuration; equal texts are equal sources, "" is not known."""
    method, value = config.get("method"), config.get("verl")
    if not isinstance(method, Mapping) or "sampler" not in method:
        return ""
    parts = tuple(part for part in _PARTS if method.get(part) not in (None, "none"))
    # without a target, a key such as target_kl is of another part
    chosen = {key: value for key, value in method.items() if key.startswith(parts) and (len(parts) > 1 or key in parts)}
    if method.get("loss") == "dpo" and method.get("dpo_pairs") == "data":
        chosen = {"sampler": "pairs of the task"}
    for key in _TEMPERATURE:
        value = value.get(key) if isinstance(value, Mapping) else None
    words = [str(chosen.pop("sampler")), *(f"{key} {chosen[key]}" for key in sorted(chosen))]
    return ", ".join([*words, *([] if value is None else [f"at temperature {value:g}"])])
