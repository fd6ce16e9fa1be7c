"""After the runs of a look: which groups get further seeds, where their number depends on results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.planning import added_seeds
from launcher.planning.plan import Experiment, Plan
from launcher.project import python_path
from launcher.text import counted


def undecided(root: Path, plan: Plan) -> dict[str, dict[str, range]]:
    """The seeds that each group has at the next look, by experiment; without those that need no further look.

    It asks the analysis, in a process of its own, and prints what is added and why. Raises OSError if the analysis
    cannot say it; its own message is on standard error.
    """
    more: dict[str, dict[str, range]] = {}
    for experiment in plan.experiments:
        rule, now = added_seeds.rule_of(experiment), experiment.seeds_of()
        if rule is None:
            continue
        added: dict[str, range] = {}
        folder = plan.multirun / experiment.name
        sys.stdout.flush()
        command = [sys.executable, "-m", "analysis", "looks", str(folder), "--json"]
        environment = {**os.environ, "PYTHONPATH": python_path(root)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{folder}: whether its comparisons need further seeds is not known; the reason is above")
        for standing in json.loads(done.stdout):
            group, baseline = str(standing["group"]), str(standing["baseline"])
            # fewer seeds than planned: the runs of its newest look have not all ended
            if standing["status"] == "continue" and standing["seeds"] == len(now[group]):
                added |= dict.fromkeys((group, baseline), added_seeds.next_seeds(rule, now[group]))
        if added:
            more[experiment.name] = added
            print(_said(experiment, rule.max, added), flush=True)
    return more


def _said(experiment: Experiment, most: int, added: Mapping[str, range]) -> str:
    before = experiment.seeds_of()
    new = sorted({seed for group, seeds in added.items() for seed in seeds if seed not in before[group]})
    groups = ", ".join(group for group in experiment.groups if group in added)
    size = max(map(len, added.values()))
    which = f"{'seed' if len(new) == 1 else 'seeds'} {', '.join(map(str, new))}"
    return (
        f"{experiment.name}: not decided with {counted(size - len(new), 'seed')}; "
        f"{which} (of at most {most}) are added to {groups}"
    )
