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
from tests.trainer_ext.classifiers import write_classifier
from tests.trainer_ext.conftest import FEW_PROMPTS, METHODS, SHORT, MemoryRun, configuration, quick_settings, science
from trainer_ext.application.declarations import Declarations
from trainer_ext.backends import protocol
from trainer_ext.fits import memory
from trainer_ext.fits.architectures import embedded
from trainer_ext.methods import continuing
from trainer_ext.scoring import tasks
from trainer_ext.train import Diverged, Preempted, train

pytestmark = [pytest.mark.train, pytest.mark.parametrize("backend", sorted({*protocol.names()} - {"verl_ray"}))]
ROOT = Path(__file__).parents[2]
#: Its gate opens once updates have moved the policy enough.
GATED = "bnto_kl_gated"


def step_folder(run: MemoryRun, step: int) -> Path:
    return run.folder / f"step_{step:06d}"


def saved(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, by file, but for the clock."""
    content: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")
    }
    for path in folder.rglob("state.json"):
        state = json.loads(path.read_text())
        for clock in ("train_seconds", "wall_seconds", "shared_seconds"):
            state.get("run", {}).pop(clock, None)
        content[str(path.relative_to(folder))] = state
    return content


@pytest.mark.parametrize("method", ["c0_grpo", "c0_ppo", "q_decode"])
def test_a_checkpoint_has_the_size_that_a_plan_expects(method, backend, new_run):
    config = configuration(f"trainer={backend}", *SHORT, *FEW_PROMPTS, f"method={method}", *quick_settings(method))
    run = new_run(stop_after=1)
    with pytest.raises(Preempted):
        train(config, run)
    _, newest = run.latest_checkpoint()
    size = sum(path.stat().st_size for path in newest.rglob("*.safetensors"))
    expected = memory.checkpoint(config["method"], config["verl"], embedded(config["model"]))
    assert size == pytest.approx(expected, rel=0.02)


#: Only runs with trainer.rollout=vllm write these: tests/cluster/test_verl_vllm.py.
OF_VLLM = {"rollout/probs_diff_max", "rollout/probs_diff_mean"}


def documented() -> set[str]:
    """The metrics of docs/metrics.md with the k of pass@k for four responses, but for rewards' further numbers and the
    win rate, which a judge makes after the runs."""
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    keys = {line.split("`")[1] for line in lines if line.startswith("| `")}
    return keys - {"eval/pass@k", "reward/NAME", "eval/reward/NAME", "eval/win_rate"} | {
        "eval/pass@1",
        "eval/pass@2",
        "eval/pass@4",
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_method_writes_the_numbers_that_its_files_declare_and_repeats_them(backend, method, new_run):
    own = [f"trainer={backend}", f"method={method}"]
    few = [] if method == GATED else FEW_PROMPTS
    values = [*SHORT, *few, *quick_settings(method), "trainer.steps=4"]
    config = configuration(*own, *values, "trainer.eval_every=2", "trainer.eval_prompts=4")
    run, again = new_run("run"), new_run("again")
    train(config, run)
    train(config, again)
    assert science(run.lines) == science(again.lines)
    assert [line["step"] for line in run.lines] == [1, 2, 3, 4]
    for line in run.lines:
        assert all(math.isfinite(value) for value in line.values())
        assert {"analysis/reward_sum_mean", "tokens/total", "cost/wall_seconds"} <= set(line)
        assert ("actor/kl_init" in line) == ("eval/reward_mean" in line)
    written = set().union(*run.lines) - {"step"}
    assert written <= documented()
    assert written == Declarations.of_files(SHIPPED.compose(own).files).written({**config, "verl": {}})


def test_a_metric_is_declared_for_the_runs_that_write_it_alone(backend):
    files = SHIPPED.compose([f"trainer={backend}", "method=q_star"]).files
    without = configuration(f"trainer={backend}", "method=q_star", "trainer.eval_every=0")
    assert "eval/reward_mean" not in Declarations.of_files(files).written({**without, "verl": {}})


def test_seeds_differ(backend, new_run):
    runs = [new_run(name) for name in ("first", "second")]
    for seed, run in enumerate(runs):
        train(configuration(f"trainer={backend}", *SHORT, f"seed={seed}", "trainer.steps=1"), run)
    assert science(runs[0].lines) != science(runs[1].lines)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_interrupted_at_any_step_ends_as_one_that_was_not(backend, method, new_run):
    """From the first step to the end; from any other to the next, where the checkpoints are the same again. So does a
    run that was to be shorter: its last checkpoint is that of the longer run."""
    own = [*SHORT, *FEW_PROMPTS, f"method={method}", *quick_settings(method), "trainer.checkpoint_every=1"]
    end = 6 if method == GATED else 5
    own += [f"trainer.steps={end}"]
    config, whole = configuration(f"trainer={backend}", *own), new_run("whole")
    summary = train(config, whole)
    shorter = new_run("shorter")
    train({**config, "trainer": {**config["trainer"], "steps": end - 1}}, shorter)
    assert not list(continuing.obstacles(config, {**config["trainer"], "steps": end - 1}))
    assert science(shorter.lines) == science(whole.lines[:-1])
    assert shorter.histograms == [histogram for histogram in whole.histograms if histogram[0] < end]
    assert saved(step_folder(shorter, end - 1)) == saved(step_folder(whole, end - 1))
    for step in range(1, end):
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


def test_every_metric_of_the_vocabulary_is_written(backend, new_run, tmp_path):
    written: set[str] = set()
    classifier = write_classifier(tmp_path / "classifier", labels=2)
    bertscore, harmlessness = f"{{model: {classifier}}}", f"{{model: {classifier}, label: LABEL_0}}"
    scores = f"{{rouge_l: {{}}, bleu: {{}}, bertscore_f1: {bertscore}, harmlessness: {harmlessness}}}"
    positions = {"off_policy": ["ess_ratio", "log_weight"]}
    positions |= {method: ["alpha", "ess_ratio", "log_weight"] for method in ("q_star", "entropy_alpha")}
    for method in (
        *("bnto_minimal", "all_variants", "asymmetric_clip", "c0_ppo", "q_star", "rejection", "sft", "dpo"),
        *("off_policy", "entropy_alpha"),
    ):
        run = new_run(method)
        own = [*quick_settings(method), "trainer.steps=3", "trainer.eval_every=3"]
        if method == "sft":
            own += [f"trainer.eval_scores={scores}"]
        if method == "off_policy":
            own += ["method/target=best_of_n", "method.target_prompts=8", "method.target_samples=4"]
        train(configuration(f"trainer={backend}", *SHORT, f"method={method}", *own), run)
        assert all(math.isfinite(value) for line in run.lines for value in line.values())
        written |= set(run.lines[-1]) - {"step"}
        assert {(step, name) for step, name, _, _ in run.histograms} == {
            (step, name) for step in (1, 2, 3) for name in ("entropy", "covariance", *positions.get(method, []))
        }
        total = {0: 0, **{line["step"]: line["tokens/total"] for line in run.lines}}
        for step, _, edges, counts in run.histograms:
            assert len(edges) == 65 and sum(counts) == total[step] - total[step - 1]
    run = new_run("q_speculative")
    own = ["method/target=expert", "method.target_steps=5", "trainer.steps=1"]
    train(configuration(f"trainer={backend}", *SHORT, "method=q_speculative", *own), run)
    assert written | set(run.lines[-1]) - {"step"} == documented() - OF_VLLM


def test_responses_are_kept_of_the_same_prompts_and_change_no_number(backend, new_run):
    kept, silent = new_run("kept"), new_run("silent")
    own = [f"trainer={backend}", *SHORT, "trainer.steps=2", "trainer.eval_every=1", "trainer.eval_prompts=24"]
    train(configuration(*own, "trainer.eval_responses=24"), kept)
    train(configuration(*own, "trainer.eval_responses=0"), silent)
    assert silent.responses == [] and len(kept.responses) == 2 * 24
    assert science(kept.lines) == science(silent.lines)
    for file in sorted(step_folder(kept, 2).rglob("*.safetensors")):
        assert (step_folder(silent, 2) / file.relative_to(step_folder(kept, 2))).read_bytes() == file.read_bytes()
    at = {step: [response for response in kept.responses if response[0] == step] for step in (1, 2)}
    assert [(prompt, answer) for _, prompt, _, _, answer in at[1]] == [(p, a) for _, p, _, _, a in at[2]]
    for _, prompt, response, reward, answer in kept.responses:
        assert prompt == answer and reward == tasks.get("expression").compute_score("", response, answer)
    for step, answers in kept.evaluations.items():
        first = [
            (step, a.prompt, a.response, a.reward, a.ground_truth)
            for a in answers
            if (a.split, a.sample) == ("test", 0)
        ]
        assert at[step] == first


def test_weights_that_blow_up_end_the_run_as_diverged(backend, new_run):
    run = new_run()
    with pytest.raises(Diverged) as diverged:
        train(configuration(f"trainer={backend}", *SHORT, "verl.actor_rollout_ref.actor.optim.lr=1e30"), run)
    assert len(run.lines) == diverged.value.step - 1
