"""python -m launcher gc: files that are no longer needed; --delete deletes them.

Without --orphans, it keeps every configuration, metric, summary, log and provenance of a run that was started. It
always keeps files that a live process may be writing, and the newest checkpoint of a planned run that is not done.
Exit codes: 0 fine, 2 usage.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence

from launcher import text
from launcher.maintenance import garbage
from launcher.maintenance.garbage import Garbage, Policy
from launcher.project import EXIT_FINE

HELP = "list files that are no longer needed (old checkpoints, unfinished files); --delete deletes them"
_LISTED = 12


def arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to delete, and what to keep."""
    parser.add_argument("--delete", action="store_true", help="delete what is listed")
    parser.add_argument(
        "--keep", choices=("last", "none"), default="last", help="checkpoints of done runs to keep; default: last"
    )
    parser.add_argument("--orphans", action="store_true", help="also runs that no plan names, with their results")


def run(given: argparse.Namespace) -> int:
    """JSON: deleted (true or false), bytes, items (what, path, bytes, run)."""
    policy = Policy(keep_last=given.keep == "last", orphans=given.orphans)
    items = garbage.find(given.multirun, policy)
    if given.delete:
        items = garbage.delete(given.multirun, items, policy)
    size = sum(item.size for item in items)
    if given.json:
        listed = [{"what": item.what, "path": str(item.path), "bytes": item.size, "run": item.run} for item in items]
        print(json.dumps({"deleted": given.delete, "bytes": size, "items": listed}, indent=1))
    elif not items:
        print(f"{given.multirun}: there is no file to delete")
    else:
        _print(items)
        total = f"{len(items)} files and folders, {text.byte_size(size)}"
        print(f"{total}: deleted" if given.delete else f"{total}; nothing was deleted; add --delete to delete them")
    return EXIT_FINE


def _print(items: Sequence[Garbage]) -> None:
    """The largest items, by what they are."""
    kinds: dict[str, list[Garbage]] = defaultdict(list)
    for item in items:
        kinds[item.what].append(item)
    shown = max(1, _LISTED // len(kinds))
    for what, members in kinds.items():
        print(f"{len(members)} {what}, {text.byte_size(sum(item.size for item in members))}")
        for item in sorted(members, key=lambda item: -item.size)[:shown]:
            print(f"    {text.byte_size(item.size):>9}  {text.clean(str(item.path))}")
        if len(members) > shown:
            print(f"    {'':>9}  and {len(members) - shown} more; --json lists all of them")
