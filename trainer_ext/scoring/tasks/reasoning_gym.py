"""Puzzles of the package reasoning-gym: any of its generators, with its own score of an answer (docs/tasks.md).

The reward reads the generator, its settings and the puzzle from the prompt's metadata, so that it also works for
prepared prompts (`task=file`, plain verl). Some generators depend on the order of Python's sets: puzzles are made in a
process of their own, where that order is fixed. `python -m trainer_ext.scoring.tasks.reasoning_gym` is that process.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer_ext.objection import Objection
from trainer_ext.registry import instead
from trainer_ext.scoring.tasks import Row, task

_MOST_S = 600  # some generators search for ever with settings that have no puzzle
_ROOT = Path(__file__).parents[3]
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@task("reasoning_gym")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """`task.size` puzzles of `task.generator` with `task.settings` and `task.seed`.

    Objection: the package is not installed, it has no such generator, or the generator refuses the settings.
    """
    _check(task)
    settings = json.dumps({**(task["settings"] or {}), "size": task["size"], "seed": task["seed"]})
    found = []
    for text in _entries(task["generator"], settings):
        entry = ast.literal_eval(text)
        answer = entry["answer"] or ""  # several generators have puzzles with many solutions and name none
        found.append(
            Row(
                entry["question"],
                answer,
                worked_answer=f"<answer>{answer}</answer>",
                system=task["system_prompt"] or "",
                metadata={"generator": task["generator"], "settings": settings, "entry": text},
            )
        )
    return found


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The puzzle's own answer, or with probability `random_fraction` an empty one."""
    return "<answer></answer>" if generator.random() < random_fraction else row.worked_answer


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any]
) -> dict[str, float]:
    """The package's own score of the answer: what stands in the last <answer></answer>, or else the whole response.

    unreadable: 1.0 if the package cannot read the answer; the score is then 0.
    """
    tagged = _ANSWER.findall(solution_str)
    answer = (tagged[-1] if tagged else solution_str).strip()
    dataset = _dataset(extra_info["generator"], extra_info["settings"])
    entry = ast.literal_eval(extra_info["entry"])
    try:
        return {"score": float(dataset.score_answer(answer, entry)), "unreadable": 0.0}
    except Exception:  # of the package's parsers, which some generators let through
        return {"score": 0.0, "unreadable": 1.0}


def _check(task: Mapping[str, Any]) -> None:
    """Objection: the generator or its settings cannot be used."""
    if importlib.util.find_spec("reasoning_gym") is None:
        fix = "install it (make puzzles), or choose another task"
        raise Objection("task.name", task["name"], "the package reasoning-gym is not installed", fix)
    from reasoning_gym.factory import DATASETS

    name, settings = task["generator"], task["settings"] or {}
    if name not in DATASETS:
        rule = f"reasoning-gym has no such generator; it has {', '.join(sorted(DATASETS))}"
        raise Objection("task.generator", name, rule, instead(name, DATASETS, "choose one of them"))
    kind, config = DATASETS[name]
    known = [one.name for one in dataclasses.fields(config) if one.init and one.name not in ("size", "seed")]
    for key in settings:
        if key in ("size", "seed"):
            fix = f"set task.{key}"
            raise Objection(f"task.settings.{key}", settings[key], f"task.{key} is for this", fix)
        if key not in known:
            rule = f"the generator {name} has no such setting; it has {', '.join(known)}"
            raise Objection(f"task.settings.{key}", settings[key], rule, instead(key, known, "remove it"))
    try:
        kind(config=config(**settings, size=task["size"], seed=task["seed"]))
    except Exception as error:  # the package checks by assertions
        what = " ".join(str(error).split()) or type(error).__name__
        fix = f"correct task.settings; the generator {name} has the settings {', '.join(known)}"
        raise Objection("task.settings", settings, f"the generator {name} refuses them: {what}", fix) from error


def _entries(generator: str, settings: str) -> list[str]:
    """The puzzles as Python's literals (JSON has no tuples), made in a process with a fixed order of sets."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainer_ext.scoring.tasks.reasoning_gym"],
            input=json.dumps([generator, settings]),
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)},
            cwd=_ROOT,
            timeout=_MOST_S,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired as error:
        rule = f"the generator {generator} makes no puzzles with them within {_MOST_S} s"
        fix = "choose other settings, or a smaller task.size"
        raise Objection("task.settings", json.loads(settings), rule, fix) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
        rule = f"the generator {generator} fails: {lines[-1]}"
        fix = "correct the settings, or choose another generator"
        raise Objection("task.settings", json.loads(settings), rule, fix)
    return done.stdout.splitlines()


@lru_cache(maxsize=8)
def _dataset(generator: str, settings: str) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(generator, **json.loads(settings))


if __name__ == "__main__":
    import numpy as np

    asked = json.load(sys.stdin)
    np.set_printoptions(legacy="1.25")  # numpy's numbers and texts are written as Python's
    with redirect_stdout(sys.stderr):
        puzzles = _dataset(*asked)
        made = [repr(puzzles[index]) for index in range(len(puzzles))]  # some do not end their iteration
        for text in made:
            ast.literal_eval(text)  # ValueError: a value is no data
    print("\n".join(made))
