"""Sweeps in the real format of run folders, with made-up metrics."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.figures.canvas import Sketch
from analysis.findings.study import Block, Ground, Reason, Study, study
from analysis.findings.verdicts import Verdict
from launcher import files
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import State, write_state

GROUPS = {"C0": "C0 (GRPO)", "C1": "C1 (BNTO minimal)", "asymmetric_clip": "asymmetric clip", "PTRW": "PTRW"}
GAIN = {"C0": 0.0, "C1": 0.05, "asymmetric_clip": 0.02, "PTRW": -0.08}
ANALYSIS: dict[str, Any] = {
    "primary": {"metric": "analysis/reward_sum_mean", "summary": "final"},
    "metrics": ["analysis/reward_sum_mean", "analysis/entropy_per_token_mean", "analysis/wH_per_token", "actor/ppo_kl"],
    "time_to": [{"baseline_final": 0.9}],
}
Lines = list[dict[str, Any]]
LinesOf = Callable[[str, int, Mapping[str, Any]], Lines]
MakeSweep = Callable[..., Path]
UP = "a/up"


def metrics(group: str, seed: int, steps: int) -> Lines:
    """Learning curves of the shape that real ones have; the seed's luck is shared by all groups."""
    random = np.random.default_rng([seed, sorted(GROUPS).index(group) if group in GROUPS else 9])
    luck = 0.04 * np.random.default_rng(seed).standard_normal()
    lines = []
    for step in range(1, steps + 1):
        noise = random.standard_normal(5)
        rise = 1 - np.exp(-3 * step / steps)
        line = {
            "step": step,
            "attempt": 1,
            "time": 1.7e9 + step,
            "analysis/reward_sum_mean": float(0.3 + (0.45 + GAIN.get(group, 0.0) + luck) * rise + 0.02 * noise[0]),
            "analysis/entropy_per_token_mean": float(0.9 - 0.5 * rise + 0.01 * noise[1]),
            "analysis/wH_per_token": float(0.02 - 0.01 * rise + 0.0005 * noise[2]),
            "actor/ppo_kl": float(0.001 * abs(noise[3])),
            "cost/step_seconds": 0.1,
        }
        lines.append(line)
    return lines


def logging(value: Callable[[str, int, Mapping[str, Any], int], Any], steps: Any = 20, metric: str = UP) -> LinesOf:
    """Lines of runs with value(group, seed, cell, step), a number or metrics by name, at each step; steps: how many, or
    which."""
    every = range(1, steps + 1) if isinstance(steps, int) else steps

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        values = ((step, value(group, seed, cell, step)) for step in every)
        return [
            {"step": step, "attempt": 1, **(one if isinstance(one, Mapping) else {metric: float(one)})}
            for step, one in values
        ]

    return lines


def write_run(multirun: Path, run_id: str, lines: Lines) -> None:
    """The folder of a run that is done, as the launcher leaves it."""
    folder = run_folder(multirun, run_id)
    folder.mkdir(parents=True)
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        metrics_path(folder).write_text(text, encoding="utf-8")
    summary = {"steps": len(lines), "train_seconds": 12.5, "samples": 256 * len(lines), "tokens": 9 * len(lines)}
    files.write_json(folder / "summary.json", {**summary, "warnings": {}})
    files.write_json(folder / "provenance.json", {"commit": "0123456789abcdef", "dirty": False})
    write_state(folder, State(run_id, "done", attempt=1, started=1.7e9, finished=1.7e9 + 9))


def refusal(error: type[Exception], call: Callable[[], object]) -> str:
    """The words of the error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def studied(folder: Path, asked: Mapping[str, Any] | None = None, **more: Any) -> Study:
    """What an experiment's report compares, by the section of its plan or by `asked`, and by further keys."""
    sweep = read_sweep(folder)
    return study(sweep, sweep.asked({**(sweep.plan["analysis"] if asked is None else asked), **more}))


