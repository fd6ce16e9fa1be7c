"""rlsweep launch: plan an experiment or a campaign, run what is missing of it, and report.

The words are those of `python launch.py -m`. Relative paths in files of the project begin in its folder. Exit codes: 0
fine, 1 some runs are not done or a gate is not met, 2 an invalid plan; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys

from launcher.commands import completion

HELP = "run an experiment or a campaign, and report"


def arguments(parser: argparse.ArgumentParser) -> None:
    completion.add(parser, "overrides", completion.overrides, "KEY=VALUE", "experiment=NAME, campaign=NAME, ...", "*")


def run(given: argparse.Namespace) -> int:
    import launch

    sys.argv = ["launch.py", "-m", *given.overrides]
    return launch.main()
