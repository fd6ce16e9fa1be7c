"""Run an experiment: python launch.py -m experiment=NAME [overrides]; or a campaign: campaign=NAME

Hydra reads the command line (--help, --cfg job, --info ... are Hydra's). The experiment's overrides are passed on
unread to the sweeper, which plans all of them together (launcher/commands/sweeper.py says why). Exit codes: 0 fine, 1
some runs are not done or a gate is not met, 2 usage or invalid plan; 130 after Ctrl-C while it plans or reports.
"""

from __future__ import annotations

import sys
from typing import Any

# With these, Hydra prints something and nothing is run.
SHOWING = ("--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc")


def pack(words: list[str]) -> list[str]:
    """The command line with the experiment's overrides packed into `hydra.sweeper.arguments`."""
    from hydra.core.override_parser.types import Quote, QuotedString

    from launcher.planning.overrides import is_bare, is_hydras, is_override

    if any(word.partition("=")[0] in SHOWING for word in words):
        return [word for word in words if word not in ("-m", "--multirun")]  # there, Hydra fails with a traceback
    bare = {word for before, word in zip(["", *words], words, strict=False) if is_bare(word, before)}
    packed = [word for word in words if word in bare or (is_override(word) and not is_hydras(word))]
    quoted = ",".join(QuotedString(word, Quote.single).with_quotes() for word in packed)
    return [*(word for word in words if word not in packed), f"hydra.sweeper.arguments=[{quoted}]"]


def main() -> int:
    """Run Hydra's application with the sweeper, and return the exit code."""
    from launcher.project import EXIT_INTERRUPTED, activate, drop_what_cannot_be_written

    drop_what_cannot_be_written()
    activate()
    try:
        return _main()
    except KeyboardInterrupt:  # while it plans or reports; a running sweep counts interruptions
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _main() -> int:
    from launcher.errors import not_installed

    if problem := not_installed():
        print(problem, file=sys.stderr)
        return 2
    import hydra

    from launcher.commands.sweeper import SweepExit
    from launcher.project import CONF, EXIT_USAGE

    application = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)
    sys.argv[1:] = pack(sys.argv[1:])
    try:
        application()
    except SweepExit as end:
        return int(end.code or 0)
    except SystemExit as end:
        # Hydra ended before the sweeper was called: a mistake in the command line or the configuration.
        return EXIT_USAGE if end.code else 0
    return 0


def job(config: Any) -> None:
    """Called by a launcher of Hydra for each frozen run."""
    from launcher.schedulers.hydra_launcher import work

    work(config)


if __name__ == "__main__":
    sys.exit(main())
