"""What the policies answered to the same prompts at the last evaluation that every run has, method beside method.

responses.jsonl is read as tolerantly as a run's metrics. What stands in it was written by a language model: it is
anything at all.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from analysis.data.attempts import standing
from analysis.data.sweep import Cell, Sweep
from launcher.run import folder as folders

MOST = 3  # wins, and losses, shown of a method


@dataclass(frozen=True)
class Answer:
    """A response to a prompt. id: of the prompt, by its content; answer: what was asked for, "" where nobody said."""

    id: str
    prompt: str
    response: str
    reward: float
    answer: str


@dataclass(frozen=True)
class Said:
    """An answer, and whose it is."""

    group: str
    seed: int
    cell: Cell
    run: str
    answer: Answer


@dataclass(frozen=True)
class Example:
    """A prompt with one answer of each of some groups, all of one seed.

    means: reward of each of these groups, over `seeds` (how many); difference: of the last from the first, None where
    nothing is compared.
    """

    difference: float | None
    means: tuple[float, ...]
    seeds: int
    seed: int
    sides: tuple[Said, ...]


@dataclass(frozen=True)
class Contrast:
    """A group against the baseline: its largest wins and losses, and how many prompts each way; without a baseline all
    groups on the first prompts, as `wins`."""

    groups: tuple[str, ...]
    wins: tuple[Example, ...]
    losses: tuple[Example, ...]
    better: int
    worse: int
    equal: int


@dataclass(frozen=True)
class Responses:
    """Of one evaluation: `said` is everything that was recorded. lacking: groups with runs that recorded none, as they
    are called, with how many of how many runs did. bad: lines left out."""

    step: int
    prompts: int
    said: tuple[Said, ...]
    contrasts: tuple[Contrast, ...]
    lacking: tuple[str, ...]
    bad: int


def responses(sweep: Sweep) -> Responses | None:
    """The responses of an experiment's runs that ended well; None where none of them recorded any."""
    multirun = sweep.folder.parent
    ended = {run.id: run for run in sweep.runs if run.problem is None}
    logs = {run_id: _read_log(folders.run_folder(multirun, run_id)) for run_id in ended}
    having = [run for run in sweep.runs if run.id in logs and logs[run.id].places]
    shared = set.intersection(*(set(logs[run.id].places) for run in having)) if having else set()
    if not shared:
        return None
    step = max(shared)
    read = {run.id: _read_answers(folders.run_folder(multirun, run.id), logs[run.id].places[step]) for run in having}
    said = tuple(Said(run.group, run.seed, run.cell, run.id, one) for run in having for one in read[run.id])
    groups = [group for group in sweep.groups if any(run.group == group for run in having)]
    return Responses(
        step,
        len({one.answer.id for one in said}),
        said,
        tuple(_contrasts(said, groups, sweep.baseline)),
        tuple(_lacking(sweep, {run.id for run in having})),
        sum(log.bad for log in logs.values()),
    )


def _lacking(sweep: Sweep, having: Collection[str]) -> Iterator[str]:
    for group in sweep.groups:
        planned = [run for run in sweep.runs if run.group == group]
        count = sum(run.id in having for run in planned)
        if count < len(planned):
            yield f"{sweep.label(group)}: {count} of {len(planned)} runs"


# ---------------------------------------------------------------- comparing


def _contrasts(said: Sequence[Said], groups: Sequence[str], baseline: str | None) -> Iterator[Contrast]:
    by_prompt: dict[str, dict[str, dict[int, list[Said]]]] = {}
    for one in said:
        by_prompt.setdefault(one.answer.id, {}).setdefault(one.group, {}).setdefault(one.seed, []).append(one)
    if baseline is None or baseline not in groups or len(groups) == 1:
        found = (_first(own, groups) for own in by_prompt.values())
        examples = [example for example in found if example is not None]
        yield Contrast(tuple(groups), tuple(examples[: 2 * MOST]), (), 0, 0, 0)
        return
    for group in groups:
        if group == baseline:
            continue
        compared = {prompt: _compared(own, baseline, group) for prompt, own in by_prompt.items()}
        sized = sorted(
            ((example.difference or 0.0, prompt, example) for prompt, example in compared.items() if example),
            key=lambda one: (-abs(one[0]), one[1]),
        )
        wins = [example for difference, _, example in sized if difference > 0]
        losses = [example for difference, _, example in sized if difference < 0]
        equal = len(sized) - len(wins) - len(losses)
        yield Contrast(
            (baseline, group), tuple(wins[:MOST]), tuple(losses[:MOST]), len(wins), len(losses), equal
        )  # fmt: skip


