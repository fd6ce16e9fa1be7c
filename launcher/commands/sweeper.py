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

from launcher import project
from launcher.commands import exit_code
from launcher.project import CONF, EXIT_USAGE, ROOT
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
    """A Hydra sweeper that plans the whole experiment, or campaign, and runs what is missing."""

    def __init__(self, arguments: Sequence[str] | None = None, **_: Any) -> None:
        """arguments: the command line of launch.py; None for another Hydra program, which configures its own sweep."""
        self._arguments = arguments
        self._conf = CONF
        self._more: list[Path] = []
        self._plugin: Any = None
        self._words: list[str] = []

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Called by Hydra: note the folder of its configuration, and the launcher that the user chose."""
        self._program = (hydra_context, task_function, config)
        for source in config.hydra.runtime.config_sources:
            if source.provider == "main" and source.schema == "file":
                self._conf = Path(source.path)
            elif source.schema == "file":  # --config-dir, and those of installed packages
                self._more.append(Path(source.path))
        if self._arguments is not None and config.hydra.launcher.get("_target_") != BASIC:
            from hydra.core.plugins import Plugins

            self._plugin = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=task_function, config=config
            )
            # The overrides of the launcher belong to the command that the plan records, and that `resume` repeats.
            chosen = ("hydra/launcher", "hydra.launcher")
            self._words = [word for word in config.hydra.overrides.hydra if word.lstrip("+~").startswith(chosen)]

    def sweep(self, arguments: list[str]) -> Any:
        """Called by Hydra with the overrides that it composed itself. Raises SweepExit, except for another program
        whose jobs are all done; then it returns their results."""
        if self._arguments is None:
            from launcher.commands import hydra_sweep

            results: list[Any] = []
            if code := _exit_code(lambda: hydra_sweep.run(*self._program, arguments, results)):
                raise SweepExit(code)
            return results
        raise SweepExit(run([*arguments, *self._arguments, *self._words], self._conf, self._plugin, self._more))


def run(words: Sequence[str], conf: Path = CONF, plugin: Any = None, more: Sequence[Path] = ()) -> int:
    """Plan the experiments or the campaign of a command line, run what is missing and report. Returns the exit code.

    If the plan is invalid, its problems are printed and nothing is written. plugin: a launcher that Hydra has set up;
    it replaces the pool on this machine. more: further folders of configurations.
    """
    from launcher.campaign import campaign, stages
    from launcher.config.hydra_compose import hidden, of_project
    from launcher.execution import sweep
    from launcher.planning import planner
    from launcher.planning.overrides import is_override, key_of

    groups = ("experiment", "campaign", "method", stages.FORCE)
    # A word that is no override is refused by the plan.
    if all(is_override(word) and key_of(word) not in groups for word in words):
        declared = ", ".join(catalog.declared("campaign")), ", ".join(catalog.declared())
        print(project.spelled(NOTHING.format(*declared)), file=sys.stderr)
        return EXIT_USAGE

    for line in hidden():
        print(line, flush=True)
    composer = of_project(conf, more)

    def make(added: planner.AddedSeeds | None = None) -> Plan:
        return planner.make(project.root(), words, composer, added)

    def launch() -> int:
        if stages.is_campaign(words):
            return campaign.launch(stages.read(project.root(), words, composer), words, plugin)
        return sweep.sweep(ROOT, make(), plugin=plugin, again=make).code

    return _exit_code(launch)


def _exit_code(launch: Callable[[], int]) -> int:
    if sys.stdout.isatty():
        print("planning: every run is checked before anything is written", flush=True)
    return exit_code(launch)
