"""One GRPO step in process beside TRL's GRPOTrainer: same model, batch, lengths and number of updates, in one run.

    python -m benchmarks.step

Two sizes: the quickstart's model, and one of the shape of SmolLM2-135M with random weights. TRL lives in an environment
of its own (build/trl, made on first use). Both sides are processes of one thread; they take turns, so that a machine
whose speed drifts treats them alike. Prints each side's median step and most memory, the ratios, and where our time
goes. Times are seconds of CPU. Exits 1 when a ratio is above its limit.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.size import exit_code, size

ROOT = Path(__file__).parents[1]
TRL = ["torch==2.13.0", "trl==1.16.0", "transformers==5.10.4"]
ROUNDS = size(5, 1)
#: Of TRL's.
TIME, MEMORY = 0.80, 1.0


class Size(NamedTuple):
    """What both sides train, and how often: one update a step with prompts * samples responses."""

    name: str
    prompts: int
    samples: int
    tokens: int
    warm: int
    steps: int


SIZES = (
    Size("the quickstart's model", 8, 8, 12, *size((5, 30), (1, 2))),
    Size("the shape of SmolLM2-135M", 4, 4, 64, *size((1, 3), (0, 1))),
)
SHAPE = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": size(30, 3)}
SHAPE |= {"num_attention_heads": 9, "num_key_value_heads": 3}


def trl_python() -> Path:
    """The interpreter of TRL's environment, made when missing."""
    folder = ROOT / "build" / "trl"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in (TRL[:1], TRL):  # torch first, or pip takes a build with CUDA
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
        (folder / "installed").write_text("\n".join(TRL))
    return python


def setting(chosen: Size, folder: Path) -> dict[str, Any]:
    """Sorting, untaught (so that few responses end early), one update."""
    from tests.configuration import configuration

    rows = chosen.prompts * chosen.samples
    model = [f"verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows}"]
    if chosen is not SIZES[0]:
        path = folder / "model"
        if not path.exists():
            _write_model(path, folder)
        model += ["model=pretrained", f"model.path={path}", "verl.actor_rollout_ref.actor.use_kl_loss=false"]
    return configuration(
        *model,
        "task=sorting",
        "task.warm_start.steps=1",
        "trainer.steps=1000",
        "trainer.eval_every=1000",
        f"verl.data.train_batch_size={chosen.prompts}",
        f"verl.data.max_response_length={chosen.tokens}",
        f"verl.actor_rollout_ref.rollout.n={chosen.samples}",
        f"verl.actor_rollout_ref.actor.ppo_mini_batch_size={chosen.prompts}",
    )


def _write_model(path: Path, cache: Path) -> None:
    """Random weights of that shape, with the quickstart's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from trainer_ext.backends.in_process import initial_model

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(initial_model.start(setting(SIZES[0], cache), cache))
    ends = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    LlamaForCausalLM(LlamaConfig(**SHAPE, **ends, tie_word_embeddings=True)).save_pretrained(path)
    tokenizer.save_pretrained(path)


def timed(parts: dict[str, list[float]], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the seconds of each call added to parts[name]."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        result = function(*args, **kwargs)
        parts.setdefault(name, []).append(time.process_time() - began)
        return result

    return call


def ours(chosen: Size, cache: Path) -> dict[str, Any]:
    """Median seconds of a step and of its parts, and the most memory.

    The configuration is composed by another process, as it is for every run.
    """
    import torch

    import trainer_ext.train  # noqa: F401  (which each run imports first)
    from trainer_ext.backends.in_process import initial_model, rollout
    from trainer_ext.backends.in_process import trainer as in_process

    torch.set_num_threads(1)
    config = pickle.loads((cache / "config").read_bytes())
    trainer = in_process.InProcess(config, cache)
    parts: dict[str, list[float]] = {}

    rollout.sample = timed(parts, "  of which sampling", rollout.sample)
    trainer._rollout.draw = timed(parts, "sampling and rewards", trainer._rollout.draw)
    in_process.score = timed(parts, "reference log-probabilities", in_process.score)
    in_process.metrics.analysis_metrics = timed(parts, "analysis metrics", in_process.metrics.analysis_metrics)
    trainer._update = timed(parts, "update (forward, backward, optimizer)", trainer._update)
    steps = []
    for step in range(1, chosen.warm + chosen.steps + 1):
        began = time.process_time()
        trainer.step(step)
        steps.append(time.process_time() - began)
    return {
        "step": statistics.median(steps[chosen.warm :]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "parts": {name: statistics.median(values[chosen.warm :]) for name, values in parts.items()},
        "tokens": trainer.tokens / trainer.samples,
        "model": initial_model.start(config, cache),
    }


# Runs in TRL's environment: no import from the project.
PEER = """
import json, random, resource, statistics, sys, time
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
    def on_step_begin(self, *a, **k): self.began = time.process_time()
    def on_step_end(self, *a, **k): times.append(time.process_time() - self.began)
