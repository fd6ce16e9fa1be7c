"""alpha by Newton against the bisection of the design and one log_softmax; what the ways to choose alpha differ in.

    python -m benchmarks.alpha

One thread, float32, V = 50257. Exits with 1 unless Newton is at least 5 times faster than 20 bisections on
probabilities at an equal or smaller |E_q[s]|, takes less than 4 log_softmax of the same tensor cold and less than 3
from the previous token's alpha, and leaves the peak of memory within 3 times the inputs. Fewer than 512 rows are
printed but not held to log_softmax: one row takes the time of the calls, and up to 32 MB the C library hands
log_softmax the memory of its last result again, where larger results are paid for page by page, on both sides.
The second half is seeded: it prints the same numbers everywhere, but for rounding.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.size import exit_code, size
from trainer_ext.sampling.alpha import solve
from trainer_ext.sampling.geometric import effective_sample_size

VOCABULARY, SIZES, ROUNDS = 50257, size((1, 64, 512, 4096), (1, 64)), size(9, 1)
HALVINGS, PART = 20, 64  # bisection is timed on at most so many rows, and scaled
FASTER, COLD, WARM, MEMORY, JUDGED = 5, 4, 3, 3, 512
#: What a policy's alpha moves from token to token.
DRIFT = 0.015
SAMPLE = 16  # rows whose residual is taken in double precision


def logits(name: str, rows: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits of policy and target, (rows, size) each."""
    base = torch.randn(rows, size, generator=generator).mul_(3)
    if name == "far":
        return base, torch.randn(rows, size, generator=generator).mul_(3)
    if name == "sharper":  # the target's temperature is 0.7 of the policy's
        return base, base / 0.7
    if name == "tilted":  # the target prefers one token in a hundred, by 4 nats
        return base, base + 4.0 * (torch.rand(rows, size, generator=generator) < 0.01)
    spread = {"near": 0.1, "medium": 1.0}[name]
    return base, torch.randn(rows, size, generator=generator).mul_(spread).add_(base)


def design(log_p_theta: Tensor, log_p_t: Tensor) -> Tensor:
    """alpha (rows,) by bisection as designed: on probabilities, a normalisation and two divergences a pass."""
    theta, target, eps = log_p_theta.exp(), log_p_t.exp(), 1e-10
    low, high = torch.zeros(len(theta), 1), torch.ones(len(theta), 1)
    for _ in range(HALVINGS):
        a = (low + high) / 2
        q = theta**a * target ** (1 - a)
        q = q / q.sum(dim=1, keepdim=True)
        to_theta = (q * ((q + eps) / (theta + eps)).log()).sum(dim=1, keepdim=True)
        to_target = (q * ((q + eps) / (target + eps)).log()).sum(dim=1, keepdim=True)
        right = to_target > to_theta
        low, high = torch.where(right, low, a), torch.where(right, a, high)
    return ((low + high) / 2)[:, 0]


def residual(theta: Tensor, target: Tensor, alpha: Tensor) -> float:
    """Largest |E_q[s]| of some rows, in double precision."""
    theta, target, a = theta[:SAMPLE].double(), target[:SAMPLE].double(), alpha[:SAMPLE].double().unsqueeze(1)
    s = theta - target
    return float(((target + a * s).softmax(dim=1) * s).sum(dim=1).abs().max())


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def speed() -> list[str]:
    """Prints times, passes and residuals; returns what misses its target."""
    print(f"V = {VOCABULARY}, float32, one thread, medians of {ROUNDS} rounds in which all sides take turns")
    print(f"bisection: {HALVINGS} passes over probabilities, timed on {PART} rows at most and scaled to all")
    print(
        f"  {'pairs':8s}{'rows':>5s}{'log_softmax':>13s}{'cold':>10s}{'ratio':>7s}{'passes':>8s}"
        f"{'warm':>10s}{'ratio':>7s}{'passes':>8s}{'bisection':>12s}{'ratio':>7s}   |E[s]| Newton, bisection"
    )
    failed = []
    for name in ("near", "medium", "far"):
        for rows in SIZES:
            generator = torch.Generator().manual_seed(0)
            theta, target = (x.log_softmax(dim=1) for x in logits(name, rows, VOCABULARY, generator))
            part, rounds = min(rows, PART), ROUNDS if rows <= 512 else 5
            found = solve(theta, target)
            start = (found.alpha + DRIFT * torch.randn(rows, generator=generator)).clamp(0, 1)
            again = solve(theta, target, initial=start)
            times: list[list[float]] = [[], [], [], []]
            for _ in range(rounds if rows > 1 else 50):
                times[0].append(seconds(lambda x=theta: x.log_softmax(dim=1)))
                times[1].append(seconds(lambda x=theta, y=target: solve(x, y)))
                times[2].append(seconds(lambda x=theta, y=target, a=start: solve(x, y, initial=a)))
                if len(times[3]) < 3:
                    times[3].append(seconds(lambda x=theta, y=target, n=part: design(x[:n], y[:n])) * rows / part)
            softmax, cold, warm, bisection = (statistics.median(one) for one in times)
            # of what was measured in the same round
            over = [statistics.median(b / a for a, b in zip(times[0], one, strict=True)) for one in times[1:3]]
            own = residual(theta, target, found.alpha)
            other = residual(theta, target, design(theta[:SAMPLE], target[:SAMPLE]))
            print(
                f"  {name:8s}{rows:5d}{1e3 * softmax:10.2f} ms{1e3 * cold:7.1f} ms{over[0]:7.1f}"
                f"{found.passes.double().mean():8.2f}{1e3 * warm:7.1f} ms{over[1]:7.1f}"
                f"{again.passes.double().mean():8.2f}{1e3 * bisection:9.0f} ms{bisection / cold:6.0f}x"
                f"   {own:.1e}  {other:.1e}",
                flush=True,
            )
            where = f"{name} pairs, {rows} rows"
            if bisection < FASTER * cold:
                failed.append(f"{where}: {bisection / cold:.1f} times faster than bisection, {FASTER} promised")
            if own > other:
                failed.append(f"{where}: a residual of {own:.1e}, bisection leaves {other:.1e}")
            for kind, taken, most in (("cold", over[0], COLD), ("warm", over[1], WARM)):
                if rows >= JUDGED and taken >= most:
                    failed.append(f"{where}: {kind} {taken:.1f} log_softmax, below {most} promised")
    return failed


