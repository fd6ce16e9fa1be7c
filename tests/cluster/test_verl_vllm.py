"""vLLM as the rollout server of trainer=verl_ray: what it reports, what it draws again, and what its death does.

The runs have the Python of .venv-vllm, in a namespace without a network. Their log-probabilities are compared here with
forward passes of transformers, with another version of torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cluster.rays import Rays
from tests.needs import VLLM, VLLM_GPU, with_gpus
from tests.trainer_ext.conftest import FEW_PROMPTS
from trainer_ext import devices
from trainer_ext.backends.in_process.prompts import tokens_of
from trainer_ext.backends.verl_ray import process, shards
from trainer_ext.sampling import alpha

pytestmark = [pytest.mark.usefixtures("no_progress_bars"), pytest.mark.timeout(1800)]
STEPS = 2
EVALUATED = ("trainer.eval_every=1", "trainer.eval_prompts=4", "trainer.eval_samples=2")
#: Heads of 32 numbers, the smallest that vLLM has for CPUs.
SETTINGS = ("model.heads=2", "task.warm_start.steps=100", f"trainer.steps={STEPS}", *FEW_PROMPTS, *EVALUATED)
RUNS = {
    "c0_grpo": ("method=c0_grpo", "trainer.ranks=2"),
    "q_star": ("method=q_star", "method.target_steps=20"),
    "off_policy": ("method=off_policy", "method.target_steps=20"),
    "sft": ("method=sft", "method.target_steps=20"),
}


@dataclass(frozen=True)
class Done:
    """A run: its folder, the shared models, and what tests.cluster.verl_vllm_steps found."""

    method: str
    folder: Path
    cache: Path
    answers: Mapping[str, Any]

    def model(self, kind: str) -> Path:
        """The folder of the starting model (models) or of the target (targets)."""
        (found,) = (path.parent for path in (self.cache / kind).glob("*/config.json"))
        return found

    def drawn(self, step: int) -> dict[str, list[torch.Tensor]]:
        """The rows of a step, by column; after the last step comes its repetition."""
        found: dict[str, list[torch.Tensor]] = torch.load(self.folder / f"drawn_{step}.pt")
        return found

    def log_probs(self, checkpoint: str | None, step: int) -> torch.Tensor:
        """Where tokens of a step were drawn, (tokens, V): of a policy, or of the target, by transformers."""
        path = self.model("models" if checkpoint else "targets")
        module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        if checkpoint:
            module.load_state_dict(shards.whole_weights(self.folder / checkpoint / "actor"), strict=False)
        drawn, found = self.drawn(step), []
        with torch.no_grad():
            for prompt, response in zip(drawn["prompts"], drawn["responses"], strict=True):
                logits = module(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
                found.append(logits.log_softmax(dim=-1))
        return torch.cat(found)

    def drawn_from(self, checkpoint: str, step: int) -> torch.Tensor:
        """Where tokens of a step were drawn, (tokens, V): of what this method draws from, with the policy of a
        checkpoint."""
        if self.method == "c0_grpo":
            return self.log_probs(checkpoint, step)
        target = self.log_probs(None, step)
        if self.method != "q_star":
            return target
        return alpha.solve(self.log_probs(checkpoint, step).double(), target.double(), "kl_symmetry").log_q

    def furthest(self, log_probs: torch.Tensor, step: int, column: str = "rollout_log_probs") -> float:
        """The largest difference of a reported log-probability from these."""
        drawn = self.drawn(step)
        tokens, reported = (torch.cat(drawn[name]) for name in ("responses", column))
        return float((log_probs.double().gather(1, tokens[:, None])[:, 0] - reported.double()).abs().max())


#: In float32, so that log-probabilities can be compared; the part of a device leaves room for the other run's server.
ON_GPU = (
    "model.resources.devices=1",
    "trainer.dtype=float32",
    "verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
)
WHERE = {"cpu": pytest.mark.vllm, "gpu": pytest.mark.vllm_gpu}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, where), marks=mark, id=f"{name}-{where}") for name in RUNS for where, mark in WHERE.items()
    ],
)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two steps, the last of them again from a checkpoint; then the engine is killed."""
    method, where = request.param
    folder, cache = tmp_path_factory.mktemp(method) / "run", tmp_path_factory.mktemp("cache")
    space = Rays()
    try:
        own = process.environment(space.environment) | (
            devices.environment(devices.CPU) if where == "cpu" else devices.environment(devices.CUDA) | with_gpus()
        )
        python = (VLLM if where == "cpu" else VLLM_GPU) / "bin/python"
        command = [str(python), "-m", "tests.cluster.verl_vllm_steps", str(folder), str(cache), str(STEPS)]
        command += [*(one for one in RUNS[method] if where == "cpu" or not one.startswith("trainer.ranks")), *SETTINGS]
        command += ON_GPU if where == "gpu" else ()
        said, _ = space.run(*command, **own, VLLM_HOST_IP="127.0.0.1").communicate(timeout=1500)
        assert (folder / "answers.json").exists(), said
    finally:
        space.stop()
    return Done(method, folder, cache, json.loads((folder / "answers.json").read_text()))


