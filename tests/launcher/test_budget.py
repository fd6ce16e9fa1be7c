"""The budget is never passed by more than what the attempts that run then still take, whatever fails and wherever."""

from __future__ import annotations

import heapq
import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.execution import costs
from launcher.execution.costs import Rate, Work
from launcher.execution.reconciler import Budget, Interruption, Outcome, Reconciler
from launcher.planning import freeze
from launcher.run import launch_record, lifecycle
from launcher.run.folder import run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import HOUR_S, RESUMABLE, FailureKind, RunState, read_state, write_state
from launcher.schedulers.protocol import Ended
from tests.launcher.experiments import make
from tests.launcher.made import make_run

RETRY = {"exception": 1, "lost": 2, "preempted": None}
KINDS = (None, None, FailureKind.EXCEPTION, FailureKind.LOST, FailureKind.PREEMPTED)
EXPECTED_S, UNITS = 100.0, 4


@dataclass
class Simulated:
    """A scheduler on a clock of its own, whose attempts take a random time and end at random in failure.

    `slots` attempts run at a time. With `queues` it takes any number of runs, and starts those that were preempted
    again by itself, unless the launch is closed: as SLURM does. Otherwise it takes what starts at once: as the pool and
    Ray do.
    """

    multirun: Path
    launch: Launch
    clock: list[float]
    draw: random.Random
    slots: int
    queues: bool
    longest: float
    waiting: list[Path] = field(default_factory=list)
    running: list[tuple[float, int, Path, FailureKind | None, float]] = field(default_factory=list)
    attempts: list[tuple[float, float]] = field(default_factory=list)
    _count: itertools.count = field(default_factory=itertools.count)

    def capacity(self) -> int:
        return 1000 if self.queues else self.slots - len(self.running)

    def submit(self, folder: Path, launch_id: str) -> None:
        self.waiting.append(folder)
        if not self.queues:
            self._start_some()

    def poll(self, timeout: float) -> list[Ended]:
        closed = launch_record.closed(launch_record.path_of(self.multirun, self.launch)).exists()
        if closed:
            left, self.waiting = self.waiting, []
            if left:
                return [Ended(folder, None) for folder in left]
        self._start_some()
        if not self.running:
            return []
        if self.running[0][0] > self.clock[0] + 1:  # the launcher looks before the next attempt ends
            self.clock[0] += min(self.running[0][0] - self.clock[0], self.draw.uniform(1, 20)) / 2
            return []
        end, _, folder, kind, started = heapq.heappop(self.running)
        self.clock[0] = max(self.clock[0], end)
        self.attempts.append((started, self.clock[0]))
        state = read_state(folder)
        if kind is None:
            state = lifecycle.finished(state)
        else:
            state = lifecycle.ended(state, kind, "as drawn", RETRY, progressed=False)
        write_state(folder, state)
        lifecycle.discard_claim(folder)
        if self.queues and kind == FailureKind.PREEMPTED and not closed:
            self.waiting.append(folder)
            return []
        return [Ended(folder, 0)]

    def _start_some(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            folder = self.waiting.pop(0)
            state = read_state(folder)
            owner = lifecycle.acquire(folder, state.attempt + 1)
            write_state(folder, lifecycle.started(state, owner, self.launch.token, 0))
            end = self.clock[0] + self.draw.uniform(0.2, self.longest) * EXPECTED_S
            heapq.heappush(self.running, (end, next(self._count), folder, self.draw.choice(KINDS), self.clock[0]))

    def withdraw(self) -> int:
        return sum(lifecycle.withdraw(folder) for folder in self.waiting)

    def cancel(self, kill: bool = False) -> None:
        raise AssertionError("nobody interrupts this launch")

    def close(self) -> None:
        """Nothing."""


class Silent:
    """A display that shows nothing."""

    def __getattr__(self, name: str):
        return lambda *_: None


def expected(seconds: float, steps: int, units: int) -> Work:
    return Work(Rate(seconds, costs.FILE, 0), steps, 0, units, None)


def launched(tmp_path, monkeypatch, seed, queues, longest) -> tuple[Outcome, Simulated, float]:
    """A launch of twelve runs with a random budget: what became of it, its scheduler, and the budget in seconds."""
    draw, clock, launch = random.Random(seed), [1e9], Launch(retry=RETRY)
    monkeypatch.setattr("time.time", lambda: clock[0])
    monkeypatch.setattr("launcher.execution.reconciler._LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("launcher.files.os.fsync", lambda _: None)
    ids = [f"{number:02d}" for number in range(12)]
    for run_id in ids:
        make_run(tmp_path, run_id, RunState.PLANNED, steps=0)
    launch_record.write(tmp_path, launch)
    slots = draw.randint(1, 4)
    scheduler = Simulated(tmp_path, launch, clock, draw, slots, queues, longest)
    hours = draw.uniform(1, 18) * EXPECTED_S * UNITS / HOUR_S
    budget = Budget(tmp_path, hours, dict.fromkeys(ids, expected(1.0, int(EXPECTED_S), UNITS)), {})
    titles, devices = {run_id: run_id for run_id in ids}, dict.fromkeys(ids, UNITS)
    reconciler = Reconciler(tmp_path, scheduler, Silent(), titles, devices, launch, None, budget)
    return reconciler.run(ids, Interruption()), scheduler, hours * HOUR_S


@pytest.mark.parametrize("queues", [False, True], ids=["pool and Ray", "SLURM"])
@pytest.mark.parametrize("seed", range(25))
def test_the_budget_is_passed_by_no_more_than_the_grace_of_running_attempts(tmp_path, monkeypatch, seed, queues):
    outcome, scheduler, limit = launched(tmp_path, monkeypatch, seed, queues, longest=2.0)
    attempts = scheduler.attempts

    def spent(at: float) -> float:
        return sum(UNITS * max(0.0, min(end, at) - start) for start, end in attempts)

    ends = max(end for _, end in attempts)
    total = spent(ends)
    for start, _ in attempts:
        assert spent(start) < limit, "an attempt started when the budget was used up"
    if total > limit:
        low, high = min(start for start, _ in attempts), ends
        for _ in range(100):
            low, high = (low, (low + high) / 2) if spent((low + high) / 2) >= limit else ((low + high) / 2, high)
        grace = sum(UNITS * (end - max(start, high)) for start, end in attempts if start <= high < end)
        assert total - limit <= grace * (1 + 1e-6)
    states = [read_state(run_folder(tmp_path, f"{number:02d}")) for number in range(12)]
    assert sum(sum(state.device_seconds.values()) for state in states) == pytest.approx(total)
    unfinished = [state.id for state in states if state.state in RESUMABLE]
    assert sorted(outcome.left_out) == unfinished and bool(unfinished) == (outcome.tripped is not None)
    assert all(state.state in (RunState.PLANNED, *RESUMABLE) for state in states if state.id in outcome.left_out)


@pytest.mark.parametrize("seed", range(25))
def test_it_is_not_passed_at_all_where_no_attempt_takes_longer_than_expected(tmp_path, monkeypatch, seed):
    _, scheduler, limit = launched(tmp_path, monkeypatch, seed, queues=False, longest=1.0)
    assert sum(UNITS * (end - start) for start, end in scheduler.attempts) <= limit


def test_what_a_run_has_done_is_not_expected_again(tmp_path):
    make_run(tmp_path, "b", RunState.PLANNED, steps=0)
    budget = Budget(tmp_path, 1.0, {"b": expected(2.0, 100, 3)}, {})
    assert budget.expected("b") == 600
    (run_folder(tmp_path, "b") / "checkpoints/step_000050").mkdir(parents=True)
    assert budget.expected("b") == 300


SMALL = ("method=c0_grpo", "experiment.name=adhoc", "seed=0,1", "trainer.steps=100", "model.seconds_per_step=36")


@pytest.mark.parametrize("hours", [5, 3, 1])
def test_plan_says_whether_the_budget_suffices(tmp_path, capsys, hours, worded):
    words = (*SMALL, f"multirun={tmp_path}")
    planned = make(*words)
    freeze.freeze(planned)
    folder = run_folder(tmp_path, next(iter(planned.runs)))
    write_state(folder, read_state(folder).replace(device_seconds={"1": 1800.0}))
    assert main(["plan", *words, f"budget.device_hours={hours}"]) == 0
    worded(line for line in capsys.readouterr().out.splitlines() if line.startswith("budget"))
    assert main(["plan", *words, f"budget.device_hours={hours}", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["budget_device_hours"], document["spent_device_hours"]) == (hours, 0.5)


@pytest.mark.processes
def test_a_pool_stops_at_the_budget_and_goes_on_with_a_larger_one(sweeps):
    # A run is expected to take 12 s and takes 4.2 s or more, so that 13 s hold one run at least and three at most.
    words = ("method=c0_grpo", "seed=0,1,2,3,4", "trainer.steps=12", "cluster.slots=1", "model.seconds_per_step=1")
    code, output = sweeps.run(*words, f"budget.device_hours={13 / HOUR_S}", STEPS_SECONDS="0.35")
    assert code == 1, output
    states = [state["state"] for state in sweeps.states().values()]
    assert 1 <= states.count("done") <= 3 and states.count("done") + states.count("planned") == 5
    assert f"the budget leaves out c0_grpo {5 - states.count('done')} runs" in output
    assert "to go on: raise the budget and repeat the command: budget.device_hours=" in output
    code, output = sweeps.run(*words, "budget.device_hours=10")
    assert code == 0, output
    assert {state["state"] for state in sweeps.states().values()} == {"done"}
