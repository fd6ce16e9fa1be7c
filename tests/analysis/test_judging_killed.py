"""A client that is killed, and a server that is restarted: no pair is judged twice, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analysis.data.sweep import read_sweep
from analysis.judging import journal
from analysis.judging.results import State, judged
from tests.analysis.conftest import ANALYSIS, MakeSweep
from tests.analysis.judge_server import USAGE, serving
from tests.analysis.test_judging import LENGTHS, write_responses
from tests.waiting import until

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
REQUESTS = 36  # that the pairs of LENGTHS need


@pytest.fixture
def folder(make_sweep: MakeSweep) -> Path:
    analysis = {**ANALYSIS, "metrics": [], "time_to": []}
    made = make_sweep(groups=("C0", "C1", "PTRW"), seeds=(0, 1), steps=8, analysis=analysis)
    write_responses(made, LENGTHS)
    return made


def client(folder: Path, url: str, *words: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """The program as a user starts it."""
    settings = [f"judge.base_url={url}", "judge.model=m", "judge.backoff_s=0.01", *words]
    command = [sys.executable, "-m", "analysis", "judge", str(folder), *settings]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=stderr)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (file,) = (folder.parent / "verdicts").iterdir()
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def check_all_judged_once(folder: Path) -> journal.Content:
    verdicts = Counter(line["key"] for line in lines_of(folder) if line["event"] == "answered")
    assert len(verdicts) == REQUESTS and set(verdicts.values()) == {1}
    (one,) = judged(read_sweep(folder))
    assert one.count(State.OPEN) == one.count(State.UNREADABLE) == 0
    (file,) = (folder.parent / "verdicts").iterdir()
    return journal.read(file)


def test_a_client_that_is_killed_goes_on_and_asks_only_for_what_it_never_heard(folder: Path) -> None:
    clients: list[subprocess.Popen[bytes]] = []
    kills = {5, 17, 30}

    def script(count: int, body: dict[str, Any]) -> str | None:
        if count in kills:
            os.kill(clients[-1].pid, signal.SIGKILL)
            clients[-1].wait()
        return None

    with serving(script) as server:
        while not clients or clients[-1].wait() == -signal.SIGKILL:
            clients.append(client(folder, server.url))
        assert clients[-1].returncode == 0 and len(clients) == 1 + len(kills)
        content = check_all_judged_once(folder)
        # Each kill lost at most the requests under way, and all of them are known.
        assert REQUESTS < len(server.requests) <= REQUESTS + len(content.open)
        assert len(content.open) <= 4 * len(kills)
        counted = sum(USAGE.values())
        assert content.tokens(folder.name).all >= counted * len(server.requests)


def test_a_server_that_is_restarted_is_waited_for(folder: Path) -> None:
    with serving() as server:
        asking = client(folder, server.url, "judge.retries=1000", "judge.longest_wait_s=0.1")
        until(lambda: len(server.requests) >= 9)
    with serving(port=int(server.url.rpartition(":")[2])) as again:
        assert asking.wait() == 0
        content = check_all_judged_once(folder)
        asked = len(server.requests) + len(again.requests)
        assert again.requests and REQUESTS <= asked <= REQUESTS + len(content.open)


def test_an_interrupted_client_waits_for_the_answers_under_way(folder: Path) -> None:
    clients: list[subprocess.Popen[bytes]] = []
    heard: list[bytes] = []

    def script(count: int, body: dict[str, Any]) -> str | None:
        if count == 9:
            clients[0].send_signal(signal.SIGINT)
            assert clients[0].stderr is not None
            heard.append(clients[0].stderr.readline())  # until then the server answers nobody
        return None

    with serving(script) as server:
        clients.append(client(folder, server.url, stderr=subprocess.PIPE))
        assert clients[0].wait() == 130
        assert heard == [b"waiting for the answers under way; Ctrl-C again does not wait\n"]
        (file,) = (folder.parent / "verdicts").iterdir()
        content = journal.read(file)
        assert content.open == {} and 9 <= len(server.requests) <= 9 + 4
        assert client(folder, server.url).wait() == 0
        check_all_judged_once(folder)
        assert len(server.requests) == REQUESTS