@pytest.mark.parametrize("step", [1, 2])
def test_the_reported_log_probabilities_are_those_of_what_was_drawn_from(done, step):
    """In step 2 the server has the weights of an update."""
    theta = done.log_probs(f"before_{step}", step)
    if done.method != "c0_grpo":
        assert done.furthest(theta, step) > 0.1, "q and the target differ from the policy"
    apart = done.furthest(done.drawn_from(f"before_{step}", step), step)
    print(f"{done.method}, step {step}: at most {apart:.1e} from what was drawn from")
    assert apart < 1e-5
    assert done.furthest(theta, step, "old_log_probs") < 1e-5


def test_an_update_changes_what_is_drawn_from_but_not_the_target(done):
    changed = done.furthest(done.drawn_from("before_1", 2), 2)
    assert changed < 1e-5 if done.method in ("off_policy", "sft") else changed > 1e-4


def test_the_responses_to_a_prompt_differ(done):
    """Each response has a seed of its own: verl alone gives one to all."""
    responses = done.drawn(1)["responses"]
    assert len({tuple(row.tolist()) for row in responses}) > len(responses) / 2


def test_a_step_that_is_done_again_from_a_checkpoint_is_the_same(done):
    first, again = (done.drawn(step)["responses"] for step in (STEPS, STEPS + 1))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    end, repeated = (shards.whole_weights(done.folder / name / "actor") for name in ("end", "again"))
    assert max(float((end[name] - repeated[name]).abs().max()) for name in end) < 1e-5


def test_the_metrics_of_the_server_are_of_the_drawn_tokens(done):
    for step, values in enumerate(done.answers["metrics"][:STEPS], start=1):
        if done.method == "c0_grpo":
            assert 0 < values["rollout/probs_diff_mean"] <= values["rollout/probs_diff_max"] < 1e-5
            continue
        assert "rollout/probs_diff_max" not in values
        theta, target = (done.log_probs(name, step).double() for name in (f"before_{step}", None))
        if done.method == "q_star":
            expected = alpha.solve(theta, target, "kl_symmetry").alpha
            assert values["qstar/alpha_mean"] == pytest.approx(float(expected.mean()), abs=1e-4)
        elif done.method == "off_policy":
            sizes = 1 / (2 * theta - target).exp().sum(dim=-1)
            assert values["qstar/ess_theta"] == pytest.approx(float(sizes.mean()), abs=1e-4)
        else:  # likelihood has no importance weights
            assert "qstar/ess_theta" not in values
    tokens = sum(len(row) for row in done.drawn(STEPS)["responses"])
    assert done.answers["seen"] == (tokens if done.method in ("q_star", "off_policy") else 0)


def test_evaluations_have_a_greedy_response_and_samples_of_the_policy(done):
    """The greedy ones are drawn here, too: of the policy, also where the training draws from q or the target."""
    evaluated = done.answers["evaluated"]
    greedy = {prompt: response for prompt, sample, response in evaluated if sample is None}
    assert len(evaluated) == 3 * 4 * (1 + 2) and len(greedy) > 4  # splits, prompts, responses
    start = done.model("models")
    tokenizer = AutoTokenizer.from_pretrained(start)
    module = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).eval()
    module.load_state_dict(shards.whole_weights(done.folder / "end" / "actor"), strict=False)
    length = max(len(row) for row in done.drawn(1)["responses"])
    for prompt, response in greedy.items():
        ids = torch.tensor([tokens_of(tokenizer, [{"role": "user", "content": prompt}])])
        found = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length)
        assert tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True) == response


def test_a_killed_engine_ends_the_run_as_lost(done):
    kind, message, seconds = done.answers["killed"]
    print(f"{done.method}: {kind} {seconds:.1f} s after the engine was killed")
    assert kind == "Lost" and "a rollout server died" in message and seconds < 60
    assert done.answers["left"] == []
