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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["experiment=qstar_mvp", "hypothesis=[bnto,qstar_quick]"],
            "conf/hypothesis/bnto.yaml: analysis.hypotheses.H1_entropy.group = C1: the groups are ppo, sft, q_star. "
            "Fix: name one of them, or leave it out: analysis.hypotheses.H1_entropy=null, or with the rest of its file:"
            " hypothesis=[qstar_quick]",
        ),
        (
            ["experiment=bnto_main", "experiment.groups.C3=null"],
            "conf/hypothesis/bnto_gate.yaml: analysis.hypotheses.C3_entropy.group = C3: the groups are C0, C0_KL, C1",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H1_no_collapse.kind=rnage"],
            "command line: analysis.hypotheses.H1_no_collapse.kind = rnage: must be one of ",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H1_wH.metric=wH_per_token"],
            "command line: analysis.hypotheses.H1_wH.metric = wH_per_token: must be a metric's key, such as actor/grad",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H1_wH=null"],
            "conf/hypothesis/bnto.yaml: analysis.hypotheses.H1.of = H1_wH: the hypotheses that it may name are ",
        ),
        (
            ["experiment=bnto_main", "analysis.hypotheses.H9=null"],
            "conf/experiment/bnto_main.yaml: analysis.hypotheses.H9: null removes an entry of another file, but ",
        ),
        (
            ["experiment=bnto_main", "hypothesis=bnto,bnto_gate"],
            "command line: hypothesis = bnto,bnto_gate: hypotheses belong to a whole experiment and cannot be "
            "swept. Fix: write "
            "hypothesis=[bnto,bnto_gate]",
        ),
        (["experiment=bnto_main", "+hypothesis=bntoo"], "there is no conf/hypothesis/bntoo.yaml; available: bnto, "),
        (["method=ptrw", "hypothesis=bnto_gate"], "the groups are ptrw. Fix: "),
        (
            ["method=ptrw", "analysis.hypotheses=[]"],
            "command line: analysis.hypotheses = []: must be a mapping such as {H1: {claim: ..., kind: range, ...}}",
        ),
        (
            ["method=ptrw", "analysis.figures=[{pareto:[actor/lr,actor/grad_norm]}]"],
            "command line: analysis.figures[0].directions: needs directions, such as [higher, lower]: it is not "
            "known which direction of actor/lr is better. Fix: add directions",
        ),
        (
            ["method=ptrw", "analysis.primary.summary=time_to"],
            "conf/config.yaml: analysis.time_to = []: needs a threshold for analysis/reward_sum_mean, because its "
            "primary summary is time_to. Fix: write [{baseline_final: 0.9}]",
        ),
        (
            ["experiment=bnto_main", "analysis.time_to=[{metric:reward,at:1}]"],
            "command line: analysis.time_to[0].metric = reward: must be a metric's key",
        ),
    ],
)
def test_hypotheses_that_do_not_fit_are_refused_before_anything_runs(arguments, said):
    lines = refused(*arguments, "scale=tiny")
    assert said in lines[0] and len(lines) == len({line.partition(" = ")[0] for line in lines})


def test_a_plan_says_that_a_best_value_is_not_judged():
    claim = "analysis.hypotheses.H9={claim: more, kind: greater, group: C1, metric: actor/lr, summary: best}"
    words = ["experiment=bnto_main", "scale=tiny", "hypothesis=[]"]
    (primary,) = make(*words, "analysis.primary.summary=best").experiments
    assert hypotheses.warnings(primary) == [
        "bnto_main: the report has a best value, which is described and not judged (the primary question): a maximum "
        "favours noise. Fix: choose the summary final, auc or time_to"
    ]
    (claimed,) = make(*words, claim).experiments
    assert "not judged (H9)" in hypotheses.warnings(claimed)[-1]


