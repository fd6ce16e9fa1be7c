"""rlsweep certify: is a run that is killed and resumed, or repeated, equal to the last bit on this machine?

    rlsweep certify experiment=NAME [KEY=VALUE ...]
    rlsweep certify [options] -- python train.py [KEY=VALUE ...]     any program of @hydra.main

One run of the plan is done undisturbed. Then it is done again: killed around its checkpoints, at the boundaries of its
epochs and at random moments, and resumed; alone, two at a time, and with two threads. Each repetition is compared with
the first run. certificate.json and certificate.txt are written to the experiment's folder. Exit codes: 0 all are equal,
2 an invalid plan, and nothing was run, 3 not equal, 4 it could not be done; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from launcher import files, project
from launcher.commands import completion, output
from launcher.errors import Usage
from launcher.project import EXIT_FINE, ONE_THREAD, ROOT
from launcher.run import catalog
from launcher.run.folder import multirun_of, read_config, read_state, run_folder
from launcher.run.lifecycle import RESUMABLE, RunState

if TYPE_CHECKING:
    from launcher.schedulers.local.pool import Pool

HELP = "kill, resume and repeat a run, and compare the results to the last bit"
NAME = "certificate.json"
EXIT_DIFFERENT, EXIT_NOT_DONE = 3, 4
_ATTEMPTS = 3
_WORDS = {
    **{at: f"killed {at} the checkpoint of step {{}}" for at in ("before", "during", "after")},
    "logged": "killed after step {}",
    "stop": "stopped after step {}",
    "moment": "killed after {:.2f} s",
}
#: With these words a program plans its runs and freezes them, and the budget lets none start.
_FREEZE = ("hydra/sweeper=rlsweep", "hydra.sweeper.cluster=local", "hydra.sweeper.budget.device_hours=1e-9", "-m")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The plan or the program, and the kills."""
    completion.add(parser, "overrides", completion.overrides, "WORD", "experiment=NAME ..., or python FILE ...", "+")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often the run is killed (20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="from which random moments are drawn (0)")
    parser.add_argument("--run", default="", metavar="RUN", help="the beginning of a run's id; default: the first run")


def run(given: argparse.Namespace) -> int:
    """JSON: the certificate: run, equal, of, results, spread, compared, edges, edges_killed, seed."""
    if given.kills < 1:
        raise Usage(f"--kills = {given.kills}: must be 1 or more")
    with tempfile.TemporaryDirectory(prefix="rlsweep-certify-") as scratch:
        frozen, place = (_experiment if "=" in given.overrides[0] else _program)(given, Path(scratch))
        with _pool(frozen) as pool:
            certificate = _certificate(_Repetitions(frozen, Path(scratch), pool), given.kills, given.seed)
    if certificate is None:
        return EXIT_NOT_DONE
    lines = list(_lines(certificate))
    place.mkdir(parents=True, exist_ok=True)
    files.write_json(place / NAME, certificate)
    files.write_atomic(place / "certificate.txt", "".join(f"{line}\n" for line in lines))
    output(given, certificate, [*lines, f"written to {place / NAME}"])
    return EXIT_FINE if certificate["equal"] == certificate["of"] else EXIT_DIFFERENT


