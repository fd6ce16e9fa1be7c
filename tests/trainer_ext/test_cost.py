"""The operations that a run has counted so far, over stops and resumes, whatever the backend."""

from __future__ import annotations

import json
import time

import pytest

from tests.trainer_ext.conftest import MemoryRun
from trainer_ext.train import Preempted, _train

SETTINGS = {"steps": 6, "checkpoint_every": 2, "hist_every": 0.1, "eval_every": 0, "eval_responses": 0}


class Backend:
    """Four responses a step, each of ten times as many operations as the step's number."""

    devices, parameters, peak_memory_bytes, tokens, drawn = 1, 1, 1, 0, {}

    def __init__(self):
        self.samples = 0

    def step(self, step):
        self.samples += 4
        return {"cost/flops_per_sample": 10.0 * step}

    def histograms(self):
        return {}

    def save(self, folder, state):
        (folder / "state.json").write_text(json.dumps([self.samples, state]))

    def load(self, folder):
        self.samples, state = json.loads((folder / "state.json").read_text())
        return state


def flops(run):
    return [line.get("cost/flops") for line in run.lines]


def trained(run):
    _train(SETTINGS, run, Backend(), time.monotonic(), 0.0)


def test_operations_add_up_over_a_stop(tmp_path):
    expected = [40.0, 120.0, 240.0, 400.0, 600.0, 840.0]
    whole = MemoryRun(tmp_path / "whole", tmp_path)
    trained(whole)
    assert flops(whole) == expected
    with pytest.raises(Preempted):
        trained(first := MemoryRun(tmp_path / "cut", tmp_path, stop_after=3))
    trained(second := MemoryRun(tmp_path / "cut", tmp_path))
    assert flops(first) + flops(second) == expected


def test_after_a_checkpoint_of_an_older_version_they_are_not_known(tmp_path):
    with pytest.raises(Preempted):
        trained(run := MemoryRun(tmp_path / "run", tmp_path, stop_after=3))
    for path in run.folder.rglob("state.json"):
        samples, state = json.loads(path.read_text())
        del state["flops"]
        path.write_text(json.dumps([samples, state]))
    trained(resumed := MemoryRun(tmp_path / "run", tmp_path))
    assert flops(resumed) == [None] * 3
