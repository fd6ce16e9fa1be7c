"""What the steps of a run saw, kept and compared: under Ray, and in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
from torch import Tensor

from tests.configuration import configuration
from trainer_ext.backends.in_process import trainer as in_process
from trainer_ext.backends.verl_ray import shards

Seen = dict[str, Any]
Weights = dict[str, Tensor]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def seen(scored: Any, updates: Any, metrics: Mapping[str, float], tokens: list[Tensor]) -> Seen:
    columns = {key: value.cpu() for key, value in (updates.policy or {}).items() if key != "old_log_probs"}
    return {
        "mask": scored.mask.cpu(),
        "rewards": scored.rewards.cpu(),
        "advantages": updates.advantages.cpu(),
        "columns": columns,
        "tokens": padded(tokens),
        "metrics": dict(metrics),
    }


def recorded(session: Any, folder: Path) -> None:
    """Make the steps of this class of sessions leave what they see as `STEP.pt` in a folder, and the number of Ray's
    processes that do nothing in `idle`."""
    import transfer_queue as tq

    from trainer_ext.backends.verl_ray.trainer import _place

    folder.mkdir()
    step_of, clear_of = session.step, session._clear
    tokens: list[list[Tensor]] = []

    def clear(self: Any, batch: Any) -> None:
        keys = sorted(batch.keys, key=_place)
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["responses"])
        tokens.append(list(data["responses"].unbind()))
        clear_of(self, batch)

    def step(self: Any, number: int) -> Any:
        answer = step_of(self, number)
        torch.save(seen(self.newest.scored, self.newest.update, answer[0], tokens[-1]), folder / f"{number}.pt")
        started = psutil.Process().children(recursive=True)
        (folder / "idle").write_text(str(sum(one.name().startswith("ray::IDLE") for one in started)))
        return answer

    session._clear, session.step = clear, step


def read(folder: Path, steps: int) -> list[Seen]:
    """What `recorded` has left of the first steps."""
    return [torch.load(folder / f"{step}.pt") for step in range(1, steps + 1)]


def without_ray(overrides: Sequence[str], cache: Path, steps: int) -> tuple[list[Seen], Weights]:
    """What the first steps of a run in this process see, and the parameters of policy and critic after them.

    overrides: of the run under Ray.
    """
    own = [one for one in overrides if not one.startswith(("trainer=", "trainer.ranks=", "trainer.dtype="))]
    caught: list[Any] = []
    update = in_process.update

    def catch(method: Any, scored: Any, step: int) -> Any:
        caught.append((scored, update(method, scored, step)))
        return caught[-1][1]

    found = []
    with patch.object(in_process, "update", catch):
        trainer = in_process.InProcess(configuration("trainer=in_process", *own), cache)
        draw = trainer._rollout.draw
        drawn: list[Any] = []
        trainer._rollout.draw = lambda step: drawn.append(draw(step)) or drawn[-1]
        for step in range(1, steps + 1):
            metrics = trainer.step(step)
            batch = drawn[-1].samples.batch
            tokens = [row[keep].cpu() for row, keep in zip(batch.responses, batch.mask, strict=True)]
            found.append(seen(*caught[-1], metrics, tokens))
    trained = {"actor": trainer.actor, **({"critic": trainer.critic} if trainer.critic else {})}
    return found, {
        f"{model}/{key}": x.to("cpu", copy=True) for model, one in trained.items() for key, x in one.weights().items()
    }


def weights_of(checkpoint: Path) -> Weights:
    """The parameters of policy and critic in a checkpoint of Ray's run."""
    models = [path.name for path in checkpoint.iterdir() if path.is_dir()]
    return {f"{model}/{key}": x for model in models for key, x in shards.whole_weights(checkpoint / model).items()}


def furthest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape else float("inf")


def compared(one: tuple[list[Seen], Weights], two: tuple[list[Seen], Weights]) -> dict[str, Any]:
    """What the steps, and the parameters after them, differ in."""
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
