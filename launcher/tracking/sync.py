"""Which runs W&B does not have as they are, and sending them.

A run that was sent has synced.json: where to, and what the run was then. It is written after the server has confirmed
the run; a crash before that lets the next sync ask the server again, which says how far it came.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher import files
from launcher.run import folder as folders
from launcher.tracking.labels import Labels
from launcher.tracking.rows import extent, settled
from launcher.tracking.settings import ONLINE, Settings, read_settings, settings_path

# A run that the server does not take may be a special one; several in a row are not.
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


@dataclass(frozen=True)
class Sent:
    """What became of one parcel: its address on the server, or why it did not arrive."""

    parcel: Parcel
    address: str | None
    error: str | None


def parcel(folder: Path, own: Labels, project: str | None, entity: str | None) -> Parcel:
    """The run as it stands; project and entity in place of those that it ran with."""
    state = folders.read_state(folder)
    where = run_settings(folder)
    where = replace(where, project=project or where.project, entity=entity or where.entity)
    until = sys.maxsize if state.state == folders.DONE else settled(folder)
    # The logs only grow during an attempt: their sizes stand for their content.
    content = json.dumps([state.state, state.attempt, until, asdict(extent(folder)), asdict(own)])
    return Parcel(folder, state.state, where, own, until, hashlib.sha256(content.encode()).hexdigest())


def run_settings(folder: Path) -> Settings:
    """What the run was tracked with; the defaults for one that no worker has had."""
    try:
        return read_settings(json.loads(settings_path(folder).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Settings()


def due(one: Parcel, running: bool) -> bool:
    """Whether a run's state asks for sending: it is at its end, or, with `running`, a checkpoint has some of it.

    A run that its own worker sends is left to it while it runs.
    """
    if one.state not in folders.RESUMABLE:
        return True
    followed = one.where.wandb == ONLINE and one.state == folders.RUNNING
    return running and not followed and one.until > 0


def is_sent(one: Parcel, server: str) -> bool:
    """Whether this server has confirmed exactly this content of the run, in this place."""
    try:
        record = json.loads((one.folder / "synced.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(record, dict) and {key: record.get(key) for key in _key(one, server)} == _key(one, server)


def _key(one: Parcel, server: str) -> dict[str, str | None]:
    return {"server": server, "entity": one.where.entity, "project": one.where.project, "content": one.content}


def send_all(parcels: Sequence[Parcel]) -> Iterator[Sent]:
    """Send one after another, and record what arrived. After GIVE_UP_AFTER failures in a row, the rest stays."""
    from launcher.tracking import wandb

    address = wandb.server()
    failures = 0
    for one in parcels:
        try:
            where = wandb.send(one.folder, one.where, one.labels, one.state, one.until)
        except wandb.Unsent as error:
            failures += 1
            yield Sent(one, None, str(error))
            if failures == GIVE_UP_AFTER:
                return
            continue
        failures = 0
        files.write_json(
            one.folder / "synced.json",
            {**_key(one, address), "address": where, "time": time.time()},
        )
        yield Sent(one, where, None)
