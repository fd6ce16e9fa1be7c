"""Whether a run could start, asked before anything is submitted: its task, prompts, method, models and memory.

Only `check_choice` loads torch. What executes code of a user (`check_task`, `check_prompts`, `check_choice`) is called
in a process of its own, by `launcher.application.isolated`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from launcher.application.isolated import Ended, shown_path
from launcher.text import one_line
from trainer_ext import registry
from trainer_ext.application import price
from trainer_ext.fits import architectures, chat, devices, memory, rank_memory, sizes
from trainer_ext.fits.architectures import Architecture
from trainer_ext.objection import Objection
from trainer_ext.scoring import rewards, sandbox, scores, tasks
from trainer_ext.scoring.reward_models import folders
from trainer_ext.scoring.reward_models.folders import TOKENIZER, WEIGHTS, learned, missing
from trainer_ext.scoring.scores import evaluation
from trainer_ext.scoring.tasks import Row


@dataclass(frozen=True)
class TaskCheck:
    """What a task offers beside prompts and rewards: `demonstration`, `preference`; and why it cannot be used."""

    functions: tuple[str, ...]
    objections: tuple[Objection, ...]
    numbers: frozenset[str] = frozenset()  # that the task's reward returns beside the reward

    def metrics(self, evaluated: bool) -> set[str]:
        """The metrics that a run writes of these numbers. evaluated: whether the run makes evaluations."""
        kinds = (rewards.metric, evaluation.metric) if evaluated else (rewards.metric,)
        return {kind(name) for kind in kinds for name in self.numbers}


def check_task(section: Mapping[str, Any], local: bool, runs_here: bool) -> TaskCheck:
    """Import a task's module, and ask it for all prompts and one reward. section: the configuration's `task`.

    local: whether its data are on this machine; otherwise the module is imported and nothing is asked. runs_here:
    whether its runs are started on this machine, which must then be able to isolate the programs that they test. What
    the user's code raises is passed on.
    """
    functions: tuple[str, ...] = ()
    try:
        module = _module(str(section.get("name")))
        functions = tuple(function for function in tasks.OPTIONAL if hasattr(module, function))
        function = _reward(section)
        numbers = _asked(module, section, function, runs_here) if local else frozenset()
    except Objection as objection:
        return TaskCheck(functions, (objection,))
    return TaskCheck(functions, (), numbers)


def _module(name: str) -> ModuleType:
    """A task's module. Raises Objection."""
    module = tasks.get(name)
    has = [function for function in ("rows", "compute_score", "reward") if callable(getattr(module, function, None))]
    if "rows" not in has or len(has) < 2:
        missing = "compute_score" if "rows" in has else "rows"
        rule = f"a task has the functions rows and compute_score; missing: {missing}"
        raise Objection("task.name", name, rule, "write the function", _file(module))
    return module


def _reward(section: Mapping[str, Any]) -> Callable[..., Any] | rewards.Together:
    """The function that a task names. Raises Objection."""
    if asked := section.get("learned_reward"):
        try:
            learned(asked)
        except (TypeError, ValueError) as error:
            fix = "give a value that this rule allows (docs/reward-models.md)"
            raise Objection("task.learned_reward", dict(asked), one_line(str(error)), fix) from error
    return tasks.reward(section)


