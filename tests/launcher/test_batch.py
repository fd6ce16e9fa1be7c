"""A batch system's general part: adoption, throttling, bad nodes, orphans, and jobs that others cancel; on a fake."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.application import Shape
from launcher.errors import InvalidPlan
from launcher.execution import checks, sweep
from launcher.planning import planner
from launcher.run import launch_record
from launcher.run.folder import run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.schedulers.batch import cluster
from launcher.schedulers.batch import scheduler as batch_scheduler
from launcher.schedulers.batch.scheduler import BatchScheduler
from launcher.schedulers.batch.system import Phase, Refusal, Refused, Unanswered
from launcher.schedulers.protocol import SchedulerError
from tests import registered
from tests.launcher import fake_batch
from tests.launcher.batch_conformance import *  # noqa: F403
from tests.launcher.batch_conformance import Batch
from tests.launcher.conftest import ROOT
from tests.launcher.made import make_run
from tests.waiting import until

SETTINGS = {"poll_s": 0, "max_running": None, "setup": []}
SHAPE = Shape(time_s=60)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    """A fake system without jobs."""
    monkeypatch.setattr(fake_batch, "table", {})
    yield fake_batch
    for entry in fake_batch.table.values():
        fake_batch.cancel({entry.job.id: entry.job.name}, waiting=False)


@pytest.fixture
def batch(fake, tmp_path: Path) -> Batch:
    return Batch(fake, SHAPE, SETTINGS, {"shape": Shape(cpus=1000)}, tmp_path, pause=0.1)


class Held:
    """A system whose jobs do what a test says. `refusing`: what `submit` raises; `takes`: whether it takes the jobs."""

    NAME, PROGRAM = "Held", "nothing"

    def __init__(self) -> None:
        self.table, self.arrays, self.cancelled = {}, [], []
        self.refusing: Exception | None = None
        self.takes = True
        self.room = 1000
        self.away = False

    def submit(self, array):
        ids = [f"{len(self.arrays)}_{index}" for index in range(array.size)]
        if array.size > self.room - len(self.table):
            raise Refused("MaxSubmitJobs", Refusal.TOO_MANY)
        if self.refusing is None or isinstance(self.refusing, Unanswered):
            self.arrays.append(array)
            if self.takes:
                jobs = [fake_batch.Job(id, array.name, place, Phase.WAITING) for place, id in enumerate(ids)]
                self.table.update({job.id: job for job in jobs})
        if self.refusing is not None:
            raise self.refusing
        return ids

    def jobs(self, prefix):
        return None if self.away else dict(self.table)

    def ended(self, names):
        return {}

    def cancel(self, names, waiting):
        self.cancelled.append((names, waiting))
        if self.room < 1000:
            self.table = {id: job for id, job in self.table.items() if id not in names}

    def show(self, id, **more):
        self.table[id] = replace(self.table[id], **more)


class Launched:
    """A launch on a system, of runs `r0` and so on; each run's shape is `shapes`' or SHAPE."""

    def __init__(self, multirun: Path, system, count: int, shapes=None, **settings) -> None:
        self.launch = Launch()
        self.record = launch_record.write(multirun, self.launch)
        self.folders = [run_folder(multirun, f"a{place}") for place in range(count)]
        for folder in self.folders:
            if not folder.exists():
                make_run(multirun, folder.name, RunState.SUBMITTED, steps=0, launch_id=self.launch.token)
        shape_of = {folder.name: (shapes or {}).get(folder.name, SHAPE) for folder in self.folders}
        settings = {**SETTINGS, **settings}
        self.scheduler = BatchScheduler(system, self.record, settings, shape_of, multirun, 10)
        for folder in self.folders:
            self.scheduler.submit(folder)

    def poll(self):
        return self.scheduler.poll(0)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def adopting(tmp_path: Path, held: Held) -> Launched:
    """A launch of one run, whose job 0_0 a launcher that is gone submitted."""
    earlier = Launched(tmp_path, held, 1)
    assert earlier.poll() == [] and earlier.scheduler.jobs == ["0"]
    return Launched(tmp_path, held, 1)


def test_a_job_of_an_earlier_launch_is_adopted(adopting, held, capsys):
    assert adopting.poll() == [] and adopting.scheduler.jobs == ["0"] and len(held.arrays) == 1
    assert "a0 is already job 0_0 of launch" in capsys.readouterr().err
    runs = {"a0": adopting.launch.token, "a1": adopting.launch.token, "a2": "another", "a3": None}
    assert launch_record.jobs_of(adopting.record.parent.parent, runs) == {"a0": "0_0"}


def test_a_job_that_is_just_ending_is_neither_adopted_nor_doubled(adopting, held):
    held.show("0_0", phase=Phase.ENDING)
    assert adopting.poll() == [] and adopting.scheduler.jobs == []
    held.show("0_0", phase=Phase.WAITING)
    assert adopting.poll() == [] and adopting.scheduler.jobs == ["0"]


def test_a_waiting_job_of_a_closed_launch_is_cancelled_and_its_run_submitted_again(adopting, held):
    token = held.arrays[0].name.split("-")[1]
    launch_record.closed(adopting.record.with_name(f"{token}.json")).touch()
    adopting.poll()
    assert held.cancelled == [({"0_0": held.arrays[0].name}, True)] and adopting.scheduler.jobs == ["1"]


def test_a_job_that_has_only_the_same_id_is_neither_believed_nor_cancelled(adopting, held):
    adopting.poll()
    held.show("0_0", phase=Phase.FAILED, name="rlsweep-0123-0")
    assert adopting.poll() == []
    (ended,) = adopting.poll()
    assert ended.failure_kind == "revoked" and ended.message == "its job 0_0 was cancelled before it began"
    assert held.cancelled == []


def test_jobs_that_were_accepted_without_an_answer_are_adopted(tmp_path, held, capsys):
    held.refusing = Unanswered("it did not return")
    launched = Launched(tmp_path, held, 2)
    assert launched.poll() == [] and launched.scheduler.jobs == ["0"] and len(held.arrays) == 1
    held.refusing = None
    launched.poll()
    assert len(held.arrays) == 1
    assert "it did not return; its jobs that are in the queue are adopted" in capsys.readouterr().err


def test_slots_are_shared_between_arrays_and_freed_by_jobs_that_end(tmp_path, held):
    launched = Launched(tmp_path, held, 5, {"a4": Shape(cpus=2, time_s=60)}, max_running=3)
    launched.poll()
    assert [(array.size, array.throttle) for array in held.arrays] == [(4, 2), (1, 1)]
    more = Launched(tmp_path / "m", held, 3, {"a2": Shape(cpus=2, time_s=60)}, max_running=1)
    more.poll()
    assert [(array.size, array.throttle) for array in held.arrays[2:]] == [(2, 1)]
    for id in ("2_0", "2_1"):
        held.show(id, phase=Phase.ENDED)
    more.poll()
    more.poll()
    assert [(array.size, array.throttle) for array in held.arrays[3:]] == [(1, 1)]


def test_a_node_on_which_jobs_fail_before_they_begin_is_left_out_of_later_arrays(tmp_path, held):
    launched = Launched(tmp_path, held, 3)
    launched.poll()
    for place, node in enumerate(("n1", "n2", "n3")):
        held.show(f"0_{place}", phase=Phase.FAILED, node=node)
    ended = launched.poll()
    assert [end.failure_kind for end in ended] == ["node_failure", "node_failure", "lost"]
    log = f"{tmp_path}/launches/{launched.launch.token}/jobs/0_0.log"
    assert f"on n1 before the run began; see {log}" in ended[0].message
    launched.scheduler.submit(launched.folders[0])
    launched.poll()
    assert held.arrays[-1].exclude == {"n1", "n2", "n3"}


def test_a_failure_on_an_excluded_node_or_without_one_is_a_loss_so_that_the_attempts_end(tmp_path, held):
    launched = Launched(tmp_path, held, 1)
    kinds = []
    for number, node in enumerate(("n1", "n1", "")):
        launched.poll()
        held.show(f"{number}_0", phase=Phase.FAILED, node=node)
        kinds += [end.failure_kind for end in launched.poll()]
        launched.scheduler.submit(launched.folders[0])
    assert kinds == ["node_failure", "lost", "lost"]


@pytest.mark.parametrize(
    ("shown", "kind", "message"),
    [
        ({"phase": Phase.ENDED, "failure_kind": "revoked", "state": "qdel"}, "revoked", "job 0_0 was cancelled (qdel)"),
        ({"phase": Phase.ENDED, "state": "DONE", "node": "n1"}, "lost", "Held reports DONE for its job 0_0 on n1, and"),
        ({"phase": Phase.STUCK, "failure_kind": "node_failure", "state": "H"}, "node_failure", "reports H"),
    ],
)
def test_the_system_says_how_a_job_ended_whose_run_says_nothing(tmp_path, held, shown, kind, message):
    launched = Launched(tmp_path, held, 1)
    launched.poll()
    held.show("0_0", **shown)
    (ended,) = launched.poll()
    assert ended.failure_kind == kind and message in ended.message
    assert (held.cancelled != []) == (shown["phase"] == Phase.STUCK)


def test_a_system_that_does_not_answer_ends_nothing_and_is_asked_again(tmp_path, held, capsys):
    held.away = True
    launched = Launched(tmp_path, held, 1)
    assert launched.poll() == launched.poll() == [] and held.arrays == []
    held.away = False
    assert launched.poll() == [] and launched.scheduler.jobs == ["0"]
    said = capsys.readouterr().err
    assert said.count("Held does not answer; the runs continue, and submission waits for it") == 1
    assert said.count("Held answers again") == 1


def test_the_reason_is_said_once_for_which_jobs_do_not_start_by_themselves(tmp_path, held, capsys):
    launched = Launched(tmp_path, held, 2)
    launched.poll()
    for id in ("0_0", "0_1"):
        held.show(id, phase=Phase.HELD, state="PENDING (JobHeldUser)")
    assert launched.poll() == launched.poll() == []
    said = capsys.readouterr().err
    assert said.count("by itself") == 1 and "Held does not start job 0_0 by itself: PENDING (JobHeldUser)" in said


def test_a_limit_on_jobs_is_waited_for_with_smaller_arrays(tmp_path, held, capsys):
    held.refusing = Refused("QOSMaxSubmitJobPerUserLimit", Refusal.TOO_MANY)
    launched = Launched(tmp_path, held, 4)
    launched.poll()
    held.refusing = None
    launched.poll()
    assert [array.size for array in held.arrays] == [2, 2]
    assert "Held accepts no more jobs now (QOSMaxSubmitJobPerUserLimit); the other runs wait" in capsys.readouterr().err


@pytest.mark.parametrize("refusal", [Refusal.TOO_MANY, Refusal.LIMIT, Refusal.NEVER])
def test_a_single_run_is_refused_for_good_only_by_a_limit_that_no_other_job_lifts(tmp_path, held, monkeypatch, refusal):
    """A system may count a job for some seconds after its run has ended: a last job's refusal may be temporary."""
    held.refusing = Refused("WallLimit", refusal)
    now = [1000.0]
    monkeypatch.setattr(batch_scheduler.time, "monotonic", lambda: now[0])
    launched = Launched(tmp_path, held, 1)
    if refusal != Refusal.NEVER:
        assert launched.poll() == []
        now[0] += 59
        assert launched.poll() == []
        now[0] += 2
    if refusal == Refusal.TOO_MANY:
        assert launched.poll() == [] and launched.scheduler.withdraw_collected() == 1
    else:
        with pytest.raises(SchedulerError, match=r"refused.*WallLimit"):
            launched.poll()
    assert read_state(launched.folders[0]).state == RunState.PLANNED


