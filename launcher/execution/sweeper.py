"""Connects Hydra to the sweep: takes the command line's overrides as written, plans them, and runs what is missing.

Hydra composes the root configuration once before it calls a sweeper. There it would refuse a key that only some groups
have (`method.gamma` under the default method), one error at a time. launch.py therefore passes the overrides on unread,
as `hydra.sweeper.arguments`, and the plan checks all of them together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import print_problems
from launcher.project import EXIT_FAILED, EXIT_USAGE, ROOT
from launcher.run import catalog

if TYPE_CHECKING:
    from launcher.planning.plan import Plan

# Hydra's own default launcher; with it, the cluster of the plan is used.
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


NOTHING = """Nothing was run: the command names no experiment.
  python launch.py -m experiment=NAME                    run an experiment, then write its report
  python -m launcher plan experiment=NAME                show what would run, and what it would cost
  python launch.py -m campaign=NAME                      run experiments in stages ({})
  python launch.py -m method=c0_grpo,ptrw seed=0,1       compare methods without an experiment's file
Experiments: {}.
The smallest one, for a first try: python launch.py -m experiment=quickstart"""


class SweepExit(SystemExit):
    """The sweep has ended and printed its messages; `code` is the process's exit code."""


class ReconcilingSweeper:
    """A Hydra sweeper that plans the whole experiment and runs what is missing.

    A subclass may run other words than those of an experiment: run_words(words, conf, plugin, more) -> exit code.
    """

    def __init__(self, arguments: Sequence[str] = (), application: str | None = None) -> None:
        """application: read by `launcher.application`, in every process."""
        self._arguments = list(arguments)
        self._conf = ROOT / "conf"
        self._more: list[Path] = []
        self._plugin: Any = None
        self._words: list[str] = []

    def run_words(self, words: Sequence[str], conf: Path, plugin: Any, more: Sequence[Path]) -> int:
        """Run what the overrides name; the exit code."""
        return run_sweep(words, conf, plugin, more)

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Called by Hydra: note the folder of its configuration, and the launcher that the user chose."""
        for source in config.hydra.runtime.config_sources:
            if source.provider == "main" and source.schema == "file":
                self._conf = Path(source.path)
            elif source.schema == "file":  # --config-dir, and those of installed packages
                self._more.append(Path(source.path))
        if config.hydra.launcher.get("_target_") != BASIC:
            from hydra.core.plugins import Plugins

            self._plugin = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=task_function, config=config
            )
            # The overrides of the launcher belong to the command that the plan records, and that `retry` repeats.
            chosen = ("hydra/launcher", "hydra.launcher")
            self._words = [word for word in config.hydra.overrides.hydra if word.lstrip("+~").startswith(chosen)]

    def sweep(self, arguments: list[str]) -> Any:
        """Called by Hydra with the overrides that it composed itself. Raises SweepExit, always."""
        words = [*arguments, *self._arguments, *self._words]
        raise SweepExit(self.run_words(words, self._conf, self._plugin, self._more))


def run_sweep(
    arguments: Sequence[str], conf: Path = ROOT / "conf", plugin: Any = None, more: Sequence[Path] = ()
) -> int:
    """Plan, run what is missing, report; the exit code. An invalid plan prints its problems and writes nothing.

    plugin: the launcher that Hydra has set up, in place of the pool on this machine; more: further folders of
    configurations.
    """
    from launcher.config.hydra_compose import Composer
    from launcher.execution import sweep
    from launcher.planning import planner
    from launcher.planning.overrides import is_override

    groups = ("experiment", "campaign", "method")
    # A word that is no override is refused by the plan.
    if all(is_override(word) and word.lstrip("+~").partition("=")[0] not in groups for word in arguments):
        print(NOTHING.format(", ".join(catalog.declared("campaign")), ", ".join(catalog.declared())), file=sys.stderr)
        return EXIT_USAGE

    composer = Composer(conf, planner.ROOT_CONFIG, more)

    def make(added: planner.AddedSeeds | None = None) -> Plan:
        return planner.make(ROOT, arguments, composer, added)

    def launch() -> int:
        return sweep.reconcile(ROOT, make(), plugin=plugin, again=make)

    return without_traceback(launch)


def without_traceback(launch: Callable[[], int]) -> int:
    """The exit code of a launch; what is wrong with its plan, or with a file, is printed."""
    from launcher.errors import InvalidPlan
    from launcher.files import BadRunFolder

    if sys.stdout.isatty():
        print("planning: every run is checked before anything is written", flush=True)
    try:
        return launch()
    except InvalidPlan as invalid:
        print_problems(invalid)
        return EXIT_USAGE
    except (BadRunFolder, OSError) as error:
        from launcher.secrets import mask

        print(mask(f"error: {error}"), file=sys.stderr, flush=True)
        return EXIT_USAGE if isinstance(error, BadRunFolder) else EXIT_FAILED
