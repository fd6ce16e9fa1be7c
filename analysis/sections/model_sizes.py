"""Model sizes: what each group reaches at every size, and how its difference to the baseline changes with the size."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell, Run
from analysis.figures.canvas import INK, Sketch, colours, legend, panels_of
from analysis.figures.traces import Array
from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_p
from analysis.spec.metric_catalog import capital
from analysis.stats import scaling, t_test
from analysis.stats.scaling import SizeTrend
from analysis.tables.comparison import Table, better

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALIKE = 1.1
_APART = 1.06  # methods side by side at one size, a factor
_ASIDE = 1.03  # seeds beside their mean
_LETTERS = 34  # in a line of a y axis' label
PARAMETERS = "parameters"  # of the policy, in a run's summary


@dataclass(frozen=True)
class Sizes:
    """An experiment over model sizes, on the primary measure.

    models[size]: what the plan calls the model, "" where it does not. values[group][size]: a number a seed. trends and
    differences[group][size]: of each group that shares two sizes or more with the baseline; lost: the seeds that have
    none there, with the reason. censored: whether some values are times cut at the budget, of which no t interval is
    right. notes: sizes without a pair.
    """

    models: Mapping[float, str]
    values: Mapping[str, Mapping[float, Array]]
    differences: Mapping[str, Mapping[float, Array]]
    lost: Mapping[str, Mapping[float, str]]
    trends: Mapping[str, SizeTrend]
    censored: bool
    notes: tuple[str, ...]


def sizes(study: Study) -> Sizes | None:
    """None where the runs do not tell two sizes of their models."""
    sweep, settings, measure = study.sweep, study.settings, study.primary.measure
    known, models = _known(study)
    if len(models) < 2:
        return None
    kept = {group: _kept(study, group, known) for group in sweep.groups}
    values = {
        group: {size: np.array(list(cells.means(one).values())) for size, one in own.items() if one.seeds}
        for group, own in kept.items()
    }
    base = kept.get(str(sweep.baseline), {})
    trends, differences, lost = {}, {}, {}
    notes = []
    for group, own in kept.items():
        shared = [size for size in models if group != sweep.baseline and size in own and size in base]
        pairs = {size: cells.pair(own[size], base[size], (group, str(sweep.baseline))) for size in shared}
        for size in [size for size in shared if not pairs[size].seeds]:
            why = "; ".join(f"seed {seed}: {reason}" for seed, reason in pairs.pop(size).lost.items())
            notes.append(f"{sweep.label(group)}, {short(size)} {models[size]}: no pair ({why})")
        if len(pairs) > 1:
            seeds = sorted({seed for found in pairs.values() for seed in found.seeds})
            a, b = np.full((2, len(seeds), len(pairs)), np.nan)
            for place, found in enumerate(pairs.values()):
                rows = [seeds.index(seed) for seed in found.seeds]
                a[rows, place], b[rows, place] = found.a, found.b
            lost[group] = {
                size: "; ".join(f"seed {seed}: {why}" for seed, why in found.lost.items())
                for size, found in pairs.items()
            }
            differences[group] = {size: np.subtract(found.a, found.b) for size, found in pairs.items()}
            direction = measure.better or "higher"
            trends[group] = scaling.size_trend(
                list(pairs), a, b, settings.alpha, direction=direction, seed=settings.seed
            )
    censored = any(value.reached is False for value in study.primary.values.values())
    return Sizes(models, values, differences, lost, trends, censored, tuple(notes))


def _known(study: Study) -> tuple[dict[tuple[str, Cell], float], dict[float, str]]:
    """The size of each group's cells, and what the plan calls the model of each size, increasing.

    Sizes within a tenth are one: another task has another vocabulary. A cell of which no run tells its size has that of
    its model's name.
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
    known = {key: max(one for one in classes if one <= size) for key, size in told.items()}
    named = {model: size for (_, cell), size in known.items() if (model := dict(cell).get("model")) is not None}
    for run in study.sweep.runs:
        model = dict(run.cell).get("model")
        if model in named:
            known.setdefault((run.group, run.cell), named[model])
    of = {size: str(model) for model, size in named.items()}
    return known, {size: of.get(size, "") for size in classes}


def _kept(study: Study, group: str, known: Mapping[tuple[str, Cell], float]) -> dict[float, cells.Kept]:
    """A group's cells by the size of their model; a run without result has that of its cell."""
    of: dict[float, list[Run]] = {}
    for run in study.sweep.runs:
        if run.group == group and (group, run.cell) in known:
            of.setdefault(known[group, run.cell], []).append(run)
    values = study.primary.values
    return {
        size: cells.keep({(run.seed, run.cell): values[run.id].value for run in runs})
        for size, runs in sorted(of.items())
    }