def test_a_closed_launch_does_not_wait_for_runs_that_it_will_not_start(tmp_path, held):
    launched = Launched(tmp_path, held, 3)
    launched.poll()
    for place, state in ((1, RunState.PREEMPTED), (2, RunState.RUNNING)):
        write_state(launched.folders[place], read_state(launched.folders[place]).replace(state=state))
    assert launched.scheduler.withdraw() == 1, "a preempted run goes on, unless the launch is closed"
    launch_record.closed(launched.record).touch()
    launched.scheduler.withdraw()
    assert [sorted(names) for names, _ in held.cancelled] == [["0_0"], ["0_0", "0_1"]]
    assert [ended.folder.name for ended in launched.poll()] == ["a0", "a1"]


@pytest.mark.parametrize("how", ["cancel", "withdraw"])
def test_a_run_comes_back_once_whether_it_runs_or_waits_in_the_queue_or_for_its_submission(tmp_path, held, how):
    launched = Launched(tmp_path, held, 3, {"a2": Shape(cpus=2, time_s=60)}, max_running=1)
    launched.poll()
    assert [array.size for array in held.arrays] == [2]
    write_state(launched.folders[0], read_state(launched.folders[0]).replace(state=RunState.RUNNING))
    getattr(launched.scheduler, how)()
    for place in (0, 1):
        held.show(f"0_{place}", phase=Phase.ENDED)
    ended = [ended.folder.name for _ in range(3) for ended in launched.poll()]
    assert sorted(ended) == ["a0", "a1", "a2"]
    assert [read_state(folder).state for folder in launched.folders[1:]] == [RunState.PLANNED] * 2


