"""Summaries, figures and formats of logs: promises they keep, how another installed package brings them, refusals."""

from __future__ import annotations

import html
import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analysis.data.sweep import BadPlan, read_sweep
from analysis.sources import source
from analysis.sources.import_runs import ImportRequest, import_runs
from analysis.sources.naming import Naming
from analysis.spec import registry
from analysis.spec.settings import settings
from launcher.config import installed_parts
from tests import registered
from tests.analysis.conftest import ANALYSIS, MakeSweep, reported
from tests.analysis.source_conformance import check

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
def known_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it, and nothing of ours is."""
    registry.figure_of("curves")
    registry.figure_of("histogram")  # the kinds of this package, which are registered once, stay after the test
    source.sources()
    monkeypatch.setattr(source, "_sources", dict(source._sources))
    monkeypatch.setattr(registry, "_summaries", dict(registry._summaries))
    monkeypatch.setattr(registry, "_figures", dict(registry._figures))
    registry.load.cache_clear()
    with registered.other_packages():
        yield


def install(site: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, group: str = registry.GROUP) -> None:
    """Put a package with an entry point where pip would, and make Python look there."""
    (site / f"{name}.py").write_text(module)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
    monkeypatch.syspath_prepend(site)


@pytest.mark.parametrize("bring", [install, registered.declare])
def test_a_report_has_the_summary_and_the_figure_of_another_package(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bring: Callable[..., None]
) -> None:
    bring(tmp_path, monkeypatch, f"{bring.__name__}_swing", MODULE)
    if bring is install:
        assert "install_swing" in installed_parts.packages()  # whose files in conf/ are read, and which a launch copies
    claim = {"claim": "It swings.", "kind": "range", "group": "C1", "metric": REWARD, "summary": "swing", "low": 0.0}
    asked = {**ANALYSIS, "figures": [{"ends": [REWARD]}], "hypotheses": {"H": claim}}
    found = reported(make_sweep(("C0", "C1"), steps=20, analysis=asked))
    (row,) = found.rows("tables/hypotheses")
    assert row["verdict"] == "not judged" and 0.2 < float(row["estimate"]) < 0.8
    assert row["quantity"].startswith("range of values of mean reward of drawn responses of")
    assert (found.report / "figures" / "ends_analysis_reward_sum_mean.svg").is_file() and "Last values" in found.page
    assert all(0 < float(row["y"]) <= 1 for row in found.rows("figures/ends_analysis_reward_sum_mean"))


@pytest.mark.parametrize(
    ("swing", "why", "figure", "reason"),
    [
        ("curve.inside.values[100]", "IndexError: index 100 ", "1 / 0", "ZeroDivisionError: division by zero"),
        ('"high"', "ValueError: could not convert string to float", '"ends"', "'str' object has no attribute"),
        ("{}", "not 'dict'", "study.nothing", "'Study' object has no attribute 'nothing'"),
        ("exit(0)", "SystemExit: 0", "exit(0)", "SystemExit: 0"),
        ("curve.values", "ValueError: cannot reshape array of size 20 into", "3", "'int' object has no attribute"),
    ],
)
def test_a_summary_or_figure_of_another_package_that_fails_is_missing_with_its_place_and_nothing_else_is(
    make_sweep: MakeSweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    swing: str,
    why: str,
    figure: str,
    reason: str,
) -> None:
    module, name = re.sub(r"return float.*", f"return {swing}", MODULE), tmp_path.name  # imported once under each name
    install(tmp_path, monkeypatch, name, re.sub(r"    canvas, axes = .*", f"    return {figure}", module))
    claim = {"claim": "It swings.", "kind": "range", "group": "C1", "metric": REWARD, "summary": "swing", "low": 0.0}
    asked = {**ANALYSIS, "figures": [{"ends": [REWARD]}], "hypotheses": {"H": claim}}
    found = reported(make_sweep(("C0", "C1"), steps=20, analysis=asked))
    (row,) = found.rows("tables/hypotheses")
    assert row["verdict"] == "not evaluable" and (found.report / "figures" / "differences.svg").is_file()
    place, said = re.escape(str(tmp_path / name)), html.unescape(found.page)
    assert re.search(rf"summary swing, {name}\.swing \({place}\.py:5\): .*{re.escape(why)}", said)
    assert re.search(rf"figure ends, {name}\.ends \({place}\.py:9\): .*{re.escape(reason)}", said)


def test_the_files_of_a_figure_of_another_package_are_the_reports_and_no_other_figures(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of figures, and those of their files; None: the figure is left out."""
    curve = "curve_analysis_reward_sum_mean"
    named = {"ends of a/b.c": "ends_of_a_b.c", "../../evil": "evil", "ä" * 300: "ä" * 100, ".": None, 3: None}
    named |= {"evil": None, curve: None, "differences": None, "effects": None}
    kinds = [MODULE.replace("picture.name", repr(name)).replace('"ends"', f'"k{n}"') for n, name in enumerate(named)]
    first = MODULE[: MODULE.index("@figure")]
    install(tmp_path, monkeypatch, "naming_own", first + "\n".join(kind[kind.index("@figure") :] for kind in kinds))
    asked = {**ANALYSIS, "figures": [*({f"k{n}": [REWARD]} for n in range(len(named))), REWARD]}
    cells = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    found = reported(make_sweep(("C0", "C1"), steps=20, analysis=asked, cells={"C1": cells}))
    figures = json.loads((found.report / "report.json").read_bytes())["figures"]
    own = [name for name, about in figures.items() if about["title"] == "Last values"]
    assert own == [name for name in named.values() if name] and {curve, "differences", "effects"} <= figures.keys()
    assert all((found.report / "figures" / f"{name}.svg").is_file() for name in figures)
    lost = [line for line in html.unescape(found.page).splitlines() if "Left out: figure k" in line]
    assert "its name, 'effects', is that of another figure. Fix: rename it" in "".join(lost), lost


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


