"""What every backend must do: all methods, their metrics, determinism, resuming, stopping.

A new backend is tested here as soon as its folder is in trainer_ext/backends and its file in conf/trainer. But for
verl_ray: a start of Ray takes longer than most of these tests together, so tests/cluster/test_verl_ray.py has its own.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.configuration import SHIPPED
from tests.results import tensors
from tests.trainer_ext import conftest
from tests.trainer_ext.classifiers import write_classifier
from tests.trainer_ext.conftest import FEW_PROMPTS, METHODS, SHORT, MemoryRun, configuration, quick_settings, science
from trainer_ext.application.declarations import Declarations
from trainer_ext.backends import protocol
from trainer_ext.fits import memory
from trainer_ext.fits.architectures import embedded
from trainer_ext.methods import continuing
from trainer_ext.scoring import scores, tasks
from trainer_ext.train import Diverged, Preempted, train

pytestmark = [pytest.mark.train, pytest.mark.parametrize("backend", sorted({*protocol.names()} - {"verl_ray"}))]
ROOT = Path(__file__).parents[2]
#: Its gate opens once updates have moved the policy enough.
GATED = "bnto_kl_gated"


def step_folder(run: MemoryRun, step: int) -> Path:
    return run.folder / f"step_{step:06d}"


def saved(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, by file, but for the clock."""
    content: dict[str, Any] = dict(tensors(folder))
    for path in folder.rglob("state.json"):
        state = json.loads(path.read_text())
        for clock in ("train_seconds", "wall_seconds", "shared_seconds"):
            state.get("run", {}).pop(clock, None)
        content[str(path.relative_to(folder))] = state
    return content


#: Only runs with trainer.rollout=vllm write these: tests/cluster/test_verl_vllm.py.
OF_VLLM = {"rollout/probs_diff_max", "rollout/probs_diff_mean"}


def documented() -> set[str]:
    """The metrics of docs/metrics.md with the k of pass@k for four responses, but for rewards' further numbers and the
    win rate, which a judge makes after the runs."""
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    keys = {line.split("`")[1] for line in lines if line.startswith("| `")}
    pass_at = {f"eval/pass@{k}" for k in (1, 2, 4)}
    return keys - {"eval/pass@k", "reward/NAME", "eval/reward/NAME", "eval/win_rate"} | pass_at


SCORES = "{rouge_l: {}, bleu: {}, bertscore_f1: {model: MODEL}, harmlessness: {model: MODEL, label: LABEL_0}}"
#: What makes a method write more than with its file alone.
MORE = {
    "off_policy": ["method/target=best_of_n", "method.target_prompts=8", "method.target_samples=4"],
    "q_speculative": ["method/target=expert"],
    "sft": [f"trainer.eval_scores={SCORES}"],
}
#: The histograms of what a method's sampler sees, beside those of all methods.
POSITIONS = {
    **dict.fromkeys(conftest.DECODING, ("alpha", "ess_ratio")),
    **dict.fromkeys(("q_star", "q_star_grpo", "uniform_alpha", "entropy_alpha"), ("alpha", "ess_ratio", "log_weight")),
    "off_policy": ("ess_ratio", "log_weight"),
}


def declared(backend: str, method: str, classifier: Path) -> tuple[dict[str, Any], set[str]]:
    """The configuration of a short run of a method, and the metrics that its files declare."""
    more = [word.replace("MODEL", str(classifier)) for word in MORE.get(method, [])]
    more += [*([] if method == GATED else FEW_PROMPTS), f"trainer.steps={4 if 'bnto' in method else 3}"]
    chosen = [f"trainer={backend}", f"method={method}", *(word for word in more if word.startswith("method/"))]
    evaluated = ["trainer.eval_every=2", "trainer.eval_prompts=4"]
    config = configuration(f"trainer={backend}", f"method={method}", *SHORT, *quick_settings(method), *evaluated, *more)
    written = Declarations.of_files(SHIPPED.compose(chosen).files).written({**config, "verl": {}})
    return config, {*written, *scores.metrics(config["trainer"])}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_writes_the_numbers_that_its_files_declare(backend, method, new_run, tmp_path):
    config, expected = declared(backend, method, write_classifier(tmp_path / "classifier", labels=2))
    run = new_run()
    train(config, run)
    steps = [*range(1, config["trainer"]["steps"] + 1)]
    assert [line["step"] for line in run.lines] == steps
    for line in run.lines:
        assert all(math.isfinite(value) for value in line.values())
        assert {"analysis/reward_sum_mean", "tokens/total", "cost/wall_seconds"} <= set(line)
        assert ("actor/kl_init" in line) == ("eval/reward_mean" in line)
    assert set().union(*run.lines) - {"step"} == expected
    names = ("entropy", "covariance", *POSITIONS.get(method, ()))
    assert {(step, name) for step, name, _, _ in run.histograms} == {(step, name) for step in steps for name in names}
    total = {0: 0, **{line["step"]: line["tokens/total"] for line in run.lines}}
    for step, _, edges, counts in run.histograms:
        assert len(edges) == 65 and sum(counts) == total[step] - total[step - 1]


