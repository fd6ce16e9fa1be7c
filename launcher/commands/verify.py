"""python -m launcher verify: the commands that repeat one run; --run repeats it here. Also `reproduce`.

Nothing is checked out: the commands are printed. --run executes the run again with the present code and packages, in a
new folder, and compares the metrics step by step. A program of @hydra.main and packages of your own have the code that
the run used, from the commits and patches of their repositories.

Exit codes: 0 fine, 1 the configuration, or with --run the metrics, differ from the run's, 2 no such run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher import files, project
from launcher.application import application
from launcher.commands import completion, output
from launcher.config import content, identity
from launcher.errors import Usage
from launcher.project import EXIT_FAILED, EXIT_FINE, ONE_THREAD, ROOT, python_path
from launcher.run import catalog, code, evaluations, launch_record, lifecycle, whole
from launcher.run.folder import (
    base_path,
    histograms_path,
    is_imported,
    metrics_path,
    multirun_of,
    read_config,
    read_provenance,
    read_summary,
    responses_path,
    run_folder,
)
from launcher.run.lifecycle import RunState, read_state, write_state

HELP = "print how to repeat one run, and verify that its configuration is unchanged"
_LISTED = 10
#: Of several differences in a step, the first of these is named: it causes the others. `*`: what is not listed.
ORDER = ("data order", "prompts", "random state", "weights", "optimizer", "*", "end", "log", "metrics", "summary")
_NAMES = {"data": "data order", "random": "random state"}
# The project's own code is identified by commit and patch, not by its version.
_OURSELVES = "rlsweep"


def arguments(parser: argparse.ArgumentParser) -> None:
    completion.add_run(parser)
    parser.add_argument("--run", dest="again", action="store_true", help="repeat it here, and compare the metrics")


def run(given: argparse.Namespace) -> int:
    """JSON: id, identity {recorded, computed, wrong}, differences, repositories {path: {commit, patch}}, steps,
    run {...} or null."""
    folder = catalog.find_run(given.multirun.resolve(), given.run)
    checked = check_identity(folder)
    again = None
    if given.again and not checked["wrong"]:
        again = rerun(folder, ROOT, Path(tempfile.mkdtemp(prefix=f"rlsweep-{folder.name}-")))
    document = {
        "id": folder.name,
        "identity": checked,
        "differences": differences(folder, ROOT),
        "steps": steps(folder, ROOT),
        "repositories": launch_record.repositories(folder),
        "run": again,
    }
    output(given, document, _lines(document))
    return EXIT_FAILED if checked["wrong"] or (again is not None and again["first_difference"]) else EXIT_FINE


def check_identity(folder: Path) -> dict[str, Any]:
    """A run's identity as `recorded` and as `computed` from its files now; `wrong` lists what does not agree.

    Usage: the run was imported.
    """
    if is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, not made by launch.py, so it cannot be repeated here")
    config = read_config(folder)
    recorded = config.get("identity") or {}
    wrong: list[str] = []
    named = str(config.get("base"))
    hashes: dict[str, str] = {}
    # The tree of which a run is a difference, and for a program of @hydra.main what Hydra has composed.
    for name in filter(None, (config["base"], (config.get("start") or {}).get("composition"))):
        base = base_path(multirun_of(folder), name)
        try:
            hashes[name] = identity.content_hash(base.read_text(encoding="utf-8"))
        except FileNotFoundError:
            wrong.append(f"{base} is gone")
            continue
        if hashes[name] != name:
            wrong.append(f"{base} was changed: its content hashes to {hashes[name]}")
    try:
        identity.verify(config, folder.name)
    except ValueError as error:
        wrong.append(f"{folder / 'config.yaml'}: {error}")
    if (state := lifecycle.find_state(folder)) is not None and (damage := whole.problem(folder, state)):
        wrong.append(damage)
    computed = identity.identity(hashes.get(named, named), config)
    return {"recorded": str(recorded.get("hash")), "computed": computed, "wrong": wrong}


def differences(folder: Path, root: Path) -> dict[str, Any]:
    """What differs between the run's provenance and the present: {name: {then, now}}, and each package.

    A run without provenance, which was not started yet, gives {}.
    """
    from launcher.worker import provenance

    then = read_provenance(folder)
    if not then:
        return {}
    present = provenance.collect(root, "", multirun_of(folder))
    path = folder / "dirty.patch"
    patch = path.read_bytes() if path.is_file() else b""
    uncommitted = present.patches.get(present.patch or "", b"")
    changes: dict[str, Any] = _different(_compared(then, patch), _compared(present.record, uncommitted))
    changes |= {name: {"then": "as the run used it", "now": why} for name, why in _changed(folder).items()}
    packages = _different(then.get("packages") or {}, present.record["packages"])
    packages.pop(_OURSELVES, None)
    return changes | ({"packages": packages} if packages else {})


def _compared(record: Mapping[str, Any], patch: bytes) -> dict[str, Any]:
    changed = f"a patch of {patch.count(10)} lines, {identity.content_hash(patch)}" if patch else "none"
    values = {key: record.get(key) for key in ("commit", "python", "platform", "host")}
    return {**values, "gpus": (record.get("devices") or {}).get("gpus"), "uncommitted changes": changed}


def _different(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    both = {name: {"then": then.get(name), "now": now.get(name)} for name in dict.fromkeys([*then, *now])}
    return {name: values for name, values in both.items() if values["then"] != values["now"]}


def _changed(folder: Path) -> dict[str, str]:
    """What is not as the run used it: files that its configuration names, code from outside of the project, the hub.

    Of a run of an older version, the content of some files may not be known.
    """
    config, multirun = read_config(folder), multirun_of(folder)
    root = code.present_root(multirun)
    unknown = dict.fromkeys(content.unrecorded(config), "not known")
    records = filter(None, (code.read(multirun, code_id) for code_id in read_state(folder).code_ids()))
    names = {code.placed(name, root or record.root) for record in records for name in code.changes(record, root=root)}
    return {**dict.fromkeys(filter(code.is_users, names), "changed"), **unknown, **content.changes(config)}


def steps(folder: Path, root: Path) -> list[str]:
    """Shell commands that repeat the run in a tree of its own, with the code and packages as they were."""
    from launcher.worker import provenance

    record = read_provenance(folder)
    commit = record.get("commit")
    patch = folder / "dirty.patch"
    tree = root.parent / f"{root.name}-{folder.name}"
    again = ["-m", "launcher", "verify", folder.name, "--run", "--multirun", str(multirun_of(folder))]
    if not commit or record.get(launch_record.USER_CODE):  # of a project of its own
        return [shlex.join(["cd", str(project.root())]), shlex.join([sys.executable, *again])]
    commands = [
        shlex.join(["git", "-C", str(root), "worktree", "add", "--detach", str(tree), str(commit)]),
        shlex.join(["cd", str(tree)]),
    ]
    if patch.is_file():
        commands.append(shlex.join(["git", "apply", str(patch.resolve())]))
    then, now = (
        {**versions, _OURSELVES: ""} for versions in (record.get("packages") or {}, provenance.installed_packages())
    )
    if then == now:
        return [*commands, shlex.join([sys.executable, *again])]
    return [*commands, "make setup", shlex.join([".venv/bin/python", *again])]


def prepare(folder: Path, scratch: Path) -> Path:
    """The folder of a new run in the multirun folder `scratch`: as another run was frozen, before its first attempt."""
    config = read_config(folder)
    if config.get(identity.FORK):
        raise Usage(f"run {folder.name}: it is a fork, which only versions up to 0.1 run. Fix: use one of these")
    again = run_folder(scratch, folder.name)
    again.mkdir(parents=True)
    (scratch / "bases").symlink_to(multirun_of(folder).resolve() / "bases")
    if start := config.get("start"):  # what Hydra calls the job's directory is not that of the run
        start["values"] = {**start["values"], "hydra.sweep.dir": str(scratch / "sweep")}
    files.write_atomic(again / "config.yaml", files.dump_yaml(config))
    write_state(again, lifecycle.created(folder.name))
    return again


def rerun(folder: Path, root: Path, scratch: Path) -> dict[str, Any]:
    """Repeat the run from its beginning in the folder `scratch`, with the code of `root`, and compare the metrics.

    The user's own code is that of the run. Metrics that depend on a clock are ignored; all others, and what a program
    of @hydra.main returned, must be equal to the last bit. Returns the repetition's `folder` and `state`, how many
    `equal_steps` it has, and the `first_difference` in words or None. Usage: the user's code cannot be restored.
    """
    again = prepare(folder, scratch)
    record = read_provenance(folder)
    environment = {**os.environ, **(record.get("threads") or ONE_THREAD)}
    if record.get(launch_record.USER_CODE):
        from launcher.schedulers.batch import code_snapshot

        near = code_snapshot.restore(root, root := scratch / "copy", folder)
        environment["PYTHONPATH"] = python_path(root, *near)
    subprocess.run([sys.executable, "-m", "launcher.worker", str(again)], cwd=root, env=environment, check=False)
    then, now = read_state(folder).state, read_state(again)
    found = first_difference(folder, again, ("log", "metrics"))
    equal = sum(found is None or row["step"] < found.step for row in metrics(again))
    difference = found and str(found)
    old, new = (read_summary(place).get("value") for place in (folder, again))
    if not difference and repr(old) != repr(new):
        difference = f"it returned {old!r}, and now {new!r}"
    if now.state != then:
        difference = f"the repetition ended as {now.state} ({now.message}), but the run as {then}"
    return {"folder": str(again), "state": now.state, "equal_steps": equal, "first_difference": difference}


class Difference(NamedTuple):
    """step: the first that differs; what: of ORDER, a key of a trace, a log or a file; detail: in words."""

    step: int
    what: str
    detail: str

    def __str__(self) -> str:
        return f"from step {self.step} on, first in the {self.what}: {self.detail}"


def first_difference(then: Path, now: Path, only: Collection[str] = ()) -> Difference | None:
    """The first difference of a run's repetition in the folder `now`; None: it is equal to the last bit.

    only: the names of what is compared; empty: all of it.
    """
    found = (one for one in _differences(then, now) if not only or one.what in only)
    return min(found, key=lambda one: (one.step, ORDER.index(one.what if one.what in ORDER else "*")), default=None)


def metrics(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a run's metric log, without what depends on a clock."""
    from launcher.worker.pickled import clocked

    groups = application(read_config(folder)).clocked
    for record in files.json_lines(metrics_path(folder)):
        named = {key: value for key, value in record.items() if key != "attempt" and not clocked(key)}
        yield {key: value for key, value in named.items() if not key.startswith(groups)}


