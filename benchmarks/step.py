"""One GRPO step in process beside TRL's GRPOTrainer: same model, batch, lengths and number of updates, in one run.

    python -m benchmarks.step

TRL lives in an environment of its own (build/trl, made on first use). Both sides are processes of one thread; they take
turns, so that a machine whose speed drifts treats them alike. Prints each side's median step, the ratio, and where our
time goes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.size import size

ROOT = Path(__file__).parents[1]
TRL = ["torch==2.13.0", "trl==1.16.0", "transformers==5.10.4"]
PROMPTS, SAMPLES, TOKENS = 8, 8, 12  # 64 responses of up to 12 tokens, one update
WARM, STEPS, ROUNDS = size((5, 30, 3), (1, 2, 1))


def trl_python() -> Path:
    """The interpreter of TRL's environment, made when missing."""
    folder = ROOT / "build" / "trl"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in (TRL[:1], TRL):  # torch first, or pip takes a build with CUDA
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "installed").write_text("\n".join(TRL))
    return python


def setting() -> dict[str, Any]:
    """The quickstart's model on sorting, untaught (so that few responses end early), 64 samples, one update."""
    from tests.configuration import configuration

    return configuration(
        "task=sorting",
        "task.warm_start.steps=1",
        "trainer.steps=1000",
        f"verl.data.train_batch_size={PROMPTS}",
        f"verl.data.max_response_length={TOKENS}",
        f"verl.actor_rollout_ref.rollout.n={SAMPLES}",
        f"verl.actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
    )


def timed(parts: dict[str, list[float]], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the seconds of each call added to parts[name]."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = function(*args, **kwargs)
        parts.setdefault(name, []).append(time.perf_counter() - began)
        return result

    return call


def ours(cache: Path) -> dict[str, Any]:
    """Median seconds of a step and of its parts."""
    import torch

    from trainer_ext.backends.in_process import initial_model, rollout
    from trainer_ext.backends.in_process import trainer as in_process

    torch.set_num_threads(1)
    trainer = in_process.InProcess(setting(), cache)
    parts: dict[str, list[float]] = {}

    rollout.sample = timed(parts, "  of which sampling", rollout.sample)
    trainer._rollout.draw = timed(parts, "sampling and rewards", trainer._rollout.draw)
    in_process.score = timed(parts, "reference log-probabilities", in_process.score)
    in_process.metrics.analysis_metrics = timed(parts, "analysis metrics", in_process.metrics.analysis_metrics)
    trainer._update = timed(parts, "update (forward, backward, optimizer)", trainer._update)
    steps = []
    for step in range(1, WARM + STEPS + 1):
        began = time.perf_counter()
        trainer.step(step)
        steps.append(time.perf_counter() - began)
    return {
        "step": statistics.median(steps[WARM:]),
        "parts": {name: statistics.median(values[WARM:]) for name, values in parts.items()},
        "tokens": trainer.tokens / trainer.samples,
        "model": initial_model.start(setting(), cache),
    }


# Runs in TRL's environment: no import from the project.
PEER = """
import json, statistics, sys, time, random
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
torch.set_num_threads(1)
model, out, prompts, samples, tokens, warm, steps = sys.argv[1:3] + [int(x) for x in sys.argv[3:]]
tokenizer = AutoTokenizer.from_pretrained(model)
generator = random.Random(0)
texts = ["".join(generator.choices("0123456789", k=8)) for _ in range(4096)]
data = Dataset.from_list([{"prompt": t + ">", "truth": "".join(sorted(t))} for t in texts])
lengths = []
def reward(completions, truth, completion_ids, **_):
    lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
    return [float(c.strip() == t) for c, t in zip(completions, truth)]
times = []
class Clock(TrainerCallback):
    def on_step_begin(self, *a, **k): self.began = time.perf_counter()
    def on_step_end(self, *a, **k): times.append(time.perf_counter() - self.began)
config = GRPOConfig(output_dir=out, per_device_train_batch_size=prompts * samples, num_generations=samples,
    max_completion_length=tokens, num_iterations=1, steps_per_generation=1, beta=0.0, temperature=1.0,
    learning_rate=3e-4, max_steps=warm + steps, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
    save_strategy="no",
    logging_strategy="no", disable_tqdm=True, optim="adamw_torch_fused", seed=0)
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
trainer = GRPOTrainer(model=policy, reward_funcs=reward, args=config,
    train_dataset=data, processing_class=tokenizer, callbacks=[Clock()])
trainer.train()
print("RESULT" + json.dumps({"step": statistics.median(times[warm:]), "tokens": sum(lengths) / len(lengths)}))
"""


def main() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    python = trl_python()
    own: list[dict[str, Any]] = []
    peer: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(ROUNDS):
            own.append(_result([sys.executable, "-m", "benchmarks.step", "--ours", name], environment))
            sizes = [PROMPTS, SAMPLES, TOKENS, WARM, STEPS]
            command = [str(python), "-c", PEER, own[-1]["model"], str(folder / "out"), *map(str, sizes)]
            peer.append(_result(command, environment))
    mine, theirs = (statistics.median(r["step"] for r in side) for side in (own, peer))
    ratios = [a["step"] / b["step"] for a, b in zip(own, peer, strict=True)]
    print(f"one GRPO step, {PROMPTS * SAMPLES} samples of up to {TOKENS} tokens, one update; medians of {STEPS} steps")
    print(f"  rlsweep {1000 * mine:7.1f} ms   ({own[0]['tokens']:.1f} tokens a sample)")
    print(f"  TRL     {1000 * theirs:7.1f} ms   ({peer[0]['tokens']:.1f} tokens a sample)")
    print(
        f"  ratio   {statistics.median(ratios):7.2f}      ({min(ratios):.2f} to {max(ratios):.2f} over {ROUNDS} rounds)"
    )
    print("where our step goes:")
    for part in own[0]["parts"]:
        seconds = statistics.median(r["parts"][part] for r in own)
        print(f"  {part:40s} {1000 * seconds:7.1f} ms  {seconds / mine:5.0%}")


def _result(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode or not lines:
        raise SystemExit(f"{command[:3]} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT"))
    return result


if __name__ == "__main__":
    if "--ours" in sys.argv:
        print("RESULT" + json.dumps(ours(Path(sys.argv[-1]))))
    else:
        main()
