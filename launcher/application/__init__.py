"""What the sweep engine asks of an application: the program whose runs it plans, does and records.

conf/config.yaml names its class as MODULE:CLASS, under `application`. Importing it must be cheap: modules of the run
itself are imported inside its methods. A class that inherits from the protocols has their defaults.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from launcher import files
from launcher.errors import Diagnostics, Objection, Usage
from launcher.project import CONF, ROOT, root
from launcher.text import counted

#: The key of conf/config.yaml that names the application. No other file and no command line has it.
KEY = "application"
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


@dataclass(frozen=True)
class Identity:
    """What makes a run another run.

    sections: the keys of a run's configuration that can change a result; ignored: dotted keys in them that cannot;
    ignored_if_empty: dotted keys that count only in runs that set them; open: sections of which files do not declare
    every key, so that the application itself checks them; frozen: further keys that are kept with a run.
    """

    sections: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    open: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    ignored_if_empty: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Base:
    """A configuration tree that many runs share, and of which each run keeps its differences.

    It is composed and unresolved: its hash, its text as frozen, and the same as plain values.
    """

    hash: str
    text: str
    tree: dict[str, Any]


def merged(tree: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the differences in it; lists are replaced whole. The arguments are not changed."""
    result: dict[str, Any] = dict(tree)
    for key, value in differences.items():
        default = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(default, Mapping)
        result[key] = merged(default or {}, value) if nested else value
    return result


@dataclass(frozen=True)
class Shape:
    """Nodes, and on each of them devices, CPUs and memory (10^9 bytes); the time limit in seconds. 0: not requested.

    joins_ray: on a cluster of Ray, the run's processes are Ray's, inside a placement group that requests all this.
    """

    nodes: int = 1
    devices: int = 0
    cpus: int = 1
    memory_gb: float = 0.0
    time_s: int = 0
    joins_ray: bool = False

    @property
    def units(self) -> int:
        """What device-hours count: the devices on all nodes; without devices, one for each node."""
        return self.nodes * max(self.devices, 1)

    def __str__(self) -> str:
        nodes = counted(self.nodes, "node")
        devices = f"{self.devices} devices, " if self.devices else ""
        return f"{nodes}, on each {devices}{self.cpus} CPUs and {self.memory_gb:g} GB, {self.time_s} s"


@dataclass(frozen=True)
class Length:
    """How long a run is, in steps, and after how many it writes a checkpoint.

    steps: each is logged once, and a log that lacks one is damaged; None where only the run knows. first_step: the
    first that it logs; checkpoints_kept: how many stay.
    """

    steps: int | None
    checkpoint_every: int
    checkpoints_kept: int = 1
    first_step: int = 1


def seconds(time: str) -> int | None:
    """The seconds of a time in SLURM's format, HH:MM:SS or D-HH:MM:SS; None for another format."""
    if (match := _TIME.fullmatch(time)) is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


@dataclass(frozen=True)
class File:
    """One file of a composition: its path without .yaml, the package it is merged into, and its content."""

    path: str
    package: str
    content: Mapping[str, Any]

    @property
    def tree(self) -> Mapping[str, Any]:
        """The content at its place in the whole."""
        content = self.content
        for part in reversed(self.package.split(".") if self.package else []):
            content = {part: content}
        return content


@dataclass(frozen=True)
class Composed:
    """A composed configuration without its `hydra` section: plain values, interpolations as they are.

    Shared between callers: copy before changing. choices: by group; files: in the order of merging.
    """

    tree: Mapping[str, Any]
    choices: Mapping[str, str | None]
    files: tuple[File, ...]

    def chosen(self, group: str) -> list[str]:
        """The files of a group that are part of the composition, also where a group has a list of choices."""
        return [file.path.removeprefix(f"{group}/") for file in self.files if file.path.rpartition("/")[0] == group]


