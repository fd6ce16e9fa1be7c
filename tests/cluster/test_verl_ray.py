"""`trainer=verl_ray` on a real Ray of its own: the same training as in one process, resuming, and failures.

A start of Ray takes a minute of two cores, so each test looks at several things, and several tests at one run.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.cluster import verl_ray_driver
from tests.cluster.rays import ROOT, Rays
from tests.needs import gpus, with_gpus
from tests.results import logged, only_state, reproducible, tensors
from tests.trainer_ext.conftest import FEW_PROMPTS, SHORT
from tests.trainer_ext.twins import problems, write_problems, write_twin
from tests.waiting import ended, until
from trainer_ext.backends.verl_ray import process
from trainer_ext.backends.verl_ray.shards import whole_weights

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
START_S = 300  # for a start of Ray and the first step of a run, on a machine that does other things too
STEPS, RANKS = 6, 2
#: A dual controller with data and a reward of the user's, on two ranks.
DUAL = ["trainer=verl_ray", "method=bnto_minimal", "method.warmup_steps=1", "method.rho=0.2", "method.alpha_lambda=1.0"]
EACH = ["trainer.checkpoint_every=1", f"trainer.steps={STEPS}"]
#: Draws towards a target, whose tokens have weights. In one process the micro-batches are of 32 responses, under Ray of
#: about 100 tokens.
ACTOR = "verl.actor_rollout_ref.actor"
DYNAMIC = [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=100"]
TOWARDS = ["trainer=verl_ray", "method=q_star", "method.target_steps=20", *SHORT, *FEW_PROMPTS, *DYNAMIC]
RESPONSES = 64  # to each step's prompts, there
#: It can be held up once two steps have their rewards, and counts in threads.
REWARD = """
import os, time

calls = []

def graded(data_source, solution_str, ground_truth, extra_info):
    assert set(extra_info) == {"level", "index", "split"}, extra_info
    calls.append(extra_info["index"])
    while len(calls) > 2 * 16 and os.path.exists(os.environ.get("HOLD_REWARDS", "")):
        time.sleep(0.05)
    letters = len(solution_str)
    return {"score": min(letters, 30) / 30 + extra_info["level"] / 7, "letters": letters}
"""


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """On what the runs of a test compute."""
    return str(request.param)


def on(device: str, ranks: int) -> list[str]:
    """Settings for so many ranks; on GPUs, for as many as there are, since each rank has one, and in the precision of
    the run in one process with which they are compared."""
    if device == "cpu":
        return [f"trainer.ranks={ranks}"]
    return [f"model.resources.devices={min(ranks, len(gpus()))}", "trainer.dtype=float32"]


@pytest.fixture(scope="module")
def space() -> Iterator[Rays]:
    """A namespace in which nothing runs yet; each run starts a Ray of its own."""
    started = Rays()
    started.environment = process.environment(started.environment) | with_gpus()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def own_data(folder: Path) -> list[str]:
    """Settings for prompts with metadata, a reward with a further number, and a small mixture of experts, some of whose
    layers attend to a window, without a padding token."""
    twin = write_twin("gpt_oss", write_problems(folder / "problems.jsonl"), folder / "twin")
    settings = json.loads((twin / "tokenizer_config.json").read_text())
    settings["pad_token"] = None  # as models from GGUF files have none
    (twin / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [{"prompt": one["question"], "level": place % 3} for place, one in enumerate(problems())]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rewards.py").write_text(REWARD)
    own = ["task=file", f"task.train_path={folder}/own.jsonl", "task.answer=null", "task.system_prompt=Count."]
    own += [f"task.reward={folder}/rewards.py:graded", "model=pretrained", f"model.path={twin}"]
    own += ["verl.data.train_batch_size=4", "verl.data.max_prompt_length=120", "verl.data.max_response_length=8"]
    return [*own, "verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"]


def train(space: Rays, cache: Path, folder: Path, *overrides: str, **environment: str) -> list[dict[str, float]]:
    """The metrics of a run by `trainer_ext.train`, which goes on from the newest checkpoint in `folder`."""
    program = [sys.executable, "-m", "tests.cluster.verl_ray_train"]
    ended(space.run(*program, str(folder), str(cache), *overrides, **environment))
    return logged(folder)


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed. Shared: only to be read."""

    overrides: list[str]
    folder: Path
    lines: list[dict[str, float]]

    @property
    def end(self) -> Path:
        return self.folder / f"step_{STEPS:06d}"


