"""Finding the runs that W&B does not have in their present form, and sending them.

A run that was sent has synced.json, with its address and a hash of what was sent. It is written after the server has
confirmed the run. After a crash before that, the next sync asks the server how much of the run it has.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher import files
from launcher.run.folder import last_final_step, read_state
from launcher.run.lifecycle import RESUMABLE, RunState
from launcher.run.records import read_object
from launcher.tracking.rows import extent
from launcher.tracking.settings import ONLINE, Labels, Settings, read_settings, settings_path

# If the server refuses one run, the fault may be the run's; if it refuses several in a row, it is not.
GIVE_UP_AFTER = 3


@dataclass(frozen=True)
class Parcel:
    """A run to send: its state, labels and steps up to `until`; `content` is a hash that changes with any of them."""

    folder: Path
    state: str
    where: Settings
    labels: Labels
    until: int
    content: str


def parcel(folder: Path, labels: Labels, project: str | None, entity: str | None) -> Parcel:
    """The run in its present form; project and entity replace those of its own settings."""
    state = read_state(folder)
    where = run_settings(folder)
    where = where.model_copy(update={"project": project or where.project, "entity": entity or where.entity})
    until = sys.maxsize if state.state == RunState.DONE else last_final_step(folder)
    # During an attempt the logs only grow, so their lengths identify their content.
    content = json.dumps([state.state, state.attempt, until, asdict(extent(folder)), asdict(labels)])
    return Parcel(folder, state.state, where, labels, until, hashlib.sha256(content.encode()).hexdigest())


def run_settings(folder: Path) -> Settings:
    """The tracking settings of the run; the defaults if no worker has started it yet."""
    try:
        return read_settings(json.loads(settings_path(folder).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Settings()


def due(parcel: Parcel, running: bool) -> bool:
    """Whether to send a run: it has ended, or, with `running`, a checkpoint has some of its steps.

    While a run is running and its own worker sends it, it is not sent here.
    """
    if parcel.state not in RESUMABLE:
        return True
    followed = parcel.where.wandb == ONLINE and parcel.state == RunState.RUNNING
    return running and not followed and parcel.until > 0


def is_sent(parcel: Parcel, server: str) -> bool:
    """Whether this server has confirmed exactly this content of the run, in this project."""
    try:
        record = read_object(parcel.folder / "synced.json")
    except (FileNotFoundError, files.BadRunFolder):
        return False
    return _key(parcel, server).items() <= record.items()


def _key(parcel: Parcel, server: str) -> dict[str, str | None]:
    where = parcel.where
    return {"server": server, "entity": where.entity, "project": where.project, "content": parcel.content}


def send_all(parcels: Sequence[Parcel]) -> Iterator[tuple[Parcel, str | None, str | None]]:
    """Send them one after another, and record what arrived. After GIVE_UP_AFTER failures in a row, stop.

    Yields each with its address on the server, or None and why it was not sent.
    """
    from launcher.tracking import wandb

    address = wandb.server()
    failures = 0
    for parcel in parcels:
        try:
            where = wandb.send(parcel.folder, parcel.where, parcel.labels, parcel.state, parcel.until)
        except wandb.Unsent as error:
            failures += 1
            yield parcel, None, str(error)
            if failures == GIVE_UP_AFTER:
                return
            continue
        failures = 0
        record = {**_key(parcel, address), "address": where, "time": time.time()}
        files.write_json(parcel.folder / "synced.json", record)
        yield parcel, where, None
