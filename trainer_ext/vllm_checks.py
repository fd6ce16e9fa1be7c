"""Whether the servers of `trainer.rollout=vllm` can draw a run's responses: the plan asks before a run exists, the run
when it starts.

Nothing here loads torch or vLLM.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer_ext.devices import Parallel, asked
from trainer_ext.sizes import Misfit

#: The dimensions of an attention head that vLLM 0.24 has for CPUs.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def misfits(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """What a vLLM server cannot do for a run's configuration (method, model, trainer)."""
    model, trainer = config["model"], config["trainer"]
    if trainer.get("rollout") != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        rule = f"vLLM is not installed for {sys.executable}, which would run it"
        fix = "make setup-gpu, and launch with .venv-gpu/bin/python; or set trainer.rollout=hf"
        yield Misfit("trainer.rollout", "vllm", rule, fix)
    nodes, devices = asked(model)
    on_cpu, tensor, own = not devices, Parallel.of(model).tensor, int(trainer["ranks"]) // nodes
    if on_cpu and tensor != 1:
        rule = "a server on CPUs is one process: with trainer=verl_ray, vLLM's tensor parallelism was never run there"
        yield Misfit("model.parallel.tensor", tensor, rule, "set it to 1")
    elif own % tensor:
        rule = f"does not divide the {own} ranks of a node (trainer.ranks), each of which gives its device to a server"
        fit = next(n for n in range(tensor, 0, -1) if not own % n)
        yield Misfit("model.parallel.tensor", tensor, rule, f"make it a divisor, such as {fit}")
    if on_cpu and model["kind"] == "embedded" and model["hidden_size"] // model["heads"] not in CPU_HEADS:
        size, most = model["hidden_size"] // model["heads"], model["hidden_size"] // CPU_HEADS[0]
        rule = (
            f"gives each head {size} dimensions, and vLLM's heads on a CPU have one of {', '.join(map(str, CPU_HEADS))}"
        )
        heads = next((n for n in range(most, 0, -1) if model["hidden_size"] / n in CPU_HEADS), None)
        fix = f"set model.heads={heads}" if heads else "choose another model.hidden_size"
        yield Misfit("model.heads", model["heads"], rule, f"{fix}, or set trainer.rollout=hf")
    path = config["method"].get("target_path")
    if config["method"]["sampler"] == "geometric" and path is not None and model.get("path") is not None:
        yield from _target(Path(os.path.expanduser(path)), Path(os.path.expanduser(model["path"])))


def _target(target: Path, policy: Path) -> Iterator[Misfit]:
    """Whether both read the same tokens, where both are folders; a run also compares models of a hub."""
    fix = "set it to a model with the policy's tokenizer and vocab_size"
    sizes = [_read(folder, "config.json").get("vocab_size") for folder in (target, policy)]
    if None not in sizes and sizes[0] != sizes[1]:
        rule = (
            f"it has {sizes[0]} tokens and the policy has {sizes[1]}, but q combines their probabilities token by token"
        )
        yield Misfit("method.target_path", str(target), rule, fix)
        return
    own, other = (_vocabulary(folder) for folder in (target, policy))
    if own and other and own != other:
        rule = "its tokenizer is another one than the policy's, but q combines their probabilities token by token"
        yield Misfit("method.target_path", str(target), rule, fix)


def _vocabulary(folder: Path) -> dict[str, int]:
    """The id of each token in a folder's tokenizer.json; empty without this file."""
    found = _read(folder, "tokenizer.json")
    vocabulary = (found.get("model") or {}).get("vocab")
    if not isinstance(vocabulary, Mapping):  # a list, in tokenizers of another kind
        return {}
    return {**vocabulary, **{one["content"]: one["id"] for one in found.get("added_tokens") or ()}}


def _read(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
