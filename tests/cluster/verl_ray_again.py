"""Steps under Ray, the last of them twice: `python -m tests.cluster.verl_ray_again FOLDER CACHE STEPS OVERRIDE ...`.

Before the last step a checkpoint is written. It is loaded after this step, which is then done again. The steps are also
done in one process. FOLDER/compared.json gets what the two differ in, and `again`: whether the repeated step ended with
the same bits of weights, optimizers and metrics.

With adapters (LoRA) only the first step is compared with one process, which trains no adapters; they begin without
effect. The parameters that are compared are then those of the first server and of the run's export.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def weights_of_server(server: Any) -> dict[str, Any]:
    """The parameters of the policy that a server draws from."""
    return {name: x.cpu() for name, x in server._modules["policy"].state_dict().items()}


def main() -> None:
    import ray
    from omegaconf import OmegaConf
    from safetensors.torch import load_file

    from tests.cluster.verl_ray_steps import compared, read, recorded, weights_of, without_ray
    from tests.trainer_ext.conftest import configuration, science
    from trainer_ext.backends import protocol
    from trainer_ext.backends.verl_ray.session import Session

    folder, cache, steps, overrides = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    config = configuration(*overrides)
    plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
    recorded(Session, folder / "steps")

    def saved(run: Any, name: str) -> Path:
        (folder / name).mkdir()
        run.save(str(folder / name), {})
        return folder / name

    def tensors(checkpoint: Path) -> dict[Path, bytes]:
        return {path.relative_to(checkpoint): path.read_bytes() for path in checkpoint.rglob("*.safetensors")}

    with tempfile.TemporaryDirectory(prefix="vr-") as ours:
        run = Session(plain, str(cache), ours)
        for step in range(1, steps):
            run.step(step)
        before = saved(run, "before")
        first, *_ = run.step(steps)
        end = saved(run, "end")
        run.load(str(before))
        second, *_ = run.step(steps)
        again = saved(run, "again")
        served = ray.get(run.trainer.llm_server_manager.server_handles[0].__ray_call__.remote(weights_of_server))
        run.close()
    if config["verl"].actor_rollout_ref.model.lora_rank:
        (folder / "export").mkdir()
        protocol.export(config, again, cache, folder / "export", "float32")
        exported = load_file(folder / "export" / "model.safetensors")
        whole = [one for one in overrides if not one.startswith("verl.actor_rollout_ref.model.lora_")]
        found = compared((without_ray(whole, cache, 1)[0], served), (read(folder / "steps", 1), exported))
    else:
        found = compared(without_ray(overrides, cache, steps), (read(folder / "steps", steps), weights_of(end)))
    same = tensors(end) == tensors(again) != tensors(before) and science([first]) == science([second])
    (folder / "compared.json").write_text(json.dumps({**found, "again": same}))


if __name__ == "__main__":
    main()
