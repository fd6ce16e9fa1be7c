"""One job of any program of @hydra.main: calls its function as Hydra's own launcher does, in the folder of its run.

The program is the one that this process has started as (a fork of the launcher), or it is loaded as multiprocessing
loads a main module: under another name, so that the guard `if __name__ == "__main__"` does not run it. Without a guard,
the call of its function does nothing there.
"""

from __future__ import annotations

import atexit
import base64
import functools
import importlib.util
import inspect
import json
import linecache
import os
import pickle
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

import cloudpickle
import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from launcher import files
from launcher.application import KEY
from launcher.config import content
from launcher.config.identity import INPUTS
from launcher.project import COPIES, ROOT, copied
from launcher.run.folder import (
    attempt_folder,
    base_path,
    metrics_path,
    multirun_of,
    read_config,
    read_object,
    returned_path,
)
from launcher.worker import current, process, provenance
from launcher.worker.attempt import Attempt
from launcher.worker.hydra_app import NAME

#: The folder of a job in its run's. What Hydra calls its output directory, by hydra.sweep, is a link to it.
FOLDER = "job"
#: In what names a program, before the arguments that it takes itself.
OWN = " -- "
#: With which a line of stderr.log begins that is about the logs of a job.
NOTE = "the job's metrics: "

Task = Callable[[DictConfig], Any]
# The function, what Hydra has told about it, and standard output, in the process that launched the sweep and its forks.
_live: tuple[Task, HydraContext, TextIO] | None = None


def program(task: Task, context: HydraContext, root: Path) -> dict[str, Any]:
    """What starts the program of this process again, in plain values; its forks call `task` itself.

    task: its function; root: the project's folder. `task` of the result names the function in any copy of the project.
    """
    global _live
    _live = task, context, sys.stdout
    provenance.note()  # before anybody edits the files; forks inherit it
    own = getattr(inspect.unwrap(task), "__globals__", {})
    # `python -m cProfile train.py`, for one, executes a program that is not the main module.
    main = own if own.get("__name__") == "__main__" else vars(sys.modules["__main__"])
    module = getattr(task, "__module__", "")
    spec, script = main.get("__spec__"), main.get("__file__")
    name = getattr(task, "__qualname__", type(task).__qualname__)
    named = _named(main if module == "__main__" else getattr(sys.modules.get(module), "__dict__", {}), name) is task
    of_main = not named or module == "__main__"
    # Python's first place for modules, before which ray, for one, puts another.
    beside = Path.cwd() if spec is not None or script is None else Path(script).resolve().parent
    source = inspect.getsourcefile(inspect.unwrap(task)) if named else script
    file = Path(source).absolute() if source else Path()
    shown = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    begin = spec.name.removesuffix(".__main__") if spec is not None and sys.argv[0] == script else sys.argv[0]
    whole = [] if begin == "-c" else sys.orig_argv  # with the interpreter's own options
    arguments = whole[whole.index(begin) + 1 :] if begin in whole else sys.argv[1:]
    own = [word for word in arguments if word not in sys.argv]  # the program has taken them before Hydra saw them
    return {
        KEY: NAME,
        "name": JobRuntime.instance().get("name"),
        "task": f"{shown}:{name}" + (f"{OWN}{shlex.join(own)}" if own else ""),
        "file": str(file),
        "function": name,
        "object": None if named else _pickled(task),
        "module": (spec.name if spec is not None else None) if of_main else module,
        "main": of_main,
        "path": str(beside),
        "cwd": os.getcwd(),
        "arguments": arguments,
    }


def _pickled(task: Task) -> str | None:
    """A function that no module names, or another object that is called, for processes on other hosts."""
    for dumps in (pickle.dumps, cloudpickle.dumps):  # the second takes the text of functions along
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            return base64.b64encode(dumps(task)).decode("ascii")
    return None


