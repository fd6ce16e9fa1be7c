"""python -m launcher evaluate: evaluate a run's checkpoint again, on more prompts or other data.

The evaluation is one as the run makes it (docs/evaluation.md), and leaves the run's folder as it is. With the run's own
settings, data and reward it finds the same rewards as the run did.
Exit codes: 0 fine, 2 no such run or checkpoint, or an evaluation that cannot be made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.commands import completion, selection
from launcher.errors import Usage
from launcher.project import EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import read_config
from launcher.text import nearest

HELP = "evaluate a run's checkpoint again, on more prompts or other data"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, its checkpoint, how much to ask, and changes of the run's task."""
    completion.add_run(parser)
    parser.add_argument(
        "overrides", nargs="*", metavar="task.KEY=VALUE", help="other data, such as task.test_path=FILE"
    )
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest that the run has")
    parser.add_argument(
        "--prompts", type=int, metavar="N", help="of each split; default: the run's trainer.eval_prompts"
    )
    parser.add_argument(
        "--samples", type=int, metavar="K", help="for each prompt; default: the run's trainer.eval_samples"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="a new folder for metrics.json and answers.parquet")


def run(given: argparse.Namespace) -> int:
    """JSON: run, step, seed, method, model, task, changes, metrics."""
    folder = catalog.find_run(given.multirun.resolve(), given.run)
    step, checkpoint = selection.checkpoint(folder, given.checkpoint)
    out = None if given.to is None else selection.new_folder("--to", given.to)
    config = read_config(folder)
    changes = {
        "task": _changes(config["task"], given.overrides, folder.name),
        "trainer": _counts(given),
    }
    from launcher.worker.evaluate import evaluate, write

    try:
        found = evaluate(folder, step, checkpoint, changes)
    except FileNotFoundError as error:
        if checkpoint.exists():
            raise Usage(f"run {folder.name}: {error}") from error
        raise Usage(selection.replaced(folder, step)) from None
    except ValueError as error:
        raise Usage(f"run {folder.name}: {error}") from error
    if out is not None:
        write(found, out)
    if given.json:
        print(json.dumps({**found.origin, "metrics": found.metrics}, indent=1))
        return EXIT_FINE
    prompts = len({(answer["split"], answer["prompt"]) for answer in found.answers})
    print(f"run {folder.name} after step {step}: {len(found.answers)} responses to {prompts} prompts")
    width = max(map(len, found.metrics))
    for name, value in found.metrics.items():
        print(f"  {name:<{width}}  {value:.4g}")
    if out is not None:
        print(f"{out}: metrics.json and answers.parquet")
    return EXIT_FINE


def _changes(section: Mapping[str, Any], overrides: Sequence[str], run: str) -> dict[str, Any]:
    """Other values for keys of the run's section `task`. Usage: it has no such key."""
    from omegaconf import OmegaConf

    found = {}
    for override in overrides:
        key, sign, _ = override.partition("=")
        name = key.removeprefix("task.")
        if not sign or name == key or name not in section or name == "name":
            known = [f"task.{one}" for one in section if one not in ("name", "warm_start")]
            close = nearest(key, known)
            meant = f". Fix: write {close}=VALUE" if close and close != key else ""
            raise Usage(f"{override}: must be KEY=VALUE with a key of run {run}'s task: {', '.join(known)}{meant}")
        found[name] = OmegaConf.to_container(OmegaConf.from_dotlist([override]))["task"][name]
    return found


def _counts(given: argparse.Namespace) -> dict[str, int]:
    counts = {"eval_prompts": given.prompts, "eval_samples": given.samples}
    for option, value in (("--prompts", given.prompts), ("--samples", given.samples)):
        if value is not None and value < 1:
            raise Usage(f"{option} {value}: must be 1 or more")
    return {key: value for key, value in counts.items() if value is not None}
