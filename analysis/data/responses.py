"""What the policies answered to the same prompts at an evaluation that every run has, method beside method.

responses.jsonl is read as tolerantly as a run's metrics. Its texts were written by a language model: expect anything.
"""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from analysis.data.metric_log import standing
from analysis.data.sweep import Cell, Sweep
from analysis.spec.cell import grouped, part
from analysis.stats.numbers import parsed
from launcher.run.folder import responses_path, run_folder

MOST = 3  # wins, and losses, shown of a method


@dataclass(frozen=True)
class Response:
    """What the policy of a run wrote to a prompt. id: of the prompt, by its content; answer: the expected one, "" if
    unknown."""

    group: str
    seed: int
    cell: Cell
    run: str
    id: str
    prompt: str
    response: str
    reward: float
    answer: str


@dataclass(frozen=True)
class Example:
    """A prompt with one response of each of some groups, all of one seed.

    means: reward of each of these groups, over `seeds` (how many); difference: of the last from the first, None where
    nothing is compared.
    """

    difference: float | None
    means: tuple[float, ...]
    seeds: int
    seed: int
    sides: tuple[Response, ...]


@dataclass(frozen=True)
class ResponseContrast:
    """A group against the baseline: its largest wins and losses, and the numbers of prompts; without a baseline, all
    groups on the first prompts as `wins`."""

    groups: tuple[str, ...]
    wins: tuple[Example, ...]
    losses: tuple[Example, ...] = ()
    better: int = 0
    worse: int = 0
    equal: int = 0

    @property
    def compared(self) -> bool:
        """Whether it is of two groups that have a prompt in common."""
        return len(self.groups) == 2 and self.better + self.worse + self.equal > 0


@dataclass(frozen=True)
class Responses:
    """All recorded responses of one evaluation. counts: of each common evaluation, how many every run recorded.
    lacking: labels of groups in which some runs recorded none, with the number of runs that did. bad: lines left out.
    """

    step: int
    counts: Mapping[int, int]
    prompts: int
    recorded: tuple[Response, ...]
    contrasts: tuple[ResponseContrast, ...]
    lacking: tuple[str, ...]
    bad: int


BySeed = Mapping[int, Sequence[Response]]  # of one group to one prompt


def responses(sweep: Sweep, step: int | None = None) -> Responses | None:
    """The responses of an experiment's runs that ended well, after a step (None: the last common one); None where none
    of them recorded any."""
    ended = {run.id: run_folder(sweep.folder.parent, run.id) for run in sweep.runs if run.problem is None}
    logs = {run_id: _read_log(folder) for run_id, folder in ended.items()}
    offsets = {run_id: by_step for run_id, (by_step, _) in logs.items() if by_step}
    having = [run for run in sweep.runs if run.id in offsets]
    shared = set.intersection(*map(set, offsets.values())) if having else set()
    if not shared:
        return None
    counts = {step: min(len(by_step[step]) for by_step in offsets.values()) for step in shared}
    step = max(shared) if step is None else step
    read = {run.id: _read_rows(ended[run.id], offsets[run.id][step]) for run in having}
    recorded = tuple(Response(run.group, run.seed, run.cell, run.id, **row) for run in having for row in read[run.id])
    counted = Counter(run.group for run in having)
    groups = [group for group in sweep.groups if counted[group]]
    planned = {group: len(sweep.runs_of(group)) for group in sweep.groups}
    lacking = [f"{sweep.label(g)}: {counted[g]} of {planned[g]} runs" for g in sweep.groups if counted[g] < planned[g]]
    return Responses(
        step=step,
        counts=counts,
        prompts=len({response.id for response in recorded}),
        recorded=recorded,
        contrasts=tuple(_contrasts(recorded, groups, sweep.baseline)),
        lacking=tuple(lacking),
        bad=sum(bad for _, bad in logs.values()),
    )


# ---------------------------------------------------------------- comparing


def _contrasts(recorded: Sequence[Response], groups: Sequence[str], baseline: str | None) -> Iterator[ResponseContrast]:
    by_prompt: dict[str, dict[str, dict[int, list[Response]]]] = {}
    for response in recorded:
        by_group = by_prompt.setdefault(response.id, {})
        by_group.setdefault(response.group, {}).setdefault(response.seed, []).append(response)
    if baseline is None or baseline not in groups or len(groups) == 1:
        examples = [example for by_group in by_prompt.values() if (example := _first(by_group, groups)) is not None]
        yield ResponseContrast(tuple(groups), tuple(examples[: 2 * MOST]))
        return
    for group in [group for group in groups if group != baseline]:
        compared = {prompt: _compared(by_group, baseline, group) for prompt, by_group in by_prompt.items()}
        sized = sorted(
            ((example.difference or 0.0, prompt, example) for prompt, example in compared.items() if example),
            key=lambda item: (-abs(item[0]), item[1]),
        )
        wins = [example for difference, _, example in sized if difference > 0]
        losses = [example for difference, _, example in sized if difference < 0]
        counts = len(wins), len(losses), len(sized) - len(wins) - len(losses)
        yield ResponseContrast((baseline, group), tuple(wins[:MOST]), tuple(losses[:MOST]), *counts)


