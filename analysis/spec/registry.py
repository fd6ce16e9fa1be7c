"""What an experiment may ask for by name: summaries of a run, and kinds of figures. Each is a function that a decorator
registers; docs/extending.md has examples.

Another installed package brings its own by an entry point of the group `rlsweep.analysis` that names a module with
decorated functions. Such a module is imported when a plan asks for a name that this package does not register. This
module itself does not import numpy, so that checking a plan stays fast.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from analysis.spec.validation import BadPlan, Section, refusal

if TYPE_CHECKING:
    from analysis.stats.numbers import Array

GROUP = "rlsweep.analysis"
_DRAWINGS = "analysis.figures"  # every module there is imported before a kind of figure is looked up
_Function = TypeVar("_Function", bound=Callable[..., Any])

_ALLOWED = "an integer 1 or more, which is a number of steps, or {points: N}, which is a number of points"
WINDOW, WINDOWS = 20, 10  # in one window of a short log, every time would be its end
#: What smooths where no window is declared: the steps of other tools are environment steps, episodes or updates.
NO_WINDOW = f"{WINDOW} points, or 1/{WINDOWS} of those that a run has of the metric, if that is fewer"


class Points(Section):
    """A window of so many points of a curve, however many steps they are apart."""

    points: int = Field(ge=1)


def _check(given: Any) -> Any:
    """Refuse what is neither, with one error and not one for each alternative."""
    if isinstance(given, Points):
        return given
    number = given["points"] if isinstance(given, dict) and list(given) == ["points"] else given
    if type(number) is not int or number < 1:
        raise refusal(f"must be {_ALLOWED}", "write {points: 20}")
    return given


#: A metric that is recorded every tenth step has two points in a window of twenty steps.
Window = Annotated[Annotated[int, Field(ge=1)] | Points, BeforeValidator(_check), Field(description=_ALLOWED)]


@dataclass(frozen=True)
class Curve:
    """A metric of a run for a summary: values (n,) at increasing steps (n,), all finite.

    start, stop: the range of steps that all runs have in common, which the curve may exceed. window: a number of steps,
    or of points. direction: higher or lower, whichever is better. For a summary `of_many`, values are (runs, n).
    """

    steps: Array
    values: Array
    start: float
    stop: float
    window: Window
    direction: str

    @property
    def spacing(self) -> float:
        """The median number of steps between points; 1 for a single point."""
        import numpy as np

        gaps = np.diff(self.steps)
        return float(np.median(gaps)) if gaps.size else 1.0

    @property
    def points(self) -> int:
        """How many points the window has: of a length in steps, as many as it has at the median distance, at least
        one."""
        if isinstance(self.window, Points):
            return self.window.points
        return max(1, round(self.window / self.spacing))

    @property
    def length(self) -> float:
        """The length of the window in steps; of a number of points, at the median distance."""
        return self.window.points * self.spacing if isinstance(self.window, Points) else float(self.window)

    @property
    def measured(self) -> tuple[Array, int]:
        """An axis (n,) on which the window is a length, and this length: the steps, or the numbers of the points."""
        import numpy as np

        if isinstance(self.window, Points):
            return np.arange(1.0, self.steps.size + 1), self.window.points
        return self.steps, self.window

    @property
    def inside(self) -> Curve:
        """The curve within the common range. Raises NotEvaluable where it has no point there."""
        from analysis.stats.curve_summaries import NotEvaluable

        kept = slice(self.steps.searchsorted(self.start), self.steps.searchsorted(self.stop, "right"))
        if kept.start >= kept.stop:
            raise NotEvaluable(f"no value from {self.start:g} to {self.stop:g}, the range of all runs")
        return Curve(self.steps[kept], self.values[kept], self.start, self.stop, self.window, self.direction)


@dataclass(frozen=True)
class Summary:
    """A summary of a run. title: as in "final value" of a metric. function: Curve -> float, or (runs,) if of_many.

    every_step: a claim about it holds only if it holds of every seed, and not of the mean alone. judged: False for one
    that noise makes larger, such as a maximum: differences and claims of it are described and have no verdict. until:
    the share of the range, from its beginning, that a run must have for it. directed: False for one of which a higher
    value is not better where a higher metric is, such as a variance.
    """

    name: str
    title: str
    function: Callable[[Curve], Any]
    of_many: bool = False
    every_step: bool = False
    judged: bool = True
    until: float = 1.0
    directed: bool = True


_summaries: dict[str, Summary] = {}
_figures: dict[str, Callable[..., Any]] = {}


def summary(
    name: str,
    title: str,
    *,
    of_many: bool = False,
    every_step: bool = False,
    judged: bool = True,
    until: float = 1.0,
    directed: bool = True,
) -> Callable[[_Function], _Function]:
    """Register a function of a Curve under a name that hypotheses may use. It raises
    analysis.stats.curve_summaries.NotEvaluable, with the reason, where a curve has no such number. Raises BadPlan if
    another function has the name."""

    def register(function: _Function) -> _Function:
        refuse_another(f"summary {name}", _summaries[name].function if name in _summaries else None, function)
        _summaries[name] = Summary(name, title, function, of_many, every_step, judged, until, directed)
        return function

    return register


def figure(kind: str) -> Callable[[_Function], _Function]:
    """Register a drawing, (Study, Picture) -> Sketch or None, as {KIND: [METRIC, ...]} under analysis.figures. Raises
    BadPlan if another function has the name."""

    def register(function: _Function) -> _Function:
        refuse_another(f"kind of figure {kind}", _figures.get(kind), function)
        _figures[kind] = function
        return function

    return register


def refuse_another(what: str, first: Callable[..., Any] | None, second: Callable[..., Any]) -> None:
    """Raise BadPlan, naming both places, unless it is the same function or class, whose module was loaded again."""
    if first and _place(first) != _place(second):
        raise BadPlan(f"{what}: registered twice, by {_place(first)} and {_place(second)}. Fix: rename one of them")


@contextmanager
def blamed(what: str, function: Callable[..., Any]) -> Iterator[None]:
    """A block that uses a registered function. What it raises is NotEvaluable, with the place of another package's."""
    from analysis.stats.curve_summaries import NotEvaluable

    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, NotEvaluable) or function.__module__.startswith("analysis."):
            raise
        raise NotEvaluable(" ".join(f"{what}, {_place(function)}: {type(error).__name__}: {error}".split())) from error


