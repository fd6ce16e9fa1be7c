"""Model sizes: the results of each group at every size, and how its difference to the baseline changes with the
size."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell, Run
from analysis.figures.canvas import DOT, INK, Sketch, colours, diamond, legend, panels_of
from analysis.figures.traces import Array
from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_level, format_p
from analysis.spec.metric_catalog import capital
from analysis.stats import scaling, t_test
from analysis.stats.compare import PairedResult
from analysis.stats.scaling import SizeTrend
from analysis.tables.comparison import better
from analysis.tables.table import Entry, Table, ends, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALIKE = 1.1
_APART = 1.06  # methods side by side at one size, a factor
_ASIDE = 1.03  # seeds beside their mean
_LETTERS = 34  # in a line of a y axis' label
PARAMETERS = "parameters"  # key of the policy's size in a run's summary


@dataclass(frozen=True)
class Sizes:
    """An experiment over model sizes, on the primary measure.

    models[size]: the model's name in the plan, or "". values[group][size]: one number per seed. trends and
    differences[group][size]: of each group that shares two or more sizes with the baseline; lost: its seeds without a
    difference, with the reason. censored: whether the values are times, which may be cut at the budget, so that no t
    interval is valid. notes: sizes without a pair.
    """

    models: Mapping[float, str]
    values: Mapping[str, Mapping[float, Array]]
    differences: Mapping[str, Mapping[float, Array]]
    lost: Mapping[str, Mapping[float, str]]
    trends: Mapping[str, SizeTrend]
    censored: bool
    notes: tuple[str, ...]


def sizes(study: Study) -> Sizes | None:
    """None where the runs do not report at least two model sizes."""
    sweep, settings, measure = study.sweep, study.settings, study.primary.measure
    known, models = _known(study)
    if len(models) < 2:
        return None
    kept = {group: _kept(study, group, known) for group in sweep.groups}
    values = {
        group: {size: np.array([*cells.means(k).values()]) for size, k in by_size.items() if k.seeds}
        for group, by_size in kept.items()
    }
    base = kept.get(str(sweep.baseline), {})
    trends, differences, lost = {}, {}, {}
    notes = []
    for group, by_size in kept.items():
        by_seed = study.settings.pairing == "seed"  # else no line over sizes has differences of one seed
        shared = [size for size in models if by_seed and group != sweep.baseline and size in by_size and size in base]
        pairs = {size: cells.pair(by_size[size], base[size], (group, str(sweep.baseline))) for size in shared}
        for size in [size for size in shared if not pairs[size].seeds]:
            why = "; ".join(f"seed {seed}: {reason}" for seed, reason in pairs.pop(size).lost.items())
            notes.append(f"{sweep.label(group)}, {short(size)} {models[size]}: no pair ({why})")
        if len(pairs) > 1:
            seeds = sorted({seed for pair in pairs.values() for seed in pair.seeds})
            a, b = np.full((2, len(seeds), len(pairs)), np.nan)
            for column, pair in enumerate(pairs.values()):
                rows = [seeds.index(seed) for seed in pair.seeds]
                a[rows, column], b[rows, column] = pair.a, pair.b
            lost[group] = {
                size: "; ".join(f"seed {seed}: {why}" for seed, why in pair.lost.items())
                for size, pair in pairs.items()
            }
            differences[group] = {size: np.subtract(pair.a, pair.b) for size, pair in pairs.items()}
            direction = measure.better or "higher"
            trends[group] = scaling.size_trend(
                list(pairs), a, b, settings.alpha, direction=direction, seed=settings.seed
            )
    censored = study.primary.measure.summary == "time_to"
    return Sizes(models, values, differences, lost, trends, censored, tuple(notes))


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
    of: dict[float, list[Run]] = {}
    for run in study.sweep.runs:
        if run.group == group and (group, run.cell) in known:
            of.setdefault(known[group, run.cell], []).append(run)
    return {size: cells.keep_runs(runs, study.primary.values) for size, runs in sorted(of.items())}


def sizes_table(study: Study, compared: Sizes) -> Table:
    """A row for each group and size, then one for the slope."""
    alpha, measure = study.settings.alpha, study.primary.measure
    entries: list[Entry] = []

    def add(group: str, size: float | None, result: PairedResult | SizeTrend, remark: str) -> None:
        paired = isinstance(result, PairedResult)
        value = result.mean_difference if isinstance(result, PairedResult) else result.slope
        interval, p_t = (None, None) if compared.censored else (result.interval, result.p_t)
        name = "slope, a tenfold" if size is None else " ".join(filter(None, (short(size), compared.models[size])))
        row = (
            study.sweep.label(group), name, str(result.n), format_estimate(value, interval, signed=True) or "-",
            better(result, measure) if isinstance(result, PairedResult) else "", format_p(p_t, alpha) or "-",
            format_p(result.p_signflip, alpha) or "-", remark,
        )  # fmt: skip
        record = {
            "metric": measure.metric, "summary": measure.summary, "group": group, "parameters": size,
            "pairs": result.n, "quantity": "difference" if paired else "slope", "value": value, **ends(interval),
            "p_t": p_t, "p_signflip": result.p_signflip,
        }  # fmt: skip
        entries.append((group, row, record))

    for group, trend in compared.trends.items():
        for size, result in zip(trend.sizes, trend.at, strict=True):
            add(group, size, result, compared.lost[group][size])
        add(group, None, trend, trend.reason or "")
    baseline = study.sweep.label(str(study.sweep.baseline))
    notes = [
        f"{capital(measure.title)}: difference to {baseline} over the same seeds at each size, with its "
        f"{format_level(alpha)} t interval. Sizes are the policy's parameters, as its runs counted them.",
        "Slope: how much the difference grows with ten times the parameters. It is the mean over seeds of the slope of "
        "a least-squares line over the logarithm of the parameters. Neither p is adjusted for the number of "
        "comparisons.",
    ]
    notes += [f"{note}." for note in compared.notes]
    if compared.censored:
        notes.append("Times may be cut at the budget, so t intervals would not be valid.")
    columns = ("method", "size", "pairs", "difference", "better in", "p paired t", "p sign-flip", "remark")
    return table("sizes", "Model sizes", columns, entries, notes)


def sizes_figure(study: Study, compared: Sizes) -> Sketch:
    """The results of each group at each size and, where known, the difference to the baseline."""
    sweep, measure = study.sweep, study.primary.measure
    groups = [group for group in sweep.groups if compared.values[group]]
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = sweep.label(str(sweep.baseline))
    panels: list[tuple[str, Mapping[str, Mapping[float, Array]]]] = [(measure.with_unit, compared.values)]
    if compared.differences:
        panels.append((f"difference to {baseline}{unit}", compared.differences))
    canvas, drawn = panels_of(7.0, 3.1, len(panels), common=False)
    for number, (axes, (label, values)) in enumerate(zip(drawn, panels, strict=True)):
        for index, group in enumerate(groups):
            aside = _APART ** (index - (len(groups) - 1) / 2)
            _points(axes, study, compared, group, values.get(group, {}), (number, aside))
        axes.set_xscale("log")
        axes.set_xticks(list(compared.models), [short(size) for size in compared.models])
        axes.minorticks_off()
        axes.margins(x=0.08)
        axes.set_ylabel(textwrap.fill(label, _LETTERS))
        if number:
            axes.axhline(0, color=INK, linewidth=0.9)
    canvas.supxlabel("parameters of the model", fontsize=9)
    look = colours(sweep.groups)
    entries = [(sweep.label(g), {"color": look[g][0], "marker": "D", "linestyle": "none"}) for g in groups]
    canvas.set_figheight(3.0 + 0.2 * legend(canvas, "upper", entries))
    also = f" On the right, the difference to {baseline} over the same seeds." if compared.differences else ""
    caption = (
        f"{capital(measure.title)} against the size of the model, on a logarithmic scale: mean over seeds (diamond) "
        f"with its {format_level(study.settings.alpha)} t interval, each seed as a dot; methods stand side by side at "
        f"one size.{also}"
    )
    return Sketch("sizes", "Model sizes", caption, canvas)


def _points(
    axes: Axes, study: Study, compared: Sizes, group: str, values: Mapping[float, Array], where: tuple[int, float]
) -> None:
    """Draw a group's numbers at each size in one panel."""
    panel, aside = where
    colour = colours(study.sweep.groups)[group][0]
    means = {size * aside: float(numbers.mean()) for size, numbers in values.items()}
    joined = list(means), list(means.values())
    axes.plot(*joined, color=colour, linewidth=1.0, alpha=0.6, gid=f"join{panel}--{group}")
    for number, ((size, numbers), (x, mean)) in enumerate(zip(values.items(), means.items(), strict=True)):
        role = f"{panel * 100 + number}--{group}"
        beside, look = [x * _ASIDE] * numbers.size, {"color": colour, **DOT}
        axes.plot(beside, numbers, "o", gid=f"dots{role}", **look)
        interval = None if compared.censored else t_test.t_interval(numbers, study.settings.alpha)
        what = " ".join(filter(None, (short(size), "parameters", compared.models[size])))
        diamond(axes, x, mean, interval, colour, role, what)


def short(count: float) -> str:
    """A number of parameters as people write it: 124M."""
    for power, letter in ((9, "B"), (6, "M"), (3, "K")):
        if count >= 10**power:
            return f"{count / 10**power:.3g}{letter}"
    return f"{count:.3g}"
