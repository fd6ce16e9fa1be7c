"""A batch system of this process: its jobs are processes, which start when somebody asks for them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from launcher.planning.clusters import BatchSettings
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.batch import cluster
from launcher.schedulers.batch.system import Array, Job, Phase, Refusal, Refused

NAME, PROGRAM = "Fake", "launcher.schedulers.batch.job"
CPUS = 64
#: The file conf/cluster/fake.yaml of its package.
CONF = """name: fake
poll_s: 0.1
max_running: 2
max_array: null
detach: false
setup: []
stall_s: null
breaker: 5
retry: {preempted: null, node_failure: null, time_out: null, stalled: 2, lost: 2, out_of_memory: 0, exception: 0,
  diverged: 0}
"""
_numbers = itertools.count(1)


class Settings(BatchSettings):
    name: Literal["fake"]


@dataclass
class Entry:
    job: Job
    array: Array
    process: subprocess.Popen[bytes] | None = None


table: dict[str, Entry] = {}


def submit(array: Array) -> list[str]:
    if array.shape.cpus > CPUS:
        raise Refused(f"a node has {CPUS} CPUs", Refusal.NEVER)
    number = next(_numbers)
    ids = [f"{number}_{index}" for index in range(array.size)]
    table.update({id: Entry(Job(id, array.name, index, Phase.WAITING), array) for index, id in enumerate(ids)})
    return ids


def jobs(prefix: str) -> Mapping[str, Job] | None:
    for entry in table.values():
        if (
            entry.process is not None
            and entry.job.phase == Phase.RUNNING
            and (code := entry.process.poll()) is not None
        ):
            phase = Phase.FAILED if code else Phase.ENDED
            entry.job = replace(entry.job, phase=phase, state=f"exit code {code}")
    for entry in table.values():
        running = [other for other in table.values() if other.job.phase == Phase.RUNNING]
        beside = [other for other in running if other.array is entry.array]
        waits = any(not table[id].job.over for id in table if {id, id.partition("_")[0]} & set(entry.array.after))
        if entry.job.phase == Phase.WAITING and not waits and len(beside) < entry.array.throttle:
            with open(entry.array.logs / f"{entry.job.id}.log", "ab") as log:
                command = ["sh", "-c", entry.array.script(str(entry.job.index))]
                entry.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            entry.job = replace(entry.job, phase=Phase.RUNNING, node="here")
    return {id: entry.job for id, entry in table.items() if entry.job.name.startswith(prefix)}


def ended(names: Mapping[str, str]) -> Mapping[str, Job]:
    shown = jobs("") or {}
    return {id: job for id, job in shown.items() if job.over and names.get(id) == job.name}


def cancel(names: Mapping[str, str], waiting: bool) -> None:
    for id, name in names.items():
        entry = table.get(id)
        if entry is None or entry.job.name != name or entry.job.over or (waiting and entry.process is not None):
            continue
        if entry.process is not None:
            os.killpg(entry.process.pid, signal.SIGTERM)
        kind = FailureKind.EXTERNALLY_CANCELLED
        entry.job = replace(entry.job, phase=Phase.ENDED, failure_kind=kind, state="cancelled")


def check_here(plan, run_ids):
    """Everything fits."""


check = check_here


def start(order):
    return cluster.start(order, sys.modules[__name__], 1000)