def _compared(by_group: Mapping[str, BySeed], baseline: str, group: str) -> Example | None:
    """A prompt under two groups: the mean difference over their common seeds, and the seed and responses that differ
    most.

    Several responses of a seed (of cells, or to a prompt that came twice) are averaged first, over the levels that both
    groups have of their common factors: a large model is not compared with a small one.
    """
    theirs, ours = by_group.get(baseline, {}), by_group.get(group, {})
    alike = {seed: _alike(theirs[seed], ours[seed]) for seed in sorted(set(theirs) & set(ours))}
    seeds = [seed for seed, levels in alike.items() if levels]
    if not seeds:
        return None
    means = [[_mean([*chain(*side)]) for side in zip(*alike[seed], strict=True)] for seed in seeds]
    first, second = (sum(column) / len(seeds) for column in zip(*means, strict=True))
    sign = 1.0 if second >= first else -1.0
    most = max(range(len(seeds)), key=lambda i: (sign * (means[i][1] - means[i][0]), -seeds[i]))

    def signed(response: Response) -> float:
        return sign * response.reward

    pairs = [(min(their, key=signed), max(our, key=signed)) for their, our in alike[seeds[most]]]
    sides = max(pairs, key=lambda pair: signed(pair[1]) - signed(pair[0]))
    return Example(second - first, (first, second), len(seeds), seeds[most], sides)


def _alike(theirs: Sequence[Response], ours: Sequence[Response]) -> list[tuple[list[Response], list[Response]]]:
    """The responses of both sides at each level of the factors that both have."""
    shared = set.intersection(*({label for r in side for label, _ in r.cell} for side in (theirs, ours)))
    first, second = (grouped((part(r.cell, shared), r) for r in side) for side in (theirs, ours))
    return [(first[level], second[level]) for level in first if level in second]


def _first(by_group: Mapping[str, BySeed], groups: Sequence[str]) -> Example | None:
    """A prompt under all groups, in the first seed that all of them have."""
    seeds = sorted(set.intersection(*(set(by_group.get(group, {})) for group in groups)))
    if not seeds:
        return None
    means = tuple(sum(_mean(by_group[group][seed]) for seed in seeds) / len(seeds) for group in groups)
    return Example(None, means, len(seeds), seeds[0], tuple(by_group[group][seeds[0]][0] for group in groups))


def _mean(recorded: Sequence[Response]) -> float:
    return sum(response.reward for response in recorded) / len(recorded)


# ---------------------------------------------------------------- reading


def _read_log(folder: Path) -> tuple[dict[int, list[int]], int]:
    """Where in a run's file the responses of each step are, those of the newest attempt, and how many lines are bad.
    Read line by line, and only the offsets are kept: such a file may be long."""
    by_attempt: dict[int, dict[int, list[int]]] = {}
    bad = offset = 0
    with contextlib.suppress(FileNotFoundError), open(responses_path(folder), "rb") as file:
        for line in file:
            row = _row(line) if line.strip() else None
            if row is not None:
                by_attempt.setdefault(row[0], {}).setdefault(row[1], []).append(offset)
            elif line.strip():
                bad += 1
            offset += len(line)
    return standing(by_attempt), bad


def _read_rows(folder: Path, offsets: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    with open(responses_path(folder), "rb") as file:
        for offset in offsets:
            file.seek(offset)
            rows.append(_row(file.readline()))
    return [row[2] for row in rows if row is not None]


def _row(line: bytes) -> tuple[int, int, dict[str, Any]] | None:
    """A line as (attempt, step, what it has of a Response); None for a bad one."""
    try:
        row = parsed(line)
        reward = float(row["reward"])
        if not math.isfinite(reward):
            return None
        texts = {key: _text(row[key]) for key in ("id", "prompt", "response")}
        about = {**texts, "reward": reward, "answer": _text(row.get("answer") or "")}
        return int(row.get("attempt") or 1), int(row["step"]), about
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _text(value: Any) -> str:
    """A text that every file can hold: half of a surrogate pair becomes its code."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r}: must be a string")
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_KEPT = "\n\t\u200c\u200d\u00ad"  # also what has no width, but is a part of some scripts and of emoji; the soft hyphen


def visible(text: str) -> str:
    """The text with a visible mark for each character that is invisible or changes the direction of what follows."""
    return "".join(
        f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{ord(char):04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
        if unicodedata.category(char) in _INVISIBLE and char not in _KEPT
        else char
        for char in text
    )
