"""Whether a run could start, asked of the trainer before anything is submitted: its task, and its prompts.

Nothing here loads torch. The task's module is imported in this process, as the run imports it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from launcher.project import ROOT
from launcher.text import nearest, one_line

if TYPE_CHECKING:
    from trainer_ext.memory import Architecture, Need

_GB = 1e9
_DOING = {"sampling": "it samples", "scoring": "it scores a micro-batch", "update": "it updates the policy"}


@dataclass(frozen=True)
class Objection:
    """Why a run could not start. file: the one to correct; None: whatever set the key."""

    key: str
    value: Any
    rule: str
    fix: str
    file: str | None = None


@dataclass(frozen=True)
class TaskCheck:
    """What a task offers beside prompts and rewards: `demonstration`, `preference`; and why it cannot be used."""

    functions: tuple[str, ...]
    objections: tuple[Objection, ...]
    metrics: frozenset[str] = frozenset()  # that the task's reward writes


def check_task(section: Mapping[str, Any], local: bool) -> TaskCheck:
    """Import a task's module, and ask it for one prompt and one reward. section: the configuration's `task`.

    local: whether its data are on this machine; otherwise the module is imported and nothing is asked.
    """
    from trainer_ext import tasks

    name = str(section.get("name"))
    try:
        module = tasks.get(name)
    except ValueError:
        close = nearest(name, known := tasks.names())
        fix = f"write task.name={close}" if close else "use one of these, or write the module (docs/add-a-task.md)"
        return TaskCheck(
            (), (Objection("task.name", name, f"there is no such task; there are {', '.join(known)}", fix),)
        )
    except Exception as error:
        return TaskCheck((), (_not_imported(name, error),))
    has = [function for function in ("rows", "compute_score", "reward") if callable(getattr(module, function, None))]
    if "rows" not in has or len(has) < 2:
        missing = "compute_score" if "rows" in has else "rows"
        rule = f"a task has the functions rows and compute_score; missing: {missing}"
        return TaskCheck((), (Objection("task.name", name, rule, "write the function", _file(module)),))
    functions = tuple(function for function in tasks.OPTIONAL if hasattr(module, function))
    try:
        tasks.reward(section)
    except Exception as error:
        return TaskCheck(functions, (_no_reward(section, error),))
    if not local:
        return TaskCheck(functions, ())
    try:
        return TaskCheck(functions, (), _asked(module, section))
    except _Wrong as error:
        return TaskCheck(functions, (error.objection,))


class _Wrong(Exception):
    """Something that a task does wrong."""

    def __init__(self, objection: Objection):
        self.objection = objection


def _no_reward(section: Mapping[str, Any], error: Exception) -> Objection:
    """Why the function that `task.reward` names cannot be had."""
    spec = str(section.get("reward"))
    if isinstance(error, ValueError):
        fix = "use a known reward, or name a function as FILE.py:FUNCTION or MODULE:FUNCTION (docs/own-data.md)"
        return Objection("task.reward", spec, one_line(str(error)), fix)
    return _not_imported(spec, error)


def _not_imported(name: str, error: Exception) -> Objection:
    at = error.filename if isinstance(error, SyntaxError) else _last_file(error)
    line = error.lineno if isinstance(error, SyntaxError) else _last_line(error)
    what = error.msg if isinstance(error, SyntaxError) else one_line(str(error))
    rule = f"the module cannot be imported: {type(error).__name__}: {what}"
    return Objection(f"line {line}", None, rule, "correct the line", _shown(at) or f"the module of task {name}")


def _asked(module: ModuleType, section: Mapping[str, Any]) -> frozenset[str]:
    """Ask for the first prompt and its reward; the metrics that come with the reward. _Wrong: it fails."""
    from trainer_ext import rewards, tasks

    try:
        row = next(iter(module.rows(section)), None)
    except tasks.BadData as error:
        fix = "correct it, or the key of the section task that names the column"
        raise _Wrong(Objection("task.train_path", section.get("train_path"), one_line(str(error)), fix)) from error
    except Exception as error:
        raise _Wrong(_raised(module.__file__, "rows", error, "the task has no prompts with these settings")) from error
    if row is None:
        rule, fix = "the task has no prompts", "return one trainer_ext.tasks.Row or more"
        raise _Wrong(Objection("rows", None, rule, fix, _file(module)))
    for key in ("prompt", "ground_truth"):
        text = getattr(row, key, None)
        if not isinstance(text, str):
            rule, fix = f"the {key} of a prompt is text", "return rows of trainer_ext.tasks.Row"
            raise _Wrong(Objection("rows", text, rule, fix, _file(module)))
    function = tasks.reward(section)
    name, file = getattr(function, "__name__", "reward"), str(rewards.file_of(function))
    info = {**row.metadata, "index": 0, "split": row.split or tasks.TRAIN}
    try:
        returned = function(section["name"], row.ground_truth, row.ground_truth, info)
    except Exception as error:
        rule = "the reward of the first prompt's own answer fails"
        raise _Wrong(_raised(file, name, error, rule)) from error
    try:
        return frozenset(map(rewards.metric, rewards.score(returned).metrics))
    except (TypeError, ValueError) as error:
        rule = f"the reward of a response is a number, or a mapping of numbers with {rewards.SCORE}: {error}"
        raise _Wrong(Objection(name, returned, rule, "return a float, or such a mapping", _shown(file))) from error


def _raised(file: str | None, function: str, error: Exception, rule: str) -> Objection:
    what = f"{type(error).__name__}: {one_line(str(error))}"
    line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), 0)
    return Objection(f"{function}, line {line}", None, f"{rule}: {what}", "correct it", _shown(file))


def check_lengths(section: Mapping[str, Any], model: Mapping[str, Any], longest: int) -> Objection | None:
    """Whether any prompt of a task on this machine has at most `longest` tokens; without a tokenizer here, None."""
    from trainer_ext import tasks

    count = _counter(model)
    if count is None:
        return None
    shortest, prompts = None, 0
    for row in tasks.get(section["name"]).rows(section):
        tokens, prompts = count(row.text), prompts + 1
        if tokens <= longest:
            return None
        shortest = tokens if shortest is None else min(shortest, tokens)
    rule = f"no prompt of task {section['name']} is so short: the shortest of {prompts} has {shortest} tokens"
    key = "verl.data.max_prompt_length"
    return Objection(key, longest, rule, f"set {key}={shortest} or more")


def _counter(model: Mapping[str, Any]) -> Callable[[str], int] | None:
    """Counts the tokens of a prompt, without those that a chat template adds; None without a tokenizer here."""
    if model.get("kind") == "embedded":
        return len  # one token for each character
    file = Path(os.path.expanduser(str(model.get("path")))) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def check_size(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> Objection | None:
    """Whether a run's models fit: their positions, and their memory. None: they do, or their sizes are not known here.

    verl: verl's tree merged; declared: the sizes that the model's file states, where its folder is not here.
    """
    from trainer_ext import memory

    section, method, asked = config["model"], config["method"], config["model"]["resources"]
    model = _architecture(section, declared)
    if model is None:
        return None
    length = verl["data"]["max_prompt_length"] + verl["data"]["max_response_length"]
    if length > model.positions:
        key = "verl.data.max_response_length"
        value = verl["data"]["max_response_length"]
        rule = f"with verl.data.max_prompt_length={length - value} these are {length} tokens, and model "
        rule += f"{section['name']} reads at most {model.positions}"
        return Objection(key, value, rule, "shorten responses or prompts, or choose a model that reads more")
    own = memory.of_folder(Path(os.path.expanduser(str(method.get("target_path")))))
    device = bool(asked.get("devices"))
    key = f"model.resources.{'device_memory_gb' if device else 'memory_gb'}"
    limit = asked.get(key.rpartition(".")[2])
    if limit is None:
        return None
    needed = memory.need(method, verl, model, memory.target_of(model, section, method, own), device)
    total = needed.total + (0 if device else memory.PROCESS)
    if total <= limit * _GB:
        return None
    items = {**needed.items, **({} if device else {"the process itself": memory.PROCESS})}
    largest = sorted(((count, what) for what, count in items.items() if count >= 0.005 * total), reverse=True)
    listed = ", ".join(f"{what} {count / _GB:.1f}" for count, what in largest)
    rule = f"the run needs {total / _GB:.1f} GB while {_DOING[needed.peak]}: {listed}"
    return Objection(key, limit, rule, _smaller(needed, limit * _GB))


def _smaller(needed: Need, limit: float) -> str:
    """What would make a run fit."""
    always = sum(needed.throughout.values())
    if always + needed.items.get("variance of the gradient", 0) > limit:
        return "choose a smaller model, or a device with more memory"
    keys = {
        "sampling": "verl.actor_rollout_ref.rollout.max_num_seqs (responses drawn at a time)",
        "scoring": "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "update": "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    }
    return f"lower {keys[needed.peak]} or verl.data.max_response_length, or ask for a device with more memory"


def _architecture(section: Mapping[str, Any], declared: Mapping[str, Any] | None) -> Architecture | None:
    from trainer_ext import memory

    if section.get("kind") == "embedded":
        return memory.embedded(section)
    own = memory.of_folder(Path(os.path.expanduser(str(section.get("path")))))
    return own or (memory.Architecture(**declared) if declared else None)


def _file(module: ModuleType) -> str:
    return _shown(module.__file__) or module.__name__


def _shown(path: str | None) -> str | None:
    """A file relative to the project where it is part of it."""
    return None if path is None else str(Path(path).relative_to(ROOT) if Path(path).is_relative_to(ROOT) else path)


def _last_file(error: Exception) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else None


def _last_line(error: Exception) -> int | None:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].lineno if frames else None
