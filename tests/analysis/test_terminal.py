"""The answer on a terminal: one screen, whatever its width, and every row on one line."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from analysis.findings.verdicts import judge
from analysis.report import Report, paper, terminal
from analysis.report.headline import answer
from analysis.spec.settings import REWARD
from analysis.tables.comparison import tables
from tests.analysis.conftest import ANALYSIS, MakeSweep, replan, studied, without


def test_the_answer_fits_on_a_screen(make_sweep: MakeSweep) -> None:
    folder = make_sweep()
    for name in ("C1-1", "PTRW-0", "PTRW-1", "PTRW-2"):
        without(folder, name)
    written = reported(folder)
    value, difference = next(row for row in written.tables[0].rows if row[1] == "C1 (BNTO minimal)")[3:5]
    for width in (80, 100, 120):
        lines = shown(written, width)
        assert len(lines) <= 40 and max(len(line) for line in lines[:-1]) <= width
        (row,) = [line for line in lines if line.startswith("C1 (BNTO minimal)  ") and difference in line]
        assert value in row or width == 80
        assert any("* The brackets hold, for a mean, its 95% t interval" in line for line in lines)
        assert any("Missing: 1 more" in line for line in lines)
        assert lines[-1] == str(written.index)


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


def test_a_verdict_that_all_share_is_said_once(make_sweep: MakeSweep) -> None:
    asked = {**ANALYSIS, "test": "signflip", "family": "max_t"}
    lines = shown(reported(make_sweep(analysis=asked)), 80)
    assert "Every verdict: cannot decide with n = 3: 6 seeds are needed" in lines
    (head,) = [line for line in lines if line.startswith("method")]
    assert "verdict" not in head


def test_the_verdicts_of_hypotheses_are_shown(make_sweep: MakeSweep) -> None:
    asked = {"claim": "The reward is positive.", "kind": "range", "group": "C0", "metric": REWARD, "low": 0.0}
    found = reported(make_sweep(analysis={**ANALYSIS, "hypotheses": {"H1": asked}}))
    verdict = judge(found.study.settings.hypotheses[0], found.study)
    assert f"H1 {verdict.verdict}: The reward is positive." in shown(replace(found, verdicts=(verdict,)), 80)


def test_methods_without_a_baseline_are_not_called_alone(make_sweep: MakeSweep) -> None:
    folder = make_sweep(analysis={"primary": ANALYSIS["primary"]})
    lines = shown(reported(replan(folder, lambda plan: plan.update(baseline=None))), 200)
    said = "No baseline is declared (experiment.baseline), so no method is compared with another."
    assert any(line.endswith(said) for line in lines)
    assert not any("erdict" in line for line in lines)


def reported(folder: Path) -> Report:
    found = studied(folder)
    return Report(folder / "report/index.html", found, answer(found), tuple(tables(found)), (), (), (), None)


def shown(written: Report, width: int) -> list[str]:
    out = io.StringIO()
    terminal.show(written, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]
