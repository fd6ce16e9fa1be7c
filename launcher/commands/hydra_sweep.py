"""A sweep over any program of @hydra.main: `python train.py -m hydra/sweeper=rlsweep KEY=A,B ...`.

The program need not know it. Hydra composes the jobs, launcher.planning.hydra_jobs makes a plan of them, and what is
missing runs as every plan does. Hydra gets the results of all jobs, those of earlier launches too.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import re
import shlex
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from launcher import project
from launcher.config import content, identity, installed_parts
from launcher.config.hydra_compose import ROOT_CONFIG, Composer
from launcher.errors import InvalidPlan, Objection, Usage
from launcher.execution import sweep
from launcher.files import BadRunFolder, naming
from launcher.planning import clusters, hydra_jobs
from launcher.planning.hydra_jobs import PROGRAM, Compositions, Job, Jobs, Sweep
from launcher.planning.overrides import unknown_option
from launcher.planning.plan import Experiment, Plan, PlannedRun
from launcher.project import CONF, EXIT_FINE, ROOT
from launcher.run import catalog
from launcher.run.folder import RESERVED, attempt_folder, can_be_named, read_config, read_summary, run_folder
from launcher.run.lifecycle import State, find_state, is_done, read_state
from launcher.schedulers.local.pool import visible_devices
from launcher.secrets import mask
from launcher.worker import hydra_job
from launcher.worker.hydra_app import HydraApplication
from launcher.worker.hydra_job import OWN

_OF_JOB = re.compile(r"\$\{(?!hydra\.)[^:}]+\}")  # an interpolation of a key that jobs may set
_BASIC = ("params", "max_batch_size")  # BasicSweeper's own keys, which configurations may set
# The frames of a traceback that are not the program's.
_ENGINE = re.compile(
    r'  File "[^"]*", line \d+, in _attempt\n.*in _?(run_job|call_in_one_process)\n(    [^\n]*\n)+', re.DOTALL
)
# In the environment: the file to which a program writes its plan, and ends.
_PLAN = "RLSWEEP_PLAN"
_log = logging.getLogger(__name__)


def environment(**more: str) -> dict[str, str]:
    """The environment of a program's command: its programs are those of this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, **more}


def plan(command: str, folder: Path) -> Plan:
    """The plan of what a program's command would run in a folder; nothing is written. Usage: it makes none."""
    with tempfile.TemporaryDirectory(prefix="rlsweep-plan-") as scratch:
        file = Path(scratch, "plan")
        asked = environment(**{_PLAN: str(file)})
        said = subprocess.run(command, shell=True, cwd=folder, env=asked, capture_output=True, text=True, check=False)
        if not file.exists():
            fix = "correct what it prints, or name a program of @hydra.main, or experiment=NAME"
            raise Usage(f"{command}: it plans no run. Fix: {fix}\n{said.stdout}{said.stderr}".strip())
        made: Plan = pickle.loads(file.read_bytes())
    return made