def test_a_plan_names_what_its_seeds_cannot_decide(capsys):
    arguments = ("experiment=bnto_main", "scale=tiny", "hypothesis=bnto_gate")
    flips = "analysis.family=max_t"
    (default,) = make(*arguments, "experiment.seeds=[0,1,2,3,4]").experiments
    assert hypotheses.warnings(default) == []  # a t test has no smallest p
    (five,) = make(*arguments, flips, "experiment.seeds=[0,1,2,3,4]").experiments
    assert hypotheses.warnings(five) == [
        "bnto_main: 5 seeds cannot decide the primary question (auc of analysis/reward_sum_mean): 6 are needed, or "
        "analysis.test=paired_t analysis.family=holm, which assumes normal differences. The smallest p that 5 seeds "
        "can give, adjusted for 4 comparisons, is 0.0625; alpha = 0.05",
        "bnto_main: 5 seeds cannot decide C3_entropy, C3_wH: 6 are needed, or analysis.test=paired_t "
        "analysis.family=holm, which assumes normal differences",
    ]
    (timed,) = make("experiment=bnto_main", "scale=tiny", flips, "experiment.seeds=[0,1,2,3,4]").experiments
    assert hypotheses.warnings(timed)[1].endswith("assumes normal differences; H2_time would then need 8")
    (six,) = make(*arguments, flips, "experiment.seeds=[0,1,2,3,4,5]").experiments
    assert hypotheses.warnings(six) == [] == hypotheses.undecidable(six) and not hypotheses.undecidable_primary(six)
    one = [*arguments, "seed=0", "analysis.test=paired_t", "analysis.family=holm"]
    assert main(["plan", *one]) == 0
    printed = capsys.readouterr().out
    assert "bnto_main: 1 seed cannot decide the primary question (auc of analysis/reward_sum_mean): 2 are needed\n" in (
        printed
    )
    assert "bnto_main: 1 seed cannot decide C3_entropy, C3_wH: 2 are needed\n" in printed
    assert main(["plan", *one, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["experiments"]["bnto_main"]
    assert planned["undecidable"] == [{"id": name, "seeds": 1, "needed": 2} for name in ("C3_entropy", "C3_wH")]
    assert planned["undecidable_primary"] == {
        "groups": ["C0_KL", "C1", "C2", "C3"], "seeds": 1, "needed": 2, "smallest_p": None, "comparisons": 4
    }  # fmt: skip


def test_a_plan_says_what_difference_its_seeds_find(capsys):
    arguments = ("experiment=bnto_main", "scale=tiny", "hypothesis=[]", "experiment.seeds=[0,1,2,3,4]")
    line = (
        "bnto_main: 5 seeds detect only very large differences in analysis/reward_sum_mean (auc) of 2.5 sd or more "
        "with 80% power, as the first of 4 comparisons. 10 seeds would detect 1.3 sd. (sd: the standard deviation "
        "of the differences between seeds; test: paired_t)"
    )
    (five,) = make(*arguments).experiments
    assert hypotheses.findable(five) == line
    assert main(["plan", *arguments]) == 0 and line in capsys.readouterr().out.splitlines()
    (samples,) = make(*arguments, "analysis.pairing=none", "analysis.test=relabel").experiments
    said = hypotheses.findable(samples)
    assert said is not None and "test: relabel" in said and "the standard deviation of one method's runs" in said
    for nothing in ("analysis.family=max_t", "analysis.primary.summary=best"):
        (without,) = make(*arguments, nothing).experiments
        assert hypotheses.findable(without) is None, nothing


def test_files_that_do_not_go_together_are_refused(conf):
    write(conf, "mine", {"H1": RANGE, "M": RANGE})
    (line,) = refused("experiment=bnto_main", "+hypothesis=mine", conf=conf)
    assert line == (
        "conf/hypothesis/mine.yaml: analysis.hypotheses.H1: conf/hypothesis/bnto.yaml also declares H1. Fix: rename one"
    )
    write(conf, "mine", {"M": RANGE}, header="")
    (line,) = refused("experiment=bnto_main", "+hypothesis=mine", conf=conf)
    assert line.startswith("conf/hypothesis/mine.yaml: # @package analysis.hypotheses: the file does not begin with")


def test_a_plan_says_what_a_claim_about_the_variation_over_seeds_takes():
    """With three seeds, the chi-square interval of a standard deviation ends at 6.3 times what is seen."""
    (experiment,) = make("experiment=qstar_main").experiments
    assert (
        "qstar_main: reliable is described: with 3 seeds the whole interval of the variation is below 0.05 only where "
        "the seeds vary by 0.008 of their mean or less"
    ) in hypotheses.warnings(experiment)
