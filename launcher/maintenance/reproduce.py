"""Repeats one run: whether its frozen configuration is unchanged, what differs here, and whether the metrics are
equal."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from launcher import files
from launcher.config import content, identity
from launcher.errors import Usage
from launcher.project import ONE_THREAD, OURS
from launcher.run import code, transitions
from launcher.run.folder import (
    base_path,
    is_imported,
    metrics_path,
    multirun_of,
    read_config,
    read_provenance,
    read_state,
    run_folder,
    write_state,
)
from launcher.run.launch_record import USER_CODE
from launcher.worker import provenance

# Metrics that depend on a clock or on the machine's load.
_CLOCK = ("time", "attempt")
_CLOCK_GROUPS = ("cost/", "timing_s/", "timing_per_token_ms/", "perf/", "speculative/speedup")
# The project's own code is identified by commit and patch, not by its version.
_OURSELVES = "rlsweep"


@dataclass(frozen=True)
class Identity:
    """A run's identity as recorded and as computed from its files now; `wrong` says what does not agree."""

    recorded: str
    computed: str
    wrong: tuple[str, ...]


def check_identity(folder: Path) -> Identity:
    """Compute the identity again from config.yaml and the base's content. Usage: the run was imported."""
    if is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, not made by launch.py, so it cannot be repeated here")
    config = read_config(folder)
    recorded = config.get("identity") or {}
    wrong: list[str] = []
    if recorded.get("version") != identity.VERSION:
        wrong.append(
            f"its identity is of version {recorded.get('version')}, and this code computes version {identity.VERSION}"
        )
    named = str(config.get("base"))
    base = base_path(multirun_of(folder), named)
    try:
        content = identity.content_hash(base.read_text(encoding="utf-8"))
    except FileNotFoundError:
        wrong.append(f"{base} is gone")
        content = named
    if content != named:
        wrong.append(f"{base} was changed: its content hashes to {content}")
    computed = identity.identity(content, config)
    if computed != recorded.get("hash"):
        wrong.append(f"{folder / 'config.yaml'} was changed: it hashes to {computed[: identity.ID_DIGITS]}")
    elif identity.run_id(computed) != folder.name:
        wrong.append(
            f"the folder is named {folder.name}, but its configuration is that of run {identity.run_id(computed)}"
        )
    return Identity(str(recorded.get("hash")), computed, tuple(wrong))


def differences(folder: Path, root: Path) -> dict[str, Any]:
    """What differs between the run's provenance and the present: {name: {then, now}}, and each package.

    A run without provenance, which was not started yet, gives {}.
    """
    then = read_provenance(folder)
    if then is None:
        return {}
    present = provenance.collect(root, "", multirun_of(folder))
    now = present.record
    changes: dict[str, Any] = {
        key: {"then": then.get(key), "now": now.get(key)}
        for key in ("commit", "python", "platform", "host")
        if then.get(key) != now.get(key)
    }
    gpus = [(record.get("devices") or {}).get("gpus") for record in (then, now)]
    if gpus[0] != gpus[1]:
        changes["gpus"] = {"then": gpus[0], "now": gpus[1]}
    patch = _patch(folder)
    if patch != (present.patch or ""):
        changes["uncommitted changes"] = {"then": _size(patch), "now": _size(present.patch or "")}
    changes |= {name: {"then": "as the run used it", "now": why} for name, why in _changed(folder).items()}
    versions = then.get("packages") or {}, now["packages"]
    changed = sorted({name for name, _ in versions[0].items() ^ versions[1].items()} - {_OURSELVES})
    packages = {name: {"then": versions[0].get(name), "now": versions[1].get(name)} for name in changed}
    return changes | ({"packages": packages} if packages else {})


def _changed(folder: Path) -> dict[str, str]:
    """What is not as the run used it: files that its configuration names, code from outside of the project, the hub.

    Of a run of an older version, the content of some files may not be known.
    """
    config = read_config(folder)
    unknown = {path: "not known" for path, digest in content.recorded(config).items() if digest is None}
    records = (code.read(multirun_of(folder), code_id) for code_id in read_state(folder).code_ids())
    names = {name for record in records if record is not None for name in code.changes(record)}
    outside = {name: "changed" for name in names if name.partition("/")[0] not in {*OURS, *code.LIBRARIES}}
    return {**outside, **unknown, **content.changes(config)}


def not_restored(folder: Path) -> list[str]:
    """What is not as the run used it, and remains so if the commands of `steps` are followed."""
    record = read_provenance(folder) or {}
    tree = [] if (record.get("patch") or {}).get("exact", True) else ["uncommitted changes of the project"]
    restored = {Path(path).name for path, own in (record.get(USER_CODE) or {}).items() if own["exact"]}
    return tree + [name for name in _changed(folder) if name.partition("/")[0] not in restored]


def _patch(folder: Path) -> str:
    path = folder / "dirty.patch"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _size(patch: str) -> str:
    return f"a patch of {patch.count(chr(10))} lines, {identity.content_hash(patch)}" if patch else "none"


