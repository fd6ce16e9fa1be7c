"""The settings of an engine that draws from q*, and what is refused because tokens would not be drawn from q*.

With sampler=target, q is the target itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from trainer_ext import registry
from trainer_ext.backends.vllm_qstar import ARCHITECTURE
from trainer_ext.sampling.proposal import proposal_of
from trainer_ext.scoring.reward_models.folders import TOKENIZER, missing

#: The key of the model's settings among the overrides of the policy's configuration.
KEY = "qstar"
REQUESTS = "trainer_ext.backends.vllm_qstar.worker:Requests"
WORKER = "trainer_ext.backends.vllm_qstar.worker.Worker"

#: Name -> allowed values, of which the first is what holds if nothing is said, and the reason.
Rules = Mapping[str, tuple[tuple[Any, ...], str]]
ENGINE: Rules = {
    "pipeline_parallel_size": (
        (1,),
        "the two models run side by side, and q needs the logits of both in one process; use tensor_parallel_size",
    ),
    "speculative_config": ((None,), "drafts would be kept or rejected without q"),
    "load_format": (("auto", "hf", "safetensors"), "vLLM's other loaders do not read the target's weights"),
    "enable_sleep_mode": (
        (False,),
        "an engine that sleeps may drop the weights of both models, and an update brings only those of the policy",
    ),
    "quantization": ((None,), "it would hold for both models, and was never run"),
    "enable_prompt_embeds": ((False,), "embeddings of the policy mean nothing to the target"),
    "logprobs_mode": (("processed_logprobs",), "the others are not log-probabilities of q"),
    "logits_processors": (
        ([REQUESTS],),
        "this one refuses requests whose tokens would not be drawn from q, and others would change q",
    ),
}
_CHANGED = "tokens would be drawn from another distribution than q, and importance weights would be wrong"
REQUEST: Rules = {
    "top_p": ((1.0,), _CHANGED),
    "top_k": ((0, -1), _CHANGED),
    "min_p": ((0.0,), _CHANGED),
    "min_tokens": ((0,), _CHANGED),
    "presence_penalty": ((0.0,), _CHANGED),
    "frequency_penalty": ((0.0,), _CHANGED),
    "repetition_penalty": ((1.0,), _CHANGED),
    "logit_bias": ((None, {}), _CHANGED),
    "allowed_token_ids": ((None, []), _CHANGED),
    "bad_words": ((None, []), _CHANGED),
    "structured_outputs": ((None,), _CHANGED),
    "thinking_token_budget": ((None,), _CHANGED),
    "prompt_logprobs": ((None,), "vLLM would report them at another temperature"),
}


@dataclass(frozen=True)
class QStarSettings:
    """Which q is drawn from.

    target: the folder of a model, or its name on a hub; architectures: the policy's own; temperature: of the policy's
    and the target's distributions, and of every request; method: the keys that the parts `sampler` and `alpha` read;
    sleep_level: the only level at which the engine may sleep: 1, which keeps the weights; 0: it does not sleep.
    """

    target: str
    architectures: Sequence[str]
    temperature: float
    method: Mapping[str, Any]
    sleep_level: int = 0

    @classmethod
    def of_engine(cls, config: Any) -> QStarSettings:
        """What the configuration of a vLLM engine says."""
        return cls(**getattr(config.model_config.hf_config, KEY))

    def proposal(self) -> Any:
        """A new one. It starts to look for alpha at the same point, so that q depends on the two models alone."""
        return proposal_of(self.method)


def engine_arguments(
    policy: str, target: str, temperature: float, method: Mapping[str, Any], sleep_level: int = 0, **more: Any
) -> dict[str, Any]:
    """Arguments of vLLM's `LLM`, `EngineArgs` or `AsyncEngineArgs`.

    policy, target: folders of models, or their names on a hub; method: a method's configuration, of which the parts
    `sampler` and `alpha` are read; sleep_level: 1 for a server that sleeps at this level alone, as that of
    trainer=verl_ray does; more: further arguments, such as `max_model_len`.
    ValueError: with these, tokens would not be drawn from q.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be above 0, because q is a distribution to draw from")
    own = {
        "model": policy,
        "hf_overrides": {"architectures": [ARCHITECTURE]},
        "logprobs_mode": "processed_logprobs",
        "logits_processors": [REQUESTS],
        "worker_extension_cls": WORKER,
    }
    for name in own.keys() & more.keys():
        raise ValueError(f"{name}={more[name]}: must not be given, because engine_arguments sets it")
    _check(ENGINE, more)
    _check_method(method)
    _check_models(policy, target, more.get("max_model_len"))
    parts = (registry.sampler, registry.alpha)
    read = {part.name for part in parts} | {key for part in parts for key in part.get(method[part.name]).keys}
    chosen = {key: method[key] for key in sorted(read & method.keys())}
    architectures = AutoConfig.from_pretrained(policy).architectures
    settings = QStarSettings(target, architectures, float(temperature), chosen, sleep_level)
    own["hf_overrides"] = {"architectures": [ARCHITECTURE], KEY: asdict(settings)}
    return {**own, **more}