class Parts(Protocol):
    """The parts of which a method is composed: each is a configuration group below `method`.

    composer: a launcher.config.hydra_compose.Composer.
    """

    BASELINE: str

    def parts(self, composer: Any) -> list[str]:
        """Their names."""
        return []

    def is_list_part(self, composer: Any, group: str) -> bool:
        """Whether a group takes a list of choices."""

    def chosen(self, composer: Any, composed: Composed) -> dict[str, str]:
        """The choice that a composition makes for each part, in the form of Hydra's overrides."""
        return {}

    def unmet(
        self, composer: Any, overrides: Sequence[str], method: Mapping[str, Any]
    ) -> Iterator[tuple[str, str, str]]:
        """(part, rule, fix) of what the chosen parts need of each other and do not have."""
        return iter(())

    def combine(
        self, composer: Any, methods: Sequence[str], where: str, at: str, problems: Diagnostics
    ) -> tuple[list[str], dict[str, tuple[Any, str]]] | None:
        """Overrides of groups, and values with the method that sets each, that compose all the methods at once.

        None (and a problem) if they exclude each other.
        """
        if len(methods) == 1:
            return [f"method={methods[0]}"], {}
        problems.add(where, at, str(list(methods)), "these methods cannot be combined", "name one method")
        return None


class Checks(Protocol):
    """The questions of one plan about its runs. config: a run's resolved sections; composed: what they come from."""

    def refusals(self, composed: Composed, config: Mapping[str, Any]) -> Sequence[Objection]:
        """The values that the application's own tree refuses. The other sections may be wrong as well."""
        return ()

    def settle(self, composed: Composed, config: Mapping[str, Any]) -> tuple[dict[str, Any], Base]:
        """A sound configuration with the application's own completions, and the tree to which it has differences."""
        return dict(config), Base(hashlib.sha256(b"").hexdigest()[:16], "", {})

    def objections(
        self, composed: Composed, config: Mapping[str, Any], base: Base, cluster: Mapping[str, Any]
    ) -> Sequence[Objection]:
        """Why a run with this settled configuration could not start, whatever its seed."""
        return ()

    def metrics(self, composed: Composed, config: Mapping[str, Any]) -> Collection[str]:
        """The metrics that the run writes."""

    def estimate(
        self, composed: Composed, config: Mapping[str, Any], base: Base
    ) -> tuple[int, float] | tuple[None, None]:
        """Bytes of a checkpoint and seconds of a step, where they are known before any run was measured."""
        return None, None

    def unwritten(
        self, metric: str, compositions: Iterable[Composed], parts: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, str]:
        """The rule and the fix for a metric that no run writes. parts: the files of each part's choice, by choice."""
        return "no run of this experiment writes it", "name another metric"

    def meant_metric(self, name: str, compositions: Iterable[Composed]) -> str | None:
        """The fix for a metric's name that is not complete; None: no metric is meant."""

    def close(self) -> None:
        """End what the questions have started. Another plan may ask further questions afterwards."""


