"""The design of an experiment: cells, zips, exclusions and inheritance; what cannot be is refused in one line."""

from __future__ import annotations

import itertools
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.planning.design import Factor, cells, excludes, short_labels
from tests.launcher.experiments import by_group, levels, make, refused, write_experiment


def value(key, *levels):
    return Factor((), (key,), tuple((level,) for level in levels))


def test_a_zip_without_one_of_its_keys_names_each_level_once():
    zipped = Factor(("task",), ("a", "b"), (("x", 1, 3), ("x", 1, 4), ("y", 2, 4)))
    assert zipped.without(["b"]) == Factor(("task",), ("a",), (("x", 1), ("y", 2)))
    assert zipped.without(["task", "a", "b"]) is None
    assert zipped.without([]) == zipped


KEYS = "abcd"
LEVELS = st.lists(st.integers(), min_size=1, max_size=3, unique=True)
FACTORS = st.dictionaries(st.sampled_from(KEYS), LEVELS, max_size=3)
GROUPS = st.dictionaries(st.sampled_from("xyz"), st.sets(st.sampled_from(KEYS)), min_size=1)


def laid_out(groups, factors):
    return cells(list(groups), factors, lambda group, _choices, key: key in groups[group])


@given(FACTORS, GROUPS)
def test_the_number_of_cells_is_the_product_of_the_levels_read(factors, groups):
    found = laid_out(groups, [value(key, *levels) for key, levels in factors.items()])
    for group, keys in groups.items():
        expected = math.prod(len(levels) for key, levels in factors.items() if key in keys)
        assert sum(cell.group == group for cell in found) == expected
    assert len(set(found)) == len(found)


@given(FACTORS, GROUPS, st.randoms())
def test_the_order_of_factors_does_not_change_the_cells(factors, groups, shuffle):
    def as_sets(found):
        return {(cell.group, frozenset(cell.factors)) for cell in found}

    own = [value(key, *levels) for key, levels in factors.items()]
    other = list(own)
    shuffle.shuffle(other)
    assert as_sets(laid_out(groups, own)) == as_sets(laid_out(groups, other))


@given(st.lists(st.tuples(st.integers(), st.integers()), min_size=1, max_size=4, unique=True), FACTORS, GROUPS)
def test_a_zip_is_in_lockstep_and_multiplies_the_rest(pairs, factors, groups):
    factors = {key: levels for key, levels in factors.items() if key not in "ab"}
    groups = {group: keys | {"a", "b"} for group, keys in groups.items()}
    rest = [value(key, *levels) for key, levels in factors.items()]
    found = laid_out(groups, [Factor((), ("a", "b"), tuple(pairs)), *rest])
    assert {(dict(cell.values)["a"], dict(cell.values)["b"]) for cell in found} == set(pairs)
    assert len(found) == len(pairs) * len(laid_out(groups, rest))


@given(FACTORS, GROUPS, st.dictionaries(st.sampled_from([*KEYS, "group"]), LEVELS, min_size=1, max_size=2))
def test_an_exclusion_matches_exactly_the_cells_with_all_its_levels(factors, groups, named):
    rule = {key: tuple(levels) for key, levels in named.items()}
    for cell in laid_out(groups, [value(key, *own) for key, own in factors.items()]):
        at = {**dict(cell.factors), "group": cell.group}
        expected = set(itertools.product(*({at.get(key)} for key in named))) <= set(itertools.product(*named.values()))
        assert excludes(rule, at) == expected


def test_true_is_not_the_level_1_but_2_is_2_point_0():
    assert not excludes({"a": (1,)}, {"a": True})
    assert excludes({"a": (2,)}, {"a": 2.0})


def test_labels_are_the_shortest_unique_endings():
    assert short_labels(["method.gamma", "task", "method/control"]) == {
        "method.gamma": "gamma",
        "task": "task",
        "method/control": "control",
    }
    assert short_labels(["a.steps", "b.steps"]) == {"a.steps": "a.steps", "b.steps": "b.steps"}


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
            [
                *(("A", {"gamma": gamma, "steps": steps}) for gamma in (0.8, 1.2) for steps in (7, 8)),
                ("B", {"steps": 7}),
                ("B", {"steps": 8}),
            ],
        ),
    ],
)
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
    write_experiment(
        conf, TWO, factors={"method.gamma": [0.8, 1.2]}, exclude=[{"group": "A", "method.gamma": 1.2}], seeds=[0, 1]
    )
    assert by_group(make("experiment=bad", conf=conf)) == {"A": 2, "B": 2}
    assert by_group(make("experiment=bad", "method.gamma=1.2", conf=conf)) == {"B": 2}
    assert by_group(make("experiment=bad", "method.gamma=0.9,1.3", conf=conf)) == {"A": 4, "B": 2}
    assert by_group(make("experiment=bad", "experiment.exclude=[]", conf=conf)) == {"A": 4, "B": 2}


# ---------------------------------------------------------------- inheritance


def inherit(conf, parent="bnto_grid", **experiment):
    body = {"defaults": [parent, "_self_"], "experiment": {"name": "child", **experiment}}
    (conf / "experiment/child.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(body, sort_keys=False)}")


def test_an_experiment_can_inherit_another_replace_and_drop_its_parts(conf):
    inherit(
        conf,
        groups={"C2": None, "C3": {"method": "ptrw"}, "new": {"method": "gspo"}},
        factors={"method.rho": None, "method.gamma": [0.8]},
        seeds=[7],
    )
    planned = make("experiment=child", conf=conf)
    assert by_group(planned) == {"C0": 1, "C1": 8, "C3": 1, "new": 1}
    (experiment,) = planned.experiments
    assert (experiment.name, experiment.baseline, experiment.seeds) == ("child", "C0", (7,))
    assert experiment.groups["C3"] == {"label": "C3 (KL-gated)", "method": "ptrw"}
    assert set(experiment.factors) == {"method.gamma", "method.alpha_lambda", "method.beta_lr", "method.target_kl"}
    # The model, the task and the report's settings come along.
    assert {run.config["model"]["name"] for run in planned.runs.values()} == {"qwen2_5_1_5b"}
    assert experiment.analysis["primary"]["summary"] == "auc"


def test_parent_and_child_share_their_equal_runs(conf):
    inherit(conf, groups={"C2": None, "C3": None})
    both, parent = make("experiment=child,bnto_grid", conf=conf), make("experiment=bnto_grid", conf=conf)
    assert [experiment.name for experiment in both.experiments] == ["child", "bnto_grid"]
    assert set(both.runs) == set(parent.runs)


def test_what_cannot_be_inherited_is_refused_in_one_line(conf, worded):
    for declared in ({"groups": {"C4": None}}, {"factors": {"method.gama": None}}, {"groups": {"C0": None}}):
        inherit(conf, **declared)
        worded(refused("experiment=child", conf=conf))


def test_an_inherited_name_is_refused_unless_the_command_line_gives_one(conf, worded):
    body = {"defaults": ["bnto_medium", "_self_"], "trainer": {"steps": 9}}
    (conf / "experiment/child.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(body)}")
    worded(refused("experiment=child", conf=conf))
    assert make("experiment=child", "experiment.name=mine", conf=conf).experiments[0].name == "mine"
