"""python -m launcher gc: what of the run folders nothing needs any more; --delete removes it.

Kept always: every configuration, metric, summary, log and provenance of a run that has run, whatever an owner may be
writing, and the newest checkpoint of every run that is not done. Exit codes: 0 fine, 2 usage.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence

from launcher import text
from launcher.maintenance import garbage
from launcher.maintenance.garbage import Leftover, Policy
from launcher.project import EXIT_FINE

HELP = "list what nothing needs any more (old checkpoints, leftovers); --delete removes it"
_LISTED = 12


def arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to delete, and what to keep."""
    parser.add_argument("--delete", action="store_true", help="remove what is listed")
    parser.add_argument(
        "--keep", choices=("last", "none"), default="last", help="checkpoints of done runs to keep; default: last"
    )


def run(given: argparse.Namespace) -> int:
    """JSON: deleted (true or false), bytes, items (what, path, bytes, run)."""
    policy = Policy(keep_last=given.keep == "last")
    found = garbage.find(given.multirun, policy)
    if given.delete:
        found = garbage.delete(given.multirun, found, policy)
    if given.json:
        items = [{"what": one.what, "path": str(one.path), "bytes": one.size, "run": one.run} for one in found]
        print(json.dumps({"deleted": given.delete, "bytes": sum(one.size for one in found), "items": items}, indent=1))
        return EXIT_FINE
    if not found:
        print(f"{given.multirun}: nothing {'was' if given.delete else 'is'} left over")
        return EXIT_FINE
    _print(found)
    total = f"{len(found)} files and folders, {text.byte_size(sum(one.size for one in found))}"
    print(f"{total}: deleted" if given.delete else f"{total}; nothing was deleted: --delete does it")
    return EXIT_FINE


def _print(found: Sequence[Leftover]) -> None:
    """The largest, by what they are."""
    kinds: dict[str, list[Leftover]] = defaultdict(list)
    for one in found:
        kinds[one.what].append(one)
    each = max(1, _LISTED // len(kinds))
    for what, own in kinds.items():
        print(f"{len(own)} {what}, {text.byte_size(sum(one.size for one in own))}")
        for one in sorted(own, key=lambda one: -one.size)[:each]:
            print(f"    {text.byte_size(one.size):>9}  {text.clean(str(one.path))}")
        if len(own) > each:
            print(f"    {'':>9}  and {len(own) - each} more: --json has them all")
