"""What configuration files say about runs: requirements, metrics that runs write, keys of verl's tree that are read.

`requires` maps dotted keys of a run's configuration to JSON-Schema fragments, each with `description` (what is needed,
and why) and `fix`. `writes` maps the metrics that a run writes to null. Both may have conditions: dotted keys with the
fragments that their values must meet, in a requirement under `when`, for a metric in the place of null. A requirement
that is null drops those of the files before. A trainer's `verl_keys` has the keys of verl's tree that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from analysis.spec.validation import words
from launcher.application import Composed, File
from launcher.config import hydra_compose, identity
from launcher.planning.schema import Validator, strip
from launcher.project import activate
from trainer_ext.objection import Objection

_Conditions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Declarations:
    """The declarations of all files of one composition. requirements: dotted keys, each with a fragment."""

    requirements: tuple[tuple[str, Mapping[str, Any]], ...]
    metrics: Mapping[str, tuple[_Conditions, ...]]
    _judged: dict[tuple[int, str], bool] = field(default_factory=dict)

    @classmethod
    def of_files(cls, files: tuple[File, ...]) -> Declarations:
        """Read file by file: Hydra would merge what two files require of one key into one fragment."""
        requirements: list[tuple[str, Mapping[str, Any]]] = []
        metrics: dict[str, list[_Conditions]] = {}
        for file in files:
            for section in _sections(file.content, "requires"):
                dropped = [key for key, fragment in section.items() if fragment is None]
                requirements = [(key, fragment) for key, fragment in requirements if key not in dropped]
                requirements += [(str(key), fragment) for key, fragment in section.items() if fragment is not None]
            for section in _sections(file.content, "writes"):
                for metric, conditions in section.items():
                    metrics.setdefault(str(metric), []).append(conditions or {})
        return cls(tuple(requirements), {metric: tuple(each) for metric, each in metrics.items()})

    @staticmethod
    def declared(content: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a file declares, whatever their conditions."""
        return frozenset(str(metric) for section in _sections(content, "writes") for metric in section)

    def unmet(self, config: Mapping[str, Any]) -> Iterator[Objection]:
        """Each requirement that applies to a run's configuration and that it does not meet."""
        for key, fragment in self.requirements:
            if self._hold(fragment.get("when") or {}, config) and not self._valid(fragment, key, config):
                allowed = words(fragment)
                fix = str(fragment.get("fix") or f"set {key} to {allowed}")
                key = "task.name" if key == "task.functions" else key  # the task's code decides which it has
                yield Objection(key, hydra_compose.lookup(config, key)[1], f"must be {allowed}", fix)

    def idle(self, composed: Composed, config: Mapping[str, Any], differing: Mapping[str, Any]) -> Iterator[Objection]:
        """Each difference to verl's tree that by `when` of its key has no effect, but for those that a file states."""
        for path, fragment in (hydra_compose.lookup(composed.tree, "trainer.verl_keys.read")[1] or {}).items():
            (given, value), when = hydra_compose.lookup(differing, path), (fragment or {}).get("when", {})
            said = (hydra_compose.lookup(file.tree, f"verl.{path}")[1] for file in composed.files)
            if given and not self._hold(when, config) and value not in said:
                fix = "remove it, or set " + " and ".join(f"{other} to {words(one)}" for other, one in when.items())
                yield Objection(f"verl.{path}", value, "the chosen trainer does not read this key in this run", fix)

    def written(self, config: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a run of this configuration writes."""
        return frozenset(name for name, each in self.metrics.items() if any(self._hold(one, config) for one in each))

    def _hold(self, conditions: _Conditions, config: Mapping[str, Any]) -> bool:
        return all(self._valid(fragment, key, config) for key, fragment in conditions.items())

    def _valid(self, fragment: Mapping[str, Any], key: str, config: Mapping[str, Any]) -> bool:
        value = hydra_compose.lookup(config, key)[1]
        memo = (id(fragment), identity.canonical_json(value) if isinstance(value, (Mapping, list)) else repr(value))
        if memo not in self._judged:
            self._judged[memo] = bool(Validator(fragment).is_valid(value))
        return self._judged[memo]


def _sections(content: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Every mapping of that name in a file."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if key == name and isinstance(value, Mapping):
                yield value
            else:
                yield from _sections(value, name)


def configured(task: str, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The section `task` and trainer.split in the present project. ValueError: a name or a value is not known."""
    activate()
    try:
        tree = OmegaConf.create(hydra_compose.of_project().compose([f"task={task}", *overrides]).tree)
        section: Any = OmegaConf.to_container(tree.task, resolve=True, throw_on_missing=True)
        shares: Any = OmegaConf.to_container(tree.trainer.split, resolve=True)
    except hydra_compose.ERRORS as error:
        raise ValueError(" ".join(str(error).partition("Config search path")[0].split())) from error
    return strip(section), strip(shares)


# ---------------------------------------------------------------- the keys of verl's tree that a trainer reads


def refused_by_trainer(
    given: Mapping[str, Any], differing: Mapping[str, Any], keys: Mapping[str, Any]
) -> Iterator[Objection]:
    """Every value of verl's tree that the trainer does not read, or reads and cannot use.

    given: what a run sets, where a key that is not read is refused even if it equals verl's default; differing: the
    part that differs from the default; keys: the trainer's `verl_keys`. `read` has a JSON-Schema fragment for each key
    that it reads, and a mapping includes all keys below it; `elsewhere` says for some others what to set instead.
    """
    read, elsewhere = keys["read"], keys["elsewhere"]

    def is_read(path: str) -> bool:
        return path not in elsewhere and any(f"{path}.".startswith(f"{known}.") for known in read)

    for path, value in hydra_compose.leaves(given):
        if not is_read(path):
            instead = next((fix for known, fix in elsewhere.items() if f"{path}.".startswith(f"{known}.")), "remove it")
            rule = "the chosen trainer does not read this key (trainer.verl_keys lists the keys that it reads)"
            yield Objection(f"verl.{path}", value, rule, instead)
    for path, value in hydra_compose.leaves(differing):
        schema = read.get(path) or {}
        if schema and not {"type", "enum", "const"} & set(schema):
            schema = {"type": "integer", **schema}
        if is_read(path) and not Validator(schema).is_valid(value):
            yield Objection(f"verl.{path}", value, f"must be {words(schema)}", f"give {words(schema)}")
