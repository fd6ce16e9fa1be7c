"""Runs as SLURM's job arrays, watched from here while this process lives, and able to go on without it.

The run folders are the truth; what SLURM says is asked for where they are silent. A job that is preempted, or reaches
its time limit, takes its own place in the queue again (task.py), and one whose node fails is requeued by SLURM: only
what ended for good comes back to the launcher. Jobs that an earlier launch left behind are adopted, not doubled.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.planning.resources import Shape
from launcher.run import claim, launch_record, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.schedulers.protocol import Ended, SchedulerError
from launcher.schedulers.slurm import arrays as slurm_arrays
from launcher.schedulers.slurm import queue
from launcher.schedulers.slurm.arrays import Arrays
from launcher.schedulers.slurm.queue import Job
from launcher.schedulers.slurm.task import Task

_EVERYTHING = 1_000_000
_UNLIMITED = 100_000
# sbatch's words when one may not have more jobs now, when slurmctld is away, and when it goes while they speak: SLURM's
# own for a message, the system's for a connection.
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
# This many nodes on which nothing even begins are no longer the nodes' fault.
_BAD_NODES = 2
# A job that the queue does not show is looked for this often before it counts as gone.
_PATIENCE = 2


@dataclass
class _Submitted:
    """A run with a job; `token` is that of the launch which submitted it. `missed`: looks that did not show it."""

    folder: Path
    job: str
    token: str
    missed: int = 0


class Slurm:
    """A scheduler over SLURM. `shape_of` and `parameters` tell what a run, and a shape, asks of sbatch."""

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
        self._next_look = 0.0
        self._next_submission = 0.0
        self._said: str | None = None
        self._closing = False  # the launch is interrupted
        self._away = False  # slurmctld did not answer the last time

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs, or of their arrays, that have not ended."""
        return sorted({job.partition("_")[0] for job in self._submitted})

    def capacity(self) -> int:
        """Everything: SLURM's queue is where runs wait."""
        return _EVERYTHING

    def submit(self, folder: Path, job: str) -> None:
        """Put a run into an array, which the next `poll` submits."""
        self._collected.append(folder)

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Submit what was collected, then look at the runs and the queue, each some seconds after the last time."""
        now = time.monotonic()
        if self._collected and now >= self._next_submission:
            self._next_submission = now + float(self._settings["poll_s"])
            self._submit()
        elif now < self._next_look:
            time.sleep(min(timeout, self._next_look - now))
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + float(self._settings["poll_s"])
            self._look()
        ended, self._ended = self._ended, []
        return ended

    def give_up(self) -> int:
        """Let the runs that no array has taken wait for another launch; how many."""
        for folder in self._collected:
            self._free(folder)
        count, self._collected = len(self._collected), []
        return count

    def withdraw(self) -> int:
        """Take back the runs that have not begun; how many."""
        count = self.give_up()
        pending = [one.job for one in self._submitted.values() if self._free(one.folder)]
        _scancel(pending, "--state=PENDING")
        self._next_look = 0.0
        return count + len(pending)

    def cancel(self, kill: bool = False) -> None:
        """Ask the running runs to save a checkpoint and stop, and take the others back; kill: end all their jobs."""
        launch_record.closed(self._record).touch()
        self._closing = True
        self.give_up()
        self._leave()
        jobs = list(self._submitted)
        if not self._away and self._known() is not None:
            _scancel(jobs, *([] if kill else ["--state=PENDING"]))
        elif jobs:
            self._say(f"slurmctld does not answer: {len(jobs)} jobs stay with it; those of this launch begin no run")
        self._let_go()
        self._next_look = 0.0

    def close(self) -> None:
        """Nothing: what is in the queue stays there, and the same command finds it again."""

    # ------------------------------------------------------------ submission

    def _submit(self) -> None:
        """Submit the collected runs, but those that a job of an earlier launch already does."""
        known = self._known()
        if known is None:
            return self._say("slurmctld does not answer; submission waits for it")
        ending = self._adopt(known)
        by_shape: dict[Shape, list[Path]] = {}
        for folder in self._collected:
            if folder.name in ending:
                continue
            by_shape.setdefault(self._shape_of[folder.name], []).append(folder)
        sizes = [len(runs) for runs in by_shape.values()]
        shares = _shares(sizes, self._free_slots(known))
        for (shape, runs), share in zip(by_shape.items(), shares, strict=True):
            if not self._submit_shape(shape, runs, share):
                return

    def _submit_shape(self, shape: Shape, runs: list[Path], share: int) -> bool:
        """Submit the runs of one shape, at most `share` of them at a time; whether to go on with the next."""
        given = self._parameters(shape)
        if self._bad_nodes:
            given = {**given, "exclude": ",".join(sorted(self._bad_nodes))}
        task = self._task(shape)
        while runs and share:
            arrays = -(-len(runs) // self._largest)
            part, throttle = runs[: self._largest], max(1, share // arrays)
            try:
                jobs = self._arrays.submit(part, given, throttle, task)
            except slurm_arrays.REFUSED as error:
                return self._refused(part, str(error))
            self._throttle[jobs[0].partition("_")[0]] = throttle
            share -= throttle
            for folder, job in zip(part, jobs, strict=True):
                self._submitted[job] = _Submitted(folder, job, self._record.stem)
            done = set(part)
            self._collected = [folder for folder in self._collected if folder not in done]
            runs = runs[len(part) :]
            self._say(None)
        return True

    def _task(self, shape: Shape) -> dict[str, Any]:
        return {"train": self._train, "limit_s": shape.time_s, "signal_delay_s": self._settings["signal_delay_s"]}

    def _refused(self, part: list[Path], why: str) -> bool:
        """Wait, or try with smaller arrays, where that may help. SchedulerError: sbatch will never take these."""
        why = " ".join(why.split())
        if not any(word in why for word in _LATER):
            for folder in self._collected:
                self._free(folder)
            self._collected = []
            raise SchedulerError(
                f"sbatch refused: {why}; what was submitted before goes on, and the same command finds it"
            )
        if "limit" in why or "count" in why or "MaxSubmit" in why:
            if len(part) > 1:
                self._largest = len(part) // 2
                self._next_submission = 0.0
            elif not self._submitted:
                raise SchedulerError(f"sbatch refused a single run: {why}")
        self._say(f"sbatch takes no more now ({why}); the rest waits")
        return False

    def _adopt(self, known: Mapping[str, Job]) -> set[str]:
        """Take over the jobs of earlier launches, and of this one's calls of sbatch that seemed to fail.

        Returns the runs whose jobs are just ending: whether those run again is known at a later look.
        """
        wanted, ending = {folder.name: folder for folder in self._collected}, set[str]()
        idle = []
        for job in known.values():
            if job.over or job.stuck or job.id in self._submitted:
                continue
            found = slurm_arrays.run_of(self._multirun, job.name, job.index)
            if found is None or found[1] not in wanted:
                continue
            token, record = found[0], self._record.with_name(f"{found[0]}.json")
            if launch_record.closed(record).exists():
                idle.append(job.id)
                continue
            if job.ending:
                ending.add(found[1])
                continue
            folder = wanted.pop(found[1])
            self._submitted[job.id] = _Submitted(folder, job.id, token)
            task = self._task(self._shape_of[folder.name])
            self._arrays.complete(token, job.id, Task(folder=str(folder.resolve()), record=str(record), **task))
            print(f"{folder.name} is already job {job.id}, of launch {token}: adopted", file=sys.stderr, flush=True)
        _scancel(idle, "--state=PENDING")
        self._collected = list(wanted.values())
        return ending - {one.folder.name for one in self._submitted.values()}

    def _free_slots(self, known: Mapping[str, Job]) -> int:
        """How many more runs may run at a time."""
        if self._settings["max_running"] is None:
            return _UNLIMITED
        alive: dict[str, int] = {}
        for one in self._submitted.values():
            job = known.get(one.job)
            if job is None or not job.over:
                array = one.job.partition("_")[0]
                alive[array] = alive.get(array, 0) + 1
        used = sum(min(count, self._throttle.get(array, count)) for array, count in alive.items())
        return max(0, int(self._settings["max_running"]) - used)

    def _free(self, folder: Path) -> bool:
        """Say of a run that it waits again, where it has not begun; whether that is so."""
        with suppress(claim.Locked), claim.locked(folder, claim.PATIENCE_S):
            return claim.live_claim(folder) is None and self._release(folder)
        return False

    def _release(self, folder: Path) -> bool:
        """The same, of a run without an owner, whose lock is held."""
        state = folders.read_state(folder)
        if state.state == folders.SUBMITTED:
            folders.write_state(folder, state.but(state=folders.PLANNED))
        return state.state == folders.SUBMITTED

    def _leave(self) -> None:
        """Of an interrupted launch: ask what runs to stop, and say of the others that they wait."""
        for one in self._submitted.values():
            with suppress(claim.Locked), claim.locked(one.folder, claim.PATIENCE_S):
                owner = claim.live_claim(one.folder)
                if owner is None:
                    self._release(one.folder)
                elif stop_request.asked(one.folder, owner.token) is None:
                    stop_request.send(one.folder, owner, lifecycle.PREEMPTED, "its launcher was interrupted")

    def _known(self) -> Mapping[str, Job] | None:
        """What SLURM knows of our jobs; None, after some seconds, while it does not answer."""
        known = queue.mine(slurm_arrays.PREFIX)
        self._away = known is None
        return known

    def _let_go(self) -> None:
        """Wait no longer for what no job of ours begins: this launch is closed; or nobody knows, without slurmctld."""
        for one in list(self._submitted.values()):
            waits = folders.read_state(one.folder).state in (folders.PLANNED, folders.PREEMPTED)
            if waits and claim.live_claim(one.folder) is None and (self._away or one.token == self._record.stem):
                self._over(one)

    # ------------------------------------------------------------ what became of them

    def _look(self) -> None:
        """Find the runs that are over, by their folders, and by SLURM where their jobs are over."""
        idle = []
        if self._closing:
            self._leave()
            self._let_go()
        for one in list(self._submitted.values()):
            state = folders.read_state(one.folder)
            # What may be taken up again may be about to be, by its own job.
            if state.state not in folders.RESUMABLE and claim.live_claim(one.folder) is None:
                self._over(one)
                if state.job != one.token or state.state == folders.CANCELLED:
                    idle.append(one.job)  # somebody else was faster: the job need not begin any more
        _scancel(idle, "--state=PENDING")
        if not self._submitted:
            return
        known = self._known()
        if known is None:
            return self._say("slurmctld does not answer; the runs go on, and their folders are watched")
        if not self._collected:
            self._say(None)
        stuck = [job.id for job in known.values() if job.stuck and job.id in self._submitted]
        _scancel(stuck)
        for one in self._submitted.values():
            one.missed = 0 if one.job in known else one.missed + 1
        gone = queue.ended(one.job for one in self._submitted.values() if one.missed >= _PATIENCE)
        for one in list(self._submitted.values()):
            job = known.get(one.job) or gone.get(one.job)
            if job is not None and (job.over or job.stuck):
                self._judge(one, job)
            elif job is None and one.missed >= _PATIENCE:
                self._forgotten(one)

    def _forgotten(self, one: _Submitted) -> None:
        """SLURM remembers for minutes what has run, but a waiting task of an array that is cancelled goes at once."""
        if folders.read_state(one.folder).state == folders.SUBMITTED:
            self._over(one, lifecycle.REVOKED, f"its job {one.job} was cancelled before it began (scancel)")
        else:
            self._over(one, lifecycle.LOST, f"SLURM no longer knows its job {one.job}")

    def _judge(self, one: _Submitted, job: Job) -> None:
        """A job is over: say what SLURM knows of it, for the case that its run says nothing."""
        kind, where = job.kind, f" on {job.node}" if job.node else ""
        detail = f" ({job.reason})" if job.reason not in ("", "None") else ""
        cause = f"SLURM says {job.state}{detail} of its job {job.id}{where}, and the run says nothing"
        if job.state == "CANCELLED":
            cause = f"its job {job.id} was cancelled (scancel)"
        begun = folders.read_state(one.folder).state != folders.SUBMITTED
        if not begun and launch_record.closed(self._record.with_name(f"{one.token}.json")).exists():
            kind, cause = lifecycle.PREEMPTED, "its launcher was interrupted before it began"
        elif not begun and job.state == "FAILED":
            cause = f"its job {job.id} failed{where} before the run began; see {self._log(job)}"
            self._bad_nodes.update([job.node] if job.node else [])
            kind = lifecycle.NODE_FAILURE if 0 < len(self._bad_nodes) <= _BAD_NODES else lifecycle.LOST
        self._over(one, kind, cause)

    def _log(self, job: Job) -> Path:
        return self._record.with_suffix("") / "jobs" / f"{job.id}_0_log.out"

    def _over(self, one: _Submitted, kind: str | None = None, cause: str | None = None) -> None:
        del self._submitted[one.job]
        self._ended.append(Ended(one.folder, None, kind, cause, one.token))

    def _say(self, what: str | None) -> None:
        """Say once what is unusual, and once that it is over."""
        if what is not None and what != self._said:
            print(what, file=sys.stderr, flush=True)
        elif what is None and self._said is not None:
            print("SLURM answers again", file=sys.stderr, flush=True)
        self._said = what


def _shares(sizes: Sequence[int], slots: int) -> list[int]:
    """`slots` runs at a time, shared between arrays of these sizes; 0 where an array has to wait for others."""
    if slots >= sum(sizes):
        return list(sizes)
    shares = [0] * len(sizes)
    for _ in range(slots):
        at = max(range(len(sizes)), key=lambda index: (shares[index] == 0, sizes[index] / (shares[index] + 1)))
        shares[at] += 1
    return shares


def _scancel(jobs: Sequence[str], *options: str) -> None:
    """scancel some jobs or tasks; the list is cut, for a command line is only so long."""
    for at in range(0, len(jobs), 500):
        queue.ask(["scancel", *options, *jobs[at : at + 500]])