config = GRPOConfig(output_dir=out, per_device_train_batch_size=prompts * samples, num_generations=samples,
    max_completion_length=tokens, num_iterations=1, steps_per_generation=1, beta=0.0, temperature=1.0,
    learning_rate=3e-4, max_steps=warm + steps, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
    save_strategy="no",
    logging_strategy="no", disable_tqdm=True, optim="adamw_torch_fused", seed=0)
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
trainer = GRPOTrainer(model=policy, reward_funcs=reward, args=config,
    train_dataset=data, processing_class=tokenizer, callbacks=[Clock()])
trainer.train()
print("RESULT" + json.dumps({"step": statistics.median(times[warm:]), "tokens": sum(lengths) / len(lengths),
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def measure(chosen: Size, python: Path) -> bool:
    """Both sides by turns; prints what was found. Whether both limits are kept."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    own: list[dict[str, Any]] = []
    peer: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config").write_bytes(pickle.dumps(setting(chosen, folder)))
        for _ in range(ROUNDS):
            own.append(_result([sys.executable, "-m", "benchmarks.step", chosen.name, name], environment))
            command = [str(python), "-c", PEER, own[-1]["model"], str(folder / "out"), *map(str, chosen[1:])]
            peer.append(_result(command, environment))
    samples = chosen.prompts * chosen.samples
    print(
        f"{chosen.name}: {samples} samples of up to {chosen.tokens} tokens, one update; medians of {chosen.steps} steps"
    )
    for side, results in (("rlsweep", own), ("TRL", peer)):
        seconds, memory = (statistics.median(result[key] for result in results) for key in ("step", "memory"))
        tokens = results[0]["tokens"]
        print(f"  {side:7s} {1000 * seconds:8.1f} ms {memory / 1e6:6.2f} GB   ({tokens:.1f} tokens a sample)")
    kept = True
    for key, limit in (("step", TIME), ("memory", MEMORY)):
        ratios = [a[key] / b[key] for a, b in zip(own, peer, strict=True)]
        found = statistics.median(ratios)
        kept &= found <= limit
        span = f"{min(ratios):.2f} to {max(ratios):.2f} in {ROUNDS} rounds"
        print(f"  {key} {found:.2f} of TRL's ({span}; at most {limit:g})")
    mine = statistics.median(result["step"] for result in own)
    print("  where our step goes:")
    for part in own[0]["parts"]:
        seconds = statistics.median(result["parts"][part] for result in own)
        print(f"    {part:40s} {1000 * seconds:8.1f} ms  {seconds / mine:5.0%}")
    return kept


def main() -> int:
    """Run the benchmark; returns the exit code."""
    python = trl_python()
    return exit_code(not all([measure(chosen, python) for chosen in SIZES]))


def _result(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode or not lines:
        raise SystemExit(f"{command[:3]} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT"))
    return result


if __name__ == "__main__":
    if len(sys.argv) == 3:
        (asked,) = (chosen for chosen in SIZES if chosen.name == sys.argv[1])
        print("RESULT" + json.dumps(ours(asked, Path(sys.argv[2]))))
    else:
        sys.exit(main())
