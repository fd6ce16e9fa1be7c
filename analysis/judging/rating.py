"""Human preference: one HTML page of blind pairs, without a network, and the answers that raters save from it.

    multirun/NAME/judged/exports/ID.json          which pairs a page shows, and on which sides: the key
    multirun/NAME/judged/answers/ID-RATER.json    what a rater answered

The page holds no name of a method, run or experiment. ID is a hash of the key, so that answers belong to one page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from analysis.data.responses import visible
from analysis.data.sweep import Sweep
from analysis.judging.journal import Verdict
from analysis.judging.pairs import Pair, pairs
from analysis.judging.settings import BadJudge, Judge, Kind, PairSelection, judges_folder, keep_judge, reason, slug
from analysis.spec.validation import Section, counted, explain
from launcher.files import write_atomic, write_json

NAME = "raters"
_PAGE = Path(__file__).with_name("rating.html")
_DATA = "{{ data }}"
_MOST_NAME = 80  # characters of a rater's name


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
        texts = zip(("prompt", "first", "second"), (pair.prompt, *pair.shown(item.swapped)), strict=True)
        shown.append({field: visible(text) for field, text in texts})
    data = json.dumps({"export": name, "items": shown}, ensure_ascii=False).replace("<", "\\u003c")
    kept = judges_folder(sweep.folder) / "exports" / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, key)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(page, _PAGE.read_text(encoding="utf-8").replace(_DATA, data))
    return kept, len(items), len(by_content)


def _drawn(seed: int, what: str, content: str) -> str:
    return hashlib.sha256(f"{seed} {what} {content}".encode()).hexdigest()


def import_answers(sweep: Sweep, files: list[Path]) -> list[str]:
    """Keep the answers of these files; a line on each. Raises BadJudge with everything that is wrong, before anything
    is kept."""
    wrong: list[str] = []
    read = []
    for file in files:
        try:
            read.append(_checked(file, judges_folder(sweep.folder) / "exports"))
        except BadJudge as error:
            wrong.append(str(error))
    if wrong:
        raise BadJudge("\n".join(wrong))
    keep_judge(sweep.folder, Judge(name=NAME, kind=Kind.RATERS))
    folder = judges_folder(sweep.folder) / "answers"
    folder.mkdir(exist_ok=True)
    lines = []
    for given, count in read:
        content = given.model_dump(mode="json")
        mark = hashlib.sha256(given.rater.encode()).hexdigest()[:8]  # two names may have one slug
        path = folder / f"{given.export}-{slug(given.rater)[:40]}-{mark}.json"
        replaced = path.exists() and json.loads(path.read_bytes()) != content
        write_json(path, content)
        again = ", which replace other answers of this rater" if replaced else ""
        lines.append(f"{given.rater}: {len(given.answers)} of {counted(count, 'pair')} answered{again}")
    return lines


def _checked(file: Path, exports: Path) -> tuple[Answers, int]:
    """A file of answers, and the number of pairs of its page. exports: the folder of the keys."""
    again = "Fix: save the answers with the page's button, and import that file"
    try:
        given = Answers.model_validate_json(file.read_bytes())
    except OSError as error:
        raise BadJudge(f"{file}: no answers of a rater ({error}). {again}") from error
    except ValidationError as error:
        raise BadJudge("\n".join(f"{file}: {breach}" for breach in explain(error, Answers, "file"))) from error
    known = sorted(path.stem for path in exports.glob("*.json"))
    if given.export not in known:
        raise BadJudge(
            f"{file}: export = {given.export[:40]!r}: the answers are to no page of this experiment; its pages are "
            f"{', '.join(known) or 'none'}. Fix: name the experiment that the page was exported from"
        )
    count = len(_key(exports / f"{given.export}.json").items)
    for number in given.answers:
        if not number.isdecimal() or not 1 <= int(number) <= count:
            raise BadJudge(f"{file}: answers.{number}: the page has the pairs 1 to {count}. {again}")
    rater = " ".join(visible(given.rater).split())[:_MOST_NAME]
    if not rater:
        raise BadJudge(f"{file}: rater = {given.rater!r}: must be a name. {again}")
    ordered = {str(int(number)): given.answers[number] for number in sorted(given.answers, key=int)}
    return given.model_copy(update={"rater": rater, "answers": ordered}), count


def answers(experiment: Path) -> Iterator[tuple[str, PairSelection, list[tuple[Item, Verdict]]]]:
    """All answers that were imported: the rater, from which pairs the page was drawn, and the verdict on each pair.
    Raises BadJudge for a file that cannot be read."""
    folder = judges_folder(experiment)
    for path in sorted((folder / "answers").glob("*.json")):
        try:
            given = Answers.model_validate_json(path.read_bytes())
            key = _key(folder / "exports" / f"{given.export}.json")
            verdicts = [(key.items[int(number) - 1], verdict) for number, verdict in given.answers.items()]
        except (OSError, ValueError, IndexError) as error:
            raise BadJudge(
                f"{path}: cannot be read ({reason(error, Answers)}). Fix: import the rater's file again"
            ) from error
        yield given.rater, key.choice, verdicts


def _key(path: Path) -> Key:
    try:
        return Key.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadJudge(
            f"{path}: the key of a page cannot be read ({reason(error, Key)}). Fix: restore the file"
        ) from error
