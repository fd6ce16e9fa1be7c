"""python -m launcher sync: send finished runs to W&B. It is safe to repeat: unchanged runs are not sent again.

The server is that of WANDB_BASE_URL or `wandb login`. Each run becomes one W&B run with the same id, always complete.

Exit codes: 0 fine, 1 some runs were not sent, 2 no such run or experiment.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands import completion
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import find_state, is_imported, run_folder

if TYPE_CHECKING:
    from launcher.tracking.sync import Parcel

HELP = "send finished runs to W&B; safe to repeat"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, and where to send them."""
    completion.add_names(parser, "runs", nargs="*", help="default: every run")
    parser.add_argument("--project", metavar="P", help="default: the one with which the run was started")
    parser.add_argument("--entity", metavar="E", help="a W&B user or team; default: tracking.entity, else your own")
    parser.add_argument("--running", action="store_true", help="also send what unfinished runs have logged so far")


def run(given: argparse.Namespace) -> int:
    """JSON: server, sent {id: address}, failed {id: why}, unchanged (runs that the server has), left (not tried)."""
    from launcher.tracking import sync
    from launcher.tracking.settings import Labels, labels

    multirun: Path = given.multirun
    ids = catalog.resolve(multirun, given.runs) if given.runs else catalog.run_ids(multirun)
    known = labels(multirun)
    parcels = [
        sync.parcel(folder, known.get(folder.name, Labels()), given.project, given.entity)
        for folder in (run_folder(multirun, run_id) for run_id in ids)
        if find_state(folder) is not None and not is_imported(folder)
    ]
    due = [parcel for parcel in parcels if sync.due(parcel, given.running)]
    document: dict[str, Any] = {"server": None, "sent": {}, "failed": {}, "unchanged": 0, "left": 0}
    if due:
        with _locked(multirun):
            _send(due, document, tell=not given.json)
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        _summarize(document)
    return EXIT_FAILED if document["failed"] or document["left"] or document.get("error") else EXIT_FINE


def _send(due: list[Parcel], document: dict[str, Any], tell: bool) -> None:
    from launcher.tracking import sync, wandb

    document["server"] = wandb.server()
    changed = [parcel for parcel in due if not sync.is_sent(parcel, document["server"])]
    document["unchanged"] = len(due) - len(changed)
    document["left"] = len(changed)
    if not changed:
        return
    try:
        wandb.check_credentials(ask=True)
    except wandb.Unsent as error:
        document["error"] = str(error)
        return
    for parcel, address, why in sync.send_all(changed):
        run_id = parcel.folder.name
        document["left"] -= 1
        document["sent" if why is None else "failed"][run_id] = address or why
        if tell:
            print(f"{run_id} {address}" if why is None else f"{run_id} failed: {why}", flush=True)


def _summarize(document: dict[str, Any]) -> None:
    if document.get("error"):
        print(f"error: {document['error']}", file=sys.stderr)
    counts = {"sent": len(document["sent"]), "failed": len(document["failed"])}
    counts |= {"there already": document["unchanged"], "not tried": document["left"]}
    print(", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no finished runs")
    if counts["failed"] or counts["not tried"]:
        print("nothing is lost; repeat this command to send the others", file=sys.stderr)


@contextmanager
def _locked(multirun: Path) -> Iterator[None]:
    """Wait for the lock of `sync` and hold it: two clients must not write one W&B run at the same time."""
    import fcntl

    with open(multirun / ".sync.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
