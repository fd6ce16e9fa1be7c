"""One request to a server that speaks OpenAI's protocol, and what came of it.

Standard library only. Proxies are those of the environment, except for this machine. Redirects are not followed: they
would carry the key elsewhere.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from analysis.judging.journal import Verdict
from analysis.judging.pairs import Pair
from analysis.judging.settings import FORMAT, BadJudge, Settings, Tokens
from launcher.secrets import MASK, mask

_MOST_BYTES = 4 << 20  # of an answer
_SHOWN = 400  # characters of a server's message
_CHUNK = 1 << 16
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: Tokens that a chat template can add to the texts of a request.
_TEMPLATE_TOKENS = 256
_VERDICT = re.compile(r"[\s*_#>`]*verdict[\s*_`]*:[\s*_`]*(A|B|tie)[\s*_`.]*", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
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

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = os.environ.get(settings.key_env, "").strip() if settings.key_env is not None else None
        if self._key == "":
            name = settings.key_env
            raise BadJudge(f"command line: judge.key_env = {name}: the variable is not set. Fix: export {name}=KEY")
        local = urlsplit(settings.base_url).hostname in _LOCAL
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({} if local else None))

    def complete(self, messages: list[dict[str, str]]) -> Answer | NoAnswer:
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


def messages(settings: Settings, pair: Pair, swapped: bool, mark: str) -> list[dict[str, str]]:
    """What the model is sent. swapped: the other response is shown first. mark: what no text knows, so that none can
    close the marks around it."""
    names = ("prompt", "response A", "response B")
    texts = (pair.prompt, *pair.shown(swapped))
    marked = [f"<{name} {mark}>\n{text}\n</{name} {mark}>" for name, text in zip(names, texts, strict=True)]
    return [
        {"role": "system", "content": f"{settings.rubric}\n\n{FORMAT}"},
        {"role": "user", "content": "\n\n".join(marked)},
    ]


def most_tokens(sent: list[dict[str, str]], settings: Settings) -> Tokens:
    """The most tokens that a request and its answer can take: no token is shorter than a byte."""
    size = sum(len(message["content"].encode()) for message in sent)
    return Tokens(size + _TEMPLATE_TOKENS, settings.answer_tokens)


def verdict(text: str) -> Verdict | None:
    """The verdict in the last line of an answer; None: it has none."""
    lines = [line for line in text.splitlines() if line.strip()]
    match = _VERDICT.fullmatch(lines[-1]) if lines else None
    return {"a": "first", "b": "second", "tie": "tie"}[match[1].lower()] if match else None  # type: ignore[return-value]


def _parsed(body: bytes) -> Answer | NoAnswer:
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
    return Answer(text or "", taken, str(value.get("model") or ""))


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
