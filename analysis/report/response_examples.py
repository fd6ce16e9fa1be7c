"""The responses on the page, and their CSV. A language model wrote the texts, so they are made safe to display."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

from analysis.data.responses import Example, ResponseContrast, Responses, visible
from analysis.data.sweep import Sweep
from analysis.numbers import format_number
from analysis.tables.formats import csv_of
from analysis.tables.wording import factors

MOST = 1200  # characters of a text on the page; tables/responses.csv has all
_LONG = 400  # characters or
_LINES = 8  # lines, beyond which a text scrolls in its place


@dataclass(frozen=True)
class Text:
    """A text as shown. cut: how many characters are left out; long: whether it scrolls."""

    shown: str
    cut: int
    long: bool


def examples(evaluation: Responses, sweep: Sweep) -> dict[str, Any]:
    """The content of the template: numbers of all responses, and for each contrast its title, counts and examples."""
    return {
        "step": evaluation.step,
        "prompts": evaluation.prompts,
        "count": len(evaluation.recorded),
        "seeds": len({response.seed for response in evaluation.recorded}),
        "lacking": evaluation.lacking,
        "bad": evaluation.bad,
        "contrasts": [_contrast(contrast, sweep) for contrast in evaluation.contrasts],
    }


def _contrast(c: ResponseContrast, sweep: Sweep) -> dict[str, Any]:
    labels = [sweep.label(group) for group in c.groups]
    compared = len(labels) == 2 and c.better + c.worse + c.equal > 0
    return {
        "group": c.groups[-1] if compared else None,
        "title": f"{labels[1]} against {labels[0]}" if compared else "",
        "counts": f"Prompts: better on {c.better}, worse on {c.worse}, equal on {c.equal}." if compared else "",
        "examples": [_example(example, sweep) for example in (*c.wins, *c.losses)],
    }


def _example(example: Example, sweep: Sweep) -> dict[str, Any]:
    labels = [sweep.label(side.group) for side in example.sides]
    means = ", ".join(f"{name} {format_number(mean, 2)}" for name, mean in zip(labels, example.means, strict=True))
    over = f"{example.seeds} seeds" if example.seeds > 1 else "one seed"
    difference, first = example.difference, example.sides[0].answer
    return {
        "kind": "" if difference is None else "Win" if difference > 0 else "Loss",
        "difference": "" if difference is None else f"{difference:+.2g}".replace("-", "\N{MINUS SIGN}"),
        "means": f"mean reward over {over}: {means}",
        "seed": example.seed,
        "prompt": text(first.prompt),
        "answer": text(first.answer) if first.answer else None,
        "sides": [
            {
                "group": side.group,
                "label": ", ".join(filter(None, (label, factors(side.cell)))),
                "reward": format_number(side.answer.reward, 3),
                "text": text(side.answer.response),
            }
            for side, label in zip(example.sides, labels, strict=True)
        ],
    }


def text(whole: str) -> Text:
    """A text for the page: cut if it is long, with a visible mark for each character that is invisible or changes the
    direction of what follows."""
    part = whole[:MOST]
    return Text(visible(part), len(whole) - len(part), len(part) > _LONG or part.count("\n") >= _LINES)


def to_csv(evaluation: Responses) -> str:
    """Every response, a row each, as it was written, but for an apostrophe before what a spreadsheet would run."""
    records = [
        {
            "step": evaluation.step,
            "prompt_id": response.answer.id,
            "group": response.group,
            "seed": response.seed,
            "factors": factors(response.cell),
            "run": response.run,
            "reward": response.answer.reward,
            "prompt": response.answer.prompt,
            "answer": response.answer.answer,
            "response": response.answer.response,
        }
        for response in evaluation.recorded
    ]
    return csv_of(list(records[0]), records, csv.QUOTE_NONNUMERIC)  # unquoted, a carriage return would end the row
