"""python -m analysis judge FOLDER judge.base_url=URL judge.model=NAME [judge.KEY=VALUE ...] [--dry-run]
python -m analysis judge FOLDER --by SCORE [judge.KEY=VALUE ...]
python -m analysis judge export FOLDER --to FILE.html [--pairs N] [--seed S] [judge.KEY=VALUE ...]
python -m analysis judge import FOLDER ANSWERS.json [...]

Exit code 0: every pair is judged, the page is written, or the answers are kept; 1: the judge was not asked about all
pairs, and the same command goes on; 2: nothing can be judged as asked; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.data.sweep import BadPlan, Sweep, read_sweep
from analysis.judging import asking, journal, rating
from analysis.judging.asking import Ended, ask
from analysis.judging.pairs import PairsToJudge, pairs, unique
from analysis.judging.results import State, judged, scores
from analysis.judging.settings import (
    BadJudge,
    Judge,
    JudgeSettings,
    Kind,
    PairSelection,
    Tokens,
    check_judge,
    keep_judge,
    language_model,
    read,
    slug,
)
from analysis.spec.validation import counted

_BYTES_A_TOKEN = 4  # of English text, about


def main(words: Sequence[str]) -> int:
    """Run the command line behind `judge`; returns the exit code."""
    command = {"export": _export, "import": _import}.get(words[0] if words else "")
    try:
        return command(words[1:]) if command else _judge(words)
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error}. Fix: correct it, and run the command again: it goes on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


def as_declared(folder: Path) -> int:
    """Ask the judge that the experiment declares in analysis.win_rate; the exit code of `judge`, 0 without one."""
    try:
        declares = _declared(read_sweep(folder))
    except BadPlan:  # the report says so
        return 2
    if not declares:
        return 0
    return main([str(folder)] if declares.get("base_url") else [str(folder), "--by", "reward"])


def _declared(sweep: Sweep) -> Mapping[str, Any]:
    section = sweep.plan.get("analysis") or {}
    return {key: value for key, value in (section.get("win_rate") or {}).items() if value is not None}


def _parser(name: str, description: str, settings: bool = True) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m analysis {name}", description=description)
    parser.add_argument("folder", type=Path, help="the experiment's folder, such as multirun/quickstart")
    if settings:
        words = "the judge and its limits; docs/schemas/judge.json lists the keys"
        parser.add_argument("settings", nargs="*", metavar="judge.KEY=VALUE", help=words)
    return parser


# ---------------------------------------------------------------- judge


def _judge(words: Sequence[str]) -> int:
    parser = _parser("judge", "Ask a judge which of two methods' responses to a prompt is better.")
    parser.epilog = "judge export and judge import: human preference; `python -m analysis judge export --help`"
    parser.add_argument("--by", metavar="SCORE", help="a score that the runs have kept decides, such as reward")
    parser.add_argument("--dry-run", action="store_true", help="say what would be asked and what it costs, and stop")
    given = parser.parse_intermixed_args(words)
    sweep = read_sweep(given.folder)
    if given.by is not None:
        return _by_score(given, sweep)
    settings = read(given.settings, JudgeSettings, _declared(sweep))
    chosen = pairs(sweep, settings)
    file = journal.path(sweep.folder.parent, settings.identity)
    asking.Endpoint(settings)  # BadJudge if there is no key
    print("\n".join(_intent(sweep, chosen, settings, journal.read(file))), flush=True)
    if given.dry_run:
        return 0
    judge = check_judge(sweep.folder, language_model(settings))
    keys = unique(chosen.pairs, settings.identity)
    with journal.opened(file, sweep.folder.resolve().name) as kept:
        try:
            ended, why = ask(keys, settings, kept)
        finally:  # a judge is declared once it has answered something
            if any(asked.verdict or asked.unread for asked in map(kept.content.entry, keys)) or not keys:
                keep_judge(sweep.folder, judge)
        left = sum(not kept.content.entry(key).decided(settings.attempts) for key in keys)
        spent = kept.spent()
    for line in _summary(sweep, judge.name, f"Used by this experiment: {_spent(spent, settings)}."):
        print(line)
    if ended is Ended.INTERRUPTED:
        raise KeyboardInterrupt
    if left:
        why = f"{why}: wait until the server answers"
        if ended is Ended.BUDGET:
            why = f"the budget is used up ({_budget(settings)}): raise it"
        print(f"{counted(left, 'request')} left; {why}, and run the command again: it goes on", file=sys.stderr)
        return 1
    print(f"Next: python -m analysis report {given.folder}")
    return 0


def _intent(sweep: Sweep, chosen: PairsToJudge, settings: JudgeSettings, content: journal.Content) -> list[str]:
    """What is going to be asked, and what it costs."""
    keys = unique(chosen.pairs, settings.identity)
    left = {key: shown for key, shown in keys.items() if not content.entry(key).decided(settings.attempts)}
    size, most = 0, Tokens()
    for key, shown in left.items():
        messages = asking.messages(settings, *shown, key[:8])
        size += sum(len(message["content"].encode()) for message in messages)
        most += asking.most_tokens(messages, settings)
    about = Tokens(size // _BYTES_A_TOKEN, most.output)
    lines = [
        *_pairs(sweep, chosen),
        f"Judge: {settings.model} at {settings.host}, both orders: {counted(len(keys), 'request')}, of which "
        f"{len(keys) - len(left)} are answered already.",
    ]
    if left:
        tokens = f"about {about.input:,} tokens of requests (at most {most.input:,})"
        lines.append(f"To ask: {counted(len(left), 'request')}, {tokens} and at most {most.output:,} of answers.")
        costs = settings.cost(about), settings.cost(most)
        if costs[0] is not None and costs[1] is not None:
            lines.append(
                f"Cost: about {costs[0]:.4g} if every answer takes its {settings.answer_tokens} tokens, at most "
                f"{costs[1]:.4g}; repeated requests come on top."
            )
    if budget := _budget(settings):
        spent = content.tokens(sweep.folder.resolve().name)
        lines.append(f"Budget of this experiment: {budget}; used so far: {_spent(spent, settings)}.")
    return lines


def _pairs(sweep: Sweep, chosen: PairsToJudge) -> list[str]:
    labels = sweep.labels
    named = "; ".join(f"{labels[own]} against {labels[other]}" for own, other in chosen.contrasts)
    equal = sum(pair.equal for pair in chosen.pairs)
    lines = [
        f"{sweep.folder}: {counted(len(chosen.pairs), 'pair')} of responses to {counted(chosen.prompts, 'prompt')} "
        f"after step {', '.join(map(str, sorted(chosen.steps)))}.",
        f"Compared: {named}.",
    ]
    if equal:
        lines.append(f"{counted(equal, 'pair')} of equal texts: ties, which nobody is asked about.")
    if chosen.too_long:
        lines.append(f"{counted(chosen.too_long, 'pair')} left out: longer than judge.max_characters.")
    lines += [f"Without responses: {gap}." for gap in chosen.gaps]
    return lines


def _budget(settings: JudgeSettings) -> str:
    tokens, cost = settings.max_tokens_total, settings.max_cost
    parts = [f"{tokens:,} tokens" if tokens is not None else "", f"a cost of {cost:g}" if cost is not None else ""]
    return " and ".join(filter(None, parts))


def _spent(tokens: Tokens, settings: JudgeSettings) -> str:
    cost = settings.cost(tokens)
    return f"{tokens.all:,} tokens{'' if cost is None else f', a cost of {cost:.4g}'}"


def _summary(sweep: Sweep, name: str, used: str = "") -> list[str]:
    """What a judge has said so far, of the runs and, if people judge, of each other."""
    results = next((results for results in judged(sweep) if results.judge.name == name), None)
    if results is None:
        return []
    counts = [f"{results.count(state)} {state}" for state in State if results.count(state)]
    lines = [f"Pairs: {', '.join(counts)}.", *([used] if used else [])]
    against = results.against(sweep)
    rates = results.win_rates(against)
    for group in sweep.groups:
        own = [rate for (of, _), rate in rates.items() if of == group]
        if own and group != against:
            over = sweep.label(str(against))
            lines.append(
                f"{sweep.label(group)} against {over}: win rate {sum(own) / len(own):.3f} ({counted(len(own), 'run')})"
            )
    for both in results.raters:
        kappa = "no kappa" if both.kappa is None else f"kappa {both.kappa:.2f}"
        names, common = " and ".join(both.names), counted(both.pairs, "common pair")
        lines.append(f"{names}: {both.same:.0%} of {common} alike, {kappa}")
    return lines


def _by_score(given: argparse.Namespace, sweep: Sweep) -> int:
    choice = read(given.settings, PairSelection, _declared(sweep))
    chosen = pairs(sweep, choice)
    name = choice.name or slug(given.by)
    judge = Judge(name=name, kind=Kind.SCORE, asked={"score": given.by}, choice=choice)
    scores(sweep, chosen, given.by)  # BadJudge before anything is written
    print("\n".join(_pairs(sweep, chosen)))
    if given.dry_run:
        return 0
    keep_judge(sweep.folder, judge)
    print("\n".join(_summary(sweep, name)))
    print(f"Next: python -m analysis report {given.folder}")
    return 0


# ---------------------------------------------------------------- people


def _export(words: Sequence[str]) -> int:
    parser = _parser("judge export", "Write a page of blind pairs, on which people choose the better response.")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE.html", help="the page; it needs no network")
    parser.add_argument("--pairs", type=int, metavar="N", help="show so many pairs, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draw, the order and the sides")
    given = parser.parse_intermixed_args(words)
    if given.pairs is not None and given.pairs < 1:
        raise BadJudge(f"command line: --pairs {given.pairs}: must be 1 or more. Fix: leave it out for all pairs")
    if given.to.exists():
        raise BadJudge(f"command line: --to {given.to}: the file exists. Fix: choose another name, or delete it")
    sweep = read_sweep(given.folder)
    key, shown, of = rating.export(
        sweep, given.to, read(given.settings, PairSelection, _declared(sweep)), given.pairs, given.seed
    )
    print(f"Page: {given.to} ({shown} of {of} pairs)\nKey: {key}; raters must not see it")
    print(f"Next: python -m analysis judge import {given.folder} ANSWERS.json, with the files that raters save")
    return 0


def _import(words: Sequence[str]) -> int:
    parser = _parser("judge import", "Keep the answers that raters saved from the page of `judge export`.", False)
    parser.add_argument("answers", type=Path, nargs="+", metavar="ANSWERS.json")
    given = parser.parse_intermixed_args(words)
    sweep = read_sweep(given.folder)
    print("\n".join([*rating.import_answers(sweep, given.answers), *_summary(sweep, rating.NAME)]))
    print(f"Next: python -m analysis report {given.folder}")
    return 0
