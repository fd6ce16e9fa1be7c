"""What does not fit together in a run: sizes of batches, heads, warm-up, and what rollout servers can do.

The plan asks before a run exists, the run when it starts. Nothing here loads torch or vLLM.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer_ext import registry
from trainer_ext.fits import architectures, devices
from trainer_ext.fits.devices import Parallel
from trainer_ext.objection import Objection

_ACTOR = "verl.actor_rollout_ref.actor"
_TOKENS = f"{_ACTOR}.ppo_max_token_len_per_gpu"
_MICRO = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
#: The dimensions of an attention head that vLLM 0.24 has for CPUs.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def misfits(config: Mapping[str, Any], architecture: architectures.Architecture | None = None) -> Iterator[Objection]:
    """What does not fit in a run's configuration (method, model, trainer, and verl's tree merged), and to its model's
    sizes, if they are known."""
    method, model, trainer = config["method"], config["model"], config["trainer"]
    if model["kind"] == "embedded" and model["hidden_size"] % (2 * model["heads"]):
        rule = f"model.hidden_size={model['hidden_size']} does not give each head an even number of dimensions"
        yield Objection("model.heads", model["heads"], rule, "make model.hidden_size a multiple of 2 x model.heads")
    warmup = method.get("critic_warmup") or 0
    if warmup and warmup >= trainer["steps"]:
        rule = f"the critic alone is trained in all of trainer.steps={trainer['steps']}, and the policy in none"
        yield Objection("method.critic_warmup", warmup, rule, "set it below trainer.steps")
    most = max(trainer.get("eval_pass") or [0])
    if trainer.get("eval_every") and most > int(trainer["eval_samples"]):
        rule = f"pass@{most} needs {most} responses to a prompt, and trainer.eval_samples is {trainer['eval_samples']}"
        yield Objection("trainer.eval_pass", trainer["eval_pass"], rule, f"set trainer.eval_samples={most}")
    trains = trainer["backend"] == "verl_ray" or method["loss"] != "none"
    if trains and config["verl"]["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] is None:
        yield Objection(_MICRO, None, "it is missing", "set it to an integer 1 or more, such as 64")
        return
    if trainer["backend"] == "verl_ray":
        yield from _adapters(config)
        objections = [*_of_devices(model, int(trainer["ranks"])), *_shared(model, int(trainer["ranks"]), architecture)]
        yield from objections or _on_ranks(config["verl"], model, int(trainer["ranks"]), method["loss"] == "dpo")
    elif method["loss"] != "none":
        yield from _in_one_process(config["verl"], method["loss"] == "dpo")
    yield from of_vllm(config)


def _adapters(config: Mapping[str, Any]) -> Iterator[Objection]:
    """What adapters (LoRA) cannot be combined with, and layers that the model does not have.

    Layers of a model that is not on this machine are looked for when the run starts.
    """
    method, model, settings = config["method"], config["model"], config["verl"]["actor_rollout_ref"]["model"]
    rank, targets = int(settings["lora_rank"]), settings["target_modules"]
    if not rank:
        return
    key, fix = "verl.actor_rollout_ref.model.lora_rank", "set it to 0"
    if method["loss"] == "none":
        yield Objection(key, rank, "method.loss=none trains nothing, so that adapters have no effect", fix)
    if method["advantage"] == "gae":
        rule = "must be 0 with method.advantage=gae: adapters are the policy's alone, and the critic trains all weights"
        yield Objection(key, rank, rule, f"{fix}, or choose another method/advantage")
    if method["sampler"] == "rejection":
        rule = "must be 0 with method.sampler=rejection: the ranks load the target beside a reference model, and with "
        rule += "adapters there is none"
        yield Objection(key, rank, rule, f"{fix}, or choose another method/sampler")
    if model["kind"] == "embedded":
        architecture: architectures.Architecture | None = architectures.embedded(model)
    else:
        try:
            architecture = architectures.of_model(model["path"], bool(settings["trust_remote_code"]))
        except Objection:  # the plan says so of the model's folder
            return
    if architecture is None or isinstance(targets, str):
        return
    if unknown := [name for name in targets if name not in architecture.linear]:
        rule = f"the model ({architecture.family}) has no linear layer {' and no '.join(unknown)} below its head"
        fix = f"use all-linear, or some of {', '.join(architecture.linear)}"
        yield Objection("verl.actor_rollout_ref.model.target_modules", ",".join(targets), rule, fix)


def _in_one_process(verl: Any, pairs: bool) -> Iterator[Objection]:
    """Micro-batches divide the mini-batches. pairs: the two responses of a pair stay together."""
    actor, n = verl["actor_rollout_ref"]["actor"], int(verl["actor_rollout_ref"]["rollout"]["n"])
    prompts = int(verl["data"]["train_batch_size"])
    whole = min(int(actor["ppo_mini_batch_size"]), prompts)
    sizes = sorted({whole, prompts % whole} - {0}, reverse=True)  # of mini-batches, in prompts; the last may be smaller
    each, unit = (2, "2 of a pair") if pairs else (n, f"rollout.n={n}")
    for size in sizes:
        rows = each * size
        micro = min(int(actor["ppo_micro_batch_size_per_gpu"]), rows)
        if rows % micro or (pairs and micro % 2):
            even = " and even, because the two responses of a pair stay together" if pairs else ""
            rule = f"does not divide a mini-batch of {rows} responses ({size} of {prompts} prompts, times {unit})"
            common = math.gcd(*(each * one for one in sizes))
            fit = 2 * _divisor(common // 2, max(1, micro // 2)) if pairs else _divisor(common, micro)
            yield Objection(_MICRO, micro, rule, f"make it a divisor{even}, such as {fit}")
            return


def _of_devices(model: Mapping[str, Any], ranks: int) -> Iterator[Objection]:
    """Each device has a rank, and ranks divide into the groups that share sequences."""
    (nodes, on_each), parallel = devices.asked(model), Parallel.from_model(model)
    count = nodes * on_each
    if on_each and ranks != count:
        rule = f"each rank has a device of its own, and model.resources asks for {count} (nodes={nodes} times "
        rule += f"devices={on_each})"
        yield Objection("trainer.ranks", ranks, rule, f"set trainer.ranks=null, which is {count}")
    if parallel.offload and not on_each:
        rule = "with model.resources.devices=0, all of the run is in the CPU's memory already"
        yield Objection("model.parallel.offload", True, rule, "set model.parallel.offload=false")


def _shared(model: Mapping[str, Any], ranks: int, of: architectures.Architecture | None) -> Iterator[Objection]:
    """Why the ranks, or the heads of the model if they are known, cannot be shared as `model.parallel` says."""
    (nodes, on_each), parallel = devices.asked(model), Parallel.from_model(model)
    count, key_value = (of.heads, of.key_value_heads) if of else (0, 0)
    for name, asked, whole, what in (
        ("sequence", parallel.sequence, ranks, "ranks (trainer.ranks), of which so many share each sequence"),
        ("tensor", parallel.tensor if on_each else 1, max(1, ranks // nodes),
         "ranks of a node (trainer.ranks), each of which gives its device to a server"),
    ):  # fmt: skip
        shares = (k for k in range(min(asked, whole), 0, -1) if not whole % k and not count % k)
        fit = next(k for k in shares if not (key_value % k and k % key_value))
        if fit != asked:
            rule = f"model {model['name']} has {count} heads and {key_value} of keys and values, which so many cannot "
            rule = f"does not divide the {whole} {what}" if whole % asked else f"{rule}share"
            also = f" and of the {count} heads of the model" if count else ""
            yield Objection(f"model.parallel.{name}", asked, rule, f"make it a divisor of {whole}{also}, such as {fit}")


def _on_ranks(verl: Any, model: Mapping[str, Any], ranks: int, pairs: bool) -> Iterator[Objection]:
    """The batch divides into mini-batches, these among the ranks, which are equally many on each node, and a rank's
    part into micro-batches, unless these are of about as many tokens. Ranks that share sequences have one part
    together. pairs: so do the pairs of DPO, whose two responses stay together."""
    (nodes, on_each), together = devices.asked(model), Parallel.from_model(model).sequence
    actor, n = verl["actor_rollout_ref"]["actor"], int(verl["actor_rollout_ref"]["rollout"]["n"])
    prompts = int(verl["data"]["train_batch_size"])
    mini = min(int(actor["ppo_mini_batch_size"]), prompts)
    if prompts % mini:
        rule = f"trainer=verl_ray needs a divisor of verl.data.train_batch_size={prompts}"
        fix = f"make it a divisor, such as {_divisor(prompts, mini)}"
        yield Objection(f"{_ACTOR}.ppo_mini_batch_size", mini, rule, fix)
        return
    count, what = mini * n, f"{mini * n} responses (ppo_mini_batch_size={mini} times rollout.n={n})"
    if pairs:
        count, what = math.gcd(count, mini), f"{what} and of {mini} pairs"
    fitting = [k * together for k in range(1, count + 1) if not count % k and not k * together % nodes]
    if ranks not in fitting:
        rule, fix = f"a mini-batch of {what} cannot be shared equally", "make it a divisor"
        if together > 1:
            rule += f" by groups of model.parallel.sequence={together} ranks"
            fix = f"make the number of groups a divisor, with trainer.ranks a multiple of {together}"
        if nodes > 1:
            rule += f" by ranks of which model.resources.nodes={nodes} have as many each"
            fix += f" and a multiple of {nodes}"
        fit = max((k for k in fitting if k <= ranks), default=min(fitting, default=None))
        fix = f"{fix}, such as {fit}" if fit else "choose fewer nodes"
        if on_each:
            few = f"model.resources.devices={fit // nodes}" if fit else "other numbers of nodes and devices"
            fix = f"choose {few}, or another {_ACTOR}.ppo_mini_batch_size"
            yield Objection("model.resources.devices", on_each, f"{rule} by {ranks} ranks, one a device", fix)
        else:
            yield Objection("trainer.ranks", ranks, rule, fix)
        return
    ranks //= together
    if actor["use_dynamic_bsz"]:
        whole = int(verl["data"]["max_prompt_length"]) + int(verl["data"]["max_response_length"])
        need, most = whole * (2 if pairs else 1), int(actor["ppo_max_token_len_per_gpu"])
        if most < need:
            one = "the two responses of a pair with their prompt" if pairs else "a response with its prompt"
            rule = f"{one} may have {need} tokens, and {'are' if pairs else 'is'} in one micro-batch"
            yield Objection(_TOKENS, most, rule, f"set it to {need} or more")
        return
    of_rank = mini * n // ranks
    micro = min(int(actor["ppo_micro_batch_size_per_gpu"]), of_rank)
    if of_rank % micro:
        rule = f"does not divide a rank's {of_rank} responses of a mini-batch (ppo_mini_batch_size={mini} times "
        rule += f"rollout.n={n} over {ranks} ranks)"
        yield Objection(_MICRO, micro, rule, f"make it a divisor, such as {_divisor(of_rank, micro)}")
        return
    both = 2 * mini // ranks
    if pairs and (both % min(micro, both) or min(micro, both) % 2):
        rule = f"does not divide a rank's {both} responses of a mini-batch of pairs "
        rule += f"(2 times ppo_mini_batch_size={mini} over {ranks} ranks)"
        fit = 2 * _divisor(math.gcd(of_rank, both) // 2, max(1, micro // 2))
        even = "make it a divisor and even, because the two responses of a pair stay together"
        yield Objection(_MICRO, micro, rule, f"{even}, such as {fit}")


def _divisor(whole: int, most: int) -> int:
    """The largest divisor of `whole` that is at most `most`."""
    return next(count for count in range(most, 0, -1) if not whole % count)


def of_vllm(config: Mapping[str, Any]) -> Iterator[Objection]:
    """What a vLLM server (trainer.rollout=vllm) cannot do for a run's configuration (method, model, trainer)."""
    model, trainer = config["model"], config["trainer"]
    if trainer.get("rollout") != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        rule = f"vLLM is not installed for {sys.executable}, which would run it"
        fix = "make setup-gpu, and launch with .venv-gpu/bin/python; or set trainer.rollout=hf"
        yield Objection("trainer.rollout", "vllm", rule, fix)
    on_cpu, tensor = not devices.asked(model)[1], Parallel.from_model(model).tensor
    if on_cpu and tensor != 1:
        rule = "a server on CPUs is one process: with trainer=verl_ray, vLLM's tensor parallelism was never run there"
        yield Objection("model.parallel.tensor", tensor, rule, "set it to 1")
    if on_cpu and model["kind"] == "embedded" and model["hidden_size"] // model["heads"] not in CPU_HEADS:
        size, most = model["hidden_size"] // model["heads"], model["hidden_size"] // CPU_HEADS[0]
        rule = f"gives each head {size} dimensions, and vLLM's heads on a CPU have one of "
        rule += ", ".join(map(str, CPU_HEADS))
        heads = next((n for n in range(most, 0, -1) if model["hidden_size"] / n in CPU_HEADS), None)
        fix = f"set model.heads={heads}" if heads else "choose another model.hidden_size"
        yield Objection("model.heads", model["heads"], rule, f"{fix}, or set trainer.rollout=hf")
    path = config["method"].get("target_path")
    if config["method"]["sampler"] in registry.WITH_TARGET and path is not None and model.get("path") is not None:
        yield from _target(Path(os.path.expanduser(path)), Path(os.path.expanduser(model["path"])))


def _target(target: Path, policy: Path) -> Iterator[Objection]:
    """Whether both have the same tokens, where both are folders with a tokenizer; a run also compares models of a hub.
    Their numbers of tokens are compared for every rollout."""
    files = [folder / "tokenizer.json" for folder in (target, policy)]
    if not all(file.is_file() for file in files):
        return
    from tokenizers import Tokenizer

    first, second = (Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True) for file in files)
    if first != second:
        rule = "its tokenizer is another one than the policy's, but a vLLM server gives both the same tokens"
        fix = "set it to a model with the policy's tokenizer and vocab_size"
        yield Objection("method.target_path", str(target), rule, fix)
