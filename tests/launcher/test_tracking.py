"""Trackers replay the metric log: every step once, with its value, after resumes, crashes and repetitions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import files, tracking
from launcher.run.folder import histograms_path, metrics_path, multirun_of, run_folder
from launcher.run.lifecycle import RunState, State, archive, archive_folder, write_state
from launcher.tracking.settings import Labels, Settings, labels, read_settings
from launcher.worker import attempt as attempts
from tests.launcher.experiments import make
from tests.launcher.live import HISTOGRAM
from tests.launcher.made import make_checkpoint, make_plan, make_run
from tests.launcher.wandb_server import WandbServer
from tests.waiting import DEADLINE, until

ROOT = Path(__file__).parents[2]
RUN = "0123456789abcdef"


@pytest.fixture
def server() -> Iterator[WandbServer]:
    started = WandbServer()
    yield started
    started.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 3 steps of seed 7, as a launcher leaves it."""
    return tracked(tmp_path, RUN, steps=3)


@pytest.mark.parametrize(("written", "read"), [("offline", "none"), ("none", "none"), ("online", "online")])
def test_the_earlier_name_of_a_mode_is_read(written, read):
    assert read_settings({"wandb": written, "project": "p"}) == Settings(wandb=read, project="p")
    planned = make("method=c0_grpo", f"tracking.wandb={written}")
    assert read_settings(planned.tracking).wandb == read


def tracked(multirun: Path, run_id: str, steps: int, state: str = RunState.DONE) -> Path:
    """A run of seed 7 in two experiments, as a launcher leaves it."""
    folder = make_run(multirun, run_id, state, steps=0, attempt=1)
    config = {"format": 1, "id": run_id, "seed": 7, "method": {"name": "grpo"}, "base": "b", "verl": {}}
    (folder / "config.yaml").write_text(files.dump_yaml(config))
    log(folder, range(1, steps + 1))
    ids = [path.name for path in sorted((multirun / "runs").iterdir())]
    for experiment in ("alone", "shared"):
        make_plan(multirun, experiment, {"grpo": ids})
        path = multirun / experiment / "plan.json"
        plan = json.loads(path.read_text())
        files.write_json(path, {**plan, "runs": [{**one, "seed": 7, "factors": {"lr": 0.1}} for one in plan["runs"]]})
    return folder


def log(folder: Path, steps: range, offset: float = 0.0) -> None:
    """Append lines whose value is the step's square plus the offset."""
    with open(metrics_path(folder), "a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "attempt": 1, "time": 1.7e9 + step, "value": step**2 + offset}) + "\n")
    with open(histograms_path(folder), "a") as file:
        for step in (step for step in steps if step % 2 == 0):
            file.write(json.dumps({"step": step, "attempt": 1, "name": "entropy", **HISTOGRAM}) + "\n")


def squares(last: int) -> list[tuple[int, float]]:
    return [(step, step**2) for step in range(1, last + 1)]


def sync(multirun: Path, environment: dict[str, str], *arguments: str) -> tuple[int, Any, str]:
    """`python -m launcher sync --json`: exit code, document, standard error."""
    with started(multirun, environment, "--json", *arguments) as process:
        try:
            said, errors = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:  # Python and, in wandb-core, Go print their stacks: where does it hang?
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGABRT)
            for child in children:
                child.send_signal(signal.SIGQUIT)
            said, errors = process.communicate()
            raise AssertionError(f"sync has not ended after {DEADLINE:g} s:\n{said}\n{errors}") from None
    return process.returncode, json.loads(said) if said else None, errors


