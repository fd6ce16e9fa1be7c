"""Hypotheses are kept when they are first submitted, and never again changed; later ones stand beside them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.errors import InvalidPlan
from launcher.planning import freeze, preregistration
from launcher.run.folder import read_state, run_folder, write_state
from launcher.run.lifecycle import RunState
from tests.launcher.experiments import make

ARGUMENTS = ("experiment=qstar_main", "seed=0", "scale=tiny")


def kept(folder):
    return json.loads((folder / "hypotheses.json").read_text())["declarations"]


def finish(planned, run_id):
    folder = run_folder(planned.multirun, run_id)
    write_state(folder, read_state(folder).replace(state=RunState.DONE))


def test_the_first_declaration_stays_and_others_are_amendments(tmp_path):
    planned = make(*ARGUMENTS, f"multirun={tmp_path}")
    folder = tmp_path / "qstar_main"
    freeze.freeze(planned)
    (first,) = kept(folder)
    assert list(first["hypotheses"]) == [
        "H1", "H1_beside", "alpha", "fastest", "H2", "H3", "H4", "H5", "best", "reliable", "success"
    ]  # fmt: skip
    assert (first["planned"], first["done"]) == (8, [])
    before = (folder / "hypotheses.json").read_bytes()
    finish(planned, next(iter(planned.runs)))
    freeze.freeze(planned)
    assert (folder / "hypotheses.json").read_bytes() == before
    freeze.freeze(make(*ARGUMENTS, "analysis.hypotheses.H1.low=0.8", f"multirun={tmp_path}"))
    again, amended = kept(folder)
    assert again == first and amended["hypotheses"]["H1"]["low"] == 0.8
    assert amended["hash"] != first["hash"] and amended["done"] == [next(iter(planned.runs))]
    freeze.freeze(planned)  # back to the first ones: they are kept already
    assert len(kept(folder)) == 2


def test_an_experiment_without_hypotheses_keeps_none(tmp_path):
    freeze.freeze(make("method=ptrw", f"multirun={tmp_path}"))
    assert not (tmp_path / "adhoc-ptrw/hypotheses.json").exists()


def test_the_hash_does_not_depend_on_the_order_of_keys(tmp_path):
    preregistration.declare(tmp_path, {"A": {"x": 1, "y": 2.0}}, 1, [])
    preregistration.declare(tmp_path, {"A": {"y": 2, "x": 1}}, 1, [])
    assert len(kept(tmp_path)) == 1


def test_a_file_of_another_kind_is_never_overwritten(tmp_path):
    path = tmp_path / "qstar_main/hypotheses.json"
    path.parent.mkdir()
    path.write_text('{"format": 2, "declarations": []}')
    planned = make(*ARGUMENTS, f"multirun={tmp_path}")
    with pytest.raises(InvalidPlan, match=r"hypotheses\.json: declarations: not a record .* Fix: move the file away"):
        freeze.freeze(planned)
    assert json.loads(path.read_text())["format"] == 2 and not (tmp_path / "runs").exists()


def test_of_many_launches_at_once_none_loses_anothers_declaration(tmp_path):
    many = 8
    start = threading.Barrier(many)

    def declare(number):
        start.wait()
        preregistration.declare(tmp_path, {"A": {"x": number}}, 1, [])

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(declare, range(many)))
    assert sorted(one["hypotheses"]["A"]["x"] for one in kept(tmp_path)) == list(range(many))
