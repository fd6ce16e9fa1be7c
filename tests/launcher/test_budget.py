"""What a plan costs, and compute: what attempts took, and the budget that is passed by no more than what still runs."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import files
from launcher.execution import costs
from launcher.execution.costs import ARITHMETIC, FILE, GUESS, KIND, METHOD, History, Rate, Work, makespan
from launcher.execution.reconciler import Budget, Interruption, Outcome, Reconciler
from launcher.planning import freeze
from launcher.run import launch_record, lifecycle, stop_request
from launcher.run.folder import run_folder, to_json
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import HOUR_S, RESUMABLE, Claim, FailureKind, RunState, find_state, read_state, write_state
from launcher.schedulers.protocol import Ended
from tests.launcher.experiments import make
from tests.launcher.made import make_plan, make_run

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

    def submit(self, folder: Path) -> None:
        self.waiting.append(folder)
        if not self.queues:
            self._start_some()

    def poll(self, timeout: float) -> list[Ended]:
        closed = launch_record.closed(launch_record.path_of(self.multirun, self.launch)).exists()
        if closed and self.waiting:
            left, self.waiting = self.waiting, []
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
@pytest.mark.parametrize("seed", range(6))
def test_the_budget_is_passed_by_no_more_than_the_grace_of_running_attempts(tmp_path, monkeypatch, seed, queues):
    outcome, scheduler, limit = launched(tmp_path, monkeypatch, seed, queues, longest=2.0)
    attempts = scheduler.attempts

    def spent(at: float) -> float:
        return sum(UNITS * max(0.0, min(end, at) - start) for start, end in attempts)

    for start, _ in attempts:  # what is spent beyond the limit is then the rest of those that were running
        assert spent(start) < limit, "an attempt started when the budget was used up"
    states = [read_state(run_folder(tmp_path, f"{number:02d}")) for number in range(12)]
    assert sum(sum(state.device_seconds.values()) for state in states) == pytest.approx(spent(math.inf))
    unfinished = [state.id for state in states if state.state in RESUMABLE]
    assert sorted(outcome.left_out) == unfinished and bool(unfinished) == (outcome.tripped is not None)
    assert all(state.state in (RunState.PLANNED, *RESUMABLE) for state in states if state.id in outcome.left_out)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_not_passed_at_all_where_no_attempt_takes_longer_than_expected(tmp_path, monkeypatch, seed):
    _, scheduler, limit = launched(tmp_path, monkeypatch, seed, queues=False, longest=1.0)
    assert sum(UNITS * (end - start) for start, end in scheduler.attempts) <= limit


def test_what_a_run_has_done_is_not_expected_again(tmp_path):
    make_run(tmp_path, "b", RunState.PLANNED, steps=0)
    budget = Budget(tmp_path, 1.0, {"b": expected(2.0, 100, 3)}, {})
    assert budget.expected("b") == 600
    (run_folder(tmp_path, "b") / "checkpoints/step_000050").mkdir(parents=True)
    assert budget.expected("b") == 300


SMALL = "method=c0_grpo experiment.name=adhoc seed=0,1 trainer.steps=100 model.seconds_per_step=36"


def test_plan_says_what_attempts_took_and_whether_the_budget_suffices(tmp_path, said, worded):
    planned = make(*SMALL.split(), f"multirun={tmp_path}")
    freeze.freeze(planned)
    folder = run_folder(tmp_path, next(iter(planned.runs)))
    write_state(folder, read_state(folder).replace(device_seconds={"1": 1800.0}))
    plan = f"plan {SMALL} multirun={tmp_path} budget.device_hours="
    for hours in (5, 3, 1):
        lines = said(f"{plan}{hours}").splitlines()
        assert "2 runs, 0 done; their attempts took 0.50 CPU-hours until now" in lines
        worded(line for line in lines if line.startswith("budget"))
    document = json.loads(said(f"{plan}5 --json"))
    assert (document["budget_device_hours"], document["spent_device_hours"]) == (5, 0.5)


def test_the_budget_counts_what_runs_of_earlier_plans_took(tmp_path, said):
    for steps, used in ((100, "0.00"), (50, "0.50"), (25, "1.00")):
        words = [*SMALL.replace("100", str(steps)).split(), f"multirun={tmp_path}", "budget.device_hours=5"]
        assert f"budget: 5 CPU-hours, {used} used; it suffices" in said(f"plan {' '.join(words)}")
        planned = make(*words)
        freeze.freeze(planned)
        folder = run_folder(tmp_path, next(iter(planned.runs)))
        write_state(folder, read_state(folder).replace(device_seconds={"1": 1800.0}))
    assert "5 CPU-hours, 0.50 used" in said(f"plan {' '.join(words).replace('name=adhoc', 'name=other')}")


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


OWNER = Claim("elsewhere", 1, 1, "boot", "token", 1)


@pytest.fixture
def clock(monkeypatch):
    """The time of day, in a list of one number."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def test_each_attempt_counts_with_its_devices_and_how_it_ended(clock):
    state = lifecycle.submitted(lifecycle.created("aa"), "launch", devices=4)
    clock[0] += 500  # it waits in a queue
    state = lifecycle.started(state, OWNER, "launch", 0)
    clock[0] += 10
    state = lifecycle.ended(state, FailureKind.LOST, "gone", {}, progressed=False)
    clock[0] += 100
    state = lifecycle.submitted(state, "launch", devices=2)
    second = Claim("elsewhere", 1, 1, "boot", "token", 2)
    state = lifecycle.started(state, second, "launch", 0)
    clock[0] += 30
    assert lifecycle.running_seconds(state, clock[0]) == 60
    state = lifecycle.finished(state)
    assert state.device_seconds == {"1": 40.0, "2": 60.0} and lifecycle.running_seconds(state, clock[0]) == 0
    assert lifecycle.unfinished_seconds(state.device_seconds, state.attempt, state.state) == 40
    assert lifecycle.unfinished_seconds(state.device_seconds, state.attempt, RunState.FAILED) == 100


