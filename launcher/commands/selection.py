"""What commands take: experiments and runs by name, the checkpoint of a run, a new folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.commands import completion
from launcher.errors import Usage
from launcher.run import catalog, whole
from launcher.run.folder import checkpoints, is_imported
from launcher.run.lifecycle import read_state


def add(parser: argparse.ArgumentParser, nargs: str = "+", default: str = "") -> None:
    """Add the names of experiments and runs to a command's arguments."""
    described = "an experiment, or a run's id" + (f"; default: {default}" if default else "")
    completion.add(parser, "names", completion.experiments_and_runs, "EXPERIMENT|RUN", described, nargs)


@contextmanager
def checkpoint(given: argparse.Namespace) -> Iterator[tuple[Path, int, Path]]:
    """Around the use of a run's checkpoint, `--checkpoint` or the newest: the run's folder, and step and folder of the
    checkpoint. Usage: there is none such, it cannot be used so, or a running run has deleted it meanwhile."""
    folder = catalog.find_run(given.multirun.resolve(), given.run)
    if is_imported(folder):
        raise Usage(f"run {folder.name}: it was imported, and has no checkpoint; only runs that were trained here have")
    steps = dict(checkpoints(folder))
    if not steps:
        raise Usage(
            f"run {folder.name} ({read_state(folder).state}): it has no checkpoint. A run writes the first after "
            "trainer.checkpoint_every steps; `gc --keep none` deletes those of done runs"
        )
    step = max(steps) if given.checkpoint is None else given.checkpoint
    if step not in steps:
        raise Usage(f"--checkpoint {step}: run {folder.name} has checkpoints of step {', '.join(map(str, steps))} only")
    if damage := whole.checkpoint_problem(steps[step]):
        raise Usage(f"{damage} since it was written. Fix: choose another of {list(steps)}, or `rerun` the run")
    try:
        yield folder, step, steps[step]
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not steps[step].exists():
            error = ValueError(f"it replaced its checkpoint of step {step} meanwhile; repeat the command")
        raise Usage(f"run {folder.name}: {error}") from error


def new_folder(option: str, given: Path) -> Path:
    """The absolute path of a folder to write. Usage: it exists and is not an empty folder."""
    out = given.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Usage(f"{option} = {given}: it exists and is not an empty folder; give another, or delete it first")
    return out
