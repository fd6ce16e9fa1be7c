"""Steps of methods, compared: `python -m tests.cluster.verl_ray_steps RESULT CACHE STEPS SIDES METHOD ...`.

SIDES are separated by commas: `in_process`, or the ranks of a run under Ray. A METHOD is the overrides of a run,
separated by spaces. It needs the environment of process.environment before Python starts. RESULT gets, by METHOD and by
each side but the first, what the steps and the parameters after them differ in from those of the first.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from torch import Tensor

from tests.configuration import configuration
from trainer_ext.backends.in_process import trainer as in_process
from trainer_ext.backends.verl_ray.session import Session
from trainer_ext.backends.verl_ray.shards import whole_weights
from trainer_ext.backends.verl_ray.trainer import _place

Seen = dict[str, Any]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def seen(scored: Any, updates: Any, metrics: Mapping[str, float], tokens: list[Tensor]) -> Seen:
    columns = {key: value for key, value in (updates.policy or {}).items() if key != "old_log_probs"}
    return {
        "mask": scored.mask,
        "rewards": scored.rewards,
        "advantages": updates.advantages,
        "columns": columns,
        "tokens": padded(tokens),
        "metrics": dict(metrics),
    }


def without_ray(overrides: list[str], cache: Path, steps: int) -> tuple[list[Seen], dict[str, Tensor]]:
    caught: list[Any] = []
    update = in_process.update

    def catch(method: Any, scored: Any, step: int) -> Any:
        caught.append((scored, update(method, scored, step)))
        return caught[-1][1]

    found = []
    with patch.object(in_process, "update", catch):
        trainer = in_process.InProcess(configuration("trainer=in_process", *overrides), cache)
        draw = trainer._rollout.draw
        drawn: list[Any] = []
        trainer._rollout.draw = lambda step: drawn.append(draw(step)) or drawn[-1]
        for step in range(1, steps + 1):
            metrics = trainer.step(step)
            batch = drawn[-1].samples.batch
            tokens = [row[keep] for row, keep in zip(batch.responses, batch.mask, strict=True)]
            found.append(seen(*caught[-1], metrics, tokens))
    return found, {name: value.clone() for name, value in trainer.actor.weights().items()}


def with_ray(overrides: list[str], cache: Path, steps: int, ranks: int) -> tuple[list[Seen], dict[str, Tensor]]:
    config = configuration("trainer=verl_ray", f"trainer.ranks={ranks}", *overrides)
    plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
    with tempfile.TemporaryDirectory(prefix="vr-") as folder, tempfile.TemporaryDirectory() as saved:
        session = Session(plain, str(cache), folder)
        clear, tokens = session._clear, []

        def caught(batch: Any) -> None:
            keys = sorted(batch.keys, key=_place)
            data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["responses"])
            tokens.append(list(data["responses"].unbind()))
            clear(batch)

        session._clear = caught
        found = []
        for step in range(1, steps + 1):
            metrics, *_ = session.step(step)
            found.append(seen(*session.trainer.newest, metrics, tokens[-1]))
        session.save(saved, {})
        session.close()
        return found, whole_weights(Path(saved) / "actor")


def furthest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape else float("inf")


def compared(one: tuple[list[Seen], dict[str, Tensor]], two: tuple[list[Seen], dict[str, Tensor]]) -> dict[str, Any]:
    steps = []
    for a, b in zip(one[0], two[0], strict=True):
        shared = a["metrics"].keys() & b["metrics"].keys()
        relative = {
            key: abs(a["metrics"][key] - b["metrics"][key]) / max(abs(a["metrics"][key]), 1e-6)
            for key in shared
            if not key.startswith("cost/")
        }
        steps.append(
            {
                **{key: torch.equal(a[key], b[key]) for key in ("tokens", "mask", "rewards")},
                "advantages": furthest(a["advantages"], b["advantages"]),
                "columns": {key: furthest(value, b["columns"][key]) for key, value in a["columns"].items()},
                "metrics": relative,
                "missing": sorted(a["metrics"].keys() ^ b["metrics"].keys()),
            }
        )
    apart = torch.cat([(two[1][name].double() - value.double()).abs().flatten() for name, value in one[1].items()])
    beyond = int((apart > 1e-5).sum())
    parameters = {"count": len(apart), "beyond": beyond, "mean": float(apart.mean()), "max": float(apart.max())}
    return {"steps": steps, "parameters": parameters}


def main() -> None:
    result, cache, steps, sides, *methods = sys.argv[1:]
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for method in methods:
        given = [f"trainer.steps={steps}", *method.split()], Path(cache), int(steps)
        runs = {
            side: without_ray(*given) if side == "in_process" else with_ray(*given, ranks=int(side))
            for side in sides.split(",")
        }
        first, *others = runs
        found[method] = {side: compared(runs[first], runs[side]) for side in others}
        Path(result).write_text(json.dumps(found, indent=1))
        print(f"compared {method}", flush=True)


if __name__ == "__main__":
    main()
