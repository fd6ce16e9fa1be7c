"""Between Hydra and the sweep: takes the command line's overrides as written, plans them all, runs the difference.

Hydra composes the root once before it calls a sweeper, and would refuse there a key that only some groups read
(`method.gamma` under the default method), one error at a time. So launch.py hands the overrides over unread, as
`hydra.sweeper.arguments`, and the plan judges them together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import print_problems
from launcher.project import EXIT_FAILED, EXIT_USAGE, ROOT

# Hydra's own default launcher, in whose place our pool runs.
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


class SweepExit(SystemExit):
    """The sweep is over and has said what there was to say; `code` is the process's exit code."""


class ReconcilingSweeper:
    """A Hydra sweeper that makes the run folders what the experiment declares."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self._arguments = list(arguments)
        self._conf = ROOT / "conf"
        self._plugin: Any = None
        self._words: list[str] = []

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Called by Hydra: find the folder of configurations that it was started with, and the chosen launcher."""
        for source in config.hydra.runtime.config_sources:
            if source.provider == "main" and source.schema == "file":
                self._conf = Path(source.path)
        if config.hydra.launcher.get("_target_") != BASIC:
            from hydra.core.plugins import Plugins

            self._plugin = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=task_function, config=config
            )
            # They belong to the command, for `retry` and for whoever reads it.
            said = config.hydra.overrides.hydra
            self._words = [word for word in said if word.lstrip("+~").startswith(("hydra/launcher", "hydra.launcher"))]

    def sweep(self, arguments: list[str]) -> Any:
        """Called by Hydra with the overrides that it composed itself. Raises SweepExit, always."""
        raise SweepExit(run_sweep([*arguments, *self._arguments, *self._words], self._conf, self._plugin))


def run_sweep(arguments: Sequence[str], conf: Path = ROOT / "conf", plugin: Any = None) -> int:
    """Plan, run what is missing, report; the exit code. An invalid plan prints its problems and writes nothing.

    plugin: the launcher that Hydra has set up, in place of the pool on this machine.
    """
    from launcher.config.hydra_compose import Composer
    from launcher.errors import InvalidPlan
    from launcher.execution import sweep
    from launcher.files import BadRunFolder
    from launcher.planning import planner

    try:
        planned = planner.make(ROOT, arguments, Composer(conf, planner.ROOT_CONFIG))
        return sweep.reconcile(ROOT, planned, plugin=plugin)
    except InvalidPlan as invalid:
        print_problems(invalid)
        return EXIT_USAGE
    except (BadRunFolder, OSError) as error:
        from launcher.secrets import mask

        print(mask(f"error: {error}"), file=sys.stderr, flush=True)
        return EXIT_USAGE if isinstance(error, BadRunFolder) else EXIT_FAILED
