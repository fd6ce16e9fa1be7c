"""`trainer=verl_ray` on a real Ray of its own: the same training as in one process, resuming, and failures.

A start of Ray takes a minute on two cores, so each test looks at several things.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.cluster.rays import ROOT, Rays
from tests.trainer_ext.conftest import FEW_PROMPTS, SHORT, science
from tests.trainer_ext.twins import problems, write_problems, write_twin
from tests.waiting import until
from trainer_ext.backends.verl_ray import process
from trainer_ext.backends.verl_ray.shards import whole_weights

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LIMIT_S = 800
START_S = 300  # for a start of Ray and the first step of a run, on a machine that does other things too
OWN = ["trainer=verl_ray", "method=bnto_minimal", "method.warmup_steps=1", "trainer.checkpoint_every=2"]
RUN = [*SHORT, *FEW_PROMPTS, *OWN]
#: What is compared: a dual controller with data and a reward of the user's, on two ranks; and draws towards a target,
#: whose tokens have weights.
DUAL = "method=bnto_minimal method.warmup_steps=1 method.rho=0.2 method.alpha_lambda=1.0"
#: In one process the micro-batches are of 32 responses, under Ray of about 100 tokens.
DYNAMIC = "verl.actor_rollout_ref.actor.use_dynamic_bsz=true verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100"
TOWARDS = f"method=q_star {' '.join([*SHORT, *FEW_PROMPTS])} {DYNAMIC}"
REWARD = """
def graded(data_source, solution_str, ground_truth, extra_info):
    assert set(extra_info) == {"level", "index", "split"}, extra_info
    letters = len(solution_str)
    return {"score": min(letters, 30) / 30 + extra_info["level"] / 7, "letters": letters}