def _place(registered: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(registered), "__code__", None)
    at = f"{code.co_filename}:{code.co_firstlineno}" if code else inspect.getfile(registered)
    return f"{registered.__module__}.{registered.__qualname__} ({at})"


def summary_of(name: str) -> Summary | None:
    """The summary of that name; None where there is none."""
    if name not in _summaries:
        load()
    return _summaries.get(name)


def figure_of(kind: str) -> Callable[..., Any] | None:
    """What draws figures of that kind; None where nothing does."""
    if kind not in _figures:
        import_modules(_DRAWINGS)
    if kind not in _figures:
        load()
    return _figures.get(kind)


def is_judged(name: str) -> bool:
    """Whether differences and claims of a summary have verdicts; name: of one that a plan has asked for."""
    return name not in _summaries or _summaries[name].judged


def summary_names() -> tuple[str, ...]:
    """All names of summaries, those of this package first."""
    load()
    return tuple(_summaries)


def import_modules(package: str) -> None:
    """Import every module of a package of this project, which registers what it has."""
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        import_module(module.name)


@functools.cache
def load(group: str = GROUP) -> None:
    """Import what other installed packages bring. Raises BadPlan, naming the package, where that fails."""
    from importlib import metadata

    for point in metadata.entry_points(group=group):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist else point.value
            text = f"{package}: its entry point {point.name} = {point.value} ({group}) cannot be loaded: {error}"
            raise BadPlan(text) from error
