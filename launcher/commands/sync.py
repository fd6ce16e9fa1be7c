"""python -m launcher sync: send finished runs to W&B. It is safe to repeat: unchanged runs are not sent again.

The server is that of WANDB_BASE_URL or `wandb login`. Each run becomes one W&B run with the same id, always complete.

Exit codes: 0 fine, 1 some runs were not sent, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import files
from launcher.commands import output, selection
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import find_object, is_imported, last_final_step, run_folder
from launcher.run.lifecycle import RESUMABLE, RunState, find_state, read_state

if TYPE_CHECKING:
    from launcher.tracking.settings import Labels, Settings

HELP = "send finished runs to W&B; safe to repeat"
# If the server refuses one run, the fault may be the run's; if it refuses several in a row, it is not.
_GIVE_UP_AFTER = 3
# A run that was sent has this file, with its address and a hash of what was sent. It is written after the server has
# confirmed the run. After a crash before that, the next sync asks the server how much of the run it has.
_SENT = "synced.json"


@dataclass(frozen=True)
class Parcel:
    """A run to send: its state, labels and steps up to `until`; `content` is a hash that changes with any of them."""

    folder: Path
    state: str
    where: Settings
    labels: Labels
    until: int
    content: str

    def key(self, server: str) -> dict[str, str | None]:
        """What the record of a run that this server has confirmed says."""
        where = self.where
        return {"server": server, "entity": where.entity, "project": where.project, "content": self.content}


def arguments(parser: argparse.ArgumentParser) -> None:
    selection.add(parser, nargs="*", default="every run")
    parser.add_argument("--project", metavar="P", help="default: the one with which the run was started")
    parser.add_argument("--entity", metavar="E", help="a W&B user or team; default: tracking.entity, else your own")


def run(given: argparse.Namespace) -> int:
    """JSON: server, sent {id: address}, failed {id: why}, unchanged (runs that the server has), left (not tried)."""
    from launcher.tracking.settings import Labels, labels

    multirun: Path = given.multirun
    ids = catalog.resolve(multirun, given.names) if given.names else catalog.run_ids(multirun)
    known = labels(multirun)
    parcels = [
        _parcel(folder, known.get(folder.name, Labels()), given.project, given.entity)
        for folder in (run_folder(multirun, run_id) for run_id in ids)
        if find_state(folder) is not None and not is_imported(folder)
    ]
    due = [parcel for parcel in parcels if parcel.state not in RESUMABLE]
    document: dict[str, Any] = {"server": None, "sent": {}, "failed": {}, "unchanged": 0, "left": 0}
    if due:
        # Two clients must not write one W&B run at the same time.
        with open(multirun / ".sync.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _send(due, document, tell=not given.json)
    output(given, document, _summary(document))
    return EXIT_FAILED if document["failed"] or document["left"] or document.get("error") else EXIT_FINE


def _parcel(folder: Path, labels: Labels, project: str | None, entity: str | None) -> Parcel:
    """The run in its present form; project and entity replace those of its own settings, which a worker has kept."""
    from launcher.tracking import extent
    from launcher.tracking.settings import read_settings, settings_path

    state = read_state(folder)
    where = read_settings(find_object(settings_path(folder)))  # empty: no worker has started it yet
    where = where.model_copy(update={"project": project or where.project, "entity": entity or where.entity})
    until = sys.maxsize if state.state == RunState.DONE else last_final_step(folder)
    # During an attempt the logs only grow, so their lengths identify their content.
    content = json.dumps([state.state, state.attempt, until, extent(folder), asdict(labels)])
    return Parcel(folder, state.state, where, labels, until, hashlib.sha256(content.encode()).hexdigest())


def _is_sent(parcel: Parcel, server: str) -> bool:
    """Whether this server has confirmed exactly this content of the run, in this project."""
    with suppress(files.BadRunFolder):
        return parcel.key(server).items() <= find_object(parcel.folder / _SENT).items()
    return False


def _send(due: list[Parcel], document: dict[str, Any], tell: bool) -> None:
    """Send what the server does not have, one run after another, and record what arrived."""
    from launcher.tracking import wandb

    server = document["server"] = wandb.server()
    changed = [parcel for parcel in due if not _is_sent(parcel, server)]
    document["unchanged"], document["left"] = len(due) - len(changed), len(changed)
    failures = 0
    try:
        if changed:
            wandb.check_credentials(ask=True)
    except wandb.Unsent as error:
        document["error"] = str(error)
        return
    for parcel in changed:
        run_id = parcel.folder.name
        document["left"] -= 1
        try:
            said = wandb.send(parcel.folder, parcel.where, parcel.labels, parcel.state, parcel.until)
            files.write_json(parcel.folder / _SENT, {**parcel.key(server), "address": said, "time": time.time()})
            document["sent"][run_id] = said
            failures = 0
        except wandb.Unsent as error:
            said = f"failed: {error}"
            document["failed"][run_id] = str(error)
            failures += 1
        if tell:
            print(f"{run_id} {said}", flush=True)
        if failures == _GIVE_UP_AFTER:
            return


def _summary(document: dict[str, Any]) -> Iterator[str]:
    if document.get("error"):
        print(f"error: {document['error']}", file=sys.stderr)
    counts = {"sent": len(document["sent"]), "failed": len(document["failed"])}
    counts |= {"there already": document["unchanged"], "not tried": document["left"]}
    yield ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no finished runs"
    if counts["failed"] or counts["not tried"]:
        print("nothing is lost; repeat this command to send the others", file=sys.stderr)
