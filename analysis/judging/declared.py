"""The judges of an experiment: multirun/NAME/judged/JUDGE.json, one for each.

The first that was asked decides `eval/win_rate`, so that nobody chooses among judges by their results.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from analysis.judging.settings import BadJudge, Choice, Settings
from analysis.spec.validation import Section
from launcher.files import write_json

_OF_REQUESTS = {"identity", "attempts"}  # these decide no verdict


class Kind(StrEnum):
    """What a judge is."""

    MODEL = "model"
    SCORE = "score"
    RATERS = "raters"


class Declared(Section):
    """A judge. order: from 1, as they were first asked. asked: what decides its verdicts: for a model
    settings.Settings.asked, the name of its journal (identity) and how many answers without a verdict a request may get
    (attempts), for a score its name. choice: which pairs it compares."""

    format: Literal[1] = 1
    name: str
    kind: Kind
    order: int = 0
    asked: dict[str, Any] = Field(default_factory=dict)
    choice: Choice = Field(default_factory=Choice)

    @model_validator(mode="after")
    def _of_a_model(self) -> Self:
        if self.kind is Kind.MODEL and not self.asked.keys() >= {"model", *_OF_REQUESTS}:
            raise ValueError("a model has the keys model, identity and attempts")
        return self


def folder(experiment: Path) -> Path:
    """The folder of an experiment's judges."""
    return experiment / "judged"


def of_model(settings: Settings, name: str) -> Declared:
    """The declaration of a language model."""
    asked = {**settings.asked, "identity": settings.identity, "attempts": settings.attempts}
    choice = Choice(**{key: getattr(settings, key) for key in Choice.model_fields})
    return Declared(name=name, kind=Kind.MODEL, asked=asked, choice=choice)


def judges(experiment: Path) -> tuple[Declared, ...]:
    """All judges in their order; none where none was asked. Raises BadJudge for a file that cannot be read."""
    made = []
    for path in folder(experiment).glob("*.json"):
        try:
            made.append(Declared.model_validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            why = " ".join(str(error).split())
            raise BadJudge(
                f"{path}: not a judge of this version ({why}). Fix: restore the file, or delete it"
            ) from error
    return tuple(sorted(made, key=lambda judge: (judge.order, judge.name)))


def check(experiment: Path, judge: Declared) -> Declared:
    """The declaration with its place in the order. Raises BadJudge if another judge of the experiment has its name."""
    known = judges(experiment)
    former = next((one for one in known if one.name == judge.name), None)
    if former is None:
        return judge.model_copy(update={"order": 1 + max((one.order for one in known), default=0)})
    keys = sorted({*former.asked, *judge.asked} - _OF_REQUESTS)
    changed = [key for key in keys if former.asked.get(key) != judge.asked.get(key)]
    if changed or former.kind != judge.kind:
        raise BadJudge(
            f"{folder(experiment) / f'{judge.name}.json'}: the judge {judge.name} of this experiment is another one "
            f"({', '.join(changed) or 'kind'}). Fix: name this one with judge.name=NAME"
        )
    return judge.model_copy(update={"order": former.order})


def keep(experiment: Path, judge: Declared) -> None:
    """Write a judge's declaration, once it has said something. The pairs that it compares may change. Raises BadJudge
    as `check` does."""
    kept = check(experiment, judge)
    if kept not in judges(experiment):
        folder(experiment).mkdir(exist_ok=True)
        write_json(folder(experiment) / f"{judge.name}.json", kept.model_dump(mode="json"))