def sizes_table(study: Study, found: Sizes) -> Table:
    """A row a group and size, then one for the slope."""
    sweep, alpha, measure = study.sweep, study.settings.alpha, study.primary.measure
    rows, records, groups = [], [], []
    for group, trend in found.trends.items():
        for size, result in zip(trend.sizes, trend.at, strict=True):
            interval = None if found.censored else result.interval
            p = None if found.censored else result.p_t
            name = " ".join(filter(None, (short(size), found.models[size])))
            row = (sweep.label(group), name, str(result.n))
            estimate = format_estimate(result.mean_difference, interval, signed=True) or "-"
            tests = (format_p(p, alpha) or "-", format_p(result.p_signflip, alpha) or "-")
            rows.append((*row, estimate, better(result, measure), *tests, found.lost[group][size]))
            record = (size, result.n, result.mean_difference, interval, p, result.p_signflip)
            records.append(_record(study, group, *record))
            groups.append(group)
        interval, p = (None, None) if found.censored else (trend.interval, trend.p_t)
        estimate = format_estimate(trend.slope, interval, signed=True) or "-"
        tests = (format_p(p, alpha) or "-", format_p(trend.p_signflip, alpha) or "-")
        row = (sweep.label(group), "slope, a tenfold", str(trend.n))
        rows.append((*row, estimate, "", *tests, trend.reason or ""))
        records.append(_record(study, group, None, trend.n, trend.slope, interval, p, trend.p_signflip))
        groups.append(group)
    baseline = sweep.label(str(sweep.baseline))
    notes = [
        f"{capital(measure.title)}: difference to {baseline} over the same seeds at each size, with its "
        f"{100 * (1 - alpha):g}% t interval. Sizes are the policy's parameters, as its runs counted them.",
        "Slope: of the difference on the logarithm of the parameters, a least-squares line within each seed, then the "
        "mean over seeds: how much the difference grows with ten times the parameters. Neither is adjusted for the "
        "number of comparisons.",
    ]
    notes += [f"{note}." for note in found.notes]
    if found.censored:
        notes.append("Some times are cut at the budget: no t interval would hold.")
    columns = ("method", "size", "pairs", "difference", "better in", "p paired t", "p sign-flip", "remark")
    return Table("sizes", "Model sizes", columns, tuple(rows), tuple(records), tuple(notes), tuple(groups))


def _record(
    study: Study, group: str, size: float | None, n: int, value: float | None, interval: Any, p_t: Any, p_signflip: Any
) -> dict[str, Any]:
    low, high = interval or (None, None)
    measure = study.primary.measure
    return {
        "metric": measure.metric, "summary": measure.summary, "group": group, "parameters": size, "pairs": n,
        "quantity": "slope" if size is None else "difference", "value": value, "low": low, "high": high, "p_t": p_t,
        "p_signflip": p_signflip,
    }  # fmt: skip


def sizes_figure(study: Study, found: Sizes) -> Sketch:
    """What each group reaches at each size, and where it can be told its difference to the baseline."""
    sweep, measure = study.sweep, study.primary.measure
    groups = [group for group in sweep.groups if found.values[group]]
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = sweep.label(str(sweep.baseline))
    panels: list[tuple[str, Mapping[str, Mapping[float, Array]]]] = [(f"{measure.title}{unit}", found.values)]
    if found.differences:
        panels.append((f"difference to {baseline}{unit}", found.differences))
    canvas, drawn = panels_of(7.0, 3.1, len(panels), common=False)
    intervals: dict[str, tuple[Array, Array]] = {}
    for number, (axes, (label, values)) in enumerate(zip(drawn, panels, strict=True)):
        for place, group in enumerate(groups):
            aside = _APART ** (place - (len(groups) - 1) / 2)
            intervals |= _points(axes, study, found, group, values.get(group, {}), (number, aside))
        axes.set_xscale("log")
        axes.set_xticks(list(found.models), [short(size) for size in found.models])
        axes.minorticks_off()
        axes.margins(x=0.08)
        axes.set_ylabel(textwrap.fill(label, _LETTERS))
        if number:
            axes.axhline(0, color=INK, linewidth=0.9)
    canvas.supxlabel("parameters of the model", fontsize=9)
    look = colours(sweep.groups)
    entries = [(sweep.label(g), {"color": look[g][0], "marker": "D", "linestyle": "none"}) for g in groups]
    canvas.set_figheight(3.0 + 0.2 * legend(canvas, "upper", entries))
    also = f" On the right, the difference to {baseline} over the same seeds." if found.differences else ""
    caption = (
        f"{capital(measure.title)} against the size of the model, on a logarithmic scale: mean over seeds (diamond) "
        f"with its {100 * (1 - study.settings.alpha):g}% t interval, each seed as a dot; methods stand side by side at "
        f"one size.{also}"
    )
    return Sketch("sizes", "Model sizes", caption, canvas, intervals)


def _points(
    axes: Axes, study: Study, found: Sizes, group: str, values: Mapping[float, Array], where: tuple[int, float]
) -> dict[str, tuple[Array, Array]]:
    """Draw a group's numbers at each size in one panel; the interval of each mean."""
    panel, aside = where
    colour = colours(study.sweep.groups)[group][0]
    means = {size * aside: float(own.mean()) for size, own in values.items()}
    line: dict[str, Any] = {"color": colour, "linewidth": 1.0, "alpha": 0.6, "gid": f"join{panel}--{group}"}
    axes.plot(list(means), list(means.values()), **line)
    intervals = {}
    for number, ((size, own), (x, mean)) in enumerate(zip(values.items(), means.items(), strict=True)):
        role = f"{panel * 100 + number}--{group}"
        dots: dict[str, Any] = {
            "color": colour,
            "markersize": 3,
            "markeredgewidth": 0,
            "alpha": 0.5,
            "gid": f"dots{role}",
        }
        axes.plot([x * _ASIDE] * own.size, own, "o", **dots)
        interval = None if found.censored else t_test.t_interval(own, study.settings.alpha)
        if interval is not None:
            axes.plot((x, x), interval, color=colour, linewidth=1.6, gid=f"span{role}")
            intervals[f"mean{role}"] = np.array(interval[:1]), np.array(interval[1:])
        what = " ".join(filter(None, (short(size), "parameters", found.models[size])))
        axes.plot([x], [mean], "D", color=colour, markersize=4.5, gid=f"mean{role}", label=f"{what}, mean over seeds")
    return intervals


def short(count: float) -> str:
    """A number of parameters as people write it: 124M."""
    for power, letter in ((9, "B"), (6, "M"), (3, "K")):
        if count >= 10**power:
            return f"{count / 10**power:.3g}{letter}"
    return f"{count:.3g}"
