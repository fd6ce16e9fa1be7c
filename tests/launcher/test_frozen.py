"""Frozen runs: what was planned stays what it was, whatever happens to the files that it was planned from."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

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
        ("method/bnto_minimal.yaml", "name: bnto_minimal", "name: bnto_minimal\nbeta_lr: 0.011"),
        ("task/expression.yaml", "train_prompts: 4096", "train_prompts: 4097"),
        ("model/tiny.yaml", "hidden_size: 64", "hidden_size: 72"),
        ("trainer/common/training.yaml", "eval_prompts: 64", "eval_prompts: 128"),
        ("trainer/in_process.yaml", "bypass_mode: true}", "bypass_mode: false}"),
        ("config.yaml", "seed: 0\nmultirun", "seed: 1\nmultirun"),
    ],
)
def test_changing_a_default_of_the_science_makes_another_run(conf, path, old, new):
    assert ids(*ONE, conf=conf) == ids(*ONE)
    edit(conf, path, old, new)
    assert not ids(*ONE, conf=conf) & ids(*ONE)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("method/bnto_minimal.yaml", "name: bnto_minimal", "name: another_label"),
        ("model/tiny.yaml", "seconds_per_step: 0.15", "seconds_per_step: 9.0"),
        ("model/tiny.yaml", "memory_gb: 2", "memory_gb: 4"),
        ("trainer/common/training.yaml", "checkpoint_every: 20", "checkpoint_every: 3"),
        ("config.yaml", "\nmultirun: multirun", "\nmultirun: elsewhere"),
        ("config.yaml", "  project: rlsweep", "  project: another"),
        ("config.yaml", "  window: 20", "  window: 21"),
        ("config.yaml", "  output_subdir: null", "  output_subdir: here"),
        ("cluster/local.yaml", "slots: null", "slots: 1"),
    ],
)
def test_changing_a_path_a_label_or_the_cluster_makes_the_same_run(conf, path, old, new):
    edit(conf, path, old, new)
    assert ids(*ONE, conf=conf) == ids(*ONE)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["method"].update(rho=0.9),
        lambda config: config.update(base="0" * 16),
        lambda config: config.update(seed=5),
        lambda config: config.pop("identity"),
        lambda config: config["identity"].update(version=2),
        lambda config: config.update(id="f" * 16),
    ],
)
def test_a_folder_with_another_identity_is_refused_before_anything_is_written(tmp_path, change, worded):
    arguments = (*ONE, f"multirun={tmp_path}")
    (run,) = make(*arguments).runs.values()
    freeze.freeze(make(*arguments))
    path = run_folder(tmp_path, run.id) / "config.yaml"
    frozen = yaml.safe_load(path.read_text())
    change(frozen)
    path.write_text(yaml.safe_dump(frozen))
    before = snapshot(tmp_path)
    both = make("method=bnto_minimal,ptrw", "experiment.baseline=ptrw", "trainer.steps=3", f"multirun={tmp_path}")
    worded(refusal(lambda: freeze.freeze(both)))
    assert snapshot(tmp_path) == before


def test_a_frozen_run_with_other_labels_and_resources_is_the_same_run(tmp_path):
    arguments = (*ONE, f"multirun={tmp_path}")
    (run,) = make(*arguments).runs.values()
    freeze.freeze(make(*arguments))
    path = run_folder(tmp_path, run.id) / "config.yaml"
    before = path.read_bytes()
    freeze.freeze(make(*arguments, "trainer.checkpoint_every=2", "model.seconds_per_step=3.0"))
    assert path.read_bytes() == before


def test_the_worker_refuses_a_folder_with_another_identity(tmp_path):
    arguments = (*ONE, f"multirun={tmp_path}")
    (run,) = make(*arguments).runs.values()
    freeze.freeze(make(*arguments))
    folder = run_folder(tmp_path, run.id)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("steps: 3", "steps: 4"))
    # In a process of its own: a worker sends its output to the attempt's folder.
    command = [sys.executable, "-m", "launcher.worker", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    state = read_state(folder)
    assert (done.returncode, state.state) == (1, "failed")
    assert "the configuration was changed after it was frozen" in state.error["message"]
    assert not metrics_path(folder).exists() or not metrics_path(folder).read_text()
