"""python -m launcher show: a run's frozen configuration.

Exit codes: 0 fine, 2 no such run.
"""

from __future__ import annotations

import argparse

from launcher import files
from launcher.application import application
from launcher.commands import output
from launcher.errors import Usage
from launcher.project import EXIT_FINE
from launcher.run import catalog
from launcher.run.folder import is_imported, read_config

HELP = "print a run's frozen configuration"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how much of it."""
    parser.add_argument("run", metavar="RUN", help="a run's id, or its beginning")
    parser.add_argument("--full", action="store_true", help="complete, with the tree that it differs from")


def run(given: argparse.Namespace) -> int:
    """Print YAML, or JSON: the content of config.yaml, with `--full` merged with its base."""
    folder = catalog.find_run(given.multirun, given.run)
    config = read_config(folder)
    if given.full and is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, and has no tree to merge with; omit --full")
    if given.full:
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(application(config).completed(folder, config, {}), resolve=True)
    output(given, config, files.dump_yaml(config).splitlines())
    return EXIT_FINE
