"""The questions of one plan about its runs: verl's tree, why runs could not start, what they write, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any, TypeVar

from hydra.errors import ConfigCompositionException

from analysis.spec.metric_catalog import WIN_RATE
from analysis.spec.validation import closest, words
from launcher.application import Base, Composed, merged
from launcher.application.isolated import Ended, Isolated
from launcher.config import hydra_compose, identity
from launcher.planning import schema
from launcher.text import nearest, one_line
from trainer_ext.application import declarations, preflight, verl_tree
from trainer_ext.application.declarations import Declarations
from trainer_ext.application.preflight import TaskCheck
from trainer_ext.fits import devices
from trainer_ext.objection import Objection
from trainer_ext.scoring import scores

Result = TypeVar("Result")


class Checks:
    """As `launcher.application.Checks`. Each answer is computed once, and a user's code runs in another process."""

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}
        self._tasks: dict[str, TaskCheck] = {}
        self._isolated = Isolated()

    def close(self) -> None:
        """End the process that has run a user's code."""
        self._isolated.close()

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """The result of a computation that depends only on `key`, computed once. key: its name, and what it reads."""
        memo = repr(key)
        if memo not in self._results:
            self._results[memo] = compute()
        return self._results[memo]

    def _declared(self, composed: Composed) -> Declarations:
        """What the files of a composition say."""
        # The composition is kept, so that no other gets its id.
        return self._once(("declared", id(composed)), lambda: (composed, Declarations.of_files(composed.files)))[1]

    # ------------------------------------------------------------ verl's tree

    def _base(self, composed: Composed) -> Base | Objection:
        """verl's tree for a composition, or why it does not compose."""
        self._declared(composed)  # which keeps it
        return self._once(("base", id(composed)), partial(_composed_base, composed.tree.get("base") or {}))

    def refusals(self, composed: Composed, config: Mapping[str, Any]) -> list[Objection]:
        """The differences that verl's tree or the trainer refuses; or that verl's tree does not compose."""
        base = self._base(composed)
        if isinstance(base, Objection):
            return [base]
        return self._differences(composed, base, config)[1] if isinstance(config["verl"], Mapping) else []

    def _differences(
        self, composed: Composed, base: Base, config: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Objection]]:
        """A run's differences to verl's tree that do differ, and those that are refused."""
        given, keys = config["verl"], (composed.tree.get("trainer") or {}).get("verl_keys")

        def compute() -> tuple[dict[str, Any], list[Objection]]:
            differing = verl_tree.prune(base.tree, given)
            fragments = keys["read"] if keys is not None else {}  # without the key, a trainer reads all of the tree
            # What the trainer reads as one of several types may have another type than verl's default.
            several = {f"verl.{key}" for key, each in fragments.items() if isinstance((each or {}).get("type"), list)}
            refused = {bad.key: bad for bad in verl_tree.check(base.tree, given) if bad.key not in several}
            for bad in declarations.refused_by_trainer(given, differing, keys) if keys is not None else ():
                if not any(f"{bad.key}.".startswith(f"{known}.") for known in refused):
                    refused[bad.key] = bad
            return differing, list(refused.values())

        return self._once(("differences", id(composed), given), compute)

    def settle(self, composed: Composed, config: Mapping[str, Any]) -> tuple[dict[str, Any], Base]:
        """With the differences to verl's tree that do differ, and the values that the run's devices decide."""
        base = self._base(composed)
        assert isinstance(base, Base)  # nothing is refused
        return devices.settled({**config, "verl": self._differences(composed, base, config)[0]}), base

    # ------------------------------------------------------------ whether runs can start

    def objections(
        self, composed: Composed, config: Mapping[str, Any], base: Base, cluster: Mapping[str, Any]
    ) -> list[Objection]:
        """Whether the task works and the method can be used; then whether the files' requirements are met; then whether
        there are prompts, and whether the models fit."""
        tree = merged(base.tree, config["verl"])
        task = self._task(config["task"], cluster.get("name", "local") == "local")
        if objections := [*task.objections, *self._choices(composed, config["method"])]:
            return objections
        section = {**config["task"], "functions": list(task.functions)}
        known = {**config, "task": section, "verl": tree, "cluster": cluster}
        declared = self._declared(composed)
        if objections := [*declared.unmet(known), *declared.idle(composed, known, config["verl"])]:
            return objections
        prompts = self._prompts(config, tree["data"]["max_prompt_length"])
        key = "models", config["model"], config["method"], config["trainer"], config["verl"], base.hash
        models = self._once(key, partial(preflight.check_models, config, tree, _architecture(composed)))
        return [*([prompts] if prompts is not None else []), *models]

    def _called(self, seconds: float, key: str, value: Any, function: Callable[..., Any], *given: Any) -> Any:
        """The result of a function that executes a user's code, or an Objection. key, value: what chooses that code."""
        try:
            return self._isolated.call(seconds, function, *given)
        except Ended as ended:
            late = ended.late and key.startswith("task.")
            fix = "correct the code, or raise task.reward_timeout_s" if late else "correct the code"
            if ended.file is None:
                return Objection(key, value, ended.rule, fix)
            return Objection(f"line {ended.line}", None, ended.rule, fix, ended.shown_file)

    def _task(self, section: Mapping[str, Any], runs_here: bool) -> TaskCheck:
        """What the task of a run offers, and what is wrong with it; each task is asked once."""
        memo = repr(section)
        if memo not in self._tasks:
            key = "task.reward" if section.get("reward") else "task.name"
            given = section, schema.is_local(section), runs_here
            answer = self._called(_seconds(section), key, section.get(key[5:]), preflight.check_task, *given)
            self._tasks[memo] = answer if isinstance(answer, TaskCheck) else TaskCheck((), (answer,))
        return self._tasks[memo]

    def _choices(self, composed: Composed, method: Mapping[str, Any]) -> list[Objection]:
        """Why a run cannot import or use the choices of its method that this project does not include."""
        files = {file.path.split("/")[1]: file for file in composed.files if file.path.startswith("method/")}
        declared = {part: [key for key in schema.strip(file.content) if key != part] for part, file in files.items()}
        objections: list[Objection | None] = []
        for own in preflight.own_choices(method, declared):
            choice = *own, sorted(self._declared(composed).metrics)
            check = f"method.{choice[0]}", choice[1], preflight.check_choice, *choice
            objections.append(self._once(("choice", choice), partial(self._called, preflight.IMPORT_S, *check)))
        return [objection for objection in dict.fromkeys(objections) if objection is not None]

    def _prompts(self, config: Mapping[str, Any], longest: int) -> Objection | None:
        """Why a split that a run reads has no prompt of at most `longest` tokens; None: it has, or it is not known."""
        section, model, trainer = config["task"], config["model"], config["trainer"]
        if not schema.is_local(section):
            return None
        named = model.get("kind"), model.get("path"), preflight.chat_template(config)
        key = "prompts", section, named, trainer.get("split"), bool(trainer.get("eval_every")), longest
        given = _seconds(section), "task.name", section["name"], preflight.check_prompts, config, longest
        return self._once(key, partial(self._called, *given))

    # ------------------------------------------------------------ what runs write and cost

    def metrics(self, composed: Composed, config: Mapping[str, Any]) -> Set[str]:
        """Those that its files declare, of its task's reward, of its scores, and of judges. `objections` was asked."""
        evaluated = bool(config["trainer"].get("eval_every"))
        written = self._declared(composed).written(config) | self._tasks[repr(config["task"])].metrics(evaluated)
        if evaluated:
            written |= scores.metrics(config["trainer"])
            written |= {WIN_RATE} if config["trainer"].get("eval_responses") else set()
        return written

    def estimate(
        self, composed: Composed, config: Mapping[str, Any], base: Base
    ) -> tuple[int, float] | tuple[None, None]:
        """Bytes of a checkpoint and seconds of a step, by arithmetic; None: the sizes of the model are not known."""
        return preflight.checkpoint_and_step(config, merged(base.tree, config["verl"]), _architecture(composed))

    def meant_metric(self, name: str, compositions: Iterable[Composed]) -> str | None:
        """The metric that a name without its first word means: eval/reward_mean of reward_mean."""
        known = sorted({metric for composed in compositions for metric in self._declared(composed).metrics})
        endings = {metric: metric.partition("/")[2] for metric in known}
        meant = [metric for metric in known if endings[metric] == name]
        close = nearest(name, list(endings.values()))
        meant = meant or [metric for metric in known if endings[metric] == close]
        return f"write {' or '.join(meant)}" if meant else None

    def unwritten(
        self, metric: str, compositions: Iterable[Composed], parts: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, str]:
        """The rule and the fix for a metric that none of these runs writes."""
        rule, declared = "no run of this experiment writes it", [self._declared(composed) for composed in compositions]
        if metric == WIN_RATE:
            fix = "set trainer.eval_every and trainer.eval_responses to an integer 1 or more"
            return f"{rule}: judges compare the responses that evaluations keep", fix
        for conditions in (conditions for d in declared for conditions in d.metrics.get(metric, ())):
            if needed := [f"set {key} to {words(fragment)}" for key, fragment in conditions.items()]:
                return rule, " and ".join(needed)
        of_parts = {choice: Declarations.declared(content) for choice, content in parts.items()}
        if writers := [choice for choice, metrics in of_parts.items() if metric in metrics]:
            return f"{rule}; it is written with {' or '.join(writers)}", "add such a group, or name another metric"
        of_rewards = {name for checked in self._tasks.values() for name in checked.metrics(evaluated=True)}
        if metric in of_rewards:
            return rule, "set trainer.eval_every to an integer 1 or more"
        known = of_rewards.union(*(declaration.metrics for declaration in declared), *of_parts.values())
        otherwise = "name one of docs/metrics.md, or declare it under `writes` in the file of what writes it"
        return rule, closest(metric, sorted(known), otherwise=otherwise)


def _composed_base(request: Mapping[str, Any]) -> Base | Objection:
    """verl's tree as the section `base` asks for it, or why it does not compose."""
    config, overrides = request.get("config"), request.get("overrides") or []
    try:
        if not isinstance(overrides, list):
            raise ConfigCompositionException("base.overrides must be a list such as [KEY=VALUE]")
        return verl_tree.compose(str(config), tuple(map(str, overrides)))
    except hydra_compose.ERRORS as error:
        rule = one_line(f"verl's configuration does not compose: {error}")
        fix = "correct base.config or base.overrides"
        return Objection("base", identity.canonical_json(request), rule, fix)


def _architecture(composed: Composed) -> Mapping[str, Any] | None:
    """The sizes of the model that its file states, for where its folder is not on this machine."""
    return (composed.tree.get("model") or {}).get("architecture")


def _seconds(task: Mapping[str, Any]) -> float:
    """How long the code of a task may take while it is planned."""
    return preflight.IMPORT_S + float(task.get("reward_timeout_s") or 0.0)