def memory() -> list[str]:
    """Prints the peak of memory; returns what is above the target."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        print("peak of memory: not known on this system")
        return []

    def now(field: str) -> int:
        return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field))

    rows = SIZES[-1]
    theta, target = (x.log_softmax(dim=1) for x in logits("medium", rows, VOCABULARY, torch.Generator().manual_seed(0)))
    clear.write_text("5")  # the peak counts from here
    before, inputs = now("VmRSS"), 2 * theta.numel() * theta.element_size()
    solve(theta, target)
    peak = (inputs + now("VmHWM") - before) / inputs
    print(f"peak of memory at ({rows}, {VOCABULARY}), inputs, result and all: {peak:.2f} times the inputs")
    return [f"memory: {peak:.2f} times the inputs, {MEMORY} promised"] if peak > MEMORY else []


def choices() -> None:
    """Prints what KL symmetry makes of the effective sample sizes, and where snr_max ends, on seeded pairs."""
    rows, size = 500, 1000
    quantiles = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    print(f"{rows} seeded pairs of {size} tokens each; quantiles are 5%, 50%, 95%")
    print(
        f"  {'pairs':8s}  {'KL(theta||t)':>12s}  {'alpha, KL symmetry':^20s}  {'ESS_theta/ESS_t there':^22s}"
        f"  {'within 10%':>10s}  {'alpha, ess_balance':^20s}  {'smaller ESS: KL, balanced':>25s}"
        f"  {'snr_max > 0.95':>14s}  {'< 0.05':>6s}  {'alpha, snr_max':^20s}"
    )
    for name in ("near", "medium", "far", "sharper", "tilted"):
        generator = torch.Generator().manual_seed(0)
        raw, other = logits(name, rows, size, generator)
        # the policy has moved a little from the reference
        moved = raw + 0.3 * torch.randn(rows, size, generator=generator)
        theta, target, ref = (x.double().log_softmax(dim=1) for x in (raw, other, moved))
        kl, ess = solve(theta, target), solve(theta, target, "ess_balance")
        snr = solve(theta, target, "snr_max", log_p_ref=ref).alpha
        sizes = [effective_sample_size(p, kl.log_q) for p in (theta, target)]
        ratio, least = sizes[0] / sizes[1], torch.minimum(*sizes)
        balanced = effective_sample_size(theta, ess.log_q)

        def spread(x: Tensor) -> str:
            return " ".join(f"{v:6.3g}" for v in x.quantile(quantiles).tolist())

        divergence = (theta.exp() * (theta - target)).sum(dim=1).median()
        near = ((ratio > 1 / 1.1) & (ratio < 1.1)).double().mean()
        print(
            f"  {name:8s}  {divergence:12.4f}  {spread(kl.alpha)}  {spread(ratio):^22s}  {near:10.0%}"
            f"  {spread(ess.alpha)}  {least.median():12.3f} {balanced.median():12.3f}"
            f"  {(snr > 0.95).double().mean():14.0%}  {(snr < 0.05).double().mean():6.0%}  {spread(snr)}"
        )


def main() -> None:
    torch.set_num_threads(1)
    failed = speed() + memory()
    choices()
    for line in failed:
        print(f"NOT MET: {line}", file=sys.stderr)
    raise SystemExit(exit_code(bool(failed)))


if __name__ == "__main__":
    main()