def _compared(own: Mapping[str, Mapping[int, Sequence[Said]]], baseline: str, group: str) -> Example | None:
    """A prompt under two groups: over the seeds of both, and shown in the seed and answers that differ most that way.

    Several answers of a seed (of cells, or to a prompt that came twice) are averaged first, over the levels that both
    have of factors that both have: what a small model answers is not held against a large one.
    """
    theirs, ours = own.get(baseline, {}), own.get(group, {})
    alike = {seed: _alike(theirs[seed], ours[seed]) for seed in sorted(set(theirs) & set(ours))}
    seeds = [seed for seed, levels in alike.items() if levels]
    if not seeds:
        return None
    means = [[_mean([*chain(*side)]) for side in zip(*alike[seed], strict=True)] for seed in seeds]
    first, second = (sum(column) / len(seeds) for column in zip(*means, strict=True))
    sign = 1.0 if second >= first else -1.0
    place = max(range(len(seeds)), key=lambda i: (sign * (means[i][1] - means[i][0]), -seeds[i]))
    seed = seeds[place]

    def apart(said: Said) -> float:
        return sign * said.answer.reward

    each = [(min(one, key=apart), max(other, key=apart)) for one, other in alike[seed]]
    sides = max(each, key=lambda pair: apart(pair[1]) - apart(pair[0]))
    return Example(second - first, (first, second), len(seeds), seed, sides)


def _alike(theirs: Sequence[Said], ours: Sequence[Said]) -> list[tuple[list[Said], list[Said]]]:
    """The answers of both sides at each level of the factors that both have."""
    labels = [{label for said in side for label, _ in said.cell} for side in (theirs, ours)]
    levels: dict[Cell, tuple[list[Said], list[Said]]] = {}
    for place, side in enumerate((theirs, ours)):
        for said in side:
            level = tuple(item for item in said.cell if item[0] in labels[0] & labels[1])
            levels.setdefault(level, ([], []))[place].append(said)
    return [both for both in levels.values() if all(both)]


def _first(own: Mapping[str, Mapping[int, Sequence[Said]]], groups: Sequence[str]) -> Example | None:
    """A prompt under all groups, in the first seed that all of them have."""
    seeds = sorted(set.intersection(*(set(own.get(group, {})) for group in groups)))
    if not seeds:
        return None
    means = tuple(sum(_mean(own[group][seed]) for seed in seeds) / len(seeds) for group in groups)
    return Example(None, means, len(seeds), seeds[0], tuple(own[group][seeds[0]][0] for group in groups))


def _mean(said: Sequence[Said]) -> float:
    return sum(one.answer.reward for one in said) / len(said)


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Log:
    """Where in a run's file the responses of each step stand, those of the newest attempt; bad: lines left out."""

    places: Mapping[int, Sequence[int]]
    bad: int


def _read_log(folder: Path) -> _Log:
    """Line by line, and nothing is kept but where it stands: such a file may be long."""
    by_attempt: dict[int, dict[int, list[int]]] = {}
    bad = place = 0
    with contextlib.suppress(FileNotFoundError), open(folders.responses_path(folder), "rb") as file:
        for line in file:
            row = _row(line) if line.strip() else None
            if row is not None:
                by_attempt.setdefault(row[0], {}).setdefault(row[1], []).append(place)
            elif line.strip():
                bad += 1
            place += len(line)
    return _Log(standing(by_attempt), bad)


def _read_answers(folder: Path, places: Sequence[int]) -> list[Answer]:
    with open(folders.responses_path(folder), "rb") as file:
        rows = []
        for place in places:
            file.seek(place)
            rows.append(_row(file.readline()))
    return [row[2] for row in rows if row is not None]


def _row(line: bytes) -> tuple[int, int, Answer] | None:
    """A line as (attempt, step, answer); None for one that is none."""
    try:
        row = _parsed(line)
        reward = float(row["reward"])
        if not math.isfinite(reward):
            return None
        texts = [_text(row[key]) for key in ("id", "prompt", "response")]
        answer = Answer(texts[0], texts[1], texts[2], reward, _text(row.get("answer") or ""))
        return int(row.get("attempt") or 1), int(row["step"]), answer
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)  # half of a surrogate pair, which orjson refuses


def _text(value: Any) -> str:
    """A text that every file can hold: half of a surrogate pair becomes its code."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
