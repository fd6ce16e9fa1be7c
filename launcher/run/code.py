"""Which code made a run: the content of the modules of ours that its process loaded, its data files, its libraries,
and what it loaded from the hub.

    multirun/code/<id>.json                     one file for all attempts with equal code; state.json names it
    multirun/<experiment>/code_choices.jsonl    a line for each `accept_code=true`

A module is named by its path below the folder of its top-level package: analysis/stats/paired.py. That of a program
is named by its path below the project's folder, ./train.py, and one from elsewhere by its absolute path. It has two
hashes: of the file, and of the syntax tree without docstrings, which neither comments nor the layout change.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from launcher import project
from launcher.application import application, packages
from launcher.files import BadRunFolder, content_digest, json_lines
from launcher.project import ROOT
from launcher.run.folder import FORMAT, LATER, Record, create_record, read_record, to_json
from launcher.run.lifecycle import RunState

#: In an experiment's folder.
CHOICES = "code_choices.jsonl"
GONE = "gone"
_DIGITS = 16
_NOT_COMPUTING = ("launcher", "analysis", "hydra_plugins")
_NAMED = 4


@dataclass(frozen=True)
class Code(Record):
    """code/<id>.json. `modules` has the hash of each module's file, `syntax` that of its syntax tree, both by module;
    of a module that computes nothing, both are the file's.

    `data` has the hash of each data file that the task read and that is not part of the run's identity, by path;
    `libraries` the versions of the application's libraries; `hub` the commits of the hub's models/NAME and
    datasets/NAME. `root` is the project's folder, absolute, if a module is named by its path below it.
    """

    format: Literal[1] = field(default=FORMAT, kw_only=True)
    modules: Mapping[str, str] = field(default_factory=dict)
    syntax: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    hub: Mapping[str, str] = field(default_factory=dict, metadata=LATER)
    root: str = field(default="", metadata=LATER)

    @cached_property
    def id(self) -> str:
        """The hash of the content."""
        return digest_of(to_json(self))

    def values(self) -> dict[str, str]:
        """What may change a result, by name: a hash of each module and data file, the version of each library, the
        commit of each model and data set of the hub.
        """
        modules = {name: self.syntax.get(name, digest) for name, digest in self.modules.items()}
        computing = {name: digest for name, digest in modules.items() if computes(name)}
        return {**computing, **self.data, **self.libraries, **self.hub}


def digest_of(value: Any) -> str:
    """The hash of a record's content, and of a difference, by which a user's decision about it is known again."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


# ---------------------------------------------------------------- modules


def computes(name: str) -> bool:
    """Whether what a record names may change a result. Modules that plan, launch and report do not."""
    return name.split("/")[0] not in _NOT_COMPUTING


def hashes(path: Path, parsed: bool = True) -> tuple[str, str]:
    """The hash of a module's file, and that of its syntax tree; equal where the file is not Python, or not parsed."""
    return _hashes(path.read_bytes(), parsed and path.suffix == ".py")


@lru_cache(maxsize=4096)
def _hashes(content: bytes, parsed: bool) -> tuple[str, str]:
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    if not parsed:
        return digest, digest
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return digest, digest
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return digest, hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:_DIGITS]


def placed(name: str, root: str) -> str:
    """The absolute path of what a record names ./NAME, in a project with this folder; any other name as it is."""
    return str(Path(root, name)) if name.startswith("./") else name


def find(module: str, near: Iterable[Path] = ()) -> Path | None:
    """The file of a recorded module as it is now, or None: it is gone. Nothing of its package is imported.

    near: folders that may have it, before others; of a module that is recorded by its absolute path, below them.
    """
    for file in (*(place / module.lstrip("/") for place in near), ROOT / module):
        if file.is_file():
            return file
    beside = [place.parent / module for place in places(module.partition("/")[0].removesuffix(".py"))]
    return next(filter(Path.is_file, beside), None)


def places(name: str) -> list[Path]:
    """The folders of a top-level package, or the file of a module; none of a part of Python itself."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return []
    return [Path(place) for place in spec.submodule_search_locations or [str(spec.origin)]]


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """The installed versions of the application's libraries; those that are not installed are left out."""
    import importlib.metadata  # slow, and `status` does without

    installed = {}
    for name in application().libraries:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


# ---------------------------------------------------------------- records


def path_of(multirun: Path, code_id: str) -> Path:
    return multirun / "code" / f"{code_id}.json"


def keep(multirun: Path, code: Code) -> str:
    """Write a record, unless it is there; its id."""
    path = path_of(multirun, code.id)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_record(path, code)
    return code.id


def read(multirun: Path, code_id: str) -> Code | None:
    """A record; None if it is gone. BadRunFolder: it cannot be read."""
    path = path_of(multirun, code_id)
    try:
        return read_record(Code, path)
    except FileNotFoundError:
        return None
    except BadRunFolder as error:
        fix = "restore the file, or move it away; the code of its runs then counts as not known"
        raise BadRunFolder(path, "not a record of code", fix) from error


def choices(experiment: Path) -> list[dict[str, Any]]:
    """The user's decisions to accept other code in an experiment, whose folder this is, the oldest first: `time`,
    `difference` (digest_of), `changes`, `codes`, `runs`, `command`."""
    return json_lines(experiment / CHOICES)


# ---------------------------------------------------------------- differences


