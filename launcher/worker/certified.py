"""An attempt of a certification: it ends where the file certify.json of its multirun folder says, and records in
trace.jsonl what each step has read and made. `rlsweep certify` starts it, and compares what it leaves."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from launcher import files
from launcher.config.identity import content_hash
from launcher.nodes import ONE, Nodes
from launcher.run.folder import attempt_folder, multirun_of, read_object
from launcher.run.lifecycle import Heartbeat
from launcher.worker import pickled
from launcher.worker.attempt import Attempt, Lines
from launcher.worker.pickled import clocked

ASKED, TRACE = "certify.json", "trace.jsonl"
#: A file with a line for each time that a program has opened a file of its job to write it, has made a folder there, or
#: has renamed something: the path in the job's folder; and with another, after which EMPTIED follows, where opening it
#: empties it. Files that are logs do not count. When it then logs a step, LOGGED and the step. Each stands in a list:
#: what was logged last, or START; the line; and how often it has come after that.
WRITES, EMPTIED, LOGGED, START = "writes", ", emptied", "the log of step ", "the start"
REACHED = "reached"  # a file of an attempt that has come to the end that was asked for
#: Beside the folders of all repetitions, a line for each file elsewhere, not of _SYSTEMS, that a program has opened:
#: the repetition, `by`, the `path`, and whether it `writes` it.
OUTSIDE, _SYSTEMS = "outside.jsonl", "^/(dev|proc|sys)/|/(__pycache__|[.]cache|[.]config|[.]git|ray|lib/python3[^/]*)/"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: What opens files in C++ or Rust, where Python tells nobody of it (for safetensors of torch, numpy and flax, too); the
#: path is the second argument, or has this name.
_SAVES = {"torch": ("save", "f"), "safetensors": ("serialize_file", "filename")}
#: Files with times in them, and in the first line of a table a column of steps: they log what the metrics have.
_LOGS, _TABLES = re.compile(r"\.(log|out|err)$|tfevents|/job/(wandb|\.hydra)\b"), (".csv", ".tsv", ".jsonl")
_STEPS, _KEY = re.compile("(?i)step|epoch|(?<![a-z])iter|t_start"), re.compile(r'"([^"]*)"\s*:')
#: Keys of the trace's lines: the rows of a step's prompts, and that a checkpoint was begun. Others have digests.
DATA, CHECKPOINT = "data", "checkpoint"


class CertifiedAttempt(Attempt):
    """certify.json has `contents`, as launcher.application says, and where each of the first attempts ends: `ends`,
    pairs of (at, step).

    at: `before`, `during` (it has its files, but not its name) or `after` the checkpoint of the step, `logged` (its
    line is written), or the `moment` after so many seconds, with SIGKILL; `stop`, which is as `logged`, with SIGTERM.
    `written`, which has a list of WRITES instead of a step: before that.
    """

    def __init__(self, folder: Path, attempt: int, heartbeat: Heartbeat, nodes: Nodes = ONE) -> None:
        super().__init__(folder, attempt, heartbeat, nodes)
        asked = read_object(multirun_of(folder) / ASKED)
        self._contents, ends = asked["contents"], asked["ends"]
        self._end = tuple(ends[attempt - 1]) if attempt <= len(ends) else ("", 0)
        self._trace = Lines(folder / TRACE)
        self._job, self._process = f"{folder.resolve() / 'job'}/", os.getpid()
        self._after, self._writes = START, Counter[str]()
        self._unheard, self._read, scratch = dict(_SAVES), set[str](), multirun_of(folder).parent.resolve()
        self._outside, self._passed = Lines(scratch / OUTSIDE), re.compile(f"{re.escape(str(scratch))}/|{_SYSTEMS}")
        (folder / WRITES).write_bytes(b"")
        sys.addaudithook(self._audited)
        if self._end[0] == "moment":
            killer = threading.Timer(self._end[1], self._reached, self._end)
            killer.daemon = True
            killer.start()

    def _reached(self, at: str, step: float | list[Any]) -> None:
        if self._end == (at, step):
            (attempt_folder(self.folder, self.attempt) / REACHED).touch()
            os.kill(os.getpid(), signal.SIGTERM if at == "stop" else signal.SIGKILL)

    def _audited(self, event: str, given: tuple[Any, ...]) -> None:
        if event in ("import", "exec"):  # before and after the packages of a module are imported
            for name in [name for name, (save, _) in self._unheard.items() if hasattr(sys.modules.get(name), save)]:
                save, path = self._unheard.pop(name)
                setattr(sys.modules[name], save, _announced(getattr(sys.modules[name], save), path))
        if event not in ("open", "os.mkdir", "os.rename") or os.getpid() != self._process:  # a fork of the job
            return
        writes = event != "open" or bool(given[2] & _WRITING)
        with suppress(TypeError, ValueError, OSError):  # of a path that is a number, or cannot be followed
            paths = [os.path.realpath(os.fsdecode(path)) for path in given[: 2 if event == "os.rename" else 1]]
            if writes and all(path.startswith(self._job) and not _LOGS.search(path) for path in paths):
                self._written(paths[-1].removeprefix(self._job), event == "open" and bool(given[2] & os.O_TRUNC))
            elif not self._passed.search(path := paths[-1]):
                if writes or (path not in self._read and os.path.isfile(path)):
                    self._outside.append({"by": multirun_of(self.folder).name, "path": path, "writes": writes})
                self._read.add(path)

    def _written(self, path: str, empties: bool) -> None:
        for name in (path, path + EMPTIED)[: 1 + empties]:
            self._writes[name] += 1
            here = [self._after, name, self._writes[name]]
            if name != path and self._end == ("written", here):
                os.truncate(self._job + path, 0) if os.path.exists(self._job + path) else os.mknod(self._job + path)
            self._reached("written", here)
            with open(self.folder / WRITES, "a", encoding="utf-8") as counted:
                counted.write(f"{json.dumps(here)}\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writes:
            self._written(f"{LOGGED}{step}", empties=False)
        self._after, self._writes = f"{LOGGED}{step}", Counter()
        super().log(step, metrics)
        self._reached("logged", step)
        self._reached("stop", step)

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        self._trace.append({"step": step, CHECKPOINT: True})
        self._reached("before", step)
        with super().checkpoint(step) as draft:
            yield draft
            self._reached("during", step)
        self._reached("after", step)

    def trace(self, step: int, read: Mapping[str, Any], save: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=self.folder) as aside:
            save(Path(aside))
            made = digests(Path(aside), self._contents, "state")
        seen = {key: value if key == DATA else content_hash(json.dumps(value)) for key, value in read.items()}
        self._trace.append({"step": step, **seen, **made})


def _announced(save: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The function, which tells audit hooks of the file that it opens. path: the name of its second argument."""

    @functools.wraps(save)
    def announced(*given: Any, **named: Any) -> Any:
        place = given[1] if len(given) > 1 else named.get(path)
        sys.audit("open", place, None, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return save(*given, **named)

    return announced


def digests(folder: Path, contents: Sequence[str] = (), rest: str | None = None) -> dict[str, str]:
    """The digest of each kind of file below a folder in that of a run: of those with a word of `contents` in their
    paths, and of others, `rest`; None: each is a kind of its own."""
    made: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, own = str(path.relative_to(folder)), multirun_of(folder.parent).name.encode()
        whole = compared(path, own)
        kind = next((word for word in contents if word in name), rest or name)
        digest = pickled.digest(path, whole, own) or hashlib.sha256(whole).hexdigest()
        made[kind] = content_hash(f"{made.get(kind)} {name} {digest}")
    return made


def is_log(path: Path) -> bool:
    """Whether a file of a program's job is not compared: a log, or a table without a line, which may have been one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    columns = _KEY.findall(first) if first.startswith("{") else [first]
    return bool(_LOGS.search(str(path)) or (path.suffix in _TABLES and (not first or any(map(_STEPS.search, columns)))))


def step_lines(job: Path) -> Counter[tuple[int, str]]:
    """How many lines of each step the tables of a job have that are logs, by step and file."""
    found = Counter[tuple[int, str]]()
    for path in (path for path in job.rglob("*") if path.suffix in _TABLES and path.is_file() and is_log(path)):
        with suppress(Exception):  # it has another format than its name says
            table = [[]] if path.suffix == ".jsonl" else _rows(path.read_bytes())
            for row in files.json_lines(path) or [dict(zip(table[0], cells, strict=False)) for cells in table[1:]]:
                named = [key for key in row if _STEPS.search(key) and not (clocked(key) or key.startswith("#"))]
                step = row.get(min(named, key=lambda key: "step" not in key.lower(), default=""))
                if (number := str(step).removesuffix(".0")).isdecimal():
                    found[int(number), str(path.relative_to(job))] += 1
    return found


def compared(path: Path, own: bytes) -> bytes:
    """The bytes of a file, unpacked, without the name `own` of its repetition; of _VALUES without times and order."""
    whole, name = path.read_bytes(), path.name
    with suppress(Exception):  # it has another format than its name says
        if name.endswith(".gz"):
            whole, name = gzip.decompress(whole), path.stem
        whole = whole.replace(own, b"-" * len(own))  # as long, as a pickle has the lengths of its texts
        if values := _VALUES.get(Path(name).suffix):
            return json.dumps(timeless(values(whole)), default=str, sort_keys=True).encode()
    return whole


def _rows(whole: bytes) -> list[list[str]]:
    lines = whole.decode().splitlines()
    header, *rows = csv.reader(lines, delimiter=max(",;\t", key=lines[0].count))
    times = {place for place, name in enumerate(header) if clocked(name)}
    return [[cell for place, cell in enumerate(row) if place not in times] for row in (header, *rows)]


def _tensors(whole: bytes) -> list[Any]:
    data = 8 + int.from_bytes(whole[:8], "little")
    return [json.loads(whole[8:data]), hashlib.sha256(whole[data:]).hexdigest()]


_VALUES: dict[str, Callable[[bytes], Any]] = {".json": json.loads, ".yaml": yaml.safe_load, ".csv": _rows}
_VALUES |= {".jsonl": lambda whole: [*map(json.loads, whole.splitlines())], ".safetensors": _tensors}
_VALUES |= {".yml": yaml.safe_load, ".tsv": _rows}


def timeless(value: Any) -> Any:
    """A value of JSON or YAML without the keys that name times."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if not clocked(str(key))}
    return [timeless(one) for one in value] if isinstance(value, list) else value
