"""The sections `cluster` (the settings of each scheduler; conf/cluster has every default) and `budget`. Neither is part
of a run's identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from analysis.spec.validation import Listed, Section
from launcher.config import installed_parts
from launcher.errors import InvalidPlan, Objection
from launcher.run.lifecycle import described

_ELSEWHERE = "choose another scheduler with cluster=NAME"
_OPTION = r"^[A-Za-z0-9_.,:;/@%+=()|&!*~<>\[\] -]+$"  # characters that need no quotes in a shell script
_Times = Annotated[int | None, Field(ge=0, description="a number of times, or null for no limit")]
_Runs = Annotated[int | None, Field(ge=1, description="a number of runs, 1 or more, or null")]
_Name = Annotated[
    str | None,
    Field(pattern="^[A-Za-z0-9_.,:@+-]+$", description="a name (letters, digits, and _ . , : @ + -), or null"),
]
_Command = Annotated[str, Field(pattern=r"^[^\n\r]+$", description="a shell command on one line")]


class _Retry(Section):
    """How often a run is resumed automatically after each kind of failure."""

    preempted: _Times
    time_out: _Times
    stalled: _Times
    lost: _Times
    out_of_memory: _Times
    exception: _Times
    diverged: _Times


class _RetryOnNodes(_Retry):
    node_failure: _Times


class _Cluster(Section):
    stall_s: float | None = Field(gt=0, description="seconds above 0, or null")
    breaker: int | None = Field(ge=1, description="a number of failures, 1 or more, or null")


class _Limited(_Cluster):
    """A cluster whose runs the launcher watches itself, with a time limit."""

    limit_s: float | None = Field(gt=0, description="seconds above 0, or null")
    grace_s: float = Field(ge=0)


class Local(_Limited):
    """A pool of workers on this machine."""

    name: Literal["local"] = Field(description=f"local; {_ELSEWHERE}")
    slots: _Runs
    retry: _Retry


class Ray(_Limited):
    """A Ray cluster, or a Ray that is started on this machine for the launch."""

    name: Literal["ray"] = Field(description=f"ray; {_ELSEWHERE}")
    address: str | None = Field(
        pattern=r"^(auto|(ray://)?[A-Za-z0-9_.\[\]:-]+:[0-9]{1,5})$",
        description="null, auto, HOST:PORT or ray://HOST:PORT",
    )
    cpus: int | None = Field(ge=1, description="a number of CPUs, 1 or more, or null")
    max_running: _Runs
    start_s: float = Field(gt=0)
    retry: _RetryOnNodes


class BatchSettings(_Cluster):
    """The settings of a batch system that launcher.schedulers.batch reads."""

    max_running: _Runs
    max_array: _Runs
    poll_s: float = Field(gt=0)
    detach: bool
    setup: Listed[_Command] = Field(description="a list of shell commands, each on one line")
    retry: _RetryOnNodes


class Slurm(BatchSettings):
    """Job arrays of SLURM."""

    name: Literal["slurm"] = Field(description=f"slurm; {_ELSEWHERE}")
    partition: _Name
    account: _Name
    qos: _Name
    constraint: str | None = Field(pattern=_OPTION, description="text without quotes, $, # and backslashes, or null")
    gpu_type: _Name
    signal_delay_s: int = Field(ge=1, le=65535)
    sbatch: (
        dict[Annotated[str, Field(pattern="^[a-z][a-z-]*$")], int | bool | Annotated[str, Field(pattern=_OPTION)]]
        | None
    ) = Field(
        description="a mapping of sbatch's long options to text without quotes, $, # and backslashes, to numbers or to "
        "true"
    )


#: The settings of each built-in scheduler, by `cluster.name` in conf/cluster/*.yaml.
CLUSTERS: Mapping[str, type[Section]] = {"local": Local, "ray": Ray, "slurm": Slurm}
# What the module of a scheduler has, and that of a batch system as well (docs/schedulers.md).
_NEEDED, _OF_BATCH = ("check_here", "check", "start"), ("NAME", "PROGRAM", "submit", "jobs", "ended", "cancel")


def settings(name: str, where: str) -> type[Section]:
    """The model of the section `cluster` for the scheduler that a file, `where`, names. Raises InvalidPlan."""
    return CLUSTERS[name] if name in CLUSTERS else module(name, where).Settings


def module(name: str, where: str) -> Any:
    """The module of another package's scheduler, which `where` names. Raises InvalidPlan if it cannot be used."""
    points = {point.value: point for point in installed_parts.schedulers().select(name=name)}.values()
    if len(points) != 1:
        by = " and ".join(point.dist.name for point in points)
        known = f"one of {', '.join(sorted({*CLUSTERS, *installed_parts.schedulers().names}))}"
        rule, fix = (f"registered twice, by {by}", "rename one") if by else (f"must be {known}", f"give {known}")
        raise InvalidPlan([Objection("cluster.name", name, rule, fix, where)])
    (point,) = points
    try:
        found = point.load()
        needs = _NEEDED + (_OF_BATCH if issubclass(found.Settings, BatchSettings) else ())
        if lacking := [part for part in needs if not hasattr(found, part)]:
            raise AttributeError(f"it lacks {', '.join(lacking)}")
        return found
    except (Exception, SystemExit) as error:
        rule, fix = f"cannot be used: {described(error)}", "correct the code (docs/schedulers.md)"
        raise InvalidPlan([Objection(f"entry point {name}", point.value, rule, fix, point.dist.name)]) from error


class Budget(Section):
    """A limit on what an experiment costs. device_hours counts all attempts of all its runs, over all launches."""

    device_hours: float | None = Field(None, gt=0, description="device-hours above 0, or null")
