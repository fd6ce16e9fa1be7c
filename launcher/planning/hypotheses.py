"""The primary question and the hypotheses of a plan: whether its seeds can decide them, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from analysis.spec import hypothesis, precheck
from analysis.spec.registry import is_judged
from analysis.spec.settings import Settings, settings
from launcher.planning.plan import Experiment
from launcher.text import counted


def _asked(experiment: Experiment, **otherwise: str) -> Settings:
    return settings({**experiment.analysis, **otherwise}, groups=experiment.groups, baseline=experiment.baseline)


def undecidable(experiment: Experiment) -> list[dict[str, Any]]:
    """The hypotheses that the runs can neither support nor contradict, whatever they show: id, seeds, needed."""
    return list(map(asdict, precheck.undecidable(_asked(experiment), experiment.seeds_of())))


def undecidable_primary(experiment: Experiment, **otherwise: str) -> dict[str, Any] | None:
    """The comparisons of the primary measure that the runs cannot decide, whatever they show: groups, seeds, needed,
    smallest_p, comparisons. otherwise: other settings of the analysis."""
    asked = _asked(experiment, **otherwise)
    lost = precheck.undecidable_primary(asked, experiment.seeds_of(), experiment.baseline)
    return None if lost is None else asdict(lost)


def described(experiment: Experiment) -> set[str]:
    """The hypotheses that are described and not judged, so that no gate can need them."""
    by_id = {claim.id: claim for claim in _asked(experiment).hypotheses}
    return {name for name, claim in by_id.items() if hypothesis.described(claim, by_id)}


def _seeds(asked: Settings, n: int) -> str:
    """So many seeds; with `analysis.select`, those that judge, because the others choose levels."""
    return f"{counted(n, 'seed')}{' that judge (analysis.select)' if asked.select else ''}"


def warnings(experiment: Experiment) -> list[str]:
    """A line if the seeds cannot decide the primary question, one if they cannot decide hypotheses, one if either is
    about a summary that is not judged, and one if the judge has no key; each with the fix. A line for each claim about
    the variation over seeds says what it takes."""
    if not experiment.analysis:  # no question is declared
        return []
    asked = _asked(experiment)
    lines = [_primary_warning(experiment, asked), _warning(experiment, asked), _unjudged_warning(asked)]
    key = None if asked.win_rate is None else asked.win_rate.key_env
    if key is not None and not os.environ.get(key, "").strip():
        lines.append(f"analysis.win_rate.key_env = {key}: the variable is not set. Fix: export {key}=KEY")
    for claim in asked.hypotheses:
        seeds = len(experiment.seeds_of().get(claim.group, ()))
        if claim.kind == "variation" and claim.high is not None and seeds > 1:
            largest = precheck.widest_variation(seeds, claim.high, asked.alpha)
            lines.append(
                f"{claim.id} is described: with {seeds} seeds the whole interval of the variation is below "
                f"{claim.high:.2g} only where the seeds vary by {largest:.2g} of their mean or less"
            )
    return [f"{experiment.name}: {line}" for line in lines if line is not None]


def findable(experiment: Experiment, spread: float = 0.0) -> str | None:
    """What true difference in the primary measure the seeds can find; None without a comparison, or if the seeds cannot
    decide it at all, which `warnings` says. It loads SciPy.

    spread: the standard deviation of the metric's final value between repetitions of one run.
    """
    asked = _asked(experiment)
    if not is_judged(asked.summary) or undecidable_primary(experiment) is not None:
        return None
    power = precheck.findable(asked, experiment.seeds_of(), experiment.baseline)
    if power is None or power.effect is None:
        return None
    text = f"{experiment.name}: {_power(asked, power, f' in {asked.metric} ({asked.summary})')}"
    count = max(6, 2 * power.seeds)
    more = precheck.findable(asked, dict.fromkeys(experiment.seeds_of(), range(count)), experiment.baseline)
    if more is not None and more.effect is not None and asked.sequential is None and not asked.select:
        text += f". {count} seeds would detect {more.effect:.2g} sd"
    if spread and (asked.summary, asked.axis) == ("final", "steps"):
        least = power.effect * spread * (2**0.5 if power.paired else 1.0)  # a difference has the noise of two runs
        text += f". Repetitions of one run differ by {spread:.2g}, so that none below {least:.2g} is detected"
    return f"{text}. ({_unit(power)})"


def powers(experiment: Experiment) -> dict[str, str]:
    """A sentence for each hypothesis about two groups on what its seeds can detect. Loads SciPy."""
    asked, said = _asked(experiment), {}
    for name, power in precheck.findable_hypotheses(asked, experiment.seeds_of()).items():
        of_one = f"one of 1 sd with {precheck.power_at(power, 1.0):.0%} ({_unit(power)})"
        said[name] = f"{_power(asked, power)}, and {of_one}"
    timed = [claim.id for claim in asked.hypotheses if claim.target is not None and claim.id in said]
    return said | {name: f"{said[name]}; less if runs do not reach the threshold" for name in timed}


def _power(asked: Settings, power: precheck.Findable, what: str = "") -> str:
    first = f", as the first of {power.comparisons} comparisons" if power.level < asked.alpha else ""
    seeds = _seeds(asked, power.seeds)
    if power.effect is None:
        return f"{seeds} detect no difference{what} with 80% power{first}"
    size = "only very large " if power.effect >= 2.0 else "only large " if power.effect >= 0.8 else ""
    return f"{seeds} detect {size}differences{what} of {power.effect:.2g} sd or more with 80% power{first}"


def _unit(power: precheck.Findable) -> str:
    of = "the differences between seeds" if power.paired else "one method's runs"
    return f"sd: the standard deviation of {of}; test: {power.test}"


def _unjudged_warning(asked: Settings) -> str | None:
    summaries = [("the primary question", asked.summary), *((claim.id, claim.summary) for claim in asked.hypotheses)]
    about = ", ".join(f"{name} ({summary})" for name, summary in summaries if not is_judged(summary))
    rule = "described and not judged, because the best of a curve favours noise"
    return f"{about}: {rule}. Fix: choose the summary final, auc or time_to" if about else None


def _fewest(asked: Settings) -> tuple[Mapping[str, str], str]:
    """The settings that need the fewest seeds, and how a warning names them."""
    fewest = precheck.FEWEST_SEEDS[asked.pairing]
    words = " ".join(f"analysis.{key}={value}" for key, value in fewest.items())
    return fewest, f", or {words}, which assumes normal {'differences' if 'paired_t' in words else 'values'}"


def _primary_warning(experiment: Experiment, asked: Settings) -> str | None:
    lost = undecidable_primary(experiment)
    if lost is None or not is_judged(asked.summary):
        return None
    about = "" if len(lost["groups"]) == lost["comparisons"] else f" for {', '.join(lost['groups'])}"
    question = f"the primary question ({asked.summary} of {asked.metric}){about}"
    text = f"{_seeds(asked, lost['seeds'])} cannot decide {question}: {lost['needed']} are needed"
    fewest, instead = _fewest(asked)
    text += instead if undecidable_primary(experiment, **fewest) is None else ""
    if lost["smallest_p"] is None:
        return text
    adjusted = f", adjusted for {lost['comparisons']} comparisons," if lost["comparisons"] > 1 else ""
    least = f"The smallest p that {counted(lost['seeds'], 'seed')} can give{adjusted} is {lost['smallest_p']:g}"
    return f"{text}. {least}; alpha = {asked.alpha:g}{', of which each look has a share' if asked.sequential else ''}"


def _warning(experiment: Experiment, asked: Settings) -> str | None:
    """One line that names the undecidable hypotheses, and what would make them decidable."""
    if not (lost := precheck.undecidable(asked, experiment.seeds_of())):
        return None
    seeds, most = _seeds(asked, min(claim.seeds for claim in lost)), max(claim.needed for claim in lost)
    text = f"{seeds} cannot decide {', '.join(claim.id for claim in lost)}: {most} are needed"
    fewest, instead = _fewest(asked)
    left = precheck.undecidable(_asked(experiment, **fewest), experiment.seeds_of())
    text += instead if len(left) < len(lost) else ""
    if left and len(left) < len(lost):
        names = ", ".join(claim.id for claim in left)
        text += f"; {names} would then need {max(claim.needed for claim in left)}"
    return text
