"""q* in vLLM: tokens are drawn from q and reported with its log-probabilities; what would change q is refused.

The engines run with the Python of .venv-vllm, in a namespace without a network. q is computed here, by forward passes
of transformers, with another version of torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.cluster.rays import Rays
from tests.needs import VLLM
from tests.trainer_ext.alpha_oracle import EPS, Reference
from tests.trainer_ext.conftest import refusal
from tests.trainer_ext.twins import write_problems, write_read, write_twin
from trainer_ext.backends.vllm_qstar import settings
from trainer_ext.sampling import alpha
from trainer_ext.sampling.proposal import FromTarget

pytestmark = pytest.mark.usefixtures("no_progress_bars")
KL_SYMMETRY = {"sampler": "geometric", "temperature": 1.0, "alpha": "kl_symmetry", "solver": "newton"}
ESS_BALANCE = {"sampler": "geometric", "temperature": 1.3, "alpha": "ess_balance"}
TARGET = {"sampler": "target", "alpha": "none"}
PROMPTS, LENGTH, T = 24, 20, 0.8
#: The smallest heads that vLLM has for CPUs have 32 numbers; the target is wider than the policy.
WIDTHS = {"policy": 128, "target": 256}
ENGINE = {"max_model_len": 64, "dtype": "float32", "enforce_eager": True, "max_num_seqs": 64}
#: Nothing is compiled, which takes longer than everything else.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}  # fmt: skip


# ---------------------------------------------------------------- without vLLM


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Folders with what is read of models before they are loaded."""
    return write_read(tmp_path_factory.mktemp("read"))


def test_an_engine_is_told_what_the_method_says(read):
    method = {**ESS_BALANCE, "loss": "policy_gradient", "clip_low": 0.2}
    found = settings.engine_arguments(read["policy"], read["target"], T, method, max_model_len=256)
    assert found["model"] == read["policy"] and found["max_model_len"] == 256
    said = settings.QStarSettings(**found["hf_overrides"]["qstar"])
    assert said == settings.QStarSettings(read["target"], ["Qwen2ForCausalLM"], T, ESS_BALANCE)
    proposal = said.proposal()
    assert proposal.temperature == 1.3 and proposal.rule.name == "ess_balance"
    method = {**TARGET, "loss": "sft"}
    found = settings.engine_arguments(read["policy"], read["target"], T, method)["hf_overrides"]["qstar"]
    assert found["method"] == TARGET and isinstance(settings.QStarSettings(**found).proposal(), FromTarget)


@pytest.mark.parametrize(
    "given",
    [
        {"target": "larger"}, {"target": "llama"}, {"target": "bare"}, {"max_model_len": 300}, {"temperature": 0},
        {"pipeline_parallel_size": 2}, {"speculative_config": {"method": "ngram"}}, {"load_format": "dummy"},
        {"enable_sleep_mode": True}, {"quantization": "fp8"}, {"logprobs_mode": "raw_logprobs"},
        {"method": {**KL_SYMMETRY, "sampler": "policy"}}, {"method": {**KL_SYMMETRY, "alpha": "none"}},
        {"method": {**KL_SYMMETRY, "alpha": "snr_max"}},
    ],
)  # fmt: skip
def test_what_would_not_draw_from_q_is_refused(read, given, worded):
    given = {"policy": "policy", "target": "target", "temperature": T, "method": KL_SYMMETRY, **given}
    given |= {name: read[given[name]] for name in ("policy", "target")}
    said = refusal(lambda: settings.engine_arguments(**given))
    worded(said.replace(str(Path(read["bare"]).parent), "{models}"))


@pytest.mark.parametrize("name", settings.REQUEST)
def test_a_request_that_changes_q_is_refused(name):
    plain = {key: allowed[0] for key, (allowed, _) in settings.REQUEST.items()}
    settings.check_request(SimpleNamespace(**plain))
    with pytest.raises(ValueError, match=rf"{name}=0\.9: must be "):
        settings.check_request(SimpleNamespace(**{**plain, name: 0.9}))


# ---------------------------------------------------------------- with vLLM


@dataclass(frozen=True)
class Asked:
    """The models of an engine by name, its questions, and what it answered."""

    models: Mapping[str, Path]
    questions: Mapping[str, Any]
    answers: Mapping[str, Any]