@pytest.fixture(scope="module")
def whole(space: Rays, cache: Path, device: str, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    overrides, kept = [*DUAL, *own_data(folder)], {verl_ray_driver.STEPS: str(folder / "steps")}
    lines = train(space, cache, folder, *overrides, *EACH, *on(device, RANKS), **kept)
    return Whole(overrides, folder, lines)


def assert_same(folder: Path, steps: int, of_reward: set[str], near: float = 1e-6) -> dict[str, Any]:
    """The steps of both backends had the same tokens, masks and rewards; the rest to rounding. Returns what differs.

    of_reward: metrics that the reward function returns, on which they agree exactly; near: how far advantages may be
    apart.
    """
    found = json.loads((folder / "compared.json").read_text())
    assert len(found["steps"]) == steps
    for step in found["steps"]:
        assert step["tokens"] and step["mask"] and step["rewards"]
        apart = [value for name, value in step["columns"].items() if name != "rollout_is_weights"]
        assert step["advantages"] < near and max(apart, default=0.0) < 1e-5, step["columns"]
        assert not step["missing"]
        # it compares micro-batches, which are others: two ranks', or of about as many tokens
        step["metrics"].pop("actor/grad_variance", None)
        assert max(step["metrics"].values()) < 0.05, step["metrics"]
        rewarded = {key: value for key, value in step["metrics"].items() if key.startswith("reward/")}
        assert rewarded == dict.fromkeys(of_reward, 0.0)
    parameters = found["parameters"]
    assert parameters["beyond"] <= parameters["count"] / 10_000 and parameters["mean"] < 1e-8, parameters
    return dict(found)


def test_both_backends_train_the_same_on_two_ranks(whole: Whole) -> None:
    """The tokenizer has no token for padding, so that verl would not train the embedding of the one that ends texts."""
    found = assert_same(whole.folder, STEPS, {"reward/letters"})
    assert found["parameters"]["beyond"] == 0
    assert max(step["metrics"]["actor/grad_norm"] for step in found["steps"]) < 1e-3
    assert int((whole.folder / "steps" / "idle").read_text()) <= 1  # a task of verl's had it; Ray starts more by itself


def test_both_backends_draw_the_same_towards_a_target_and_what_fails_then_is_named(
    space: Rays, cache: Path, device: str, tmp_path: Path
) -> None:
    """Of a response that fails verl would train on the others, and a padding row."""
    files = {"FAIL_ONCE": str(tmp_path / "fail"), "HOLD_REWARDS": str(tmp_path / "hold")}
    program = [sys.executable, "-m", "tests.cluster.failing_reward", str(tmp_path), str(cache), "4"]
    said = ended(space.run(*program, *TOWARDS, *on(device, 1), "trainer.steps=7", **files))
    assert_same(tmp_path, 4, set())
    raised, trainer, loop = (line for line in said.splitlines() if line.startswith("RAISED"))
    assert f"{RESPONSES - 1} of {RESPONSES} responses arrived in step 5; the first response that failed: row " in raised
    assert "ArithmeticError: a reward that fails" in raised
    assert "Lost: a process that trains died" in trainer and "Lost: an agent loop died" in loop


#: Ranks, and methods with models and rows of their own; those that need no other servers share a run.
CRITIC = ["method=c0_ppo", "method/sampler=rejection", "method/target=expert", "method.target_steps=20"]
OTHERS: dict[str, tuple[int, list[str]]] = {
    "a critic and rejection": (2, CRITIC),
    "pairs of responses": (1, ["method=dpo", *DYNAMIC]),
    "pairs of the task": (2, ["method=dpo", "method.dpo_pairs=data", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_methods_with_other_models_and_rows_train_the_same(
    space: Rays, cache: Path, device: str, tmp_path: Path, name: str
) -> None:
    """Also a step that is done again from its checkpoint, with the critic's."""
    ranks, own = OTHERS[name]
    overrides = ["trainer=verl_ray", *own, *on(device, ranks), *SHORT, *FEW_PROMPTS]
    program = [sys.executable, "-m", "tests.cluster.verl_ray_again", str(tmp_path), str(cache), "3"]
    ended(space.run(*program, *overrides))
    # a critic's advantages have the rounding of its values, and are divided by their spread
    found = assert_same(tmp_path, 3, set(), near=1e-5 if "critic" in name else 1e-6)
    assert found["again"]
    seen = [set(step["metrics"]) for step in found["steps"]]
    if "critic" in name:
        assert all({"critic/vf_loss", "rejection/accepted_fraction"} <= keys for keys in seen)
        assert any("critic/explained_variance" in keys for keys in seen)  # where rewards differ
    else:
        assert any({"actor/dpo_margin", "actor/dpo_accuracy"} <= keys for keys in seen)


def test_adapters_alone_are_trained_and_the_servers_and_an_export_get_merged_weights(
    space: Rays, cache: Path, device: str, tmp_path: Path
) -> None:
    """Before the first update they have no effect. The reference is the model without them."""
    own = ["method=c0_grpo", "verl.actor_rollout_ref.model.lora_rank=4", f"{ACTOR}.optim.lr=0.01", *on(device, 2)]
    program = [sys.executable, "-m", "tests.cluster.verl_ray_again", str(tmp_path), str(cache), "3"]
    ended(space.run(*program, "trainer=verl_ray", *own, *SHORT, *FEW_PROMPTS))
    found = json.loads((tmp_path / "compared.json").read_text())
    (first,) = found["steps"]
    assert first["tokens"] and first["mask"] and first["rewards"] and first["advantages"] < 1e-6
    assert found["again"]
    assert found["parameters"]["count"] > 50_000 and found["parameters"]["max"] < 1e-6
    kept = torch.load(tmp_path / "steps" / "1.pt"), torch.load(tmp_path / "steps" / "3.pt")
    away = [abs(step["metrics"]["actor/kl_init"]) for step in kept]
    assert away[0] < 1e-5 < 1e-4 < away[1]
    saved = whole_weights(tmp_path / "again" / "actor")
    assert saved and all(".lora_" in name for name in saved)


def state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "state.json").read_text()))


def test_another_number_of_ranks_resumes_a_run_and_differs_by_rounding(
    space: Rays, cache: Path, device: str, tmp_path: Path, whole: Whole
) -> None:
    if device == "gpu" and len(gpus()) < RANKS:
        pytest.skip("another number of ranks needs a GPU for each")
    shutil.copytree(whole.folder / "step_000003", tmp_path / "step_000003")
    lines = train(space, cache, tmp_path, *whole.overrides, *EACH, *on(device, 1))
    end = tmp_path / f"step_{STEPS:06d}"
    assert state(end)["training"] == state(whole.end)["training"]
    for one, other in zip(reproducible(lines), reproducible(whole.lines[3:]), strict=True):
        assert one.pop("actor/grad_variance") > 0 and other.pop("actor/grad_variance") > 0  # of other micro-batches
        assert one == pytest.approx(other, rel=0.01, abs=1e-6)
    first, second = (whole_weights(folder / "actor") for folder in (whole.end, end))
    apart = torch.cat([(first[name] - tensor).abs().flatten() for name, tensor in second.items()])
    assert int((apart > 1e-5).sum()) <= len(apart) / 10_000


def launched(space: Rays, multirun: Path, *overrides: str, **environment: str) -> subprocess.Popen[str]:
    own = [*overrides, "cluster=ray", "cluster.cpus=1", f"multirun={multirun}"]
    return space.run(sys.executable, str(ROOT / "launch.py"), "-m", *own, **environment)


def running(multirun: Path) -> bool:
    """Whether the run has a checkpoint, and has gone on."""
    steps = [len(path.read_text().splitlines()) for path in multirun.glob("runs/*/metrics.jsonl")]
    return max(steps, default=0) >= 2 and bool(list(multirun.glob("runs/*/checkpoints/step_*")))


def test_a_stopped_process_is_named_and_the_next_attempt_ends_with_the_same_bits(
    space: Rays, device: str, tmp_path: Path, whole: Whole
) -> None:
    """Also where the run is a task of another Ray. Nothing of Ray is left, and the run's model can be exported."""
    hold = tmp_path / "hold"
    hold.touch()
    small = ["model.resources.memory_gb=1", *on(device, RANKS)]
    started = launched(space, tmp_path, *whole.overrides, *EACH, *small, HOLD_REWARDS=str(hold))
    until(lambda: running(tmp_path) or started.poll() is not None, START_S)
    assert started.poll() is None, started.communicate()[0]
    assert len(space.processes("gcs_server")) == 1  # the run is in the Ray of the cluster
    assert not space.processes("LoadBalancer")  # verl's, which nobody would ask
    trains = until(lambda: space.processes("WorkerDict"))[-1]
    trains.send_signal(signal.SIGSTOP)
    hold.unlink()
    until(lambda: only_state(tmp_path)["attempt"] == 2)
    (errors,) = tmp_path.glob("runs/*/attempts/1/stderr.log")
    assert f"(pid {trains.pid}) is stopped for 30 s" in errors.read_text().splitlines()[-1]
    said = ended(started)
    assert "1 done" in said, said
    assert only_state(tmp_path)["ends"] == {"stalled": 1}
    assert not space.processes("ray::", "raylet", "gcs_server", "verl_ray")

    (run,) = (tmp_path / "runs").iterdir()
    end = run / "checkpoints" / f"step_{STEPS:06d}"
    lines = logged(run)
    assert {line["attempt"] for line in lines} == {1, 2}
    assert reproducible(lines) == reproducible(whole.lines)
    assert tensors(end) and tensors(end) == tensors(whole.end)
    assert state(end)["controller"] == state(whole.end)["controller"]
    assert state(end)["training"] == state(whole.end)["training"]

    export = ["-m", "launcher", "export", run.name, str(tmp_path / "model"), f"--multirun={tmp_path}"]
    ended(space.run(sys.executable, *export))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    weights = whole_weights(end / "actor")
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())
