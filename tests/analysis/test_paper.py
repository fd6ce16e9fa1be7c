"""The report for a paper: what is in its folder, and that LaTeX takes it as it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from tests.analysis import qstar
from tests.analysis.conftest import MakeSweep, Reported, replan, reported, sweeps_in, without
from tests.analysis.test_report import compiled, contents


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The paper on a sweep whose names need escaping, with a run that is not there, and tables longer than a page."""

    def change(plan: dict[str, Any]) -> None:
        plan |= {"experiment": "50%_of_{α} & more", "command": "python launch.py -m 'experiment=x' a.b=[1,2] c=$HOME"}
        plan["groups"]["q_star"]["label"] = "q* \\ łąka #1 ~ é 中"
        plan["analysis"]["metrics"] += ["qstar/ess_t", "qstar/ess_theta"]

    folder = replan(qstar.make(sweeps_in(tmp_path_factory.mktemp("paper"))), change)
    return reported(without(folder, "dpo-2"), "--format", "paper")


def test_paper_has_all_tables_and_figures_and_inputs_only_its_own(paper: Reported) -> None:
    place = paper.report / "paper"
    assert paper.printed.rstrip().endswith(f"Paper: {place / 'main.tex'}")
    source = (place / "main.tex").read_text()
    tables, drawn = re.findall(r"\\fitted\{(tables/.*?)\}", source), re.findall(r"\{(figures/.*?)\}", source)
    assert {f"{name}.tex" for name in tables} | set(drawn) | {"main.tex"} == set(contents(place))
    shown = {path.stem for path in (paper.report / "tables").glob("*.tex")}
    assert shown <= {name.removeprefix("tables/") for name in tables}
    assert {path.stem for path in (paper.report / "figures").glob("*.svg")} == {Path(name).stem for name in drawn}
    assert "dpo, seed 2: not started" in source and "\\$HOME" in source and "U+4E2D" in source
    rows = [(place / f"{name}.tex").read_text().count("\n{}") for name in tables]
    assert max(rows) <= 30 and "tables/metrics-2" in tables  # a table is no longer than a page, and none of it is lost
    longest = (paper.report / "tables" / "metrics.tex").read_text().count("\n{}")
    assert sum(n for n, name in zip(rows, tables, strict=True) if name.startswith("tables/metrics")) == longest


def test_paper_is_the_same_bytes_and_without_what_is_gone(make_sweep: MakeSweep, tmp_path: Path) -> None:
    asked = {
        "primary": qstar.ANALYSIS["primary"],
        "figures": [{"scatter": ["qstar/ess_t", "qstar/ess_theta"]}],
        "hypotheses": {"H1": qstar.HYPOTHESES["H1"]},
    }
    made = make_sweep(("ppo", "q_star"), steps=qstar.STEPS, analysis=asked, lines=qstar.lines)
    first = contents(reported(made, "--format", "paper").report / "paper")
    folder = Path(shutil.copytree(made.parent, tmp_path / "again")) / made.name
    main(["report", str(folder), "--format", "paper"])
    assert contents(folder / "report" / "paper") == first
    replan(folder, lambda plan: plan["analysis"].update(figures=[], hypotheses={}))
    main(["report", str(folder), "--format", "paper"])
    left = set(contents(folder / "report" / "paper"))
    assert "tables/hypotheses.tex" in first and "tables/hypotheses.tex" not in left
    assert [name for name in first if "scatter" in name] and not [name for name in left if "scatter" in name]


@pytest.mark.latex
def test_paper_compiles_as_it_is(paper: Reported) -> None:
    said = compiled(paper.report / "paper" / "main.tex")
    assert "Float too large" not in said and "Overfull" not in said