def steps(folder: Path, root: Path) -> list[str]:
    """Shell commands that repeat the run in a tree of its own, with the code and packages as they were."""
    record = read_provenance(folder) or {}
    commit = record.get("commit")
    patch = folder / "dirty.patch"
    tree = root.parent / f"{root.name}-{folder.name}"
    reproduce = ["-m", "launcher", "reproduce", folder.name, "--run", "--multirun", str(multirun_of(folder))]
    if not commit:
        return [shlex.join(["cd", str(root)]), shlex.join([sys.executable, *reproduce])]
    commands = [
        *_user_code(folder, record, tree),
        shlex.join(["git", "-C", str(root), "worktree", "add", "--detach", str(tree), str(commit)]),
        shlex.join(["cd", str(tree)]),
    ]
    if patch.is_file():
        commands.append(shlex.join(["git", "apply", str(patch.resolve())]))
    then, now = ({**versions, _OURSELVES: ""} for versions in (record.get("packages") or {}, provenance.packages()))
    if then == now:
        return [*commands, shlex.join([sys.executable, *reproduce])]
    return [*commands, "make setup", shlex.join([".venv/bin/python", *reproduce])]


def _user_code(folder: Path, record: Mapping[str, Any], tree: Path) -> Iterator[str]:
    """Commands that restore the packages of the user's beside the folder `tree`, and let Python import them."""
    paths = []
    for path, own in (record.get(USER_CODE) or {}).items():
        if not (own["exact"] and own["imported"]):
            continue
        place = tree.with_name(f"{tree.name}-{Path(path).stem}")
        git = ["git", "-C", own["repository"], "worktree", "add", "--detach", str(place), own["commit"]]
        yield shlex.join(git)
        if own["patch"]:
            yield shlex.join(["git", "-C", str(place), "apply", str((folder / own["patch"]).resolve())])
        paths.append(str(place / Path(path).resolve().parent.relative_to(own["repository"])))
    if paths:
        yield f"export PYTHONPATH={shlex.quote(':'.join(paths))}"


# ---------------------------------------------------------------- repeating


@dataclass(frozen=True)
class Rerun:
    """The repeated run: its folder and state, how many steps are equal, and the first difference."""

    folder: Path
    state: str
    equal_steps: int
    first_difference: str | None


def rerun(folder: Path, root: Path, scratch: Path) -> Rerun:
    """Repeat the run from its beginning in the folder `scratch`, with the code of `root`, and compare the metrics.

    Metrics that depend on a clock are ignored; all others must be equal to the last bit.
    """
    again = _repeated(folder, root, scratch)
    state = read_state(again)
    equal, difference = compare(folder, again)
    then = read_state(folder).state
    if state.state != then:
        difference = f"the repetition ended as {state.state} ({state.message}), but the run as {then}"
    return Rerun(again, state.state, equal, difference)


def _repeated(folder: Path, root: Path, scratch: Path) -> Path:
    """Repeat the run in the folder `scratch`; its new folder."""
    again = run_folder(scratch, folder.name)
    config = read_config(folder)
    if config.get(identity.FORK):
        raise Usage(f"run {folder.name}: it is a fork, which only versions up to 0.1 run. Fix: use one of these")
    again.mkdir(parents=True)
    copied = base_path(scratch, config["base"])
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(base_path(multirun_of(folder), config["base"]), copied)
    shutil.copyfile(folder / "config.yaml", again / "config.yaml")
    write_state(again, transitions.created(folder.name))
    threads = (read_provenance(folder) or {}).get("threads") or ONE_THREAD
    subprocess.run(
        [sys.executable, "-m", "launcher.worker", str(again)], cwd=root, env={**os.environ, **threads}, check=False
    )
    return again


def compare(then: Path, now: Path) -> tuple[int, str | None]:
    """For how many steps the metrics of both runs are equal, and the first difference in words."""
    equal = 0
    for old, new in zip_longest(_lines(then), _lines(now)):
        if old is None or new is None:
            return equal, f"{'the run' if old is None else 'the repetition'} ends after step {equal}"
        for key in dict.fromkeys([*old, *new]):
            if not _same(old.get(key), new.get(key)):
                return equal, f"step {old.get('step')}: {key} was {old.get(key)!r} and is {new.get(key)!r}"
        equal += 1
    return equal, None


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for record in files.json_lines(metrics_path(folder)):
        yield {key: value for key, value in record.items() if key not in _CLOCK and not key.startswith(_CLOCK_GROUPS)}


def _same(old: Any, new: Any) -> bool:
    both_nan = isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new)
    return both_nan or bool(old == new)


def document(folder: Path, root: Path, again: Rerun | None) -> dict[str, Any]:
    """The JSON object of the command."""
    return {
        "id": folder.name,
        "identity": asdict(check_identity(folder)),
        "differences": differences(folder, root),
        "steps": steps(folder, root),
        "not_restored": not_restored(folder),
        "run": again and {**asdict(again), "folder": str(again.folder)},
    }
