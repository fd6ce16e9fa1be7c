"""A score of responses that the runs have kept: the reward, or a further number of an evaluation."""

from __future__ import annotations

from analysis.data.sweep import Sweep
from analysis.judging.pairs import Pairs
from analysis.judging.settings import BadJudge
from launcher.run import evaluations
from launcher.run.folder import run_folder

REWARD = "reward"
_SHOWN = ("test", 0)  # split and sample of the responses that responses.jsonl keeps


def scores(sweep: Sweep, chosen: Pairs, name: str) -> dict[tuple[str, str, int], float]:
    """By (run id, prompt id, step), the score of the response of these pairs. Raises BadJudge where a run has no such
    score of a response."""
    shown = [(side, pair.step) for pair in chosen.pairs for side in (pair.own, pair.other)]
    if name == REWARD:
        return {(one.run, one.answer.id, step): one.answer.reward for one, step in shown}
    found: dict[tuple[str, str, int], float] = {}
    known = {REWARD}
    for run, step in dict.fromkeys((one.run, step) for one, step in shown):
        try:
            rows = evaluations.read(run_folder(sweep.folder.parent, run), step)
        except (OSError, ValueError) as error:
            raise BadJudge(f"--by {name}: {error}. Fix: use --by {REWARD}, which responses.jsonl has") from error
        for row in rows:
            known |= row.numbers.keys()
            if (row.split, row.sample) == _SHOWN and name in row.numbers:
                found[run, row.prompt, step] = row.numbers[name]
    lacking = next((one for one, step in shown if (one.run, one.answer.id, step) not in found), None)
    if lacking is not None:
        raise BadJudge(
            f"--by {name}: run {lacking.run} has no such score of its response to prompt {lacking.answer.id}. "
            f"Fix: use one of the scores that the runs have: {', '.join(sorted(known))}"
        )
    return found
