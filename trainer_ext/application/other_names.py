"""What users probably mean by names that the configuration does not have: names of other tools, of papers, of habit."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainer_ext.application import verl_tree


def _by_name(meant: dict[str, str]) -> dict[str, str]:
    """What each of the other names means, of a table that lists these names by what they mean."""
    return {name: key for key, names in meant.items() for name in names.split()}


#: Of a configuration group: another name of a file.
OPTIONS = {
    "method": _by_name(
        {
            "c0_grpo": "grpo c0 baseline",
            "c0_ppo": "ppo",
            "bnto_minimal": "bnto c1",
            "bnto_plateau": "c2",
            "bnto_kl_gated": "c3",
            "dapo_clip_higher": "dapo",
            "dr_grpo": "drgrpo",
            "q_star": "qstar q optimal_sampling",
            "policy_raw": "reinforce",
            "sft": "supervised",
        }
    ),
    "model": _by_name(
        {"qwen2_5_0_5b": "qwen qwen2_5", "llama_7b": "llama", "gpt2": "gpt_2", "tiny": "small", "pretrained": "own hf"}
    ),
    "task": _by_name({"gsm8k": "math", "expression": "arithmetic", "sorting": "sort", "file": "own jsonl custom"}),
    "cluster": _by_name({"slurm": "sbatch", "local": "here"}),
}
#: Another name of a key.
KEYS = _by_name(
    {
        "verl.actor_rollout_ref.actor.optim.lr": "lr learning_rate trainer.lr method.lr",
        "verl.data.train_batch_size": "batch_size train_batch_size",
        "verl.actor_rollout_ref.actor.ppo_mini_batch_size": "mini_batch_size",
        "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "micro_batch_size",
        "verl.actor_rollout_ref.rollout.temperature": "temperature",
        "verl.actor_rollout_ref.rollout.n": "n num_generations group_size",
        "verl.data.max_prompt_length": "max_prompt_length",
        "verl.data.max_response_length": "max_response_length",
        "trainer.steps": "steps max_steps total_steps epochs trainer.total_epochs trainer.epochs",
        "seed": "seeds experiment.seed",
        "experiment.name": "name",
        "experiment.baseline": "baseline",
        "analysis.primary.metric": "metric",
        "model.resources.devices": "gpus n_gpus devices trainer.n_gpus_per_node cluster.gres cluster.gpus "
        "cluster.gpus_per_node cluster.devices",
        "model.resources.nodes": "trainer.nnodes cluster.nodes",
        "model.resources.cpus": "cluster.cpus cluster.cpus_per_task",
        "model.resources.memory_gb": "cluster.mem cluster.memory cluster.mem_gb",
        "model.resources.time": "cluster.time cluster.timeout_min cluster.walltime",
        "cluster.slots": "cluster.workers workers slots",
    }
)
#: Keys whose values mean the same under the other name; of the others the value is left to the user.
_OF_OTHER_VALUES = ("cluster.gres", "cluster.mem", "cluster.timeout_min", "epochs", "trainer.epochs")


def option(group: str, name: str, options: Collection[str]) -> str | None:
    """The file of a group that a name means, be it an alias or a path; None: it is not known."""
    short = name.removesuffix(".yaml").rpartition("/")[2]
    if short != name and short in options:
        return short
    alias = OPTIONS.get(group, {}).get(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"))
    return alias if alias in options else None


def key(name: str, value: object, sections: Collection[str]) -> str | None:
    """The fix for a key that is known under another name; None: it is not known. sections: those that runs have."""
    section = name.partition(".")[0]
    is_verls = section not in sections and section in verl_tree.compose("ppo_trainer").tree
    of_verl = f"verl.{name}" if is_verls else None
    known = KEYS.get(name) or of_verl
    if known is None and (section not in sections or name.count(".") < 2):
        known = KEYS.get(name.rpartition(".")[2])  # optimizer.lr, but not a key of a section's own mapping
    if name.startswith("groups."):
        return f"write experiment.{name}"
    if known is None:
        return None
    if name in _OF_OTHER_VALUES:
        return f"set {known}"
    return f"write {known}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
