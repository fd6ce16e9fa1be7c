"""Makes a reward model: a classifier with one label, trained on pairs of responses of which one was preferred.

The loss of a pair is that of Bradley and Terry (1952): -log sigmoid(score of the chosen - score of the rejected).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoTokenizer, get_linear_schedule_with_warmup

from trainer_ext.scoring.reward_models.folders import TEMPLATE, Pair, Settings
from trainer_ext.scoring.reward_models.scoring import BATCH, Encoder, Model, device, load, logits

LEVEL = 0.95  # level of the interval of an accuracy
BINS = 10  # rows of the reliability table

#: Of the chosen response, and of the rejected one.
_Tokens = tuple[list[int], list[int]]


def train(
    train: Sequence[Pair],
    validation: Sequence[Pair],
    model: str,
    folder: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train a classifier that starts from `model`, and write it to the empty `folder` with its tokenizer.

    model: a folder or a name on the Hugging Face hub; say: gets the progress, a line at a time. Returns what the
    training was, in JSON's types. The result is the model at the check with the least validation loss. ValueError: the
    model cannot read so many tokens, or its tokenizer does not fit.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except OSError as error:
        fix = "name a folder with a model and its tokenizer, or one that the Hugging Face hub has"
        raise ValueError(f"--model {model}: it cannot be loaded: {str(error).splitlines()[0]} Fix: {fix}") from error
    own_template = tokenizer.chat_template is not None
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    encoder = Encoder(tokenizer, settings.max_length)
    cuda = [torch.cuda.current_device()] if device() == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(settings.seed)
        module, _ = load(model, encoder, num_labels=1, ignore_mismatched_sizes=True)
        module = module.to(device())
        if encoder.longest < settings.max_length:
            fix = f"set max_length={encoder.longest} or less, or choose another model"
            raise ValueError(f"max_length={settings.max_length}: the model reads at most {encoder.longest}. Fix: {fix}")
        embedded = module.get_input_embeddings().num_embeddings
        if len(tokenizer) > embedded:
            rule = f"its tokenizer has {len(tokenizer)} tokens, and its embedding only {embedded}"
            raise ValueError(f"{model}: {rule}. Fix: put the model's own tokenizer there")
        tokens, checked = ([_tokens(encoder, pair) for pair in pairs] for pairs in (train, validation))
        history = _fit(module, encoder, tokens, checked, settings, say)
    module.save_pretrained(folder)
    tokenizer.model_max_length = settings.max_length
    tokenizer.save_pretrained(folder)
    best = min(history, key=lambda entry: entry["validation_loss"])
    return {
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "template": "the tokenizer's own" if own_template else TEMPLATE,
        "cut_conversations": {"count": encoder.cut, "of": 2 * (len(train) + len(validation))},
        "history": history,
        "chosen_step": best["step"],
    }


def _tokens(encoder: Encoder, pair: Pair) -> _Tokens:
    return encoder.conversation(pair.messages, pair.chosen), encoder.conversation(pair.messages, pair.rejected)


def _fit(
    module: Any,
    encoder: Encoder,
    tokens: Sequence[_Tokens],
    checked: Sequence[_Tokens],
    settings: Settings,
    say: Callable[[str], None],
) -> list[dict[str, float]]:
    """Train `module`, which ends as it was at the best check; what each check found."""
    every = math.ceil(len(tokens) / settings.batch_size)
    total = settings.epochs * every
    checks = {math.ceil(number * every / settings.checks) for number in range(1, settings.checks + 1)}  # in an epoch
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    schedule = get_linear_schedule_with_warmup(optimizer, round(settings.warmup * total), total)
    history: list[dict[str, float]] = []
    best: dict[str, Tensor] = {}
    losses: list[float] = []
    began = time.monotonic()
    generator = torch.Generator().manual_seed(settings.seed)
    orders = [torch.randperm(len(tokens), generator=generator) for _ in range(settings.epochs)]
    batches = [rows.tolist() for order in orders for rows in order.split(settings.batch_size)]
    for step, rows in enumerate(batches, start=1):
        module.train()
        losses.append(_update(module, encoder, [tokens[row] for row in rows], settings.micro_batch_size))
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step - 1) % every + 1 not in checks:
            continue
        margins = _margins(module.eval(), encoder, checked)
        losses_now = {"step": step, "loss": sum(losses) / len(losses), "validation_loss": _loss(margins)}
        history.append({**losses_now, "validation_accuracy": _share(margins)})
        losses = []
        text = f"validation loss {losses_now['validation_loss']:.4f}, accuracy {history[-1]['validation_accuracy']:.3f}"
        say(f"update {step} of {total}, {time.monotonic() - began:.0f} s: loss {losses_now['loss']:.4f}, {text}")
        if not all(map(math.isfinite, (losses_now["loss"], losses_now["validation_loss"]))):
            raise ValueError(f"the loss is not finite after {step} updates. Fix: set a smaller lr than {settings.lr:g}")
        place = min(range(len(history)), key=lambda i: history[i]["validation_loss"])
        if place == len(history) - 1:
            best = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
        elif len(history) - 1 - place >= settings.patience:
            say(f"no smaller validation loss in {settings.patience} checks: the training ends")
            break
    module.load_state_dict(best)
    module.eval()
    return history


def _update(module: Any, encoder: Encoder, pairs: Sequence[_Tokens], micro: int) -> float:
    """Add the gradient of the mean loss of these pairs, and return the loss."""
    whole = 0.0
    for first in range(0, len(pairs), micro):
        loss = -logsigmoid(_differences(module, encoder, pairs[first : first + micro])).sum() / len(pairs)
        loss.backward()
        whole += float(loss.detach())
    return whole


def _differences(module: Any, encoder: Encoder, pairs: Sequence[_Tokens]) -> Tensor:
    """Score of the chosen less score of the rejected, (pairs,)."""
    chosen, rejected = zip(*pairs, strict=True)
    return torch.sub(*logits(module, encoder, [*chosen, *rejected])[:, 0].chunk(2))


@torch.inference_mode()
def _margins(module: Any, encoder: Encoder, pairs: Sequence[_Tokens]) -> list[float]:
    """`_differences` of any number of pairs."""
    parts = (pairs[first : first + BATCH // 2] for first in range(0, len(pairs), BATCH // 2))
    return [margin for part in parts for margin in _differences(module, encoder, part).double().tolist()]


# ---------------------------------------------------------------- what a model is worth


def evaluation(folder: Path, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy and calibration of the reward model in a folder on pairs that it was not trained on, in JSON's types.

    expected_calibration_error: the mean over pairs of |predicted - observed| of their bin, where sigmoid of the larger
    less the smaller score predicts that the response with the larger one is preferred.
    """
    asked = [(pair.messages, text) for pair in pairs for text in (pair.chosen, pair.rejected)]
    scores = Model(folder).scores(asked)
    margins = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
    table = _reliability(margins)
    error = sum(row["pairs"] * abs(row["predicted"] - row["observed"]) for row in table) / len(margins)
    return {
        "pairs": len(pairs),
        "accuracy": _share(margins),
        "interval": list(_interval(_share(margins), len(margins))),
        "level": LEVEL,
        "loss": _loss(margins),
        "expected_calibration_error": error,
        "reliability": table,
    }


def _loss(margins: Sequence[float]) -> float:
    return float(-logsigmoid(torch.tensor(margins, dtype=torch.double)).mean())


def _share(margins: Sequence[float]) -> float:
    """The share of pairs whose chosen response has the larger score; a tie is half a pair."""
    return sum((margin > 0) + (margin == 0) / 2 for margin in margins) / len(margins)


def _interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share of independent pairs."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def _reliability(margins: Sequence[float]) -> list[dict[str, Any]]:
    """Pairs by what the model predicts, from 0.5 to 1 in bins of equal width, without empty ones."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for margin in margins:
        predicted = 1 / (1 + math.exp(-min(abs(margin), 700.0)))
        place = min(BINS - 1, int((predicted - 0.5) * 2 * BINS))
        bins.setdefault(place, []).append((predicted, (margin > 0) + (margin == 0) / 2))
    return [
        {
            "from": 0.5 + place / (2 * BINS),
            "to": 0.5 + (place + 1) / (2 * BINS),
            "pairs": len(in_bin),
            "predicted": sum(chance for chance, _ in in_bin) / len(in_bin),
            "observed": sum(right for _, right in in_bin) / len(in_bin),
        }
        for place, in_bin in sorted(bins.items())
    ]
