"""The commands of `python -m launcher`: one module for each, of the same name.

A module defines HELP, `arguments(parser)` and `run(given)`, which returns the exit code: 0 fine, 1 some runs failed, 2
usage or an invalid plan (`errors.Usage` becomes 2). Every command has `--json`: `output` prints its answer. At its top,
a module imports only the standard library and light modules of the launcher. It imports others where it needs them, so
that the commands that only read stay fast.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.errors import InvalidPlan, SchedulerError, Usage, missing_extra, print_error, print_problems
from launcher.files import BadRunFolder
from launcher.project import EXIT_FAILED, EXIT_USAGE


def output(given: argparse.Namespace, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a command's answer: the document with --json, else the lines."""
    for line in [json.dumps(document, indent=1)] if given.json else lines:
        print(line)


def exit_code(command: Callable[[], int]) -> int:
    """The exit code of a command. Its errors are printed: what is wrong with a plan, a name or a file."""
    try:
        return command()
    except InvalidPlan as invalid:
        print_problems(invalid)
    except (Usage, BadRunFolder) as error:
        print_error(error)
    except ModuleNotFoundError as error:
        if (message := missing_extra(error)) is None:
            raise
        print_error(ModuleNotFoundError(message))
    except (OSError, SchedulerError) as error:  # such as a folder of another user, or a full disk
        print_error(error)
        return EXIT_FAILED
    return EXIT_USAGE
