"""What a model's file asks for means the same to every cluster; what fits into one of Ray, counted by hand."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.application import Shape, seconds, shape
from launcher.commands import sweeper
from launcher.errors import InvalidPlan
from launcher.execution import costs
from launcher.schedulers.batch.system import Array
from launcher.schedulers.local import cluster as local
from launcher.schedulers.ray import placement
from launcher.schedulers.slurm import cluster, system
from tests.launcher.experiments import make, refusal

GB = 10**9
ASKED = [f"model.resources.{one}" for one in ("nodes=2", "devices=4", "cpus=3", "memory_gb=2.5")]


def test_devices_cpus_and_memory_are_those_of_each_node(tmp_path: Path) -> None:
    words = ("trainer=several", "cluster=slurm", "cluster.max_running=1", *ASKED)
    planned = make("method=c0_grpo", *words, f"multirun={tmp_path}")
    (run,) = planned.runs.values()
    asked = shape(run.config)
    assert asked == Shape(nodes=2, devices=4, cpus=3, memory_gb=2.5, time_s=1800)
    assert placement.bundle(asked) == {"CPU": 3, "GPU": 4, "memory": 2.5 * GB}  # one such part a node
    given = system.parameters(Array("rlsweep-0-0", ["true"], 1, asked, tmp_path, tmp_path, planned.cluster))
    assert {key: given[key] for key in ("nodes", "gpus_per_node", "cpus_per_task", "mem", "time")} == {
        **{"nodes": 2, "gpus_per_node": "4", "cpus_per_task": 3},  # one task a node
        **{"mem": "2385M", "time": 30},
    }
    forecast = costs.Forecast(planned, {run.id: None})
    seconds = 8 * forecast.left[run.id].rate.seconds * run.config["trainer"]["steps"]
    found = forecast.estimate([run.id])
    assert found.device_hours == pytest.approx(seconds / 3600)
    assert found.wall_seconds == pytest.approx(seconds / 8)


def test_processes_that_a_trainer_starts_are_asked_for_on_top_of_the_model() -> None:
    (one,) = make("method=c0_grpo", "trainer=verl_ray").runs.values()
    (two,) = make("method=c0_grpo", "trainer=verl_ray", "trainer.ranks=2").runs.values()
    assert (shape(one.config).memory_gb, shape(two.config).memory_gb) == (6.0, 7.0)
    nodes = ["trainer.ranks=2", "model.resources.nodes=2", "cluster=slurm"]
    (spread,) = make("method=c0_grpo", "trainer=verl_ray", *nodes).runs.values()
    assert (shape(spread.config).nodes, shape(spread.config).memory_gb) == (2, 6.0) and spread.id == two.id
    (other,) = make("method=c0_grpo", "trainer=verl_ray", "trainer.services_gb=10").runs.values()
    assert shape(other.config).memory_gb == 13.0 and other.id == one.id
    (plain,) = make("method=c0_grpo").runs.values()
    assert shape(one.config).joins_ray and not shape(plain.config).joins_ray


def test_devices_decide_ranks_and_precision_and_how_a_model_is_shared_is_no_part_of_the_id() -> None:
    """A plan makes `auto` and null explicit, so that a run's identity says what was computed."""

    def planned(*overrides: str) -> tuple[str, int, str]:
        (run,) = make("method=c0_grpo", "trainer=verl_ray", "cluster=slurm", *overrides).runs.values()
        trainer = run.config["trainer"]
        return run.id, trainer["ranks"], trainer["dtype"]

    gpus = ["model.resources.devices=2"]
    cpu, gpu = planned(), planned(*gpus)
    assert cpu[1:] == (1, "float32") and gpu[1:] == (2, "bfloat16")
    assert planned("trainer.dtype=float32", "trainer.ranks=1") == cpu
    assert planned(*gpus, "trainer.dtype=float32") == planned("trainer.ranks=2")
    assert planned("model.resources.nodes=2", "model.resources.devices=1") == gpu
    shared = ("model.parallel.offload=true", "model.parallel.sequence=2", "model.parallel.rows=3")
    assert planned(*gpus, *shared) == gpu


@pytest.mark.parametrize(
    ("written", "found"),
    [("00:30:00", 1800), ("2-00:00:01", 172801), ("120:00:00", 432000), ("30", None), ("soon", None)],
)
def test_times_are_read_as_slurm_writes_them(written: str, found: int | None) -> None:
    assert seconds(written) == found


