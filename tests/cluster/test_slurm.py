"""Sweeps on a real SLURM: the same runs and numbers as in the pool, asked for as the models say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.application import Shape
from launcher.run.lifecycle import State
from launcher.schedulers.slurm import system
from tests.cluster.slurm import ROOT, Lab, run_on, states, whole
from tests.launcher.batch_conformance import *  # noqa: F403
from tests.launcher.batch_conformance import Batch
from tests.launcher.test_hydra_launcher import RUNS
from tests.launcher.test_hydra_sweep import PROGRAM, edited_while_it_waits, start
from tests.launcher.test_slurm import SETTINGS
from tests.results import learned
from tests.waiting import until

pytestmark = pytest.mark.slurm


@pytest.fixture
def batch(slurm: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """SLURM keeps to what launcher.schedulers.batch asks of a batch system."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    shape = Shape(memory_gb=0.1, time_s=600)
    return Batch(system, shape, SETTINGS, {"settings": {**SETTINGS, "partition": "nowhere"}}, tmp_path)


def real(lab: Lab, multirun: Path, *arguments: str) -> str:
    """launch.py with real training; what it said."""
    command = [sys.executable, "launch.py", *RUNS, "trainer.steps=3", f"multirun={multirun}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=lab.environment, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pool(accounted: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, float]]]:
    """What the pool's runs have learned."""
    multirun = tmp_path_factory.mktemp("pool")
    real(accounted, multirun)
    return learned(multirun)


@pytest.mark.timeout(900)  # several launches of real training
def test_slurm_runs_the_same_runs_to_the_same_numbers(slurm: Lab, tmp_path: Path, pool: object) -> None:
    """First detached: the runs go on without their launcher, and a job of its own writes the report."""
    multirun = tmp_path / "slurm"
    said = real(slurm, multirun, "cluster=slurm", "cluster.detach=true")
    assert re.search(r"submitted as \d+; the report follows them as job \d+", said)
    until(lambda: list((multirun / "adhoc").rglob("report*")))
    assert {state.state for state in states(multirun).values()} == {"done"}
    assert json.loads((multirun / "adhoc" / "plan.json").read_text())["runs"]
    assert learned(multirun) == pool
    assert "started" not in real(slurm, multirun, "cluster=slurm")
    again = real(slurm, multirun, "cluster=slurm", "trainer.steps=6")  # continues the runs of 3 steps
    assert "2 to run" in again and "2 done" in again and "2 runs continue runs from step 3 on" in again
    real(slurm, tmp_path / "direct", "trainer.steps=6")
    longer, direct = learned(multirun), learned(tmp_path / "direct")
    assert {run_id: longer[run_id] for run_id in direct} == direct


@pytest.mark.timeout(900)
def test_the_stock_plugin_runs_frozen_runs_too(slurm: Lab, tmp_path: Path, pool: object) -> None:
    plugin = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=2"]
    assert "2 done" in real(slurm, tmp_path / "plugin", *plugin)
    assert learned(tmp_path / "plugin") == pool
    assert "started" not in real(slurm, tmp_path / "plugin", *plugin)
    ran = slurm.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %j %T").splitlines()
    assert sum(name.startswith("launch") and state.startswith("COMPLET") for _, name, state in map(str.split, ran)) == 2


def most_at_a_time(found: Mapping[str, State]) -> int:
    times = [(state.started, state.finished) for state in found.values()]
    return max(sum(start <= moment < end for start, end in times) for moment, _ in times)


def test_each_model_gets_what_it_asks_for(slurm: Lab, tmp_path: Path) -> None:
    said = slurm.finish(tmp_path / "m", "model=tiny,qwen2_5_1_5b", "seed=0,1", "trainer.steps=4")
    assert "4 done" in said, said
    asked = {}
    for job in slurm.jobs(tmp_path / "m"):
        shown = slurm.ask("scontrol", "-o", "show", "job", job)
        tres = re.search(r" (?:ReqTRES|TRES)=(\S+)", shown).group(1)
        limit = re.search(r"TimeLimit=(\S+)", shown).group(1)
        config = (tmp_path / "m" / "runs" / run_on(slurm, tmp_path / "m", job) / "config.yaml").read_text()
        asked.setdefault("qwen2_5_1_5b" if "qwen2_5_1_5b" in config else "tiny", set()).add((tres, limit))
    assert asked == {
        "tiny": {("cpu=1,mem=1908M,node=1,billing=1", "00:30:00")},
        "qwen2_5_1_5b": {("cpu=8,mem=61036M,node=1,billing=8,gres/gpu=1", "2-00:00:00")},
    }
    whole(tmp_path / "m", 4, 4)


def test_a_run_of_several_nodes_gets_them_all(slurm: Lab, tmp_path: Path) -> None:
    asked = ["trainer=several", "model.resources.nodes=2", "model.resources.devices=4", "model.resources.cpus=3"]
    assert "1 done" in slurm.finish(tmp_path / "m", "seed=0", "trainer.steps=3", *asked)
    (job,) = slurm.jobs(tmp_path / "m")
    shown = slurm.ask("scontrol", "-o", "show", "job", job)
    assert re.search(r" NumNodes=2 .* TRES=cpu=6,mem=3816M,node=2,\S*gres/gpu=8\b", shown), shown
    whole(tmp_path / "m", 1, 3)


def test_arrays_keep_to_the_sites_size_and_to_ours(slurm: Lab, tmp_path: Path) -> None:
    def sizes(multirun: Path) -> list[int]:
        arrays = [job.partition("_")[0] for job in slurm.jobs(multirun)]
        return sorted(arrays.count(one) for one in set(arrays))

    assert "13 done" in slurm.finish(tmp_path / "site", f"seed={','.join(map(str, range(13)))}", "trainer.steps=2")
    assert sizes(tmp_path / "site") == [1, 6, 6]
    said = slurm.finish(tmp_path / "ours", "cluster.max_array=2", "seed=0,1,2,3,4", "trainer.steps=2")
    assert "5 done" in said and sizes(tmp_path / "ours") == [1, 2, 2], said
    whole(tmp_path / "site", 13, 2)


def test_a_submit_limit_is_waited_for(slurm: Lab, tmp_path: Path) -> None:
    slurm.ask("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=4")
    try:
        said = slurm.finish(tmp_path / "m", "seed=0,1,2,3,4,5,6,7,8,9", "trainer.steps=2")
    finally:
        slurm.ask("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    assert "10 done" in said and "SLURM accepts no more jobs now" in said, said
    assert {state.attempt for state in whole(tmp_path / "m", 10, 2).values()} == {1}


def test_detached_runs_keep_to_it_too(slurm: Lab, tmp_path: Path) -> None:
    wanted = ["seed=0,1,2,3", "cluster.max_running=2", "cluster.detach=true", "trainer.steps=4"]
    assert "submitted as" in slurm.finish(tmp_path / "m", *wanted, STEPS_SECONDS="0.2")
    until(lambda: [state.state for state in states(tmp_path / "m").values()] == ["done"] * 4)
    assert most_at_a_time(whole(tmp_path / "m", 4, 4)) <= 2


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.resources.cpus=999", "conf/model/tiny.yaml: model.resources = 1 node, on each 999 CPUs"),
        ("cluster.partition=nowhere", "invalid partition"),
        ("cluster.sbatch={comment: 'a\\nb'}", "cluster.sbatch"),
        ("cluster.partition='main; reboot'", "cluster.partition"),
    ],
)
def test_what_slurm_would_refuse_is_refused_before_anything_is_written(
    slurm: Lab, tmp_path: Path, override: str, told: str
) -> None:
    words = re.findall(r"(?:[^\s{']|\{[^}]*\}|'[^']*')+", override)
    said = refused(slurm.environment, tmp_path / "m", *words)
    assert told in said and "Fix:" in said, said
    assert not slurm.ask("squeue", "-h")


