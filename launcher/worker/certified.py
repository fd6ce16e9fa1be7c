"""An attempt of a certification: it ends where the file certify.json of its multirun folder says, and records in
trace.jsonl what each step has read and made. `rlsweep certify` starts it, and compares what it leaves."""

from __future__ import annotations

import functools
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

from launcher import files
from launcher.config.identity import content_hash
from launcher.nodes import ONE, Nodes
from launcher.run.folder import checkpoints_folder, multirun_of, read_object
from launcher.run.lifecycle import Heartbeat
from launcher.worker import pickled
from launcher.worker.attempt import Attempt, Lines
from launcher.worker.pickled import clocked

ASKED, TRACE = "certify.json", "trace.jsonl"
#: A file with a line for each time that a program has opened a file of its job to write it, has made a folder there, or
#: has renamed something: the path in the job's folder; and with another, after which EMPTIED follows, where opening it
#: empties it. What Hydra writes does not count.
WRITES, EMPTIED = "writes", ", emptied"
_HYDRAS = re.compile(r"/\.hydra\b|\.log$")  # what each job has without a checkpoint
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: What opens files in C++ or Rust, where Python tells nobody of it; the path is the second argument, or has this name.
_SAVES = {"torch": ("save", "f"), "safetensors.torch": ("save_file", "filename")}
#: Keys of the trace's lines: the rows of a step's prompts, and that a checkpoint was begun. Others have digests.
DATA, CHECKPOINT = "data", "checkpoint"


class CertifiedAttempt(Attempt):
    """certify.json has `contents`, as launcher.application says, and where each of the first attempts ends: `ends`,
    pairs of (at, step).

    at: `before`, `during` (it has its files, but not its name) or `after` the checkpoint of the step, `logged` (its
    line is written), or the `moment` after so many seconds, with SIGKILL; `stop`, which is as `logged`, with SIGTERM.
    `written`, which has a line of WRITES and a number instead of a step: before a program's write of this number.
    """

    def __init__(self, folder: Path, attempt: int, heartbeat: Heartbeat, nodes: Nodes = ONE) -> None:
        super().__init__(folder, attempt, heartbeat, nodes)
        asked = read_object(multirun_of(folder) / ASKED)
        self._contents, ends = asked["contents"], asked["ends"]
        self._end = tuple(ends[attempt - 1]) if attempt <= len(ends) else ("", 0)
        self._trace = Lines(folder / TRACE)
        self._job, self._process, self._writes = f"{folder.resolve() / 'job'}/", os.getpid(), Counter[str]()
        self._unheard = dict(_SAVES)
        (folder / WRITES).write_bytes(b"")
        sys.addaudithook(self._audited)
        if self._end[0] == "moment":
            killer = threading.Timer(self._end[1], os.kill, (os.getpid(), signal.SIGKILL))
            killer.daemon = True
            killer.start()

    def _reached(self, at: str, step: int | list[Any]) -> None:
        if self._end == (at, step):
            os.kill(os.getpid(), signal.SIGTERM if at == "stop" else signal.SIGKILL)

    def _audited(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "import":
            for name in [name for name, (save, _) in self._unheard.items() if hasattr(sys.modules.get(name), save)]:
                save, path = self._unheard.pop(name)
                setattr(sys.modules[name], save, _announced(getattr(sys.modules[name], save), path))
        if event not in ("open", "os.mkdir", "os.rename") or (event == "open" and not given[2] & _WRITING):
            return
        if os.getpid() != self._process:  # a fork that the job has made
            return
        with suppress(TypeError, ValueError, OSError):  # of a path that is a number, or cannot be followed
            paths = [os.path.realpath(os.fsdecode(path)) for path in given[: 2 if event == "os.rename" else 1]]
            if all(path.startswith(self._job) and not _HYDRAS.search(path) for path in paths):
                self._written(paths[-1].removeprefix(self._job), event == "open" and bool(given[2] & os.O_TRUNC))

    def _written(self, path: str, empties: bool) -> None:
        for name in (path, path + EMPTIED)[: 1 + empties]:
            self._writes[name] += 1
            if name != path and self._end == ("written", [name, self._writes[name]]):
                os.truncate(self._job + path, 0) if os.path.exists(self._job + path) else os.mknod(self._job + path)
            self._reached("written", [name, self._writes[name]])
            with open(self.folder / WRITES, "a", encoding="utf-8") as counted:
                counted.write(f"{name}\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
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
        checkpoints_folder(self.folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=files.ASIDE, dir=checkpoints_folder(self.folder)) as aside:
            save(Path(aside))
            made = digests(Path(aside), self._contents, "state")
        seen = {key: value if key == DATA else content_hash(json.dumps(value)) for key, value in read.items()}
        self._trace.append({"step": step, **seen, **made})


def _announced(save: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The function, which tells audit hooks of the file that it opens. path: the name of its second argument."""

    @functools.wraps(save)
    def announced(*given: Any, **named: Any) -> Any:
        place = given[1] if len(given) > 1 else named.get(path)
        if isinstance(place, (str, os.PathLike)):
            sys.audit("open", os.fspath(place), None, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return save(*given, **named)

    return announced


def digests(folder: Path, contents: Sequence[str] = (), rest: str | None = None) -> dict[str, str]:
    """The digest of each kind of file below a folder: of those with a word of `contents` in their paths, and of others,
    `rest`; None: each is a kind of its own. In JSON, keys that name times do not count; of a pickle, its values do."""
    made: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, whole = str(path.relative_to(folder)), path.read_bytes()
        if path.suffix == ".json":
            whole = json.dumps(timeless(json.loads(whole))).encode()
        kind = next((word for word in contents if word in name), rest or name)
        made[kind] = content_hash(
            f"{made.get(kind)} {name} {pickled.digest(path, whole) or hashlib.sha256(whole).hexdigest()}"
        )
    return made


def timeless(value: Any) -> Any:
    """A value of JSON without the keys that name times."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if not clocked(key)}
    return [timeless(one) for one in value] if isinstance(value, list) else value
