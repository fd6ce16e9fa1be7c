"""The backend verl_ray without Ray: dealing, sizes, shards. tests/cluster/test_verl_ray.py runs it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError, WorkerCrashedError
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig

from tests.configuration import configuration
from tests.trainer_ext.twins import config_of, tokenizer_of
from trainer_ext.backends.in_process.engine import model_overrides
from trainer_ext.backends.protocol import Lost
from trainer_ext.backends.verl_ray import driver, node, process, shards
from trainer_ext.backends.verl_ray.trainer import deal
from trainer_ext.fits import sizes


@pytest.mark.parametrize(("ranks", "unit"), [(1, 1), (2, 1), (8, 1), (2, 2)])
def test_a_mini_batch_has_the_same_rows_whatever_the_ranks_and_pairs_stay_together(ranks, unit):
    generator = random.Random(ranks)
    rows, size = 192, 32
    lengths = [generator.randint(1, 500) for _ in range(rows)]
    order = deal(lengths, size, ranks, unit)
    assert sorted(order) == list(range(rows))
    assert all(order[row + 1] == order[row] + 1 for row in range(0, rows, 2) if unit == 2)
    own, each = rows // ranks, size // ranks
    for mini in range(rows // size):
        parts = [order[rank * own + mini * each : rank * own + (mini + 1) * each] for rank in range(ranks)]
        assert sorted(row for part in parts for row in part) == list(range(mini * size, (mini + 1) * size))
        work = [sum(lengths[row] for row in part) for part in parts]
        assert max(work) <= 1.5 * min(work)


def test_the_token_for_padding_is_the_models_own(tmp_path):
    """verl takes the tokenizer's, which may be the token that ends a response; its embedding would not be trained."""
    for family, own in (("llama", None), ("mistral", 0)):
        folder, tokenizer = tmp_path / family, tokenizer_of("llama")
        config = config_of(family, tokenizer)
        config.pad_token_id = own
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        read = HFModelConfig(path=str(folder), override_config=model_overrides(str(folder), False))
        assert read.tokenizer.pad_token_id == tokenizer.eos_token_id
        assert read.hf_config.pad_token_id == own


ACTOR = "verl.actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [
        (["ppo_mini_batch_size=7"], 1), ([], 3), (["model.resources.devices=3"], "null"), (["method=dpo"], 16),
        (["ppo_micro_batch_size_per_gpu=48"], 1), (["method=dpo", "ppo_micro_batch_size_per_gpu=1"], 2),
        (["use_dynamic_bsz=true", "ppo_max_token_len_per_gpu=9"], 1),
        (["method=dpo", "use_dynamic_bsz=true", "ppo_max_token_len_per_gpu=19"], 1),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_named(overrides, ranks, worded):
    given = ["verl.data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=8", "verl.actor_rollout_ref.rollout.n=8"]
    given += [word if word.startswith(("method", "model")) else f"{ACTOR}.{word}" for word in overrides]
    worded(map(str, sizes.misfits(configuration("trainer=verl_ray", f"trainer.ranks={ranks}", *given))))


def test_a_rank_reads_the_piece_that_fsdp_gives_it():
    for rows, ranks in itertools.product((1, 2, 5, 8, 9), (1, 2, 3, 4)):
        whole = torch.arange(3.0 * rows).reshape(rows, 3)
        pieces = [shards.cut(whole, rank, ranks) for rank in range(ranks)]
        assert torch.equal(torch.cat(pieces), whole) and len(pieces[0]) == -(-rows // ranks)


def test_a_missing_part_of_a_checkpoint_is_named(tmp_path: Path):
    (tmp_path / "rank00000-of-00002").mkdir()
    with pytest.raises(ValueError, match=r"parts of the checkpoint are missing; there are \['rank00000-of-00002'\]"):
        shards.whole_weights(tmp_path)
    with pytest.raises(ValueError, match=r"there are \[\]"):
        shards.whole_weights(tmp_path / "none")


def test_a_process_that_has_just_ended_holds_nothing():
    with subprocess.Popen(["sleep", "60"]) as ends:
        top = psutil.Process(ends.pid)
        assert node.family(top) == [top] and node.held(top) > 0
        ends.kill()
    assert node.family(top) == [] and node.held(top) == 0


def test_every_run_of_ray_has_a_token_of_its_own():
    given = {"PYTHONPATH": "/elsewhere", "RAY_ADDRESS": "10.0.0.1:6379", "RAY_AUTH_TOKEN_PATH": "/elsewhere/token"}
    one, two = (process.environment(given) for _ in range(2))
    assert one["RAY_AUTH_MODE"] == "token" and len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != two["RAY_AUTH_TOKEN"]
    assert one["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"} & set(one)


@pytest.mark.processes
def test_ranks_and_servers_import_no_data_frames():
    """SciPy, pandas and datasets are 120 MB in each of these processes. A user's own modules are imported, too."""
    program = """
import sys
import trainer_ext.backends.verl_ray.rollout, trainer_ext.backends.verl_ray.workers
assert "colorsys" in sys.modules and not {"pandas", "datasets", "scipy"} & sys.modules.keys()
"""
    given = process.environment({**os.environ, node.EXTERNAL: "colorsys"})
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_death_of_a_process_of_ray_is_no_exception_of_the_run_unless_it_failed_by_itself():
    """A raylet, or a process that trains, can be killed while the run starts; then Ray's own errors come here."""
    failed = RayTaskError("create", "Traceback: no such model", ValueError("no such model"))
    for error in (ActorDiedError(), WorkerCrashedError(), ObjectLostError("0" * 56, None, "")):
        found = driver._portable(error)
        assert type(found) is Lost and str(found).startswith("a process of Ray died: "), found
    assert type(driver._portable(ActorDiedError(failed))) is RuntimeError
    found = driver._portable(failed.as_instanceof_cause())
    assert type(found) is ValueError and str(found) == str(failed.cause)


def test_only_processes_with_a_handler_are_asked_for_their_stacks():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert process._handles(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        assert not process._handles(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_folders_of_dead_processes_are_removed_and_those_of_living_ones_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / "rls-results"  # of the user, whatever its name
    theirs.mkdir()
    with ExitStack() as alive:
        kept = process._folder(alive)
        if not (pid := os.fork()):
            (process._folder(ExitStack()) / "log").write_text("x")
            os._exit(0)  # as a process that is killed
        os.waitpid(pid, 0)
        assert len([*tmp_path.iterdir()]) == 3
        with ExitStack() as mine:
            folder = process._folder(mine)
            assert {*tmp_path.iterdir()} == {theirs, kept, folder}
        assert {*tmp_path.iterdir()} == {theirs, kept}
    assert [*tmp_path.iterdir()] == [theirs]
