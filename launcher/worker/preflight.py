"""Whether a run could start, asked of the trainer before anything is submitted: its task, and its prompts.

Only `check_parts` loads torch. What executes code of a user (`check_task`, `check_prompts`, `check_parts`) is called in
a process of its own, by `launcher.worker.isolated`.
"""

from __future__ import annotations

import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from launcher.project import ROOT
from launcher.text import nearest, one_line
from launcher.worker import isolated

if TYPE_CHECKING:
    from trainer_ext.architectures import Architecture
    from trainer_ext.memory import Need
    from trainer_ext.registry import Part
    from trainer_ext.tasks import Row

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
    numbers: frozenset[str] = frozenset()  # that the task's reward returns beside the reward

    def metrics(self, evaluated: bool) -> set[str]:
        """The metrics that a run writes of these numbers. evaluated: whether the run makes evaluations."""
        from trainer_ext import evaluation, rewards

        kinds = (rewards.metric, evaluation.metric) if evaluated else (rewards.metric,)
        return {kind(name) for kind in kinds for name in self.numbers}


def check_task(section: Mapping[str, Any], local: bool, runs_here: bool) -> TaskCheck:
    """Import a task's module, and ask it for one prompt and one reward. section: the configuration's `task`.

    local: whether its data are on this machine; otherwise the module is imported and nothing is asked. runs_here:
    whether its runs are started on this machine, which must then be able to isolate the programs that they test.
    """
    from trainer_ext import registry, tasks

    name = str(section.get("name"))
    try:
        module = tasks.get(name)
    except registry.UnknownChoice:
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
        return TaskCheck(functions, (), _asked(module, section, runs_here))
    except _Wrong as error:
        return TaskCheck(functions, (error.objection,))


#: Seconds for a task's module and its prompts, beside those for its reward; and for the packages of a method.
IMPORT_S = 60.0


def no_answer(key: str, value: Any, ended: isolated.Ended) -> Objection:
    """The objection for a user's code that gave no answer. key, value: what chooses that code."""
    rule = f"the plan called its code: {ended.what}"
    fix = "correct it, or raise task.reward_timeout_s" if ended.late and key.startswith("task.") else "correct it"
    if ended.file is None:
        return Objection(key, value, rule, fix)
    return Objection(f"line {ended.line}", None, rule, fix, _shown(ended.file))


@dataclass(frozen=True)
class OwnChoice:
    """A choice of a part of a method that this project does not include.

    method: the section `method`, or for `credit` the choice's own; keys: the settings that the choice's file declares.
    """

    part: str
    name: str
    method: Mapping[str, Any]
    keys: tuple[str, ...]


def own_choices(method: Mapping[str, Any], declared: Mapping[str, Sequence[str]]) -> list[OwnChoice]:
    """The choices of a method that this project does not include. declared: by part, the settings of its file."""
    from trainer_ext import registry

    found = []
    for part, included in registry.INCLUDED.items():
        chosen = method.get(part)
        if isinstance(chosen, str):
            named = {chosen: OwnChoice(part, chosen, method, tuple(declared.get(part, ())))}
        else:  # of a list part; another value is refused elsewhere
            sections = chosen if isinstance(chosen, Mapping) and part == registry.credit.name else {}
            named = {name: OwnChoice(part, name, own, tuple(own or ())) for name, own in sections.items()}
        found += [choice for name, choice in named.items() if name not in included.split()]
    return found


