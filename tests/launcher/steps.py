"""A small real training: a walk that a checkpoint resumes exactly. The environment sets its pace, a gate, its end."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import time
from typing import Any

from launcher.run import lifecycle, stop_request
from launcher.run.lifecycle import FailureKind

PACE = "STEPS_SECONDS"  # seconds a step
# What happens at the third step, and for "deaf" before the first one:
# {seed: "raise" | "words" | "diverge" | "exit" | "quit" | "hang" | "deaf" | "freeze" | "orphan" | "late"}
END = "STEPS_END"
# A file: while it is there, runs wait before their sixth step, or until they are asked to stop.
GATE = "STEPS_GATE"
LEDGER = "STEPS_LEDGER"  # a file that gets a line for each logged step of any run, in the order that they happened


class Diverged(Exception):
    __module__ = "trainer_ext.train"  # as the application has registered the trainer's


class Preempted(Exception):
    __module__ = "trainer_ext.train"


def walk(seed: int, steps: int) -> list[tuple[int, int]]:
    """(step, value) of every line that a run of this seed logs."""
    values = [seed]
    for _ in range(steps):
        values.append((values[-1] * 1103515245 + 12345) % 2**31)
    return [*enumerate(values)][1:]


def train(config: Any, run: Any) -> dict[str, Any]:
    """Walk `trainer.steps` steps from the seed."""
    value, done = int(config["seed"]), 0
    newest = run.latest_checkpoint()
    if newest is not None:
        done, folder = newest
        value = json.loads((folder / "walk.json").read_text())
    end = json.loads(os.environ.get(END, "{}")).get(str(config["seed"]))
    began = time.monotonic()
    while end == "deaf":
        time.sleep(0.05)
    for step in range(done + 1, config["trainer"]["steps"] + 1):
        time.sleep(float(os.environ.get(PACE, "0")))
        while step == 6 and os.path.exists(os.environ.get(GATE, "")) and not run.stop_requested():
            time.sleep(0.02)
        value = (value * 1103515245 + 12345) % 2**31
        if step == 3 and end == "raise":
            raise ValueError(f"seed {config['seed']} ends here")
        if step == 3 and end == "words":
            raise ValueError(f"no number in the response {'abcdefghijklmnopqrst'[: config['seed'] + 1]!r}")
        if step == 3 and end == "late":  # cancelled when it has no eyes for that any more
            owner = lifecycle.read_claim(run.folder)
            assert owner is not None
            stop_request.ask(run.folder, owner, FailureKind.CANCELLED, "too late")
            raise ValueError("of another reason")
        if step == 3 and end == "diverge":
            raise Diverged("value is not finite")
        if step == 3 and end in ("exit", "quit"):
            os._exit(7 if end == "exit" else 0)
        while step == 3 and end == "hang":
            time.sleep(0.05)
        if step == 3 and end == "freeze":
            library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            for _ in range(2):  # the second waits for ever: no signal interrupts it, and it holds Python's lock
                library.pthread_mutex_lock(lock)
        if step == 3 and end == "orphan":
            (run.folder / "child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            os.kill(os.getpid(), signal.SIGKILL)
        run.log(step, {"value": value, "batch": config["verl"]["data"]["train_batch_size"]})
        if LEDGER in os.environ:
            with open(os.environ[LEDGER], "a") as ledger:
                ledger.write(f"{config['id']} {run.attempt} {step}\n")
        stopping = run.stop_requested()
        if stopping or step % config["trainer"]["checkpoint_every"] == 0:
            with run.checkpoint(step) as folder:
                (folder / "walk.json").write_text(json.dumps(value))
        if stopping and step < config["trainer"]["steps"]:
            raise Preempted(f"stopped after step {step}")
    print("walked")
    return {"steps": config["trainer"]["steps"], "train_seconds": time.monotonic() - began}


BETTER = {"ptrw": 10.0, "gspo": 1.0}  # standard deviations of the luck of each run


def judged(config: Any, run: Any) -> dict[str, Any]:
    """Log in each step the reward of the method, and the luck of the run."""
    method, steps = config["method"]["name"], config["trainer"]["steps"]
    reward = BETTER.get(method, 0.0) + random.Random(f"{method} {config['seed']}").gauss(0, 1)
    for step in range(1, steps + 1):
        run.log(step, {"analysis/reward_sum_mean": reward})
    return {"steps": steps, "train_seconds": 0.1}


def rewarded(config: Any, run: Any) -> dict[str, Any]:
    """One step, which logs the reward of the first line of the data."""
    from trainer_ext.scoring import rewards

    with open(config["task"]["train_path"]) as data:
        answer = json.loads(data.readline())["answer"]
    run.log(1, {"value": rewards.function(config["task"]["reward"])("file", answer, answer, {})})
    return {"steps": 1, "train_seconds": 0.0}