def test_the_methods_together_write_every_metric_of_the_vocabulary(backend, tmp_path):
    found = set().union(*(declared(backend, method, tmp_path)[1] for method in METHODS))
    assert found == documented() - OF_VLLM


def test_a_metric_is_declared_for_the_runs_that_write_it_alone(backend):
    files = SHIPPED.compose([f"trainer={backend}", "method=q_star"]).files
    without = configuration(f"trainer={backend}", "method=q_star", "trainer.eval_every=0")
    assert "eval/reward_mean" not in Declarations.of_files(files).written({**without, "verl": {}})


def test_seeds_differ(backend, new_run):
    runs = [new_run(name) for name in ("first", "second")]
    for seed, run in enumerate(runs):
        train(configuration(f"trainer={backend}", *SHORT, *FEW_PROMPTS, f"seed={seed}", "trainer.steps=1"), run)
    assert science(runs[0].lines) != science(runs[1].lines)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_interrupted_at_any_step_ends_as_one_that_was_not(backend, method, new_run):
    """After the first step and before the last, where the checkpoints are the same again; after any other as well where
    a gate opens meanwhile. So does a run that was to be shorter: its last checkpoint is that of the longer run. The
    checkpoints have the size that a plan expects."""
    own = [*SHORT, *FEW_PROMPTS, f"method={method}", *quick_settings(method), "trainer.checkpoint_every=1"]
    end = 6 if method == GATED else 5 if "bnto" in method else 4
    own += [f"trainer.steps={end}"]
    config, whole = configuration(f"trainer={backend}", *own), new_run("whole")
    summary = train(config, whole)
    size = sum(map(len, tensors(step_folder(whole, end)).values()))
    expected = memory.checkpoint(config["method"], config["verl"], embedded(config["model"]))
    assert size == pytest.approx(expected, rel=0.02)
    shorter = new_run("shorter")
    train({**config, "trainer": {**config["trainer"], "steps": end - 1}}, shorter)
    assert not list(continuing.obstacles(config, {**config["trainer"], "steps": end - 1}))
    assert science(shorter.lines) == science(whole.lines[:-1])
    assert shorter.histograms == [histogram for histogram in whole.histograms if histogram[0] < end]
    assert saved(step_folder(shorter, end - 1)) == saved(step_folder(whole, end - 1))
    for step in range(1, end) if method == GATED else (1, end - 1):
        last = end if step in (1, end - 1) else step + 1
        run = new_run(f"from{step}", stop_after=last)
        run.folder.mkdir()
        shutil.copytree(step_folder(whole, step), step_folder(run, step))
        if last == end:
            assert train(config, run)["samples"] == summary["samples"]
        else:
            with pytest.raises(Preempted):
                train(config, run)
        assert science(run.lines) == science(whole.lines[step:last])
        assert saved(step_folder(run, last)) == saved(step_folder(whole, last))
    if "bnto" in method:
        state = saved(step_folder(whole, end))["state.json"]["controller"]
        assert state["budget"] and state["lam"] and state["waited"] + state["plateaus"], "or nothing was tested"


def test_responses_are_kept_of_the_same_prompts_and_change_no_number(backend, new_run):
    kept, silent = new_run("kept"), new_run("silent")
    own = [f"trainer={backend}", *SHORT, *FEW_PROMPTS, "trainer.steps=2", "trainer.eval_every=1"]
    own += ["trainer.eval_prompts=8", "trainer.eval_samples=2"]
    train(configuration(*own, "trainer.eval_responses=8"), kept)
    train(configuration(*own, "trainer.eval_responses=0"), silent)
    assert silent.responses == [] and len(kept.responses) == 2 * 8
    assert science(kept.lines) == science(silent.lines)
    assert tensors(step_folder(kept, 2)) == tensors(step_folder(silent, 2))
    at = {step: [response for response in kept.responses if response[0] == step] for step in (1, 2)}
    assert [(prompt, answer) for _, prompt, _, _, answer in at[1]] == [(p, a) for _, p, _, _, a in at[2]]
    for _, prompt, response, reward, answer in kept.responses:
        assert prompt == answer and reward == tasks.get("expression").compute_score("", response, answer)
    for step, answers in kept.evaluations.items():
        first = [one for one in answers if (one.split, one.sample) == ("test", 0)]
        assert at[step] == [(step, one.prompt, one.response, one.reward, one.ground_truth) for one in first]


def test_weights_that_blow_up_end_the_run_as_diverged(backend, new_run):
    run = new_run()
    with pytest.raises(Diverged) as diverged:
        train(configuration(f"trainer={backend}", *SHORT, "verl.actor_rollout_ref.actor.optim.lr=1e30"), run)
    assert len(run.lines) == diverged.value.step - 1