def check_parts(choices: Sequence[OwnChoice]) -> list[Objection]:
    """Import the code of these choices as a run does, compare their settings with the functions' parameters, and call
    the functions once. It also compiles every module that a run imports and a plan does not."""
    from trainer_ext import registry

    objections = list(_uncompiled())
    for choice in choices if not objections else ():
        part = {part.name: part for part in (*registry.SINGLE, registry.credit)}[choice.part]
        key, where = f"method.{part.name}", ""
        try:
            registry.load("rlsweep.methods")
            if choice.name not in part:
                import trainer_ext.backends.in_process.trainer  # noqa: F401  (it registers all of this project's)
            code = inspect.unwrap(part.get(choice.name).function).__code__
            where = f" ({_shown(code.co_filename)}, line {code.co_firstlineno})"
            _try(part, choice)
        except (ImportError, SyntaxError) as error:
            objections.append(_not_imported(key, error))
        except Exception as error:
            at, line = isolated.place(isolated.frames(error.__traceback__))
            of_settings = isinstance(error, ValueError) and (at is None or Path(at).name == "preflight.py")
            rule = one_line(str(error)) if of_settings else f"its function fails: {isolated.raised(error)}"
            if of_settings or at is None:
                fix = "correct the name, the file of the choice, or the parameters of its function"
                objections.append(Objection(key, choice.name, f"{rule}{where}", fix))
            else:
                objections.append(
                    Objection(f"line {line}", None, f"{key}={choice.name}: {rule}", fix="correct it", file=_shown(at))
                )
    return objections


def _try(part: Part, choice: OwnChoice) -> None:
    """Check the settings of a choice, and call its function on tensors of ones. Raises what it raises."""
    import torch

    from trainer_ext import registry

    if part is registry.credit:
        (chosen,) = part.each({choice.name: choice.method})
    else:
        read = {*choice.keys, *part.get(choice.name).keys}
        settings = {key: value for key, value in choice.method.items() if key in read}
        registry.check_parts({part.name: choice.name, **settings}, [part])
        chosen = part.of(choice.method)
    if part.name not in ("credit", "weights", "smoothing", "ratio", "trust_region"):
        return
    ones = [torch.ones(2, 3)] * part.inputs
    returned = chosen(*ones)
    result = returned[0] if isinstance(returned, tuple) else returned
    if getattr(result, "shape", None) != (2, 3):
        raise TypeError(f"for inputs of shape (2, 3) it returns {type(result).__name__} {getattr(result, 'shape', '')}")
    chosen.metrics(*ones)


def _uncompiled() -> Iterator[Objection]:
    """The modules of a run that are not Python; those that a plan imports, too, are none."""
    for folder in ("methods", "sampling", "backends"):
        for path in sorted((ROOT / "trainer_ext" / folder).rglob("*.py")):
            try:
                SourceFileLoader(path.stem, str(path)).get_code(path.stem)
            except SyntaxError as error:
                yield _not_imported(path.stem, error)


class _Wrong(Exception):
    """Something that a task does wrong."""

    def __init__(self, objection: Objection):
        self.objection = objection


def _no_reward(section: Mapping[str, Any], error: Exception) -> Objection:
    """Why the function that `task.reward` names cannot be had."""
    from trainer_ext import sizes

    spec = str(section.get("reward"))
    if isinstance(error, sizes.Misfit):
        return Objection(error.key, error.value, one_line(error.rule), error.fix)
    raised_in, _ = isolated.frames(error.__traceback__)[0]
    if isinstance(error, ValueError) and Path(raised_in).is_relative_to(ROOT / "trainer_ext"):
        fix = "use a known reward, or name a function as FILE.py:FUNCTION or MODULE:FUNCTION (docs/own-data.md)"
        return Objection("task.reward", spec, one_line(str(error)), fix)
    return _not_imported(spec, error)


def _not_imported(name: str, error: BaseException) -> Objection:
    if isinstance(error, ImportError) and error.__cause__ is not None:  # of an entry point
        error, name = error.__cause__, f"{name} ({one_line(str(error))})"
    if isinstance(error, SyntaxError):
        at, line, what = error.filename, error.lineno, f"SyntaxError: {error.msg}"
    else:
        what = isolated.raised(error)
        at, line = isolated.place(isolated.frames(error.__traceback__))
    rule, file = f"the module cannot be imported: {what}", _shown(at)
    if file is None:
        return Objection(name, None, rule, "correct it", "configuration")
    return Objection(f"line {line}", None, rule, "correct the line", file)


