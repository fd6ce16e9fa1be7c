"""Asks a language model about all pairs: several requests at a time, retried, within a budget, and each only once.

The server speaks OpenAI's protocol. Proxies are those of the environment, except for this machine. Redirects are not
followed: they would carry the key elsewhere.
"""

from __future__ import annotations

import contextlib
import email.utils
import heapq
import http.client
import json
import os
import queue
import random
import re
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from analysis.judging.journal import Journal, Verdict
from analysis.judging.pairs import Pair
from analysis.judging.settings import FORMAT, BadJudge, JudgeSettings, Tokens
from launcher.secrets import MASK, mask

_MOST_BYTES = 4 << 20  # of an answer
_SHOWN = 400  # characters of a server's message
_CHUNK = 1 << 16
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: Tokens that a chat template can add to the texts of a request.
_TEMPLATE_TOKENS = 256
_VERDICT = re.compile(r"[\s*_#>`]*verdict[\s*_`]*:[\s*_`]*(A|B|tie)[\s*_`.]*", re.IGNORECASE)


@dataclass(frozen=True)
class ModelAnswer:
    """What the model wrote. taken: None if the server did not count. model: as the server calls it."""

    text: str
    taken: Tokens | None
    model: str


@dataclass(frozen=True)
class NoAnswer:
    """A request without an answer, and why. taken: whether the server may have worked on the request, and therefore
    charge for it. wait: the seconds for which the server asks to wait, or None."""

    why: str
    taken: bool
    wait: float | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Endpoint:
    """A server and a model. Raises BadJudge if the variable of the key is not set."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._key = os.environ.get(settings.key_env, "").strip() if settings.key_env is not None else None
        if self._key == "":
            name = settings.key_env
            raise BadJudge(f"command line: judge.key_env = {name}: the variable is not set. Fix: export {name}=KEY")
        local = urlsplit(settings.base_url).hostname in _LOCAL
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({} if local else None))

    def complete(self, messages: list[dict[str, str]]) -> ModelAnswer | NoAnswer:
        """Ask once. Raises BadJudge: the server refuses the request, and would refuse it again."""
        asked = self._settings
        body: dict[str, Any] = {"model": asked.model, "messages": messages, asked.limit_key: asked.answer_tokens}
        if asked.temperature is not None:
            body["temperature"] = asked.temperature
        headers = {"Content-Type": "application/json", "User-Agent": "rlsweep"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(asked.address, json.dumps(body).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=asked.timeout_s) as response:
                return _parsed(self._body(response))
        except urllib.error.HTTPError as error:
            with error:
                return self._status(error)
        except urllib.error.URLError as error:
            return self._unreached(error.reason)
        except TimeoutError:
            return NoAnswer(f"no answer within {asked.timeout_s:g} s", taken=True)
        except (OSError, http.client.HTTPException) as error:
            return NoAnswer(f"the connection broke ({type(error).__name__})", taken=True)

    def hidden(self, text: str) -> str:
        """A text without the key and without other secrets of the environment."""
        return mask(text.replace(self._key, MASK) if self._key else text)

    def _body(self, response: Any) -> bytes:
        """All of a response. TimeoutError: it trickles for longer than the time limit."""
        until = time.monotonic() + self._settings.timeout_s
        parts, size = [], 0
        while part := response.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if time.monotonic() > until:
                raise TimeoutError
            if size > _MOST_BYTES:
                raise http.client.HTTPException("too long")
        if response.length:  # closed before the length that it announced
            raise http.client.IncompleteRead(b"".join(parts), response.length)
        return b"".join(parts)

    def _status(self, error: urllib.error.HTTPError) -> NoAnswer:
        if error.code in (408, 409, 425, 429) or error.code >= 500:
            # What a gateway gave up on, the model behind it may have answered.
            taken = error.code >= 500 and error.code != 503
            return NoAnswer(f"HTTP {error.code}", taken, seconds(error.headers.get("Retry-After")))
        try:
            said = error.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            said = ""
        said = self.hidden(_message(said))
        fix = {
            401: "name the environment variable that has the key in judge.key_env",
            403: "name the environment variable that has the right key in judge.key_env",
            404: "check judge.base_url and judge.model",
            405: "check judge.base_url",
            413: "leave long pairs out with judge.max_characters",
            400: "correct what the server names; judge.max_characters leaves out pairs that are too long",
        }.get(error.code, "check judge.base_url" if error.code < 400 else "correct what the server names")
        raise BadJudge(f"{self._settings.address}: HTTP {error.code}: {said or error.reason}. Fix: {fix}")

    def _unreached(self, reason: object) -> NoAnswer:
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise BadJudge(
                f"{self._settings.address}: its certificate is not trusted ({reason.verify_message}). Fix: check "
                "judge.base_url, or name the authority's file in the variable SSL_CERT_FILE"
            )
        if isinstance(reason, TimeoutError):
            return NoAnswer(f"no answer within {self._settings.timeout_s:g} s", taken=True)
        never = isinstance(reason, (ConnectionRefusedError, socket.gaierror))
        return NoAnswer(f"not reached ({self.hidden(str(reason))})", taken=not never)


def messages(settings: JudgeSettings, pair: Pair, swapped: bool, mark: str) -> list[dict[str, str]]:
    """What the model is sent. swapped: the other response is shown first. mark: what no text knows, so that none can
    close the marks around it."""
    names = ("prompt", "response A", "response B")
    texts = (pair.prompt, *pair.shown(swapped))
    marked = [f"<{name} {mark}>\n{text}\n</{name} {mark}>" for name, text in zip(names, texts, strict=True)]
    return [
        {"role": "system", "content": f"{settings.rubric}\n\n{FORMAT}"},
        {"role": "user", "content": "\n\n".join(marked)},
    ]


def most_tokens(sent: list[dict[str, str]], settings: JudgeSettings) -> Tokens:
    """The most tokens that a request and its answer can take: no token is shorter than a byte."""
    size = sum(len(message["content"].encode()) for message in sent)
    return Tokens(size + _TEMPLATE_TOKENS, settings.answer_tokens)


def verdict(text: str) -> Verdict | None:
    """The verdict in the last line of an answer; None: it has none."""
    lines = [line for line in text.splitlines() if line.strip()]
    match = _VERDICT.fullmatch(lines[-1]) if lines else None
    return {"a": "first", "b": "second", "tie": "tie"}[match[1].lower()] if match else None  # type: ignore[return-value]


def _parsed(body: bytes) -> ModelAnswer | NoAnswer:
    try:
        value = json.loads(body)
        text = value["choices"][0]["message"]["content"]
        if not isinstance(text, str | None):
            raise TypeError
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return NoAnswer("not a chat completion", taken=True)
    usage = value.get("usage")
    counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [None]
    taken = Tokens(*counts) if all(type(count) is int and count >= 0 for count in counts) else None
    # without a text, all tokens went into thinking, or the model declined
    return ModelAnswer(text or "", taken, str(value.get("model") or ""))


def _message(body: str) -> str:
    """A server's own words."""
    with contextlib.suppress(ValueError, RecursionError):
        error = json.loads(body)
        error = error.get("error", error) if isinstance(error, dict) else error
        body = str(error.get("message", error) if isinstance(error, dict) else error)
    return " ".join("".join(char if char.isprintable() else " " for char in body).split())[:_SHOWN]


