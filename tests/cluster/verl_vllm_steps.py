"""Steps under Ray with vLLM as the server, the last of them twice, and then its engine is killed.

`python -m tests.cluster.verl_vllm_steps FOLDER CACHE STEPS OVERRIDE ...` with the Python of .venv-vllm, which has no
pytest, in the environment of `process.environment`. FOLDER gets a checkpoint before each step (`before_STEP`) and after
the last one, what each step drew (`drawn_STEP.pt`), and `answers.json`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

COLUMNS = ("prompts", "responses", "rollout_log_probs", "old_log_probs")


def recorded(session: Any, folder: Path) -> None:
    """Make the steps of this class of sessions leave what they drew in files of this folder, newest last."""
    import torch
    import transfer_queue as tq

    from trainer_ext.backends.verl_ray.trainer import _place

    clear_of = session._clear

    def clear(self: Any, batch: Any) -> None:
        keys = sorted(batch.keys, key=_place)
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(COLUMNS))
        rows = {name: [row.clone() for row in data[name].unbind()] for name in COLUMNS}
        torch.save(rows, folder / f"drawn_{len(list(folder.glob('drawn_*'))) + 1}.pt")
        clear_of(self, batch)

    session._clear = clear


def engines() -> list[psutil.Process]:
    """vLLM's engines below this process."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if "EngineCore" in " ".join(one.cmdline())]


def main() -> None:
    from omegaconf import OmegaConf

    from tests.configuration import configuration
    from trainer_ext.backends.verl_ray.session import Session

    folder, cache, steps, overrides = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    folder.mkdir(exist_ok=True)
    config = configuration("trainer=verl_ray", "trainer.rollout=vllm", *overrides)
    plain = {**config, "verl": OmegaConf.to_container(config["verl"], resolve=False)}
    recorded(Session, folder)

    def saved(run: Any, name: str) -> None:
        (folder / name).mkdir()
        run.save(str(folder / name), {})

    answers: dict[str, Any] = {"metrics": []}
    with tempfile.TemporaryDirectory(prefix="vr-") as ours:
        run = Session(plain, str(cache), ours)
        for step in range(1, steps + 1):
            saved(run, f"before_{step}")
            answers["metrics"].append(run.step(step)[0])
            answered, _ = run.evaluate(step)
            answers["evaluated"] = [[one.prompt, one.sample, one.response] for one in answered]
            answers["seen"] = len(next(iter(run._positions.values()), []))
        saved(run, "end")
        run.load(str(folder / f"before_{steps}"))
        answers["metrics"].append(run.step(steps)[0])
        saved(run, "again")

        engine = engines()[0]  # there is one for each rank
        threading.Timer(0.5, engine.kill).start()
        begin = time.monotonic()
        try:
            for step in range(steps + 1, 1000):
                run.step(step)
        except Exception as error:
            answers["killed"] = [type(error).__name__, str(error), time.monotonic() - begin]
        run.close()
    answers["left"] = [" ".join(one.cmdline()) for one in engines()]
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