def _asked(module: ModuleType, section: Mapping[str, Any], runs_here: bool) -> frozenset[str]:
    """Ask for all prompts and the first one's reward; the names of its further numbers. _Wrong: it fails."""
    from trainer_ext import rewards, sandbox, sizes, tasks

    try:
        rows = _prompts_of(module, section).rows
    except tasks.BadData as error:
        fix = "correct it, or the key of the section task that names the column"
        raise _Wrong(Objection("task.train_path", section.get("train_path"), one_line(str(error)), fix)) from error
    except sizes.Misfit as error:
        raise _Wrong(Objection(error.key, error.value, one_line(error.rule), error.fix)) from error
    except Exception as error:
        raise _Wrong(_raised(module.__file__, "rows", error, "the task has no prompts with these settings")) from error
    if not rows:
        rule, fix = "the task has no prompts", "return one trainer_ext.tasks.Row or more"
        raise _Wrong(Objection("rows", None, rule, fix, _file(module)))
    for number, row in enumerate(rows, start=1):
        for key in ("prompt", "ground_truth"):
            text = getattr(row, key, None)
            if not isinstance(text, str):
                rule, fix = f"the {key} of prompt {number} is not text", "return rows of trainer_ext.tasks.Row"
                raise _Wrong(Objection("rows", _plain(text), rule, fix, _file(module)))
    function, row = tasks.reward(section), rows[0]
    if isinstance(function, rewards.Together):
        return frozenset()  # a model, which is checked by its files and not loaded here
    name, file = getattr(function, "__name__", "reward"), str(rewards.file_of(function))
    limit = section.get("reward_timeout_s")
    info = {**row.metadata, "index": 0, "split": row.split or tasks.TRAIN}
    try:
        returned = rewards.within(limit, function, section["name"], row.ground_truth, row.ground_truth, info)
    except sandbox.Unavailable as error:
        if not runs_here:
            return frozenset(getattr(function, "numbers", ()))
        raise _Wrong(_no_sandbox(section["sandbox"]["isolation"], error)) from error
    except rewards.TooSlow as error:
        rule = f"the reward of the first prompt's own answer fails: {error}"
        fix = "correct the function, or raise task.reward_timeout_s"
        raise _Wrong(Objection(name, None, rule, fix, _shown(file))) from error
    except Exception as error:
        rule = "the reward of the first prompt's own answer fails"
        raise _Wrong(_raised(file, name, error, rule)) from error
    try:
        return frozenset(rewards.score(returned).metrics)
    except (TypeError, ValueError) as error:
        rule = f"the reward of a response is a number, or a mapping of numbers with {rewards.SCORE}: {error}"
        fix = "return a float, or such a mapping"
        raise _Wrong(Objection(name, _plain(returned), rule, fix, _shown(file))) from error


def _plain(value: Any) -> Any:
    """A value of a user's code without the user's types, which this process may not have."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


def _no_sandbox(isolation: str, error: Exception) -> Objection:
    """Why this machine cannot run the programs that a model writes."""
    rule = f"this machine cannot isolate generated programs so: {one_line(str(error))}"
    fix = "run where the kernel allows it (docs/code-tasks.md)"
    if isolation != "process":
        fix += ", or set task.sandbox.isolation=process, which does not protect from code that means harm"
    return Objection("task.sandbox.isolation", isolation, rule, fix)


class _Prompts:
    """The prompts of a task with one section of the configuration, asked for once."""

    def __init__(self, rows: Callable[..., Iterable[Row]], section: Mapping[str, Any]):
        self.rows: Sequence[Row] = tuple(rows(section))
        self._divided: dict[str, Mapping[str, Sequence[Row]]] = {}

    def divided(self, shares: Mapping[str, float]) -> Mapping[str, Sequence[Row]]:
        """They by split. sizes.Misfit: a row is in another split."""
        from trainer_ext import tasks

        if repr(shares) not in self._divided:
            self._divided[repr(shares)] = tasks.divide(self.rows, shares)
        return self._divided[repr(shares)]


_prompts: dict[tuple[Any, str], _Prompts] = {}


def _prompts_of(module: ModuleType, section: Mapping[str, Any]) -> _Prompts:
    key = (module.rows, repr(section))
    if key not in _prompts:
        _prompts[key] = _Prompts(module.rows, section)
    return _prompts[key]


def _raised(file: str | None, function: str, error: Exception, rule: str) -> Objection:
    what = f"{type(error).__name__}: {one_line(str(error))}"
    line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), 0)
    return Objection(f"{function}, line {line}", None, f"{rule}: {what}", "correct it", _shown(file))


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration with the values that its devices decide, in place of `auto` and null."""
    from trainer_ext import devices

    return devices.settled(config)


