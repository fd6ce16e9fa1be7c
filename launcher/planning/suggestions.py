"""What users probably mean by names that the configuration does not have: names of other tools, of papers, of habit."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Of a configuration group: another name of a file.
OPTIONS = {
    "method": {
        "grpo": "c0_grpo",
        "c0": "c0_grpo",
        "baseline": "c0_grpo",
        "ppo": "c0_ppo",
        "bnto": "bnto_minimal",
        "c1": "bnto_minimal",
        "c2": "bnto_plateau",
        "c3": "bnto_kl_gated",
        "dapo": "dapo_clip_higher",
        "drgrpo": "dr_grpo",
        "qstar": "q_star",
        "q": "q_star",
        "optimal_sampling": "q_star",
        "reinforce": "policy_raw",
        "supervised": "sft",
    },
    "model": {
        "qwen": "qwen2_5_0_5b",
        "qwen2_5": "qwen2_5_0_5b",
        "llama": "llama_7b",
        "gpt_2": "gpt2",
        "small": "tiny",
        "own": "pretrained",
        "hf": "pretrained",
    },
    "task": {
        "math": "gsm8k",
        "arithmetic": "expression",
        "sort": "sorting",
        "own": "file",
        "jsonl": "file",
        "custom": "file",
    },
    "cluster": {"sbatch": "slurm", "here": "local"},
}
_LR, _BATCH = "verl.actor_rollout_ref.actor.optim.lr", "verl.data.train_batch_size"
_TEMPERATURE, _N = "verl.actor_rollout_ref.rollout.temperature", "verl.actor_rollout_ref.rollout.n"
#: Another name of a key.
KEYS = {
    "lr": _LR,
    "learning_rate": _LR,
    "trainer.lr": _LR,
    "method.lr": _LR,
    "batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "mini_batch_size": "verl.actor_rollout_ref.actor.ppo_mini_batch_size",
    "micro_batch_size": "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "temperature": _TEMPERATURE,
    "n": _N,
    "num_generations": _N,
    "group_size": _N,
    "max_prompt_length": "verl.data.max_prompt_length",
    "max_response_length": "verl.data.max_response_length",
    "steps": "trainer.steps",
    "max_steps": "trainer.steps",
    "total_steps": "trainer.steps",
    "epochs": "trainer.steps",
    "trainer.total_epochs": "trainer.steps",
    "trainer.epochs": "trainer.steps",
    "seeds": "seed",
    "experiment.seed": "seed",
    "name": "experiment.name",
    "baseline": "experiment.baseline",
    "metric": "analysis.primary.metric",
    "gpus": "model.resources.devices",
    "n_gpus": "model.resources.devices",
    "devices": "model.resources.devices",
    "trainer.n_gpus_per_node": "model.resources.devices",
    "trainer.nnodes": "model.resources.nodes",
    "cluster.gres": "model.resources.devices",
    "cluster.gpus": "model.resources.devices",
    "cluster.gpus_per_node": "model.resources.devices",
    "cluster.devices": "model.resources.devices",
    "cluster.nodes": "model.resources.nodes",
    "cluster.cpus": "model.resources.cpus",
    "cluster.cpus_per_task": "model.resources.cpus",
    "cluster.mem": "model.resources.memory_gb",
    "cluster.memory": "model.resources.memory_gb",
    "cluster.mem_gb": "model.resources.memory_gb",
    "cluster.time": "model.resources.time",
    "cluster.timeout_min": "model.resources.time",
    "cluster.walltime": "model.resources.time",
    "cluster.workers": "cluster.slots",
    "workers": "cluster.slots",
    "slots": "cluster.slots",
}
#: Keys whose values mean the same under the other name; of the others the value is left to the user.
_OF_OTHER_VALUES = ("cluster.gres", "cluster.mem", "cluster.timeout_min", "epochs", "trainer.epochs")


def option(group: str, name: str, options: Collection[str]) -> str | None:
    """The file of a group that a name means, be it an alias or a path; None: it is not known."""
    short = name.removesuffix(".yaml").rpartition("/")[2]
    if short != name and short in options:
        return short
    alias = OPTIONS.get(group, {}).get(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"))
    return alias if alias in options else None


def key(name: str, value: object, verls: Collection[str]) -> str | None:
    """The fix for a key that is known under another name; None: it is not known. verls: the sections of verl's tree."""
    known = KEYS.get(name)
    if known is None and name.partition(".")[0] in verls:
        known = f"verl.{name}"
    if known is None:  # optimizer.lr
        known = KEYS.get(name.rpartition(".")[2])
    if known is None:
        return None
    return f"set {known}" if name in _OF_OTHER_VALUES else f"write {known}={_spelled(value)}"


def _spelled(value: object) -> str:
    """A value as the command line has it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
