"""What launcher.schedulers.batch relies on, tested on a running batch system.

A module of tests imports these tests by `*`, and has a fixture `batch` that returns a Batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from launcher.application import Shape
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.batch.system import INDEX, Array, Job, Phase, Refusal, Refused, System
from tests.waiting import until

PREFIX = "rlsweep-conforms-"
_numbers = count()


@dataclass
class Batch:
    """A system; resources and settings with which a job starts at once; fields of an array that it never accepts; a
    folder that its nodes see; and the seconds in which all that it may start at a time has surely started."""

    system: System
    shape: Shape
    settings: Mapping[str, Any]
    impossible: Mapping[str, Any]
    folder: Path
    pause: float = 0.5

    def submit(self, script: str, size: int = 1, **more: Any) -> tuple[str, list[str]]:
        """Submit jobs that execute a shell script in the folder; their name and their ids."""
        (self.folder / "logs").mkdir(exist_ok=True)
        name = f"{PREFIX}{self.folder.name.replace('_', '-')}-{next(_numbers)}"
        given = {"shape": self.shape, "settings": self.settings, "throttle": size, **more}
        array = Array(name, ["sh", "-c", script], size, code=self.folder, logs=self.folder / "logs", **given)
        return name, list(self.system.submit(array))

    def job(self, id: str, name: str) -> Job | None:
        """A job as one of the two calls shows it."""
        shown = (self.system.jobs(PREFIX) or {}).get(id)
        return shown or self.system.ended({id: name}).get(id)

    def wait(self, id: str, name: str, *phases: Phase) -> Job:
        until(lambda: (job := self.job(id, name)) is not None and job.phase in phases)
        job = self.job(id, name)
        assert job is not None
        return job


def test_each_job_executes_the_command_in_its_place_of_the_array(batch: Batch) -> None:
    name, ids = batch.submit(f"echo told ${INDEX}; echo {batch.folder} > out.${INDEX}", size=3)
    assert ids == [f"{ids[0].partition('_')[0]}_{index}" for index in range(3)]
    for index, id in enumerate(ids):
        job = batch.wait(id, name, Phase.ENDED)
        assert (job.id, job.name, job.index) == (id, name, index)
        assert (batch.folder / f"out.{index}").read_text().strip() == str(batch.folder)
        until(lambda id=id, index=index: f"told {index}" in (batch.folder / f"logs/{id}.log").read_text())


def test_a_job_that_fails_is_told_from_one_that_ends_well(batch: Batch) -> None:
    name, (id,) = batch.submit("exit 3")
    assert batch.wait(id, name, Phase.FAILED, Phase.ENDED).phase == Phase.FAILED


def test_no_more_jobs_of_an_array_run_at_a_time_than_it_says(batch: Batch) -> None:
    script = f"touch on.${INDEX}; ls on.* | wc -l >> counts; sleep {batch.pause}; rm on.${INDEX}"
    name, ids = batch.submit(script, size=4, throttle=2)
    for id in ids:
        batch.wait(id, name, Phase.ENDED)
    counts = [int(line) for line in (batch.folder / "counts").read_text().split()]
    assert len(counts) == 4 and max(counts) <= 2


def test_a_cancellation_of_waiting_jobs_leaves_the_running_ones(batch: Batch) -> None:
    name, ids = batch.submit("touch ran; sleep 600", size=2, throttle=1)
    batch.wait(ids[0], name, Phase.RUNNING)
    batch.system.cancel(dict.fromkeys(ids, name), waiting=True)
    until(lambda: (job := batch.job(ids[1], name)) is None or job.over)
    assert batch.wait(ids[0], name, Phase.RUNNING)
    batch.system.cancel({ids[0]: name}, waiting=False)
    job = batch.wait(ids[0], name, Phase.ENDED, Phase.FAILED)
    assert job.failure_kind == FailureKind.EXTERNALLY_CANCELLED


def test_a_cancellation_of_a_waiting_job_leaves_the_others_of_its_array(batch: Batch) -> None:
    first, (before,) = batch.submit("sleep 600")
    name, ids = batch.submit(f"touch ran.${INDEX}", size=3, after=[before])
    batch.system.cancel({ids[1]: name}, waiting=True)
    until(lambda: (job := batch.job(ids[1], name)) is None or job.over)
    batch.system.cancel({before: first}, waiting=False)
    for id in (ids[0], ids[2]):
        assert batch.wait(id, name, Phase.ENDED, Phase.FAILED).failure_kind != FailureKind.EXTERNALLY_CANCELLED
    assert sorted(path.name for path in batch.folder.glob("ran.*")) == ["ran.0", "ran.2"]


def test_a_job_of_another_name_is_neither_cancelled_nor_told(batch: Batch) -> None:
    name, (id,) = batch.submit("sleep 600")
    batch.wait(id, name, Phase.RUNNING)
    batch.system.cancel({id: f"{name}-other"}, waiting=False)
    assert batch.wait(id, name, Phase.RUNNING)
    batch.system.cancel({id: name}, waiting=False)
    batch.wait(id, name, Phase.ENDED, Phase.FAILED)
    assert not batch.system.ended({id: f"{name}-other"})
    assert id not in (batch.system.jobs("another-prefix-") or {})


def test_a_job_waits_for_others_whatever_their_end(batch: Batch) -> None:
    first, (before,) = batch.submit(f"sleep {2 * batch.pause}; touch before; exit 1")
    name, (id,) = batch.submit("test -e before", after=[before])
    assert batch.wait(id, name, Phase.ENDED, Phase.FAILED).phase == Phase.ENDED
    assert batch.wait(before, first, Phase.FAILED)


def test_what_the_system_can_never_run_is_refused_for_good(batch: Batch) -> None:
    with pytest.raises(Refused) as refused:
        batch.submit("true", **batch.impossible)
    assert refused.value.refusal == Refusal.NEVER and str(refused.value)