#: A format that no module of this project knows: a line for each step, `step=1 reward=0.5`.
FORMAT = """
from analysis.sources.log import Log
from analysis.sources.source import LoggedRun, names, source

@source
class PairFiles:
    kind, files, beats = "pairs", (".pairs",), ("CSV",)

    def found(self, place, step):
        root = place.resolve()
        return names(place, [root] if root.is_file() else root.rglob("*.pairs"), ending=True)

    def read(self, places, step, keys):
        for path, name in places.items():
            log = Log(path)
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("\\n"):  # a crash cut it off
                    log.unused["incomplete last line"] += 1
                    continue
                cells = dict(cell.split("=") for cell in line.split())
                log.add(int(cells.pop("step")), cells)
            log.resolve(step)
            yield LoggedRun(self.kind, name, {}, log)
"""
NAMED = Naming(match=r"(?P<group>[a-z]+)-s(?P<seed>\d)")


def test_another_package_brings_a_format_in_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, logs = tmp_path / "site", tmp_path / "logs"
    for folder in (site, logs, tmp_path / "aside"):
        folder.mkdir()
    install(site, monkeypatch, "pair_files", FORMAT, group=source.GROUP)
    for group, height in (("ppo", 1), ("dqn", 2)):
        for seed in (0, 1):
            text = "".join(f"step={step} reward={height * step + seed}\n" for step in (1, 2, 3))
            (logs / f"{group}-s{seed}.pairs").write_text(text)
    (logs / "dqn-s0.csv").write_text("step,reward\n1,9\n")  # the same run, as a format that this one beats
    assert len(check(source.sources()["pairs"], logs, tmp_path / "aside")) == 4
    into = tmp_path / "multirun" / "theirs"
    assert import_runs(ImportRequest((logs,), into, NAMED, metrics=("reward",))).groups == {"dqn": 2, "ppo": 2}
    values = {(run.group, run.seed): run.curves.values["reward"].tolist() for run in read_sweep(into).runs}
    assert values["dqn", 1] == [3, 5, 7] and values["ppo", 0] == [1, 2, 3]


def test_a_format_that_is_registered_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "second_csv", FORMAT.replace('"pairs"', '"CSV"', 1), group=source.GROUP)
    with pytest.raises(BadPlan, match=r"source CSV: registered twice, by analysis\.sources\.formats\.csv_files\.Csv"):
        source.sources()
