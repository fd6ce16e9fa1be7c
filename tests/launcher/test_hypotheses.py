"""Hypotheses are kept when they are first submitted, and never again changed; later ones stand beside them."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from launcher import hypotheses, plan
from launcher import run as folders
from launcher.compose import Composer
from launcher.problem import InvalidPlan
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import SHIPPED, make, refused, shipped

ARGUMENTS = ("experiment=qstar_main", "seed=0", "scale=tiny")


def kept(folder):
    return json.loads((folder / "hypotheses.json").read_text())["declarations"]


def finish(planned, run_id):
    folder = folders.run_folder(planned.multirun, run_id)
    folders.write_state(folder, folders.read_state(folder).but(state=folders.DONE))


def test_the_first_declaration_stays_and_others_are_amendments(tmp_path):
    planned = make(*ARGUMENTS, f"multirun={tmp_path}")
    folder = tmp_path / "qstar_main"
    plan.freeze(planned)
    (first,) = kept(folder)
    assert list(first["hypotheses"]) == ["H1", "H2", "H3", "H4", "H5", "best", "reliable", "success"]
    assert (first["planned"], first["done"]) == (8, [])
    before = (folder / "hypotheses.json").read_bytes()
    finish(planned, next(iter(planned.runs)))
    plan.freeze(planned)
    assert (folder / "hypotheses.json").read_bytes() == before
    plan.freeze(make(*ARGUMENTS, "analysis.hypotheses.H1.low=0.8", f"multirun={tmp_path}"))
    again, amended = kept(folder)
    assert again == first and amended["hypotheses"]["H1"]["low"] == 0.8
    assert amended["hash"] != first["hash"] and amended["done"] == [next(iter(planned.runs))]
    plan.freeze(planned)  # back to the first ones: they are kept already
    assert len(kept(folder)) == 2


def test_an_experiment_without_hypotheses_keeps_none(tmp_path):
    plan.freeze(make("method=ptrw", f"multirun={tmp_path}"))
    assert not (tmp_path / "adhoc/hypotheses.json").exists()


def test_the_hash_does_not_depend_on_the_order_of_keys(tmp_path):
    hypotheses.declare(tmp_path, {"A": {"x": 1, "y": 2.0}}, 1, [])
    hypotheses.declare(tmp_path, {"A": {"y": 2, "x": 1}}, 1, [])
    assert len(kept(tmp_path)) == 1


def test_a_file_of_another_kind_is_never_overwritten(tmp_path):
    path = tmp_path / "qstar_main/hypotheses.json"
    path.parent.mkdir()
    path.write_text('{"format": 2, "declarations": []}')
    planned = make(*ARGUMENTS, f"multirun={tmp_path}")
    with pytest.raises(InvalidPlan, match=r"hypotheses\.json: declarations: not a record .* Fix: move the file away"):
        plan.freeze(planned)
    assert json.loads(path.read_text())["format"] == 2 and not (tmp_path / "runs").exists()


def test_of_many_launches_at_once_none_loses_anothers_declaration(tmp_path):
    many = 8
    start = threading.Barrier(many)

    def declare(number):
        start.wait()
        hypotheses.declare(tmp_path, {"A": {"x": number}}, 1, [])

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(declare, range(many)))
    assert sorted(one["hypotheses"]["A"]["x"] for one in kept(tmp_path)) == list(range(many))


# ---------------------------------------------------------------- conf/hypothesis

RANGE = {"claim": "It is so.", "kind": "range", "group": "C1", "metric": "actor/grad_norm", "low": 0}


def write(conf, name, content, header="# @package analysis.hypotheses\n"):
    (conf / f"hypothesis/{name}.yaml").write_text(header + yaml.safe_dump(content))


def declared(composer, *arguments):
    return list(plan.make(ROOT, arguments, composer).experiments[0].analysis["hypotheses"] or {})


@pytest.mark.parametrize("name", shipped("hypothesis"))
def test_every_shipped_file_is_declared_by_an_experiment_whose_report_will_take_it(name):
    users = [
        experiment
        for experiment in shipped("experiment")
        if name in SHIPPED.compose([f"experiment={experiment}"]).chosen("hypothesis")
    ]
    assert users
    written = (ROOT / "docs/metrics.md").read_text()
    for declaration in SHIPPED.content(f"hypothesis/{name}").values():
        for metric in [declaration.get("metric") or "", *declaration.get("metrics", [])]:
            assert all(f"`{key}`" in written for key in re.findall(r"[a-z_]+/\w+", metric))


def test_a_file_may_be_added_replaced_left_out_and_dropped_from(conf):
    write(conf, "mine", {"M": RANGE})
    composer = Composer(conf, "config")
    arguments = (composer, "experiment=bnto_main", "scale=tiny", "seed=0")
    whole = declared(*arguments)
    assert {"H1", "H1b", "H2", "H3", "C3"} < set(whole)
    assert declared(*arguments, "+hypothesis=mine") == [*whole, "M"]
    assert declared(*arguments, "hypothesis=mine") == ["M"]
    assert set(declared(*arguments, "hypothesis=[mine,bnto_gate]")) == {"M", "C3_entropy", "C3_wH", "C3"}
    assert declared(*arguments, "hypothesis=[]") == []
    assert declared(*arguments, "hypothesis=[bnto_gate]", "analysis.hypotheses.C3=null") == whole[-3:-1]
    assert declared(composer, "method=c0_grpo") == []


def test_what_an_experiments_own_file_says_wins(conf):
    body = {
        "defaults": ["bnto_main", {"override /hypothesis": ["bnto_gate"]}, "_self_"],
        "experiment": {"name": "child"},
        "analysis": {"hypotheses": {"C3_wH": {"margin": 0.5}, "own": RANGE, "C3_entropy": None, "C3": None}},
    }
    (conf / "experiment/child.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(body, sort_keys=False)}")
    found = make("experiment=child", "scale=tiny", "seed=0", conf=conf).experiments[0].analysis["hypotheses"]
    assert list(found) == ["C3_wH", "own"] and (found["C3_wH"]["margin"], found["C3_wH"]["group"]) == (0.5, "C3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["experiment=qstar_mvp", "hypothesis=[bnto,qstar_quick]"],
            "conf/hypothesis/bnto.yaml: analysis.hypotheses.H1_entropy.group = 'C1': the groups are ppo, q_star. Fix: "
            "correct it, or leave it out: analysis.hypotheses.H1_entropy=null, or with the rest of its file: "
            "hypothesis=[qstar_quick]",
        ),
        (
            ["experiment=bnto_main", "experiment.groups.C3=null"],
            "conf/hypothesis/bnto_gate.yaml: analysis.hypotheses.C3_entropy.group = 'C3': the groups are C0, C1, C2",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H1_no_collapse.kind=rnage"],
            "command line: analysis.hypotheses.H1_no_collapse.kind = 'rnage': 'range' or ",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H1_wH=null"],
            "conf/hypothesis/bnto.yaml: analysis.hypotheses.H1.of: names 'H1_wH'; those that it may name are ",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H9=null"],
            "conf/experiment/bnto_main.yaml: analysis.hypotheses.H9: null drops what another file declares, and none ",
        ),
        (
            ["experiment=bnto_main", "hypothesis=bnto,bnto_gate"],
            "command line: hypothesis = bnto,bnto_gate: hypotheses are of the whole sweep. Fix: write "
            "hypothesis=[bnto,bnto_gate]",
        ),
        (["experiment=bnto_main", "+hypothesis=bntoo"], "there is no conf/hypothesis/bntoo.yaml; available: bnto, "),
        (["method=ptrw", "hypothesis=bnto_gate"], "the groups are ptrw. Fix: "),
        (["method=ptrw", "analysis.hypotheses=[]"], "command line: analysis.hypotheses = []: a mapping such as {H1: "),
    ],
)
def test_hypotheses_that_do_not_fit_are_refused_before_anything_runs(arguments, said):
    (line,) = refused(*arguments, "scale=tiny")
    assert said in line


def test_files_that_do_not_go_together_are_refused(conf):
    write(conf, "mine", {"H1": RANGE, "M": RANGE})
    (line,) = refused("experiment=bnto_main", "+hypothesis=mine", conf=conf)
    assert line == (
        "conf/hypothesis/mine.yaml: analysis.hypotheses.H1: conf/hypothesis/bnto.yaml declares H1 too. Fix: rename one"
    )
    write(conf, "mine", {"M": RANGE}, header="")
    (line,) = refused("experiment=bnto_main", "+hypothesis=mine", conf=conf)
    assert line.startswith("conf/hypothesis/mine.yaml: # @package analysis.hypotheses: the file does not begin with")
