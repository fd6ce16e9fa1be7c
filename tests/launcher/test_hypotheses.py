"""Hypotheses come from files and the experiment's own section; what the report would not take is refused."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from launcher.__main__ import main
from launcher.config.hydra_compose import Composer
from launcher.planning import hypotheses, planner
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import SHIPPED, make, refused, shipped

RANGE = {"claim": "It is so.", "kind": "range", "group": "C1", "metric": "actor/grad_norm", "low": 0}


def write(conf, name, content, header="# @package analysis.hypotheses\n"):
    (conf / f"hypothesis/{name}.yaml").write_text(header + yaml.safe_dump(content))


def declared(composer, *arguments):
    return list(planner.make(ROOT, arguments, composer).experiments[0].analysis["hypotheses"] or {})


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
            assert all(f"`{key}`" in written for key in re.findall(r"[a-z_]+/[\w@]+", re.sub(r"@\d+", "@k", metric)))


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
    assert declared(*arguments, "hypothesis=[bnto_gate]", "analysis.hypotheses.C3=null") == ["C3_entropy", "C3_wH"]
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


def test_a_plan_says_that_a_best_value_is_not_judged(worded):
    claim = "analysis.hypotheses.H9={claim: more, kind: greater, group: C1, metric: actor/lr, summary: best}"
    words = ["experiment=bnto_main", "scale=tiny", "hypothesis=[]"]
    for word in ("analysis.primary.summary=best", claim):
        worded(hypotheses.warnings(*make(*words, word).experiments))


def test_a_plan_names_what_its_seeds_cannot_decide(capsys, worded):
    arguments = ("experiment=bnto_main", "scale=tiny", "hypothesis=bnto_gate")
    flips = "analysis.family=max_t"
    (default,) = make(*arguments, "experiment.seeds=[0,1,2,3,4]").experiments
    assert hypotheses.warnings(default) == []  # a t test has no smallest p
    (five,) = make(*arguments, flips, "experiment.seeds=[0,1,2,3,4]").experiments
    worded(hypotheses.warnings(five))
    (timed,) = make("experiment=bnto_main", "scale=tiny", flips, "experiment.seeds=[0,1,2,3,4]").experiments
    worded(hypotheses.warnings(timed))
    (six,) = make(*arguments, flips, "experiment.seeds=[0,1,2,3,4,5]").experiments
    assert hypotheses.warnings(six) == [] == hypotheses.undecidable(six) and not hypotheses.undecidable_primary(six)
    one = [*arguments, "seed=0", "analysis.test=paired_t", "analysis.family=holm"]
    assert main(["plan", *one]) == 0
    worded(line for line in capsys.readouterr().out.splitlines() if "cannot decide" in line)
    assert main(["plan", *one, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["experiments"]["bnto_main"]
    assert planned["undecidable"] == [{"id": name, "seeds": 1, "needed": 2} for name in ("C3_entropy", "C3_wH")]
    assert planned["undecidable_primary"] == {
        "groups": ["C0_KL", "C1", "C2", "C3"], "seeds": 1, "needed": 2, "smallest_p": None, "comparisons": 4
    }  # fmt: skip


def test_a_plan_says_what_difference_its_seeds_find(capsys, worded):
    arguments = ("experiment=bnto_main", "scale=tiny", "hypothesis=[]", "experiment.seeds=[0,1,2,3,4]")
    (five,) = make(*arguments).experiments
    (samples,) = make(*arguments, "analysis.pairing=none", "analysis.test=relabel").experiments
    worded([hypotheses.findable(five), hypotheses.findable(samples)])
    assert main(["plan", *arguments]) == 0
    assert hypotheses.findable(five) in capsys.readouterr().out.splitlines()
    for nothing in ("analysis.family=max_t", "analysis.primary.summary=best"):
        (without,) = make(*arguments, nothing).experiments
        assert hypotheses.findable(without) is None, nothing


def test_files_that_do_not_go_together_are_refused(conf, worded):
    write(conf, "mine", {"H1": RANGE, "M": RANGE})
    worded(refused("experiment=bnto_main", "+hypothesis=mine", conf=conf))
    write(conf, "mine", {"M": RANGE}, header="")
    worded(refused("experiment=bnto_main", "+hypothesis=mine", conf=conf))


def test_a_plan_says_what_a_claim_about_the_variation_over_seeds_takes(worded):
    """With three seeds, the chi-square interval of a standard deviation ends at 6.3 times what is seen."""
    worded(hypotheses.warnings(*make("experiment=qstar_main").experiments))