def test_a_clock_that_was_set_back_takes_nothing_away(clock):
    state = lifecycle.started(lifecycle.created("aa"), OWNER, None, 0)
    clock[0] -= 500
    assert lifecycle.finished(state).device_seconds == {"1": 0.0}


def test_a_lost_attempt_counts_until_its_last_sign(tmp_path, clock):
    folder = make_run(tmp_path, "aa", RunState.RUNNING, attempt=1, started=1000.0, devices=2)
    for path in folder.iterdir():
        os.utime(path, (1000.0, 1000.0))
    files.write_json(folder / "claim.json", to_json(OWNER))
    os.utime(folder / "claim.json", (1070.0, 1070.0))
    clock[0] = 90_000.0  # somebody looks the next day
    assert lifecycle.spent_seconds(tmp_path, ["aa"], clock[0]) == {"aa": 140.0}
    state = lifecycle.with_lost_attempt(folder, read_state(folder))
    assert state.device_seconds == {"1": 140.0} and state.state == RunState.RUNNING
    later = lifecycle.ended(state, FailureKind.CANCELLED, "enough", {}, progressed=False)
    assert later.device_seconds == {"1": 140.0}, "it was counted before"
    assert lifecycle.with_lost_attempt(folder, later) is later


def test_cancelling_a_dead_run_does_not_count_the_time_since_its_death(tmp_path, clock):
    folder = make_run(tmp_path, "aa", RunState.RUNNING, attempt=1, started=1000.0)
    for path in folder.iterdir():
        os.utime(path, (1030.0, 1030.0))
    clock[0] = 90_000.0
    assert stop_request.cancel(tmp_path, "aa") == "cancelled"
    assert find_state(folder).device_seconds == {"1": 30.0}


def test_archived_attempts_and_unreadable_runs(tmp_path):
    make_run(tmp_path, "aa", RunState.FAILED, attempt=1, device_seconds={"1": 5.0})
    lifecycle.archive(tmp_path, "aa")
    make_run(tmp_path, "aa", RunState.DONE, attempt=1, device_seconds={"1": 7.0})
    lifecycle.archive(tmp_path, "aa")
    make_run(tmp_path, "aa", RunState.DONE, attempt=2, device_seconds={"1": 1.0, "2": 11.0})
    (make_run(tmp_path, "bb", RunState.DONE) / "state.json").write_text("{")
    assert lifecycle.spent_seconds(tmp_path, ["aa", "bb", "cc"], 0.0) == {"aa": 24.0, "bb": 0.0, "cc": 0.0}


def test_status_says_what_was_spent_and_how_much_of_it_on_failures(tmp_path, said):
    make_run(tmp_path, "aa", RunState.DONE, attempt=2, device_seconds={"1": 1800.0, "2": 3600.0})
    make_run(tmp_path, "bb", RunState.FAILED, attempt=1, device_seconds={"1": 900.0})
    running = make_run(tmp_path, "cc", RunState.PLANNED)
    make_plan(tmp_path, "study", {"A": ["aa", "bb"], "B": ["cc", "aa"]})
    line = "compute until now: 1.75 hours, 0.75 of them in attempts that failed or were interrupted"
    assert line in said("status study", tmp_path, code=1).splitlines()
    with lifecycle.locked(running):
        owner = lifecycle.acquire(running, 1)
    write_state(running, lifecycle.started(read_state(running), owner, None, 0))
    started = read_state(running)
    write_state(running, started.replace(started=started.started - 7200))
    study = json.loads(said("status study --json", tmp_path, code=1))["study"]
    assert study["device_hours"] == pytest.approx(3.75, abs=0.1) and study["unfinished_device_hours"] == 0.75