def seconds(header: str | None) -> float | None:
    """The seconds to wait that a header Retry-After asks for, as a number or as a date; None: it asks for nothing."""
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, float(header or ""))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(header or "").timestamp() - time.time())
    return None


_MOST_DOUBLED = 40  # times: any wait is then longer than the longest
_REPORTS = 10  # lines of progress
_Received = tuple[str, ModelAnswer | NoAnswer | BaseException]  # a key, and what came of the request


class Ended(StrEnum):
    """Why the asking ended."""

    ALL = "all"
    BUDGET = "budget"
    SERVER = "server"
    INTERRUPTED = "interrupted"


def ask(keys: Mapping[str, tuple[Pair, bool]], settings: JudgeSettings, journal: Journal) -> tuple[Ended, str]:
    """Ask about every key that is not decided, and note each answer in the journal; why it ended, and of a server that
    does not answer, what happened. Ctrl-C waits for the answers that are under way.

    Raises BadJudge: the server refuses a request.
    """
    asking, former = _Asking(keys, settings, journal), signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, asking.interrupt)
    try:
        return asking.run()
    finally:
        signal.signal(signal.SIGINT, former)


class _Asking:
    """Decides what is asked, and notes the answers; each request waits for its answer in a thread of its own."""

    def __init__(self, keys: Mapping[str, tuple[Pair, bool]], settings: JudgeSettings, journal: Journal) -> None:
        self._keys, self._settings, self._journal = keys, settings, journal
        self._endpoint = Endpoint(settings)
        # When each key may be asked about, and its place among the keys: a heap.
        self._todo = [(0.0, place, key) for place, key in enumerate(keys) if not self._decided(key)]
        self._done = len(keys) - len(self._todo)
        self._running: dict[str, tuple[int, int, Tokens]] = {}  # place, number and most tokens of each request
        self._failures: Counter[str] = Counter()  # requests without an answer, in a row
        self._not_before = 0.0  # when the server wants to hear from us again
        self._answers: queue.SimpleQueue[_Received | None] = queue.SimpleQueue()
        self._ended: Ended | None = None
        self._why = ""
        self._error: BaseException | None = None

    def run(self) -> tuple[Ended, str]:
        """Ask until all is decided or something ends it."""
        while True:
            requests, wait = self._reserve()
            self._journal.sync()  # answers are on the disk before the next requests, and these before they are sent
            for request in requests:
                threading.Thread(target=self._send, args=request, daemon=True).start()
            if not self._running and (self._ended or not self._todo):
                break
            self._receive(wait)
        if self._error is not None:
            raise self._error
        return self._ended or Ended.ALL, self._why

    def interrupt(self, *_: object) -> None:
        """The handler of Ctrl-C, which runs between two instructions of `run`; a second Ctrl-C ends the program."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._answers.put(None)
        print("waiting for the answers under way; Ctrl-C again does not wait", file=sys.stderr, flush=True)

    def _decided(self, key: str) -> bool:
        return self._journal.content.entry(key).decided(self._settings.attempts)

    def _reserve(self) -> tuple[list[tuple[str, list[dict[str, str]]]], float | None]:
        """The requests that may be sent now, noted; and the seconds until another may be sent, None where only an
        answer decides that: with little left of the budget, what the requests under way have taken."""
        requests: list[tuple[str, list[dict[str, str]]]] = []
        while self._ended is None and self._todo and len(self._running) < self._settings.parallel:
            ready, place, key = self._todo[0]
            wait = max(ready, self._not_before) - time.monotonic()
            if wait > 0:
                return requests, wait
            sent = messages(self._settings, *self._keys[key], key[:8])
            most = most_tokens(sent, self._settings)
            if not self._settings.allows(self._journal.spent() + most):
                self._ended = None if self._running else Ended.BUDGET
                break
            heapq.heappop(self._todo)
            self._running[key] = place, self._journal.sent(key, most), most
            requests.append((key, sent))
        return requests, None

    def _send(self, key: str, messages: list[dict[str, str]]) -> None:
        try:
            self._answers.put((key, self._endpoint.complete(messages)))
        except BaseException as error:
            self._answers.put((key, error))

    def _receive(self, wait: float | None) -> None:
        """Note what has come within so many seconds; None: wait for an answer."""
        with contextlib.suppress(queue.Empty):
            received = [self._answers.get(timeout=wait)]
            while not self._answers.empty():
                received.append(self._answers.get())
            for each in received:
                if each is None:
                    self._ended = self._ended or Ended.INTERRUPTED
                else:
                    self._take(*each)

    def _take(self, key: str, answer: ModelAnswer | NoAnswer | BaseException) -> None:
        place, number, most = self._running.pop(key)
        ready = 0.0
        if isinstance(answer, ModelAnswer):
            text, model = self._endpoint.hidden(answer.text), self._endpoint.hidden(answer.model)
            more = {"verdict": verdict(answer.text), "answer": text, "host": self._settings.host}
            self._journal.note("answered", key, number, answer.taken or most, **more, model=model)
            self._failures[key] = 0
            if self._decided(key):
                self._done += 1
                if self._done * _REPORTS // len(self._keys) > (self._done - 1) * _REPORTS // len(self._keys):
                    print(f"answered {self._done} of {len(self._keys)}", flush=True)
                return
        elif isinstance(answer, NoAnswer):
            if not answer.taken:
                self._journal.note("released", key, number, why=answer.why)
            self._failures[key] += 1
            ready = time.monotonic() + self._back_off(answer, self._failures[key])
        else:
            if isinstance(answer, BadJudge):
                self._journal.note("released", key, number, why="refused")
                pair, _ = self._keys[key]
                about = f"prompt {pair.own.answer.id}, runs {pair.own.run} and {pair.other.run}"
                answer = BadJudge(f"{answer} (asked about {about})")
            self._error, self._ended = self._error or answer, self._ended or Ended.SERVER
            return
        heapq.heappush(self._todo, (ready, place, key))

    def _back_off(self, answer: NoAnswer, failures: int) -> float:
        """The seconds before a request is sent again. Too many failures, or too long a wait, end the asking."""
        settings, why = self._settings, ""
        if failures > settings.retries:
            why = f"{settings.host}: {answer.why}, {failures} times in a row"
        elif answer.wait is not None and answer.wait > settings.longest_wait_s:
            longest = f"judge.longest_wait_s={settings.longest_wait_s:g}"
            why = f"{settings.host}: {answer.why}, and it asks to wait {answer.wait:.0f} s, longer than {longest}"
        if why and self._ended is None:
            self._ended, self._why = Ended.SERVER, why
        if answer.wait is not None:  # for all requests
            self._not_before = max(self._not_before, time.monotonic() + answer.wait)
        doubled = 2.0 ** min(failures - 1, _MOST_DOUBLED)
        return min(settings.backoff_s * doubled, settings.longest_wait_s) * random.uniform(0.5, 1.0)
