"""What the parts of one planning share: variants (distinct choices of groups, composed once), verl's trees,
problems."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import yaml
from hydra.errors import ConfigCompositionException

from analysis.spec.metric_catalog import WIN_RATE
from analysis.spec.validation import NO_SUCH_KEY, Breach, closest, words
from launcher.config import hydra_compose, identity, verl_tree
from launcher.config.hydra_compose import Composed, Composer, File
from launcher.config.verl_tree import BadDifference, Base
from launcher.errors import Diagnostics
from launcher.planning import method_parts, overrides, schema, suggestions
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.overrides import HYPOTHESIS
from launcher.planning.schema import Promises
from launcher.text import nearest, one_line
from launcher.worker import preflight
from launcher.worker.isolated import Ended, Isolated
from launcher.worker.preflight import Objection, TaskCheck

Result = TypeVar("Result")
SECTIONS = identity.SECTIONS
# Where the files of a group are merged, if not below the group's own name; a part of a method: in `method`.
_PACKAGES = {
    **dict.fromkeys(("experiment", "model", "task", "trainer", "scale"), "_global_"),
    HYPOTHESIS: "analysis.hypotheses",
}


@functools.cache
def _verls_sections() -> frozenset[str]:
    return frozenset(verl_tree.compose("ppo_trainer", []).tree)


def _seconds(task: Mapping[str, Any]) -> float:
    """How long the code of a task may take while it is planned."""
    return preflight.IMPORT_S + float(task.get("reward_timeout_s") or 0.0)


class ConfigVariant:
    """The composed configuration of one choice of groups, with what is needed to check and freeze its runs.

    Raises HydraException when the choice does not compose.
    """

    def __init__(self, composer: Composer, overrides: Sequence[str]) -> None:
        self.overrides = tuple(overrides)
        composed = composer.compose(self.overrides)
        self.tree = schema.strip({key: composed.tree.get(key) for key in SECTIONS})
        self.architecture = (composed.tree.get("model") or {}).get(schema.ARCHITECTURE)
        self.verl_keys = (composed.tree.get("trainer") or {}).get(schema.VERL_KEYS)
        #: What its files require, and which metrics its runs write.
        self.promises = Promises.of(composed.files)
        self.base_request = composed.tree.get("base") or {}
        self._file = f"{composer.folder.name}/method/{composed.choices.get('method')}.yaml"
        self._every_part = method_parts.parts(composer)
        # What the files of an experiment, a scale or a method set is checked against what holds without them.
        choices = {
            **{group: one for group, one in composed.choices.items() if one is not None and composer.is_group(group)},
            **{f"method/{part}": one for part, one in method_parts.chosen(composer, composed).items()},
            "method": method_parts.BASELINE,
        }
        without = sorted(f"{group}={one}" for group, one in choices.items() if group not in ("experiment", "scale"))
        defaults = composer.compose(without).tree
        #: The choice of each part; of a list part as Hydra's overrides spell it.
        self.parts = {part: choices[f"method/{part}"] for part in self._every_part if f"method/{part}" in choices}
        self._method = schema.strip(defaults["method"])
        # What parts need of each other is judged file by file, below, not as Hydra merges it.
        fragments = defaults["method"].get(schema.ALLOWED) or {}
        own = {key: fragment for key, fragment in fragments.items() if key not in self.parts}
        self._defaults = {**defaults, "method": {**defaults["method"], schema.ALLOWED: own}}
        #: (part, rule, fix) of what the chosen parts need of each other, and do not have.
        self.unmet = [one for one in method_parts.unmet(composer, without, self._method) if one[0] in self.parts]

    @functools.cached_property
    def checker(self) -> schema.Checker:
        """Checks our own sections (verl's differences are checked against verl's tree)."""
        return schema.Checker({key: self._defaults.get(key) for key in SECTIONS if key != "verl"})

    def breaches(self, config: Mapping[str, Any]) -> Iterator[Breach]:
        """What is wrong with a run's values; verl's differences are checked against verl's tree."""
        flat = [
            schema.not_a_mapping(key, config[key], own)
            for key, own in self.tree.items()
            if isinstance(own, Mapping) and not isinstance(config[key], Mapping)
        ]
        if flat:
            yield from flat
            return
        yield from self.checker.check({key: value for key, value in config.items() if key != "verl"})
        missing = [part for part in self._every_part if part not in config["method"]]
        if missing:
            rule = f"a method needs every part; missing: {', '.join(missing)}"
            fix = f"begin {self._file} with `defaults: [c0_grpo, _self_]`"
            yield Breach("method", config["method"], rule, fix)
        for part, choice in self.parts.items():
            value, own = config["method"].get(part), self._method.get(part)
            if value != own and not isinstance(own, Mapping):
                rule = f"a part of a method is chosen as a group, not set as a value (the group's choice is {choice})"
                yield Breach(f"method.{part}", value, rule, f"choose method/{part}={value}")

    def has(self, key: str) -> bool:
        """Whether a run of this variant reads a key; verl's keys are judged against verl's tree."""
        return key.startswith("verl.") or hydra_compose.lookup(self.tree, key)[0]


