"""Steps of `trainer=verl_ray` beside steps of plain verl (`python -m verl.trainer.main_ppo`), by turns, in one run.

    python -m benchmarks.verl_ray

Both train the same model with the same batch sizes, lengths, loss, workers and rollout server, each on a Ray of its own
in a network namespace of its own (tests/cluster/rays.py). One makes a step while the other waits; which is first
alternates. A step is from its turn to its end in the training's own loop, with metrics and log: seconds, and the CPU
seconds of all processes of that side. Afterwards a few more steps, in which the memory of all processes is looked at
several times a second, where what they share counts once. Then the driver's part alone: `methods.update` on 1024
responses of 4096 tokens, beside one pass over the same columns (a product with the mask and its sum, in double
precision), both in CPU seconds. Prints all; exit code 1 where a limit is missed.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import psutil

from benchmarks import turns
from benchmarks.size import exit_code, size
from launcher.nodes import ONE
from tests.cluster.rays import Rays, missing_ray

PROMPTS, RESPONSES, TOKENS = size((8, 16, 24), (4, 8, 8))  # 128 responses of up to 24 tokens, one update
WARM, STEPS, WATCHED = size((4, 40, 6), (1, 2, 1))
LOOK_S = 0.2
START_S = 600
TIME, MEMORY = 0.75, 1.0  # of a step of plain verl, and of its memory
ROWS, LENGTH = size((1024, 4096), (64, 256))
DRIVER_LIMIT = 40.0  # passes; 1.5 s, which a user should see at most, were 55 on this project's machine


class OwnRun:
    """What `train` needs of a run; asks for a turn after each step."""

    def __init__(self, folder: Path):
        self.folder, self.cache, self.nodes = folder, folder / "cache", ONE

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(f"{json.dumps(dict(metrics))}\n")

    def histogram(self, *_: Any) -> None: ...
    def evaluation(self, *_: Any) -> None: ...
    def response(self, *_: Any) -> None: ...
    def trace(self, *_: Any) -> None: ...

    def latest_checkpoint(self) -> None:
        return None

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        folder = self.folder / f"step_{step}"
        folder.mkdir()
        yield folder

    def stop_requested(self) -> bool:
        turns.wait()
        return False


@dataclass
class Side:
    """A training, and what its steps took."""

    space: Rays
    process: subprocess.Popen[str]
    connection: Connection
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    processes: int = 0

    def step(self) -> tuple[float, float]:
        """Seconds and CPU seconds of a step."""
        before, began = self._cpu(), time.perf_counter()
        self.connection.send("go")
        self.connection.recv()
        return time.perf_counter() - began, self._cpu() - before

    def timed_step(self) -> None:
        seconds, cpu_seconds = self.step()
        self.seconds.append(seconds)
        self.cpu_seconds.append(cpu_seconds)

    def watched_step(self) -> None:
        """A step in which the memory is looked at again and again."""
        over = threading.Event()
        looks = threading.Thread(target=self._look, args=(over,))
        looks.start()
        self.step()
        over.set()
        looks.join()

    def _look(self, over: threading.Event) -> None:
        while not over.is_set():
            self.bytes.append(sum(_each(self._all(), lambda one: int(one.memory_full_info().pss))))
            over.wait(LOOK_S)

    def _all(self) -> list[psutil.Process]:
        return self.space.processes("")

    def _cpu(self) -> float:
        found = self._all()
        self.processes = len(found)
        return sum(_each(found, lambda one: float(sum(one.cpu_times()[:2]))))


def _each(processes: Sequence[psutil.Process], value: Callable[[psutil.Process], Any]) -> list[Any]:
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(value(one))
    return found


def start(space: Rays, folder: Path, command: Sequence[str], **environment: str) -> Side:
    """Start a training, and wait until it asks for its first turn."""
    with closing(Listener(str(folder / "turns"), family="AF_UNIX")) as listener:
        log = (folder / "log").open("w")
        process = space.run(*command, output=log, **environment, **{turns.SOCKET: str(folder / "turns")})
        listener._listener._socket.settimeout(START_S)
        try:
            connection = listener.accept()
            connection.recv()
        except (TimeoutError, EOFError) as error:
            raise SystemExit(
                f"{' '.join(command[:3])} did not start:\n{(folder / 'log').read_text()[-3000:]}"
            ) from error
    return Side(space, process, connection)


def theirs(space: Rays, folder: Path) -> Side:
    """Plain verl."""
    from tests.cluster import plain_settings
    from trainer_ext.backends.verl_ray.trainer import _POLL_S

    own = [
        *plain_settings.ON_CPU,
        *plain_settings.sizes(PROMPTS, RESPONSES),
        *plain_settings.on_problems(folder),
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
        "actor_rollout_ref.actor.kl_loss_coef=0.01",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
        f"data.max_response_length={TOKENS}",
        f"trainer.total_training_steps={WARM + STEPS + WATCHED + 1}",
        "trainer.total_epochs=1000",
        "trainer.logger=[file]",
        "trainer.project_name=peer",
        "trainer.experiment_name=metrics",
        f"hydra.run.dir={folder}",
        f"+ray_kwargs.ray_init._temp_dir={space.folder}",
    ]
    return start(
        space,
        folder,
        [*plain_settings.PROGRAM, *own],
        VERL_USE_EXTERNAL_MODULES=f"{plain_settings.MODULE},{turns.__name__}",
        VERL_FILE_LOGGER_ROOT=str(folder),
        PLAIN_VERL_BATCH=str(PROMPTS * RESPONSES),
        **{turns.POLL: str(_POLL_S)},
    )


def ours(space: Rays, folder: Path, model: Path, problems: Path) -> Side:
    """The backend, on the model and the data of plain verl."""
    from tests.configuration import configuration

    actor = "verl.actor_rollout_ref.actor"
    config = configuration(
        "trainer=verl_ray",
        "method=c0_grpo",
        "task=gsm8k",
        f"task.train_path={problems}",
        "model=pretrained",
        f"model.path={model}",
        "trainer.split={validation: 0.0, test: 0.25}",
        f"trainer.steps={WARM + STEPS + WATCHED + 2}",
        "trainer.checkpoint_every=1000",
        f"verl.data.train_batch_size={PROMPTS}",
        "verl.data.max_prompt_length=120",
        f"verl.data.max_response_length={TOKENS}",
        f"verl.actor_rollout_ref.rollout.n={RESPONSES}",
        f"{actor}.ppo_mini_batch_size={PROMPTS}",
        f"{actor}.ppo_micro_batch_size_per_gpu=32",
        f"{actor}.optim.lr=1e-3",
    )
    (folder / "config").write_bytes(pickle.dumps(config))
    return start(space, folder, [sys.executable, "-m", "benchmarks.verl_ray", "--ours", str(folder)])


def train_here(folder: Path) -> None:
    """The process of our training."""
    from trainer_ext.train import train

    train(pickle.loads((folder / "config").read_bytes()), OwnRun(folder))


def by_turns(own: Side, peer: Side) -> None:
    """All steps of both sides, which change places every time."""
    for made in range(WARM + STEPS + WATCHED):
        for side in (own, peer) if made % 2 else (peer, own):
            if made < WARM:
                side.step()
            elif made < WARM + STEPS:
                side.timed_step()
            else:
                side.watched_step()


def compared(name: str, unit: str, own: Sequence[float], peer: Sequence[float]) -> float:
    """The median of the ratios of pairs, printed with its quartiles."""
    ratios = [a / b for a, b in zip(own, peer, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = f"{statistics.median(own):8.3f} {statistics.median(peer):8.3f} {unit:7s}"
    print(f"  {name:14s} {medians} {middle:6.3f}   ({low:.3f} to {high:.3f})")
    return middle


def sampled(log: Path, key: str, before: int) -> list[float]:
    """Seconds until all responses of a timed step had their rewards, as the training itself logged them.

    before: steps that the log has before those.
    """
    lines = [json.loads(line) for line in log.read_text().splitlines()][before : before + STEPS]
    return [float(line.get("data", line)[key]) for line in lines]


def steps() -> bool:
    """Measure and print the steps; whether they are within the limits."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / side for side in ("theirs", "ours")]
        spaces: list[Rays] = []
        try:
            for folder in folders:
                folder.mkdir()
                space = Rays()
                spaces.append(space)
                space.environment = own_environment(space)
            peer = theirs(spaces[0], folders[0])
            own = ours(spaces[1], folders[1], folders[0] / "twin", folders[0] / "problems.jsonl")
            by_turns(own, peer)
            logs = [folders[1] / "metrics.jsonl", folders[0] / "peer" / "metrics.jsonl"]
            draws = sampled(logs[0], "cost/sample_seconds", 1 + WARM), sampled(logs[1], "timing_s/gen", WARM)
        finally:
            for space in spaces:
                space.stop()
    print(f"a GRPO step under Ray: {PROMPTS * RESPONSES} responses of up to {TOKENS} tokens, one update, by turns")
    print(f"  {'':14s} {'rlsweep':>8s} {'verl':>8s} {'':7s} {'ratio':>6s}   (quartiles), {STEPS} pairs of steps")
    seconds = compared("step", "s", own.seconds, peer.seconds)
    compared("  sampling", "s", *draws)
    compared(
        "  the rest",
        "s",
        *(
            [whole - part for whole, part in zip(side.seconds, drawn, strict=True)]
            for side, drawn in zip((own, peer), draws, strict=True)
        ),
    )
    compared("CPU", "s", own.cpu_seconds, peer.cpu_seconds)
    most = max(own.bytes) / max(peer.bytes)
    print(f"  {'peak memory':14s} {max(own.bytes) / 1e9:8.3f} {max(peer.bytes) / 1e9:8.3f} {'GB':7s} {most:6.3f}")
    print(f"  {'processes':14s} {own.processes:8d} {peer.processes:8d}")
    print(f"  limits: a ratio of {TIME:g} in seconds, of {MEMORY:g} in memory")
    return seconds <= TIME and most <= MEMORY


