"""One run of the real trainer: it learns, is reproducible, and resumes as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.trainer_ext.conftest import configuration, science
from trainer_ext.train import Diverged, Preempted, train

# A short warm start keeps the tests quick; the methods do not know the difference.
SHORT = ["task.warm_start.steps=20", "trainer.steps=6"]
METHODS = ["c0_grpo", "bnto_minimal", "bnto_plateau", "bnto_kl_gated", "asymmetric_clip", "ptrw"]


def weights(folder: Path) -> dict[str, list[float]]:
    return {k: v.flatten().tolist() for k, v in load_file(folder / "weights.safetensors").items()}


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(method, new_run):
    config = configuration(*SHORT, f"method={method}", *(["method.warmup_steps=2"] if "bnto" in method else []))
    whole, first = new_run("whole"), new_run("parts", stop_after=3)
    summary = train(config, whole)
    with pytest.raises(Preempted) as stopped:
        train(config, first)
    assert stopped.value.step == 3
    second = new_run("parts")
    assert train(config, second)["samples"] == summary["samples"]
    assert science(first.lines + second.lines) == science(whole.lines)
    assert weights(second.folder / "step_000006") == weights(whole.folder / "step_000006")


def test_seeds_differ_and_a_seed_repeats(new_run):
    runs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        runs.append(new_run(name))
        train(configuration(*SHORT, f"seed={seed}", "trainer.steps=2"), runs[-1])
    a, b, c = (science(run.lines) for run in runs)
    assert a == b
    assert a != c


@pytest.mark.parametrize("rows", [16, 32])
def test_micro_batches_change_nothing_but_the_rounding(rows, new_run):
    key = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    one, many = new_run("one"), new_run("many")
    train(configuration(*SHORT, "trainer.steps=1"), one)
    train(configuration(*SHORT, "trainer.steps=1", f"{key}={rows}"), many)
    expected = load_file(one.folder / "step_000001" / "weights.safetensors")
    for name, tensor in load_file(many.folder / "step_000001" / "weights.safetensors").items():
        assert (tensor - expected[name]).abs().max() < 1e-6, name
    for key in ("actor/pg_loss", "actor/ppo_kl", "actor/clipfrac_upper", "actor/grad_norm"):
        assert many.lines[0][key] == pytest.approx(one.lines[0][key], abs=1e-5), key


def test_every_metric_of_the_vocabulary_is_written(new_run):
    run = new_run()
    train(configuration(*SHORT, "method=bnto_minimal", "method.warmup_steps=2", "trainer.hist_every=3"), run)
    documented = {
        line.split("`")[1]
        for line in (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().splitlines()
        if line.startswith("| `")
    }
    written = set(run.lines[-1]) - {"step"}
    assert written <= documented
    assert documented - written == {
        "ptrw/trust_weights_mean",
        "ptrw/loss_mean",
        "asymmetric/pos_advantage_ratio",
        "asymmetric/neg_advantage_ratio",
    }
    assert {(step, name) for step, name, _, _ in run.histograms} == {
        (step, name) for step in (3, 6) for name in ("entropy", "covariance")
    }
    for _, _, edges, counts in run.histograms:
        assert len(edges) == 65 and sum(counts) > 0


def test_weights_that_blow_up_end_the_run_as_diverged(new_run):
    run = new_run()
    with pytest.raises(Diverged) as diverged:
        train(configuration(*SHORT, "verl.actor_rollout_ref.actor.optim.lr=1e30"), run)
    assert len(run.lines) == diverged.value.step - 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["expression", "sorting"])
def test_the_embedded_tasks_start_low_and_are_learned(task, new_run):
    run = new_run()
    train(configuration(f"task={task}", "trainer.steps=60"), run)
    rewards = [line["analysis/reward_sum_mean"] for line in run.lines]
    assert 0.1 <= sum(rewards[:3]) / 3 <= 0.45
    assert sum(rewards[-6:]) / 6 > 1.5 * sum(rewards[:3]) / 3


def test_the_common_start_does_not_depend_on_how_a_run_trains(tmp_path):
    from trainer_ext.models import start

    optim = "verl.actor_rollout_ref.actor.optim"
    found = [
        Path(start(configuration("task.warm_start.steps=3", *more), tmp_path / str(n)))
        for n, more in enumerate(([], [f"{optim}.lr_warmup_steps=9", f"{optim}.clip_grad=0.01", f"{optim}.lr=1"]))
    ]
    assert found[0].name == found[1].name
    first, second = (load_file(folder / "model.safetensors") for folder in found)
    assert all(bool((first[name] == second[name]).all()) for name in first)


def test_the_learning_rate_written_is_the_one_used(new_run):
    run = new_run()
    train(configuration(*SHORT, "trainer.steps=4", "verl.actor_rollout_ref.actor.optim.lr_warmup_steps=3"), run)
    assert [line["actor/lr"] for line in run.lines] == pytest.approx([0, 1e-4, 2e-4, 3e-4])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=48",
            "does not divide a mini-batch of 64 responses",
        ),
        ("verl.actor_rollout_ref.rollout.temperature=0.0", "sampling needs one above 0"),
    ],
)
def test_settings_that_cannot_work_are_named(override, said, new_run):
    with pytest.raises(ValueError, match=said):
        train(configuration(*SHORT, override), new_run())
