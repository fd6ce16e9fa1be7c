"""Summaries and figures that another installed package brings, and what is refused."""

from __future__ import annotations

import csv
import importlib
import re
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.data.sweep import BadPlan
from analysis.spec import registry
from analysis.spec.settings import settings
from launcher.config import installed_parts
from tests.analysis.conftest import ANALYSIS, MakeSweep

REWARD = "analysis/reward_sum_mean"
MODULE = """
from analysis.figures.canvas import Sketch, canvas_of
from analysis.spec.registry import figure, summary

@summary("swing", "range of values")
def swing(curve):
    return float(curve.inside.values.max() - curve.inside.values.min())

@figure("ends")
def ends(study, picture):
    canvas, axes = canvas_of(4.0, 3.0)
    axes.set(xlabel="seed", ylabel=picture.metrics[0])
    curves = study.ranges[picture.metrics[0]].curves
    for run in study.sweep.runs:
        if run.id in curves:
            end = curves[run.id][1][-1:]
            axes.plot([run.seed], end, "o", gid=f"end.{run.seed}--{run.group}", label=f"seed {run.seed}")
    return Sketch(picture.name, "Last values", "The last value of each run.", canvas)
"""


@pytest.fixture(autouse=True)
def known_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it, and nothing of ours is."""
    registry.figure_of("curves")
    registry.figure_of("histogram")  # the kinds of this package, which are registered once, stay after the test
    monkeypatch.setattr(registry, "_summaries", dict(registry._summaries))
    monkeypatch.setattr(registry, "_figures", dict(registry._figures))
    registry.load.cache_clear()


def install(site: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, group: str = registry.GROUP) -> None:
    """Put a package with an entry point where pip would, and make Python look there."""
    (site / f"{name}.py").write_text(module)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
    monkeypatch.syspath_prepend(site)


def test_a_report_has_the_summary_and_the_figure_of_another_package(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "swinging", MODULE)
    assert "swinging" in installed_parts.packages()  # whose files in conf/ are read, and which a launch copies
    claim = {"claim": "It swings.", "kind": "range", "group": "C1", "metric": REWARD, "summary": "swing", "low": 0.0}
    asked = {**ANALYSIS, "figures": [{"ends": [REWARD]}], "hypotheses": {"H": claim}}
    folder = make_sweep(("C0", "C1"), steps=20, analysis=asked)
    assert main(["report", str(folder)]) == 0
    with open(folder / "report" / "tables" / "hypotheses.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["verdict"] == "not judged" and row["quantity"].startswith(
        "range of values of mean reward of drawn responses of"
    )
    assert 0.2 < float(row["estimate"]) < 0.8
    page = (folder / "report" / "index.html").read_text()
    assert (folder / "report" / "figures" / "ends_analysis_reward_sum_mean.svg").is_file() and "Last values" in page
    with open(folder / "report" / "figures" / "ends_analysis_reward_sum_mean.csv", newline="") as file:
        assert all(0 < float(row["y"]) <= 1 for row in csv.DictReader(file))


def test_a_name_that_nobody_registers_is_refused_with_those_that_exist() -> None:
    claim = {"claim": "x", "kind": "range", "group": "A", "metric": REWARD, "summary": "swing", "low": 0}
    with pytest.raises(BadPlan, match=r"summary = 'swing': must be one of final, auc, .*, largest_change"):
        settings({"hypotheses": {"H": claim}})
    with pytest.raises(BadPlan, match=r"figures"):
        settings({"figures": [{"ends": [REWARD]}]})


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "broken", "import does_not_exist")
    with pytest.raises(BadPlan, match=r"broken: its entry point broken = broken .* No module named 'does_not_exist'"):
        registry.load()


@pytest.mark.parametrize(
    ("module", "what", "ours"),
    [
        (MODULE.replace('"swing"', '"final"'), "summary final", "analysis.spec.summaries.final ("),
        (MODULE.replace('"ends"', '"scatter"'), "kind of figure scatter", "analysis.figures.scatter."),
    ],
)
def test_a_name_that_is_registered_twice_is_refused_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, what: str, ours: str
) -> None:
    name = f"second_{what.split()[-1]}"
    install(tmp_path, monkeypatch, name, module)
    with pytest.raises(BadPlan) as refused:
        registry.load()
    said = str(refused.value)
    assert f"{what}: registered twice, by {ours}" in said and said.endswith("Fix: rename one of them")
    assert re.search(rf" and {name}\.\w+ \({re.escape(str(tmp_path))}/{name}\.py:\d+\)", said)


def test_a_module_that_is_loaded_again_may_register_its_names_again() -> None:
    importlib.reload(importlib.import_module("analysis.spec.summaries"))