def _experiment(given: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    """The run, frozen below `scratch`, and the folder of its experiment. Raises InvalidPlan."""
    from launcher.execution import checks
    from launcher.planning import freeze, planner

    if project.root() != ROOT:
        os.chdir(project.root())
    plan = planner.make(project.root(), given.overrides)
    run_id = _chosen(given.run, plan.runs)
    checks.refuse(plan, [run_id], launches=False)
    runs = {run_id: plan.runs[run_id]}
    freeze.freeze(replace(plan, multirun=scratch / "frozen", runs=runs, experiments=(), prefixes={}))
    return run_folder(scratch / "frozen", run_id), plan.multirun / plan.experiments[0].name


def _program(given: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    """The same of a program of @hydra.main, which plans its runs itself. Usage: it does not."""
    frozen, words = scratch / "frozen", [*given.overrides, f"hydra.sweep.dir={scratch / 'sweep'}", *_FREEZE]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "RLSWEEP_MULTIRUN": str(frozen)}
    said = subprocess.run(["env", *words], env=environment, capture_output=True, text=True, check=False)
    names = catalog.experiments(frozen)
    if not names:
        fix = "name a program of @hydra.main, or experiment=NAME"
        raise Usage(f"{given.overrides[0]}: it plans no run. Fix: {fix}\n{said.stdout}{said.stderr}".strip())
    run_id = _chosen(given.run, catalog.entries(catalog.read_plan(frozen, names[0])))
    return run_folder(frozen, run_id), project.multirun() / names[0]


def _chosen(beginning: str, ids: Mapping[str, Any]) -> str:
    for run_id in ids:
        if run_id.startswith(beginning):
            return run_id
    raise Usage(f"--run = {beginning}: no run of the plan begins so; they are {', '.join(ids)}")


def _pool(frozen: Path) -> closing[Pool] | nullcontext[None]:
    """Workers as a launch has them; None for a program, of which each attempt is a process of its own."""
    from launcher.application import KEY, shape
    from launcher.schedulers.local import pool

    config = read_config(frozen)
    if KEY in config:
        return nullcontext()
    return closing(pool.Pool(pool.slots(2, shape(config).devices, pool.visible_devices()), ROOT))


@dataclass
class _Repetitions:
    """Does a frozen run again and again, each time in a multirun folder of its own below `scratch`."""

    frozen: Path
    scratch: Path
    pool: Pool | None
    count: int = 0

    def do(
        self, at: str = "", step: float = 0, together: int = 1, more: Mapping[str, str] = MappingProxyType({})
    ) -> list[tuple[Path, bool]]:
        """The folders of so many at a time, and whether their first attempts were ended.

        at, step: where, as certified.CertifiedAttempt reads it; more: of the environment.
        """
        folders = [self._prepared({"at": at, "step": step}) for _ in range(together)]
        ended, left = self._attempts(folders, more), folders
        for _ in range(_ATTEMPTS):
            left = [folder for folder in left if catalog.present_state(folder) in RESUMABLE]
            self._attempts(left, more)
        return [(folder, ended[folder] != 0) for folder in folders]

    def _prepared(self, end: Mapping[str, Any]) -> Path:
        from launcher.application import application
        from launcher.commands.verify import prepare
        from launcher.worker.certified import ASKED

        self.count += 1
        folder = prepare(self.frozen, self.scratch / str(self.count))
        (self.scratch / "cache").mkdir(exist_ok=True)
        (multirun_of(folder) / "cache").symlink_to(self.scratch / "cache")
        contents = application(read_config(folder)).contents
        files.write_json(multirun_of(folder) / ASKED, {"contents": contents, **end})
        return folder

    def _attempts(self, folders: Sequence[Path], more: Mapping[str, str]) -> dict[Path, int | None]:
        """The exit codes of an attempt at each."""
        codes: dict[Path, int | None] = {}
        if self.pool is not None and not more:
            for folder in folders:
                self.pool.submit(folder, "certify")
            while len(codes) < len(folders):
                codes |= {ended.folder: ended.exit_code for ended in self.pool.poll(1.0)}
            return codes
        environment, command = {**os.environ, **ONE_THREAD, **more}, [sys.executable, "-m", "launcher.worker"]
        started = {
            folder: subprocess.Popen([*command, str(folder)], cwd=ROOT, env=environment, start_new_session=True)
            for folder in folders
        }
        for folder, process in started.items():
            codes[folder] = process.wait()
            with suppress(ProcessLookupError):  # what it has started
                os.killpg(process.pid, signal.SIGKILL)
        return codes


def _certificate(repetitions: _Repetitions, kills: int, seed: int) -> dict[str, Any] | None:
    """Do all repetitions; None: the undisturbed run is not done."""
    from launcher.commands.differences import first_difference, metrics, records

    [(alone, _)] = repetitions.do()
    if (state := read_state(alone)).state != RunState.DONE:
        print(f"error: the undisturbed run ended as {state.state}: {state.message}", file=sys.stderr)
        return None
    [(first, _)], results, rng = (
        repetitions.do(),
        list[dict[str, Any]](),
        random.Random(seed),
    )  # what runs share is made
    rows = [list(metrics(first))[-1]]

    def compare(how: str, done: Sequence[tuple[Path, bool]], undisturbed: bool = False) -> None:
        for folder, was_ended in done:
            found = first_difference(first, folder)
            reached = "" if undisturbed or was_ended else ", which was not reached"
            results.append({"how": how + reached, "difference": found and {**found._asdict(), "text": str(found)}})
            print(f"{len(results)}: {how}{reached}: {found or 'equal'}", file=sys.stderr, flush=True)
            rows.extend(list(metrics(folder))[-1:] if undisturbed else ())
            shutil.rmtree(multirun_of(folder))

    compare("alone", [(alone, False)], undisturbed=True)
    compare("two at a time", repetitions.do(together=2), undisturbed=True)
    compare("with two threads", repetitions.do(more=dict.fromkeys(ONE_THREAD, "2")), undisturbed=True)
    edges, seconds = _edges(first), (read_state(first).finished or 0.0) - (read_state(first).started or 0.0)
    chosen = rng.sample(edges, min(len(edges), kills - kills // 4))  # the others at random moments
    for at, step in [*chosen, *(("moment", rng.uniform(0, seconds)) for _ in range(kills - len(chosen)))]:
        compare(_WORDS[at].format(step), repetitions.do(at, step))
    common = [key for key in rows[0] if all(isinstance(row.get(key), float) for row in rows)]
    spread = {key: statistics.stdev(row[key] for row in rows) for key in common}
    return {
        "run": first.name,
        "equal": sum(result["difference"] is None for result in results),
        "of": len(results),
        "results": results,
        "spread": {key: value for key, value in spread.items() if value},
        "compared": sorted({what for _, what in records(first)}),
        "edges": len(edges),
        "edges_killed": len(chosen),
        "seed": seed,
    }


def _edges(folder: Path) -> list[tuple[str, float]]:
    """Where a run is killed: around its checkpoints, and before rows of the data come again; of a program that has
    neither, after the steps that it logs."""
    from launcher.commands.differences import metrics
    from launcher.worker.certified import CHECKPOINT, DATA, TRACE

    edges, seen = list[tuple[str, float]](), set[Any]()
    for line in files.json_lines(folder / TRACE):
        edges += [(at, line["step"]) for at in ("before", "during", "after") if CHECKPOINT in line]
        if not seen.isdisjoint(line.get(DATA, ())):
            edges += [("logged", line["step"] - 1), ("stop", line["step"] - 1)]
            seen.clear()
        seen.update(line.get(DATA, ()))
    return edges or [("logged", row["step"]) for row in metrics(folder)]


def _lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """What a certificate says."""
    yield "run {run}: bit-equal in {equal} of {of}".format(**certificate)
    for result in certificate["results"]:
        if result["difference"]:
            yield f"not equal, {result['how']}: {result['difference']['text']}"
    for metric, value in certificate["spread"].items():
        yield f"the standard deviation of the last {metric} between undisturbed repetitions is {value:.3g}"
    yield "killed at {edges_killed} of {edges} edges, else at random moments (seed {seed})".format(**certificate)
    yield f"compared: {', '.join(certificate['compared'])}"