FOUR_RUNS = "method=c0_grpo,ptrw experiment.name=adhoc experiment.baseline=c0_grpo seed=0,1 trainer.steps=10"
#: Bytes of a checkpoint of model=tiny: its weights and their two moments.
OF_TINY = 3 * 4 * 111_808


def finish(planned, run_id, seconds, steps=10):
    """Make a frozen run done, with a summary that says how long its steps took."""
    folder = run_folder(planned.multirun, run_id)
    files.write_json(folder / "summary.json", {"steps": steps, "train_seconds": seconds * steps})
    write_state(folder, read_state(folder).replace(state=RunState.DONE))


def frozen(tmp_path, *arguments):
    planned = make(*FOUR_RUNS.split(), *arguments, f"multirun={tmp_path}")
    freeze.freeze(planned)
    return planned


def rate_of(multirun, *words):
    """What the step of a plan's only run is expected to take by the done runs of other plans."""
    (run,) = make(*words, f"multirun={multirun}").runs.values()
    return History(Path(multirun), {run.id: run}, []).expected(run).rate


def rates(planned):
    """What each run of a plan is expected to take by the states of its runs now, by group and seed."""
    done = [one for one in planned.runs if find_state(run_folder(planned.multirun, one)).state == "done"]
    history = History(planned.multirun, planned.runs, done)
    entries = planned.experiments[0].entries
    return {(entry.group, entry.seed): history.expected(planned.runs[entry.id]).rate for entry in entries}


def cost(planned):
    """What the plan costs by the states of its runs now."""
    return costs.Forecast(planned, lifecycle.find_states(planned.multirun, planned.runs)).estimate(planned.runs)


def test_the_models_file_holds_until_a_run_is_done(tmp_path):
    planned = frozen(tmp_path, "cluster.slots=2")
    assert {*rates(planned).values()} == {Rate(0.15, FILE, 0)}
    found = cost(planned)
    assert found.device_hours == pytest.approx(4 * 10 * 0.15 / 3600)
    assert (found.wall_seconds, found.storage_bytes) == (pytest.approx(3.0), 4 * OF_TINY)


def test_done_runs_correct_it_first_of_the_same_method_then_of_any(tmp_path):
    planned = frozen(tmp_path)
    first, _, third, _ = planned.runs
    finish(planned, first, 2.0)
    found = rates(planned)
    assert (found["c0_grpo", 1], found["ptrw", 1]) == (Rate(2.0, METHOD, 1), Rate(2.0, KIND, 1))
    finish(planned, third, 4.0)
    assert rates(planned)["ptrw", 1] == Rate(4.0, METHOD, 1)
    # Runs of another plan count as the plan's own do; other batches, tasks and models do not.
    assert rate_of(tmp_path, "method=gspo", "trainer.steps=20") == Rate(3.0, KIND, 2)
    for change in ("verl.data.train_batch_size=64", "task=sorting", "model.hidden_size=128"):
        assert rate_of(tmp_path, "method=gspo", change).source == FILE, change


def seconds_of(*words):
    """The seconds of a step that the plan of one run expects, where nothing has been measured."""
    found = rate_of("none", "method=c0_grpo", "cluster=slurm", "model=qwen2_5_0_5b", "task=hh_rlhf", *words)
    assert found.source == ARITHMETIC
    return found.seconds


def test_an_unmeasured_step_is_priced_by_method_precision_server_and_evaluation():
    plain = seconds_of()
    assert seconds_of("method=c0_ppo") > plain  # a critic
    read_target = [seconds_of(f"method={name}") for name in ("off_policy", "q_star")]
    assert min(read_target) > plain  # which reads each token, too
    assert seconds_of("method=dpo") < plain  # trains on two of the four responses to each prompt
    assert seconds_of("trainer.eval_every=10", "trainer.eval_samples=16") > plain
    assert seconds_of("model.resources.device_type=H100") < plain
    ray = seconds_of("trainer=verl_ray")  # bfloat16 on devices
    assert ray < seconds_of("trainer=verl_ray", "trainer.dtype=float32")
    assert seconds_of("model=llama_7b", "trainer=verl_ray") > 20


