"""One run again: has its frozen configuration still its identity, what is different here, are the metrics the same?"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from launcher.config import identity
from launcher.errors import Usage
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.worker import provenance

# What a clock or the machine's load decides.
_CLOCK = ("time", "attempt")
_CLOCK_GROUPS = ("cost/", "timing_s/", "timing_per_token_ms/", "perf/", "speculative/speedup")
# The tree's own code is told by commit and patch.
_OURSELVES = "rlsweep"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Identity:
    """A run's identity as frozen and as its configuration and base file give it now; `wrong` says what does not fit."""

    recorded: str
    computed: str
    wrong: tuple[str, ...]


def check_identity(folder: Path) -> Identity:
    """Compute the identity again from config.yaml and the base's content. Usage: it is no run of launch.py."""
    if folders.is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, not made by launch.py, so it cannot be done again here")
    config = folders.read_config(folder)
    said = config.get("identity")
    recorded = said if isinstance(said, Mapping) else {}
    wrong: list[str] = []
    if recorded.get("version") != identity.VERSION:
        wrong.append(
            f"its hash is of version {recorded.get('version')}, and this code computes version {identity.VERSION}"
        )
    named = str(config.get("base"))
    base = folders.base_path(folders.multirun_of(folder), named)
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
        wrong.append(f"the folder is called {folder.name}, and the run {identity.run_id(computed)}")
    return Identity(str(recorded.get("hash")), computed, tuple(wrong))


def differences(folder: Path, root: Path) -> dict[str, Any]:
    """What the run was made with and what is here now, where they differ: {name: {then, now}}; packages one by one.

    A run without provenance (none has begun) gives {}.
    """
    then = folders.read_provenance(folder)
    if then is None:
        return {}
    present = provenance.collect(root, "", folders.multirun_of(folder))
    now = present.record
    found = {
        key: {"then": then.get(key), "now": now.get(key)}
        for key in ("commit", "python", "platform", "host")
        if then.get(key) != now.get(key)
    }
    gpus = [(record.get("devices") or {}).get("gpus") for record in (then, now)]
    if gpus[0] != gpus[1]:
        found["gpus"] = {"then": gpus[0], "now": gpus[1]}
    patch = _patch(folder)
    if patch != (present.patch or ""):
        found["uncommitted changes"] = {"then": _size(patch), "now": _size(present.patch or "")}
    versions = then.get("packages") or {}, now["packages"]
    changed = sorted({name for name, _ in versions[0].items() ^ versions[1].items()} - {_OURSELVES})
    packages = {name: {"then": versions[0].get(name), "now": versions[1].get(name)} for name in changed}
    return found | ({"packages": packages} if packages else {})


def _patch(folder: Path) -> str:
    path = folder / "dirty.patch"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _size(patch: str) -> str:
    return f"a patch of {patch.count(chr(10))} lines, {identity.content_hash(patch)}" if patch else "none"


def steps(folder: Path, root: Path) -> list[str]:
    """Shell commands that give the run again in a tree of its own: the code as it was, its packages, and the run."""
    record = folders.read_provenance(folder) or {}
    commit = record.get("commit")
    patch = folder / "dirty.patch"
    tree = root.parent / f"{root.name}-{folder.name}"
    reproduce = ["-m", "launcher", "reproduce", folder.name, "--run", "--multirun", str(folders.multirun_of(folder))]
    if not commit:
        return [shlex.join(["cd", str(root)]), shlex.join([sys.executable, *reproduce])]
    found = [
        shlex.join(["git", "-C", str(root), "worktree", "add", "--detach", str(tree), str(commit)]),
        shlex.join(["cd", str(tree)]),
    ]
    if patch.is_file():
        found.append(shlex.join(["git", "apply", str(patch.resolve())]))
    then, now = ({**versions, _OURSELVES: ""} for versions in (record.get("packages") or {}, provenance.packages()))
    if then == now:
        return [*found, shlex.join([sys.executable, *reproduce])]
    return [*found, "make setup", shlex.join([".venv/bin/python", *reproduce])]


# ---------------------------------------------------------------- again


@dataclass(frozen=True)
class Rerun:
    """How the run went here: its new folder and state, how many steps are equal, and the first that is not."""

    folder: Path
    state: str
    equal_steps: int
    first_difference: str | None


def rerun(folder: Path, root: Path, scratch: Path) -> Rerun:
    """Do the run from its beginning in the folder `scratch`, with the code of `root`, and compare the metrics.

    What a clock decides is left out; everything else must be equal to the last bit.
    """
    again = folders.run_folder(scratch, folder.name)
    again.mkdir(parents=True)
    config = folders.read_config(folder)
    base = folders.base_path(folders.multirun_of(folder), config["base"])
    copied = folders.base_path(scratch, config["base"])
    copied.parent.mkdir(parents=True)
    shutil.copyfile(base, copied)
    shutil.copyfile(folder / "config.yaml", again / "config.yaml")
    folders.write_state(again, State(folder.name, folders.PLANNED, created=time.time()))
    threads = (folders.read_provenance(folder) or {}).get("threads") or _ONE_THREAD
    subprocess.run(
        [sys.executable, "-m", "launcher.worker", str(again)], cwd=root, env={**os.environ, **threads}, check=False
    )
    state = folders.read_state(again)
    equal, difference = compare(folder, again)
    then = folders.read_state(folder).state
    if state.state != then:
        difference = f"it ended as {state.state} ({state.cause}), and the run as {then}"
    return Rerun(again, state.state, equal, difference)


def compare(then: Path, now: Path) -> tuple[int, str | None]:
    """How many steps from the first on have equal metrics in both runs, and the first difference in words."""
    equal = 0
    for one, other in zip_longest(_lines(then), _lines(now)):
        if one is None or other is None:
            missing = "the run" if one is None else "the repetition"
            return equal, f"{missing} ends after step {equal}"
        for key in dict.fromkeys([*one, *other]):
            if not _same(one.get(key), other.get(key)):
                return equal, f"step {one.get('step')}: {key} was {one.get(key)!r} and is {other.get(key)!r}"
        equal += 1
    return equal, None


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for record in folders.read_log(folders.metrics_path(folder)).records:
        yield {key: value for key, value in record.items() if key not in _CLOCK and not key.startswith(_CLOCK_GROUPS)}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def document(folder: Path, root: Path, again: Rerun | None) -> dict[str, Any]:
    """All of it, for machines."""
    found = check_identity(folder)
    return {
        "id": folder.name,
        "identity": {"recorded": found.recorded, "computed": found.computed, "wrong": list(found.wrong)},
        "differences": differences(folder, root),
        "steps": steps(folder, root),
        "run": again
        and {
            "folder": str(again.folder),
            "state": again.state,
            "equal_steps": again.equal_steps,
            "first_difference": again.first_difference,
        },
    }
