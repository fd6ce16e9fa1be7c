"""python -m launcher evaluate: evaluate a run's checkpoint on more prompts or other data, or a model in a folder.

The evaluation is one as the run makes it (docs/evaluation.md), and leaves the run's folder as it is. With the run's own
settings, data and reward it finds the same rewards as the run did.
Exit codes: 0 fine, 2 no such run or checkpoint, or an evaluation that cannot be made.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import files
from launcher.commands import completion, output, selection
from launcher.errors import Usage
from launcher.project import EXIT_FINE, ROOT
from launcher.run.folder import cache_folder, multirun_of, read_config, run_folder
from launcher.text import nearest
from trainer_ext.application.verl_tree import completed

SCORES = "trainer.eval_scores"
COLUMNS = ("prompt", "response", "reward", "ground_truth", "split", "sample")
HELP = "evaluate a run's checkpoint again, on more prompts or other data, or a model in a folder"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, its checkpoint, how much to ask, and changes of the run's task."""
    completion.add_run(parser, "RUN|FOLDER", "a run's id, or its beginning; or the folder of a model, with task=NAME")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="other data, such as task.test_path=FILE; further scores, such as trainer.eval_scores.rouge_l={}; "
        "of a model any settings of a run",
    )
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest that the run has")
    parser.add_argument("--prompts", type=int, metavar="N", help="of each split; default: trainer.eval_prompts")
    parser.add_argument("--samples", type=int, metavar="K", help="for each prompt; default: trainer.eval_samples")
    parser.add_argument("--to", type=Path, metavar="DIR", help="a new folder for metrics.json and answers.parquet")


def run(given: argparse.Namespace) -> int:
    """JSON: run, step, seed, method, model, task, changes, metrics; of a model: folder, seed, task, metrics."""
    out = None if given.to is None else selection.new_folder("--to", given.to)
    model = Path(given.run).expanduser()
    is_model = (model / "config.json").is_file()
    what, about, metrics, answers = _of_model(given, model) if is_model else _of_run(given)
    found = {**about, "metrics": metrics}
    if out is not None:
        write(found, answers, out)
    prompts = len({(answer["split"], answer["prompt"]) for answer in answers})
    width = max(map(len, metrics))
    lines = [f"{what}: {len(answers)} responses to {prompts} prompts"]
    lines += [f"  {name:<{width}}  {value:.4g}" for name, value in metrics.items()]
    lines += [f"{out}: metrics.json and answers.parquet"] if out is not None else []
    output(given, found, lines)
    return EXIT_FINE


#: What is evaluated, in words and as values; its metrics (docs/metrics.md); each response with its prompt and numbers.
_Evaluated = tuple[str, dict[str, Any], dict[str, float], list[dict[str, Any]]]


def _of_run(given: argparse.Namespace) -> _Evaluated:
    """Evaluate a run's checkpoint. Usage: it cannot be evaluated so."""
    with selection.checkpoint(given) as (folder, step, checkpoint):
        from trainer_ext.backends import protocol

        frozen = read_config(folder)
        changes = _changes(frozen, given.overrides, folder.name)
        changes["trainer"] = _counts(given) | changes["trainer"]
        config = completed(folder, frozen)
        if "split" not in config["trainer"]:
            why = "an older version planned it and kept no prompts back, so there is nothing to evaluate it on"
            raise ValueError(why)
        for section, values in changes.items():
            config[section].update(values)
        about = {**origin(folder, config, step), "changes": {key: values for key, values in changes.items() if values}}
        found = _evaluated(protocol.evaluate, config, checkpoint, cache_folder(multirun_of(folder)), step)
    return f"run {folder.name} after step {step}", about, *found


