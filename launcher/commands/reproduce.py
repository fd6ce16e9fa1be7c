"""python -m launcher reproduce: the commands that repeat one run; --run repeats it here.

Nothing is checked out: the commands are printed. --run executes the run again with the present code and packages, in a
new folder, and compares the metrics step by step.

Exit codes: 0 fine, 1 the configuration, or with --run the metrics, differ from the run's, 2 no such run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.commands import completion
from launcher.project import EXIT_FAILED, EXIT_FINE, ROOT
from launcher.run import catalog

HELP = "print how to repeat one run, and verify that its configuration is unchanged"
_LISTED = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and whether to repeat it here."""
    completion.add_run(parser)
    parser.add_argument("--run", dest="again", action="store_true", help="repeat it here, and compare the metrics")


def run(given: argparse.Namespace) -> int:
    """JSON: id, identity {recorded, computed, wrong}, differences, steps, not_restored, run {...} or null."""
    from launcher.maintenance import reproduce

    folder = catalog.find_run(given.multirun.resolve(), given.run)
    wrong = reproduce.check_identity(folder).wrong
    again = None
    if given.again and not wrong:
        scratch = Path(tempfile.mkdtemp(prefix=f"rlsweep-{folder.name}-"))
        again = reproduce.rerun(folder, ROOT, scratch)
    document = reproduce.document(folder, ROOT, again)
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        _show(document)
    return EXIT_FAILED if wrong or (again is not None and again.first_difference) else EXIT_FINE


def _show(document: Mapping[str, Any]) -> None:
    wrong = document["identity"]["wrong"]
    for line in wrong:
        print(f"not the same run: {line}")
    if not wrong:
        print(f"{document['id']}: the frozen configuration is unchanged: it gives the same identity")
    differences = dict(document["differences"])
    packages = differences.pop("packages", {})
    for name, both in differences.items():
        print(f"differs: {name}: then {both['then']}, now {both['now']}")
    for name, both in list(packages.items())[:_LISTED]:
        print(f"differs: package {name}: then {both['then'] or 'absent'}, now {both['now'] or 'absent'}")
    if len(packages) > _LISTED:
        print(f"differs: {len(packages) - _LISTED} more packages (--json lists them)")
    again = document["run"]
    if again is None:
        lacking = document["not_restored"]
        print(f"to repeat it, but not as it was ({', '.join(lacking)}):" if lacking else "to repeat it as it was:")
        print("\n".join(f"  {step}" for step in document["steps"]))
        return
    print(f"repeated in {again['folder']}: {again['equal_steps']} steps are equal")
    if again["first_difference"]:
        print(f"first difference: {again['first_difference']}")