def work(config: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Do a job, and return its summary: the value that the function returned (None if it is no JSON), and seconds."""
    from hydra._internal.callbacks import Callbacks

    start = config["start"]
    function, context, sys.stdout = _live or (_loaded(start), None, sys.stdout)
    composed = _configuration(config, attempt)
    context = context or HydraContext(config_loader=None, callbacks=Callbacks(composed))
    returned = returned_path(attempt.folder)  # the last attempt was killed before its state said that it was done
    left = attempt.folder / FOLDER
    if left.exists() and not returned.exists():  # a job that continues may begin its log anew
        _read_log(attempt.folder, attempt.attempt - 1, attempt_folder(attempt.folder, attempt.attempt - 1))
    job = current.begin(attempt, left, resumes=start["resumes"] or returned.exists())
    if returned.exists():
        job.restore_log()
    else:
        with _at_exit():
            files.write_json(returned, _called(function, context, composed, config, job))
    if not (metrics_path(attempt.folder).exists() and metrics_path(attempt.folder).stat().st_size):
        _collect(attempt, job.continues)
    return read_object(returned)


@contextmanager
def _at_exit() -> Iterator[None]:
    """After the block, call what it has registered for the end of the process, as loggers do that end their files then.

    Forks of multiprocessing never call it, and other processes after the metrics were read.
    """
    calls: list[tuple[Callable[..., Any], Callable[[], Any]]] = []
    before = atexit.register, atexit.unregister

    def register(call: Callable[..., Any], *given: Any, **named: Any) -> Callable[..., Any]:
        calls.append((call, functools.partial(call, *given, **named)))
        return call

    def unregister(call: Callable[..., Any]) -> None:
        calls[:] = [each for each in calls if each[0] != call]
        before[1](call)

    atexit.register, atexit.unregister = register, unregister  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register, atexit.unregister = before
        while calls:
            try:
                calls.pop()[1]()
            except Exception:  # Python, too, prints it and goes on
                traceback.print_exc()


def _called(
    function: Task, context: HydraContext, composed: DictConfig, config: Mapping[str, Any], job: current.Job
) -> dict[str, Any]:
    """Call the function in the folder of the launch's command; the summary."""
    attempt = job.attempt
    os.chdir(config["start"]["cwd"])
    if link(composed, job.folder) is not None:
        with read_write(composed.hydra), open_dict(composed.hydra):
            composed.hydra.sweep.dir, composed.hydra.sweep.subdir = str(job.folder.parent), job.folder.name
    began = time.monotonic()
    try:
        with _noted_outputs(multirun_of(attempt.folder), read_config(attempt.folder)):
            task = process.in_one_process(function)
            ended = run_job(task, composed, "hydra.sweep.dir", "hydra.sweep.subdir", context)
            if ended.status != JobStatus.COMPLETED:
                raise ended._return_value  # reading return_value would print it, and end the process
    except BaseException as error:
        if job.stop_requested():
            raise current.Preempted(attempt.stop_message or "asked to stop") from error
        raise
    if job.stop_requested() and job.watches:
        raise current.Preempted(attempt.stop_message or "asked to stop")
    return {"value": _as_json(ended), "train_seconds": time.monotonic() - began}


@contextmanager
def _noted_outputs(multirun: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Note each file that the configuration names and that this process writes in the block, before it is written.

    Other processes and libraries write unseen. A new file that has appeared is noted as theirs, however the block ends;
    of one that was an input, nobody knows who has changed it, so it is noted only if the block succeeds.
    """
    inputs: Mapping[str, str] = config.get(INPUTS) or {}
    places = {path for key, text in content.texts(config) if (path := content.place_of(key, text)) is not None}
    places -= content.outputs(multirun).keys()
    before = content.named_files(config)

    def note(path: str, then: str) -> None:
        if path in places:
            places.discard(path)
            with open(multirun / "outputs.txt", "a", encoding="utf-8") as noted:
                noted.write(f"{path}\t{then}\n")

    def opened(event: str, given: tuple[Any, ...]) -> None:
        if places and event in ("open", "os.rename"):
            with suppress(OSError, TypeError, ValueError):  # of a path that is a number, among others
                if event == "os.rename" or given[2] & os.O_CREAT:  # not r+, with which some only read
                    path = str(Path(os.fsdecode(given[event == "os.rename"])).absolute())
                    note(path, inputs.get(path, ""))

    sys.addaudithook(opened)
    returned = False
    try:
        yield
        returned = True
    finally:
        for file, changed in content.named_files(config).items():
            if before.get(file) != changed and (returned or file not in inputs):
                note(file, "")
        places.clear()


def _collect(attempt: Attempt, continues: bool) -> None:
    """Take the metrics from another tool's log in the job's folder; continues: after those of earlier attempts."""
    run, lines = attempt.folder, dict[int, dict[str, Any]]()
    if not _read_log(run, attempt.attempt, run) or attempt.attempt == 1:
        return  # without the last attempt, those before it would say something else than the log
    for number in range(1 if continues else attempt.attempt, attempt.attempt + 1):
        rows = files.json_lines(metrics_path(attempt_folder(run, number) if number < attempt.attempt else run))
        lines = {step: line for step, line in lines.items() if not rows or step < rows[0]["step"]}
        lines |= {row["step"]: {**row, "attempt": number} for row in rows}
    if lines:
        files.write_atomic(metrics_path(run), "".join(f"{json.dumps(line)}\n" for line in lines.values()))


def _read_log(run: Path, number: int, into: Path) -> bool:
    """Make metrics.jsonl in a folder of the log that another tool has written in this attempt, if there is one; False:
    it cannot be read."""
    from analysis.sources.import_runs import collect
    from analysis.spec.validation import BadPlan

    try:
        logs = (metrics_path(attempt_folder(run, earlier)) for earlier in range(1, number))
        begun = [log.stat().st_mtime for log in logs if log.exists()]  # when the attempts after those began
        notes, whole = collect(run / FOLDER, into, max(begun, default=0.0), 1 + len(begun))
    except BadPlan as error:
        notes, whole = [f"cannot be read: {error}"], False
    for note in notes:
        print(f"{NOTE}{note}", file=sys.stderr)
    return whole


def _as_json(ended: JobReturn) -> Any:
    try:
        return json.loads(json.dumps(ended.return_value))
    except (TypeError, ValueError):
        return None


def _configuration(config: Mapping[str, Any], attempt: Attempt) -> DictConfig:
    """The job's configuration as Hydra composed it, with its values, its number and its folder."""
    start = config["start"]
    base = json.loads(base_path(multirun_of(attempt.folder), start["composition"]).read_bytes())
    composed: DictConfig = pickle.loads(base64.b64decode(base["composition"]))
    for key, value in start["values"].items():
        OmegaConf.update(composed, key, value, merge=True)
    return numbered(composed, start)


def numbered(composed: DictConfig, start: Mapping[str, Any], folder: str | None = None) -> DictConfig:
    """The configuration with what Hydra's launchers add for a job: its number, id, overrides and folder."""
    words = [word for word in start["overrides"] if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]
    with read_write(composed.hydra), open_dict(composed.hydra):
        hydra = composed.hydra
        naming = hydra.job.config.override_dirname
        named = sorted(word for word in words if word.lstrip("+~").partition("=")[0] not in naming.exclude_keys)
        hydra.job.override_dirname = naming.item_sep.join(named).replace("=", naming.kv_sep)
        hydra.overrides.task = words
        if folder is not None:
            hydra.runtime.output_dir = folder
        hydra.job.id, hydra.job.num = str(start["number"]), start["number"]
    return composed


def link(composed: DictConfig, folder: Path) -> Path | None:
    """Let the directory that Hydra's own launcher would give the job lead to its folder; if one that is there already
    belongs to something else, return it."""
    HydraConfig.instance().set_config(composed)
    place = Path(str(composed.hydra.sweep.dir)) / str(composed.hydra.sweep.subdir)
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if place.is_symlink():
            place.unlink()
    try:
        place.symlink_to(folder)
    except FileExistsError:
        return place
    return None


def _loaded(start: Mapping[str, Any]) -> Task:
    """The program's function, in a process that was not forked from it."""
    setup_globals()
    file = Path(start["file"])
    sys.path[:0] = filter(None, [str(copied(start["path"]) or "")])
    copies = [at for at, place in enumerate(sys.path, 1) if COPIES.exists() and Path(place).is_relative_to(ROOT)]
    sys.path.insert(max(copies, default=0), start["path"])
    sys.argv = [str(file), *start.get("arguments", ())]
    module = _main(file, start["module"]) if start["main"] else importlib.import_module(start["module"])
    JobRuntime.instance().set("name", start["name"])
    if start["object"] is not None:
        return cast(Task, pickle.loads(base64.b64decode(start["object"])))
    return cast(Task, _named(vars(module), start["function"]))


def _named(names: Mapping[str, Any], name: str) -> Any:
    """What Hydra calls of a function of a module, whose names are given: all that is below @hydra.main; None without
    such a function."""
    first, *rest = name.split(".")
    function = names.get(first)
    for part in rest:
        function = getattr(function, part, None)
    wrapper = function
    while wrapper is not None and getattr(wrapper, "__globals__", None) is not hydra.main.__globals__:
        wrapper = getattr(wrapper, "__wrapped__", None)
    return function if wrapper is None else wrapper.__wrapped__


def _main(file: Path, name: str | None) -> ModuleType:
    """The main module, known as `__main__` to pickled configurations. name: of a module that was run by `python -m`.

    It is executed as the launch has copied it, in its original place: beside it are files that were not copied.
    Processes that it spawns find it as those of the program do: by this name, or by the path of a script, which has no
    spec.
    """
    spec, prepared = importlib.util.spec_from_file_location("__mp_main__", file), spawn.get_preparation_data
    assert spec is not None
    copy = copied(str(file)) or file
    source = copy.read_bytes()
    linecache.cache[str(file)] = len(source), None, importlib.util.decode_source(source).splitlines(True), str(file)
    spawn.get_preparation_data = lambda name: {**prepared(name), "init_main_from_path": str(copy)}
    module = importlib.util.module_from_spec(spec)
    module.__spec__ = None if name is None else importlib.util.spec_from_file_location(name, file)
    if name is not None:
        module.__package__ = name.rpartition(".")[0]
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    hydra_main: Any = sys.modules[hydra.main.__module__]
    # Without the guard, the program calls it.
    runs, hydra_main._run_hydra = hydra_main._run_hydra, lambda *_, **__: None
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    finally:
        hydra_main._run_hydra = runs
    return module