class PlanningContext:
    """What the parts of one planning share: the command line, what was composed, and the problems found."""

    def __init__(self, composer: Composer, arguments: Sequence[str]) -> None:
        self.composer = composer
        self.problems = Diagnostics()
        self.arguments = overrides.parse(composer, arguments, self.problems)
        self.used_bases: dict[str, Base] = {}
        self.cluster: Mapping[str, Any] = {}  # the section, so far as it is known
        self._variants: dict[tuple[str, ...], ConfigVariant | None] = {}
        self._tasks: list[TaskCheck] = []
        self._results: dict[str, Any] = {}
        #: Calls code that may be a user's.
        self.isolated = Isolated()

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """The result of a computation that depends only on `key`, computed once. key: its name, and what it reads."""
        memo = repr(key)
        if memo not in self._results:
            self._results[memo] = compute()
        result: Result = self._results[memo]
        return result

    def file_of(self, experiment: str | None) -> str:
        """The file that declares an experiment."""
        name = f"experiment/{experiment}" if experiment else self.composer.config
        return f"{self.composer.folder.name}/{name}.yaml"

    def selection(self, experiment: str | None) -> list[str]:
        """The choices of groups that hold for the whole experiment, as Hydra's overrides."""
        chosen = {group: one for group, one in self.arguments.choices.items() if not group.startswith("method/")}
        if experiment:
            chosen = {"experiment": experiment, **chosen}
        if self.arguments.more_hypotheses:
            own = self.composer.compose([f"{group}={one}" for group, one in chosen.items()]).chosen(HYPOTHESIS)
            chosen.pop(HYPOTHESIS, None)
            chosen[HYPOTHESIS] = method_parts.spelled([*own, *self.arguments.more_hypotheses])
        return [f"{group}={one}" for group, one in chosen.items()]

    def variant(self, experiment: str | None, overrides: Sequence[str]) -> ConfigVariant | None:
        """The variant for a choice of groups (the last for each counts); None (and a problem) if it does not
        compose."""
        chosen = {one.partition("=")[0]: one for one in (*self.selection(experiment), *overrides)}
        key = tuple(chosen.values())
        if key not in self._variants:
            try:
                self._variants[key] = ConfigVariant(self.composer, key)
                self.check_files(self.composer.compose(key))
            except hydra_compose.ERRORS as error:
                self._variants[key] = None
                self.does_not_compose(self.file_of(experiment), error)
        return self._variants[key]

    def check_files(self, composed: Composed) -> bool:
        """Add a problem for each section of a file that would have no effect, or another effect than intended.

        A missing header, a mistyped name, a group's choice outside `defaults`, a value in place of a mapping. Returns
        whether the rest of the composition can be judged nevertheless.
        """
        files = [file for file in composed.files if file.path != self.composer.config]
        return all([self._check_file(file) for file in files])

    def _check_file(self, file: File) -> bool:
        root, groups = self.composer.content(self.composer.config), self.composer.subgroups("")
        # Hydra reads its own section where it starts, which is without the experiment.
        sections = list(dict.fromkeys([*(key for key in root if key != "hydra"), *groups]))
        path, group = f"{self.composer.folder.name}/{file.path}.yaml", file.path.rpartition("/")[0]
        package = _PACKAGES.get(group, "method" if group.startswith("method/") else None)
        if package is not None and file.package == group.replace("/", "."):
            self._no_header(path, package)
            return False
        sound = True
        for key, value in file.tree.items():
            if key == "hydra":
                first = next(iter(value), "...") if isinstance(value, Mapping) else "..."
                self._hydras_own(path, key, schema.brief(value), f"hydra.{first}=...")
            elif key not in sections:
                fix = closest(str(key), sections, otherwise=f"remove it, or use one of {', '.join(sections)}")
                fix = self.suggested(str(key), value) or fix
                if group == "experiment" and key in ExperimentSpec.model_fields:
                    fix = f"indent it below experiment:, two spaces deeper than it is (experiment.{key})"
                self.problems.add(path, str(key), None, NO_SUCH_KEY, fix)
            elif key in groups and (key == HYPOTHESIS or isinstance(value, (str, list))):
                rule, fix = (
                    "a file of this group must be chosen in the defaults list",
                    f"write - override /{key}: NAME there",
                )
                self.problems.add(path, key, schema.brief(value), rule, fix)
                sound = False
            elif not isinstance(value, Mapping) and (key in groups or isinstance(root.get(key), Mapping)):
                rule, fix = "must be a mapping", "write a mapping, or remove it"
                self.problems.add(path, key, schema.brief(value), rule, fix)
                sound = False
        return sound

    def base(self, variant: ConfigVariant, where: str) -> Base | None:
        """verl's tree for a variant, with the command line's `base.*`; None (and a problem) if it does not compose."""
        request: Mapping[str, Any] = {"base": variant.base_request}
        for key, value in self.arguments.values.items():
            if key.startswith("base."):
                request = hydra_compose.assign(request, key, value)
        config, overrides = request["base"].get("config"), request["base"].get("overrides") or []
        memo = identity.canonical_json(request["base"])

        def compose() -> Base | None:
            try:
                if not isinstance(overrides, list):
                    raise ConfigCompositionException("base.overrides must be a list such as [KEY=VALUE]")
                return verl_tree.compose(str(config), list(map(str, overrides)))
            except hydra_compose.ERRORS as error:
                rule = one_line(f"verl's configuration does not compose: {error}")
                self.problems.add(where, "base", memo, rule, "correct base.config or base.overrides")
                return None

        base = self._once(("base", memo), compose)
        if base is not None:
            self.used_bases[base.hash] = base
        return base

    def suggested(self, key: str, value: Any) -> str | None:
        """The fix for a key that is known under another name; None: it is not."""
        section, _, rest = key.partition(".")
        files = [(one, self.composer.content(f"{section}/{one}")) for one in self.composer.options(section)]
        having = [one for one, file in files if any(hydra_compose.lookup(file, at)[0] for at in (key, rest))]
        if rest and having and section in ("cluster", "trainer"):
            return f"add {' or '.join(f'{section}={one}' for one in having)}"
        return suggestions.key(key, value, () if section in SECTIONS else _verls_sections())

    def metric(self, name: str) -> str | None:
        """The metric that a name without its first word means: eval/reward_mean of reward_mean; None: not known."""
        known = sorted({one for made in self._variants.values() if made is not None for one in made.promises.metrics})
        meant = [one for one in known if one.partition("/")[2] == name] or [
            one for one in known if one.partition("/")[2] == nearest(name, [one.partition("/")[2] for one in known])
        ]
        return f"write {' or '.join(meant)}" if meant else None

    def readers(self, key: str) -> str:
        """The choices of parts whose files have a dotted key of `method`: method/control=dual."""
        return " or ".join(choice for choice, content in self._parts.items() if hydra_compose.lookup(content, key)[0])

    def unwritten(self, metric: str) -> tuple[str, str]:
        """The rule and the fix for a metric that none of these runs writes."""
        rule = "no run of this experiment writes it"
        if metric == WIN_RATE:
            fix = "set trainer.eval_every and trainer.eval_responses to an integer 1 or more"
            return f"{rule}: judges compare the responses that evaluations keep", fix
        for variant in self._variants.values():
            for conditions in variant.promises.metrics.get(metric, ()) if variant is not None else ():
                needed = [f"set {key} to {words(fragment)}" for key, fragment in conditions.items()]
                if needed:
                    return rule, " and ".join(needed)
        writers = [choice for choice, content in self._parts.items() if metric in Promises.declared(content)]
        if writers:
            return f"{rule}; it is written with {' or '.join(writers)}", "add such a group, or name another metric"
        known = {one for variant in self._variants.values() if variant is not None for one in variant.promises.metrics}
        known |= {one for content in self._parts.values() for one in Promises.declared(content)}
        of_rewards = {one for checked in self._tasks for one in checked.metrics(evaluated=True)}
        if metric in of_rewards:
            return rule, "set trainer.eval_every to an integer 1 or more"
        known |= of_rewards
        otherwise = "name one of docs/metrics.md, or declare it under `writes` in the file of what writes it"
        return rule, closest(metric, sorted(known), otherwise=otherwise)

    @functools.cached_property
    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {
            f"method/{part}={choice}": self.composer.content(f"method/{part}/{choice}")
            for part in method_parts.parts(self.composer)
            for choice in self.composer.options(f"method/{part}")
        }

    def differences(
        self, base: Base, tree: Mapping[str, Any], keys: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], list[BadDifference]]:
        """A tree's differences to verl's that do differ, and those that verl's tree or the trainer refuses.

        keys: the trainer's `verl_keys`, or None for a trainer that reads them all.
        """
        given = tree.get("verl") or {}

        def compute() -> tuple[dict[str, Any], list[BadDifference]]:
            differing = verl_tree.prune(base.tree, given)
            fragments = keys["read"] if keys is not None else {}
            # What the trainer reads as one of several types may have another type than verl's default.
            several = {f"verl.{key}" for key, own in fragments.items() if isinstance((own or {}).get("type"), list)}
            refused = {bad.key: bad for bad in verl_tree.check(base.tree, given) if bad.key not in several}
            for bad in schema.refused_by_trainer(given, differing, keys) if keys is not None else ():
                if not any(f"{bad.key}.".startswith(f"{known}.") for known in refused):
                    refused[bad.key] = bad
            return differing, list(refused.values())

        return self._once(("differences", base.hash, given, keys), compute)

    def task(self, section: Mapping[str, Any]) -> TaskCheck:
        """What the task of a run offers, and what is wrong with it; each task is asked once."""

        def check() -> TaskCheck:
            runs_here = self.cluster.get("name", "local") == "local"
            key = "task.reward" if section.get("reward") else "task.name"
            given = section, schema.is_local(section), runs_here
            found = self.called(_seconds(section), key, section.get(key[5:]), preflight.check_task, *given)
            self._tasks.append(found if isinstance(found, TaskCheck) else TaskCheck((), (found,)))
            return self._tasks[-1]

        return self._once(("task", section), check)

    def called(self, seconds: float, key: str, value: Any, function: Callable[..., Any], *given: Any) -> Any:
        """The result of a function that executes a user's code, or an Objection. key, value: what chooses that code."""
        try:
            return self.isolated.call(seconds, function, *given)
        except Ended as ended:
            return preflight.unusable(key, value, ended)

    def choices(self, variant: ConfigVariant, method: Mapping[str, Any]) -> list[Objection]:
        """Why a run cannot import or use the choices of its method that this project does not include."""
        files = {part: self._parts.get(f"method/{part}={choice}") or {} for part, choice in variant.parts.items()}
        declared = {part: [key for key in schema.strip(file) if key != part] for part, file in files.items()}
        found: list[Objection | None] = []
        for choice in preflight.own_choices(method, declared):
            check = f"method.{choice[0]}", choice[1], preflight.check_choice, *choice
            found.append(self._once(("choice", choice), partial(self.called, preflight.IMPORT_S, *check)))
        return [objection for objection in dict.fromkeys(found) if objection is not None]

    def prompts(self, config: Mapping[str, Any], longest: int) -> Objection | None:
        """Why a split that a run reads has no prompt of at most `longest` tokens; None: it has, or it is not known."""
        section, model, trainer = config["task"], config["model"], config["trainer"]
        evaluated = bool(trainer.get("eval_every"))
        named = model.get("kind"), model.get("path"), preflight.chat_template(config)
        given = _seconds(section), "task.name", section["name"], preflight.check_prompts, config, longest
        if not schema.is_local(section):
            return None
        key = "prompts", section, named, trainer.get("split"), evaluated, longest
        result: Objection | None = self._once(key, partial(self.called, *given))
        return result

    def sizes(self, config: Mapping[str, Any], base: Base, declared: Mapping[str, Any] | None) -> list[Objection]:
        """Why the models of a run cannot be loaded, do not fit into memory, or do not fit to its batches.

        What is not known here is no objection. declared: the sizes that the model's file states.
        """

        def check() -> list[Objection]:
            tree = verl_tree.merged(base.tree, config["verl"])
            found = [*preflight.check_folders(config, tree, declared), *preflight.check_sizes(config, tree)]
            too_large = preflight.check_size(config, tree, declared) if not found else None
            return found if too_large is None else [too_large]

        key = "sizes", config["model"], config["method"], config["trainer"], config["verl"], base.hash
        return self._once(key, check)

    def checkpoint_and_step(
        self, config: Mapping[str, Any], base: Base, declared: Mapping[str, Any] | None
    ) -> tuple[int, float] | tuple[None, None]:
        """Of a run that can start, bytes of a checkpoint, and seconds of a step; None: not known. declared: as for
        `sizes`."""
        return preflight.checkpoint_and_step(config, verl_tree.merged(base.tree, config["verl"]), declared)

    def _no_header(self, where: str, package: str) -> None:
        rule = "the file does not begin with its header"
        self.problems.add(where, f"# @package {package}", None, rule, "make this the file's first line")

    def _hydras_own(self, file: str, key: str, value: str | None, word: str) -> None:
        rule = "Hydra reads its own settings when it starts, before it reads this file"
        self.problems.add(file, key, value, rule, f"write it on the command line, {word}, or in conf/config.yaml")

    def does_not_compose(self, where: str, error: Exception) -> None:
        """Add the problem of a configuration that Hydra refuses."""
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            _, folder, rest = str(mark.name).rpartition("conf/")
            at = f"line {mark.line + 1}, column {mark.column + 1}"
            fix = "indent with spaces instead of tabs" if "\\t" in str(error.problem) else "correct the line"
            if "mapping values" in str(error.problem) or "expected <block end>" in str(error.problem):
                fix = "indent the keys of one mapping equally, two spaces deeper than its name"
            self.problems.add(f"{folder}{rest}", at, None, f"not YAML: {error.problem}", fix)
            return
        if isinstance(error, UnicodeDecodeError):
            self.problems.add(where, f"byte {error.start}", None, "not UTF-8", "save the file as UTF-8")
            return
        if isinstance(error, hydra_compose.Clash):
            fix = f"write a {error.expected}"
            self.problems.add(f"conf/{error.file}.yaml", error.key, schema.brief(error.value), error.rule, fix)
            return
        if isinstance(error, hydra_compose.HydrasOwn):
            self._hydras_own(f"conf/{error.file}.yaml", "defaults", error.entry, error.word)
            return
        cause = str(error.__cause__ or "")
        text = one_line(str(error) if cause in str(error) else f"{error} {cause}").partition(" Config search path")[0]
        if "@experiment." in text:  # without its header Hydra takes the file for a part of `experiment`
            self._no_header(where, _PACKAGES["experiment"])
            return
        missing = re.search(r"Could not find 'experiment/(\w+)/(\w+)'|Multiple values for (\w+)\.", text)
        group = missing and (missing[1] or missing[3])
        if missing and group in self.composer.subgroups(""):
            fix = f"write - override /{group}: {missing[2] or 'NAME'}"
            rule = "an experiment overrides what conf/config.yaml chose"
            self.problems.add(where, "defaults", f"- {group}: {missing[2] or '...'}", rule, fix)
            return
        option = re.search(r"Could not (?:find|load) '([\w/]+)/([\w.-]+)'", text)
        if option and self.composer.is_group(option[1]):
            overrides.unknown_option(self.composer, where, "defaults", option[1], option[2], self.problems)
            return
        if option := re.search(r"Could not override '([\w/]+)'", text):
            groups = [*self.composer.subgroups(""), *(f"method/{part}" for part in method_parts.parts(self.composer))]
            fix = closest(option[1], groups, "- override /", f"use one of {', '.join(groups)}")
            self.problems.add(where, "defaults", option[1], "there is no such configuration group", fix)
            return
        rule = f"the configuration does not compose: {text.rstrip('.')}"
        self.problems.add(where, "defaults", None, rule, "correct the name or the value")
