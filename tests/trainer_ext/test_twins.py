"""Every experiment takes real steps on a twin of each of its models, also of those that its design has (scale=design):
all methods, all targets.

The plan is the shipped one, with lengths and batches of a few tokens and prompts. Of factors over values the first and
the last cell are run, of tasks all. Many of these runs are the same to the trainer, such as those of one method on two
sizes of a family: it takes the steps of one of them.
"""

from __future__ import annotations

import copy
import itertools
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from launcher.planning.plan import Plan
from tests.launcher.experiments import HELD, SHIPPED, at_scale, make, shipped
from tests.sharing import shared_folder
from tests.trainer_ext.conftest import MemoryRun
from tests.trainer_ext.twins import write_problems, write_task, write_twin
from trainer_ext.application import verl_tree
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.train import train

pytestmark = pytest.mark.train
STEPS = 2
SCALES = ("full", "design")
#: Experiments whose models are embedded: other tests train them.
EMBEDDED = {"quickstart", "qstar_speculative"}
#: For models that no experiment has: all methods and all targets.
WITHOUT_PLAN = ("grpo_variants", "bnto_main", "qstar_main", "qstar_target", "qstar_alpha")
#: Two prompts of four responses, a mini-batch for each prompt: the second has importance ratios other than one.
SMALL = {
    "data": {"train_batch_size": 2, "max_prompt_length": 200, "max_response_length": 16},
    "actor_rollout_ref": {
        "rollout": {"n": 4, "max_num_seqs": 256},
        "actor": {"ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 2, "optim": {"lr": 1e-3}},
    },
}
TARGET = {"target_steps": 1, "target_prompts": 2, "target_samples": 2, "target_threshold": -1.0}
#: Of the 16 problems a tenth has none to validate with. What is evaluated is evaluated once, at the end.
TRAINER = {"steps": STEPS, "checkpoint_every": STEPS, "eval_prompts": 2, "split": {"validation": 0.2, "test": 0.2}}
#: Of the configuration, what `train` does not read. The twin stands in for the model's size.
NOT_READ = ("id", "base")
NOT_READ_OF_MODEL = ("name", "architecture", "resources", "seconds_per_step")
#: The configurations whose steps were all right in this process, as `read_by_trainer` writes them.
_trained: set[str] = set()


@cache
def family(model: str) -> str | None:
    """The architecture of a pretrained model; None: an embedded one, which the other tests train, or any model."""
    section = SHIPPED.compose([f"model={model}"]).tree["model"]
    return section.get("architecture", {}).get("family") if section["kind"] == "pretrained" else None


@cache
def planned(experiment: str, scale: str) -> Plan:
    return make(f"experiment={experiment}", "seed=0", *at_scale(scale))


def pretrained(plan: Plan) -> list[str]:
    """The names of the pretrained models of a plan's runs."""
    return sorted(filter(family, {run.config["model"]["name"] for run in plan.runs.values()}))


def without_plan() -> list[str]:
    """The pretrained models that no experiment has, at any scale."""
    plans = [planned(*pair) for pair in itertools.product(shipped("experiment"), SCALES)]
    return sorted({*filter(family, shipped("model"))}.difference(*map(pretrained, plans)))


def chosen(plan: Plan, model: str) -> dict[str, dict[str, Any]]:
    """The configurations to run, by group and place: of each group with this model the first and the last run, and the
    first of each task."""
    found: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    (experiment,) = plan.experiments
    for group in experiment.groups:
        own = [entry.id for entry in experiment.entries if entry.group == group]
        own = [run_id for run_id in own if plan.runs[run_id].config["model"]["name"] == model]
        of_task = {plan.runs[run_id].config["task"]["name"]: run_id for run_id in reversed(own)}
        for place, run_id in {"first": own[0], "last": own[-1], **of_task}.items() if own else ():
            if run_id not in taken:
                taken.add(run_id)
                found[f"{group} {place}"] = dict(plan.runs[run_id].config)
    return found


def read_by_trainer(config: dict[str, Any], tree: dict[str, Any]) -> str:
    own = {key: value for key, value in config.items() if key not in NOT_READ}
    own["model"] = {key: value for key, value in config["model"].items() if key not in NOT_READ_OF_MODEL}
    return json.dumps({**own, "verl": tree}, sort_keys=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "twins")


@pytest.fixture
def steps(shared, tmp_path, capsys):
    """Takes the steps of a plan's runs that have this model."""
    return partial(_take_steps, shared=shared, folder=tmp_path, capsys=capsys)


@pytest.mark.parametrize("experiment", sorted({*shipped("experiment")} - EMBEDDED))
def test_an_experiment_takes_steps_on_twins_of_its_models(experiment, steps):
    seen: set[str] = set()
    for scale in SCALES:
        plan = planned(experiment, scale)
        for model in pretrained(plan):
            if model not in seen:
                steps(experiment, plan, model)
            seen.add(model)
    assert seen


@pytest.mark.parametrize("experiment", WITHOUT_PLAN)
def test_a_model_that_no_experiment_has_takes_steps_with_all_methods(experiment, steps):
    models = without_plan()
    assert models
    for model in models:
        plan = make(f"experiment={experiment}", "seed=0", f"model={model}", *HELD)  # a twin fits on whatever there is
        steps(experiment, plan, model)


def _take_steps(experiment: str, plan: Plan, model: str, shared: Path, folder: Path, capsys: Any) -> None:
    problems = build_once(shared / "data", lambda folder: write_problems(folder / "train.jsonl")) / "train.jsonl"
    twin = build_once(shared / str(family(model)), lambda folder: write_twin(str(family(model)), problems, folder))
    runs = chosen(plan, model)
    assert runs
    for name, config in runs.items():
        config = copy.deepcopy(config)
        task = config["task"]["name"]
        data = build_once(shared / f"data-{task}", partial(write_task, task))
        config["model"]["path"], config["task"]["train_path"] = str(twin), str(data / "train.jsonl")
        if task == "apps":
            config["task"]["humaneval_path"] = str(data / "humaneval.jsonl")
        config["task"]["learned_reward"] = None  # few problems have too few pairs; test_reward_models has a run with it
        config["method"] |= {key: value for key, value in TARGET.items() if key in config["method"]}
        config["trainer"] |= {**TRAINER, "eval_every": STEPS * min(1, config["trainer"]["eval_every"])}
        (base,) = plan.bases.values()
        tree = verl_tree.merged(verl_tree.merged(base.tree, config["verl"]), SMALL)
        key = read_by_trainer(config, tree)
        if key in _trained:
            continue
        run = MemoryRun(folder / f"{model}-{name.replace(' ', '-')}", shared / "cache")
        train({**config, "verl": OmegaConf.create(tree)}, run)
        assert len(run.lines) == STEPS, name
        updated = ["actor/grad_norm" in line for line in run.lines]
        if config["method"]["loss"] == "dpo":  # without a right and a wrong response to one prompt, a step has no pair
            assert any(updated) or not any(line["analysis/reward_sum_std"] for line in run.lines), name
        else:
            assert all(updated) or config["method"]["loss"] == "none", name
        _trained.add(key)
    with capsys.disabled():
        print(json.dumps({"experiment": experiment, "model": model, "runs": list(runs)}))
