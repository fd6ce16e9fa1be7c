"""Frozen runs: equal science is one run, and what was planned stays what it was, whatever happens to its files."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import yaml

from launcher.config.identity import VERSION, by_seed, canonical_json, identity, run_id
from launcher.planning import freeze
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import read_state
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make, refusal

ONE = ("method=bnto_minimal", "trainer.steps=3")


def snapshot(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file()
    }


def ids(*arguments, conf=None):
    return set(make(*arguments, conf=conf).runs)


def edit(conf, path, old, new):
    text = (conf / path).read_text()
    assert old in text, path
    (conf / path).write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("method/control/dual.yaml", "rho: 0.45", "rho: 0.4"),
        ("trainer/common/training.yaml", "eval_prompts: 64", "eval_prompts: 128"),
        ("trainer/in_process.yaml", "bypass_mode: true}", "bypass_mode: false}"),
        ("config.yaml", "seed: 0\nmultirun", "seed: 1\nmultirun"),
    ],
)
def test_changing_a_default_of_the_science_makes_another_run(conf, path, old, new):
    edit(conf, path, old, new)
    assert not ids(*ONE, conf=conf) & ids(*ONE)


SAME = (
    ("method/bnto_minimal.yaml", "name: bnto_minimal", "name: another_label"),
    ("model/tiny.yaml", "seconds_per_step: 0.15", "seconds_per_step: 9.0"),
    ("model/tiny.yaml", "memory_gb: 2", "memory_gb: 4"),
    ("trainer/common/training.yaml", "checkpoint_every: 20", "checkpoint_every: 3"),
    ("config.yaml", "\nmultirun: multirun", "\nmultirun: elsewhere"),
    ("config.yaml", "  project: rlsweep", "  project: another"),
    ("config.yaml", "  window: 20", "  window: 21"),
    ("config.yaml", "  output_subdir: null", "  output_subdir: here"),
    ("cluster/local.yaml", "slots: null", "slots: 1"),
)


def test_changing_paths_labels_and_the_cluster_makes_the_same_run(conf):
    for path, old, new in SAME:
        edit(conf, path, old, new)
    assert ids(*ONE, conf=conf) == ids(*ONE)


@pytest.fixture
def frozen(tmp_path):
    """The configuration of a frozen run."""
    planned = make(*ONE, f"multirun={tmp_path}")
    freeze.freeze(planned)
    return run_folder(tmp_path, *planned.runs) / "config.yaml"


CHANGES = (
    lambda config: config["method"].update(rho=0.9),
    lambda config: config.update(base="0" * 16),
    lambda config: config.pop("identity"),
    lambda config: config["identity"].update(version=2),
    lambda config: config.update(id="f" * 16),
)


def test_a_folder_with_another_identity_is_refused_before_anything_is_written(frozen, tmp_path, worded):
    both = make("method=bnto_minimal,ptrw", "experiment.baseline=ptrw", "trainer.steps=3", f"multirun={tmp_path}")
    whole = frozen.read_text()
    for change in CHANGES:
        content = yaml.safe_load(whole)
        change(content)
        frozen.write_text(yaml.safe_dump(content))
        before = snapshot(tmp_path)
        worded(refusal(lambda: freeze.freeze(both)))
        assert snapshot(tmp_path) == before


def test_a_frozen_run_with_other_labels_and_resources_is_the_same_run(frozen, tmp_path):
    before = frozen.read_bytes()
    freeze.freeze(make(*ONE, f"multirun={tmp_path}", "trainer.checkpoint_every=2", "model.seconds_per_step=3.0"))
    assert frozen.read_bytes() == before


def test_the_worker_refuses_a_folder_with_another_identity(frozen):
    folder = frozen.parent
    frozen.write_text(frozen.read_text().replace("steps: 3", "steps: 4"))
    # In a process of its own: a worker sends its output to the attempt's folder.
    command = [sys.executable, "-m", "launcher.worker", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    state = read_state(folder)
    assert (done.returncode, state.state) == (1, "failed")
    assert "the configuration was changed after it was frozen" in state.error["message"]
    assert not metrics_path(folder).exists() or not metrics_path(folder).read_text()


CONFIG = {
    "seed": 0,
    "method": {"name": "c0", "trust_region": "clip", "clip_low": 0.2, "dual_clip": 3.0},
    "model": {"name": "tiny", "layers": 2, "resources": {"cpus": 1}, "seconds_per_step": 0.15},
    "task": {"name": "expression", "train_prompts": 20000, "warm_start": None},
    "trainer": {"backend": "in_process", "steps": 120, "checkpoint_every": 20, "hist_every": 200},
    "verl": {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"actor": {"use_kl_loss": False}}},
}


def test_golden():
    assert VERSION == 1
    assert identity("ddc0c93b9ab0ea47", CONFIG) == "60adaebdecc320f5f5aecdcefdb34833139c0696176dd05b5e724ddf016ff1ee"
    other = identity("ddc0c93b9ab0ea47", {**CONFIG, "seed": 1})
    assert other == "6f52509d7b6252b22e829c6191d72a72d1c1792b27898f0adfce5bebe85e86ff"
    assert run_id("0123456789abcdef0123") == "0123456789abcdef"


def test_labels_resources_and_what_is_written_do_not_count_and_everything_else_does():
    def changed(key):
        section, name = key.split(".")
        return identity("b", {**CONFIG, section: {**CONFIG[section], name: "other"}}) != identity("b", CONFIG)

    labels = ["method.name", "model.name", "model.resources", "model.seconds_per_step", "trainer.checkpoint_every"]
    assert not any(map(changed, [*labels, "trainer.hist_every", "trainer.eval_responses", "task.reward_timeout_s"]))
    assert all(map(changed, ["method.clip_low", "task.name", "model.layers", "task.warm_start", "trainer.steps"]))
    assert identity("another base", CONFIG) != identity("b", CONFIG)


def test_an_integral_float_is_the_integer_a_bool_is_not_and_keys_have_one_order():
    assert canonical_json({"b": [{"d": 3.0, "c": 0.5}], "a": -0.0}) == '{"a":0,"b":[{"c":0.5,"d":3}]}'
    assert canonical_json([True, 1, "1", None]) == '[true,1,"1",null]'


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1: 2}])
def test_what_has_no_place_in_an_identity_is_refused(value):
    with pytest.raises(ValueError):
        canonical_json([value])


def test_runs_that_differ_in_their_seeds_are_identified_as_one_by_one(planned_once):
    plan = planned_once("quickstart", "full")
    for run in plan.runs.values():
        digest_of = by_seed(run.base, {**run.config, "seed": 12})
        assert digest_of(run.config["seed"]) == identity(run.base, run.config) == run.hash
