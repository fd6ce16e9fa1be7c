"""The design of an experiment: cells, zips, exclusions and inheritance; what cannot be is refused in one line."""

from __future__ import annotations

import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.planning.design import Factor, cells, excludes, short_labels
from tests.launcher.experiments import by_group, levels, make, refused, write_experiment


def test_a_zip_without_one_of_its_keys_names_each_level_once():
    zipped = Factor(("task",), ("a", "b"), (("x", 1, 3), ("x", 1, 4), ("y", 2, 4)))
    assert zipped.without(["b"]) == Factor(("task",), ("a",), (("x", 1), ("y", 2)))
    assert zipped.without(["task", "a", "b"]) is None
    assert zipped.without([]) == zipped


KEYS = st.sampled_from("abcd")
LEVELS = st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)
FACTORS = st.dictionaries(KEYS, LEVELS, max_size=3)


@given(FACTORS, st.dictionaries(st.sampled_from("xyz"), st.sets(KEYS), min_size=1))
def test_the_cells_of_a_group_are_the_product_of_the_levels_that_it_reads(factors, groups):
    declared = [Factor((), (key,), tuple((level,) for level in levels)) for key, levels in factors.items()]
    found = cells(list(groups), declared, lambda group, _choices, key: key in groups[group])
    expected = set()
    for group, keys in groups.items():
        read = [[(key, level) for level in levels] for key, levels in factors.items() if key in keys]
        expected |= {(group, frozenset(cell)) for cell in itertools.product(*read)}
    assert {(cell.group, frozenset(cell.factors)) for cell in found} == expected and len(found) == len(expected)


@given(FACTORS, st.dictionaries(KEYS, st.integers(0, 4)))
def test_an_exclusion_matches_exactly_the_cells_with_all_its_levels(rule, cell):
    matches = all(key in cell and cell[key] in levels for key, levels in rule.items())
    assert excludes({key: tuple(levels) for key, levels in rule.items()}, cell) == matches


def test_true_is_not_the_level_1_but_2_is_2_point_0():
    assert not excludes({"a": (1,)}, {"a": True})
    assert excludes({"a": (2,)}, {"a": 2.0})


def test_labels_are_the_shortest_unique_endings():
    labels = {"method.gamma": "gamma", "task": "task", "method/control": "control", "a.x": "a.x", "b.x": "b.x"}
    assert short_labels([*labels]) == labels


TWO = {"A": {"method": "bnto_minimal"}, "B": {"method": "c0_grpo"}}
ZIP = {"pace": {"method.gamma": [0.8, 1.2], "trainer.steps": [5, 6]}}


def test_a_zip_goes_in_lockstep_and_a_group_takes_what_it_reads_of_it(conf):
    write_experiment(conf, TWO, zip=ZIP, factors={"method.rho": [0.3, 0.4]})
    planned = make("experiment=bad", conf=conf)
    assert levels(planned) == [
        ("A", 0, {"gamma": 0.8, "steps": 5, "rho": 0.3}),
        ("A", 0, {"gamma": 1.2, "steps": 6, "rho": 0.3}),
        ("A", 0, {"gamma": 0.8, "steps": 5, "rho": 0.4}),
        ("A", 0, {"gamma": 1.2, "steps": 6, "rho": 0.4}),
        ("B", 0, {"steps": 5}),
        ("B", 0, {"steps": 6}),
    ]
    assert planned.experiments[0].factors["method.gamma"] == {"label": "gamma", "levels": [0.8, 1.2]}
    for entry in planned.experiments[0].entries:
        assert planned.runs[entry.id].config["trainer"]["steps"] == entry.factors["steps"]


def test_a_choice_of_a_group_and_a_value_can_be_zipped(conf):
    zipped = {"size": {"model": ["tiny", "gpt2"], "trainer.steps": [5, 6]}}
    write_experiment(conf, {"B": {"method": "c0_grpo"}}, zip=zipped)
    runs = make("experiment=bad", conf=conf).runs.values()
    assert [(run.config["model"]["name"], run.config["trainer"]["steps"]) for run in runs] == [("tiny", 5), ("gpt2", 6)]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("method.gamma=0.9", [("A", {"steps": 5}), ("A", {"steps": 6}), ("B", {"steps": 5}), ("B", {"steps": 6})]),
        ("trainer.steps=7", [("A", {"gamma": 0.8}), ("A", {"gamma": 1.2}), ("B", {})]),
        (
            "trainer.steps=7,8",
            [*(("A", {"gamma": g, "steps": steps}) for g in (0.8, 1.2) for steps in (7, 8)),
             ("B", {"steps": 7}), ("B", {"steps": 8})],
        ),
    ],
)  # fmt: skip
def test_a_key_that_the_command_line_takes_leaves_its_zip(conf, override, expected):
    write_experiment(conf, TWO, zip=ZIP)
    found = [(group, own) for group, _, own in levels(make("experiment=bad", override, conf=conf))]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_an_exclusion_speaks_of_choices_too(conf):
    factors = {"method/credit": [[], ["temporal_decay"], ["temporal_decay", "gradient_adaptive"]], "task": ["sorting"]}
    exclude = [{"method/credit": [["gradient_adaptive", "temporal_decay"]]}, {"method/credit": []}]
    write_experiment(conf, {"B": {"method": "c0_grpo"}}, factors=factors, exclude=exclude)
    assert levels(make("experiment=bad", conf=conf)) == [("B", 0, {"credit": "[temporal_decay]", "task": "sorting"})]