@pytest.mark.parametrize(("room", "left", "more"), [(4, 3, 0), (3, 2, 1), (2, 1, 2), (1, 1, -1)])
def test_a_detached_launch_submits_what_a_limit_leaves_beside_the_job_of_its_report(
    tmp_path, held, monkeypatch, room, left, more
):
    monkeypatch.setattr(cluster, "_PAUSE_S", 0)
    held.room = room
    launched = Launched(tmp_path, held, 3)
    order = SimpleNamespace(plan=SimpleNamespace(experiments=(), multirun=tmp_path, cluster=SETTINGS))

    def detach():
        return cluster._detach(launched.scheduler, held, order, tmp_path / "code", cluster.REPORT)

    if more < 0:
        with pytest.raises(SchedulerError, match="the runs are in the queue, but Held refused their report: MaxSubmit"):
            detach()
    else:
        said = detach()
        assert (f"Held did not accept {more} run" if more else "report follows them") in said
        assert held.arrays[-1].name == "rlsweep-report" and len(held.table) == room
    states = [read_state(folder).state for folder in launched.folders]
    assert (states.count(RunState.SUBMITTED), states.count(RunState.PLANNED)) == (left, 3 - left)


def failing(*_):
    raise OSError(111, "Connection refused")


@pytest.mark.parametrize(
    ("function", "does", "said"),
    [
        (
            "submit",
            failing,
            r"^Held\.submit failed: ConnectionRefusedError: .*; .*test_batch.py:\d+ in failing; jobs submitted before",
        ),
        ("submit", lambda: None, r"failed: TypeError: .*takes 0 positional arguments but 1 was given; jobs submitted"),
        *(("submit", lambda _, ids=ids: ids, r"not 2 texts; jobs submitted") for ids in (None, [1, 2], ["1"], "12")),
        ("submit", lambda _: ["1", "1"], "not 2 texts"),
        ("jobs", failing, "Connection refused"),
        ("jobs", Held().submit, "'str' object has no attribute 'size'"),
        ("cancel", failing, "Connection refused"),
        ("ended", failing, "Connection refused"),
    ],
)
def test_a_system_that_fails_is_named_with_the_place_and_runs_wait_for_the_next_launch(
    tmp_path, held, monkeypatch, function, does, said
):
    monkeypatch.setattr(held, function, does)
    launched = Launched(tmp_path, held, 2)
    with pytest.raises(SchedulerError, match=said):
        launched.poll()
        if function == "cancel":
            launched.scheduler.cancel()
        held.table.clear()
        launched.poll(), launched.poll()
    again = Launched(tmp_path, Held(), 2)
    assert again.poll() == [] and again.scheduler.jobs == ["0"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, fake_package, with the scheduler `fake`; its folder."""
    package = tmp_path / "site/fake_package"
    (package / "conf/cluster").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "conf/cluster/fake.yaml").write_text(fake_batch.CONF)
    (package / "scheduler.py").write_text("from tests.launcher.fake_batch import *\n")
    about = tmp_path / "site/fake_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[rlsweep.schedulers]\nfake = fake_package.scheduler\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with registered.other_packages():
        yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "fake_package"]:
        del sys.modules[name]


#: What is wrong with a scheduler: its file, what follows its text, or stands in its place, and what is said.
WRONG = [
    ("scheduler.py", "del NAME, PROGRAM", "cannot be used: AttributeError: it lacks NAME, PROGRAM"),
    ("scheduler.py", "del check_here", "it lacks check_here"),
    ("scheduler.py", "del Settings", "module 'fake_package.scheduler' has no attribute 'Settings'"),
    ("scheduler.py", "Settings = 3", "cannot be used: TypeError: issubclass"),
    ("scheduler.py", "import does_not_exist", "No module named 'does_not_exist'"),
    ("scheduler.py", "def x(:", r"SyntaxError: invalid syntax \(scheduler.py, line 2\)"),
    ("scheduler.py", "raise SystemExit(0)", "cannot be used: SystemExit: 0"),
    ("conf/cluster/fake.yaml", "colour: red", r"cluster.colour = red: no such key. Fix: remove it, or use one of"),
    (
        "../fake_package-1.dist-info/entry_points.txt",
        "[rlsweep.schedulers]\nfake = fake_package.schedulr\n",
        "schedulr",
    ),
    (
        "../fake_package-1.dist-info/entry_points.txt",
        "[rlsweep.schedulers]\nfake = fake_package.scheduler:Settings\n",
        "fake-package: entry point fake = fake_package.scheduler:Settings: cannot be used: .*Settings",
    ),
    (
        "../other-1.dist-info/entry_points.txt",
        "[rlsweep.schedulers]\nfake = other\n",
        "conf/cluster/fake.yaml: cluster.name = fake: registered twice, by .*. Fix: rename one",
    ),
]
PLANNED = ["experiment.name=adhoc", "method=c0_grpo", "cluster=fake"]


@pytest.mark.parametrize(("file", "text", "said"), WRONG)
def test_a_scheduler_of_another_package_with_a_mistake_is_refused_with_its_name(package, file, text, said):
    path = package / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if "info" in file else f"{path.read_text()}{text}\n")
    (path.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n") if "other" in file else 0
    with pytest.raises(InvalidPlan, match=said) as refused:
        planner.make(ROOT, PLANNED)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("function", ["check_here", "check", "start"])
def test_what_a_scheduler_of_another_package_raises_is_told_with_its_place(package, tmp_path, function):
    with open(package / "scheduler.py", "a") as file:
        file.write(f"def {function}(*_):\n    1 / 0\n")
    planned = planner.make(ROOT, [*PLANNED, f"multirun={tmp_path}/m"])
    said = f"fake_package.scheduler.{function} failed: ZeroDivisionError: division by zero; {package}/scheduler.py:3"
    if function == "check_here":
        with pytest.raises(SchedulerError, match=said):
            checks.refuse_dry(planned)
    else:
        assert (sweep.launch(ROOT, planned, list(planned.runs)).tripped or "").startswith(said)


@pytest.mark.processes
def test_a_scheduler_of_another_package_runs_a_sweep(fake, package, tmp_path):
    """It brings an entry point and a file of conf/cluster, and nothing of this project names it."""
    words = [*PLANNED, "seed=0,1,2", "trainer.steps=3"]
    planned = planner.make(ROOT, [*words, f"multirun={tmp_path}/m"])
    outcome = sweep.launch(ROOT, planned, list(planned.runs), "tests.launcher.steps:train")
    assert [state.state for state in outcome.states.values()] == [RunState.DONE] * 3
    until(lambda: [job.phase for job in fake.jobs("rlsweep-").values()] == [Phase.ENDED] * 3)