def _asked(
    module: ModuleType, section: Mapping[str, Any], function: Callable[..., Any] | rewards.Together, runs_here: bool
) -> frozenset[str]:
    """Ask for all prompts and the first one's reward; the names of its further numbers. Raises Objection."""
    if not (rows := _rows(module, section)):
        files = _data(section)
        fix = "write a line or row for each prompt" if files else "return one trainer_ext.scoring.tasks.Row or more"
        raise Objection("rows", None, "the task has no prompts", fix, files or _file(module))
    for number, row in enumerate(rows, start=1):
        for key in ("prompt", "ground_truth"):
            text = getattr(row, key, None)
            if not isinstance(text, str):
                rule, fix = f"the {key} of prompt {number} is not text", "return rows of trainer_ext.scoring.tasks.Row"
                raise Objection("rows", _plain(text), rule, fix, _file(module))
    shown, start = getattr(module, "demonstration", None), section.get("warm_start") or {}
    if start.get("steps") and shown and not any(shown(row, random.Random(0), 0.0) for row in rows):
        fix = "give prompts one (task=file: task.worked_answer names its column), or choose a model that is trained"
        raise Objection("task.warm_start", dict(start), "no prompt of the task has a demonstration", fix)
    if isinstance(function, rewards.Together):
        return frozenset()  # a model, which is checked by its files and not loaded here
    if any(row.metadata for row in rows):  # Arrow is not imported for nothing
        try:
            tasks.schema(rows)
        except Objection as error:
            raise Objection(error.key, None, error.rule, error.fix, error.file or _file(module)) from error
    row, name, file = rows[0], str(getattr(function, "__name__", "reward")), shown_path(str(rewards.file_of(function)))
    info = {"index": 0, "split": row.split or tasks.TRAIN, **row.metadata}
    given = rewards.called(function), section["name"], row.ground_truth, row.ground_truth, info
    try:
        for row in rows if hasattr(function, "check") else ():
            function.check(row.ground_truth)
        row = rows[0]
        returned = rewards.within(section.get("reward_timeout_s"), *given)
        return frozenset(map(str, rewards.score(returned).metrics))
    except sandbox.BadTests as error:
        fix = "correct the tests of this prompt (docs/code-tasks.md)"
        raise tasks.bad_row(row.where or f", prompt {rows.index(row) + 1}", one_line(str(error)), fix) from error
    except sandbox.Unavailable as error:
        if not runs_here:
            return frozenset(getattr(function, "numbers", ()))
        isolation = section["sandbox"]["isolation"]
        rule = f"this machine cannot isolate generated programs so: {one_line(str(error))}"
        fix = "run where the kernel allows it (docs/code-tasks.md)"
        if isolation != "process":
            fix += ", or set task.sandbox.isolation=process, which does not protect from code that means harm"
        raise Objection("task.sandbox.isolation", isolation, rule, fix) from error
    except rewards.TooSlow as error:
        rule = f"the reward of the first prompt's own answer fails: {error}"
        raise Objection(name, None, rule, "correct the function, or raise task.reward_timeout_s", file) from error
    except rewards.NoScore as error:
        rule = f"the reward of a response is a number, or a mapping of numbers with {rewards.SCORE}: {error}"
        raise Objection(name, _plain(returned), rule, "return a float, or such a mapping", file) from error