def test_an_exclusion_holds_for_what_the_command_line_fixes_and_need_not_match_it(conf):
    rule = {"group": "A", "method.gamma": 1.2}
    write_experiment(conf, TWO, factors={"method.gamma": [0.8, 1.2]}, exclude=[rule], seeds=[0, 1])
    assert by_group(make("experiment=bad", conf=conf)) == {"A": 2, "B": 2}
    assert by_group(make("experiment=bad", "method.gamma=1.2", conf=conf)) == {"B": 2}
    assert by_group(make("experiment=bad", "method.gamma=0.9,1.3", conf=conf)) == {"A": 4, "B": 2}
    assert by_group(make("experiment=bad", "experiment.exclude=[]", conf=conf)) == {"A": 4, "B": 2}


# ---------------------------------------------------------------- inheritance


def inherit(conf, **experiment):
    """An experiment `child` of one with four groups and two factors."""
    groups = {"C0": {"method": "c0_grpo"}, "C1": {"method": "bnto_minimal"}, "C2": {"method": "gspo"}}
    groups["C3"] = {"method": "bnto_kl_gated", "label": "C3 (KL-gated)"}
    more = {"trainer": {"steps": 7}, "analysis": {"primary": {"summary": "auc"}}}
    factors = {"method.gamma": [0.8, 1.2], "method.rho": [0.3, 0.4]}
    write_experiment(conf, groups, "parent", factors=factors, seeds=[0, 1], **more)
    body = {"defaults": ["parent", "_self_"], "experiment": {"name": "child", **experiment}}
    (conf / "experiment/child.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(body, sort_keys=False)}")


def test_an_experiment_can_inherit_another_replace_and_drop_its_parts(conf):
    groups = {"C2": None, "C3": {"method": "ptrw"}, "new": {"method": "gspo"}}
    inherit(conf, groups=groups, factors={"method.rho": None, "method.gamma": [0.8, 0.9]}, seeds=[7])
    planned = make("experiment=child", conf=conf)
    assert by_group(planned) == {"C0": 1, "C1": 2, "C3": 1, "new": 1}
    (experiment,) = planned.experiments
    assert (experiment.name, experiment.baseline, experiment.seeds) == ("child", "C0", (7,))
    assert experiment.groups["C3"] == {"label": "C3 (KL-gated)", "method": "ptrw"}
    assert set(experiment.factors) == {"method.gamma"}
    # The trainer's and the report's settings come along.
    assert {run.config["trainer"]["steps"] for run in planned.runs.values()} == {7}
    assert experiment.analysis["primary"]["summary"] == "auc"


def test_parent_and_child_share_their_equal_runs(conf):
    inherit(conf, groups={"C2": None, "C3": None})
    planned = make("experiment=child,parent", conf=conf)
    child, parent = ({entry.id for entry in experiment.entries} for experiment in planned.experiments)
    assert [experiment.name for experiment in planned.experiments] == ["child", "parent"]
    assert child < parent and len(parent) == len(planned.runs)


def test_what_cannot_be_inherited_is_refused_in_one_line(conf, worded):
    for declared in ({"groups": {"C4": None}}, {"factors": {"method.gama": None}}, {"groups": {"C0": None}}):
        inherit(conf, **declared)
        worded(refused("experiment=child", conf=conf))


def test_an_inherited_name_is_refused_unless_the_command_line_gives_one(conf, worded):
    body = {"defaults": ["bnto_medium", "_self_"], "trainer": {"steps": 9}}
    (conf / "experiment/child.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(body)}")
    worded(refused("experiment=child", conf=conf))
    assert make("experiment=child", "experiment.name=mine", conf=conf).experiments[0].name == "mine"
