"""`python -m verl.trainer.main_ppo` with the plug-in: its loss trains, its metrics are right and can be imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.__main__ import main as analysis
from analysis.data.sweep import read_sweep
from analysis.stats.numbers import format_number
from tests.cluster import plain_settings
from tests.cluster.rays import Rays
from tests.waiting import ended
from trainer_ext.backends.verl_ray import process

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
STEPS, PROMPTS, RESPONSES = 3, 4, 4
MODULES = f"{plain_settings.MODULE},trainer_ext.backends.plugin"
LOSS = "actor_rollout_ref.actor.policy_loss"
#: What a user sets for the plug-in.
OWN = [
    "algorithm.adv_estimator=rlsweep_grpo",
    f"{LOSS}.loss_mode=rlsweep_parts",
    f"{LOSS}._target_=trainer_ext.backends.plugin.PartsConfig",
    f"+{LOSS}.method.smoothing=none",
    f"+{LOSS}.method.ratio=token",
    f"+{LOSS}.method.trust_region=gaussian",
    f"+{LOSS}.method.sigma=0.2",
    f"+{LOSS}.method.differentiable=false",
    "trainer.logger=[console,file]",
]


@pytest.fixture(scope="module")
def space() -> Iterator[Rays]:
    """A namespace in which nothing runs yet."""
    started = Rays()
    started.environment = process.environment(started.environment)
    yield started
    started.stop()


def started(space: Rays, folder: Path) -> subprocess.Popen[str]:
    """verl on word problems, with a small random model of Qwen's kind, and the reward of the task gsm8k."""
    logs = folder / "logs"
    (folder / "steps").mkdir()
    own = [
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        "data.max_response_length=8",
        f"trainer.total_training_steps={STEPS}",
        "trainer.project_name=words",
        "trainer.experiment_name=ptrw-seed7",
        "data.seed=7",
        f"hydra.run.dir={logs}/words/ptrw-seed7",
        f"+ray_kwargs.ray_init._temp_dir={space.folder}",
    ]
    return space.run(
        *plain_settings.PROGRAM,
        *(*OWN, *plain_settings.ON_CPU, *plain_settings.sizes(PROMPTS, RESPONSES)),
        *(*plain_settings.on_problems(folder), *own),
        VERL_USE_EXTERNAL_MODULES=MODULES,
        VERL_FILE_LOGGER_ROOT=str(logs),
        PLAIN_VERL_STEPS=str(folder / "steps"),
    )


def grouped(rewards: np.ndarray[Any, Any], uids: list[str]) -> np.ndarray[Any, Any]:
    """Rewards less the mean of their prompt's, over their spread."""
    found = np.zeros(len(rewards))
    for uid in set(uids):
        own = [row for row, other in enumerate(uids) if other == uid]
        group = rewards[own]
        found[own] = (group - group.mean()) / (group.std(ddof=1) + 1e-6)
    return found


def test_three_steps_whose_metrics_are_right_and_can_be_imported(
    space: Rays, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(space, tmp_path)
    said = ended(run)
    log = tmp_path / "logs" / "words" / "ptrw-seed7.jsonl"
    lines = {line["step"]: line["data"] for line in map(json.loads, log.read_text().splitlines())}
    assert list(lines) == [1, 2, 3]
    spreads = []
    for step, logged in lines.items():
        rows = torch.load(tmp_path / "steps" / f"{step}.pt")
        assert len(rows["uid"]) == PROMPTS * RESPONSES and len(set(rows["uid"])) == PROMPTS
        valid = [row.bool().numpy() for row in rows["response_mask"]]
        lp, a = (
            np.concatenate([row.double().numpy()[keep] for row, keep in zip(rows[name], valid, strict=True)])
            for name in ("old_log_probs", "advantages")
        )
        rewards = np.array([float(row.sum()) for row in rows["rm_scores"]])
        spreads.append(rewards.std())
        expected = np.repeat(grouped(rewards, rows["uid"]), [keep.sum() for keep in valid])
        assert a == pytest.approx(expected, abs=1e-5)  # of rlsweep_grpo

        p, near = np.exp(lp), {"rel": 1e-5, "abs": 1e-9}
        covariance = np.mean((a - a.mean()) * (lp - lp.mean()))
        weighted = p * (1 - p) * np.abs(a) * (-p * lp)
        values = {"entropy_per_token_mean": np.mean(-p * lp), "covariance_mean": covariance}
        values |= {"correlation": covariance / (a.std() * lp.std() + 1e-8), "reward_sum_mean": rewards.mean()}
        values |= {"wH_sum": weighted.sum(), "wH_per_token": weighted.mean()}
        assert {name: logged[f"analysis/{name}"] for name in values} == pytest.approx(values, **near)
        # one update, of one micro-batch, at the parameters that drew: the ratios are 1 but for rounding
        assert logged["actor/pg_loss"] == pytest.approx(-a.mean(), abs=1e-4)
        assert logged["actor/ptrw/loss_mean"] == pytest.approx(-a.mean(), abs=1e-4)
        assert logged["actor/ptrw/trust_weights_mean"] == pytest.approx(1, abs=1e-4)
    assert max(spreads) > 0  # otherwise all of this is 0

    into = tmp_path / "multirun" / "plain"
    key = "analysis/wH_per_token"
    words = ["--group", "algorithm.adv_estimator", "--seed", "data.seed", "--metric", key]
    assert analysis(["import", str(tmp_path / "logs"), "--into", str(into), *words]) == 0
    (imported,) = read_sweep(into).runs
    assert imported.group == "rlsweep_grpo" and imported.seed == 7 and imported.problem is None
    assert imported.curves.steps.tolist() == [1, 2, 3]
    assert imported.curves.values[key].tolist() == [data[key] for data in lines.values()]
    assert analysis(["report", str(into)]) == 0
    assert f"rlsweep_grpo {format_number(lines[STEPS][key])} (1 seed)" in capsys.readouterr().out
    assert (into / "report" / "index.html").exists()

    # what it printed is the same run, in the precision in which numpy prints
    (tmp_path / "printed.log").write_text(said)
    again = tmp_path / "multirun" / "printed"
    assert analysis(["import", str(tmp_path / "printed.log"), "--into", str(again), *words]) == 0
    (same,) = read_sweep(again).runs
    assert (same.group, same.seed) == (imported.group, imported.seed)
    assert same.curves.steps.tolist() == imported.curves.steps.tolist()
    assert same.curves.values.keys() == imported.curves.values.keys()
    for metric, values in imported.curves.values.items():
        assert same.curves.values[metric] == pytest.approx(values, rel=1e-6, nan_ok=True), metric