def run(context: HydraContext, task: Any, master: DictConfig, words: Sequence[str], results: list[Any]) -> int:
    """Run what is missing of the sweep that these words ask for; the exit code. Raises InvalidPlan.

    master: the configuration of the sweep, with its section hydra.sweeper; results: gets those of all jobs in Hydra's
    order, in the batches that BasicSweeper makes, although no batch waits for another.
    """
    if not str(master.hydra.launcher.get("_target_")).endswith(".BasicLauncher"):
        chosen, rule = master.hydra.runtime.choices.get("hydra/launcher"), "rlsweep starts the jobs of a program itself"
        fix = "write hydra/launcher=basic, and hydra.sweeper.cluster=slurm or ray to use a cluster"
        raise InvalidPlan([Objection("hydra/launcher", chosen, rule, fix, PROGRAM)])
    project.activate()
    given = OmegaConf.to_container(master.hydra.sweeper, resolve=False)
    assert isinstance(given, dict)
    asked = {key: own for key, own in given.items() if key not in (*_BASIC, "_target_", "_recursive_", "arguments")}
    section = hydra_jobs.checked(Sweep, asked, "hydra.sweeper")
    cluster = _cluster(section)
    program = {**hydra_job.program(task, context, project.root()), "resumes": section.resumes}
    words = [*(f"{key}={value}" for key, value in (given.get("params") or {}).items()), *words]
    compositions = Compositions(context.config_loader, master, section.ignore)
    before = HydraConfig.instance().cfg
    try:
        jobs = hydra_jobs.jobs(compositions, words, section, program, content.outputs(project.multirun()))
    finally:
        HydraConfig.instance().cfg = before
    hydra_jobs.check_seed_key(section.seed_key, jobs.runs)
    sys.stdout.flush()  # else forks would have what the program has printed before
    out = sys.stdout
    with redirect_stdout(sys.stderr):  # standard output is what jobs print
        plan = _plan(jobs, section, program, words, cluster)
        if file := os.environ.get(_PLAN):
            Path(file).write_bytes(pickle.dumps(plan))
            raise SystemExit(EXIT_FINE)
        if unstable := compositions.unstable():
            print(f"These keys get another value each time, so they are no part of a run: {', '.join(unstable)}")
        folder = Path(master.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        with naming(folder / "multirun.yaml"):
            OmegaConf.save(master, folder / "multirun.yaml")  # as BasicSweeper does
        if cluster["name"] == "local":
            plan = replace(plan, show=partial(_show, jobs.runs, out))
        swept = sweep.sweep(ROOT, plan, train=HydraApplication.work)
        _link(master, plan, jobs, compositions)
    if failed := next((state for state in swept.states.values() if state is not None and state.error), None):
        _say_failed(failed, jobs.runs[failed.id].config["start"]["overrides"])
    returned = [_result(plan, job, compositions) for job in jobs.jobs]
    size = given.get("max_batch_size") or len(returned) or 1
    results += [returned[at : at + size] for at in range(0, len(returned), size)]
    return swept.code


def _link(master: DictConfig, plan: Plan, jobs: Jobs, compositions: Compositions) -> None:
    """Link the directories that hydra.sweep names to the folders of their jobs, also of those done by earlier launches
    and of equal ones; print which cannot be links."""
    before, config, in_the_way = HydraConfig.instance().cfg, copy.deepcopy(master), list[str]()
    named = OmegaConf.to_container(master.hydra.sweep, resolve=False)
    of_job = _OF_JOB.search(f"{named['dir']} {named['subdir']}")  # else what is composed for a job names it no better
    for number, job in enumerate(jobs.jobs):
        folder = run_folder(plan.multirun, job.run) / hydra_job.FOLDER
        if folder.exists():
            config = compositions.whole(job.overrides) if of_job else config
            other = hydra_job.link(hydra_job.numbered(config, {"overrides": job.overrides, "number": number}), folder)
            in_the_way += [] if other is None else [str(other)]
    HydraConfig.instance().cfg = before
    if in_the_way:
        them = f"{', '.join(in_the_way[:3])}{' ...' if len(in_the_way) > 3 else ''}"
        print(f"Other files are in the way of links to {plan.multirun}/runs/ID/job: {them}", flush=True)


def _show(runs: Mapping[str, PlannedRun], out: TextIO, run_ids: Sequence[str]) -> Callable[[str], None]:
    """Print what each job of a launch has printed as Hydra's basic launcher does: whole, and in the order of jobs."""
    _log.info(f"Launching {len(run_ids)} jobs locally")
    if visible_devices() and not any(runs[run_id].config["resources"]["gpus"] for run_id in run_ids):
        print("The jobs see no GPU; hydra.sweeper.resources.gpus=1 gives each one", flush=True)
    left, ended = deque(run_ids), set[str]()

    def show(run_id: str) -> None:
        ended.add(run_id)
        while left and left[0] in ended:
            start, folder = runs[left[0]].config["start"], run_folder(project.multirun(), left.popleft())
            _log.info(f"\t#{start['number']} : {' '.join(filter_overrides(start['overrides']))}")
            printed = attempt_folder(folder, read_state(folder).attempt) / "stdout.log"
            if printed.exists():
                print(printed.read_text(errors="replace"), end="", file=out, flush=True)

    return show


def _say_failed(state: State, words: Sequence[str]) -> None:
    """Print why a job has failed, as Hydra does. words: its overrides."""
    assert state.error is not None
    text = state.error["traceback"]
    if "HYDRA_FULL_ERROR" not in os.environ:
        hint = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
        text = f"{_ENGINE.sub('', text)}\n\n{hint}"
    print(f"Error executing job with overrides: {filter_overrides(words)}\n{text}", file=sys.stderr, flush=True)


def _cluster(section: Sweep) -> dict[str, Any]:
    """The section `cluster` of the plan: the defaults of conf/cluster, with what the sweeper's section sets."""
    given = {"name": section.cluster} if isinstance(section.cluster, str) else section.cluster
    name = str(given.get("name"))
    # The project's conf/ is the program's own, which may have another group of this name.
    composer = Composer(CONF, ROOT_CONFIG, installed_parts.folders())
    if name not in composer.options("cluster"):
        raise InvalidPlan([unknown_option(composer, PROGRAM, "hydra.sweeper.cluster", "cluster", name)])
    merged = {**composer.content(f"cluster/{name}"), **given}
    hydra_jobs.checked(clusters.settings(name, PROGRAM), merged, "hydra.sweeper.cluster")
    return merged


def _plan(
    jobs: Jobs, section: Sweep, program: Mapping[str, Any], words: Sequence[str], cluster: Mapping[str, Any]
) -> Plan:
    declared, groups = section.experiment, list(dict.fromkeys(entry.group for entry in jobs.entries))
    name = declared.name or _name(program, words, section.seed_key)
    if not can_be_named(name):
        rule = f"it is the name of a folder in multirun/, which cannot be {', '.join(RESERVED)}"
        fix = "give the sweep another name by this key"
        raise InvalidPlan([Objection("hydra.sweeper.experiment.name", name, rule, fix, PROGRAM)])
    _check_program(name, program["task"])
    asked = section.analysis if (section.analysis.get("primary") or {}).get("metric") else {}
    hydra_jobs.check_analysis(asked, groups, declared.baseline)
    if not asked:
        print(f"{name}: no report, because hydra.sweeper.analysis.primary.metric names no metric", flush=True)
    experiment = Experiment(
        experiment=name,
        command=_command(program),
        baseline=declared.baseline,
        steps=None,
        seeds=tuple(sorted({entry.seed for entry in jobs.entries})),
        groups={group: {"label": group} for group in groups},
        factors={key: {"levels": levels} for key, levels in jobs.levels.items()},
        analysis=dict(asked),
        runs=tuple(jobs.entries),
    )
    return Plan(
        (experiment,),
        jobs.runs,
        jobs.bases,
        cluster,
        section.tracking,
        multirun=project.multirun(),
        code_choice=section.code,
        budget=section.budget.device_hours,
        of_program=True,
        seed_key=section.seed_key,
    )


def _check_program(name: str, task: str) -> None:
    """Refuse the name of a plan whose runs belong to another program than `task`. Raises InvalidPlan."""
    with suppress(Usage, BadRunFolder):
        first = next(iter(catalog.entries(catalog.read_plan(project.multirun(), name))), "")
        other = read_config(run_folder(project.multirun(), first)).get("program") or "another program"
        if other.partition(OWN)[0] != task.partition(OWN)[0]:
            rule = f"the plan of this name has runs of {other}, not of {task}"
            fix = "choose another name: hydra.sweeper.experiment.name=..."
            raise InvalidPlan([Objection("hydra.sweeper.experiment.name", name, rule, fix, PROGRAM)])


def _command(program: Mapping[str, Any]) -> str:
    """The present command, to be repeated in the project's folder; without what is chosen about code for this once."""
    words = [word for word in program["arguments"] if not word.lstrip("+").startswith("hydra.sweeper.code=")]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started = ["-m", spec.name] if spec is not None else [sys.argv[0]]
    below = Path(os.path.relpath(Path.cwd(), project.root()))
    place = "" if below == Path() else f"cd {shlex.quote(str(below))} && "
    return mask(f"{place}{shlex.join(['python', *started, *words])}")


def _name(program: Mapping[str, Any], words: Sequence[str], seed_key: str) -> str:
    """The name of a sweep that declares none: the program's, with a hash of what else but seeds the command chooses."""
    rest = sorted(word for word in words if word.partition("=")[0].lstrip("+") != seed_key)
    given = vars(get_args_parser().parse_known_args(sys.argv[1:])[0])
    rest += [f"{key}={given[key]}" for key in ("config_name", "config_path", "config_dir") if given[key] is not None]
    rest += filter(None, [program["task"].partition(OWN)[2]])
    return f"{program['name']}-{identity.content_hash(repr(rest))[:6]}" if rest else program["name"]


class _JobReturn(JobReturn):  # type: ignore[misc]
    """A job's result, whose configuration is composed when somebody asks for it: that takes Hydra 20 ms."""

    compose: Callable[[], DictConfig] | None = None
    _whole: DictConfig | None = None

    def _part(self, hydras: bool) -> DictConfig | None:
        if self.compose is None:
            return None
        self._whole = self._whole or self.compose()
        return OmegaConf.masked_copy(self._whole, [key for key in self._whole if (key == "hydra") == hydras])

    # Fields of the dataclass, which sets them to None.
    cfg = property(lambda self: self._part(False), lambda self, _: None)
    hydra_cfg = property(lambda self: self._part(True), lambda self, _: None)


def _result(plan: Plan, job: Job, compositions: Compositions) -> JobReturn:
    """What Hydra's launchers return for a job."""
    folder = run_folder(plan.multirun, job.run)
    result = _JobReturn(overrides=list(job.overrides), working_dir=str(folder / hydra_job.FOLDER))
    start = plan.runs[job.run].config["start"]
    result.task_name = start["name"]
    result.compose = lambda: hydra_job.numbered(compositions.whole(job.overrides), start, result.working_dir)
    result.status = JobStatus.FAILED
    result.return_value = RuntimeError(f"{folder} is not done")
    if is_done(find_state(folder)):
        with suppress(BadRunFolder):  # which the sweep has counted and named
            result.return_value = read_summary(folder).get("value")
            result.status = JobStatus.COMPLETED
    return result
