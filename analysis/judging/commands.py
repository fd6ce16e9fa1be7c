"""python -m analysis judge FOLDER judge.base_url=URL judge.model=NAME [judge.KEY=VALUE ...] [--dry-run]
python -m analysis judge FOLDER --by SCORE [judge.KEY=VALUE ...]

Exit code 0: every pair is judged; 1: the judge was not asked about all pairs, and the same command goes on; 2: nothing
can be judged as asked; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.data.sweep import BadPlan, Sweep, read_sweep
from analysis.judging import asking, journal, settings
from analysis.judging.pairs import PairsToJudge, pairs, unique
from analysis.judging.results import State, judged, scores
from analysis.judging.settings import Judge, JudgeSettings, Kind, Tokens
from analysis.spec.settings import PairSelection
from analysis.spec.validation import counted

_BYTES_A_TOKEN = 4  # about, for English text


def main(words: Sequence[str]) -> int:
    """Run the command line behind `judge`; returns the exit code."""
    try:
        return int(_judge(words))
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error}. Fix: correct the cause, and run the command again: it goes on", file=sys.stderr)
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


def _judge(words: Sequence[str]) -> bool:
    """Whether some pairs are left, of which the judge was not asked."""
    about = "Ask a judge which of two methods' responses to a prompt is better."
    parser = argparse.ArgumentParser(prog="python -m analysis judge", description=about)
    parser.add_argument("folder", type=Path, help="the experiment's folder, such as multirun/quickstart")
    which = "the judge and its limits; docs/schemas/judge.json lists the keys"
    parser.add_argument("settings", nargs="*", metavar="judge.KEY=VALUE", help=which)
    parser.add_argument("--by", metavar="SCORE", help="a score that the runs have kept decides, such as reward")
    parser.add_argument("--dry-run", action="store_true", help="say what would be asked and what it costs, and stop")
    given = parser.parse_intermixed_args(words)
    sweep = read_sweep(given.folder)
    if given.by is not None:
        left = _by_score(given, sweep)
    else:
        left = _by_model(sweep, settings.read(given.settings, JudgeSettings, _declared(sweep)), given.dry_run)
    if not (left or given.dry_run):
        print(f"Next: python -m analysis report {given.folder}")
    return left


def _by_model(sweep: Sweep, asked: JudgeSettings, dry_run: bool) -> bool:
    chosen, name = pairs(sweep, asked), sweep.folder.name
    keys, file = unique(chosen.pairs, asked.identity), journal.path(sweep.folder.parent, asked.identity)
    asking.Endpoint(asked)  # BadJudge if there is no key
    print("\n".join(_intent(sweep, chosen, keys, asked, journal.read(file))), flush=True)
    if dry_run:
        return False
    judge = settings.check_judge(sweep.folder, settings.language_model(asked))
    with journal.opened(file, name) as kept:
        try:
            why = asking.ask(keys, asked, kept)
        finally:  # a judge is declared once it has answered something
            if any(entry.verdict or entry.unread for entry in map(kept.content.entry, keys)) or not keys:
                settings.keep_judge(sweep.folder, judge)
            used = f"Used by this experiment: {kept.spent().all:,} tokens."
            print("\n".join(_summary(sweep, judge.name, used)))
        left = sum(not kept.content.entry(key).decided(asked.attempts) for key in keys)
    if left:
        print(f"{counted(left, 'request')} left; {why}, and run the command again: it goes on", file=sys.stderr)
    return left > 0


def _intent(
    sweep: Sweep, chosen: PairsToJudge, keys: asking.Keys, asked: JudgeSettings, content: journal.Content
) -> Iterator[str]:
    """What is going to be asked, and what it costs."""
    left = {key: shown for key, shown in keys.items() if not content.entry(key).decided(asked.attempts)}
    sent = [asking.messages(asked, *shown, key[:8]) for key, shown in left.items()]
    most = sum((asking.most_tokens(messages, asked) for messages in sent), Tokens())
    about = Tokens(sum(map(asking.size, sent)) // _BYTES_A_TOKEN, most.output)
    yield from _pairs(sweep, chosen)
    answered = f"of which {len(keys) - len(left)} are answered already"
    yield f"Judge: {asked.model} at {asked.host}, both orders: {counted(len(keys), 'request')}, {answered}."
    if left:
        tokens = f"about {about.input:,} tokens of requests (at most {most.input:,})"
        yield f"To ask: {counted(len(left), 'request')}, {tokens} and at most {most.output:,} of answers."
    if asked.max_tokens_total is not None:
        used = content.tokens(sweep.folder.name).all
        yield f"Budget of this experiment: {asked.max_tokens_total:,} tokens; used so far: {used:,}."


def _pairs(sweep: Sweep, chosen: PairsToJudge) -> Iterator[str]:
    labels = sweep.labels
    steps = ", ".join(map(str, sorted(chosen.steps)))
    of = f"{counted(len(chosen.pairs), 'pair')} of responses to {counted(chosen.prompts, 'prompt')}"
    yield f"{sweep.folder}: {of} after step {steps}."
    yield f"Compared: {'; '.join(f'{labels[own]} against {labels[other]}' for own, other in chosen.contrasts)}."
    if equal := sum(pair.equal for pair in chosen.pairs):
        yield f"{counted(equal, 'pair')} of equal texts: ties, which nobody is asked about."
    if chosen.too_long:
        yield f"{counted(chosen.too_long, 'pair')} left out: longer than judge.max_characters."
    yield from (f"Without responses: {gap}." for gap in chosen.gaps)


def _summary(sweep: Sweep, name: str, used: str = "") -> Iterator[str]:
    """What a judge has said so far of the runs."""
    for results in (results for results in judged(sweep) if results.judge.name == name):
        counts = [f"{results.count(state)} {state}" for state in State if results.count(state)]
        yield f"Pairs: {', '.join(counts)}."
        yield from filter(None, [used])
        against = results.against(sweep)
        rates = results.win_rates(against)
        for group in sweep.groups:
            of_group = [rate for (of, _), rate in rates.items() if of == group]
            if of_group and group != against:
                versus = f"{sweep.label(group)} against {sweep.label(str(against))}"
                yield f"{versus}: win rate {sum(of_group) / len(of_group):.3f} ({counted(len(of_group), 'run')})"


def _by_score(given: argparse.Namespace, sweep: Sweep) -> bool:
    choice = settings.read(given.settings, PairSelection, _declared(sweep))
    chosen = pairs(sweep, choice)
    name = choice.name or settings.slug(given.by)
    scores(sweep, chosen, given.by)  # BadJudge before anything is written
    print("\n".join(_pairs(sweep, chosen)))
    if not given.dry_run:
        judge = Judge(name=name, kind=Kind.SCORE, asked={"score": given.by}, choice=choice)
        settings.keep_judge(sweep.folder, judge)
        print("\n".join(_summary(sweep, name)))
    return False
