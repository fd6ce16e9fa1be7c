"""What a language model was asked and has answered: multirun/verdicts/JUDGE.jsonl, for all experiments of a multirun.

A request is noted on the disk before it is sent, and an answer before the next request. So after a crash no answer is
asked for again, and no token is spent that the budget does not know. A line that was torn by a crash is left out.

    {"event": "sent", "key", "request", "experiment", "input_tokens", "output_tokens"}      the most that it can take
    {"event": "answered", ..., "verdict", "answer", "input_tokens", "output_tokens", "host", "model"}
    {"event": "released", "key", "request", "why"}                            the server did not take the request
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from analysis.judging.settings import BadJudge, Tokens
from launcher.files import fsync_folder, parse_lines, read_from

Verdict = Literal["first", "second", "tie"]
VERDICTS: tuple[Verdict, ...] = ("first", "second", "tie")


def path(multirun: Path, judge: str) -> Path:
    """The journal of a judge; `judge` is settings.JudgeSettings.identity."""
    return multirun / "verdicts" / f"{judge}.jsonl"


@dataclass
class JournalEntry:
    """What is known of one key. verdict: None as long as no answer has one. unread: answers without a verdict.
    requests: how many were noted. host: of the newest answer."""

    verdict: Verdict | None = None
    unread: int = 0
    requests: int = 0
    host: str = ""

    def decided(self, attempts: int) -> bool:
        """Whether no further request is needed: there is a verdict, or so many answers without one."""
        return self.verdict is not None or self.unread >= attempts


@dataclass
class Content:
    """A journal as read. spent[experiment]: tokens as the server counted them. open: of each request whose answer was
    never received, the most that it can have taken."""

    asked: dict[str, JournalEntry] = field(default_factory=dict)
    open: dict[tuple[str, int], tuple[str, Tokens]] = field(default_factory=dict)
    spent: dict[str, Tokens] = field(default_factory=dict)
    bad: int = 0

    def entry(self, key: str) -> JournalEntry:
        return self.asked.setdefault(key, JournalEntry())

    def tokens(self, experiment: str) -> Tokens:
        """What the requests of an experiment have taken at most."""
        lost = (tokens for name, tokens in self.open.values() if name == experiment)
        return sum(lost, self.spent.get(experiment, Tokens()))

    def add(self, line: dict[str, Any]) -> None:
        """Take in a line. KeyError, TypeError, ValueError: it is not one of a journal."""
        key, number, event = str(line["key"]), int(line["request"]), line["event"]
        if event == "released":
            self.open.pop((key, number), None)
            return
        if event not in ("sent", "answered"):
            raise ValueError(event)
        known, experiment = self.entry(key), str(line["experiment"])
        taken = Tokens(int(line["input_tokens"]), int(line["output_tokens"]))
        if event == "sent":
            self.open[key, number] = (experiment, taken)
        else:
            verdict = line["verdict"]
            if verdict is not None and verdict not in VERDICTS:
                raise ValueError(verdict)
            known.host = str(line["host"])
            known.verdict = known.verdict or verdict
            known.unread += verdict is None
            self.open.pop((key, number), None)
            self.spent[experiment] = self.spent.get(experiment, Tokens()) + taken
        known.requests = max(known.requests, number)


def read(file: Path) -> Content:
    """A journal's content; an absent one is empty. Lines that cannot be read are counted and left out."""
    content = Content()
    for line in parse_lines(read_from(file, 0).splitlines(keepends=True)):
        try:
            content.add(line or {})
        except (KeyError, TypeError, ValueError):
            content.bad += 1
    return content


class Journal:
    """A journal to write to; made by `opened`. `sync` is needed before anything follows from what was noted."""

    def __init__(self, handle: int, content: Content, experiment: str) -> None:
        self.content = content
        self._handle, self._experiment, self._torn = handle, experiment, False

    def spent(self) -> Tokens:
        """What this experiment's requests have taken at most, those included that wait for an answer."""
        return self.content.tokens(self._experiment)

    def sync(self) -> None:
        """Return when everything that was noted is on the disk."""
        os.fsync(self._handle)

    def sent(self, key: str, most: Tokens) -> int:
        """Note a request before it is sent; its number. most: the tokens that it can take."""
        number = self.content.entry(key).requests + 1
        self.note("sent", key, number, most)
        return number

    def note(self, event: str, key: str, number: int, tokens: Tokens | None = None, **more: str | None) -> None:
        """Append an event of a request. more: the other keys of the line."""
        taken = {} if tokens is None else {"input_tokens": tokens.input, "output_tokens": tokens.output}
        line = {"event": event, "key": key, "request": number, "experiment": self._experiment, **more, **taken}
        data = b"\n" * self._torn + (json.dumps(line) + "\n").encode()
        self._torn = True
        if os.write(self._handle, data) != len(data):
            raise OSError(errno.ENOSPC, "the journal of the judge cannot be written: the disk is full")
        self._torn = False
        self.content.add(line)


@contextmanager
def opened(file: Path, experiment: str) -> Iterator[Journal]:
    """Open a journal to write to, made if need be. Raises BadJudge if another process writes to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadJudge(f"{file}: another process is asking this judge. Fix: wait until it has ended") from None
        fsync_folder(file.parent)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")  # a crash tore the last line; the next one must not continue it
        yield Journal(handle, read(file), experiment)
    finally:
        os.close(handle)