def own_environment(space: Rays) -> dict[str, str]:
    from trainer_ext.backends.verl_ray import process

    return {**process.environment(space.environment), "OMP_NUM_THREADS": "1"}


def driver() -> bool:
    """Measure and print the driver's part of a large step; whether it is within the limits."""
    import torch

    import trainer_ext.backends.in_process.trainer  # noqa: F401  (registers the choices of all parts)
    from tests.configuration import configuration
    from trainer_ext.methods.update import Method, Scored, update

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def column() -> Any:
        return torch.rand(ROWS, LENGTH, generator=generator)

    lengths = torch.randint(LENGTH // 8, LENGTH + 1, (ROWS, 1), generator=generator)
    mask = torch.arange(LENGTH) < lengths
    old = -column() * mask
    near = [old + 0.01 * column() * mask for _ in range(2)]
    scored = Scored(
        mask=mask,
        rewards=torch.rand(ROWS, generator=generator),
        group=torch.arange(ROWS) // RESPONSES,
        old=old,
        reference=near[0],
        behaviour=near[1],
        entropy=column() * mask,
        collision=column() * mask,
    )
    columns = [scored.old, scored.reference, scored.behaviour, scored.entropy, scored.collision]
    within = True
    print(f"the driver's part of a step of {ROWS} responses of up to {LENGTH} tokens, one thread")
    for name in ("c0_grpo", "bnto_minimal", "q_star"):
        method = Method.read(configuration(f"method={name}")["method"], 1000)
        ratios, seconds = [], []
        for step in range(1, 6):
            began = time.process_time()
            for one in columns:
                float((one * mask).double().sum())
            passed = time.process_time() - began
            began = time.process_time()
            update(method, scored, step)
            seconds.append(time.process_time() - began)
            ratios.append(seconds[-1] / passed)
        ratio, middle = statistics.median(ratios), statistics.median(seconds)
        print(f"  {name:14s} {middle:8.3f} s   {ratio:6.1f} passes over its columns")
        within = within and ratio <= DRIVER_LIMIT
    print(f"  limit: {DRIVER_LIMIT:g} passes")
    return within


def main() -> int:
    """Measure both, print, compare with the limits."""
    os.environ["OMP_NUM_THREADS"] = "1"
    missing = missing_ray()
    if missing:
        print(f"steps were not measured: {missing}")
    within = [driver(), missing is not None or steps()]
    return exit_code(not all(within))


if __name__ == "__main__":
    if "--ours" in sys.argv:
        train_here(Path(sys.argv[-1]))
    else:
        sys.exit(main())
