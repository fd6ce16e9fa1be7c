"""What decides comes from hypotheses in files, is kept when it is first submitted, and never again changed."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import yaml

from analysis import __main__ as analysis
from analysis.data.sweep import read_sweep
from analysis.findings.study import registered, study
from analysis.report.headline import answer
from analysis.spec.settings import settings
from analysis.tables import comparison
from launcher.__main__ import main
from launcher.config.hydra_compose import Composer, as_override
from launcher.errors import InvalidPlan
from launcher.planning import freeze, hypotheses, planner
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState, archive, read_state, write_state
from tests.analysis.conftest import metrics
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import SHIPPED, make, refused, shipped

SMALL = ("experiment.baseline=c0_grpo", "experiment.name=small", "analysis.primary.metric=analysis/reward_sum_mean")
ARGUMENTS = ("experiment=qstar_main", "seed=0", "scale=tiny")


@cache
def made(*words):
    return make(*SMALL, *words, "multirun=/none")


def planned(multirun, *words):
    """The plan of a small experiment, made once for all folders."""
    return replace(made(*words), multirun=multirun)


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
        "win_rate", "H1", "H1_beside", "alpha", "fastest", "H2", "H3", "H4", "H5", "best", "reliable", "success"
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
    freeze.freeze(planned)  # back to the first ones: the order of declarations is kept
    assert [one["hypotheses"] for one in kept(folder)[2:]] == [first["hypotheses"]]


def test_figures_labels_and_spelling_declare_nothing_new(tmp_path):
    words = (*SMALL, "method=c0_grpo,ptrw", "seed=0", f"multirun={tmp_path}")
    freeze.freeze(make(*words))
    (first,) = kept(tmp_path / "small")
    assert first["hypotheses"] == {} and first["plan"]["seeds"] == [0]
    same = ("alpha=0.05", "figures=[actor/lr]", "metrics=[actor/lr]", "test=paired_t")
    freeze.freeze(make(*words, *(f"analysis.{one}" for one in same)))
    assert kept(tmp_path / "small") == [first]


def test_a_file_of_another_kind_is_never_overwritten(tmp_path):
    path = tmp_path / "qstar_main/hypotheses.json"
    path.parent.mkdir()
    path.write_text('{"format": 2, "declarations": []}')
    planned = make(*ARGUMENTS, f"multirun={tmp_path}")
    with pytest.raises(InvalidPlan, match=r"hypotheses\.json: declarations: not a record .* Fix: move the file away"):
        freeze.freeze(planned)
    assert json.loads(path.read_text())["format"] == 2 and not (tmp_path / "runs").exists()


def test_of_many_launches_at_once_none_loses_anothers_declaration(tmp_path, monkeypatch):
    many, results = 3, freeze._results
    # Each takes its time between what it has read and what it writes.
    monkeypatch.setattr(freeze, "_results", lambda *given: time.sleep(0.05) or results(*given))
    start = threading.Barrier(many)

    def launch(plan):
        start.wait()
        freeze.freeze(plan)

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(launch, [planned(tmp_path, "method=c0_grpo", f"seed={number}") for number in range(many)]))
    assert sorted(one["plan"]["seeds"] for one in kept(tmp_path / "small")) == [[number] for number in range(many)]


# ---------------------------------------------------------------- what a report says of it

GROUPS = ("method=c0_grpo,ptrw", "method=c0_grpo,ptrw,gspo")


class Story:
    """Launches of one experiment, whose runs end when the story says so."""

    def __init__(self, multirun):
        self.multirun, self.plan = multirun, None

    def launch(self, *words):
        self.plan = planned(self.multirun, *words)
        freeze.freeze(self.plan)

    def finish(self, many=99):
        """End so many of the planned runs; whether the experiment has a result."""
        for entry in self.plan.experiments[0].entries[:many]:
            folder = run_folder(self.multirun, entry.id)
            if read_state(folder).state != RunState.DONE:
                write_state(folder, read_state(folder).replace(state=RunState.DONE))
                lines = metrics(entry.group, entry.seed, 4)
                metrics_path(folder).write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def first_lines(self, name="small"):
        """What stands above the question, and what the note below the main table calls the first measure."""
        sweep = read_sweep(self.multirun / name)
        compared = study(sweep, settings(sweep.plan["analysis"], groups=sweep.groups, baseline=sweep.baseline))
        return answer(compared).declaration, "is the declared question" in comparison.main(compared).notes[1]


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path)


BASE = ("method=c0_grpo,ptrw", "seed=0,1,2")
#: What is changed, and what is said of it.
CHANGES = {
    "analysis.primary.summary=auc analysis.primary.direction=lower analysis.alpha=0.1 analysis.test=wilcoxon "
    "analysis.family=bh analysis.axis=samples analysis.incomplete=carry analysis.seed=7 "
    "'analysis.window={points: 3}' 'analysis.time_to=[{at: 0.5}]'": [
        *("summary = auc (declared: final)", "direction = lower (declared: higher)", "alpha = 0.1 (declared: 0.05)"),
        *("test = wilcoxon (declared: paired_t)", "family = bh (declared: holm)", "axis = samples (declared: steps)"),
        *("incomplete = carry (declared: exclude)", "seed = 7 (declared: 0)", "window changed", "time_to changed"),
    ],
    "analysis.primary.metric=actor/ppo_kl": ["metric = actor/ppo_kl (declared: analysis/reward_sum_mean)"],
    "analysis.pairing=none": ["pairing = none (declared: seed), test = welch (declared: paired_t)"],
    "experiment.baseline=ptrw": ["baseline = ptrw (declared: c0_grpo)"],
    "seed=0,1": ["seeds = 0, 1 (declared: 0, 1, 2)"],
    "seed=7,8,9": ["seeds = 7, 8, 9 (declared: 0, 1, 2)"],
    "method=c0_grpo,ptrw,gspo": ["groups = c0_grpo, gspo, ptrw (declared: c0_grpo, ptrw)"],
    "method.sigma=0.3,0.5": ["levels of method.sigma added"],
    "trainer.steps=7": ["steps = 7 (declared: "],
    "'experiment.exclude=[{group: ptrw, seed: 2}]'": ["seeds changed"],
    "'+analysis.hypotheses.H={claim: c, kind: greater, group: ptrw, metric: analysis/reward_sum_mean}'": [
        "hypothesis H added"
    ],
}


@pytest.mark.parametrize("changed", CHANGES)
def test_what_decides_and_was_changed_after_results_stands_above_the_question(story, changed):
    words = shlex.split(changed)
    story.launch(*BASE, *words)
    story.launch(*BASE)  # before a result, a change is a declaration
    assert story.first_lines() == ("", True)
    story.finish()
    story.launch(*BASE)
    assert story.first_lines() == ("", True)
    story.launch(*BASE, *words)
    line, declared = story.first_lines()
    assert line.startswith("Changed after 6 of ") and not declared
    assert [said for said in CHANGES[changed] if said not in line] == []
    assert ". As declared: " in line and "in the final value of mean reward" in line
    story.launch(*BASE)
    assert story.first_lines() == ("", True)


def test_the_screen_the_page_and_the_paper_begin_with_what_was_changed_after_results(story, capsys):
    said = "Changed after 6 of 6 runs were done: summary = auc (declared: final). As declared: No method is better than"
    folder = story.multirun / "small"
    story.launch(*BASE)
    story.finish()
    story.launch(*BASE, "analysis.primary.summary=auc")
    assert analysis.main(["report", str(folder), "--format", "paper"]) == 0
    page, paper = ((folder / "report" / name).read_text() for name in ("index.html", "paper/main.tex"))
    before = {"^": capsys.readouterr().out, r'</h1>\s*<p class="\w+">': page, r"\\maketitle\s*": paper}
    assert all(re.search(start + re.escape(said), text) for start, text in before.items())
    assert "The first measure is the declared question" not in page


def test_one_group_that_was_changed_after_its_results_is_named(story):
    story.launch(*BASE)
    story.finish()
    story.launch(*BASE, "method.sigma=0.4")  # of ptrw alone
    assert story.first_lines()[0].startswith("Changed after 6 of 9 runs were done: runs of ptrw changed.")


def test_runs_that_another_experiment_has_finished_are_results(story):
    story.launch(*BASE, "experiment.name=earlier")
    story.finish()
    story.launch(*BASE)
    line, declared = story.first_lines()
    assert line.startswith("What decides was first recorded after 6 of 6 runs were done") and not declared


def test_a_record_that_was_deleted_or_cannot_be_read_declares_nothing(story):
    story.launch(*BASE)
    story.finish()
    path = story.multirun / "small/hypotheses.json"
    for text in ("", "[]", "{}", '{"declarations": [3]}', '{"declarations": 3}', "\0" * 9):
        path.write_text(text)
        assert story.first_lines() == ("", False)
    path.unlink()
    assert story.first_lines() == ("", False)
    story.launch(*BASE, "analysis.alpha=0.1")
    assert story.first_lines()[0].startswith("What decides was first recorded after 6 of 6 runs were done")


def test_archived_runs_and_an_edited_plan_are_seen_through(story):
    story.launch(*BASE)
    story.finish()
    for run_id in story.plan.runs:
        archive(story.multirun, run_id)
    story.launch(*BASE, "analysis.alpha=0.1")
    assert "Changed after 6 of 6 runs were done: alpha = 0.1" in story.first_lines()[0]
    story.launch(*BASE)
    story.finish()
    path = story.multirun / "small/plan.json"
    path.write_text(path.read_text().replace('"alpha": 0.05', '"alpha": 0.2'))
    assert "Changed after 6 of 6 runs were done: alpha = 0.2" in story.first_lines()[0]


def test_a_rehearsal_at_another_scale_declares_nothing_and_hides_nothing(story):
    rehearsal = (*BASE, "scale=tiny", "analysis.alpha=0.1")
    story.launch(*rehearsal)
    story.finish()
    story.launch(*BASE)
    assert story.first_lines() == ("", True)
    story.finish()
    story.launch(*rehearsal)
    story.launch(*BASE, "analysis.alpha=0.1")
    assert "Changed after 6 of 6 runs were done: alpha = 0.1" in story.first_lines()[0]


def test_seeds_that_a_rule_adds_are_declared(story):
    rule = ("method=c0_grpo,ptrw", "experiment.seeds={start: 2, max: 4, until: decided}")
    story.launch(*rule)
    story.finish()
    story.plan = planner.make(ROOT, (*SMALL, *rule, f"multirun={story.multirun}"), SHIPPED,
                              {"small": {"c0_grpo": range(4), "ptrw": range(4)}})  # fmt: skip
    freeze.freeze(story.plan)
    assert len(story.plan.runs) == 8 and story.first_lines() == ("", True)


def test_a_record_of_an_older_version_has_hypotheses_alone(story):
    claim = {"claim": "c", "kind": "greater", "group": "ptrw", "metric": "analysis/reward_sum_mean"}
    path = story.multirun / "small/hypotheses.json"
    path.parent.mkdir()
    old = {"hash": "h", "time": 0, "planned": 6, "done": [], "hypotheses": {"H": claim}}
    story.launch(*BASE, as_override("+analysis.hypotheses.H", claim))
    path.write_text(json.dumps({"format": 1, "declarations": [old]}))
    assert story.first_lines() == ("", False)
    story.finish()
    story.launch(*BASE, as_override("+analysis.hypotheses.H", claim), "analysis.alpha=0.1")
    found = registered(read_sweep(story.multirun / "small"))
    assert found.declaration_of("H") == (0, 6) and found.declared == (6, 6)


@pytest.mark.simulation
def test_in_200_random_stories_no_late_choice_is_called_declared(tmp_path):
    """The oracle knows only what was launched when, and whether a run was done by then."""
    random = Random(34)
    own = [("analysis.primary.summary=auc",), ("analysis.alpha=0.1",), ("analysis.test=wilcoxon",), ()]
    choices = [(GROUPS[group], f"seed={seeds}", *words) for group in (0, 0, 1) for seeds in ("0,1", "0,1,2", "3,4,5")
               for words in own]  # fmt: skip
    late_ones = 0
    for number in range(200):
        story = Story(tmp_path / str(number))
        story.multirun.mkdir()
        declared, current, results, first = None, None, False, True
        for _ in range(random.randint(2, 6)):
            event = random.choice(("launch", "launch", "launch", "finish", "delete"))
            if event == "launch":
                current = random.choice(choices[: random.choice((3, 36))])
                story.launch(*current)
                if not results or first:
                    declared, late_record, first = current, results, False
            elif event == "finish" and current is not None:
                story.finish(random.choice((1, 99)))
                results = True
            elif event == "delete" and current is not None:
                (story.multirun / "small/hypotheses.json").unlink(missing_ok=True)
                first = True
        if current is None:
            continue
        line, calls_it_declared = story.first_lines()
        late = first or late_record or current != declared
        late_ones += late
        assert calls_it_declared == (not late), (number, line)
        assert bool(line) == (late and not first), (number, line)
    assert 60 < late_ones < 180


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


def test_a_plan_says_that_the_key_of_its_judge_is_not_set(monkeypatch, worded):
    judge = "analysis.win_rate={base_url: 'http://host/v1', model: m, key_env: OWN_ACCESS}"
    (declared,) = make("experiment=bnto_main", "scale=tiny", "hypothesis=[]", judge).experiments
    for value in (None, "  "):
        monkeypatch.setenv("OWN_ACCESS", value) if value else monkeypatch.delenv("OWN_ACCESS", raising=False)
        worded(hypotheses.warnings(declared))
    monkeypatch.setenv("OWN_ACCESS", "hidden")
    assert hypotheses.warnings(declared) == []


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