def started(multirun: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "launcher", "sync", "--multirun", str(multirun), *arguments],
        cwd=ROOT,
        env=client_environment(environment, multirun),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def client_environment(environment: dict[str, str], home: Path) -> dict[str, str]:
    """Without what this machine's user has of W&B."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    return {**clean, "HOME": str(home), "NETRC": str(home / "netrc"), **environment}


# ---------------------------------------------------------------- rows


def test_rows_join_histograms_and_leave_torn_lines_out(folder: Path) -> None:
    with open(metrics_path(folder), "a") as file:
        file.write('{"step": 4, "val')
    rows = list(tracking.rows(folder))
    assert [(row.step, row.metrics) for row in rows] == [(step, {"value": value}) for step, value in squares(3)]
    assert [set(row.histograms) for row in rows] == [set(), {"entropy"}, set()]
    assert rows[1].histograms["entropy"].counts == [3, 4] and rows[0].time == 1.7e9 + 1


def test_rows_stop_where_they_are_told(folder: Path) -> None:
    until = tracking.extent(folder)
    log(folder, range(4, 6))
    assert [row.step for row in tracking.rows(folder, until)] == [1, 2, 3]
    assert [row.step for row in tracking.rows(folder)] == [1, 2, 3, 4, 5]


def test_labels_name_every_experiment_that_shares_a_run(folder: Path) -> None:
    found = labels(multirun_of(folder))[RUN]
    assert found == Labels("alone", "grpo", "grpo lr=0.1 seed 7", ("alone/grpo", "shared/grpo"))


# ---------------------------------------------------------------- TensorBoard


def scalars(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    read.Reload()
    assert read.Tags()["histograms"] == ["entropy"]
    assert [event.step for event in read.Histograms("entropy")] == [
        event.step for event in read.Scalars("value") if event.step % 2 == 0
    ]
    return [(event.step, event.value) for event in read.Scalars("value")]


def test_tensorboard_has_every_step_once_after_a_resume(tmp_path: Path) -> None:
    folder = tracked(tmp_path, RUN, steps=0, state=RunState.RUNNING)
    first = tracking.start(folder, {}, 1, {"tensorboard": True})
    for step in range(1, 6):
        offset = 0.5 if step > 3 else 0.0
        log(folder, range(step, step + 1), offset)
        first.log(step, {"value": step**2 + offset})
    first.close(RunState.LOST)
    make_checkpoint(folder, 3)
    attempts.prepare(folder, 2)
    second = tracking.start(folder, {}, 2, {"tensorboard": True})
    for step in range(4, 7):
        log(folder, range(step, step + 1))
        second.log(step, {"value": float(step**2)})
        if step % 2 == 0:
            second.histogram(step, "entropy", **HISTOGRAM)
    second.close(RunState.DONE)
    assert scalars(folder) == squares(6)
    assert len(list((folder / "tensorboard").iterdir())) == 1  # what was superseded is not on the disk either


# ---------------------------------------------------------------- W&B: sync


def test_sync_sends_every_step_once_with_its_labels_and_configuration(folder: Path, server: WandbServer) -> None:
    # with this seed, wandb takes the other settings of a run before its mode
    another = {"WANDB_MODE": "offline", "PYTHONHASHSEED": "5"}
    code, document, errors = sync(multirun_of(folder), {**server.environment, **another})
    assert (code, list(document["sent"])) == (0, [RUN]), (errors, document)
    run = server.runs[RUN]
    assert run.column("value") == squares(3)
    assert run.column("entropy") == [(2, {"_type": "histogram", "values": [3, 4], "bins": [0.0, 1.0, 2.0]})]
    assert [row["_timestamp"] for row in run.rows()] == [1.7e9 + step for step in (1, 2, 3)]
    assert run.exit_code == 0
    named = [run.variables[key] for key in ("project", "groupName", "jobType", "displayName", "tags")]
    assert named == ["rlsweep", "alone", "grpo", "grpo lr=0.1 seed 7", ["alone/grpo", "shared/grpo"]]
    assert json.loads(run.variables["config"])["method"]["value"] == {"name": "grpo"}


@pytest.mark.processes
def test_a_run_that_was_archived_and_run_anew_is_another_run_there(folder: Path, server: WandbServer) -> None:
    multirun = multirun_of(folder)
    sync(multirun, server.environment)
    assert archive(multirun, RUN) is not None
    again = tracked(multirun, RUN, steps=2)
    assert list(sync(multirun, server.environment)[1]["sent"]) == [RUN]
    shutil.rmtree(archive_folder(multirun))  # which does not change the id
    log(again, range(3, 5))
    sync(multirun, server.environment)
    assert server.runs[RUN].column("value") == squares(3)
    assert server.runs[f"{RUN}-2"].column("value") == squares(4)


@pytest.mark.processes  # five processes, one after another
def test_sync_sends_only_what_the_server_has_not(folder: Path, server: WandbServer) -> None:
    multirun = multirun_of(folder)
    failed = tracked(multirun, "fedcba9876543210", steps=4, state=RunState.FAILED)
    make_checkpoint(failed, 2)
    tracked(multirun, "aaaaaaaaaaaaaaaa", steps=2, state=RunState.PREEMPTED)
    assert sync(multirun, server.environment, RUN)[1]["sent"].keys() == {RUN}
    before = len(server.requests)
    again = {"server": server.url, "sent": {}, "failed": {}, "unchanged": 1, "left": 0}
    assert sync(multirun, server.environment, RUN)[1] == again
    assert len(server.requests) == before  # not even asked
    _, document, _ = sync(multirun, server.environment, "alone")
    assert (list(document["sent"]), document["unchanged"]) == (["fedcba9876543210"], 1)
    assert server.runs["fedcba9876543210"].exit_code == 1
    assert server.runs["fedcba9876543210"].column("value") == squares(2)  # a retry would compute the others again
    (folder / "synced.json").unlink()
    assert sync(multirun, server.environment)[1]["sent"].keys() == {RUN}
    assert server.runs[RUN].column("value") == squares(3)


@pytest.mark.processes
def test_an_upload_that_the_server_refuses_is_told_and_made_good(tmp_path: Path, server: WandbServer) -> None:
    tracked(tmp_path, RUN, steps=400)
    server.break_after = 100
    code, document, _ = sync(tmp_path, server.environment)
    assert code == 1 and "refused" in document["failed"][RUN]
    assert not (run_folder(tmp_path, RUN) / "synced.json").exists()
    server.break_after = None
    assert sync(tmp_path, server.environment)[0] == 0
    assert server.runs[RUN].column("value") == squares(400)


@pytest.mark.processes
def test_a_sync_killed_in_the_middle_is_made_good_by_the_next(tmp_path: Path, server: WandbServer) -> None:
    tracked(tmp_path, RUN, steps=400)
    server.stall = True
    process = started(tmp_path, server.environment)
    try:
        until(lambda: RUN in server.runs and server.runs[RUN].history)
    finally:
        process.kill()
        process.wait()  # its service may still hold the pipes
    there = len(server.runs[RUN].history)
    assert 0 < there < 400 and server.runs[RUN].exit_code is None
    server.stall = False
    assert sync(tmp_path, server.environment)[0] == 0
    assert server.runs[RUN].column("value") == squares(400)


@pytest.mark.processes  # waits for answers that do not come
def test_without_a_server_or_a_key_sync_says_what_to_do(folder: Path) -> None:
    multirun = multirun_of(folder)
    nobody = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_HTTP_TIMEOUT": "2"}
    code, document, _ = sync(multirun, nobody)
    assert code == 1 and document["left"] == 1
    assert "http://127.0.0.1:9" in document["error"] and "WANDB_BASE_URL" in document["error"]
    code, document, _ = sync(multirun, {"WANDB_BASE_URL": "http://127.0.0.1:9"})
    assert code == 1 and "no credentials" in document["error"] and "wandb login" in document["error"]
    assert [row.step for row in tracking.rows(folder)] == [1, 2, 3]


@pytest.mark.processes  # as long as the service is given
def test_a_service_of_wandb_that_does_not_end_holds_up_nobody(tmp_path: Path, server: WandbServer) -> None:
    program = """