def test_slurm_needs_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in cluster._COMMANDS:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    planned = make("method=c0_grpo", "cluster=slurm", f"multirun={tmp_path}")
    (run,) = planned.runs.values()
    del run.config["model"]["resources"]["time"]  # as in a model's file that says nothing of it
    with pytest.raises(InvalidPlan, match=r"conf/model/tiny.yaml: model.resources.time: SLURM needs a time limit"):
        cluster.check(planned, list(planned.runs))


def test_a_run_under_ray_starts_on_this_machine_only_with_as_many_gpus(monkeypatch, worded):
    planned = make("method=c0_grpo", "model=tiny", "model.resources.devices=2", "trainer=verl_ray")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    local.check(planned, list(planned.runs))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    worded(refusal(lambda: local.check(planned, list(planned.runs))))


@pytest.mark.parametrize(
    "words",
    [
        "model.resources.devices=1",
        "trainer=verl_ray model.resources.devices=8",
        "cluster=ray model.resources.devices=1",
        "cluster=slurm model.resources.time=00:02:00",
        "cluster=slurm cluster.sbatch={gpus-per-node:1}",
        "cluster=slurm cluster.sbatch={job-nam:x,p:a,qos:b,exclud:n1,exclude:n2,gpus:1,comment:c}",
        "multirun={file}",
        "multirun={file}/below",
    ],
)
def test_a_dry_run_and_a_launch_refuse_the_same(words, tmp_path, monkeypatch, capsys, worded):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(cluster, "_COMMANDS", ())
    (tmp_path / "file").touch()
    given = ["method=c0_grpo", f"multirun={tmp_path}/new", *words.replace("{file}", f"{tmp_path}/file").split()]
    for dry in (True, False):
        assert (main(["plan", *given]) if dry else sweeper.run(given)) == 2
        assert not dry or not (tmp_path / "new").exists()
        worded(re.sub(r"\d+ CPUs, 0 GPUs, [\d.]+ GB", "* CPUs, 0 GPUs, * GB", capsys.readouterr().err))


def test_a_dry_run_leaves_to_the_cluster_what_only_that_knows(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["method=c0_grpo", "model.resources.devices=1", f"multirun={tmp_path}/new"]
    for there in ("cluster=slurm", "cluster.address=10.0.0.1:6379", "hydra/launcher=joblib"):
        chosen = [there, "cluster=ray"] if there.startswith("cluster.") else [there]
        assert main(["plan", *words, *chosen]) == 0, capsys.readouterr().err


SMALL = {"CPU": 4.0, "memory": 16.0 * GB, "node:10.0.0.1": 1.0}
LARGE = {"CPU": 16.0, "GPU": 8.0, "memory": 64.0 * GB}


@pytest.mark.parametrize(
    ("shape", "nodes", "count"),
    [
        (Shape(cpus=3), [SMALL, LARGE], 1 + 5),
        (Shape(cpus=1, memory_gb=10), [SMALL, LARGE], 1 + 6),
        (Shape(cpus=1, devices=2), [SMALL, LARGE], 0 + 4),
        (Shape(cpus=4, nodes=2), [SMALL, LARGE], 1),  # the small node holds one part only
        (Shape(cpus=2, nodes=2), [SMALL, LARGE], 2),
        (Shape(cpus=1, nodes=3), [SMALL, LARGE], 0),
        (Shape(cpus=2, nodes=2), [LARGE] * 3, 12),
        (Shape(cpus=16, nodes=2), [LARGE] * 3, 1),
    ],
)
def test_as_many_fit_as_a_hand_count_says(shape: Shape, nodes: list[dict[str, float]], count: int) -> None:
    assert placement.room(shape, nodes) == count


@pytest.mark.parametrize(
    ("key", "much", "most"), [("cpus", 99, 16), ("devices", 9, 8), ("memory_gb", 65, 64), ("nodes", 3, 2)]
)
def test_what_never_fits_is_refused_with_the_number_that_does(key: str, much: int, most: int) -> None:
    def refuse(number: int) -> None:
        words = ("trainer=several", "model=tiny", "cluster=ray", f"model.resources.{key}={number}")
        planned = make("method=c0_grpo", *words)
        placement.refuse(planned, list(planned.runs), [SMALL, LARGE], "the Ray cluster at auto")

    refuse(most)
    (line,) = refusal(lambda: refuse(much))
    assert line.startswith("conf/model/tiny.yaml: model.resources = ")
    assert f"such as model.resources.{key}={most}," in line
    assert "2 nodes (1 of 4 CPUs, 0 GPUs, 16.0 GB of memory; 1 of 16 CPUs, 8 GPUs, 64.0 GB of memory)" in line
