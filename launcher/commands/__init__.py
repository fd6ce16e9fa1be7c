"""The commands of `python -m launcher`: one module for each, of the same name.

A module defines HELP, `arguments(parser)` and `run(given)`, which returns the exit code: 0 fine, 1 some runs failed, 2
usage or an invalid plan (`errors.Usage` becomes 2). Every command has `--json`: `output` prints its answer. At its top,
a module imports only the standard library and light modules of the launcher. It imports others where it needs them, so
that the commands that only read stay fast.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any


def output(given: argparse.Namespace, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a command's answer: the document with --json, else the lines."""
    for line in [json.dumps(document, indent=1)] if given.json else lines:
        print(line)
