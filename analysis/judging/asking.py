"""Asks a language model about all pairs: several requests at a time, retried, within a budget, and each only once."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from analysis.judging import endpoint
from analysis.judging.endpoint import Answer, Endpoint, NoAnswer
from analysis.judging.journal import Asked, Journal, Tokens
from analysis.judging.pairs import Pair
from analysis.judging.settings import BadJudge, Settings

_MOST_DOUBLED = 40  # times: any wait is then longer than the longest


class Ended(StrEnum):
    """Why the asking ended."""

    ALL = "all"
    BUDGET = "budget"
    SERVER = "server"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Done:
    """What came of it. left: keys that remain to be asked about. why: of a server that does not answer."""

    ended: Ended
    left: int
    why: str = ""


def decided(asked: Asked, attempts: int) -> bool:
    """Whether a key needs no further request: it has a verdict, or as many answers without one as are allowed."""
    return asked.verdict is not None or asked.unread >= attempts


def ask(
    keys: Mapping[str, tuple[Pair, bool]],
    settings: Settings,
    journal: Journal,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Done:
    """Ask about every key that is not decided, and note each answer in the journal.

    progress(keys decided, keys in all): after each. Raises BadJudge: the server refuses a request.
    """
    todo = [key for key in keys if not decided(journal.content.of(key), settings.attempts)]
    if not todo:
        return Done(Ended.ALL, 0)
    crew = _Crew(keys, todo, settings, journal, progress)
    crew.work()
    if crew.refused is not None:
        raise crew.refused
    left = sum(not decided(journal.content.of(key), settings.attempts) for key in keys)
    return Done(crew.ended, left, crew.why)


class _Crew:
    """The threads that ask. Everything but the requests themselves happens under one lock."""

    def __init__(
        self,
        keys: Mapping[str, tuple[Pair, bool]],
        todo: list[str],
        settings: Settings,
        journal: Journal,
        progress: Callable[[int, int], None],
    ) -> None:
        self._keys, self._todo, self._settings, self._journal = keys, deque(todo), settings, journal
        self._progress, self._done = progress, len(keys) - len(todo)
        self._endpoint = Endpoint(settings)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._waiting = 0  # requests whose answer is awaited
        self._not_before = 0.0  # when the server wants to hear from us again
        self.ended, self.why = Ended.ALL, ""
        self.refused: BaseException | None = None

    def work(self) -> None:
        """Ask until all is decided or something ends it. Ctrl-C waits for the answers that are under way."""
        threads = [
            threading.Thread(target=self._worker, name=f"judge-{number}", daemon=True)
            for number in range(min(self._settings.parallel, len(self._todo)))
        ]
        for thread in threads:
            thread.start()
        try:
            self._join(threads)
        except KeyboardInterrupt:
            self._end(Ended.INTERRUPTED)
            print("waiting for the answers under way; Ctrl-C again does not wait", file=sys.stderr, flush=True)
            self._join(threads)

    @staticmethod
    def _join(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()

    def _worker(self) -> None:
        try:
            while (key := self._next()) is not None:
                self._decide(key)
        except BaseException as error:  # shown by the main thread
            self.refused = self.refused or error
            self._end(Ended.SERVER)

    def _next(self) -> str | None:
        with self._changed:
            return self._todo.popleft() if self._todo and not self._stop.is_set() else None

    def _end(self, why: Ended, said: str = "") -> None:
        with self._changed:
            if not self._stop.is_set():
                self.ended, self.why = why, said
            self._stop.set()
            self._changed.notify_all()

    def _decide(self, key: str) -> None:
        """Ask about one key until it is decided, or until the asking ends."""
        pair, swapped = self._keys[key]
        first, second = pair.texts[::-1] if swapped else pair.texts
        sent = endpoint.messages(self._settings, pair.prompt, first, second, key[:8])
        most = endpoint.most_tokens(sent, self._settings)
        failures = 0
        while not decided(self._journal.content.of(key), self._settings.attempts):
            self._pause()
            number = self._reserve(key, most)
            if number is None:
                return
            try:
                self._journal.sync()
                answer = self._endpoint.complete(sent)
                if isinstance(answer, Answer):
                    failures = 0
                    self._note(key, number, answer, most)
                elif not answer.taken:
                    self._journal.released(key, number, answer.why)
                self._journal.sync()
            except BadJudge as error:
                self._journal.released(key, number, "refused")
                asked_of = f"prompt {pair.own.answer.id}, runs {pair.own.run} and {pair.other.run}"
                raise type(error)(f"{error} (asked about {asked_of})") from None
            finally:
                with self._changed:
                    self._waiting -= 1
                    self._changed.notify_all()
            if isinstance(answer, NoAnswer):
                failures += 1
                self._back_off(answer, failures)
        with self._changed:
            self._done += 1
            self._progress(self._done, len(self._keys))

    def _note(self, key: str, number: int, answer: Answer, most: Tokens) -> None:
        verdict = endpoint.verdict(answer.text)
        text, model = self._endpoint.hidden(answer.text), self._endpoint.hidden(answer.model)
        more = {"answer": text, "host": self._settings.host, "model": model}
        self._journal.answered(key, number, verdict, answer.taken or most, **more)

    def _reserve(self, key: str, most: Tokens) -> int | None:
        """The number of the next request, noted; None: the asking ends here. It waits where the answers under way
        decide whether the budget has room for another request."""
        with self._changed:
            while not self._stop.is_set():
                if self._fits(self._journal.spent() + most):
                    self._waiting += 1
                    return self._journal.sent(key, most)
                if not self._waiting:
                    break
                self._changed.wait()
        self._end(Ended.BUDGET)
        return None

    def _fits(self, tokens: Tokens) -> bool:
        limit, cost = self._settings.max_tokens_total, self._settings.max_cost
        spent = self._settings.cost(tokens.input, tokens.output)
        return (limit is None or tokens.all <= limit) and (cost is None or spent is None or spent <= cost)

    def _pause(self) -> None:
        """Wait until the server wants to hear from us again."""
        while not self._stop.is_set():
            with self._changed:
                left = self._not_before - time.monotonic()
            if left <= 0:
                return
            self._stop.wait(left)

    def _back_off(self, answer: NoAnswer, failures: int) -> None:
        settings = self._settings
        if failures > settings.retries:
            self._end(Ended.SERVER, f"{settings.host}: {answer.why}, {failures} times in a row")
            return
        if answer.wait is not None:
            if answer.wait > settings.longest_wait_s:
                longest = f"judge.longest_wait_s={settings.longest_wait_s:g}"
                said = f"{settings.host}: {answer.why}, and it asks to wait {answer.wait:.0f} s, longer than {longest}"
                self._end(Ended.SERVER, said)
                return
            with self._changed:  # the others wait, too
                self._not_before = max(self._not_before, time.monotonic() + answer.wait)
        doubled = 2.0 ** min(failures - 1, _MOST_DOUBLED)
        wait = min(settings.backoff_s * doubled, settings.longest_wait_s)
        self._stop.wait(wait * random.uniform(0.5, 1.0))
