"""Model sizes: how the difference of each group to the baseline changes with the size of the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell
from analysis.findings.study import Study
from analysis.sections.grid import HEADS
from analysis.spec.cell import grouped
from analysis.spec.metric_catalog import capital
from analysis.stats import compare
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import format_estimate, format_level, format_p
from analysis.tables import wording
from analysis.tables.comparison import better
from analysis.tables.table import Entry, Table, ends, table

_ALIKE = 1.1
PARAMETERS = "parameters"  # key of the policy's size in a run's summary


def sizes_table(study: Study) -> Table | None:
    """A row for each group at each size that it shares with the baseline, then one for the slope. None where the runs
    do not report two model sizes, no group is the baseline, or seeds are not paired: no line over sizes then has
    differences of one seed."""
    sweep, settings, measure = study.sweep, study.settings, study.primary.measure
    known, models = _known(study)
    baseline = sweep.baseline
    if len(models) < 2 or baseline is None or settings.pairing != "seed":
        return None
    test, alpha = settings.test_of(measure.summary), settings.alpha
    entries: list[Entry] = []

    def add(group: str, size: float | None, contrast: Contrast, remark: str) -> None:
        name = "slope, a tenfold" if size is None else " ".join(filter(None, (short(size), models[size])))
        value, interval, p = contrast.difference, contrast.interval(alpha), contrast.p()
        row = (
            sweep.label(group), name, str(contrast.n), format_estimate(value, interval, signed=True) or "-",
            "" if size is None else better(contrast, measure), format_p(p, alpha) or "-", remark,
        )  # fmt: skip
        record = {
            "metric": measure.metric, "summary": measure.summary, "group": group, "parameters": size,
            "pairs": contrast.n, "quantity": "slope" if size is None else "difference", "value": value,
            **ends(interval), "p": p,
        }  # fmt: skip
        entries.append((group, row, record))

    base = _kept(study, baseline, known)
    for group in sweep.groups if base else ():
        kept = _kept(study, group, known) if group != baseline else {}
        both = [size for size in models if size in kept and size in base]
        pairs = {size: cells.pair(kept[size], base[size], (group, baseline)) for size in both}
        used = {size: pair for size, pair in pairs.items() if pair.seeds}
        if len(used) < 2:
            continue
        for size, pair in pairs.items():
            contrast = Contrast(test, np.array(pair.a), np.array(pair.b), settings.seed)
            add(group, size, contrast, "; ".join(f"seed {seed}: {why}" for seed, why in pair.lost.items()))
        each = [dict(zip(pair.seeds, zip(pair.a, pair.b, strict=True), strict=True)) for pair in used.values()]
        seeds = sorted({seed for by_seed in each for seed in by_seed})
        whole = [seed for seed in seeds if all(seed in by_seed for by_seed in each)]
        values = np.array([[by_seed[seed] for seed in whole] for by_seed in each]).reshape(len(used), len(whole), 2)
        slopes = compare.slopes(list(used), values[..., 0].T, values[..., 1].T)
        lacking = f"{len(seeds) - len(whole)} of {len(seeds)} seeds lack a size: they have no slope"
        contrast = Contrast(test, slopes, np.zeros(slopes.size), settings.seed)
        add(group, None, contrast, lacking if len(whole) < len(seeds) else "")
    notes = (
        f"{capital(measure.title)}: difference to {sweep.label(baseline)} over the same seeds at each size, with its "
        f"{format_level(alpha)} interval, by {wording.test_name(test)}. Sizes are the policy's parameters, as its runs "
        "counted them.",
        "Slope: how much the difference grows with ten times the parameters. It is the mean over seeds of the slope of "
        "a least-squares line over the logarithm of the parameters. No p is adjusted for the number of comparisons.",
    )
    columns = ("method", "size", "pairs", "difference", "better in", HEADS[test], "remark")
    return table("sizes", "Model sizes", columns, entries, notes)


def _known(study: Study) -> tuple[dict[tuple[str, Cell], float], dict[float, str]]:
    """The model size of each group's cells, and the name of the model of each size, increasing.

    Sizes within a tenth count as one, because another task has another vocabulary. A cell whose runs do not report a
    size gets that of the model of the same name.
    """
    told: dict[tuple[str, Cell], float] = {}
    for run in study.sweep.runs:
        count = run.summary.get(PARAMETERS)
        if isinstance(count, (int, float)) and not isinstance(count, bool) and count > 0:
            told[run.group, run.cell] = float(count)
    classes: list[float] = []
    for size in sorted(told.values()):
        if not classes or size > _ALIKE * classes[-1]:
            classes.append(size)
    known = {key: max(limit for limit in classes if limit <= size) for key, size in told.items()}
    named = {model: size for (_, cell), size in known.items() if (model := dict(cell).get("model")) is not None}
    for run in study.sweep.runs:
        model = dict(run.cell).get("model")
        if model in named:
            known.setdefault((run.group, run.cell), named[model])
    of = {size: str(model) for model, size in named.items()}
    return known, {size: of.get(size, "") for size in classes}


def _kept(study: Study, group: str, known: Mapping[tuple[str, Cell], float]) -> dict[float, cells.Cells]:
    """A group's cells by model size."""
    of = grouped((known[group, run.cell], run) for run in study.sweep.runs_of(group) if (group, run.cell) in known)
    return {size: cells.keep_runs(runs, study.primary.values) for size, runs in sorted(of.items())}


def short(count: float) -> str:
    """A number of parameters as people write it: 124M."""
    for power, letter in ((9, "B"), (6, "M"), (3, "K")):
        if count >= 10**power:
            return f"{count / 10**power:.3g}{letter}"
    return f"{count:.3g}"