def refused(environment: Mapping[str, str], multirun: Path, *overrides: str) -> str:
    """What a launch says that is refused before it writes anything."""
    own = ("method=c0_grpo", "experiment.name=adhoc", "cluster=slurm", f"multirun={multirun}")
    command = [sys.executable, "launch.py", "-m", *own, *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 2 and not list(multirun.glob("*")), done.stdout + done.stderr
    return done.stderr


def test_a_controller_that_does_not_answer_is_named_and_not_the_runs_resources(slurm: Lab, tmp_path: Path) -> None:
    settings = (slurm.state / "etc" / "slurm.conf").read_text()
    nobody = re.sub(r"^SlurmctldPort=.*$", "SlurmctldPort=9", settings, flags=re.MULTILINE)
    (tmp_path / "slurm.conf").write_text(nobody)
    environment = {**slurm.environment, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    # Two shapes of resources: it is said once.
    shapes = "experiment.zip={z:{model.resources.cpus:[1,2],method.clip_low:[0.1,0.2]}}"
    said = refused(environment, tmp_path / "m", shapes, "model.resources.time='00:10:00'")
    assert said.count("does not answer; sbatch says: ") == 1 and "model.resources" not in said, said
    assert "SLURM's controller, slurmctld, does not answer" in said and "$SLURM_CONF" in said, said


def test_options_of_sbatch_reach_it(slurm: Lab, tmp_path: Path) -> None:
    options = ["cluster.sbatch={exclude: 'n[1-3]', comment: 'two words'}"]
    options += ["cluster.setup=['export STEPS_SECONDS=0.01']"]
    assert "1 done" in slurm.finish(tmp_path / "m", "seed=0", "trainer.steps=2", *options)
    ((job, (_, node)),) = slurm.jobs(tmp_path / "m").items()
    assert node == "n4" and "Comment=two words" in slurm.ask("scontrol", "show", "job", job)


def test_a_program_that_is_edited_runs_as_it_was_launched(slurm: Lab, tmp_path: Path) -> None:
    """It has classes in its main module, and is loaded anew on the node, from the launch's copy."""
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    settings = "hydra.sweeper.cluster={name: slurm, max_running: 1}"
    process = start(tmp_path, "x=1,2,3", "steps=4", settings, more=slurm.environment)
    edited_while_it_waits(tmp_path, process)
