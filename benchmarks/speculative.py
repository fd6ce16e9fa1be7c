"""Speculative decoding from q beside plain decoding from it: the wall-clock speed-up, and the acceptance it rests on.

    python -m benchmarks.speculative

One thread. The policy is the tiny model as runs start from it, the target one eight times as deep, taught the same task
(`method.target=large`), built here in a minute. At each number of rows the ways take turns on the same prompts; times
are per token, for the ways' responses differ. Exits with 1 unless a forward of the target costs at least 4 of the
policy's, and speculative decoding is the faster at one row. More rows are printed as they come: a round lasts as long
as its slowest row needs, and a processor that is busy with rows has no room left for drafts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.size import exit_code, size
from trainer_ext.backends.in_process import initial_model, platform, target_model
from trainer_ext.backends.in_process.batch import Request, pad
from trainer_ext.backends.in_process.prompts import Prompts
from trainer_ext.backends.in_process.sampler import Stream, load_module, sample
from trainer_ext.backends.in_process.speculative import Drafting, adaptive, constant, sample_speculatively
from trainer_ext.registry import alpha
from trainer_ext.sampling import draws
from trainer_ext.sampling.proposal import FromGeometric

ROWS = size({1: 60, 4: 40, 32: 12, 256: 4}, {1: 1, 4: 1})  # rounds at each number of rows
LENGTH, COST = 12, 4
TRAINED = size((), ("task.warm_start.steps=5", "method.target_steps=5"))  # at full size, as in runs
WAYS: Mapping[str, Drafting | None] = {
    "plain": None,
    "3 drafts": constant(3),
    "5 drafts": constant(5),
    "10 drafts": constant(10),
    "adaptive": adaptive(1 / 4, 10),
}


def policies(cache: Path) -> tuple[Any, Any, Prompts, Any]:
    """The policy, the target, the task's prompts and the tokenizer."""
    from transformers import AutoTokenizer

    from tests.configuration import configuration

    platform.use()
    config = configuration("method=q_speculative", "task=sorting", *TRAINED)
    start = initial_model.start(config, cache)
    tokenizer = AutoTokenizer.from_pretrained(start)
    prompts = Prompts(config, cache, tokenizer, seed=0)
    return load_module(start), load_module(target_model.start(config, cache, start)), prompts, tokenizer


@torch.no_grad()
def forward_cost(policy: Any, target: Any, request: Request) -> tuple[float, float]:
    """Median seconds of reading one token a row, of the policy and of the target, in turns."""
    streams = [Stream(module, request) for module in (policy, target)]
    token = request.prompts[:, -1:]
    seconds: list[list[float]] = [[], []]
    for _ in range(LENGTH):
        for stream, times in zip(streams, seconds, strict=True):
            began = time.perf_counter()
            stream.read(token)
            times.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def newton() -> FromGeometric:
    """q as the runs draw from it."""
    return FromGeometric(alpha.choice({"alpha": "kl_symmetry", "solver": "newton"}), temperature=1.0)


def compare(policy: Any, target: Any, requests: Callable[[int], Request], rounds: int) -> dict[str, Any]:
    """Each way's seconds a token, by round, and the metrics of its drafting."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    drafted: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for turn in range(rounds + 1):
        for name, drafting in WAYS.items():
            request = requests(turn)
            shared = (request, draws.keys(0, name, turn, range(len(request.prompts) * request.n)), newton())
            began = time.perf_counter()
            if drafting is None:
                samples = sample([policy, target], *shared)
            else:
                samples, speculation = sample_speculatively(policy, target, *shared, drafting)
                drafted[name].append(speculation)
            if turn:  # the first round warms up
                seconds[name].append((time.perf_counter() - began) / int(samples.batch.mask.sum()))
    return {name: (seconds[name], drafted[name]) for name in WAYS}


def main() -> int:
    """Print the table; 1 if a target is missed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        policy, target, prompts, tokenizer = policies(Path(folder))
    missed = []
    print("sorting, V = 99, one thread; speed-up: median over rounds of plain seconds a token over speculative ones")
    print(f"{'rows':>5} {'way':>10} {'forward: policy, target':>24} {'ms/token':>9} {'speed-up':>9} {'kept':>6}   1-TV")
    for rows, rounds in ROWS.items():

        def request(turn: int, rows: int = rows) -> Request:
            drawn = [prompt.tokens for prompt in prompts.of_step(turn + 1, rows)]
            tokens, mask = pad(drawn, tokenizer.pad_token_id, left=True)
            return Request(tokens, mask, 1, LENGTH, 1.0, tokenizer.eos_token_id, tokenizer.pad_token_id)

        cheap, dear = forward_cost(policy, target, request(0))
        found = compare(policy, target, request, rounds)
        plain = found["plain"][0]
        best = 0.0
        for name, (own, drafted) in found.items():
            line = f"{rows:5d} {name:>10} {1e3 * cheap:10.2f}, {1e3 * dear:6.2f} ms x{dear / cheap:3.1f}"
            line += f" {1e3 * statistics.median(own):9.2f}"
            if drafted:
                speedup = statistics.median(a / b for a, b in zip(plain, own, strict=True))
                best = max(best, speedup)
                names = ("acceptance_rate", "expected_acceptance")  # means over the rounds
                kept, expected = (statistics.fmean(each[f"speculative/{name}"] for each in drafted) for name in names)
                line += f" {speedup:8.2f}x {kept:6.3f} {expected:.3f}"
            print(line, flush=True)
        if dear < COST * cheap and rows == 1:
            missed.append(f"a forward of the target costs {dear / cheap:.1f} of the policy's, not {COST}")
        if rows == 1 and best <= 1:
            missed.append(f"at one row the best speed-up is {best:.2f}")
    print("\n".join(f"missed: {one}" for one in missed), end="\n" if missed else "")
    return exit_code(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
