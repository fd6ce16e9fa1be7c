"""The window of summaries that smooth a curve: a length in steps, or a number of points."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from analysis.spec.validation import Section, refusal

_ALLOWED = "an integer 1 or more, which is a number of steps, or {points: N}, which is a number of points"


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
Window = Annotated[
    Annotated[int, Field(ge=1)] | Points, BeforeValidator(_check), Field(description=_ALLOWED)
]  # fmt: skip
