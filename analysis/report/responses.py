"""What the page shows of the responses, and their file: text that a language model wrote, made safe to look at."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.data.sweep import Sweep
from analysis.findings.responses import Contrast, Example, Responses, Said
from analysis.numbers import format_number

MOST = 1200  # characters of a text on the page; tables/responses.csv has all
_LONG = 400  # characters or
_LINES = 8  # lines, beyond which a text scrolls in its place
_JOINERS = "\u200c\u200d\u00ad"  # of no width, but part of some scripts and of emoji; and the soft hyphen


@dataclass(frozen=True)
class Text:
    """A text as shown. cut: how many characters are left out; long: whether it scrolls."""

    shown: str
    cut: int
    long: bool


def spoken(found: Responses, sweep: Sweep) -> dict[str, Any]:
    """What the template shows: sentences about all, and of each contrast its title, sentences and examples."""
    seeds = len({one.seed for one in found.said})
    return {
        "step": found.step,
        "prompts": found.prompts,
        "count": len(found.said),
        "seeds": seeds,
        "lacking": found.lacking,
        "bad": found.bad,
        "contrasts": [_contrast(one, sweep) for one in found.contrasts],
    }


def _contrast(one: Contrast, sweep: Sweep) -> dict[str, Any]:
    labels = [sweep.label(group) for group in one.groups]
    compared = len(labels) == 2 and one.better + one.worse + one.equal > 0
    return {
        "group": one.groups[-1] if compared else None,
        "title": f"{labels[1]} against {labels[0]}" if compared else "",
        "counts": f"Prompts: better on {one.better}, worse on {one.worse}, equal on {one.equal}." if compared else "",
        "examples": [_example(example, sweep) for example in (*one.wins, *one.losses)],
    }


def _example(one: Example, sweep: Sweep) -> dict[str, Any]:
    means = ", ".join(
        f"{sweep.label(side.group)} {format_number(mean, 2)}" for side, mean in zip(one.sides, one.means, strict=True)
    )
    over = f"{one.seeds} seeds" if one.seeds > 1 else "one seed"
    kind = "" if one.difference is None else "Win" if one.difference > 0 else "Loss"
    return {
        "kind": kind,
        "difference": "" if one.difference is None else f"{one.difference:+.2g}".replace("-", "\N{MINUS SIGN}"),
        "means": f"mean reward over {over}: {means}",
        "seed": one.seed,
        "prompt": text(one.sides[0].answer.prompt),
        "answer": text(one.sides[0].answer.answer) if one.sides[0].answer.answer else None,
        "sides": [_side(side, sweep) for side in one.sides],
    }


def _side(side: Said, sweep: Sweep) -> dict[str, Any]:
    cell = "".join(f", {label} = {level}" for label, level in side.cell)
    return {
        "group": side.group,
        "label": f"{sweep.label(side.group)}{cell}",
        "reward": format_number(side.answer.reward, 3),
        "text": text(side.answer.response),
    }


def text(said: str) -> Text:
    """A text for the page: cut where it is long, and with a mark for each character that cannot be seen or that turns
    the direction of what follows."""
    part = said[:MOST]
    shown = "".join(_mark(char) for char in part)
    return Text(shown, len(said) - len(part), len(part) > _LONG or part.count("\n") >= _LINES)


def _mark(char: str) -> str:
    if char in "\n\t" or char in _JOINERS:
        return char
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{ord(char):04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
    return char


def to_csv(found: Responses) -> str:
    """Every response, a row each, as it was written."""
    out = io.StringIO()
    rows = _records(found.step, found.said)
    # Quoted always: unquoted, a carriage return would end the row.
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _records(step: int, said: Sequence[Said]) -> list[Mapping[str, Any]]:
    return [
        {
            "step": step,
            "prompt_id": one.answer.id,
            "group": one.group,
            "seed": one.seed,
            "factors": ", ".join(f"{label} = {level}" for label, level in one.cell),
            "run": one.run,
            "reward": one.answer.reward,
            "prompt": one.answer.prompt,
            "answer": one.answer.answer,
            "response": one.answer.response,
        }
        for one in said
    ]
