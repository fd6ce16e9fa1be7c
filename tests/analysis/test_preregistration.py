"""The report says of each hypothesis whether it was declared before there were results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.findings.preregistration import Declaration, declared

ONE, OTHER = {"claim": "It is so.", "low": 1}, {"claim": "It is so.", "low": 2}


def record(folder: Path, *declarations: tuple[dict[str, Any], list[str]]) -> None:
    said = [{"hash": "h", "time": 0, "planned": 4, "done": done, "hypotheses": given} for given, done in declarations]
    (folder / "hypotheses.json").write_text(json.dumps({"format": 1, "declarations": said}))


def test_what_stands_in_the_first_declaration_was_declared_before(tmp_path: Path) -> None:
    record(tmp_path, ({"H1": ONE, "H2": ONE}, []), ({"H1": ONE, "H2": OTHER, "H3": ONE}, ["a", "b", "c"]))
    found = declared(tmp_path, {"H1": ONE, "H2": OTHER, "H3": ONE, "H4": ONE})
    assert found == {
        "H1": Declaration(0, 4),
        "H2": Declaration(3, 4),
        "H3": Declaration(3, 4),
    }


def test_a_first_declaration_beside_results_was_not_before(tmp_path: Path) -> None:
    record(tmp_path, ({"H1": ONE}, ["a"]))
    assert declared(tmp_path, {"H1": ONE}) == {"H1": Declaration(1, 4)}


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"declarations": [3]}', '{"declarations": 3}'])
def test_an_absent_or_broken_record_records_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "hypotheses.json").write_text(text)
    assert declared(tmp_path, {"H1": ONE}) == {}
