"""The answer as it is printed, and the question in four columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.findings.verdicts import judge
from analysis.report import Report, paper, terminal
from analysis.report.headline import answer
from analysis.spec.settings import REWARD
from analysis.tables.comparison import tables
from tests.analysis.conftest import ANALYSIS, MakeSweep, replan, studied


def test_what_is_decided_comes_in_the_first_three_lines(make_sweep: MakeSweep) -> None:
    written = reported(make_sweep())
    first = [written.answer.question, written.answer.result, written.answer.certainty]
    assert terminal.text(written).splitlines()[:3] == first and "Measured to step 60." in first[1]
    main_tex = paper.main_tex(written, [])
    assert [main_tex.index(text[:30]) for text in (*first, *written.answer.points)] == sorted(
        main_tex.index(text[:30]) for text in (*first, *written.answer.points)
    )


def test_a_paper_has_the_question_in_four_columns(make_sweep: MakeSweep) -> None:
    (table,) = [table for table in tables(studied(make_sweep(seeds=range(6)))) if table.name == "paper"]
    unit = "final value of mean reward of drawn responses (per response)"
    assert table.columns == ("method", "seeds", unit, "difference") and len(table.rows) == 4
    assert table.rows[0][3] == "" and all(" (p " in row[3] for row in table.rows[1:])
    assert table.notes[0].endswith("p adjusted for 3 comparisons.") and table.notes[1] == "Measured to step 60."


def test_the_verdicts_of_hypotheses_are_shown(make_sweep: MakeSweep) -> None:
    asked = {"claim": "The reward is positive.", "kind": "range", "group": "C0", "metric": REWARD, "low": 0.0}
    found = reported(make_sweep(analysis={**ANALYSIS, "hypotheses": {"H1": asked}}))
    verdict = judge(found.study.settings.hypotheses[0], found.study)
    assert f"H1 {verdict.verdict}: The reward is positive." in terminal.text(replace(found, verdicts=(verdict,)))


def test_methods_without_a_baseline_are_not_called_alone(make_sweep: MakeSweep) -> None:
    folder = make_sweep(analysis={"primary": ANALYSIS["primary"]})
    lines = terminal.text(reported(replan(folder, lambda plan: plan.update(baseline=None)))).splitlines()
    said = "No baseline is declared (experiment.baseline), so no method is compared with another."
    assert any(line.endswith(said) for line in lines)
    assert not any("erdict" in line for line in lines)


def reported(folder: Path) -> Report:
    found = studied(folder)
    return Report(folder / "report/index.html", found, answer(found), tuple(tables(found)), (), (), (), None)
