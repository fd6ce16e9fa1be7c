"""How a launch on a batch system starts: what no such system can run, the copy of the code, and detached launches."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.application import Shape, application, shape
from launcher.errors import Objection
from launcher.planning.plan import Plan
from launcher.schedulers.batch import code_snapshot
from launcher.schedulers.batch.scheduler import PREFIX, BatchScheduler
from launcher.schedulers.batch.system import Array, Refusal, Refused, System, Unanswered
from launcher.schedulers.protocol import Order, SchedulerError, StartedScheduler
from launcher.text import counted

#: What the job asks for that writes the reports of a detached launch.
REPORT = Shape(memory_gb=8, time_s=3600)
# A system counts a job that was cancelled for some seconds.
_TRIES, _PAUSE_S = 10, 1.0


def shapes(plan: Plan, run_ids: Sequence[str]) -> dict[Shape, list[str]]:
    """These runs by their resources, in the plan's order."""
    runs: dict[Shape, list[str]] = {}
    for run_id in run_ids:
        runs.setdefault(shape(plan.runs[run_id].config), []).append(run_id)
    return runs


def files(plan: Plan, run_ids: Sequence[str]) -> str:
    """The files that have the resources of these runs."""
    configs = [plan.runs[run_id].config for run_id in run_ids]
    return ", ".join(sorted({application(config).requested_in(config, "nodes")[0] for config in configs}))


def problems(plan: Plan, run_ids: Sequence[str], file: str) -> Iterator[Objection]:
    """What no batch system can do. `file` has the plan's section `cluster`."""
    settings, count = plan.cluster, len(shapes(plan, run_ids))
    if settings["detach"] and count > (settings["max_running"] or count):
        rule = (
            f"the runs need {count} arrays, one for each shape of resources, and with cluster.detach no launcher "
            "waits to submit the later ones"
        )
        yield Objection("cluster.max_running", settings["max_running"], rule, f"give {count} or more", file)


def start(order: Order, system: System, largest: int, report: Shape = REPORT) -> StartedScheduler:
    """Copy the code, and create the scheduler. largest: how many jobs the system accepts in an array; report: what the
    job of a detached launch's report asks for."""
    settings, record = order.plan.cluster, order.record.absolute()
    code = code_snapshot.of_launch(order)
    kinds = shapes(order.plan, order.run_ids)
    shape_of = {run_id: asked for asked, runs in kinds.items() for run_id in runs}
    largest = min(settings["max_array"] or largest, largest)
    scheduler = BatchScheduler(system, record, settings, shape_of, code, largest)
    detached = (lambda: _detach(scheduler, system, order, code, report)) if settings["detach"] else None
    return StartedScheduler(scheduler, f"{system.NAME}, {counted(len(kinds), 'shape')} of resources", detached=detached)


def _detach(scheduler: BatchScheduler, system: System, order: Order, code: Path, shape: Shape) -> str:
    """Submit as many runs as the system accepts beside a job for the reports; a message for the user.

    SchedulerError: nothing could be submitted.
    """
    scheduler.poll(0)
    while scheduler.halves:
        scheduler.poll(0)
    left = scheduler.withdraw_collected()
    jobs = scheduler.jobs
    if not jobs:
        raise SchedulerError("no run could be submitted now; repeat the command to try again")
    command = [sys.executable, "-m", "analysis", "report", "--judge"]
    folders = [(order.plan.multirun / experiment.name).absolute() for experiment in order.plan.experiments]
    lines = [f"{shlex.join([*command, str(folder)])} || code=$?" for folder in folders]
    array = Array(
        name=f"{PREFIX}report",
        command=["sh", "-c", "\n".join([*lines, "exit ${code:-0}"])],
        size=1,
        shape=shape,
        code=code,
        logs=code.with_name("jobs"),
        settings=order.plan.cluster,
        after=jobs,
    )
    job, taken = _submit_report(scheduler, system, array)
    left += taken
    later = "repeat the command later to submit the rest"
    more = f"; {system.NAME} did not accept {counted(left, 'run')}; {later}" if left else ""
    return f"submitted as {', '.join(jobs)}; the report follows them as job {job}{more}"


def _submit_report(scheduler: BatchScheduler, system: System, report: Array) -> tuple[str, int]:
    """Submit the job of a report, and take a run back if a limit leaves no room; its id, and how many were taken."""
    taken, tries = 0, _TRIES
    while True:
        try:
            (job,) = scheduler.accepted(report)
            return job, taken
        except (Refused, Unanswered) as error:
            tries -= 1
            limited = isinstance(error, Refused) and error.refusal in (Refusal.LIMIT, Refusal.TOO_MANY)
            if not (limited and tries and (taken or scheduler.take_back())):
                why = f"the runs are in the queue, but {system.NAME} refused their report: {error}"
                raise SchedulerError(why) from error
        taken = 1
        time.sleep(_PAUSE_S)