def test_an_unmeasured_model_without_known_sizes_has_a_guess(tmp_path):
    words = ("method=c0_grpo", "seed=0", "task=gsm8k", "model=pretrained", "model.path=some/name")
    assert rate_of(tmp_path, *words) == Rate(60.0, GUESS, 0)


def test_a_broken_summary_or_folder_teaches_nothing(tmp_path):
    planned = frozen(tmp_path)
    first, second, *_ = planned.runs
    finish(planned, first, 0.0)
    finish(planned, second, 1.0)
    (run_folder(tmp_path, second) / "config.yaml").write_text("[]")
    assert rate_of(tmp_path, "method=gspo", "trainer.steps=10").source == FILE
    (run_folder(tmp_path, first) / "summary.json").write_text("{")
    assert History(tmp_path, planned.runs, [first]).expected(planned.runs[first]).rate.source == FILE


def test_storage_is_that_of_done_runs_with_the_model(tmp_path):
    planned = frozen(tmp_path)
    first, *_ = planned.runs
    finish(planned, first, 1.0)
    folder = run_folder(tmp_path, first)
    (folder / "weights").write_bytes(b"w" * 1_000_000)
    assert cost(planned).storage_bytes == pytest.approx(3e6, rel=0.01)


def test_the_storage_of_a_model_of_which_no_run_is_done_is_that_of_its_checkpoints(tmp_path):
    storage = {}
    large = ("trainer=verl_ray", "task=gsm8k")
    for model, more in (("tiny", ()), ("qwen2_5_7b", large), ("pretrained", (*large, "model.path=some/name"))):
        planned = make("method=c0_grpo", "seed=0", f"model={model}", *more, f"multirun={tmp_path}")
        storage[model] = cost(planned).storage_bytes
    assert storage == {"tiny": 2 * OF_TINY, "qwen2_5_7b": 2 * 3 * 4 * 7_615_616_512, "pretrained": None}


SECONDS = st.lists(st.floats(0, 100), max_size=12)


@given(SECONDS, st.integers(1, 5))
def test_list_scheduling_is_within_its_bounds(seconds, slots):
    found = makespan(seconds, slots)
    longest, total = max(seconds, default=0.0), sum(seconds)
    assert found >= max(longest, total / slots) * (1 - 1e-9)
    assert found <= total / slots + (1 - 1 / slots) * longest + 1e-9


def test_plan_prints_an_object_and_a_screen(tmp_path, said):
    planned = frozen(tmp_path)
    finish(planned, next(iter(planned.runs)), 2.0)
    plan = f"plan {FOUR_RUNS} multirun={tmp_path}"
    found = json.loads(said(f"{plan} --json"))
    assert (found["total"], found["new"], found["done"]) == (4, 0, 1)
    assert found["device_hours"] == pytest.approx(3 * 20 / 3600)
    expected = {"experiment": "adhoc", "group": "c0_grpo", "factors": {}, "seed": 1, "state": "planned"}
    assert found["runs"][1] == {"id": list(planned.runs)[1], **expected}
    assert {one["source"]: one["runs"] for one in found["step_times"]} == {METHOD: 1, KIND: 2}
    groups = found["experiments"]["adhoc"]["groups"]
    assert groups["c0_grpo"]["states"] == {"done": 1, "planned": 1}
    assert sum(group["device_hours"] for group in groups.values()) == pytest.approx(found["device_hours"])
    assert "4 runs, 1 done" in said(plan)
    screen = said(f"{plan} experiment.name=screen trainer.steps=5,6")
    assert "8 runs, 0 done" in screen and "steps: 5, 6" in screen and len(screen.splitlines()) < 20


@pytest.mark.parametrize("cluster", ["slurm", "ray"])
def test_plan_tells_no_wall_time_where_a_queue_decides(cluster, tmp_path, said):
    plan = f"plan {FOUR_RUNS} multirun={tmp_path} cluster={cluster}"
    found = json.loads(said(f"{plan} --json"))
    assert found["device_hours"] > 0 and (found["wall_seconds"], found["slots"]) == (None, None)
    screen = said(plan)
    assert f"CPU-hours, {4 * OF_TINY / 1e6:.1f} MB of storage" in screen
    assert "wall time" not in screen and "at a time" not in screen
    two = json.loads(said(f"{plan} cluster.max_running=2 --json"))
    assert two["slots"] == 2 and two["wall_seconds"] == pytest.approx(found["device_hours"] * 3600 / 2)