def check_sizes(config: Mapping[str, Any], verl: Mapping[str, Any]) -> list[Objection]:
    """Which sizes of a run do not fit together, as the run itself asks when it starts, what its rollout servers cannot
    do, and which of its scores cannot be used. verl: verl's tree merged."""
    from trainer_ext import scores, sizes, vllm_checks

    misfits = [
        *sizes.misfits({**config, "verl": verl}),
        *vllm_checks.misfits(config),
        *scores.misfits(config["trainer"]),
    ]
    return [Objection(one.key, one.value, one.rule, one.fix) for one in misfits]


def check_continuation(
    config: Mapping[str, Any], verl: Mapping[str, Any], shorter: Mapping[str, Any]
) -> list[Objection]:
    """Why a run does not continue a shorter one. verl: the whole tree; shorter: the other's section `trainer`."""
    from trainer_ext import continuing

    found = continuing.obstacles({**config, "verl": verl}, shorter)
    return [Objection(one.key, one.value, one.rule, one.fix) for one in found]


def check_logs(config: Mapping[str, Any], shorter: Mapping[str, Any]) -> list[Objection]:
    """What a run cannot take over of the logs of another one. shorter: the other's section `trainer`."""
    from trainer_ext import continuing

    found = continuing.log_obstacles(config["trainer"], shorter)
    return [Objection(one.key, one.value, one.rule, one.fix) for one in found]


def check_fork(config: Mapping[str, Any], prefix: Mapping[str, Any]) -> list[Objection]:
    """Why a run cannot be a fork of another one; config, prefix: their configurations, with verl's trees merged."""
    from trainer_ext import continuing

    return [Objection(one.key, one.value, one.rule, one.fix) for one in continuing.fork_obstacles(config, prefix)]


def prefix_trainer(trainer: Mapping[str, Any], at: int) -> dict[str, Any]:
    """The section `trainer` of the first `at` steps of a run: its histograms are of the same steps as the run's."""
    from trainer_ext import continuing

    interval = continuing.histogram_interval(trainer["hist_every"], trainer["steps"])
    return {**trainer, "steps": at, "hist_every": continuing.share_for(interval, at)}


def score_metrics(trainer: Mapping[str, Any]) -> set[str]:
    """The metrics of the section's further scores of responses."""
    from trainer_ext import scores

    return scores.metrics(trainer)


def check_prompts(config: Mapping[str, Any], longest: int) -> Objection | None:
    """Whether each split that a run reads has a prompt of at most `longest` tokens; None: it has.

    The task's data are on this machine. Without a model's tokenizer here, lengths are not known.
    """
    from trainer_ext import chat, sizes, tasks

    section, trainer = config["task"], config["trainer"]
    if "split" not in trainer:  # a trainer of the user's, or of an older version, which divides no prompts
        return None
    module, count = tasks.get(section["name"]), _counter(config["model"], chat_template(config))
    try:
        divided = _prompts_of(module, section).divided(trainer["split"])
    except sizes.Misfit as error:
        return Objection(error.key, error.value, error.rule, error.fix, _file(module))
    too_long: list[tuple[int, str]] = []
    for split in tasks.SPLITS if trainer.get("eval_every") else [tasks.TRAIN]:
        if not divided[split]:
            misfit = tasks.empty(split)
            value = section["name"] if split == tasks.TRAIN else trainer["split"][split]
            return Objection(misfit.key, value, misfit.rule, misfit.fix)
        if count is None:
            continue
        try:
            for row in {tuple(message["role"] for message in row.messages): row for row in divided[split]}.values():
                count(row)  # a template may refuse an order of roles
            if not any(count(row) <= longest for row in divided[split]):
                too_long.append((min(map(count, divided[split])), split))
        except chat.Unusable as error:
            return _no_template(section, config["model"], error)
    if not too_long:
        return None
    tokens, split = max(too_long, key=lambda one: one[0])
    rule = (
        f"no {split} prompt of task {section['name']} is so short: the shortest of {len(divided[split])} has {tokens} "
    )
    key = "verl.data.max_prompt_length"
    return Objection(key, longest, f"{rule}tokens", f"set {key}={tokens} or more")


