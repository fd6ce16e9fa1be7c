"""Asks a language model about all pairs: several requests at a time, retried, within a budget, and each only once."""

from __future__ import annotations

import heapq
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from analysis.judging import endpoint
from analysis.judging.endpoint import Answer, Endpoint, NoAnswer
from analysis.judging.journal import Journal
from analysis.judging.pairs import Pair
from analysis.judging.settings import BadJudge, Settings, Tokens

_MOST_DOUBLED = 40  # times: any wait is then longer than the longest
_REPORTS = 10  # lines of progress


class Ended(StrEnum):
    """Why the asking ended."""

    ALL = "all"
    BUDGET = "budget"
    SERVER = "server"
    INTERRUPTED = "interrupted"


def ask(keys: Mapping[str, tuple[Pair, bool]], settings: Settings, journal: Journal) -> tuple[Ended, str]:
    """Ask about every key that is not decided, and note each answer in the journal; why it ended, and of a server that
    does not answer, what happened. Ctrl-C waits for the answers that are under way.

    Raises BadJudge: the server refuses a request.
    """
    asking = _Asking(keys, settings, journal)
    threading.Thread(target=asking.run, name="judge", daemon=True).start()
    try:
        asking.over.wait()  # not Thread.join: after an interrupt, it takes a running thread for an ended one
    except KeyboardInterrupt:
        asking.answers.put(None)
        print("waiting for the answers under way; Ctrl-C again does not wait", file=sys.stderr, flush=True)
        asking.over.wait()
    if asking.error is not None:
        raise asking.error
    return asking.ended or Ended.ALL, asking.why


class _Asking:
    """One thread decides what is asked and notes the answers; each request waits for its answer in a thread of its own.

    answers: each key that was asked about, with what came of it; None ends the asking.
    """

    def __init__(self, keys: Mapping[str, tuple[Pair, bool]], settings: Settings, journal: Journal) -> None:
        self._keys, self._settings, self._journal = keys, settings, journal
        self._endpoint = Endpoint(settings)
        # When each key may be asked about, and its place among the keys: a heap.
        self._todo = [(0.0, place, key) for place, key in enumerate(keys) if not self._decided(key)]
        self._done = len(keys) - len(self._todo)
        self._running: dict[str, tuple[int, int, Tokens]] = {}  # place, number and most tokens of each request
        self._failures: Counter[str] = Counter()  # requests without an answer, in a row
        self._not_before = 0.0  # when the server wants to hear from us again
        self.answers: queue.SimpleQueue[tuple[str, Answer | NoAnswer | BaseException] | None] = queue.SimpleQueue()
        self.over = threading.Event()
        self.ended: Ended | None = None
        self.why = ""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Ask until all is decided or something ends it."""
        try:
            while True:
                requests, wait = self._reserve()
                self._journal.sync()  # answers are on the disk before the next requests, and these before they are sent
                for request in requests:
                    threading.Thread(target=self._send, args=request, daemon=True).start()
                if not self._running and (self.ended or not self._todo):
                    return
                self._receive(wait)
        except BaseException as error:  # shown by the main thread
            self.error = self.error or error
        finally:
            self.over.set()

    def _decided(self, key: str) -> bool:
        return self._journal.content.of(key).decided(self._settings.attempts)

    def _reserve(self) -> tuple[list[tuple[str, list[dict[str, str]]]], float | None]:
        """The requests that may be sent now, noted; and the seconds until another may be sent, None where only an
        answer decides that: with little left of the budget, what the requests under way have taken."""
        requests: list[tuple[str, list[dict[str, str]]]] = []
        while self.ended is None and self._todo and len(self._running) < self._settings.parallel:
            ready, place, key = self._todo[0]
            wait = max(ready, self._not_before) - time.monotonic()
            if wait > 0:
                return requests, wait
            messages = endpoint.messages(self._settings, *self._keys[key], key[:8])
            most = endpoint.most_tokens(messages, self._settings)
            if not self._settings.allows(self._journal.spent() + most):
                self.ended = None if self._running else Ended.BUDGET
                break
            heapq.heappop(self._todo)
            self._running[key] = place, self._journal.sent(key, most), most
            requests.append((key, messages))
        return requests, None

    def _send(self, key: str, messages: list[dict[str, str]]) -> None:
        try:
            self.answers.put((key, self._endpoint.complete(messages)))
        except BaseException as error:
            self.answers.put((key, error))

    def _receive(self, wait: float | None) -> None:
        """Note what has come within so many seconds; None: wait for an answer."""
        try:
            received = [self.answers.get(timeout=wait)]
        except queue.Empty:
            return
        while not self.answers.empty():
            received.append(self.answers.get())
        for each in received:
            if each is None:
                self.ended = self.ended or Ended.INTERRUPTED
            else:
                self._take(*each)

    def _take(self, key: str, answer: Answer | NoAnswer | BaseException) -> None:
        place, number, most = self._running.pop(key)
        ready = 0.0
        if isinstance(answer, Answer):
            text, model = self._endpoint.hidden(answer.text), self._endpoint.hidden(answer.model)
            more = {"verdict": endpoint.verdict(answer.text), "answer": text, "host": self._settings.host}
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
            self.error, self.ended = self.error or answer, self.ended or Ended.SERVER
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
        if why and self.ended is None:
            self.ended, self.why = Ended.SERVER, why
        if answer.wait is not None:  # for all requests
            self._not_before = max(self._not_before, time.monotonic() + answer.wait)
        doubled = 2.0 ** min(failures - 1, _MOST_DOUBLED)
        return min(settings.backoff_s * doubled, settings.longest_wait_s) * random.uniform(0.5, 1.0)
