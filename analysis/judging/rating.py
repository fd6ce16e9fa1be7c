"""Human preference: one HTML page of blind pairs, without a network, and the answers that raters save from it.

    multirun/NAME/judged/exports/ID.json          which pairs a page shows, and on which sides: the key
    multirun/NAME/judged/answers/ID-RATER.json    what a rater answered

The page holds no name of a method, run or experiment. ID is a hash of the key, so that answers belong to one page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from analysis.data.responses import visible
from analysis.data.sweep import Sweep
from analysis.judging.journal import Verdict
from analysis.judging.pairs import Pair, pairs
from analysis.judging.settings import BadJudge, Judge, Kind, judges_folder, keep_judge, load, slug
from analysis.spec.settings import PairSelection
from analysis.spec.validation import Section, counted, refusal
from launcher.files import write_atomic, write_json

NAME = "raters"
_PAGE = Path(__file__).with_name("rating.html")
_DATA = "{{ data }}"
_MOST_NAME = 80  # characters of a rater's name
_AGAIN = "save the answers with the page's button, and import that file"


class Item(Section):
    """A pair of a page: a hash of its texts, and whether the other method's response stands first."""

    content: str
    swapped: bool


class Key(Section):
    """What a page shows, and from which pairs it was drawn by `seed`."""

    format: Literal[1] = 1
    seed: int
    choice: PairSelection
    items: tuple[Item, ...]


class Answers(Section):
    """What a rater answered to the pairs of a page, which are numbered from 1. export: of the page."""

    format: Literal[1] = 1
    export: str
    rater: str
    answers: dict[str, Verdict]

    @field_validator("rater")
    @classmethod
    def _is_a_name(cls, rater: str) -> str:
        if not (name := " ".join(visible(rater).split())[:_MOST_NAME]):
            raise refusal("must be a name")
        return name

    @field_validator("answers")
    @classmethod
    def _in_order(cls, answers: Mapping[str, Verdict]) -> dict[str, Verdict]:
        if not all(number.isdecimal() for number in answers):
            raise refusal("must have the numbers of pairs as keys", shown=False)
        return {str(int(number)): answers[number] for number in sorted(answers, key=int)}


def content_of(pair: Pair) -> str:
    """A hash of the texts of a pair."""
    return pair.key(NAME, False)


def export(sweep: Sweep, page: Path, choice: PairSelection, count: int | None, seed: int) -> tuple[Path, int, int]:
    """Write a page of `count` pairs (None: all), drawn by `seed`, in an order and on sides drawn by it, too. Returns
    the path of its key, and how many pairs it shows, of how many.

    Pairs of equal texts are not shown, and pairs of the same texts once. Raises BadJudge.
    """
    by_content = {content_of(pair): pair for pair in pairs(sweep, choice).pairs if not pair.equal}
    if not by_content:
        raise BadJudge(f"{sweep.folder}: both methods of every pair wrote the same. Fix: run longer, or other methods")
    drawn = sorted(by_content, key=lambda content: _drawn(seed, "order", content))[:count]
    items = tuple(Item(content=of, swapped=int(_drawn(seed, "side", of), 16) % 2 == 1) for of in drawn)
    key = Key(seed=seed, choice=choice, items=items).model_dump(mode="json")
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    shown = []
    for item in items:
        pair = by_content[item.content]
        texts = map(visible, (pair.prompt, *pair.shown(item.swapped)))
        shown.append(dict(zip(("prompt", "first", "second"), texts, strict=True)))
    data = json.dumps({"export": name, "items": shown}, ensure_ascii=False).replace("<", "\\u003c")
    kept = judges_folder(sweep.folder) / "exports" / f"{name}.json"
    for path in (kept, page):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, key)
    write_atomic(page, _PAGE.read_text(encoding="utf-8").replace(_DATA, data))
    return kept, len(items), len(by_content)


def _drawn(seed: int, what: str, content: str) -> str:
    return hashlib.sha256(f"{seed} {what} {content}".encode()).hexdigest()


def import_answers(sweep: Sweep, files: list[Path]) -> list[str]:
    """Keep the answers of these files; a line on each. Raises BadJudge with everything that is wrong, before anything
    is kept."""
    read, wrong = [], []
    for file in files:
        try:
            read.append(_read(file, sweep.folder))
        except BadJudge as error:
            wrong.append(str(error))
    if wrong:
        raise BadJudge("\n".join(wrong))
    keep_judge(sweep.folder, Judge(name=NAME, kind=Kind.RATERS))
    folder = judges_folder(sweep.folder) / "answers"
    folder.mkdir(exist_ok=True)
    lines = []
    for given, key in read:
        content = given.model_dump(mode="json")
        mark = hashlib.sha256(given.rater.encode()).hexdigest()[:8]  # two names may have one slug
        path = folder / f"{given.export}-{slug(given.rater)[:40]}-{mark}.json"
        again = ", which replace other answers of this rater"
        again = again if path.exists() and json.loads(path.read_bytes()) != content else ""
        write_json(path, content)
        lines.append(f"{given.rater}: {len(given.answers)} of {counted(len(key.items), 'pair')} answered{again}")
    return lines


def answers(experiment: Path) -> Iterator[tuple[str, PairSelection, list[tuple[Item, Verdict]]]]:
    """All answers that were imported: the rater, from which pairs the page was drawn, and the verdict on each pair.
    Raises BadJudge for a file that cannot be read."""
    for path in sorted((judges_folder(experiment) / "answers").glob("*.json")):
        given, key = _read(path, experiment)
        yield (
            given.rater,
            key.choice,
            [(key.items[int(number) - 1], verdict) for number, verdict in given.answers.items()],
        )


def _read(file: Path, experiment: Path) -> tuple[Answers, Key]:
    """A file of answers, and the key of its page. Raises BadJudge if it is not to a page of the experiment."""
    given = load(file, Answers, "no answers of a rater", _AGAIN)
    exports = judges_folder(experiment) / "exports"
    known = sorted(path.stem for path in exports.glob("*.json"))
    if given.export not in known:
        raise BadJudge(
            f"{file}: export = {given.export[:40]!r}: the answers are to no page of this experiment; its pages are "
            f"{', '.join(known) or 'none'}. Fix: name the experiment that the page was exported from"
        )
    key = load(exports / f"{given.export}.json", Key, "the key of a page cannot be read", "restore the file")
    for number in given.answers:
        if not 1 <= int(number) <= len(key.items):
            raise BadJudge(f"{file}: answers.{number}: the page has the pairs 1 to {len(key.items)}. Fix: {_AGAIN}")
    return given, key