def _no_template(section: Mapping[str, Any], model: Mapping[str, Any], error: Exception) -> Objection:
    """Why the chat template of a model cannot read a task's messages."""
    fix = "choose another model, or prompts of the roles that its template reads"
    if section.get("system_prompt"):
        fix = "set task.system_prompt=null if the template reads no system message, or choose another model"
    rule = f"the model's chat template refuses the messages of task {section['name']}: {one_line(str(error))}"
    return Objection("model.path", model.get("path"), rule, fix)


def chat_template(config: Mapping[str, Any]) -> str | None:
    """The chat template that a run gives its model; None: the tokenizer's own."""
    model = (config["verl"].get("actor_rollout_ref") or {}).get("model") or {}
    template: str | None = model.get("custom_chat_template")
    return template


def _counter(model: Mapping[str, Any], template: str | None) -> Callable[[Row], int] | None:
    """Counts the tokens of a row's messages, as the run does; None without a tokenizer here. Raises chat.Unusable."""
    if model.get("kind") == "embedded":  # one token for each character
        return lambda row: sum(len(message["content"]) for message in row.messages)
    from trainer_ext import chat

    count = chat.counter(Path(os.path.expanduser(str(model.get("path")))), template)
    return None if count is None else lambda row: count(row.messages)


def data_of(config: Mapping[str, Any]) -> list[str]:
    """The files of the models that the rewards and scores of a run ask, under the names of their folders there."""
    from trainer_ext import scores
    from trainer_ext.reward_models import folders

    task = config["task"]
    named = [str(task[folders.NAME])] if folders.files(task) else []
    named += scores.model_folders(config["trainer"])
    return [f"{one.rstrip('/')}/{path.name}" for one in named for path in folders.files_in(Path(one).expanduser())]