def write_models(family: str, folder: Path) -> dict[str, Path]:
    """Two different twins, and the policy with other weights."""
    problems = write_problems(folder / "problems.jsonl")
    models = {name: write_twin(family, problems, folder / name, 128, width) for name, width in WIDTHS.items()}
    module = AutoModelForCausalLM.from_pretrained(models["policy"], dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    module.save_pretrained(folder / "updated")
    return {**models, "updated": folder / "updated"}


def ask(
    models: Mapping[str, Path], folder: Path, method: Mapping[str, Any], multiprocessing: bool = True, **engine: Any
) -> Asked:
    """Start an engine, ask it everything, and end it; engine: its arguments where they are not `ENGINE`."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(8, 300, size=3 + row % 9).tolist() for row in range(PROMPTS)]
    paths = {name: str(path) for name, path in models.items()}
    arguments = {"policy": paths["policy"], "target": paths["target"], "temperature": T, "method": method}
    questions = {
        "arguments": arguments, "engine": {**ENGINE, **engine}, "prompts": prompts, "length": LENGTH,
        "update": paths["updated"], "other": paths["other"],
        "wrong_requests": {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "prompt_logprobs": 1},
        "wrong_engines": {"pipeline_parallel_size": 2, "load_format": "dummy", "logprobs_mode": "raw_logprobs",
                          "logits_processors": None},
    }  # fmt: skip
    asked, told = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(questions))
    space = Rays()
    try:
        command = [str(VLLM / "bin/python"), "-m", "tests.trainer_ext.vllm_engine", str(asked), str(told)]
        more = {"VLLM_CACHE_ROOT": str(folder), "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing))}
        said, _ = space.run(*command, **ENVIRONMENT, **more).communicate(timeout=1200)
        assert told.exists(), said
    finally:
        space.stop()
    return Asked(models, questions, json.loads(told.read_text()))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Path]]:
    """By family. `other` is a target with another tokenizer."""
    found = {family: write_models(family, tmp_path_factory.mktemp(family)) for family in ("qwen2", "llama")}
    return {
        "qwen2": {**found["qwen2"], "other": found["llama"]["target"]},
        "llama": {**found["llama"], "other": found["qwen2"]["target"]},
    }


@pytest.fixture(scope="module")
def qwen2(models: Mapping[str, Mapping[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The engine in a process of its own, as usual; models whose embedding is also their last layer."""
    return ask(models["qwen2"], tmp_path_factory.mktemp("asked"), KL_SYMMETRY)


@pytest.fixture(scope="module")
def llama(models: Mapping[str, Mapping[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The engine in the process that asks; models with a last layer of its own; another q."""
    return ask(models["llama"], tmp_path_factory.mktemp("asked"), ESS_BALANCE, multiprocessing=False)


@pytest.fixture(scope="module")
def parallel(models: Mapping[str, Mapping[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Tensor parallelism: each of two processes has a part of both models."""
    return ask(models["qwen2"], tmp_path_factory.mktemp("asked"), KL_SYMMETRY, tensor_parallel_size=2)


@pytest.fixture(scope="module")
def of_target(models: Mapping[str, Mapping[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Draws from the target alone."""
    return ask(models["qwen2"], tmp_path_factory.mktemp("asked"), TARGET)


@pytest.fixture(params=["qwen2", "llama", "parallel"])
def asked(request: pytest.FixtureRequest) -> Asked:
    found: Asked = request.getfixturevalue(request.param)
    return found


def forward(model: Path, asked: Asked, answers: list[dict[str, Any]]) -> torch.Tensor:
    """Log-probabilities where the tokens of the answers were drawn, (answers * LENGTH, V), by transformers."""
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    with torch.no_grad():
        for one in answers:
            prompt = asked.questions["prompts"][one["row"]]
            logits = module(torch.tensor([[*prompt, *one["tokens"]]])).logits[0, len(prompt) - 1 : -1]
            found.append(torch.log_softmax(logits / T, dim=-1))
    return torch.cat(found)


def chosen(log_p: torch.Tensor, answers: list[dict[str, Any]]) -> torch.Tensor:
    """The log-probabilities of the tokens that were drawn."""
    tokens = torch.tensor([token for one in answers for token in one["tokens"]])
    return log_p.gather(1, tokens[:, None])[:, 0].double()


def q_between(theta: torch.Tensor, target: torch.Tensor, method: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """alpha and log q in double precision; for KL symmetry the roots are scipy's."""
    if method["alpha"] != "kl_symmetry":
        found = alpha.solve(theta.double(), target.double(), method["alpha"])
        return found.alpha, (found.log_q / method["temperature"]).log_softmax(dim=-1)
    pairs = zip(theta.double().numpy(), target.double().numpy(), strict=True)
    rows = [Reference(*pair, EPS[torch.float32]) for pair in pairs]
    roots = [row.root[0] for row in rows]
    return torch.tensor(roots), torch.tensor(np.stack([row.log_q(a) for row, a in zip(rows, roots, strict=True)]))


def compare(asked: Asked, policy: str, answers: list[dict[str, Any]]) -> tuple[float, float]:
    """The largest difference of a reported log-probability from log q, and from log p of the policy."""
    theta, target = (forward(asked.models[name], asked, answers) for name in (policy, "target"))
    _, log_q = q_between(theta, target, asked.questions["arguments"]["method"])
    reported = torch.tensor([value for one in answers for value in one["log_probs"]], dtype=torch.float64)
    assert len(reported) == PROMPTS * LENGTH
    return tuple(float((chosen(x, answers) - reported).abs().max()) for x in (log_q, theta))  # type: ignore[return-value]


@pytest.mark.vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("drawn", "policy"), [("first", "policy"), ("updated", "updated")])
def test_the_reported_log_probabilities_are_those_of_q(asked, drawn, policy):
    of_q, of_policy = compare(asked, policy, asked.answers[drawn])
    print(f"{drawn}: at most {of_q:.1e} from log q, {of_policy:.1f} from log p")
    assert of_q < 1e-5 and of_policy > 0.5


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_an_engine_of_the_target_reports_its_log_probabilities_whatever_the_policy(of_target):
    """The target's logits are larger than those of q: those of transformers in float32 and float64 differ by 1e-5."""
    for drawn in ("first", "updated"):
        log_p, answers = forward(of_target.models["target"], of_target, of_target.answers[drawn]), of_target.answers
        reported = torch.tensor([value for one in answers[drawn] for value in one["log_probs"]], dtype=torch.float64)
        apart = float((chosen(log_p, answers[drawn]) - reported).abs().max())
        print(f"{drawn}: at most {apart:.1e} from log p of the target")
        assert apart < 3e-5
    theta, target = (forward(of_target.models[name], of_target, answers["first"]) for name in ("policy", "target"))
    sizes = 1 / (2 * theta - target).double().exp().sum(dim=-1)
    for found in answers["metrics"]:
        assert found["qstar/ess_theta"] == pytest.approx(float(sizes.mean()), abs=1e-4)
        assert found["qstar/ess_t"] == 1 and "qstar/alpha_mean" not in found


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_an_update_changes_q(asked):
    """So that the comparison after it says something about the new weights."""
    assert compare(asked, "policy", asked.answers["updated"])[0] > 0.1


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_tokens_do_not_depend_on_the_batch(asked):
    first, again = ({one["row"]: one["tokens"] for one in asked.answers[name]} for name in ("first", "again"))
    assert list(again) == list(range(PROMPTS))[:-8:-1]
    assert again == {row: first[row] for row in again}
    assert len({tuple(tokens) for tokens in first.values()}) == PROMPTS


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_the_metrics_are_of_the_drawn_tokens(asked):
    values, *others = asked.answers["metrics"]
    assert asked.answers["before"] == [{}] * (1 + len(others)) and all(one == values for one in others)
    theta, target = (forward(asked.models[name], asked, asked.answers["first"]) for name in ("policy", "target"))
    alphas, _ = q_between(theta, target, asked.questions["arguments"]["method"])
    assert values["qstar/alpha_mean"] == pytest.approx(float(alphas.mean()), abs=1e-4)
    assert values["qstar/alpha_std"] == pytest.approx(float(alphas.std(unbiased=False)), abs=1e-4)
    assert values["qstar/solver_passes"] >= 1 and values["qstar/degenerate_fraction"] == 0


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_an_engine_that_would_not_draw_from_q_does_not_start(asked):
    messages = asked.answers["engines"]
    assert "ValueError: load_format=dummy: must be auto" in messages["load_format"]
    assert "ValueError: logprobs_mode=raw_logprobs: must be processed_logprobs" in messages["logprobs_mode"]
    assert "ValueError: logits_processors=None: must be" in messages["logits_processors"]
    assert "tokens and the policy" in messages["target"]
    # vLLM's own words: it asks the model whether it can be split into stages
    assert "Pipeline parallelism is not supported for this model" in messages["pipeline_parallel_size"]


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_request_that_would_not_be_drawn_from_q_is_refused(asked):
    messages = asked.answers["requests"]
    assert messages.keys() == asked.questions["wrong_requests"].keys()
    for name, value in asked.questions["wrong_requests"].items():
        assert f"{name}={value}: must be " in messages[name]


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_request_at_another_temperature_ends_the_engine(qwen2, llama):
    assert "EngineDeadError" in qwen2.answers["temperature"]
    assert llama.answers["temperature"].startswith("ValueError: temperature=0.5: must be 0.8, the engine's")
