"""The compute that runs took: device-seconds, of all their attempts; without a device, the seconds of a processor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.files import BadRunFolder
from launcher.run import claim
from launcher.run.archive import archived
from launcher.run.folder import find_state, metrics_path, run_folder
from launcher.run.lifecycle import RunState
from launcher.run.records import State

HOUR_S = 3600.0
DEVICE_HOURS, CPU_HOURS = "device-hours", "CPU-hours"


def running(state: State, now: float) -> float:
    """The device-seconds of a run's present attempt until `now` (unix seconds); 0 if none runs."""
    if state.state != RunState.RUNNING or state.started is None:
        return 0.0
    # If the clock was set back meanwhile, the difference is negative.
    return max(0.0, now - state.started) * max(state.devices, 1)


def unit(provenances: Iterable[Mapping[str, Any] | None]) -> str:
    """What the hours of runs are called: CPU-hours if their provenance, as far as it is known, has no GPU."""
    known = [record["devices"] for record in provenances if record and isinstance(record.get("devices"), Mapping)]
    return CPU_HOURS if known and not any(devices.get("gpus") for devices in known) else DEVICE_HOURS


def last_sign(folder: Path) -> float:
    """When the run's present attempt was last known to run (unix seconds): its heartbeat, or its last step."""
    signs = (folder / "claim.json", metrics_path(folder), folder / "state.json")
    return max(path.stat().st_mtime for path in signs if path.exists())


def unfinished(device_seconds: Mapping[str, float], attempt: int, state: str) -> float:
    """The device-seconds of the ended attempts that did not finish the run: they failed or were interrupted.

    The arguments are fields of the run's state.
    """
    finishing = str(attempt) if state == RunState.DONE else None
    return sum(seconds for number, seconds in device_seconds.items() if number != finishing)


def spent(multirun: Path, run_ids: Iterable[str], now: float) -> dict[str, float]:
    """The device-seconds of all attempts of each run until `now`, those in its archived folders included."""
    former = archived(multirun)
    seconds: dict[str, float] = {}
    for run_id in run_ids:
        current = run_folder(multirun, run_id)
        seconds[run_id] = sum(_of_folder(folder, now) for folder in (current, *former.get(run_id, ())))
    return seconds


def _of_folder(folder: Path, now: float) -> float:
    try:
        state = find_state(folder)
    except BadRunFolder:
        return 0.0  # `status` reports what is wrong with the folder
    if state is None:
        return 0.0
    alive = state.state == RunState.RUNNING and claim.live_claim(folder) is not None
    end = now if alive else last_sign(folder)
    return sum(state.device_seconds.values()) + running(state, end)
