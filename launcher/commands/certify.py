"""rlsweep certify: is a run that is killed and resumed, or repeated, equal to the last bit on this machine?

    rlsweep certify experiment=NAME [KEY=VALUE ...]
    rlsweep certify [options] -- python train.py [KEY=VALUE ...]     any program of @hydra.main

One run of the plan is done undisturbed. Then it is done again: alone, two at a time, and with two threads; then killed
and resumed some times in a repetition: around its checkpoints, at the boundaries of its epochs and at random moments.
Each repetition is compared with the first run. certificate.json and certificate.txt are written to the experiment's
folder. Exit codes: 0 all are equal, 2 an invalid plan, and nothing was run, 3 not equal, 4 it could not be done; 130
after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from launcher import files, project
from launcher.commands import completion, output
from launcher.commands.logs import last_lines
from launcher.commands.verify import first_difference, metrics, prepare, records
from launcher.errors import Usage
from launcher.project import EXIT_FINE, ONE_THREAD, ROOT
from launcher.run import catalog, lifecycle
from launcher.run.folder import attempt_folder, metrics_path, multirun_of, read_config, read_summary, returned_path
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RESUMABLE, RunState, read_state, write_state
from launcher.worker import process as worker_process

if TYPE_CHECKING:
    from launcher.schedulers.local.pool import Pool

HELP = "kill, resume and repeat a run, and compare the results to the last bit"
NAME = "certificate.json"
EXIT_DIFFERENT, EXIT_NOT_DONE = 3, 4
_IN_A_ROW = 5  # kills in a repetition
_ATTEMPTS, _DRAWS = 3, 5
_LOG_LINES = 30  # of a run that failed
_LEAST_S, _TIMES = 60.0, 10  # how long an attempt may take: so many times as long as the undisturbed run, or this
_WORDS = {
    **{at: f"killed {at} the checkpoint of step {{}}" for at in ("before", "during", "after")},
    **{"logged": "killed after step {}", "stop": "stopped after step {}", "moment": "killed after {:.2f} s"},
    "written": "killed at write {0[2]} to {0[1]} after {0[0]}",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    completion.add(parser, "overrides", completion.overrides, "WORD", "experiment=NAME ..., or python FILE ...", "+")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often the run is killed (20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="from which random moments are drawn (0)")
    parser.add_argument("--run", default="", metavar="RUN", help="the beginning of a run's id; default: the first run")


def run(given: argparse.Namespace) -> int:
    """JSON: the certificate: run, equal, of, kills, killed, kills_in_steps, results, spread, compared,
    notes, not_compared, edges, edges_killed, seed."""
    from launcher.application import KEY, shape
    from launcher.schedulers.local import pool

    if given.kills < 1:
        raise Usage(f"--kills = {given.kills}: must be 1 or more")
    ending = tuple(one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN)
    with ExitStack() as started:
        started.enter_context(worker_process.handling(ending, signal.default_int_handler))  # as Ctrl-C
        scratch = started.enter_context(tempfile.TemporaryDirectory(prefix="rlsweep-certify-"))
        planned, workers = Path(scratch, "planned"), None
        place = _plan(given.overrides, planned)
        frozen = catalog.find_run(planned, given.run or catalog.read_plan(planned, place.name)["runs"][0]["id"])
        if KEY not in (config := read_config(frozen)):  # an attempt at a program is a process of its own
            slots = pool.slots(2, shape(config).devices, pool.visible_devices())
            workers = started.enter_context(closing(pool.Pool(slots, ROOT, Launch())))
        certificate = _certificate(frozen, workers, given.kills, given.seed)
    if certificate is None:
        return EXIT_NOT_DONE
    lines = list(_lines(certificate))
    place.mkdir(parents=True, exist_ok=True)
    files.write_json(place / NAME, certificate)
    files.write_atomic(place / "certificate.txt", "".join(f"{line}\n" for line in lines))
    output(given, certificate, [*lines, f"written to {place / NAME}"])
    return EXIT_FINE if certificate["equal"] == certificate["of"] else EXIT_DIFFERENT


def _plan(words: Sequence[str], planned: Path) -> Path:
    """Freeze a plan in the multirun folder `planned`; the folder of its experiment. Raises InvalidPlan. Usage: the
    words start no program of @hydra.main."""
    from launcher.execution import checks
    from launcher.planning import freeze, planner

    if "=" in words[0]:
        if project.root() != ROOT:
            os.chdir(project.root())
        plan = planner.make(project.root(), words)
        checks.refuse_dry(plan, run_ids=list(plan.runs))
    else:
        from launcher.commands import hydra_sweep

        plan = hydra_sweep.plan(shlex.join([*words, "hydra/sweeper=rlsweep", "-m"]), Path.cwd())
    freeze.freeze(replace(plan, multirun=planned, prefixes={}))
    return plan.multirun / plan.experiments[0].name


def _certificate(frozen: Path, workers: Pool | None, kills: int, seed: int) -> dict[str, Any] | None:
    """Do all repetitions of a frozen run; None: the undisturbed one is not done, or they read each other's files."""
    from launcher.worker.certified import digests, is_log
    from launcher.worker.hydra_job import NOTE

    began = time.monotonic()
    [(alone, *_)] = repeat(frozen, workers)
    again = partial(repeat, frozen, limit=max(_LEAST_S, _TIMES * (time.monotonic() - began)))
    log = attempt_folder(alone, (state := read_state(alone)).attempt) / "stderr.log"  # it goes with the folder
    if state.state != RunState.DONE:
        print(*last_lines(log, _LOG_LINES), sep="\n", file=sys.stderr)
        print(f"error: the undisturbed run ended as {state.state}: {state.message}", file=sys.stderr)
        return None
    [(first, *_)], results, rng = again(workers), list[dict[str, Any]](), random.Random(seed)
    said = log.read_text(errors="replace").replace(f"{alone}/", "")
    notes = [line for line in said.splitlines() if line.startswith(NOTE)]
    trains, named = _trains(first), {line for _, line, _ in _writes(alone)}
    finals = [_finals(first)]  # unlike `alone`, it did not make what runs share: its time is that of others

    def compare(how: str, done: Sequence[tuple[Path, int, int]], undisturbed: bool = False) -> None:
        nonlocal trains
        for folder, *_ in done:
            found = first_difference(first, folder)
            results.append({"how": how, "difference": found and {**found._asdict(), "text": str(found)}})
            print(f"{len(results)}: {how}: {found or 'equal'}", file=sys.stderr, flush=True)
            if undisturbed:
                finals.append(_finals(folder))
                trains = min(trains, _trains(folder), key=itemgetter(1))
            shutil.rmtree(multirun_of(folder))

    compare("alone", [(alone, 0, 0)], undisturbed=True)
    compare("two at a time", again(workers, together=2), undisturbed=True)
    compare("with two threads", again(None, more=dict.fromkeys(ONE_THREAD, "2")), undisturbed=True)
    edges = _edges(first, named)
    waiting = sorted(rng.sample(edges, min(len(edges), kills - kills // 4)), key=itemgetter(0))
    killed = in_steps = edges_killed = disturbed = missed = 0
    while not (shared := _shared(frozen, results)) and killed < kills and missed < _DRAWS:
        taken = [next(group) for _, group in groupby(waiting, itemgetter(0))][:_IN_A_ROW]
        at_edges, ends = len(taken), [end for _, end in taken]
        free = min(_IN_A_ROW - at_edges, kills - killed - len(waiting))
        ends += [("moment", rng.uniform(*trains) * 0.9**missed) for _ in range(free)]  # if runs are faster now
        [(_, ended, late)] = done = again(workers, ends)
        killed, in_steps, edges_killed = killed + ended, in_steps + late, edges_killed + min(ended, at_edges)
        disturbed += ended > 0
        waiting = [edge for edge in waiting if edge not in taken[: max(ended, 1)]]  # others are a first kill later
        reached = ended >= max(at_edges, 1)
        words = [_WORDS[at].format(step) for at, step in ends[: ended if reached else ended + 1]]
        missed = 0 if ended or at_edges else missed + 1
        if not ended and ends[0][0] == "logged":  # a program whose logs are read when it has ended
            waiting.clear()
        compare(f"{', then '.join(words)}{'' if reached else ', which was not reached'}", done, undisturbed=not ended)
    if shared:
        fix = "write it below rlsweep.context().folder, or if it is a cache, repeat the command"
        print(f"error: {shared}: a repetition has read what another one has written. Fix: {fix}", file=sys.stderr)
        return None
    common = [key for key in finals[0] if all(key in each for each in finals)]
    spread = {key: statistics.stdev(each[key] for each in finals) for key in common}
    return {
        "run": first.name,
        "equal": sum(result["difference"] is None for result in results),
        "of": len(results),
        "kills": killed,
        "killed": disturbed,
        "kills_in_steps": in_steps,
        "results": results,
        "spread": {key: value for key, value in spread.items() if value},
        "compared": sorted({what for _, what in records(first)}),
        "notes": notes,
        "not_compared": [name for name in digests(first / "job") if is_log(first / "job" / name)],
        "edges": len(edges),
        "edges_killed": edges_killed,
        "seed": seed,
    }


def _shared(frozen: Path, results: Sequence[Mapping[str, Any]]) -> str | None:
    """A file that a repetition has read as another one had written it; while all are equal, once may be a cache."""
    from launcher.worker.certified import OUTSIDE

    writers, most = dict[str, list[str]](), int(all(result["difference"] is None for result in results))
    for line in files.json_lines(multirun_of(frozen).parent / OUTSIDE):
        by = writers.setdefault(line["path"], [])
        if line["writes"]:
            by.append(line["by"])
        elif len(by) > most and line["by"] not in by:
            return str(line["path"])
    return None


def _finals(folder: Path) -> dict[str, float]:
    """The mean of each metric over the last tenth of the steps, as a report compares it; of one that is not logged
    there, its last value."""
    rows, found = list(metrics(folder)), defaultdict[str, dict[int, float]](dict)
    for row in rows:
        for key in (key for key in row if type(row[key]) in (int, float) and math.isfinite(row[key])):
            found[key][row["step"]] = row[key]
    late = {key: [one for step, one in of.items() if step > 0.9 * rows[-1]["step"]] for key, of in found.items()}
    return {key: statistics.fmean(late[key] or [*of.values()][-1:]) for key, of in found.items()}


def _trains(folder: Path) -> tuple[float, float]:
    """When a done run began and ended its training, in seconds after its start."""
    state, summary, returned = read_state(folder), read_summary(folder), returned_path(folder)
    ended = returned.stat().st_mtime if returned.exists() else state.finished or 0.0
    end = ended - (state.started or 0.0)
    return max(0.0, end - summary.get("wall_seconds", summary.get("train_seconds", end))), end


def repeat(
    frozen: Path,
    workers: Pool | None,
    ends: Sequence[tuple[str, Any]] = (),
    together: int = 1,
    more: Mapping[str, str] = MappingProxyType({}),
    limit: float = math.inf,
) -> list[tuple[Path, int, int]]:
    """Do a frozen run to its end, each time in a new folder; these, how many attempts at each were ended where `ends`
    says, and how many of these had logged a step.

    workers: None: each attempt is a process, with `more` in its environment; ends: where the first ones end, as
    certified.CertifiedAttempt reads it; together: how many are done at a time; limit: the seconds of an attempt.
    """
    from launcher.application import application
    from launcher.worker.certified import ASKED, REACHED

    scratch, contents = multirun_of(frozen).parent.resolve(), application(read_config(frozen)).contents
    folders = [prepare(frozen, Path(tempfile.mkdtemp(dir=scratch))) for _ in range(together)]
    (scratch / "cache").mkdir(exist_ok=True)
    for folder in folders:
        (multirun_of(folder) / "cache").symlink_to(scratch / "cache")
        files.write_json(multirun_of(folder) / ASKED, {"contents": contents, "ends": ends})
    ended, logged = dict.fromkeys(folders, 0), {folder: set[int]() for folder in folders}
    for attempt in range(1, len(ends) + _ATTEMPTS + 1):
        left = [folder for folder in folders if lifecycle.present_state(folder) in RESUMABLE]
        _attempt(workers, left, more, until := time.monotonic() + limit)
        for folder in left:
            ended[folder] += (reached := (attempt_folder(folder, attempt) / REACHED).exists())
            if not reached and time.monotonic() > until and lifecycle.present_state(folder) in RESUMABLE:
                message = f"it did not end within {limit:.0f} s"
                write_state(folder, read_state(folder).replace(state=RunState.FAILED, message=message))
            logged[folder] |= {row["attempt"] for row in files.json_lines(metrics_path(folder))}
    for folder, count in ended.items():  # of a program, whose logs are read when the next attempt begins
        logged[folder] |= {n for n in range(1, count + 1) if metrics_path(attempt_folder(folder, n)).exists()}
    return [(folder, count, len(logged[folder] & {*range(1, count + 1)})) for folder, count in ended.items()]


def _attempt(workers: Pool | None, folders: Sequence[Path], more: Mapping[str, str], until: float) -> None:
    """Make an attempt at each, and wait for their ends; after `until` they are killed."""
    if workers is not None:
        for folder in folders:
            workers.submit(folder)
        left = len(folders)
        while left:
            left -= len(workers.poll(1.0))
            if time.monotonic() > until:
                workers.cancel(kill=True)
        return
    environment, command = {**os.environ, **ONE_THREAD, **more}, [sys.executable, "-m", "launcher.worker"]
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "start_new_session": True}
    options["preexec_fn"] = partial(worker_process.prepare, signal.SIGKILL)  # nobody needs what they would save
    started = [subprocess.Popen([*command, str(folder)], **options) for folder in folders]
    try:
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(until - time.monotonic())
    finally:
        for process in started:
            with suppress(ProcessLookupError):  # after Ctrl-C itself, and always what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _edges(folder: Path, named: Container[str]) -> list[tuple[float, tuple[str, Any]]]:
    """Where a run is killed: around its checkpoints, and before rows of the data come again; a program when it writes
    its files with the names that they always have, and before it first logs a step after that; or after the steps that
    it logs if there are none. Each with a number: an attempt that resumes before one comes to those of higher ones."""
    from launcher.worker.certified import CHECKPOINT, DATA, TRACE

    edges, seen = list[tuple[float, tuple[str, Any]]](), set[Any]()
    for line in files.json_lines(folder / TRACE):
        edges += [(line["step"], (at, line["step"])) for at in ("before", "during", "after") if CHECKPOINT in line]
        if not seen.isdisjoint(line.get(DATA, ())):
            edges += [(line["step"] - 1, (at, line["step"] - 1)) for at in ("logged", "stop")]
            seen.clear()
        seen.update(line.get(DATA, ()))
    writes = dict.fromkeys((after, line, number) for after, line, number in _writes(folder) if line in named)
    numbers = {after: number for number, after in enumerate(dict.fromkeys(after for after, *_ in writes))}
    edges = edges or [(numbers[write[0]], ("written", [*write])) for write in writes]
    return edges or [(row["step"], ("logged", row["step"])) for row in metrics(folder)]


def _writes(folder: Path) -> list[tuple[str, str, int]]:
    """What a program has written, as certified.WRITES has it."""
    from launcher.worker.certified import WRITES

    return [*map(json.loads, (folder / WRITES).read_text(encoding="utf-8").splitlines())]


def _lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    yield "run {run}: bit-equal in {equal} of {of} repetitions, with {kills} kills in {killed}".format(**certificate)
    for result in certificate["results"]:
        if result["difference"]:
            yield f"not equal, {result['how']}: {result['difference']['text']}"
    for metric, value in certificate["spread"].items():
        yield f"the standard deviation of the final {metric} between undisturbed repetitions is {value:.3g}"
    yield "killed at {edges_killed} of {edges} edges, else at random moments (seed {seed})".format(**certificate)
    yield "{kills_in_steps} of {kills} kills came after a logged step".format(**certificate)
    yield f"compared: {', '.join(certificate['compared'])}"
    yield f"not compared: {', '.join(certificate['not_compared']) or 'nothing'}"
    yield from certificate["notes"]
