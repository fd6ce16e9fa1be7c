"""The methods' functions against plain Python, what the analysis metrics cost in a training step, and the EMA's error.

    python -m benchmarks.methods

One thread. Exits with 1 unless smoothing and credit weights are at least 100 times faster than a loop over tokens, the
analysis metrics take less than 1% of a step of the quickstart, and the EMA is exact to 1e-5 over 16384 tokens.
"""

from __future__ import annotations

import io
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.size import exit_code, size
from benchmarks.step import timed
from tests.configuration import configuration
from tests.trainer_ext import equations
from trainer_ext import metrics
from trainer_ext.backends.in_process import trainer as in_process
from trainer_ext.methods import control, credit, ratio, trust_region

ROWS, LENGTH, WORDS = size(256, 16), size(1024, 128), 32
LOOP_ROWS, REPEATS = 4, 25  # the loop over a tensor's elements is timed on a few rows, and scaled
LONG = 16384
SPEEDUP, SHARE, ERROR = 100, 0.01, 1e-5
WARM, STEPS = size((5, 20), (1, 2))

Row = list[float]


def median_seconds(function: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


# Plain Python at its quickest, over a row's list; the other rows' loops are those of the tests.


def ema_row(row: Row, marks: list[bool], beta: float = 0.9) -> Row:
    keep, found, newest = 1 - beta, row.copy(), None
    for t, valid in enumerate(marks):
        if valid:
            found[t] = newest = row[t] if newest is None else beta * row[t] + keep * newest
    return found


def temporal_row(marks: list[bool], gamma: float = 0.95) -> Row:
    found, weight, total, length = [0.0] * len(marks), 1.0, 0.0, 0
    for t, valid in enumerate(marks):
        if valid:
            found[t] = weight
            total, length, weight = total + weight, length + 1, weight * gamma
    scale = length / total if total else 0.0
    return [scale * w for w in found]


def adaptive_row(row: Row, marks: list[bool]) -> Row:
    exp = math.exp  # |log p| is small enough for exp as it is
    found = [exp(-x) if valid else 0.0 for x, valid in zip(row, marks, strict=True)]
    total = sum(found)
    scale = sum(marks) / total if total else 0.0
    return [scale * w for w in found]


def ema_columns(w: Tensor, mask: Tensor, beta: float = 0.9) -> Tensor:
    """A loop over columns, each step for the whole batch."""
    found, newest, started = w.clone(), torch.zeros_like(w[:, 0]), torch.zeros_like(mask[:, 0])
    for t in range(w.shape[1]):
        valid = mask[:, t]
        now = torch.where(started, beta * w[:, t] + (1 - beta) * newest, w[:, t])
        newest = torch.where(valid, now, newest)
        found[:, t] = torch.where(valid, now, w[:, t])
        started = started | valid
    return found


def by_token(row: Callable[..., Row], mask: Tensor, *values: Tensor) -> Tensor:
    """A row's loop that reads and writes the elements of tensors one by one, as a loop over tokens is first written."""
    found = torch.zeros(mask.shape)
    for i in range(len(mask)):
        numbers = [[float(x[i, t]) for t in range(mask.shape[1])] for x in values]
        marks = [bool(mask[i, t]) for t in range(mask.shape[1])]
        for t, value in enumerate(row(*numbers, marks)):
            found[i, t] = value
    return found


def by_list(row: Callable[..., Row], mask: Tensor, *values: Tensor) -> Tensor:
    """The same over lists, of which one is made from each tensor at once."""
    return torch.tensor([row(*one) for one in zip(*(x.tolist() for x in (*values, mask)), strict=True)])


def functions() -> list[str]:
    """Prints the times of every function; returns what is slower than promised."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(ROWS, LENGTH, WORDS, generator=generator)
    logp, _ = logits.log_softmax(-1).max(dim=-1)
    reference = logp + 0.1 * torch.randn(ROWS, LENGTH, generator=generator)
    w = (0.3 * torch.randn(ROWS, LENGTH, generator=generator)).exp()
    advantages = torch.randn(ROWS, 1, generator=generator).expand(ROWS, LENGTH).contiguous()
    rewards = torch.randn(ROWS, LENGTH, generator=generator)
    mask = torch.arange(LENGTH) < torch.randint(LENGTH // 4, LENGTH + 1, (ROWS, 1), generator=generator)
    mask &= torch.rand(ROWS, LENGTH, generator=generator) < 0.95

    def tokenwise(function: Callable[..., float]) -> Callable[..., Row]:
        return lambda *rows: [function(*numbers) for numbers in zip(*rows[:-1], strict=True)]

    log_position = (0.95, "log_position", "mean")
    subjects: dict[str, tuple[Callable[[], Tensor], Callable[..., Row], tuple[Tensor, ...]]] = {
        "ema": (lambda: ratio.ema(w, mask), ema_row, (w,)),
        "sequence_arithmetic": (lambda: ratio.sequence_arithmetic(w, mask), equations.sequence_arithmetic, (w,)),
        "sequence_geometric": (
            lambda: ratio.sequence_geometric(w.log(), mask),
            equations.sequence_geometric,
            (w.log(),),
        ),
        "temporal_decay": (lambda: credit.temporal_decay(mask), temporal_row, ()),
        "temporal_decay log_position": (
            lambda: credit.temporal_decay(mask, *log_position),
            lambda marks: equations.temporal_decay(marks, *log_position),
            (),
        ),
        "gradient_adaptive": (
            lambda: credit.gradient_adaptive(logp, mask),
            lambda x, m: adaptive_row([-abs(v) for v in x], m),
            (logp,),
        ),
        "clip": (lambda: trust_region.clip(w, advantages), tokenwise(equations.clip), (w, advantages)),
        "asymmetric_clip": (
            lambda: trust_region.asymmetric_clip(w, advantages),
            tokenwise(equations.asymmetric_clip),
            (w, advantages),
        ),
        "gaussian": (lambda: trust_region.gaussian(w, advantages), tokenwise(equations.gaussian), (w, advantages)),
        "token_weight (BNTO)": (
            lambda: control.token_weight(logp, advantages, reference, "kl_gated"),
            tokenwise(lambda lp, a, ref: equations.token_weight(lp, a, ref, "kl_gated")),
            (logp, advantages, reference),
        ),
    }
    print(f"{ROWS} responses of up to {LENGTH} tokens, medians of {REPEATS} runs")
    print(f"tokens: a loop that reads and writes a tensor's elements, timed on {LOOP_ROWS} rows and scaled to {ROWS}")
    print("lists: plain Python over lists made from the tensors, and a tensor made of the result")
    print(f"  {'':28s}{'ours':>10s}{'tokens':>12s}{'ratio':>8s}{'lists':>12s}{'ratio':>8s}")
    failed = []
    for name, (own, row, values) in subjects.items():
        # a cut that holds long and short rows alike
        cut = slice(None, None, ROWS // LOOP_ROWS)
        few = (row, mask[cut], *(x[cut] for x in values))
        torch.testing.assert_close(
            torch.where(mask[cut], own()[cut], 0.0), torch.where(mask[cut], by_token(*few), 0.0), rtol=1e-4, atol=1e-5
        )
        ours = median_seconds(own)
        token = median_seconds(lambda few=few: by_token(*few), 3) * ROWS / LOOP_ROWS
        lists = median_seconds(lambda row=row, values=values: by_list(row, mask, *values), 3)
        promised = name.split()[0] in ("ema", "temporal_decay", "gradient_adaptive")
        short = promised and token < SPEEDUP * ours
        print(
            f"  {name:28s}{1e3 * ours:8.2f} ms{1e3 * token:9.0f} ms{token / ours:7.0f}x"
            f"{1e3 * lists:9.1f} ms{lists / ours:7.1f}x{f'   below {SPEEDUP}x' if short else ''}"
        )
        if short:
            failed.append(f"{name}: {token / ours:.0f} times faster than the loop over tokens, {SPEEDUP} promised")
    torch.testing.assert_close(ratio.ema(w, mask), ema_columns(w, mask))
    ours, columns = median_seconds(lambda: ratio.ema(w, mask)), median_seconds(lambda: ema_columns(w, mask), 3)
    print(f"  ema against a loop over columns, each for all rows: {1e3 * columns:.1f} ms, {columns / ours:.1f}x ours")
    for beta in (0.5, 0.05, 0.001):
        ours = median_seconds(lambda beta=beta: ratio.ema(w, mask, beta))
        print(f"  ema with beta {beta:<6}          {1e3 * ours:8.2f} ms")
    exact = median_seconds(lambda: credit.gradient_adaptive(logp, mask, logits=logits), 3)
    print(f"  gradient_adaptive, exact norms of {WORDS} words: {1e3 * exact:.1f} ms")
    whole = median_seconds(lambda: metrics.analysis_metrics(logp, advantages, rewards, mask))
    print(f"  all analysis metrics: {1e3 * whole:.1f} ms")
    return failed


def long_response() -> list[str]:
    """Prints the EMA's error along a long response; returns what is larger than promised."""
    w = (0.5 * torch.randn(1, LONG, generator=torch.Generator().manual_seed(0))).exp()
    mask = torch.ones(1, LONG, dtype=torch.bool)
    worst = 0.0
    for beta in (0.9, 0.5, 0.05, 0.001):
        expected = torch.tensor([equations.ema(w[0].double().tolist(), mask[0].tolist(), beta)], dtype=torch.float64)
        worst = max(worst, float((ratio.ema(w, mask, beta).double() - expected).abs().max()))
    print(f"largest error of the EMA along {LONG} tokens, beta 0.9 to 0.001, single precision: {worst:.1e}")
    return [f"ema: an error of {worst:.1e}, at most {ERROR:.0e} promised"] if worst > ERROR else []


def training_step() -> list[str]:
    """Prints the analysis metrics' share of a step of the quickstart's C0; returns what is larger than promised."""
    # verl and transformers say much while they load
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as name, redirect_stdout(quiet), redirect_stderr(quiet):
        trainer = in_process.InProcess(configuration("experiment=quickstart", "method=c0_grpo"), Path(name))
        parts: dict[str, list[float]] = {}
        real = in_process.metrics.analysis_metrics
        in_process.metrics.analysis_metrics = timed(parts, "metrics", real)
        trainer.step = timed(parts, "step", trainer.step)
        try:
            for step in range(1, WARM + STEPS + 1):
                trainer.step(step)
        finally:
            in_process.metrics.analysis_metrics = real
        rows, length = trainer._newest[0].shape
        words = len(trainer.actor.tokenizer)
    # entropy_full_mean is taken while sampling, position by position
    p = torch.randn(rows, words).softmax(-1)
    alive, entropy = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, length)

    def full_entropy() -> float:
        for t in range(length):
            entropy[:, t] = torch.where(alive, torch.special.entr(p).sum(dim=-1), 0.0)
        return float(entropy.double().sum() / alive.sum())

    whole, own = (statistics.median(parts[part][WARM:]) for part in ("step", "metrics"))
    full = median_seconds(full_entropy, STEPS)
    share = (own + full) / whole
    print(
        f"a step of the quickstart, {rows} responses of up to {length} tokens: {1e3 * whole:.1f} ms (median of {STEPS})"
    )
    print(f"  analysis metrics {1e3 * own:.3f} ms, and {1e3 * full:.3f} ms for entropies while sampling: {share:.2%}")
    return [f"analysis metrics: {share:.2%} of a step, below {SHARE:.0%} promised"] if share >= SHARE else []


def main() -> None:
    torch.set_num_threads(1)
    failed = functions() + long_response() + training_step()
    for line in failed:
        print(f"NOT MET: {line}", file=sys.stderr)
    raise SystemExit(exit_code(bool(failed)))


if __name__ == "__main__":
    main()