def _plain(value: Any) -> Any:
    """A value of a user's code without the user's types, which the planning process may not have."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


_known_rows: dict[tuple[Any, str], Sequence[Row]] = {}


def _rows(module: ModuleType, section: Mapping[str, Any]) -> Sequence[Row]:
    """The prompts of a task with one section of the configuration, asked for once."""
    key = (module.rows, repr(section))
    if key not in _known_rows:
        _known_rows[key] = tuple(module.rows(section))
    return _known_rows[key]


#: Seconds for the modules of a task or of a method, and for all prompts.
IMPORT_S = 60.0


def own_choices(method: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, list[str]]]:
    """The choices of a method that this project does not include, as check_choice takes them. declared: by part, what
    its file declares."""
    for part, included in registry.INCLUDED.items():
        chosen = method.get(part)
        of_list = part == registry.credit.name and isinstance(chosen, Mapping)
        named: Mapping[str, Any] = {chosen: method} if isinstance(chosen, str) else chosen if of_list else {}
        for name in [name for name in named if name not in included.split()]:
            yield part, name, named[name], list(named[name] if of_list else declared.get(part) or ())


def check_choice(of: str, name: str, settings: Mapping[str, Any], declared: Sequence[str], writes: list[str]) -> None:
    """Import the code of a part's choice as a run does, and call its functions. Raises what these raise, and Ended.

    settings: where the choice reads them; declared: those that its file declares; writes: the metrics of all files.
    """
    part = next(part for part in (*registry.SINGLE, registry.credit) if part.name == of)
    registry.load("rlsweep.methods")
    if name not in part:
        importlib.import_module("trainer_ext.backends.in_process.trainer")  # it registers all of this project's
    place: tuple[Any, ...] = ()
    try:
        code = inspect.unwrap(part.get(name).function).__code__
        place = code.co_filename, code.co_firstlineno
        of_list = part is registry.credit
        chosen = part.each({name: settings})[0] if of_list else part.checked(name, settings, declared)
    except Objection as error:
        raise Ended(f"{error.key}: {error.rule}", *place) from error
    if of in ("credit", "weights", "smoothing", "ratio", "trust_region"):
        import torch

        log_ratio = torch.tensor([[-0.5, 0.0, 0.5]] * 2, requires_grad=True)
        ratio, ones, advantages = log_ratio.exp(), torch.ones(2, 3), torch.tensor([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]])
        trained = {"smoothing": [ratio, ones], "ratio": [ratio, log_ratio, ones], "trust_region": [ratio, advantages]}
        given = trained.get(of, [ones] * part.inputs)
        result = chosen(*given)
        pair = of in ("credit", "ratio")
        values, own = result if pair and isinstance(result, tuple) and len(result) == 2 else (result, None)
        shape = getattr(values, "shape", None)
        if shape != (2, 3):
            rule = f"for inputs of shape (2, 3) it returns {type(result).__name__ if shape is None else shape}"
            raise Ended(rule, *place)
        if of in trained and not getattr(values, "requires_grad", False):
            raise Ended("its result has no gradient in the ratio, and nothing would be trained", *place)
        report = chosen.report(*(value.detach() for value in given), **chosen.settings) if chosen.report else {}
        allowed = ("a number", [(), "float", "int"]) if of_list else ("values (B, T)", [(2, 3), (2,)])
        for metrics, made in ((own if pair else {}, code), (report, getattr(chosen.report, "__code__", code))):
            place = made.co_filename, made.co_firstlineno
            if not isinstance(metrics, Mapping):
                raise Ended("it returns no mapping of metrics", *place)
            for key, value in metrics.items():
                kind = getattr(value, "shape", type(value).__name__)
                if kind not in allowed[1]:
                    raise Ended(f"for inputs of shape (2, 3) its metric {key} is {kind}: return {allowed[0]}", *place)
                if (key := str(key).partition("@")[0]) not in writes:  # a variance has two moments, with endings
                    raise Ended(f"no `writes` has its metric {key}: {registry.instead(key, writes, 'add it')}", *place)


def check_prompts(config: Mapping[str, Any], longest: int) -> Objection | None:
    """Whether each split that a run reads has a prompt of at most `longest` tokens, and the model can read them; None:
    it has, and can.

    The task's data are on this machine. Without a model's tokenizer here, tokens are not known.
    """
    section, trainer = config["task"], config["trainer"]
    if "split" not in trainer:  # a trainer of the user's, or of an older version, which divides no prompts
        return None
    module, encoder = tasks.get(section["name"]), _encoder(config["model"], chat_template(config))
    try:
        divided = tasks.divide(_rows(module, section), trainer["split"])
    except Objection as error:
        return Objection(error.key, error.value, error.rule, error.fix, _file(module))
    too_long: list[tuple[int, str]] = []
    for split in tasks.SPLITS if trainer.get("eval_every") else [tasks.TRAIN]:
        if not divided[split]:
            empty = tasks.empty(split, divided)
            if split == tasks.TRAIN and (files := _data(section)):
                return Objection("rows", None, empty.rule, empty.fix, files)
            value = section["name"] if split == tasks.TRAIN else trainer["split"][split]
            return Objection(empty.key, value, empty.rule, empty.fix)
        if encoder is None:
            continue
        try:
            _check_tokens(divided[split], encoder, longest, config["model"].get("path"))
            if not any(len(encoder.encode(row.messages)) <= longest for row in divided[split]):
                too_long.append((min(len(encoder.encode(row.messages)) for row in divided[split]), split))
        except Objection as refused:
            return refused
    if not too_long:
        return None
    tokens, split = max(too_long, key=lambda entry: entry[0])
    rule = f"no {split} prompt of task {section['name']} is so short: the shortest of {len(divided[split])} has "
    key = "verl.data.max_prompt_length"
    return Objection(key, longest, f"{rule}{tokens} tokens", f"set {key}={tokens} or more")


def chat_template(config: Mapping[str, Any]) -> str | None:
    """The chat template that a run gives its model; None: the tokenizer's own."""
    model = (config["verl"].get("actor_rollout_ref") or {}).get("model") or {}
    return model.get("custom_chat_template")