def check_folders(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> Iterator[Objection]:
    """Which local folders of models cannot be loaded, which models cannot be trained, and whether a target reads other
    tokens than the policy.

    verl: verl's tree merged; declared: the sizes that the model's file states, where its folder is not here.
    """
    from trainer_ext import architectures
    from trainer_ext.reward_models.folders import TOKENIZER, WEIGHTS, missing

    section, method, trust = config["model"], config["method"], _trusts(verl)
    whole = True
    for key, path, needed in (
        ("model.path", section.get("path") if section["kind"] == "pretrained" else None, (WEIGHTS, TOKENIZER)),
        ("method.target_path", method.get("target_path"), (WEIGHTS,)),
    ):
        if path is None:
            continue
        folder = Path(os.path.expanduser(str(path)))
        rule = missing(folder, *needed) if folder.is_dir() else None  # otherwise a name on a hub
        if rule is not None:
            whole = False
            fix = "name a folder that transformers' save_pretrained wrote, of the model and of its tokenizer"
            yield Objection(key, path, rule, fix)
            continue
        try:
            architectures.of_model(path, trust)
        except architectures.Unusable as error:
            whole = False
            yield Objection(key, path, error.rule, error.fix)
    if not whole:
        return
    target = _target(method, trust)
    policy = _architecture(section, declared, trust)
    if target is None or policy is None or method["sampler"] == "rejection":
        return  # rejection reads the target's probabilities of the policy's tokens alone
    if target.vocabulary != policy.vocabulary:
        rule = f"the target has {target.vocabulary} tokens and model {section['name']} has {policy.vocabulary}, "
        rule += "but their probabilities are combined token by token"
        fix = "choose a target with the same tokenizer and as many tokens (vocab_size in its config.json)"
        yield Objection("method.target_path", method["target_path"], rule, fix)


def _target(method: Mapping[str, Any], trust_remote_code: bool) -> Architecture | None:
    """The sizes of the target in method.target_path; None where no path is given, or its sizes are not known here."""
    from trainer_ext import architectures

    path = method.get("target_path")
    return None if path is None else architectures.of_model(path, trust_remote_code)


def check_size(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> Objection | None:
    """Whether a run's models fit: their positions, and their memory. None: they do, or their sizes are not known here.

    verl: verl's tree merged; declared: the sizes that the model's file states, where its folder is not here.
    """
    from trainer_ext import devices, fit, memory, sizes
    from trainer_ext.reward_models import folders

    section, method, asked = config["model"], config["method"], config["model"]["resources"]
    trust = _trusts(verl)
    model = _architecture(section, declared, trust)
    if model is None:
        return None
    length = verl["data"]["max_prompt_length"] + verl["data"]["max_response_length"]
    if model.positions is not None and length > model.positions:
        key = "verl.data.max_response_length"
        value = verl["data"]["max_response_length"]
        rule = f"with verl.data.max_prompt_length={length - value} these are {length} tokens, and model "
        rule += f"{section['name']} reads at most {model.positions}"
        return Objection(key, value, rule, "shorten responses or prompts, or choose a model that reads more")
    if (misfit := sizes.heads(section, model.heads, model.key_value_heads)) is not None:
        return Objection(misfit.key, misfit.value, misfit.rule, misfit.fix)
    sequence = devices.Parallel.of(section).sequence
    if sequence > 1 and (why := model.unpackable(length)) is not None:
        rule = f"the ranks cannot share sequences of model {section['name']}: {why}"
        return Objection("model.parallel.sequence", sequence, rule, "set model.parallel.sequence=1")
    if method["advantage"] == "gae" and not model.has_critic:
        rule = f"a critic needs the class of model {section['name']} for token classification, which transformers does "
        rule += f"not have for models of type {model.family}"
        return Objection("method.advantage", "gae", rule, "choose another method/advantage, or another model")
    target = memory.target_of(model, section, method, _target(method, trust))
    reward_model = folders.parameters(config["task"])
    if config["trainer"]["backend"] == "verl_ray":
        too_large = fit.misfit(config, verl, model, target, reward_model)
        if too_large is None:
            return None
        return Objection(too_large.key, too_large.value, too_large.rule, too_large.fix)
    device = bool(asked.get("devices"))
    key = f"model.resources.{'device_memory_gb' if device else 'memory_gb'}"
    limit = asked.get(key.rpartition(".")[2])
    if limit is None:
        return None
    needed = memory.need(method, verl, model, target, device, reward_model)
    total = needed.total + (0 if device else memory.PROCESS)
    if total <= limit * _GB:
        return None
    items = {**needed.items, **({} if device else {"the process itself": memory.PROCESS})}
    largest = sorted(((count, what) for what, count in items.items() if count >= 0.005 * total), reverse=True)
    listed = ", ".join(f"{what} {count / _GB:.1f}" for count, what in largest)
    rule = f"the run needs {total / _GB:.1f} GB while {_DOING[needed.peak]}: {listed}"
    return Objection(key, limit, rule, _smaller(needed, limit * _GB))


def checkpoint(config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None) -> int | None:
    """Bytes of a checkpoint of the run; None: the sizes of its model are not known here. The arguments are those of
    check_size; nothing objects to the run.
    """
    from trainer_ext import memory

    model = _architecture(config["model"], declared, _trusts(verl))
    return None if model is None else memory.checkpoint(config["method"], verl, model)


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


def _architecture(
    section: Mapping[str, Any], declared: Mapping[str, Any] | None, trust_remote_code: bool
) -> Architecture | None:
    from trainer_ext import architectures

    if section.get("kind") == "embedded":
        return architectures.embedded(section)
    own = architectures.of_model(section.get("path"), trust_remote_code)
    return own or (architectures.Architecture(**declared) if declared else None)


def _trusts(verl: Mapping[str, Any]) -> bool:
    """Whether code that comes with a model may run. verl: verl's whole tree."""
    return bool(verl["actor_rollout_ref"]["model"]["trust_remote_code"])


def _file(module: ModuleType) -> str:
    return _shown(module.__file__) or module.__name__


def _shown(path: str | None) -> str | None:
    """A file relative to the project where it is part of it."""
    return None if path is None else str(Path(path).relative_to(ROOT) if Path(path).is_relative_to(ROOT) else path)
