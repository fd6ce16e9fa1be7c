"""The words of a report, as the golden file holds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import Ground, Outcome, Reason
from analysis.findings.verdicts import judge
from analysis.report.headline import answer
from analysis.spec.settings import settings
from analysis.stats.dispersion import Split
from analysis.tables import wording
from analysis.tables.comparison import main
from tests.analysis.conftest import Lines, studied, sweeps_in, without
from tests.wording import Worded

UP, DOWN = "a/up", "a/down"
BASE = {"A": 1.0, "B": 1.15, "C": 1.6, "D": 1.0}
WAYS = {"metrics": [UP, DOWN], "directions": ["higher", "lower"]}
CLAIMS: list[tuple[str, dict[str, Any]]] = [
    ("range", {"group": "B", "metric": UP, "low": 0.9, "high": 1.4}),
    ("range", {"group": "B", "metric": UP, "high": 1.15}),
    ("range", {"group": "D", "metric": DOWN, "high": 1.2}),
    ("ratio", {"group": "A", "against": "B", "metric": UP, "summary": "efficiency", "at": 1.0, "at_least": 0.5}),
    ("extreme", {"group": "C", "metric": UP, "which": "greatest"}),
    ("extreme", {"group": "A", "metric": UP, "which": "least"}),
    ("between", {"group": "B", "metric": UP, "groups": ["A", "C"]}),
    ("pareto", {"group": "C", **WAYS}),
    ("pareto", {"group": "B", **WAYS}),
    ("greater", {"group": "B", "metric": UP}),
    ("greater", {"group": "C", "metric": UP, "margin": 3.0}),
    ("spread", {"group": "D", "metric": UP, "at_most": 1.5}),
    ("variation", {"group": "B", "metric": UP, "at_most": 0.05}),
    ("count", {"of": ["H1", "H2", "H3"], "at_least": 2}),
]


def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """Curves that rise to the group's height and luck; D has no DOWN and scatters, C's seed 1 ends early."""
    random = np.random.default_rng([seed, ord(group)])
    up = BASE[group] + 0.05 * np.random.default_rng(seed).standard_normal() + 0.05 * random.standard_normal()
    down = {} if group == "D" else {DOWN: float(2 - BASE[group] + 0.1 * random.standard_normal())}
    last = 25 if (group, seed) == ("C", 1) else 40
    height = 1 + 0.5 * seed if group == "D" else up
    return [{"step": s, "attempt": 1, UP: float(height * (1 - math.exp(-s / 8))), **down} for s in range(1, last + 1)]


def rendered(root: Path) -> Iterator[str]:
    """The answer, the outcomes of the main table and the verdicts, for 6 seeds and for 2."""
    hypotheses = {f"H{n}": {"claim": f"Claim {n}.", "kind": kind, **more} for n, (kind, more) in enumerate(CLAIMS, 1)}
    asked = {"primary": {"metric": UP, "direction": "higher"}, "time_to": [{"at": 1.0}], "hypotheses": hypotheses}
    for seeds in (6, 2):
        folder = sweeps_in(root / str(seeds))(tuple(BASE), range(seeds), 40, asked, lines=lines, name="golden")
        without(folder, f"B-{seeds - 1}")
        found = studied(folder)
        said = answer(found)
        yield f"# {seeds} seeds\n"
        yield from (said.question, said.result, said.certainty, *said.limits, *said.gaps, said.cost, "")
        yield from (f"{row[0]}, {row[1]}: {row[-1]}" for row in main(found).rows)
        yield ""
        for verdict in (judge(hypothesis, found) for hypothesis in found.settings.hypotheses):
            name, quantity = verdict.hypothesis.id, wording.quantity(verdict, found.sweep)
            decided = wording.decided(verdict, found.sweep, found.settings)
            yield f"{name} {verdict.verdict}. {quantity}: {wording.estimate(verdict) or '-'}. {decided}"
        yield ""


def test_a_report_is_worded_as_in_the_golden_file(tmp_path: Path, worded: Worded) -> None:
    worded(rendered(tmp_path))


def test_every_reason_has_words(tmp_path: Path) -> None:
    asked = {"hypotheses": {"H": {"claim": "It is so.", "kind": "range", "group": "A", "metric": UP, "low": 0}}}
    sweep = read_sweep(sweeps_in(tmp_path)("A", (0,), 1, asked, lines=lines))
    (hypothesis,) = settings(asked).hypotheses
    for reason in Reason:
        full = Ground(
            reason, ("A", "A"), 2, 3, 0, (1,), 0.5, (0.1, 0.9), 0.05, ("H",), Outcome.SUPPORTED, "x",
            split=Split((0, 2, 3), (1,), 0.8, 0.1),
        )  # fmt: skip
        text = wording.grounds([full], sweep, hypothesis, 0.05)
        assert text and "{" not in text, reason