def _encoder(model: Mapping[str, Any], template: str | None) -> chat.Encoder | None:
    """Encodes messages as the run does; None without a tokenizer here that can be read."""
    if model.get("kind") == "embedded":  # one token for each character
        return chat.Encoder(lambda messages: [ord(sign) for one in messages for sign in one["content"]], {})
    try:
        return chat.encoder(Path(os.path.expanduser(str(model.get("path")))), template)
    except Exception:  # of a file that cannot be read; check_models says why
        return None


def _check_tokens(rows: Sequence[Row], encoder: chat.Encoder, longest: int, path: Any) -> None:
    """Objection: the model at `path` cannot read the tokens of a prompt, or cannot tell prompts apart.

    Only a tokenizer with tokens that the model does not know is asked for all prompts: it takes 0.1 ms for each.
    """
    of_roles = {tuple(message["role"] for message in row.messages): row for row in rows}  # which a template may refuse
    rule, fix = "", "correct its chat template, or choose another model"
    for row in rows if encoder.unknown else of_roles.values():
        tokens = encoder.encode(row.messages)
        unknown = sorted(encoder.unknown.keys() & tokens)
        if not tokens:
            rule = f"its chat template makes no token of the prompt {row.text!r:.100}"
        elif unknown and len(tokens) <= longest:
            text = encoder.unknown[unknown[0]]
            rule = f"the token {text!r} of the prompt {row.text!r:.100} has the id {unknown[0]}, and vocab_size of its "
            rule += "config.json is no larger"
            fix = "resize the model's embeddings (resize_token_embeddings), or save the model's own tokenizer there"
        if rule:
            raise Objection("model.path", path, rule, fix)
    others = [row for row in rows if row.text != rows[0].text]
    if others and all(encoder.encode(row.messages) == encoder.encode(rows[0].messages) for row in others):
        raise Objection("model.path", path, "its chat template makes the same tokens of all prompts", fix)