def records(folder: Path, end: int = 0) -> dict[tuple[int, str], list[Any]]:
    """What is compared of a run, by step and name; of a done run also what it has left, as of the step `end`."""
    from launcher.worker.certified import CHECKPOINT, TRACE, compared, digests, is_log

    found: dict[tuple[int, str], list[Any]] = defaultdict(list)
    for line in files.json_lines(folder / TRACE):
        for key in line.keys() - {"step", CHECKPOINT}:
            values = found[line["step"], _NAMES.get(key, key)]
            values += [] if line[key] in values else [line[key]]  # a step that is repeated is traced again
    for row in metrics(folder):
        found[row["step"], "metrics"].append(row)
    for path in (histograms_path(folder), responses_path(folder)):
        for line in files.json_lines(path):
            found[line["step"], path.stem].append({**line, "attempt": 0})
    for step in evaluations.paths(folder):
        found[step, "evaluations"].append(evaluations.read(folder, step))
    if read_state(folder).state == RunState.DONE:
        if (summary := folder / "summary.json").exists():
            found[end, "summary"].append(compared(summary, multirun_of(folder).name.encode()))
        for name, digest in digests(folder / "job").items():
            if not is_log(folder / "job" / name):
                found[end, name].append(digest)
    return found


def _differences(then: Path, now: Path) -> Iterator[Difference]:
    from launcher.worker.certified import step_lines

    end, last = (max((row["step"] for row in metrics(folder)), default=-1) for folder in (then, now))
    end = max(end, 0)
    old, new, state = records(then, end), records(now, end), read_state(now)
    if state.state != RunState.DONE:
        yield Difference(min(last + 1, end), "end", f"it ended as {state.state} ({state.message})")
    logged, lines = (step_lines(folder / "job") for folder in (then, now))
    for step, name in (lines - logged).keys() & logged:  # a resumed program may begin its log anew
        detail = f"{name} has {lines[step, name]} lines of this step in place of {logged[step, name]}"
        yield Difference(step, "log", detail)
    for step, what in old.keys() | new:
        before, after = old.get((step, what), []), new.get((step, what), [])
        if what != "metrics" and (step, "metrics") in old.keys() - new:
            continue  # of a step that is not logged, nothing else is there either
        if what == "metrics" and len(before) != len(after):
            yield Difference(step, "log", f"it has {len(after)} lines of this step in place of {len(before)}")
        elif what == "metrics":
            for a, b in zip(before, after, strict=True):
                for key in [key for key in {**a, **b} if repr(a.get(key)) != repr(b.get(key))]:
                    yield Difference(step, what, f"{key} was {a.get(key)!r} and is {b.get(key)!r}")
        elif before != after:
            shown = f"{str(after)[:70]} in place of {str(before)[:70]}" if what == ORDER[0] else "it differs"
            yield Difference(step, what, shown if after else "it is not there")


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    wrong = document["identity"]["wrong"]
    for line in wrong:
        yield f"not the same run: {line}"
    if not wrong:
        yield f"{document['id']}: the frozen configuration is unchanged: it gives the same identity"
    for path, used in document["repositories"].items():
        yield f"code: {path} at commit {used['commit'][:12]}{f' with {patch}' if (patch := used['patch']) else ''}"
    differences = dict(document["differences"])
    packages = differences.pop("packages", {})
    for name, both in differences.items():
        yield f"differs: {name}: then {both['then']}, now {both['now']}"
    for name, both in list(packages.items())[:_LISTED]:
        yield f"differs: package {name}: then {both['then'] or 'absent'}, now {both['now'] or 'absent'}"
    if len(packages) > _LISTED:
        yield f"differs: {len(packages) - _LISTED} more packages (--json lists them)"
    again = document["run"]
    if again is None:
        yield "to repeat it:"
        yield from (f"  {step}" for step in document["steps"])
        return
    yield f"repeated in {again['folder']}: {again['equal_steps']} steps are equal"
    if again["first_difference"]:
        yield f"first difference: {again['first_difference']}"
