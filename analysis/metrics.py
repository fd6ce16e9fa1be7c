"""How a metric is called on paper: label, unit, and what a reader must know where it is shown."""

from __future__ import annotations

from dataclasses import dataclass

SURROGATE = (
    "the selected token's surrogate, mean of -p log p over the sampled tokens: not an entropy "
    "(it read 0.14 where the full entropy was 0.78)"
)


@dataclass(frozen=True)
class Metric:
    """A metric as shown. direction: which way is better, or None where neither is."""

    key: str
    label: str
    unit: str = ""
    direction: str | None = None
    caveat: str | None = None

    @property
    def axis(self) -> str:
        """Label with its unit, for an axis or a heading."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_KNOWN = {
    metric.key: metric
    for metric in (
        Metric("analysis/reward_sum_mean", "mean reward", "per response", "higher"),
        Metric("analysis/reward_sum_std", "standard deviation of rewards", "over responses"),
        Metric("analysis/entropy_per_token_mean", "entropy surrogate", "nats a token", None, SURROGATE),
        Metric("analysis/entropy_p50", "entropy surrogate, median token", "nats", None, SURROGATE),
        Metric("analysis/entropy_p90", "entropy surrogate, 90% token", "nats", None, SURROGATE),
        Metric("analysis/entropy_full_mean", "entropy of the policy", "nats a token"),
        Metric("analysis/covariance_mean", "covariance of advantage and log-probability", "nats"),
        Metric("analysis/covariance_p50", "covariance, median token", "nats"),
        Metric("analysis/covariance_p90", "covariance, 90% token", "nats"),
        Metric("analysis/correlation", "correlation of advantage and log-probability"),
        Metric("analysis/wH_sum", "weighted entropy surrogate wH, sum", "nats", None, "wH weighs " + SURROGATE),
        Metric(
            "analysis/wH_per_token", "weighted entropy surrogate wH", "nats a token", None, "wH weighs " + SURROGATE
        ),
        Metric("dual_game/lambda", "dual variable lambda"),
        Metric("dual_game/beta", "KL weight beta"),
        Metric("dual_game/B_token", "entropy budget B", "nats a token"),
        Metric("dual_game/KL_per_token", "KL divergence", "nats a token"),
        Metric("dual_game/usage_ratio", "use of the entropy budget, wH / B"),
        Metric("actor/pg_loss", "policy loss"),
        Metric("actor/grad_norm", "gradient norm"),
        Metric("actor/grad_variance", "gradient variance"),
        Metric("actor/clipfrac_upper", "clipped above, share of tokens"),
        Metric("actor/clipfrac_lower", "clipped below, share of tokens"),
        Metric("actor/ppo_kl", "KL to the sampling policy", "nats a token"),
        Metric("actor/kl_init", "KL to the initial policy", "nats a token"),
        Metric("actor/lr", "learning rate"),
        Metric("samples/total", "responses generated", "responses"),
        Metric("tokens/total", "tokens generated", "tokens"),
        Metric("eval/reward_mean", "evaluation reward", "per response", "higher"),
        Metric("cost/step_seconds", "time of a step", "s", "lower"),
        Metric("cost/wall_seconds", "wall time", "s", "lower"),
        Metric("cost/device_seconds", "device time", "s", "lower"),
        Metric("cost/peak_memory_bytes", "peak memory", "bytes", "lower"),
        Metric("cost/flops_per_sample", "operations a response", "FLOP", "lower"),
    )
}


def describe(key: str) -> Metric:
    """The metric of that key; one that is not in the vocabulary is shown under its key."""
    return _KNOWN.get(key) or Metric(key, key)
