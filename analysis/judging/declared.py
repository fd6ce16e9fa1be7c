"""The judges of an experiment: multirun/NAME/judged/JUDGE.json, one for each.

The first that was asked decides `eval/win_rate`, so that nobody chooses among judges by their results.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.judging.settings import BadJudge, Choice, Settings
from launcher.files import write_json

FORMAT = 1


class Kind(StrEnum):
    """What a judge is."""

    MODEL = "model"
    SCORE = "score"
    RATERS = "raters"


@dataclass(frozen=True)
class Declared:
    """A judge. order: from 1, as they were first asked. asked: what decides its verdicts: for a model
    settings.Settings.asked, for a score its name. choice: which pairs it compares."""

    name: str
    kind: Kind
    order: int
    asked: dict[str, Any]
    choice: Choice = field(default_factory=Choice)

    @property
    def identity(self) -> str:
        """Of a model: the name of its journal."""
        return str(self.asked["identity"])

    @property
    def attempts(self) -> int:
        """Of a model: how many answers without a verdict a request may get."""
        return int(self.asked["attempts"])


def folder(experiment: Path) -> Path:
    """The folder of an experiment's judges."""
    return experiment / "judged"


def of_model(settings: Settings, name: str) -> Declared:
    """The declaration of a language model."""
    asked = {**settings.asked, "identity": settings.identity, "attempts": settings.attempts}
    return Declared(name, Kind.MODEL, 0, asked, _choice(settings))


def of_score(score: str, choice: Choice, name: str) -> Declared:
    """The declaration of a score."""
    return Declared(name, Kind.SCORE, 0, {"score": score}, _choice(choice))


def _choice(given: Choice) -> Choice:
    return Choice(**{name: getattr(given, name) for name in Choice.model_fields})


def judges(experiment: Path) -> tuple[Declared, ...]:
    """All judges in their order; none where none was asked. Raises BadJudge for a file that cannot be read."""
    try:
        paths = sorted(folder(experiment).glob("*.json"))
    except FileNotFoundError:
        return ()
    return tuple(sorted(map(_read, paths), key=lambda judge: judge.order))


def _read(path: Path) -> Declared:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        choice = Choice.model_validate(content.pop("choice"))
        made = Declared(**{**content, "kind": Kind(content["kind"])}, choice=choice)
        _ = (made.identity, made.attempts) if made.kind is Kind.MODEL else None
        return made
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        why = " ".join(str(error).split())
        raise BadJudge(f"{path}: not a judge of this version ({why}). Fix: restore the file, or delete it") from error


def check(experiment: Path, judge: Declared) -> Declared:
    """The declaration with its place in the order. Raises BadJudge if another judge of the experiment has its name."""
    known = judges(experiment)
    former = next((one for one in known if one.name == judge.name), None)
    same = {"attempts"}  # of requests, not of verdicts
    if former is not None and (former.kind, _without(former.asked, same)) != (judge.kind, _without(judge.asked, same)):
        keys = sorted({*former.asked, *judge.asked} - {"identity", *same})
        changed = ", ".join(key for key in keys if former.asked.get(key) != judge.asked.get(key))
        raise BadJudge(
            f"{folder(experiment) / f'{judge.name}.json'}: the judge {judge.name} of this experiment is another one "
            f"({changed or 'kind'}). Fix: name this one with judge.name=NAME"
        )
    return replace(judge, order=former.order if former else 1 + max((one.order for one in known), default=0))


def keep(experiment: Path, judge: Declared) -> None:
    """Write a judge's declaration, once it has said something. The pairs that it compares may change. Raises BadJudge
    as `check` does."""
    kept = check(experiment, judge)
    if kept not in judges(experiment):
        folder(experiment).mkdir(exist_ok=True)
        content = {**asdict(kept), "choice": kept.choice.model_dump()}
        write_json(folder(experiment) / f"{judge.name}.json", {"format": FORMAT, **content})


def _without(asked: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in asked.items() if key not in names}
