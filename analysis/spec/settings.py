"""What an experiment asks of its report: the section `analysis` of a configuration and of plan.json."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
)

from analysis.spec import metric_catalog
from analysis.spec.cell import Cell
from analysis.spec.figure_spec import Direction, Picture, curves
from analysis.spec.hypothesis import Declared, Hypothesis, Target, check_references, hypothesis
from analysis.spec.metric_catalog import WIN_RATE, describe
from analysis.spec.registry import NO_WINDOW, Window
from analysis.spec.validation import (
    Context,
    Listed,
    Metric,
    Section,
    check_written,
    closest,
    context_of,
    explain,
    refusal,
    refusals,
    some,
)
from analysis.stats.resolution import PAIRED, UNPAIRED

REWARD = "analysis/reward_sum_mean"
_TASK = "task"
_NAMED = 8  # levels in a rule
#: An address without a user, a password, a query and a fragment. Its parts are those that an HTTP client can use.
_ADDRESS = re.compile(
    r'(?ai)https?://(\[[0-9a-f:.]+\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?)(:(?P<port>\d{1,5}))?(/[!"$->@-~]*)?'
)


class Primary(Section):
    """The question: which summary of which metric is compared. direction: None is what is known of the metric."""

    metric: Metric = REWARD
    summary: Literal["final", "auc", "best", "time_to"] = "final"
    direction: Direction | None = Field(default=None, description="higher, lower or null (as is known of the metric)")

    @field_validator("metric")
    @classmethod
    def _is_compared(cls, metric: str, info: ValidationInfo) -> str:
        lacking = context_of(info).lacking(metric)
        if lacking:
            rule = f"the primary metric is compared between all groups, and {', '.join(lacking)} do not write it"
            raise refusal(rule, "name a metric that all groups write, such as analysis/reward_sum_mean")
        sources = (context_of(info).sources if context_of(info).baseline is not None else None) or {}
        if describe(metric).of_drawn and len({frozenset(each) for each in sources.values() if each}) > 1:
            drawn = "; ".join(f"{group}: {' or '.join(sorted(each))}" for group, each in sources.items())
            rule = f"it is of drawn responses, and the groups draw them from different policies ({drawn})"
            raise refusal(rule, "choose a metric of the policy's own responses, such as eval/reward_mean")
        return metric


class Sequential(Section):
    """Seeds that are added until the comparisons of the primary measure are decided. start: the seeds of the first
    look; batch: those that each further look adds; max: those of the last look."""

    start: int = Field(ge=2)
    batch: int = Field(2, ge=1)
    max: int = Field(ge=2, le=10_000)
    until: Literal["decided"]

    @field_validator("max")
    @classmethod
    def _not_below_start(cls, most: int, info: ValidationInfo) -> int:
        start = info.data.get("start")
        if start is not None and most < start:
            raise refusal(f"must be {start} or more, the seeds of the first look", "write {start: 4, max: 12}")
        return most


class PairSelection(Section):
    """Which pairs of responses a judge of any kind compares."""

    name: str | None = Field(
        default=None,
        pattern="^[A-Za-z0-9_]+$",
        description="letters, digits and _; null: made of what the judge is called",
    )
    design: Literal["baseline", "all"] = Field(
        default="baseline", description="baseline: every method against one; all: every two methods"
    )
    against: str | None = Field(
        default=None, min_length=1, description="the group that win rates are against; null: the baseline"
    )
    points: int = Field(
        default=1, ge=1, description="an integer 1 or more: evaluations that are judged, the last and others before it"
    )
    prompts: int | None = Field(default=None, ge=1, description="an integer 1 or more, or null: all prompts")
    max_characters: int | None = Field(
        default=None, ge=1, description="an integer 1 or more, of a pair's texts together, or null: no limit"
    )

    @field_validator("against")
    @classmethod
    def _is_a_group(cls, against: str | None, info: ValidationInfo) -> str | None:
        return None if against is None else context_of(info).group(against)


class WinRate(PairSelection):
    """How a launch has responses judged before its report, with the defaults of `python -m analysis judge`: by a
    language model; without an address, the response with the higher reward wins."""

    base_url: str | None = Field(None, description="the address of a server that speaks OpenAI's protocol, or null")
    model: str | None = Field(None, validate_default=True, description="the name that the server has for it, or null")
    key_env: str | None = Field(None, description="the environment variable that has the key, or null: no key")

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        match = _ADDRESS.fullmatch(url or "http://HOST")
        if match is None or int(match["port"] or 80) > 65_535:
            rule = "must be the http or https address of a server, without a user, a password and a query"
            fix = "write https://HOST/v1, and name the variable of a key in key_env"
            raise refusal(rule, fix, shown=not {*"@?"} & {*(url or "")})
        return url and url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _is_a_name(cls, variable: str | None) -> str | None:
        if variable is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
            rule = "must be the name of an environment variable, not the key itself"
            raise refusal(rule, "write key_env: NAME, and export NAME=KEY", shown=False)
        return variable

    @field_validator("model")
    @classmethod
    def _has_an_address(cls, model: str | None, info: ValidationInfo) -> str | None:
        if "base_url" in info.data and bool(model) != bool(info.data["base_url"]):
            raise refusal("a language model needs base_url and model", "give both, or neither: the reward then decides")
        return model


_Test = Annotated[
    Literal["paired_t", "signflip", "wilcoxon", "welch", "relabel"],
    WithJsonSchema({"enum": [*PAIRED, *UNPAIRED, None]}),
]


def _increasing(ends: tuple[float, ...]) -> tuple[float, ...]:
    if not ends[0] < ends[1]:
        raise refusal("the low reference score must be below the high one", "write [low, high]")
    return ends


#: Two scores of a task that 0 and 1 stand for, such as those of a random policy and of a person.
References = Annotated[
    Listed[float],
    Field(min_length=2, max_length=2, description="two numbers, [low, high]"),
    AfterValidator(_increasing),
]


#: The level or factor that does not exist (none if all are meant), the rule, and the fix.
_Unknown = tuple[tuple[str, ...], str, str]


def factor_of(references: Collection[str], cells: Sequence[Cell]) -> str:
    """The factor whose levels have reference scores: `task`, or if there is none, the one that has most of the
    names."""
    labels = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    if _TASK in labels or not labels:
        return _TASK
    hits = {label: len({str(dict(cell).get(label)) for cell in cells} & set(references)) for label in labels}
    return max(labels, key=lambda label: hits[label])


def _unknown_references(references: Mapping[str, object], cells: Sequence[Cell]) -> list[_Unknown]:
    """Names that are no level, and levels and runs without references."""
    factor, key = factor_of(references, cells), "analysis.normalize"
    levels = list(dict.fromkeys(str(level) for cell in cells for label, level in cell if label == factor))
    rule = f"no run has this level of {factor}; it has {some(levels, _NAMED)}"
    unknown = (name for name in references if name not in levels)
    wrong: list[_Unknown] = [((name,), rule, closest(name, levels, f"{key}.")) for name in unknown]
    for level in (level for level in levels if level not in references):
        rule = f"no reference scores of {factor} = {level}, so its scores cannot be averaged with normalised ones"
        wrong.append(((), rule, f"add {level}: [low, high]"))
    if levels and (without := sum(factor not in dict(cell) for cell in cells)):
        wrong.append(((), f"{without} of {len(cells)} runs have no level of {factor}", f"remove {key}"))
    return wrong


def _unknown_factors(factors: Collection[str], cells: Sequence[Cell]) -> list[_Unknown]:
    known = list(dict.fromkeys(label for cell in cells for label, _ in cell))
    rule = f"no run has a level of this factor; the factors are {', '.join(known) or 'none'}"
    return [((name,), rule, closest(name, known, "analysis.select.")) for name in factors if name not in known]


class Settings(Section):
    """How the runs are summarised and compared.

    pairing: whether the same seed under two methods is a pair. test: what decides, by default a t test. compare: each
    group with the baseline, or every two groups; what is compared of a measure is one family.

    metrics are compared and drawn, the primary one first; figures are only drawn. axis: what curves and times are over;
    window: a length in steps, or a number of points, of what smooths a curve. end: whether final values, areas and best
    values of a run end with the runs that it is compared with, or at its own end. normalize: for each level of the
    factor `task`, the scores of the primary metric that become 0 and 1. select: the factors of which each group is
    judged at its best level, which other seeds choose. sequential: how seeds are added, if their number depends on
    results.
    """

    primary: Primary = Primary()
    metrics: Listed[Metric] = Field((), validate_default=True, description="a list of metrics' keys")
    figures: Listed[Picture] = Field(
        (), description="a list such as [actor/lr, [critic/lr, actor/kl_init], {scatter: [actor/lr, actor/kl_init]}]"
    )
    time_to: Listed[Target] = Field(
        (), validate_default=True, description="a list of thresholds, such as [{at: 0.8}, {baseline_final: 0.9}]"
    )
    declared: Annotated[dict[str, Declared] | None, AfterValidator(check_references)] = Field(
        {}, alias="hypotheses", description="a mapping such as {H1: {claim: ..., kind: range, ...}}"
    )
    axis: Literal["steps", "samples", "seconds", "device_seconds", "flops"] = "steps"
    alpha: float = Field(0.05, gt=0, lt=1)
    pairing: Literal["seed", "none"] = "seed"
    family: Literal["holm", "max_t", "bh"] = "holm"
    compare: Literal["baseline", "all_pairs"] = "baseline"
    test: _Test = Field(None, validate_default=True, description="a test of the pairing, or null")
    incomplete: Literal["exclude", "carry"] = "exclude"
    end: Literal["common", "own"] = "common"
    window: Window | None = Field(20, description=f"a window, or null: {NO_WINDOW}")
    normalize: dict[str, References] = Field({}, description="a mapping such as {Pong: [-20.7, 14.6]}")
    select: dict[str, Literal["best"]] = Field({}, description="a mapping such as {lr: best}")
    sequential: Sequential | None = Field(None, validate_default=True, description="how seeds are added, or null")
    win_rate: WinRate | None = Field(None, description="how a launch has responses judged, or null")
    seed: int = Field(0, ge=0)

    @field_validator("sequential")
    @classmethod
    def _with_looks(cls, sequential: Sequential | None, info: ValidationInfo) -> Sequential | None:
        if sequential is None:
            return None
        primary = info.data.get("primary")
        if primary is not None and primary.metric == WIN_RATE:
            rule = f"{WIN_RATE} is judged after the runs, so a launch cannot look at it while it adds seeds"
            raise refusal(rule, "choose another primary metric, or fix the number of seeds")
        if info.data.get("family") == "max_t":
            raise refusal("family: max_t has no levels for several looks", "choose family: holm")
        if info.data.get("compare") == "all_pairs":
            rule = "with analysis.compare: all_pairs, a group would need seeds until it is told from every other"
            raise refusal(rule, "choose compare: baseline, or fix the number of seeds")
        if info.data.get("select"):
            rule = "with analysis.select, each new seed would change which seeds choose the level"
            raise refusal(rule, "leave out analysis.select, or fix the number of seeds")
        return sequential

    @field_validator("compare")
    @classmethod
    def _simultaneous(cls, compare: str, info: ValidationInfo) -> str:
        if compare == "all_pairs" and info.data.get("family") == "bh":
            rule = "family: bh bounds the share of false findings, so methods cannot be ranked by its intervals"
            raise refusal(rule, "choose family: holm or max_t")
        return compare

    @field_validator("metrics")
    @classmethod
    def _primary_first(cls, metrics: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        primary = [info.data["primary"].metric] if "primary" in info.data else []
        return tuple(dict.fromkeys([*primary, *metrics]))

    @field_validator("time_to")
    @classmethod
    def _of_primary(cls, targets: tuple[Target, ...], info: ValidationInfo) -> tuple[Target, ...]:
        primary: Primary | None = info.data.get("primary")
        if primary is None:
            return targets
        filled = tuple(target.model_copy(update={"metric": target.metric or primary.metric}) for target in targets)
        baseline = context_of(info).baseline
        for target in filled:
            if baseline is not None and target.baseline_final is not None:
                check_written(target.metric, baseline, info)
        if primary.summary == "time_to" and not any(target.metric == primary.metric for target in filled):
            rule = f"needs a threshold for {primary.metric}, because its primary summary is time_to"
            raise refusal(rule, "write [{baseline_final: 0.9}]")
        return filled

    @field_validator("test", mode="before")
    @classmethod
    def _by_default(cls, test: object, info: ValidationInfo) -> object:
        pairing, family = info.data.get("pairing"), info.data.get("family")
        # max_t flips signs, whatever the test: plans of older versions have its name beside paired_t
        if test is not None and not (family == "max_t" and pairing == "seed" and test in PAIRED):
            return test
        # benchmarks.validity has the error rates of each
        return "welch" if pairing == "none" else "signflip" if family == "max_t" else "paired_t"

    @field_validator("test")
    @classmethod
    def _of_the_pairing(cls, test: str, info: ValidationInfo) -> str:
        pairing, family = info.data.get("pairing"), info.data.get("family")
        known = UNPAIRED if pairing == "none" else PAIRED
        if pairing is not None and test not in known:
            other = "seed" if pairing == "none" else "none"
            rule = f"with analysis.pairing: {pairing}, {' or '.join(known)} is allowed"
            raise refusal(rule, f"choose one of them, or analysis.pairing: {other}")
        if pairing == "none" and family == "max_t":
            raise refusal("family: max_t flips the signs of pairs", "choose family: holm, or analysis.pairing: seed")
        return test

    @field_validator("normalize", "select")
    @classmethod
    def _of_the_runs(cls, named: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Refuse levels and factors that no run has."""
        unknown = _unknown_references if info.field_name == "normalize" else _unknown_factors
        cells = context_of(info).cells
        if named and cells is not None and (wrong := unknown(named, cells)):
            raise refusals((place, named, refusal(rule, fix, shown=False)) for place, rule, fix in wrong)
        return named

    @model_serializer
    def _record(self) -> dict[str, Any]:
        """The settings as a report keeps them: what was asked for, with every default."""
        names = "metric summary direction metrics figures time_to hypotheses alpha pairing test family compare"
        names += " incomplete end axis window normalize select seed sequential"
        return {name: getattr(self, name) for name in names.split()}

    @property
    def metric(self) -> str:
        return self.primary.metric

    @property
    def summary(self) -> str:
        return self.primary.summary

    @property
    def direction(self) -> Direction:
        """Which way is better for the primary metric."""
        return self.primary.direction or describe(self.metric).direction or "higher"

    @functools.cached_property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The declared hypotheses, in the order of their declaration."""
        return tuple(hypothesis(name, declared) for name, declared in (self.declared or {}).items())

    def family_size(self, groups: int) -> int:
        """How many comparisons of so many groups are one family."""
        return groups - 1 if self.compare == "baseline" else groups * (groups - 1) // 2

    def test_of(self, summary: str) -> str:
        """The test that decides a comparison of this summary: of times, which a budget may cut, an exact one."""
        if summary != "time_to":
            return self.test
        return "signflip" if self.pairing == "seed" else "relabel"

    def direction_of(self, metric: str) -> Direction | None:
        """Which way is better for a metric; None where it is not known."""
        return self.direction if metric == self.metric else describe(metric).direction

    @property
    def drawn(self) -> tuple[Picture, ...]:
        """Each figure but that of the differences, once: the curves of `metrics`, then the other `figures`.

        A combined figure that begins with a metric takes the place of that metric's own.
        """
        drawn: list[Picture] = []
        for metric in self.metrics:
            combined = [f for f in self.figures if f.kind == "curves" and len(f.metrics) > 1 and f.metrics[0] == metric]
            drawn += combined or [curves(metric)]
        return tuple(dict.fromkeys([*drawn, *self.figures]))

    @property
    def asked(self) -> tuple[str, ...]:
        """The metrics that anything here is about, recorded ones or derived from them, each once."""
        drawn = [metric for figure in self.figures if figure.kind != "histogram" for metric in figure.metrics]
        claimed = [metric for hypothesis in self.hypotheses for metric in hypothesis.metrics]
        timed = [target.metric for target in self.time_to]
        return tuple(dict.fromkeys([self.metric, *self.metrics, *drawn, *timed, *claimed]))

    def keys(self) -> tuple[str, ...]:
        """The recorded metrics that anything here is about, each once."""
        return tuple(dict.fromkeys(key for metric in self.asked for key in metric_catalog.keys(metric)))


def settings(
    section: Mapping[str, Any] | None,
    file: str = "plan.json",
    groups: Collection[str] | None = None,
    baseline: str | None = None,
    cells: Sequence[Cell] | None = None,
) -> Settings:
    """Read the section; groups, baseline and cells (of each run) are the plan's, None where they are not known.

    Raises BadPlan with everything that is wrong: file, key, value, what is allowed, and the fix.
    """
    try:
        return Settings.model_validate(section or {}, context=Context(groups, baseline, cells=cells))
    except ValidationError as error:
        explain(error, Settings, "analysis", file).raise_any()
        raise