class Application(Protocol):
    """The program whose runs are planned and done."""

    identity: Identity = Identity(("seed", "method", "model", "task", "trainer"))
    #: Keys with which configuration files describe themselves: no part of a run's configuration.
    descriptions: tuple[str, ...] = ()
    #: The packages whose version is recorded by name, because a run's numbers depend on them.
    libraries: tuple[str, ...] = ()
    #: The function that does a run, as module:function: it takes the whole configuration and the run's Attempt.
    work: str
    #: The failure kinds (launcher.run.lifecycle) of exceptions that `work` raises, by module:class.
    failures: Mapping[str, str] = MappingProxyType({})
    #: What files of its checkpoints hold, as a word in their paths; all others hold `state`.
    contents: tuple[str, ...] = ()
    #: How its metrics begin that depend on a clock or on the machine's load, beside those whose names say so.
    clocked: tuple[str, ...] = ()
    #: Modules that every run imports before it starts.
    warm: tuple[str, ...] = ()
    #: The templates of `init`, as package:folder; empty: those of `init --plain`.
    study: str = ""
    #: Further commands of `python -m launcher`, with their modules, which have what those of launcher.commands have.
    commands: Mapping[str, str] = MappingProxyType({})

    def parts(self) -> Parts:
        """How methods are composed."""

    def checks(self) -> Checks:
        """The questions of one plan. Call its `close` at the end."""

    def continuing(self, config: Mapping[str, Any], base: Base, shorter: Mapping[str, Any]) -> Sequence[Objection]:
        """Why a run does not continue a finished one of fewer steps. shorter: the other's section `trainer`."""
        return ()

    def first_steps(self, config: Mapping[str, Any]) -> Mapping[str, Callable[[Mapping[str, Any]], bool]]:
        """By the name of a log, which of its lines, read in order, a run of this length has of a longer log."""
        return {}

    def length(self, config: Mapping[str, Any]) -> Length:
        """How long a run is."""
        return Length(int(config["trainer"]["steps"]), int(config["trainer"]["checkpoint_every"]))

    def resources(self, config: Mapping[str, Any]) -> Shape:
        """What a run requests of a cluster."""
        return Shape()

    def requested_in(self, config: Mapping[str, Any], name: str) -> tuple[str, str]:
        """The file, and the key there, that say what a run requests. name: of the field of Shape."""
        return "conf/config.yaml", f"resources.{name}"

    def kinds(self, config: Mapping[str, Any]) -> tuple[str, str, str]:
        """Equal texts for runs with folders of equal size, with equal work in a step, and with equal steps."""
        return (repr({key: config.get(key) for key in self.identity.sections if key != "seed"}),) * 3

    def option(self, group: str, name: str, options: Collection[str]) -> str | None:
        """The file of a configuration group that a name means; None: it is not known."""

    def key(self, name: str, value: object) -> str | None:
        """The fix for a key that is known under another name; None: it is not known."""

    def completed(self, folder: Path, config: Mapping[str, Any], commits: Mapping[str, str]) -> Any:
        """The frozen configuration of a run's folder as `work` takes it, with these commits of what is on the hub.

        ValueError: a commit is not on this machine any more.
        """
        return config

    def imports(self, config: Mapping[str, Any]) -> Sequence[str]:
        """The modules, and the absolute paths of files, that a run imports because its configuration names them."""
        return ()

    def code_files(self, config: Mapping[str, Any] | None) -> Iterable[Path]:
        """Modules that a run may load in processes of its own; None: those of any run."""
        return ()

    def data_files(self, config: Mapping[str, Any]) -> Iterable[Path]:
        """Further data files that the modules loaded in this process read for the run."""
        return ()


def configurations() -> tuple[Path, Path | None]:
    """The folder of the configurations that come with rlsweep, and the present project's own, which win over them.

    None: rlsweep's own repository, and a project without conf/.
    """
    own = root() / "conf"
    return CONF, own if root() != ROOT and own.is_dir() else None


@functools.cache
def name() -> str:
    """The application's class, as MODULE:CLASS. Usage: conf/config.yaml does not say it."""
    file = CONF / "config.yaml"
    named = files.load_yaml(file).get(KEY)
    if not isinstance(named, str):
        raise Usage(f"{file}: {KEY} = {named}: must be MODULE:CLASS. Fix: restore the line")
    return named


def application(config: Mapping[str, Any] | None = None) -> Application:
    """The application of a run with this configuration; without one, that of this project."""
    return _named(str((config or {}).get(KEY) or name()))


@functools.cache
def _named(name: str) -> Application:
    module, _, attribute = name.partition(":")
    loaded: Application = getattr(importlib.import_module(module), attribute)()
    return loaded


def shape(config: Mapping[str, Any]) -> Shape:
    """What a run requests of a cluster. config: checked against conf/config.yaml."""
    return application(config).resources(config)


def packages() -> frozenset[str]:
    """The project's own packages, with that of the application."""
    return frozenset({"launcher", "analysis", name().partition(".")[0]})