"""


@pytest.fixture(scope="module")
def space() -> Iterator[Rays]:
    """A namespace in which nothing runs yet; each run starts a Ray of its own."""
    started = Rays()
    started.environment = process.environment(started.environment)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def over(started: subprocess.Popen[str]) -> str:
    said, _ = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 0, said
    return said


def own_data(folder: Path) -> str:
    """Settings for prompts with metadata, a reward with a further number, and a small Qwen without a padding token."""
    twin = write_twin("qwen2", write_problems(folder / "problems.jsonl"), folder / "twin")
    settings = json.loads((twin / "tokenizer_config.json").read_text())
    settings["pad_token"] = None  # as models from GGUF files have none
    (twin / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [{"prompt": one["question"], "level": place % 3} for place, one in enumerate(problems())]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rewards.py").write_text(REWARD)
    own = ["task=file", f"task.train_path={folder}/own.jsonl", "task.answer=null", "task.system_prompt=Count."]
    own += [f"task.reward={folder}/rewards.py:graded", "model=pretrained", f"model.path={twin}"]
    own += ["verl.data.train_batch_size=4", "verl.data.max_prompt_length=120", "verl.data.max_response_length=8"]
    return " ".join([*own, "verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"])


@pytest.mark.parametrize(("method", "ranks"), [(DUAL, "2"), (TOWARDS, "1")], ids=["bnto_minimal", "q_star"])
def test_both_backends_train_the_same(space: Rays, cache: Path, tmp_path: Path, method: str, ranks: str) -> None:
    """The same tokens, masks and rewards; the rest to rounding."""
    result = tmp_path / "found"
    if method == DUAL:
        method = f"{DUAL} {own_data(tmp_path)}"
    compare = [sys.executable, "-m", "tests.cluster.verl_ray_steps", str(result), str(cache), "4"]
    over(space.run(*compare, f"in_process,{ranks}", method))
    found = json.loads(result.read_text())[method][ranks]
    for step in found["steps"]:
        assert step["tokens"] and step["mask"] and step["rewards"]
        assert step["advantages"] < 1e-6 and step["columns"]["advantages"] < 1e-5
        assert set(step["missing"]) <= {"actor/grad_variance"}
        assert max(step["metrics"].values()) < 0.05, step["metrics"]
        assert (step["metrics"].get("reward/letters") == 0.0) == ("rewards.py" in method)
    parameters = found["parameters"]
    assert parameters["beyond"] <= parameters["count"] / 10_000 and parameters["mean"] < 1e-8, parameters


def train(space: Rays, cache: Path, folder: Path, *overrides: str) -> list[dict[str, float]]:
    """The metrics of a run by `trainer_ext.train`, which goes on from the newest checkpoint in `folder`."""
    over(space.run(sys.executable, "-m", "tests.cluster.verl_ray_train", str(folder), str(cache), *RUN, *overrides))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tensors(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_a_resumed_run_ends_with_the_same_bits(space: Rays, cache: Path, tmp_path: Path) -> None:
    """On as many ranks. Another number of ranks reads the checkpoint too, and differs by rounding."""
    ranks = {"whole": 2, "resumed": 2, "on_one_rank": 1}
    lines = {}
    for name, count in ranks.items():
        if name != "whole":
            shutil.copytree(tmp_path / "whole" / "step_000002", tmp_path / name / "step_000002")
        lines[name] = science(train(space, cache, tmp_path / name, "trainer.steps=4", f"trainer.ranks={count}"))
    ends = {name: tmp_path / name / "step_000004" for name in ranks}
    states = {name: json.loads((end / "state.json").read_text()) for name, end in ends.items()}

    assert lines["resumed"] == lines["whole"][2:]
    assert tensors(ends["whole"]) and tensors(ends["whole"]) == tensors(ends["resumed"])
    assert states["whole"]["controller"] == states["resumed"]["controller"]
    assert states["whole"]["training"] == states["resumed"]["training"] == states["on_one_rank"]["training"]

    for one, other in zip(lines["on_one_rank"], lines["whole"][2:], strict=True):
        assert one == pytest.approx(other, rel=0.01, abs=1e-6)
    whole, other = (whole_weights(ends[name] / "actor") for name in ("whole", "on_one_rank"))
    apart = torch.cat([(whole[name] - tensor).abs().flatten() for name, tensor in other.items()])
    assert int((apart > 1e-5).sum()) <= len(apart) / 10_000


def launched(space: Rays, multirun: Path, *overrides: str) -> subprocess.Popen[str]:
    own = ["task.warm_start.steps=3", "trainer=verl_ray", f"multirun={multirun}"]
    return space.run(sys.executable, str(ROOT / "launch.py"), "-m", *own, *overrides)


def only_state(multirun: Path) -> dict[str, Any]:
    (path,) = multirun.glob("runs/*/state.json")
    return dict(json.loads(path.read_text()))


def running(multirun: Path) -> bool:
    """Whether the run has a checkpoint, and has gone on."""
    steps = [len(path.read_text().splitlines()) for path in multirun.glob("runs/*/metrics.jsonl")]
    return max(steps, default=0) >= 2 and bool(list(multirun.glob("runs/*/checkpoints/step_*")))


def test_a_stopped_process_is_named_and_the_next_attempt_goes_on(space: Rays, tmp_path: Path) -> None:
    """Also where the run is a task of another Ray. Nothing of Ray is left, and the run's model can be exported."""
    small = ["verl.data.train_batch_size=8", "trainer.ranks=2", "trainer.steps=6", "trainer.checkpoint_every=1"]
    started = launched(space, tmp_path, "method=c0_grpo", "cluster=ray", "cluster.cpus=1", *small)
    until(lambda: running(tmp_path), START_S)
    assert len(space.processes("gcs_server")) == 2  # of the run, and of the cluster
    trains = until(lambda: space.processes("WorkerDict"))[-1]
    trains.send_signal(signal.SIGSTOP)
    until(lambda: only_state(tmp_path)["attempt"] == 2)
    (errors,) = tmp_path.glob("runs/*/attempts/1/stderr.log")
    assert f"(pid {trains.pid}) is stopped for 30 s" in errors.read_text().splitlines()[-1]
    said = over(started)
    assert "1 done" in said, said
    assert only_state(tmp_path)["ends"] == {"stalled": 1}
    assert not space.processes("ray::", "raylet", "gcs_server", "verl_ray")

    (run,) = (tmp_path / "runs").iterdir()
    export = ["-m", "launcher", "export", run.name, str(tmp_path / "model"), f"--multirun={tmp_path}"]
    over(space.run(sys.executable, *export))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    weights = whole_weights(run / "checkpoints" / "step_000006" / "actor")
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())


def test_a_failing_response_and_killed_processes_are_named(space: Rays, cache: Path, tmp_path: Path) -> None:
    """verl would train on the others, and a padding row."""
    said = over(
        space.run(
            sys.executable, "-m", "tests.cluster.failing_reward", str(cache), FAILED_ONCE=str(tmp_path / "failed")
        )
    )
    raised, trainer, loop = (line for line in said.splitlines() if line.startswith("RAISED"))
    assert "255 of 256 responses arrived in step 1; the first response that failed: row " in raised
    assert "ArithmeticError: a reward that fails" in raised
    assert "Lost: a process that trains died" in trainer and "Lost: an agent loop died" in loop
