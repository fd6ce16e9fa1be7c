"""What the files of a configuration declare beside their values: what they require, and which metrics a run writes.

`requires` maps dotted keys of a run's configuration to JSON-Schema fragments, each with `description` (what is needed,
and why) and `fix`. `writes` maps the metrics that a run writes to null. Both may have conditions: dotted keys with the
fragments that their values must meet, in a requirement under `when`, for a metric in the place of null. A requirement
that is null drops those of the files before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.spec.validation import words
from launcher.config import hydra_compose, identity
from launcher.config.hydra_compose import File
from launcher.planning.schema import REQUIRES, WRITES, Validator

_Conditions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Requirement:
    """What a file requires of a dotted key, and under which conditions."""

    key: str
    schema: Mapping[str, Any]

    def rule(self) -> str:
        """The requirement in words: must be one of a, b."""
        return f"must be {words(self.schema)}"

    @property
    def fix(self) -> str:
        """What to do where it is not met."""
        return str(self.schema.get("fix") or f"set {self.key} to {words(self.schema)}")


@dataclass(frozen=True)
class Promises:
    """The declarations of all files of one composition."""

    requirements: tuple[Requirement, ...]
    metrics: Mapping[str, tuple[_Conditions, ...]]
    _judged: dict[tuple[int, str], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, files: tuple[File, ...]) -> Promises:
        """Read file by file: Hydra would merge what two files require of one key into one fragment."""
        requirements: list[Requirement] = []
        metrics: dict[str, list[_Conditions]] = {}
        for file in files:
            for section in _sections(file.content, REQUIRES):
                dropped = [key for key, fragment in section.items() if fragment is None]
                requirements = [one for one in requirements if one.key not in dropped]
                requirements += [Requirement(str(key), own) for key, own in section.items() if own is not None]
            for section in _sections(file.content, WRITES):
                for metric, conditions in section.items():
                    metrics.setdefault(str(metric), []).append(conditions or {})
        return cls(tuple(requirements), {metric: tuple(each) for metric, each in metrics.items()})

    @staticmethod
    def declared(content: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a file declares, whatever their conditions."""
        return frozenset(str(metric) for section in _sections(content, WRITES) for metric in section)

    def unmet(self, config: Mapping[str, Any]) -> list[Requirement]:
        """The requirements that apply to a run's configuration and that it does not meet."""
        return [
            one
            for one in self.requirements
            if self._hold(one.schema.get("when") or {}, config) and not self._valid(one.schema, one.key, config)
        ]

    def written(self, config: Mapping[str, Any]) -> frozenset[str]:
        """The metrics that a run of this configuration writes."""
        return frozenset(
            metric
            for metric, each in self.metrics.items()
            if any(self._hold(conditions, config) for conditions in each)
        )

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
