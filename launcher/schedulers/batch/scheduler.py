"""Runs as arrays of jobs of a batch system. They are watched while this process lives, and continue without it.

    multirun/launches/<token>/arrays/<n>.json    what the jobs of array n execute, written before they are submitted

An array's name has the launch's token and n; that of an array with a single run also has the run's id. Therefore the
run of a job in the queue is known even if the launcher that submitted it died before it could write down the job's id.

The run folders decide; the system is asked only where they say nothing. A job may return to the queue by itself: only
jobs that have ended for good are reported to the launcher. Jobs of an earlier launch are adopted instead of being
submitted twice.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.application import Shape
from launcher.run import launch_record, lifecycle, stop_request
from launcher.run.lifecycle import RESUMABLE, FailureKind, RunState, read_state
from launcher.schedulers.batch.system import Array, Job, Phase, Refusal, Refused, System, Unanswered
from launcher.schedulers.protocol import CONTINUES, Ended, SchedulerError, blamed

PREFIX = "rlsweep-"
_NAME = re.compile(rf"{PREFIX}([0-9a-f]+)-(\d+)(-[0-9a-f]+)?")
_UNLIMITED = 1_000_000
# For so long, a system may refuse a single run for a limit other than on the number of jobs while this launch has no
# other job: SLURM counts a job for some seconds after its run has ended.
_REFUSED_ALONE_S = 60.0
# If jobs fail before they start on more nodes than this, the fault is not the nodes'.
_BAD_NODES = 2
# A job must be missing from the queue in this many checks before it counts as gone.
_MISSING_CHECKS = 2


@dataclass
class _Submitted:
    """A run with a job, which is known by its id and its name: a system may use an id again.

    `token` is that of the launch which submitted it; `excluded`: the nodes that it left out. `missed`: how many checks
    in a row did not show the job; the check in which it is submitted cannot.
    """

    folder: Path
    job: str
    name: str
    token: str
    excluded: frozenset[str] = frozenset()
    missed: int = -1

    def among(self, jobs: Mapping[str, Job]) -> Job | None:
        """This job as the system shows it, or None."""
        job = jobs.get(self.job)
        return job if job is not None and job.name == self.name else None


class BatchScheduler:
    """A scheduler over a batch system.

    `settings` is the plan's section `cluster`; `shape_of` has the resources of each run by its id. `code` is the folder
    whose code the jobs execute, `largest` how many jobs an array may have.
    """

    def __init__(
        self,
        system: System,
        record: Path,
        settings: Mapping[str, Any],
        shape_of: Mapping[str, Shape],
        code: Path,
        largest: int,
    ) -> None:
        self._system, self._settings = system, settings
        self._record, self._folder, self._multirun = record, record.with_suffix(""), record.parent.parent
        self._shape_of, self._code, self._largest = shape_of, code, largest
        self._collected: list[Path] = []
        self._submitted: dict[str, _Submitted] = {}  # by job id
        self._throttle: dict[str, int] = {}  # array -> runs at a time
        self._bad_nodes: set[str] = set()
        self._ended: list[Ended] = []
        self._next_check = 0.0
        self._refused_alone: float | None = None  # since when, on the monotonic clock
        self._message: str | None = None
        self._told: set[str] = set()  # why jobs do not start by themselves
        self._closing = False  # the launch is interrupted
        self._away = False  # the system did not answer the last time

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs, or of their arrays, that have not ended."""
        return sorted({_array(job) for job in self._submitted})

    def capacity(self) -> int:
        """Without limit: runs wait in the system's queue."""
        return _UNLIMITED

    def submit(self, folder: Path) -> None:
        """Put a run into an array, which the next `poll` submits."""
        self._collected.append(folder)

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Every `poll_s` seconds: submit what was collected, and check the runs and the queue."""
        if (wait := self._next_check - time.monotonic()) > 0:
            time.sleep(min(timeout, wait))
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + float(self._settings["poll_s"])
            self._check()
        ended, self._ended = self._ended, []
        return ended

    def withdraw_collected(self) -> int:
        """Withdraw the runs that are in no array yet, and report them; how many."""
        for folder in self._collected:
            lifecycle.withdraw(folder)
            self._ended.append(Ended(folder, None))
        count, self._collected = len(self._collected), []
        return count

    @property
    def halves(self) -> bool:
        """Whether the next `poll` tries smaller arrays at once."""
        return self._next_check == 0.0

    def take_back(self) -> bool:
        """Take back a run of this launch that has not started, unless it is the only one; whether that was done."""
        own = [run for run in self._submitted.values() if run.token == self._record.stem]
        for run in reversed(own[1:]):
            if lifecycle.withdraw(run.folder):
                self._cancel([run], waiting=False)
                self._end(run)
                return True
        return False

    def withdraw(self) -> int:
        """Take back the runs that have not started; how many."""
        count = self.withdraw_collected()
        requeued = self._waiting() if launch_record.closed(self._record).exists() else []
        waiting = [run for run in self._submitted.values() if lifecycle.withdraw(run.folder) or run in requeued]
        self._cancel(waiting)
        self._next_check = 0.0
        return count + len(waiting)

    def cancel(self, kill: bool = False) -> None:
        """Ask the running runs to save a checkpoint and stop, and take the others back; kill: end all their jobs."""
        launch_record.closed(self._record).touch()
        self._closing = True
        self.withdraw_collected()
        self._stop_runs()
        runs = list(self._submitted.values())
        if not self._away and self._jobs() is not None:
            self._cancel(runs, waiting=not kill)
        elif runs:
            name = self._system.NAME
            self._say(f"{name} does not answer: {len(runs)} jobs stay in its queue; they will not start runs")
        self._drop_waiting()
        self._next_check = 0.0

    def close(self) -> None:
        """Nothing: the jobs stay in the queue, and the same command finds them again."""

    def _jobs(self) -> Mapping[str, Job] | None:
        """What the system knows of the user's jobs; None, perhaps after some seconds, while it does not answer."""
        known: Mapping[str, Job] | None = blamed(self._system, "jobs", PREFIX)
        self._away = known is None
        return known

    def _cancel(self, runs: Sequence[_Submitted], waiting: bool = True) -> None:
        if runs:
            blamed(self._system, "cancel", {run.job: run.name for run in runs}, waiting)

    # ------------------------------------------------------------ submission

    def accepted(self, array: Array) -> Sequence[str]:
        """Submit jobs; their ids. Raises Refused, Unanswered and SchedulerError."""
        jobs: Sequence[str] = blamed(self._system, "submit", array)
        texts = isinstance(jobs, (list, tuple)) and all(isinstance(job, str) for job in jobs)
        if not texts or not len(jobs) == len({*jobs}) == array.size:
            raise SchedulerError(f"{self._system.NAME}: submit returned {jobs}, not {array.size} texts; {CONTINUES}")
        return jobs

    def _submit(self, known: Mapping[str, Job]) -> None:
        """Submit the collected runs, except those that have a job of an earlier launch."""
        ending = self._adopt(known)
        by_shape: dict[Shape, list[Path]] = {}
        for folder in self._collected:
            if folder.name not in ending:
                by_shape.setdefault(self._shape_of[folder.name], []).append(folder)
        shares = _shares([len(runs) for runs in by_shape.values()], self._free_slots(known))
        for (shape, runs), share in zip(by_shape.items(), shares, strict=True):
            if not self._submit_shape(shape, runs, share):
                return

    def _submit_shape(self, shape: Shape, runs: Sequence[Path], share: int) -> bool:
        """Submit the runs of one shape, at most `share` of them at a time; whether to go on with the next shape."""
        while runs and share:
            arrays = -(-len(runs) // self._largest)
            part, runs = runs[: self._largest], runs[self._largest :]
            throttle = max(1, share // arrays)
            try:
                self._submit_array(part, shape, throttle)
            except Refused as refused:
                self._wait_or_fail(len(part), refused)
                return False
            except Unanswered as error:
                self._say(f"{error}; its jobs that are in the queue are adopted, and the other runs wait")
                if (known := self._jobs()) is not None:
                    self._adopt(known)
                return False
            share -= throttle
            self._refused_alone = None
            self._say(None)
        return True

    def _submit_array(self, runs: Sequence[Path], shape: Shape, throttle: int) -> None:
        lists = self._folder / "arrays"
        lists.mkdir(parents=True, exist_ok=True)
        (self._folder / "jobs").mkdir(exist_ok=True)
        path = lists / f"{len(list(lists.iterdir()))}.json"
        names = [folder.name for folder in runs]
        files.write_json(path, {"runs": names, "shape": asdict(shape), "settings": dict(self._settings)})
        array = Array(
            name=f"{PREFIX}{self._record.stem}-{path.stem}" + (f"-{names[0]}" if len(names) == 1 else ""),
            command=[sys.executable, "-u", "-m", self._system.PROGRAM, str(path)],
            size=len(names),
            shape=shape,
            code=self._code,
            logs=self._folder / "jobs",
            settings=self._settings,
            throttle=throttle,
            exclude=frozenset(self._bad_nodes),
        )
        jobs = self.accepted(array)
        self._throttle[_array(jobs[0])] = throttle
        for folder, job in zip(runs, jobs, strict=True):
            self._submitted[job] = _Submitted(folder, job, array.name, self._record.stem, array.exclude)
        launch_record.add_jobs(self._record, dict(zip(names, jobs, strict=True)))
        submitted = set(names)
        self._collected = [folder for folder in self._collected if folder.name not in submitted]

    def _wait_or_fail(self, count: int, refused: Refused) -> None:
        """So many jobs were refused: wait, or try smaller arrays, if that may help. SchedulerError: it cannot."""
        name, limited = self._system.NAME, refused.refusal in (Refusal.LIMIT, Refusal.TOO_MANY)
        if refused.refusal == Refusal.NEVER:
            self.withdraw_collected()
            raise SchedulerError(f"{name} refused: {refused}; {CONTINUES}")
        if limited and count > 1:
            self._largest = count // 2
            self._next_check = 0.0
        elif limited and self._submitted:
            self._refused_alone = None
        elif refused.refusal == Refusal.LIMIT:
            now = time.monotonic()
            self._refused_alone = self._refused_alone or now
            if now - self._refused_alone >= _REFUSED_ALONE_S:
                self.withdraw_collected()
                raise SchedulerError(
                    f"{name} has refused a single run for {_REFUSED_ALONE_S:.0f} s although this launch has no other "
                    f"job: {refused}; request less time or fewer devices, or change the options of conf/cluster"
                )
        self._say(f"{name} accepts no more jobs now ({refused}); the other runs wait")

    def _adopt(self, known: Mapping[str, Job]) -> set[str]:
        """Adopt the jobs of earlier launches, and those that were submitted although the system reported a failure.

        Returns the runs whose jobs are ending: a later check shows whether the system runs them again.
        """
        unassigned, ending = {folder.name: folder for folder in self._collected}, set[str]()
        adopted: dict[str, str] = {}
        idle = []
        for job in known.values():
            if job.over or job.phase == Phase.STUCK or job.id in self._submitted:
                continue
            match = run_of(self._multirun, job.name, job.index)
            if match is None or match[1] not in unassigned:
                continue
            token, run_id = match
            submitted = _Submitted(unassigned[run_id], job.id, job.name, token)
            if launch_record.closed(self._record.with_name(f"{token}.json")).exists():
                idle.append(submitted)
            elif job.phase == Phase.ENDING:
                ending.add(run_id)
            else:
                del unassigned[run_id]
                self._submitted[job.id] = submitted
                adopted[run_id] = job.id
                said = f"{run_id} is already job {job.id} of launch {token}; this launch waits for that job"
                print(said, file=sys.stderr, flush=True)
        self._cancel(idle)
        if adopted:
            launch_record.add_jobs(self._record, adopted)
        self._collected = list(unassigned.values())
        return ending - adopted.keys()

    def _free_slots(self, known: Mapping[str, Job]) -> int:
        """How many more runs may run at a time."""
        if self._settings["max_running"] is None:
            return _UNLIMITED
        shown = [(run, run.among(known)) for run in self._submitted.values()]
        alive = Counter(_array(run.job) for run, job in shown if job is None or not job.over)
        used = sum(min(count, self._throttle.get(array, count)) for array, count in alive.items())
        return max(0, int(self._settings["max_running"]) - used)

    # ------------------------------------------------------------ interruption

    def _stop_runs(self) -> None:
        """After an interruption: ask the runs with an owner to stop, and make the others planned again."""
        for run in self._submitted.values():
            with suppress(lifecycle.Locked), lifecycle.locked(run.folder, lifecycle.PATIENCE_S):
                if (owner := lifecycle.live_claim(run.folder)) is None:
                    lifecycle.withdraw_unowned(run.folder)
                elif stop_request.find(run.folder, owner) is None:
                    stop_request.send(run.folder, owner, FailureKind.PREEMPTED, "its launcher was interrupted")

    def _waiting(self) -> list[_Submitted]:
        """The runs that wait for their jobs to start them, for the first time or again."""
        states = (RunState.PLANNED, RunState.PREEMPTED)
        runs = [run for run in self._submitted.values() if read_state(run.folder).state in states]
        return [run for run in runs if lifecycle.live_claim(run.folder) is None]

    def _drop_waiting(self) -> None:
        """In a closed launch: no longer wait for runs that no job of this launch will start."""
        for run in self._waiting():
            if self._away or run.token == self._record.stem:
                self._end(run)

    # ------------------------------------------------------------ checks

    def _check(self) -> None:
        """Find the runs that have ended, by their folders and by the queue, and submit those that were collected."""
        self._check_folders()
        if not (self._collected or self._submitted):
            return
        if (known := self._jobs()) is None:
            return self._say(f"{self._system.NAME} does not answer; the runs continue, and submission waits for it")
        if self._collected:
            self._submit(known)
        else:
            self._say(None)
        self._check_jobs(known)

    def _check_folders(self) -> None:
        if self._closing:
            self._stop_runs()
        if launch_record.closed(self._record).exists():
            self._drop_waiting()
        idle = []
        for run in list(self._submitted.values()):
            state = read_state(run.folder)
            # A run in a resumable state may be about to be resumed by its own job.
            if state.state not in RESUMABLE and lifecycle.live_claim(run.folder) is None:
                self._end(run)
                if state.launch_id != run.token or state.state == RunState.CANCELLED:
                    idle.append(run)  # another process was faster: the job need not start
        self._cancel(idle)

    def _check_jobs(self, known: Mapping[str, Job]) -> None:
        """Find the runs whose jobs have ended, are stuck, or are gone."""
        runs = list(self._submitted.values())
        shown = {run.job: run.among(known) for run in runs}
        self._cancel([run for run in runs if (job := shown[run.job]) is not None and job.phase == Phase.STUCK], False)
        for job in filter(None, shown.values()):
            if job.phase == Phase.HELD and job.state not in self._told:
                self._told.add(job.state)
                said = f"{self._system.NAME} does not start job {job.id} by itself: {job.state}"
                print(said, file=sys.stderr, flush=True)
        for run in runs:
            run.missed = 0 if shown[run.job] is not None else run.missed + 1
        missing = {run.job: run.name for run in runs if run.missed >= _MISSING_CHECKS}
        past = blamed(self._system, "ended", missing) if missing else {}
        for run in runs:
            job = shown[run.job] or past.get(run.job)
            if job is not None and (job.over or job.phase == Phase.STUCK):
                self._job_ended(run, job)
            elif job is None and run.job in missing and read_state(run.folder).state == RunState.SUBMITTED:
                # A system shows a job for minutes after its end, but a cancelled job that waits may vanish at once.
                self._end(run, FailureKind.EXTERNALLY_CANCELLED, f"its job {run.job} was cancelled before it began")
            elif job is None and run.job in missing:
                self._end(run, FailureKind.LOST, f"{self._system.NAME} no longer knows its job {run.job}")

    def _job_ended(self, run: _Submitted, job: Job) -> None:
        """Report the end of a run with what the system knows of its job, used if the run itself says nothing."""
        kind, where = job.failure_kind, f" on {job.node}" if job.node else ""
        state = f"{self._system.NAME} reports {job.state}"
        message = f"{state} for its job {job.id}{where}, and the run recorded no reason"
        record = self._record.with_name(f"{run.token}.json")
        started = read_state(run.folder).state != RunState.SUBMITTED
        if kind == FailureKind.EXTERNALLY_CANCELLED:
            message = f"its job {job.id} was cancelled ({job.state})"
        if not started and launch_record.closed(record).exists():
            kind, message = FailureKind.PREEMPTED, "its launcher was interrupted before it began"
        elif not started and job.phase == Phase.FAILED:
            log = record.with_suffix("") / "jobs" / f"{job.id}.log"
            message = f"its job {job.id} failed{where} before the run began; see {log}"
            self._bad_nodes.update([job.node] if job.node else [])
            blamed = job.node and job.node not in run.excluded and len(self._bad_nodes) <= _BAD_NODES
            kind = FailureKind.NODE_FAILURE if blamed else FailureKind.LOST
        self._end(run, kind, message)

    def _end(self, run: _Submitted, kind: FailureKind | None = None, message: str | None = None) -> None:
        del self._submitted[run.job]
        self._ended.append(Ended(run.folder, None, kind, message, run.token))

    def _say(self, message: str | None) -> None:
        """Print a new problem once; None: the problem is over."""
        if message is not None and message != self._message:
            print(message, file=sys.stderr, flush=True)
        elif message is None and self._message is not None:
            print(f"{self._system.NAME} answers again", file=sys.stderr, flush=True)
        self._message = message


def run_of(multirun: Path, name: str, index: int) -> tuple[str, str] | None:
    """The launch's token and the run of a job, by its name and its index in the array; None if the job is another's."""
    if (match := _NAME.fullmatch(name)) is None:
        return None
    path = launch_record.launches_folder(multirun) / match.group(1) / "arrays" / f"{match.group(2)}.json"
    try:
        array = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return (match.group(1), str(array["runs"][index])) if index < len(array["runs"]) else None


def _array(job: str) -> str:
    """The id of a job's array, or of the job itself: 12 of 12_3."""
    return job.partition("_")[0]


def _shares(sizes: Sequence[int], slots: int) -> list[int]:
    """`slots` runs at a time, shared between arrays of these sizes; 0 if an array has to wait for others."""
    if slots >= sum(sizes):
        return list(sizes)
    shares = [0] * len(sizes)
    for _ in range(slots):
        at = max(range(len(sizes)), key=lambda index: (shares[index] == 0, sizes[index] / (shares[index] + 1)))
        shares[at] += 1
    return shares