import psutil
from launcher.tracking import wandb
wandb.check_credentials()
(service,) = [child for child in psutil.Process().children() if child.name() == wandb.SERVICE]
service.suspend()
print(service.pid)
"""
    environment = client_environment(server.environment, tmp_path)
    pid = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environment, timeout=DEADLINE)
    assert not psutil.pid_exists(int(pid))


# ---------------------------------------------------------------- W&B: while running


def live(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.launcher.live", str(folder), *arguments],
        cwd=ROOT,
        env=client_environment(environment, folder),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.processes
@pytest.mark.parametrize("end", [RunState.PREEMPTED, "killed"])
def test_online_has_every_step_once_after_a_resume(tmp_path: Path, server: WandbServer, end: str) -> None:
    folder = tracked(tmp_path, RUN, steps=0, state=RunState.RUNNING)
    first = live(folder, server.environment, "1", "5", end)
    until(lambda: RUN in server.runs and len(server.runs[RUN].history) >= 4)
    first.communicate(timeout=DEADLINE)
    assert server.runs[RUN].column("value") == squares(4) and len(list(tracking.rows(folder))) == 5
    second = live(folder, server.environment, "2", "7", RunState.DONE)
    _, errors = second.communicate(timeout=DEADLINE)
    assert (second.returncode, server.runs[RUN].exit_code) == (0, 0), errors
    assert server.runs[RUN].column("value") == squares(7)
    assert [step for step, _ in server.runs[RUN].column("entropy")] == [2, 4, 6]
    assert server.runs[RUN].variables["project"] == "live"
    assert scalars(folder) == squares(7)
    write_state(folder, State(RUN, RunState.DONE, attempt=2))
    code, document, _ = sync(tmp_path, server.environment)  # to the same place, where nothing is missing
    assert (code, list(document["sent"])) == (0, [RUN])
    assert server.runs[RUN].column("value") == squares(7)


def test_a_tracker_that_fails_says_so_once_and_the_others_go_on(tmp_path: Path) -> None:
    folder = tracked(tmp_path, RUN, steps=0, state=RunState.RUNNING)
    done = live(folder, {"WANDB_BASE_URL": "http://127.0.0.1:9"}, "1", "5", RunState.DONE)
    _, errors = done.communicate(timeout=DEADLINE)
    assert done.returncode == 0
    assert errors.count("tracking: W&B:") == 1 and "no credentials" in errors and "launcher sync" in errors
    assert scalars(folder) == squares(5)


def test_settings_that_cannot_be_kept_do_not_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = tracking.start(tmp_path / "gone", {}, 1, {"tensorboard": True})
    tracker.log(1, {"value": 1.0})
    tracker.histogram(1, "entropy", **HISTOGRAM)
    tracker.close(RunState.FAILED)
    assert capsys.readouterr().err.count("tracking:") == 1