def changes(then: Code, near: Sequence[Path] = (), root: str = "") -> dict[str, tuple[str, str]]:
    """What a record has that is otherwise now, by name: its value then and now (`gone` for a file that is gone).

    near: folders that may have its modules, before others; root: the project's folder now, by default that of then.
    """
    root = root or then.root
    # A program's packages are below the folder of its script, or beside that.
    files = [Path(name) for name in (placed(name, root) for name in then.modules) if name[0] == "/"]
    near = near or [*dict.fromkeys(at for file in files for at in file.parents)]
    changed = {}
    for name, value in sorted(then.values().items()):
        if (present := _present(then, name, value, near, root)) != value:
            changed[name] = (value, present)
    return changed


def _present(then: Code, name: str, value: str, near: Iterable[Path], root: str) -> str:
    """The present value of what has this value in a record; the same where it is not another one."""
    if name in then.hub:
        return hub_commit(name) or value  # one that is not on this machine is not another one
    if name in then.libraries:
        return versions().get(name, GONE)
    if name in then.modules:
        if (path := find(placed(name, root), near)) is None:
            return GONE
        # The syntax tree alone does not decide: each version of Python dumps it in its own way.
        return value if hashes(path, parsed=False)[0] == then.modules[name] else hashes(path)[1]
    return content_digest(Path(name)) if Path(name).is_file() else GONE


def present_root(multirun: Path) -> str:
    """The present project's folder, if this is its multirun: one that was moved or copied with it. Else ""."""
    return str(project.root()) if project.multirun().resolve() == multirun.resolve() else ""


def is_users(name: str) -> bool:
    """Whether what a record names is code from outside of the project."""
    return name.partition("/")[0] not in {*packages(), *application().libraries, "hydra_plugins", "rlsweep.py"}


def hub_commit(name: str) -> str | None:
    """The commit of models/NAME or datasets/NAME in the hub's cache on this machine; None: it is not there."""
    try:
        return (hub_folder(name) / "refs" / "main").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def hub_folder(name: str) -> Path:
    """The folder of models/NAME or datasets/NAME in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, name.replace("/", "--"))


def between(records: Iterable[Code]) -> list[str]:
    """The names that do not have one value in all the records that have them.

    What only some of the records have is not a difference: runs of other methods load other modules.
    """
    files: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.values().items():
            values.setdefault(name, set()).add(value)
            files.setdefault(name, set()).add(record.modules.get(name, value))
    # Either of the two hashes may tell that a module is the same.
    return sorted(name for name in values if len(values[name]) > 1 and len(files[name]) > 1)


def said(name: str, value: tuple[str, str]) -> str:
    """One change in words: a file's name, or a library's with both versions."""
    then, now = value
    if now == GONE:
        return f"{name} is gone"
    if name.startswith(("models/", "datasets/")):
        then, now = then[:12], now[:12]
    elif name not in application().libraries:
        return name.removeprefix("./")
    return f"{name} {then} is {now}"


# ---------------------------------------------------------------- runs of other code


@dataclass(frozen=True)
class OtherCode:
    """Runs of one experiment whose code has changed in the same way since.

    `codes` are the ids of their records, `changes` the names and both values of what changed, `difference` its hash,
    `accepted` whether a user accepted this difference. `done`: how many of the runs are done.
    """

    runs: tuple[str, ...]
    done: int
    codes: tuple[str, ...]
    changes: Mapping[str, tuple[str, str]]
    difference: str
    accepted: bool

    def sentence(self) -> str:
        """`4 done by other code: my_methods/ratio.py changed since`."""
        names = [said(name, value) for name, value in self.changes.items()]
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        waiting = len(self.runs) - self.done
        counts = [f"{self.done} done"] if self.done else []
        counts += [f"{waiting} with a checkpoint"] if waiting else []
        accepted = " (accepted)" if self.accepted else ""
        return f"{' and '.join(counts)} by other code: {listed} changed since{accepted}"

    def document(self) -> dict[str, Any]:
        """The JSON object of `plan --json` and `status --json`."""
        changes = {name: {"then": then, "now": now} for name, (then, now) in self.changes.items()}
        return {key: value for key, value in vars(self).items() if key != "codes"} | {"changes": changes}


def others(multirun: Path, experiment: str, runs: Mapping[str, tuple[str, Sequence[str]]]) -> list[OtherCode]:
    """The runs of an experiment that were made by other code than the present one.

    `runs`: of each run with finished steps, its state and the ids of the records of the code that computed them. A run
    without a record, of an older version, has no known code.
    """
    accepted, root = {choice.get("difference") for choice in choices(multirun / experiment)}, present_root(multirun)
    known: dict[str, Mapping[str, tuple[str, str]]] = {}
    alike: dict[str, tuple[dict[str, tuple[str, str]], list[str]]] = {}
    for run_id, (_, code_ids) in runs.items():
        for code_id in set(code_ids) - known.keys():
            record = read(multirun, code_id)
            known[code_id] = changes(record, root=root) if record is not None else {}
        if different := dict(change for code_id in code_ids for change in known[code_id].items()):
            alike.setdefault(digest_of(different), (different, []))[1].append(run_id)
    return [
        OtherCode(
            runs=tuple(ids),
            done=sum(runs[run_id][0] == RunState.DONE for run_id in ids),
            codes=tuple(sorted({code_id for run_id in ids for code_id in runs[run_id][1]})),
            changes=different,
            difference=digest,
            accepted=digest in accepted,
        )
        for digest, (different, ids) in alike.items()
    ]


def accept(experiment: Path, other: OtherCode, command: str) -> None:
    """Append a difference to the user's decisions in an experiment, whose folder this is."""
    experiment.mkdir(parents=True, exist_ok=True)
    kept = ("difference", "changes", "codes", "runs")
    line = {"time": time.time(), **{key: getattr(other, key) for key in kept}, "command": command}
    with open(experiment / CHOICES, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
