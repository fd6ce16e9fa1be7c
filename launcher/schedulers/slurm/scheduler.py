"""Runs as SLURM's job arrays. They are watched while this process lives, and continue without it.

The run folders decide; SLURM is asked only where they say nothing. A job that is preempted, or reaches its time limit,
requeues itself (task.py), and SLURM requeues a job whose node fails: only jobs that have ended for good are reported to
the launcher. Jobs of an earlier launch are adopted instead of being submitted twice.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.planning.resources import Shape
from launcher.run import claim, launch_record, stop_request, transitions
from launcher.run.folder import read_state
from launcher.run.lifecycle import RESUMABLE, FailureKind, RunState
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.schedulers.slurm import arrays as slurm_arrays
from launcher.schedulers.slurm import queue
from launcher.schedulers.slurm.arrays import Arrays
from launcher.schedulers.slurm.queue import Job
from launcher.schedulers.slurm.task import Task

_EVERYTHING = 1_000_000
_UNLIMITED = 100_000
# sbatch's words when a user may not have more jobs now, when slurmctld is down, and when it ends during the request:
# SLURM's own for a message, the system's for a connection.
_LATER = (
    "submit limit",
    "MaxSubmit",
    "job count",
    "Unable to contact",
    "timed out",
    "temporarily",
    "standby mode",
    "Zero Bytes",
    "send failure",
    "receive failure",
    "connection failure",
    *map(os.strerror, (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE, errno.EHOSTUNREACH)),
)
# SLURM's names for limits on the number of jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit and others): they
# let jobs in again when others have left, also those of other launches and other users.
_SUBMIT_LIMIT = "SubmitJob"
# For so long, sbatch may refuse a single run for another limit, or for one that it does not name, while this launch has
# no other job: SLURM counts a job for some seconds after its run has ended.
_REFUSED_ALONE_S = 60.0
# If jobs fail before they start on more nodes than this, the fault is not the nodes'.
_BAD_NODES = 2
# A job must be missing from the queue in this many checks before it counts as gone.
_MISSING_CHECKS = 2


@dataclass
class _Submitted:
    """A run with a job, which is known by its id and its name: slurmctld may use an id again.

    `token` is that of the launch which submitted it. `missed`: how many checks in a row did not show the job.
    """

    folder: Path
    job: str
    name: str
    token: str
    missed: int = 0

    def among(self, jobs: Mapping[str, Job]) -> Job | None:
        """This job as SLURM shows it, or None."""
        job = jobs.get(self.job)
        return job if job is not None and job.name == self.name else None


class Slurm:
    """A scheduler over SLURM.

    `shape_of` has the resources of each run by its id; `parameters` gives sbatch's options for them.
    """

    def __init__(
        self,
        record: Path,
        settings: Mapping[str, Any],
        shape_of: Mapping[str, Shape],
        parameters: Callable[[Shape], dict[str, Any]],
        train: str,
        largest: int,
    ) -> None:
        self._record, self._settings, self._train = record, settings, train
        self._multirun = record.parent.parent
        self._shape_of, self._parameters = shape_of, parameters
        self._arrays = Arrays(record)
        self._largest = largest
        self._collected: list[Path] = []
        self._submitted: dict[str, _Submitted] = {}  # by job id
        self._throttle: dict[str, int] = {}  # array -> runs at a time
        self._bad_nodes: set[str] = set()
        self._ended: list[Ended] = []
        self._next_check = 0.0
        self._next_submission = 0.0
        self._refused_alone: float | None = None  # since when, on the monotonic clock
        self._message: str | None = None
        self._closing = False  # the launch is interrupted
        self._away = False  # slurmctld did not answer the last time

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs, or of their arrays, that have not ended."""
        return sorted({job.partition("_")[0] for job in self._submitted})

    def capacity(self) -> int:
        """Without limit: runs wait in SLURM's queue."""
        return _EVERYTHING

    def submit(self, folder: Path, launch_id: str) -> None:
        """Put a run into an array, which the next `poll` submits."""
        self._collected.append(folder)

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Submit what was collected, then check the runs and the queue; each only every `poll_s` seconds."""
        now = time.monotonic()
        if self._collected and now >= self._next_submission:
            self._next_submission = now + float(self._settings["poll_s"])
            self._submit()
        elif now < self._next_check:
            time.sleep(min(timeout, self._next_check - now))
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + float(self._settings["poll_s"])
            self._check()
        ended, self._ended = self._ended, []
        return ended

    def withdraw_collected(self) -> int:
        """Withdraw the runs that are in no array yet; how many."""
        for folder in self._collected:
            transitions.withdraw(folder)
        count, self._collected = len(self._collected), []
        return count

    def withdraw(self) -> int:
        """Take back the runs that have not started; how many."""
        count = self.withdraw_collected()
        requeued = self._waiting() if launch_record.closed(self._record).exists() else []
        waiting = [run for run in self._submitted.values() if transitions.withdraw(run.folder) or run in requeued]
        _scancel(waiting, "--state=PENDING")
        self._next_check = 0.0
        return count + len(waiting)

    def cancel(self, kill: bool = False) -> None:
        """Ask the running runs to save a checkpoint and stop, and take the others back; kill: end all their jobs."""
        launch_record.closed(self._record).touch()
        self._closing = True
        self.withdraw_collected()
        self._stop_runs()
        runs = list(self._submitted.values())
        if not self._away and self._queue() is not None:
            _scancel(runs, *([] if kill else ["--state=PENDING"]))
        elif runs:
            self._say(f"slurmctld does not answer: {len(runs)} jobs stay in its queue; they will not start runs")
        self._drop_waiting()
        self._next_check = 0.0

    def close(self) -> None:
        """Nothing: the jobs stay in the queue, and the same command finds them again."""

    # ------------------------------------------------------------ submission

    def _submit(self) -> None:
        """Submit the collected runs, except those that have a job of an earlier launch."""
        known = self._queue()
        if known is None:
            return self._say("slurmctld does not answer; submission waits for it")
        ending = self._adopt(known)
        by_shape: dict[Shape, list[Path]] = {}
        for folder in self._collected:
            if folder.name not in ending:
                by_shape.setdefault(self._shape_of[folder.name], []).append(folder)
        shares = _shares([len(runs) for runs in by_shape.values()], self._free_slots(known))
        for (shape, runs), share in zip(by_shape.items(), shares, strict=True):
            if not self._submit_shape(shape, runs, share):
                return

    def _submit_shape(self, shape: Shape, runs: list[Path], share: int) -> bool:
        """Submit the runs of one shape, at most `share` of them at a time; whether to go on with the next shape."""
        given = self._parameters(shape)
        if self._bad_nodes:
            given = {**given, "exclude": ",".join(sorted(self._bad_nodes))}
        task = self._task(shape)
        while runs and share:
            arrays = -(-len(runs) // self._largest)
            part, throttle = runs[: self._largest], max(1, share // arrays)
            try:
                name, jobs = self._arrays.submit(part, given, throttle, task)
            except slurm_arrays.REFUSED as error:
                if not slurm_arrays.timed_out(error):
                    return self._refused(part, slurm_arrays.why(error))
                limit = f"sbatch did not return within {slurm_arrays.LIMIT_S:g} s"
                self._say(f"{limit}; its jobs that are in the queue are adopted, and the other runs wait")
                known = self._queue()
                if known is not None:
                    self._adopt(known)
                return False
            self._refused_alone = None
            self._throttle[jobs[0].partition("_")[0]] = throttle
            share -= throttle
            for folder, job in zip(part, jobs, strict=True):
                self._submitted[job] = _Submitted(folder, job, name, self._record.stem)
            launch_record.add_jobs(self._record, {folder.name: job for folder, job in zip(part, jobs, strict=True)})
            done = set(part)
            self._collected = [folder for folder in self._collected if folder not in done]
            runs = runs[len(part) :]
            self._say(None)
        return True

    def _task(self, shape: Shape) -> dict[str, Any]:
        delay = self._settings["signal_delay_s"]
        return {"train": self._train, "limit_s": shape.time_s, "signal_delay_s": delay, "devices": shape.devices}

    def _refused(self, part: list[Path], why: str) -> bool:
        """Wait, or try smaller arrays, if that may help. SchedulerError: sbatch will never accept these."""
        if not any(word in why for word in _LATER):
            self.withdraw_collected()
            raise SchedulerError(
                f"sbatch refused: {why}; jobs that were submitted before continue; repeat the command to follow them"
            )
        if "limit" in why or "count" in why or "MaxSubmit" in why:
            if len(part) > 1:
                self._largest = len(part) // 2
                self._next_submission = 0.0
            elif self._submitted:
                self._refused_alone = None
            elif _SUBMIT_LIMIT not in why:
                now = time.monotonic()
                self._refused_alone = self._refused_alone or now
                if now - self._refused_alone >= _REFUSED_ALONE_S:
                    self.withdraw_collected()
                    raise SchedulerError(
                        f"sbatch has refused a single run for {_REFUSED_ALONE_S:.0f} s although this launch has no "
                        f"other job: {why}; request less time or fewer devices, or another partition, account or QOS"
                    )
        self._say(f"sbatch accepts no more jobs now ({why}); the other runs wait")
        return False

    def _adopt(self, known: Mapping[str, Job]) -> set[str]:
        """Adopt the jobs of earlier launches, and those that sbatch submitted although it reported a failure.

        Returns the runs whose jobs are ending: a later check shows whether SLURM runs them again.
        """
        unassigned, ending = {folder.name: folder for folder in self._collected}, set[str]()
        adopted: dict[str, str] = {}
        idle = []
        for job in known.values():
            if job.over or job.stuck or job.id in self._submitted:
                continue
            match = slurm_arrays.run_of(self._multirun, job.name, job.index)
            if match is None or match[1] not in unassigned:
                continue
            token, run_id = match
            record = self._record.with_name(f"{token}.json")
            submitted = _Submitted(unassigned[run_id], job.id, job.name, token)
            if launch_record.closed(record).exists():
                idle.append(submitted)
            elif job.ending:
                ending.add(run_id)
            else:
                folder = unassigned.pop(run_id)
                self._submitted[job.id] = submitted
                adopted[run_id] = job.id
                task = self._task(self._shape_of[run_id])
                self._arrays.complete(token, job.id, Task(folder=str(folder.absolute()), record=str(record), **task))
                print(
                    f"{run_id} is already job {job.id} of launch {token}; this launch waits for that job",
                    file=sys.stderr,
                    flush=True,
                )
        _scancel(idle, "--state=PENDING")
        if adopted:
            launch_record.add_jobs(self._record, adopted)
        self._collected = list(unassigned.values())
        return ending - {run.folder.name for run in self._submitted.values()}

    def _free_slots(self, known: Mapping[str, Job]) -> int:
        """How many more runs may run at a time."""
        if self._settings["max_running"] is None:
            return _UNLIMITED
        alive: Counter[str] = Counter()
        for run in self._submitted.values():
            job = run.among(known)
            if job is None or not job.over:
                alive[run.job.partition("_")[0]] += 1
        used = sum(min(count, self._throttle.get(array, count)) for array, count in alive.items())
        return max(0, int(self._settings["max_running"]) - used)

    def _stop_runs(self) -> None:
        """After an interruption: ask the runs with an owner to stop, and make the others planned again."""
        for run in self._submitted.values():
            with suppress(claim.Locked), claim.locked(run.folder, claim.PATIENCE_S):
                owner = claim.live_claim(run.folder)
                if owner is None:
                    transitions.withdraw_unowned(run.folder)
                elif stop_request.find(run.folder, owner) is None:
                    stop_request.send(run.folder, owner, FailureKind.PREEMPTED, "its launcher was interrupted")

    def _queue(self) -> Mapping[str, Job] | None:
        """What SLURM knows of our jobs; None, after some seconds, while it does not answer."""
        known = queue.mine(slurm_arrays.PREFIX)
        self._away = known is None
        return known

    def _waiting(self) -> list[_Submitted]:
        """The runs that wait for their jobs to start them, for the first time or again."""
        return [
            run
            for run in self._submitted.values()
            if read_state(run.folder).state in (RunState.PLANNED, RunState.PREEMPTED)
            and claim.live_claim(run.folder) is None
        ]

    def _drop_waiting(self) -> None:
        """In a closed launch: no longer wait for runs that no job of this launch will start."""
        for run in self._waiting():
            if self._away or run.token == self._record.stem:
                self._end(run)

    # ------------------------------------------------------------ checks

    def _check(self) -> None:
        """Find the runs that have ended: by their folders, and by SLURM if their jobs have ended."""
        if self._closing:
            self._stop_runs()
        if launch_record.closed(self._record).exists():
            self._drop_waiting()
        idle = []
        for run in list(self._submitted.values()):
            state = read_state(run.folder)
            # A run in a resumable state may be about to be resumed by its own job.
            if state.state not in RESUMABLE and claim.live_claim(run.folder) is None:
                self._end(run)
                if state.launch_id != run.token or state.state == RunState.CANCELLED:
                    idle.append(run)  # another process was faster: the job need not start
        _scancel(idle, "--state=PENDING")
        if not self._submitted:
            return
        known = self._queue()
        if known is None:
            return self._say("slurmctld does not answer; the runs continue, and their folders are watched")
        if not self._collected:
            self._say(None)
        shown = {run.job: run.among(known) for run in self._submitted.values()}
        _scancel([run for run in self._submitted.values() if (job := shown[run.job]) is not None and job.stuck])
        for run in self._submitted.values():
            run.missed = 0 if shown[run.job] is not None else run.missed + 1
        missing = {run.job: run.name for run in self._submitted.values() if run.missed >= _MISSING_CHECKS}
        past = queue.ended(missing)
        for run in list(self._submitted.values()):
            job = shown[run.job] or past.get(run.job)
            if job is not None and (job.over or job.stuck):
                self._job_ended(run, job)
            elif job is None and run.job in missing and read_state(run.folder).state == RunState.SUBMITTED:
                # SLURM shows a job for minutes after its end, but a cancelled task that waits vanishes from its array.
                message = f"its job {run.job} was cancelled before it began (scancel)"
                self._end(run, FailureKind.EXTERNALLY_CANCELLED, message)
            elif job is None and run.job in missing:
                self._end(run, FailureKind.LOST, f"SLURM no longer knows its job {run.job}")

    def _job_ended(self, run: _Submitted, job: Job) -> None:
        """Report the end of a run with what SLURM knows of its job, which counts if the run itself says nothing."""
        kind, where = job.failure_kind, f" on {job.node}" if job.node else ""
        detail = f" ({job.reason})" if job.reason not in ("", "None") else ""
        message = f"SLURM reports {job.state}{detail} for its job {job.id}{where}, and the run recorded no reason"
        if job.state == "CANCELLED":
            message = f"its job {job.id} was cancelled (scancel)"
        started = read_state(run.folder).state != RunState.SUBMITTED
        if not started and launch_record.closed(self._record.with_name(f"{run.token}.json")).exists():
            kind, message = FailureKind.PREEMPTED, "its launcher was interrupted before it began"
        elif not started and job.state == "FAILED":
            log = self._record.with_suffix("") / "jobs" / f"{job.id}_0_log.out"
            message = f"its job {job.id} failed{where} before the run began; see {log}"
            self._bad_nodes.update([job.node] if job.node else [])
            kind = FailureKind.NODE_FAILURE if 0 < len(self._bad_nodes) <= _BAD_NODES else FailureKind.LOST
        self._end(run, kind, message)

    def _end(self, run: _Submitted, kind: FailureKind | None = None, message: str | None = None) -> None:
        del self._submitted[run.job]
        self._ended.append(Ended(run.folder, None, kind, message, run.token))

    def _say(self, message: str | None) -> None:
        """Print a new problem once; None: the problem is over."""
        if message is not None and message != self._message:
            print(message, file=sys.stderr, flush=True)
        elif message is None and self._message is not None:
            print("SLURM answers again", file=sys.stderr, flush=True)
        self._message = message


def _shares(sizes: Sequence[int], slots: int) -> list[int]:
    """`slots` runs at a time, shared between arrays of these sizes; 0 if an array has to wait for others."""
    if slots >= sum(sizes):
        return list(sizes)
    shares = [0] * len(sizes)
    for _ in range(slots):
        at = max(range(len(sizes)), key=lambda index: (shares[index] == 0, sizes[index] / (shares[index] + 1)))
        shares[at] += 1
    return shares


def _scancel(runs: Sequence[_Submitted], *options: str) -> None:
    """Cancel the jobs of these runs, by id and name. The list is cut, because a command line has a limited length."""
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(run.name, []).append(run.job)
    for name, jobs in names.items():
        for at in range(0, len(jobs), 500):
            queue.ask(["scancel", f"--name={name}", *options, *jobs[at : at + 500]])
