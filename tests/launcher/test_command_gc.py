"""gc: what it offers to delete, what it never touches, and that it looks again before it deletes."""

from __future__ import annotations

import json
import os
import time

import pytest

from launcher.commands import gc as command
from launcher.commands.gc import Policy
from launcher.planning import freeze
from launcher.run import lifecycle
from launcher.run.folder import checkpoints, checkpoints_folder, run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from tests.launcher.experiments import make
from tests.launcher.made import age, make_checkpoint, make_plan, make_run


@pytest.fixture
def gc(multirun, said):
    """gc(WORDS) -> what it lists or deletes."""
    return lambda words="": json.loads(said(f"gc --json {words}", multirun))


def paths(multirun, document):
    return {os.path.relpath(item["path"], multirun) for item in document["items"]}


def everything(multirun):
    return {path for path in multirun.rglob("*") if path.name != ".lock"}


def gone_since(before, multirun):
    """The paths that are gone, without those below another."""
    gone = before - everything(multirun)
    return {os.path.relpath(path, multirun) for path in gone if not gone & {*path.parents}}


@pytest.fixture
def multirun(tmp_path):
    """Two experiments' worth of leftovers among what must stay."""
    done = make_run(tmp_path, "done", RunState.DONE, launch_id="t-done")
    for name in ("summary.json", "provenance.json"):
        (done / name).write_text("{}")
    failed = make_run(tmp_path, "failed", RunState.FAILED)
    for folder in (done, failed):
        make_checkpoint(folder, 2, size=300)
        make_checkpoint(folder, 4, size=500)
    (done / "checkpoints/.tmp-step_000006-77").mkdir()
    (done / "checkpoints/.tmp-step_000006-77/half").write_bytes(b"h" * 70)
    age(done / "checkpoints/.tmp-step_000006-77")
    age(make_run(tmp_path, "orphan", RunState.PLANNED, steps=0) / "config.yaml")
    make_run(tmp_path, "newborn", RunState.PLANNED, steps=0)
    age(make_run(tmp_path, "waiting", RunState.PLANNED, steps=0) / "config.yaml")
    make_plan(tmp_path, "study", {"A": ["done", "failed", "waiting"]})
    age(_written(tmp_path / ".tmp-.index-5-5", "torn"))
    _written(tmp_path / ".tmp-.index-6-6", "of a writer at work")
    return tmp_path


def _written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


LISTED = {
    "runs/done/checkpoints/step_000002",
    "runs/done/checkpoints/.tmp-step_000006-77",
    "runs/failed/checkpoints/step_000002",
    "runs/orphan",
    ".tmp-.index-5-5",
}


def test_it_lists_first_and_deletes_only_what_it_listed(multirun, gc):
    before = everything(multirun)
    listed = gc()
    assert paths(multirun, listed) == LISTED and not listed["deleted"] and everything(multirun) == before
    sizes = {item["path"].split("runs/")[-1]: item["bytes"] for item in listed["items"]}
    assert sizes["done/checkpoints/step_000002"] == 300 and sizes["done/checkpoints/.tmp-step_000006-77"] == 70
    deleted = gc("--delete")
    assert deleted["deleted"] and paths(multirun, deleted) == LISTED and deleted["bytes"] == listed["bytes"]
    assert gone_since(before, multirun) == LISTED
    assert gc()["items"] == []


def own(multirun, run_id):
    with lifecycle.locked(run_folder(multirun, run_id)):
        assert lifecycle.acquire(run_folder(multirun, run_id), 2) is not None


def with_manifests(multirun):
    """The checkpoints of the present version; and damaged ones, which a done run set aside."""
    for _, path in checkpoints(run_folder(multirun, "failed")):
        (path / "manifest.json").touch()
    for run_id in ("done", "failed"):
        (run_folder(multirun, run_id) / "attempts/2/checkpoints/step_000003").mkdir(parents=True)


def with_a_link(multirun):
    (multirun / "mine").write_text("mine")
    link = run_folder(multirun, "done") / ".tmp-link"
    link.symlink_to(multirun / "mine")
    age(link)


def with_orphans(multirun):
    for run_id, state in (("result", RunState.DONE), ("queued", RunState.SUBMITTED), ("owned", RunState.RUNNING)):
        age(make_run(multirun, run_id, state, steps=2) / "state.json")
    own(multirun, "owned")


def with_a_torn_plan(multirun):
    with_orphans(multirun)
    (multirun / "study/plan.json").write_text("{")