def replan(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the plan of an experiment in place; its folder."""
    plan = json.loads((folder / "plan.json").read_text())
    change(plan)
    files.write_json(folder / "plan.json", plan)
    return folder


def without(folder: Path, *run_ids: str) -> Path:
    """Remove folders of runs; the folder of the experiment."""
    for run_id in run_ids:
        shutil.rmtree(run_folder(folder.parent, run_id))
    return folder


def ended(folder: Path, state: str, *run_ids: str, **fields: Any) -> Path:
    """Write how runs have ended; the folder of the experiment."""
    for run_id in run_ids:
        write_state(run_folder(folder.parent, run_id), State(run_id, state, 1, **fields))
    return folder


def block_of(study: Study, metric: str, summary: str) -> Block:
    """The block of that metric and summary."""
    return next(b for b in study.blocks if b.measure.metric == metric and b.measure.summary == summary)


def reasons(verdict: Verdict) -> list[Reason]:
    """The reasons of a verdict, in their order."""
    return [ground.reason for ground in verdict.grounds]


def ground_of(verdict: Verdict, reason: Reason) -> Ground:
    """The only ground of a verdict that has this reason."""
    (ground,) = [ground for ground in verdict.grounds if ground.reason is reason]
    return ground


@pytest.fixture(scope="session", autouse=True)
def template() -> Iterator[None]:
    """The template of the page is compiled once, and not for each of the hundreds of reports."""
    page = import_module("analysis.report.page")  # whose name in its package is that of a function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_template", cache(page._template))
        yield


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw their figures, and neither lay them out nor render them: what a test reads is elsewhere."""
    monkeypatch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda engine, canvas: None)
    monkeypatch.setattr(Sketch, "rendered", lambda sketch, suffix: b"<svg></svg>")


@pytest.fixture
def make_sweep(tmp_path: Path) -> MakeSweep:
    """make_sweep(groups, seeds, steps, analysis, cells, name) -> FOLDER of an experiment with every run done."""
    return sweeps_in(tmp_path)


def sweeps_in(root: Path) -> MakeSweep:
    """The same below a folder of one's own choice."""

    def make(
        groups: Sequence[str] = tuple(GROUPS),
        seeds: Sequence[int] = (0, 1, 2),
        steps: int = 60,
        analysis: Mapping[str, Any] = ANALYSIS,
        cells: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        name: str = "quickstart",
        lines: Callable[[str, int, Mapping[str, Any]], Lines] | None = None,
    ) -> Path:
        multirun = root / "multirun"
        runs = []
        for group in groups:
            for seed in seeds:
                for place, cell in enumerate((cells or {}).get(group, [{}])):
                    run_id = f"{group}-{seed}" + (f"-{place}" if cell else "")
                    made = lines(group, seed, cell) if lines else metrics(group, seed, steps)
                    write_run(multirun, run_id, made)
                    runs.append({"id": run_id, "group": group, "seed": seed, "factors": dict(cell)})
        plan = {
            "format": 1,
            "experiment": name,
            "command": f"python launch.py -m experiment={name}",
            "baseline": groups[0] if len(groups) > 1 else None,
            "steps": steps,
            "seeds": list(seeds),
            "groups": {group: {"label": GROUPS.get(group, group), "method": [group]} for group in groups},
            "factors": {},
            "analysis": dict(analysis),
            "runs": runs,
        }
        folder = multirun / name
        folder.mkdir()
        files.write_json(folder / "plan.json", plan)
        return folder

    return make


class Page(HTMLParser):
    """The tags of a page with their attributes, and the texts directly below tags of some kinds."""

    def __init__(self, html: str, *kinds: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._kinds, self._inside = kinds, False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag in self._kinds
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in self._kinds

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def data_of(html: str) -> dict[str, Any]:
    """The values that a page has of its figures."""
    return dict(json.loads(html.partition('id="data">')[2].partition("</script>")[0])["figures"])


@dataclass(frozen=True)
class Reported:
    """An experiment's folder with its report, and what the command printed. Shared: only to be read."""

    folder: Path
    printed: str

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def page(self) -> str:
        return (self.report / "index.html").read_text()

    @property
    def document(self) -> Any:
        return json.loads((self.report / "report.json").read_text())

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file of the report, such as tables/main."""
        with (self.report / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def reported(folder: Path, *words: str) -> Reported:
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["report", str(folder), *words]) == 0
    return Reported(folder, printed.getvalue())


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The report of a sweep as `make_sweep` makes it."""
    return reported(sweeps_in(tmp_path_factory.mktemp("plain"))())


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The report of qstar's sweep, with every kind of picture; dpo's seed 2 never began."""
    from tests.analysis import qstar

    return reported(without(qstar.make(sweeps_in(tmp_path_factory.mktemp("pictured"))), "dpo-2"))
