"""Cells: factors multiply only the groups that read them, zips go in lockstep, exclusions leave out what they name."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from launcher.planning.design import Factor, cells, excludes, short_labels


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
    for cell in laid_out(groups, [value(key, *levels) for key, levels in factors.items()]):
        levels = {**dict(cell.factors), "group": cell.group}
        expected = set(itertools.product(*({levels.get(key)} for key in named))) <= set(
            itertools.product(*named.values())
        )
        assert excludes(rule, levels) == expected


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