OF_FAILED, OF_DONE = "runs/failed/checkpoints/step_000002", {path for path in LISTED if "runs/done" in path}
#: What is otherwise, the words of the command, and what is deleted.
OTHERWISE = {
    "on demand": (lambda _: None, "--keep none", LISTED | {"runs/done/checkpoints/step_000004"}),
    "manifests": (with_manifests, "", LISTED - {OF_FAILED} | {"runs/done/attempts/2/checkpoints"}),
    "an owner": (lambda multirun: own(multirun, "done"), "--keep none", LISTED - OF_DONE),
    "a link": (with_a_link, "", LISTED | {"runs/done/.tmp-link"}),
    "orphans": (with_orphans, "", LISTED),
    "orphans, on demand": (with_orphans, "--orphans", LISTED | {"runs/result"}),
    "a plan that cannot be read": (with_a_torn_plan, "--orphans", LISTED - {"runs/orphan"}),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_is_deleted_depends_on_owners_plans_and_options(multirun, gc, case):
    change, words, expected = OTHERWISE[case]
    change(multirun)
    before = everything(multirun)
    assert paths(multirun, gc(f"--delete {words}")) == expected
    assert gone_since(before, multirun) == expected


def test_a_run_that_got_an_owner_or_a_plan_since_the_list_is_left_alone(multirun):
    policy = Policy()
    found = command.find(multirun, policy)
    own(multirun, "failed")
    make_plan(multirun, "late", {"A": ["orphan"]})
    gone = {os.path.relpath(one.path, multirun) for one in command.delete(multirun, found, policy)}
    assert gone == LISTED - {"runs/orphan", "runs/failed/checkpoints/step_000002"}
    assert run_folder(multirun, "orphan").is_dir()


def test_what_a_scheduler_kept_of_a_launch_goes_when_its_runs_are_done(multirun, gc):
    launches, done = multirun / "launches", run_folder(multirun, "done")
    kept = {f"launches/{token}{ending}" for token in ("aa", "bb", "cc") for ending in ("", ".closed", ".ray.log")}
    for path in kept:
        if path.count("."):
            age(_written(multirun / path, "x"))
        else:
            (multirun / path / "code").mkdir(parents=True)
            (multirun / path / "code" / "launch.py").write_text("x" * 90)
            age(multirun / path)
    (launches / "hydra").mkdir()
    age(launches / "hydra")
    write_state(done, read_state(done).replace(launch_id="aa", finished=1e9))
    failed = run_folder(multirun, "failed")
    write_state(failed, read_state(failed).replace(launch_id="bb", finished=1e9))
    offered = {path for path in kept if "bb" not in path}
    assert paths(multirun, gc()) - LISTED == offered
    # Its job may be in the queue again.
    write_state(done, read_state(done).replace(state=RunState.PREEMPTED))
    assert paths(multirun, gc()) & kept == {path for path in kept if "cc" in path}
    write_state(done, read_state(done).replace(state=RunState.SUBMITTED))
    assert not paths(multirun, gc()) & kept
    # Its report may wait for the last run.
    write_state(done, read_state(done).replace(state=RunState.DONE, finished=time.time()))
    assert paths(multirun, gc()) & kept == {path for path in kept if "cc" in path}
    write_state(done, read_state(done).replace(finished=1e9))
    deleted = gc("--delete")
    assert {item["bytes"] for item in deleted["items"] if item["path"].endswith("launches/aa")} == {90}
    assert {path for path in kept if (multirun / path).exists()} == kept - offered


def test_the_answer_fits_on_a_screen(multirun, said):
    for number in range(60):
        folder = make_run(multirun, f"r{number:03d}", RunState.DONE)
        make_checkpoint(folder, 1)
        make_checkpoint(folder, 2)
    lines = said("gc", multirun).splitlines()
    assert len(lines) < 24 and "nothing was deleted; add --delete to delete them" in lines[-1]


def test_a_run_that_is_being_planned_again_is_not_offered(tmp_path, said):
    planned = make("method=ptrw", f"multirun={tmp_path}")
    freeze.freeze(planned)
    (tmp_path / "adhoc-ptrw/plan.json").unlink()
    folder = run_folder(tmp_path, *planned.runs)
    age(folder / "config.yaml")
    assert str(folder) in said("gc --json", tmp_path)
    # As the next launcher does, before it writes its plan.json.
    freeze.freeze(planned)
    (tmp_path / "adhoc-ptrw/plan.json").unlink()
    assert json.loads(said("gc --json", tmp_path))["items"] == []


def test_a_run_whose_lock_somebody_holds_is_left_as_it_is(multirun, gc, monkeypatch):
    monkeypatch.setattr(lifecycle, "PATIENCE_S", 0.1)
    place = checkpoints_folder(run_folder(multirun, "done"))
    before = sorted(path.name for path in place.iterdir())
    with lifecycle.locked(run_folder(multirun, "done")):
        gone = paths(multirun, gc("--delete"))
    assert gone and not any(path.startswith("runs/done/") for path in gone)
    assert sorted(path.name for path in place.iterdir()) == before
