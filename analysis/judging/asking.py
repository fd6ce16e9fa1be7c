"""Asks a language model about all pairs: several requests at a time, retried, within a budget, and each only once.

The server speaks OpenAI's protocol. Proxies are those of the environment, except for this machine. Redirects are not
followed: they would carry the key elsewhere.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import os
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from analysis.judging.journal import Journal, Verdict
from analysis.judging.pairs import Pair
from analysis.judging.settings import FORMAT, BadJudge, JudgeSettings, Tokens
from launcher.secrets import MASK, mask

_MOST_BYTES = 4 << 20  # limit of an answer
_SHOWN = 400  # characters of a server's message
_CHUNK = 1 << 16
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: Tokens that a chat template can add to the texts of a request.
_TEMPLATE_TOKENS = 256
#: The fix for each HTTP status with which a server refuses.
_FIXES = {
    400: "correct what the server names; judge.max_characters leaves out pairs that are too long",
    **dict.fromkeys((401, 403), "check the key; judge.key_env names the environment variable that has it"),
    404: "check judge.base_url and judge.model",
    405: "check judge.base_url",
    413: "leave long pairs out with judge.max_characters",
}
_VERDICT = re.compile(r"[\s*_#>`]*verdict[\s*_`]*:[\s*_`]*(A|B|tie)[\s*_`.]*", re.IGNORECASE)


Messages = list[dict[str, str]]
Keys = Mapping[str, tuple[Pair, bool]]  # what is asked: a pair, and whether the other response is shown first


@dataclass(frozen=True)
class ModelAnswer:
    """What the model wrote. taken: None if the server did not count. model: as the server calls it."""

    text: str
    taken: Tokens | None
    model: str


class NoAnswer(Exception):
    """A request without an answer, and why. taken: whether the server may have worked on the request, and therefore
    charge for it. wait: the seconds for which the server asks to wait, or None."""

    def __init__(self, why: str, taken: bool = True, wait: float | None = None) -> None:
        super().__init__(why)
        self.taken, self.wait = taken, wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Endpoint:
    """A server and a model. Raises BadJudge if the variable of the key has none, or what no request can have."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._key = os.environ.get(settings.key_env, "").strip() if settings.key_env is not None else None
        if self._key is not None and not (self._key and self._key.isascii() and self._key.isprintable()):
            rule, name = "must be one line of ASCII" if self._key else "is not set", settings.key_env
            raise BadJudge(f"command line: judge.key_env = {name}: the variable {rule}. Fix: export {name}=KEY")
        local = urlsplit(settings.base_url).hostname in _LOCAL
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({} if local else None))

    def complete(self, messages: Messages) -> ModelAnswer:
        """Ask once. Raises NoAnswer, or BadJudge: the server refuses the request, and would refuse it again."""
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
                return _parsed(self._body(response), self._said)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken(error.reason if isinstance(error, urllib.error.URLError) else error) from None

    def hidden(self, text: str) -> str:
        """A text without the key and without other secrets of the environment."""
        return mask(text.replace(self._key, MASK) if self._key else text)

    def _said(self, body: bytes) -> str:
        """A server's own words, masked."""
        text = body.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, RecursionError):
            error = json.loads(text)
            error = error.get("error", error) if isinstance(error, dict) else error
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        return self.hidden(text)[:_SHOWN]

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

    def _refused(self, error: urllib.error.HTTPError) -> NoAnswer | BadJudge:
        said = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            said = self._said(error.read(_MOST_BYTES))
        why = f"HTTP {error.code}: {said or error.reason}"
        if error.code in (408, 409, 425, 429) or error.code >= 500:
            # What a gateway gave up on, the model behind it may have answered.
            taken = error.code >= 500 and error.code != 503
            return NoAnswer(why, taken, seconds(error.headers.get("Retry-After")))
        fix = _FIXES.get(error.code, "check judge.base_url" if error.code < 400 else "correct what the server names")
        return BadJudge(f"{self._settings.address}: {why}. Fix: {fix}")

    def _broken(self, reason: object) -> NoAnswer | BadJudge:
        """What a connection that failed means. reason: an exception, or a text."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            return BadJudge(
                f"{self._settings.address}: its certificate is not trusted ({reason.verify_message}). Fix: check "
                "judge.base_url, or name the authority's file in the variable SSL_CERT_FILE"
            )
        if isinstance(reason, TimeoutError):
            return NoAnswer(f"no answer within {self._settings.timeout_s:g} s")
        never = isinstance(reason, (ConnectionRefusedError, socket.gaierror))
        return NoAnswer(f"the connection broke ({self.hidden(str(reason)) or type(reason).__name__})", taken=not never)


def messages(settings: JudgeSettings, pair: Pair, swapped: bool, mark: str) -> Messages:
    """What the model is sent. swapped: the other response is shown first. mark: what no text knows, so that none can
    close the marks around it."""
    names = ("prompt", "response A", "response B")
    texts = (pair.own.prompt, *pair.shown(swapped))
    marked = [f"<{name} {mark}>\n{text}\n</{name} {mark}>" for name, text in zip(names, texts, strict=True)]
    return [
        {"role": "system", "content": f"{settings.rubric}\n\n{FORMAT}"},
        {"role": "user", "content": "\n\n".join(marked)},
    ]


def size(sent: Messages) -> int:
    """The bytes of the texts of a request."""
    return sum(len(message["content"].encode()) for message in sent)


def most_tokens(sent: Messages, settings: JudgeSettings) -> Tokens:
    """The most tokens that a request and its answer can take: no token is shorter than a byte."""
    return Tokens(size(sent) + _TEMPLATE_TOKENS, settings.answer_tokens)


def verdict(text: str) -> Verdict | None:
    """The verdict in the last line of an answer; None: it has none."""
    lines = [line for line in text.splitlines() if line.strip()]
    match = _VERDICT.fullmatch(lines[-1]) if lines else None
    return {"a": "first", "b": "second", "tie": "tie"}[match[1].lower()] if match else None  # type: ignore[return-value]


def _parsed(body: bytes, said: Callable[[bytes], str]) -> ModelAnswer:
    try:
        value = json.loads(body)
        text = value["choices"][0]["message"]["content"]
        if isinstance(text, list):
            text = "".join(part["text"] for part in text if part["type"] == "text")
        if not isinstance(text, str | None):
            raise TypeError
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise NoAnswer(f"not a chat completion: {said(body)}") from None
    usage = value.get("usage")
    counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [None]
    taken = Tokens(*counts) if all(type(count) is int and count >= 0 for count in counts) else None
    # without a text, all tokens went into thinking, or the model declined
    return ModelAnswer(text or "", taken, str(value.get("model") or ""))


def seconds(header: str | None) -> float | None:
    """The seconds to wait that a header Retry-After asks for, as a number or as a date; None: it asks for nothing."""
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, float(header or ""))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(header or "").timestamp() - time.time())
    return None


_MOST_DOUBLED = 40  # times: any wait is then longer than the longest
_REPORTS = 10  # lines of progress


def ask(keys: Keys, settings: JudgeSettings, journal: Journal) -> str:
    """Ask about every undecided key, and note each answer in the journal.

    Returns why some keys are still undecided and what to do about it, or "" if all are decided.

    Raises BadJudge if the server refuses a request, and KeyboardInterrupt after Ctrl-C, when the answers that were
    under way have come.
    """
    asking, former = _Asking(keys, settings, journal), signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, asking.interrupt)
    try:
        return asking.run()
    finally:
        signal.signal(signal.SIGINT, former)


class _Asking:
    """What the threads share. Each of them asks about one key until it is decided, and then about the next one."""

    def __init__(self, keys: Keys, settings: JudgeSettings, journal: Journal) -> None:
        self._keys, self._settings, self._journal = keys, settings, journal
        self._endpoint = Endpoint(settings)
        todo = [key for key in keys if not self._decided(key)]
        self._todo, self._done = iter(todo), len(keys) - len(todo)
        self._changed = threading.Condition()  # guards the journal and everything below
        self._running = 0  # requests
        self._not_before = 0.0  # when the server wants to hear from us again
        self._why: str | None = None  # why no further request is sent
        self._error: BaseException | None = None

    def run(self) -> str:
        """Ask until all is decided or something ends it."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._settings.parallel)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._changed.acquire()  # for good: no thread notes an answer that comes now
            raise
        self._journal.sync()
        if self._error is not None:
            raise self._error
        return self._why or ""

    def interrupt(self, *_: object) -> None:
        """The handler of Ctrl-C; a second Ctrl-C ends the program."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("waiting for the answers under way; Ctrl-C again does not wait", file=sys.stderr, flush=True)
        self._stop(error=KeyboardInterrupt())

    def _stop(self, why: str = "", error: BaseException | None = None) -> None:
        """Send no further request; the first reason, and the first error, count."""
        with self._changed:
            self._why = why if self._why is None else self._why
            self._error = self._error or error
            self._changed.notify_all()

    def _decided(self, key: str) -> bool:
        return self._journal.content.entry(key).decided(self._settings.attempts)

    def _work(self) -> None:
        try:
            while (key := self._next()) is not None:
                self._decide(key)
        except BaseException as error:
            self._stop(error=error)

    def _next(self) -> str | None:
        with self._changed:
            return next(self._todo, None) if self._why is None else None

    def _decide(self, key: str) -> None:
        """Send requests about a key until it is decided, or the asking ends."""
        sent = messages(self._settings, *self._keys[key], key[:8])
        most, failures, ready = most_tokens(sent, self._settings), 0, 0.0
        while not self._decided(key) and (number := self._reserve(key, most, ready)):
            try:
                answer = self._endpoint.complete(sent)
            except NoAnswer as lost:
                failures += 1
                self._note(key, number, None if lost.taken else str(lost))
                ready = time.monotonic() + self._back_off(lost, failures)
            except BadJudge as refused:
                self._note(key, number, "refused")
                pair, _ = self._keys[key]
                about = f"prompt {pair.own.id}, runs {pair.own.run} and {pair.other.run}"
                raise BadJudge(f"{refused} (asked about {about})") from None
            else:
                failures, ready = 0, 0.0
                self._answered(key, number, answer, most)

    def _reserve(self, key: str, most: Tokens, ready: float) -> int | None:
        """Wait until the next request about a key may be sent, note it on the disk, and return its number.

        A request waits for its time and for room in the budget, which running requests may still give back. Returns
        None if the asking has ended.
        """
        with self._changed:
            while self._why is None:
                wait: float | None = max(ready, self._not_before) - time.monotonic()
                if wait is not None and wait <= 0:
                    budget = self._settings.max_tokens_total
                    if budget is None or (self._journal.spent() + most).all <= budget:
                        self._running += 1
                        number = self._journal.sent(key, most)
                        self._journal.sync()
                        return number
                    if not self._running:
                        self._stop(f"the budget is used up ({budget:,} tokens): raise it")
                        break
                    wait = None
                self._changed.wait(wait)
            return None

    def _note(self, key: str, number: int, released: str | None) -> None:
        """Note that a request ended without an answer; released: why the server has not worked on it."""
        with self._changed:
            self._running -= 1
            if released is not None:
                self._journal.note("released", key, number, why=released)
            self._changed.notify_all()

    def _answered(self, key: str, number: int, answer: ModelAnswer, most: Tokens) -> None:
        text, model = self._endpoint.hidden(answer.text), self._endpoint.hidden(answer.model)
        more = {"verdict": verdict(answer.text), "answer": text, "host": self._settings.host, "model": model}
        with self._changed:
            self._running -= 1
            self._journal.note("answered", key, number, answer.taken or most, **more)
            if self._decided(key):
                self._done += 1
                if self._done * _REPORTS // len(self._keys) > (self._done - 1) * _REPORTS // len(self._keys):
                    print(f"answered {self._done} of {len(self._keys)}", flush=True)
            self._changed.notify_all()

    def _back_off(self, lost: NoAnswer, failures: int) -> float:
        """The seconds before a request is sent again. Too many failures, or too long a wait, end the asking."""
        settings, why = self._settings, ""
        if failures > settings.retries:
            why = f"{failures} times in a row"
        elif lost.wait is not None and lost.wait > settings.longest_wait_s:
            longest = f"judge.longest_wait_s={settings.longest_wait_s:g}"
            why = f"and it asks to wait {lost.wait:.0f} s, longer than {longest}"
        if why:
            self._stop(f"{settings.host}: {lost}, {why}: wait until the server answers")
        if lost.wait is not None:  # for all requests
            with self._changed:
                self._not_before = max(self._not_before, time.monotonic() + lost.wait)
        doubled = 2.0 ** min(failures - 1, _MOST_DOUBLED)
        return min(settings.backoff_s * doubled, settings.longest_wait_s) * random.uniform(0.5, 1.0)
