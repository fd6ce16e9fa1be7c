"""Whether each hypothesis was declared before there were results; older records have only these."""

from __future__ import annotations

from typing import Any

from analysis.spec.declaration import Declaration, registration

ONE, OTHER = {"claim": "It is so.", "low": 1}, {"claim": "It is so.", "low": 2}


def declared(hypotheses: dict[str, Any], *declarations: tuple[dict[str, Any], list[str]]) -> dict[str, tuple[int, int]]:
    said = [{"hash": "h", "time": 0, "planned": 4, "done": done, "hypotheses": given} for given, done in declarations]
    found = registration(said, {"command": "", "analysis": {"hypotheses": hypotheses}}, Declaration(4, 4))
    assert found is not None and found.plan is found.declared is None
    return {name: found.declaration_of(name) for name in hypotheses}


def test_what_stands_in_the_first_declaration_was_declared_before() -> None:
    first, second = ({"H1": ONE, "H2": ONE}, []), ({"H1": ONE, "H2": OTHER, "H3": ONE}, ["a", "b", "c"])
    found = declared({"H1": ONE, "H2": OTHER, "H3": ONE, "H4": ONE}, first, second)
    assert found == {"H1": (0, 4), "H2": (3, 4), "H3": (3, 4), "H4": (4, 4)}


def test_a_first_declaration_beside_results_was_not_before() -> None:
    assert declared({"H1": ONE}, ({"H1": ONE}, ["a"])) == {"H1": (1, 4)}


def test_the_last_declaration_before_results_counts() -> None:
    assert declared({"H1": ONE}, ({"H1": ONE}, []), ({"H1": OTHER}, []), ({"H1": ONE}, ["a"])) == {"H1": (1, 4)}


def test_without_a_declaration_nothing_is_recorded() -> None:
    assert registration([], {"command": "", "analysis": {}}, Declaration(0, 4)) is None