def check_engine(config: Any) -> None:
    """ValueError: an engine with this configuration (vLLM's VllmConfig) would not draw from q."""
    model = config.model_config
    if not hasattr(model.hf_config, KEY):
        raise ValueError(f"hf_overrides has no {KEY}: engine_arguments of {__name__} sets it")
    parts = (config, model, config.parallel_config, config.load_config)
    settings = QStarSettings.of_engine(config)
    checked = [name for name in ENGINE if not (name == "enable_sleep_mode" and settings.sleep_level == 1)]
    _check(ENGINE, {name: next(getattr(part, name) for part in parts if hasattr(part, name)) for name in checked})
    _check_method(settings.method)
    _check_models(model.model, settings.target, model.max_model_len)


def check_request(parameters: Any) -> None:
    """ValueError: tokens of a request with these parameters (vLLM's SamplingParams) would not be drawn from q."""
    _check(REQUEST, {name: getattr(parameters, name) for name in REQUEST})


def _check(rules: Rules, values: Mapping[str, Any]) -> None:
    for name, (allowed, reason) in rules.items():
        value = values.get(name, allowed[0])
        if value not in allowed:
            raise ValueError(f"{name}={value}: must be {' or '.join(map(str, allowed))}: {reason}")


def _check_method(method: Mapping[str, Any]) -> None:
    sampler, alpha = registry.sampler.choice(method).name, registry.alpha.choice(method).name
    if sampler not in registry.WITH_TARGET:
        raise ValueError(f"method.sampler={sampler}: must be geometric or target, the samplers that ask the target")
    if sampler == "geometric" and alpha == "none":
        raise ValueError("method.alpha=none: choose a rule for alpha, which method.sampler=geometric needs")
    if alpha == "snr_max":
        raise ValueError(
            "method.alpha=snr_max: it also reads the reference, and this model of vLLM has two towers, the policy and "
            "the target; choose another rule"
        )


def _check_models(policy: str, target: str, length: int | None) -> None:
    """ValueError: the two do not read the same tokens, or the target reads fewer than `length` of them."""
    first, second = AutoConfig.from_pretrained(policy), AutoConfig.from_pretrained(target)
    fix = "choose a target with the policy's tokenizer and as many tokens (vocab_size in its config.json)"
    if first.vocab_size != second.vocab_size:
        raise ValueError(
            f"target={target}: it has {second.vocab_size} tokens and the policy {policy} has {first.vocab_size}, but "
            f"their probabilities are combined token by token; {fix}"
        )
    if _vocabulary(policy) != _vocabulary(target):
        raise ValueError(f"target={target}: its tokenizer is another one than that of the policy {policy}; {fix}")
    most = getattr(second, "max_position_embeddings", None)
    if length is not None and most is not None and length > most:
        raise ValueError(f"max_model_len={length}: the target {target} reads at most {most} tokens; set {most}")


def _vocabulary(model: str) -> dict[str, int]:
    """The id of each token. ValueError: a folder has no tokenizer; transformers would make an empty one."""
    if Path(model).is_dir() and (rule := missing(Path(model), TOKENIZER)):
        raise ValueError(
            f"{model}: {rule}, so nothing says whether both models read the same tokens; save the tokenizer there"
        )
    return dict(AutoTokenizer.from_pretrained(model).get_vocab())
