"""What an evaluation says: the policy's responses to fixed prompts of each split, as metrics; and the best evaluation.

Pure: no files, no globals, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean

from trainer_ext.scoring import rewards
from trainer_ext.scoring.rewards import texts
from trainer_ext.scoring.tasks import TEST, TRAIN, VALIDATION

#: In the place of a split: a response to a test prompt that is kept for judges alone.
JUDGED = "judged"


@dataclass(frozen=True)
class Answer:
    """A response of the policy to a prompt, its reward, and what it was checked against.

    split: of the prompt (tasks.SPLITS), or JUDGED. sample: the number of the response among those that were drawn for
    the prompt, from 0; None: the greedy one, of the most likely token at each position. metrics: further numbers of
    its reward. scores: those of trainer.eval_scores, of a response to a test prompt.
    """

    prompt: str
    response: str
    reward: float
    ground_truth: str
    split: str
    sample: int | None
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    scores: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def numbers(self) -> dict[str, float]:
        """All further numbers, by the names that they have in files."""
        return {**{rewards.metric(name): value for name, value in self.metrics.items()}, **self.scores}


def pass_at(k: int, samples: int, solved: int) -> float:
    """The probability that at least one of k responses solves a prompt, of which `solved` of `samples` did.

    Unbiased (Chen et al. 2021, equation 1): the share of the subsets of k responses that hold a solution.
    """
    return 1 - comb(samples - solved, k) / comb(samples, k)


def pass_counts(samples: int, further: Sequence[int] = ()) -> list[int]:
    """The k of eval/pass@k: the powers of two and the `further` ones, up to the number of responses to a prompt."""
    return sorted({2**power for power in range(samples.bit_length())} | {k for k in further if k <= samples})


def metrics(answers: Sequence[Answer], solved_at: float, also: Sequence[int] = ()) -> dict[str, float]:
    """The `eval/*` metrics of one evaluation (docs/metrics.md).

    answers: for each prompt the same number of drawn responses, and a greedy one. solved_at: a response with a reward
    of at least this solves its prompt. also: k of eval/pass@k beside the powers of two. ValueError: not all
    responses have the same further numbers.
    """

    def mean(split: str, greedy: bool = False) -> float:
        return fmean(one.reward for one in answers if one.split == split and (one.sample is None) == greedy)

    drawn = [one for one in answers if one.split == TEST and one.sample is not None]
    by_prompt: dict[str, list[Answer]] = {}
    for one in drawn:
        by_prompt.setdefault(one.prompt, []).append(one)
    solved = [[one.reward >= solved_at for one in own] for own in by_prompt.values()]
    samples = len(solved[0])
    passed = {k: fmean(pass_at(k, samples, sum(own)) for own in solved) for k in pass_counts(samples, also)}
    further = rewards.means([one.metrics for one in drawn])
    return {
        **{metric(name): value for name, value in further.items()},
        **{f"eval/{name}": fmean(one.scores[name] for one in drawn) for name in drawn[0].scores},
        **_differences([[one.response for one in own] for own in by_prompt.values()]),
        "eval/reward_mean": mean(TEST),
        "eval/greedy_reward_mean": mean(TEST, greedy=True),
        "eval/validation_reward_mean": mean(VALIDATION),
        "eval/train_reward_mean": mean(TRAIN),
        **{f"eval/pass@{k}": value for k, value in passed.items()},
    }


def _differences(responses: Sequence[Sequence[str]]) -> dict[str, float]:
    """How long the responses to each prompt are, how they differ from each other, and how they repeat themselves."""
    every = [text for own in responses for text in own]
    distinct = {n: [texts.distinct(own, n) for own in responses] for n in (1, 2)}
    values = {
        f"eval/distinct_{n}": fmean([share for share in shares if share is not None] or [0.0])
        for n, shares in distinct.items()
    }
    if len(responses[0]) > 1:
        values["eval/self_bleu"] = fmean(map(texts.self_bleu, responses))
    return {
        **values,
        "eval/repetition": fmean(map(texts.repetition, every)),
        "eval/empty": fmean(not text.strip() for text in every),
        "eval/words": fmean(len(texts.words(text)) for text in every),
    }


def metric(name: str) -> str:
    """The metric of an evaluation for a further number of its rewards."""
    return f"eval/{rewards.metric(name)}"


@dataclass(frozen=True)
class Best:
    """The evaluation with the highest reward on validation prompts, the first of equals.

    reward_mean: its reward on test prompts. The choice looks at none of them.
    """

    step: int
    validation_reward_mean: float
    reward_mean: float


def better(best: Best | None, step: int, values: dict[str, float]) -> Best:
    """The best evaluation up to this step; values: the metrics of the step's evaluation."""
    validation = values["eval/validation_reward_mean"]
    if best is not None and validation <= best.validation_reward_mean:
        return best
    return Best(step, validation, values["eval/reward_mean"])
