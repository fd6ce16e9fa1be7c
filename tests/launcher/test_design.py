"""Cells: factors multiply only the groups that read them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from launcher.design import Cell, cells, short_labels, unread

READS = {"C0": set(), "C1": {"gamma", "rho"}, "C2": {"gamma"}}


def reads(group, _choices, key):
    return key in READS[group]


def test_a_factor_multiplies_only_the_groups_that_read_it():
    found = cells(["C0", "C1", "C2"], {}, {"gamma": [1, 2], "rho": [3, 4, 5]}, reads)
    assert [cell.group for cell in found] == ["C0"] + ["C1"] * 6 + ["C2"] * 2
    assert found[0] == Cell("C0", (), ())
    assert [dict(cell.values) for cell in found[1:3]] == [{"gamma": 1, "rho": 3}, {"gamma": 1, "rho": 4}]


def test_a_choice_of_a_configuration_group_decides_which_factors_apply():
    def by_task(_group, choices, key):
        return dict(choices)["task"] == "gsm8k" and key == "task.split"

    found = cells(["A"], {"task": ["sorting", "gsm8k"]}, {"task.split": [1, 2]}, by_task)
    assert [dict(cell.factors) for cell in found] == [
        {"task": "sorting"},
        {"task": "gsm8k", "task.split": 1},
        {"task": "gsm8k", "task.split": 2},
    ]


def test_a_factor_that_nobody_reads_is_found():
    assert unread(["C0", "C1"], {}, {"gamma": [1], "sigma": [2]}, reads) == ["sigma"]


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(), min_size=1, max_size=3, unique=True), max_size=3),
    st.dictionaries(st.sampled_from("xyz"), st.sets(st.sampled_from("abc")), min_size=1),
)
def test_the_number_of_cells_is_the_product_of_the_levels_read(factors, groups):
    found = cells(list(groups), {}, factors, lambda group, _choices, key: key in groups[group])
    for group, keys in groups.items():
        expected = math.prod(len(levels) for key, levels in factors.items() if key in keys)
        assert sum(cell.group == group for cell in found) == expected
    assert len(set(found)) == len(found)


def test_labels_are_the_shortest_unique_endings():
    assert short_labels(["method.gamma", "task", "method/control"]) == {
        "method.gamma": "gamma",
        "task": "task",
        "method/control": "control",
    }
    assert short_labels(["a.steps", "b.steps"]) == {"a.steps": "a.steps", "b.steps": "b.steps"}