def check_models(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> list[Objection]:
    """Why the models of a run cannot be loaded, do not fit into memory, or do not fit to its batches.

    Asks what the run itself asks when it starts, and which of its scores cannot be used. verl: verl's tree merged;
    declared: the sizes that the model's file states, where its folder is not here. Values that cannot be checked here
    are accepted.
    """
    policy, target, unusable = None, None, list[Objection]()
    try:
        policy, target = _policy_and_target(config, verl, declared)
    except Objection as objection:
        unusable = [objection]
    misfits = sizes.misfits({**config, "verl": verl}, policy)
    wrong = [*_incomplete(config), *misfits, *scores.misfits(config["trainer"]), *unusable]
    if policy is None:
        return wrong
    # Rejection reads the target's probabilities of the policy's tokens alone.
    if target is not None and config["method"]["sampler"] != "rejection" and target.vocabulary != policy.vocabulary:
        rule = f"the target has {target.vocabulary} tokens and model {config['model']['name']} has "
        rule += f"{policy.vocabulary}, but their probabilities are combined token by token"
        fix = "choose a target with the same tokenizer and as many tokens (vocab_size in its config.json)"
        wrong.append(Objection("method.target_path", config["method"]["target_path"], rule, fix))
    return wrong or [*_too_large(config, verl, policy, target)]


def _incomplete(config: Mapping[str, Any]) -> Iterator[Objection]:
    """Which local folders of models cannot be loaded."""
    section = config["model"]
    for key, path, needed in (
        ("model.path", section.get("path") if section["kind"] == "pretrained" else None, (WEIGHTS, TOKENIZER)),
        ("method.target_path", config["method"].get("target_path"), (WEIGHTS,)),
    ):
        folder = Path(os.path.expanduser(str(path)))
        if path is None or not folder.exists():  # otherwise a name on a hub
            continue
        fix = "name a folder that transformers' save_pretrained wrote, of the model and of its tokenizer"
        rule = missing(folder, *needed) if folder.is_dir() else "it is a file, and a model is a folder"
        if rule is not None:
            yield Objection(key, path, rule, fix)


def _too_large(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture | None
) -> Iterator[Objection]:
    """Why a run's models do not fit: their positions, what they are made of, or their memory; the first reason."""
    section, method = config["model"], config["method"]
    length, sequence = memory.length_of(verl), devices.Parallel.from_model(section).sequence
    if model.positions is not None and length > model.positions:
        key = "verl.data.max_response_length"
        value = verl["data"]["max_response_length"]
        rule = f"with verl.data.max_prompt_length={length - value} these are {length} tokens, and model "
        rule += f"{section['name']} reads at most {model.positions}"
        yield Objection(key, value, rule, "shorten responses or prompts, or choose a model that reads more")
    elif sequence > 1 and (why := model.unpackable(length)) is not None:
        rule = f"the ranks cannot share sequences of model {section['name']}: {why}"
        yield Objection("model.parallel.sequence", sequence, rule, "set model.parallel.sequence=1")
    elif method["advantage"] == "gae" and not model.has_critic:
        rule = f"a critic needs the class of model {section['name']} for token classification, which transformers does "
        rule += f"not have for models of type {model.family}"
        yield Objection("method.advantage", "gae", rule, "choose another method/advantage, or another model")
    else:
        held = memory.target_of(model, section, method, target)
        yield from rank_memory.misfits(config, verl, model, held, folders.parameters(config["task"]))


def checkpoint_and_step(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> tuple[int, float] | tuple[None, None]:
    """Bytes of a checkpoint of the run, and the seconds of its step by arithmetic; None: the sizes of its model are not
    known here. The arguments are those of check_models; nothing objects to the run.
    """
    method = config["method"]
    model, target = _policy_and_target(config, verl, declared)
    if model is None:
        return None, None
    held = memory.target_of(model, config["model"], method, target)
    learned = model.parameters if config["task"].get("learned_reward") else 0  # of about the policy's size
    seconds = price.step_seconds(config, verl, model, held, folders.parameters(config["task"]) or learned)
    return memory.checkpoint(method, verl, model), seconds


def _policy_and_target(
    config: Mapping[str, Any], verl: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> tuple[Architecture | None, Architecture | None]:
    """The sizes of a run's model and of its target; None where they are not known here, or there is no target.

    Objection: one of them cannot be trained.
    """
    section, path = config["model"], config["method"].get("target_path")
    trusts = bool(verl["actor_rollout_ref"]["model"]["trust_remote_code"])  # code that comes with a model may run
    target = None if path is None else architectures.of_model(path, trusts, "method.target_path")
    if section.get("kind") == "embedded":
        return architectures.embedded(section), target
    policy = architectures.of_model(section.get("path"), trusts)
    return policy or (Architecture(**declared) if declared else None), target


def _data(section: Mapping[str, Any]) -> str:
    """The files of a task's prompts; nothing where they come from no file."""
    return ", ".join(dict.fromkeys(shown_path(str(file)) for file in tasks.files(section)))


def _file(module: ModuleType) -> str:
    return shown_path(module.__file__) if module.__file__ else module.__name__