def _of_model(given: argparse.Namespace, model: Path) -> _Evaluated:
    """Evaluate a model in a folder as a run that starts from it would. Raises InvalidPlan if no run could."""
    from launcher.planning import freeze, planner
    from trainer_ext.backends import protocol

    if given.checkpoint is not None:
        raise Usage(f"--checkpoint {given.checkpoint}: {model} is a model, not a run. Fix: remove --checkpoint")
    if not any(word.startswith("task=") for word in given.overrides):
        raise Usage(f"{model} is a model's folder, so the task must be given. Fix: add task=NAME, such as task=gsm8k")
    words = ["method=c0_grpo", "model=pretrained", f"model.path={json.dumps(str(model.resolve()))}", "seed=0"]
    words += ["trainer.eval_every=1", *(f"trainer.{key}={value}" for key, value in _counts(given).items())]
    with tempfile.TemporaryDirectory(prefix="rlsweep-") as temporary:
        plan = planner.make(ROOT, [*words, *given.overrides, f"multirun={temporary}"])
        if len(plan.runs) != 1:
            raise Usage(f"{' '.join(given.overrides)}: these are {len(plan.runs)} configurations; give one")
        freeze.freeze(plan)
        planned = run_folder(plan.multirun, *plan.runs)
        config, cache = read_config(planned), cache_folder(given.multirun.resolve())
        about = {"folder": str(model), "seed": config["seed"], "task": config["task"]["name"]}
        try:
            found = _evaluated(protocol.evaluate_model, completed(planned, config), model, cache, 0)
        except ValueError as error:
            raise Usage(f"{model}: {error}") from error
    return str(model), about, *found


def _changes(config: Mapping[str, Any], overrides: Sequence[str], run: str) -> dict[str, dict[str, Any]]:
    """Other values for keys of the run's section `task`, and scores beside the run's. Usage: there is no such key."""
    from omegaconf import OmegaConf

    keys = [f"task.{name}" for name in config["task"] if name != "name"]
    for override in overrides:
        key, sign, _ = override.partition("=")
        if not sign or not (key in keys or key.startswith(f"{SCORES}.")):
            known = [key for key in keys if key != "task.warm_start"]
            close = nearest(key, known)
            meant = f". Fix: write {close}=VALUE" if close and close != key else ""
            rule = f"must be KEY=VALUE with a key of run {run}'s task: {', '.join(known)}; or {SCORES}.NAME={{}}"
            raise Usage(f"{override}: {rule}{meant}")
    given = OmegaConf.from_dotlist(list(overrides))
    before = {"trainer": {"eval_scores": config["trainer"].get("eval_scores") or {}}} if "trainer" in given else {}
    changed: Any = OmegaConf.to_container(OmegaConf.merge(before, given))
    return {section: changed.get(section, {}) for section in ("task", "trainer")}


def _counts(given: argparse.Namespace) -> dict[str, int]:
    counts = {"eval_prompts": given.prompts, "eval_samples": given.samples}
    for option, value in (("--prompts", given.prompts), ("--samples", given.samples)):
        if value is not None and value < 1:
            raise Usage(f"{option} {value}: must be 1 or more")
    return {key: value for key, value in counts.items() if value is not None}


# ---------------------------------------------------------------- evaluations


def _evaluated(
    function: Callable[..., Any], config: Any, weights: Path, cache: Path, step: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    from trainer_ext.scoring.scores import evaluation

    answers = function(config, weights, cache, step)
    trainer = config["trainer"]
    metrics = evaluation.metrics(answers, float(trainer["eval_solved"]), trainer.get("eval_pass") or ())
    return metrics, [{name: getattr(answer, name) for name in COLUMNS} | answer.numbers for answer in answers]


def write(found: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write metrics.json and answers.parquet to a new folder, which appears when both are complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.new_folder(out) as draft:
        files.write_json(draft / "metrics.json", found)
        # responses to test prompts alone have scores
        columns = dict.fromkeys(name for answer in answers for name in answer)
        table = pa.table({name: [answer.get(name) for answer in answers] for name in columns})
        pq.write_table(table, draft / "answers.parquet")


def origin(folder: Path, config: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Where the weights of a checkpoint come from: run, step, seed, method, model and task."""
    names = {name: config[name]["name"] for name in ("method", "model", "task")}
    return {"run": folder.name, "step": step, "seed": config["seed"], **names}
