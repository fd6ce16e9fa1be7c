"""What a plan costs: the model's file until runs are done, then their medians; list scheduling; what `plan` prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import files
from launcher.__main__ import main
from launcher.execution import costs
from launcher.execution.costs import ARITHMETIC, FILE, GUESS, KIND, METHOD, History, makespan
from launcher.planning import freeze
from launcher.run import lifecycle
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, find_state, read_state, write_state
from tests.launcher.experiments import make

SMALL = ("method=c0_grpo,ptrw", "experiment.name=adhoc", "experiment.baseline=c0_grpo", "seed=0,1", "trainer.steps=10")


#: Bytes of a checkpoint of model=tiny: its weights and their two moments.
OF_TINY = 3 * 4 * 111_808


def finish(planned, run_id, seconds, steps=10):
    """Make a frozen run done, with a summary that says how long its steps took."""
    folder = run_folder(planned.multirun, run_id)
    files.write_json(folder / "summary.json", {"steps": steps, "train_seconds": seconds * steps})
    write_state(folder, read_state(folder).replace(state=RunState.DONE))


def frozen(tmp_path, *arguments):
    planned = make(*SMALL, *arguments, f"multirun={tmp_path}")
    freeze.freeze(planned)
    return planned


def history(planned):
    done = [one for one in planned.runs if (find_state(run_folder(planned.multirun, one)).state == "done")]
    return History(planned.multirun, planned.runs, done)


def cost(planned):
    """What the plan costs by the states of its runs now."""
    return costs.Forecast(planned, lifecycle.find_states(planned.multirun, planned.runs)).estimate(planned.runs)


def by_group(planned):
    return {(entry.group, entry.seed): planned.runs[entry.id] for entry in planned.experiments[0].entries}


def test_the_models_file_holds_until_a_run_is_done(tmp_path):
    planned = frozen(tmp_path, "cluster.slots=2")
    rates = {history(planned).expected(run).rate for run in planned.runs.values()}
    assert rates == {costs.Rate(0.15, FILE, 0)}
    found = cost(planned)
    assert found.device_hours == pytest.approx(4 * 10 * 0.15 / 3600)
    assert (found.wall_seconds, found.storage_bytes) == (pytest.approx(3.0), 4 * OF_TINY)


def test_done_runs_correct_it_first_of_the_same_method_then_of_any(tmp_path):
    planned = frozen(tmp_path)
    runs = by_group(planned)
    finish(planned, runs["c0_grpo", 0].id, 2.0)
    assert history(planned).expected(runs["c0_grpo", 1]).rate == costs.Rate(2.0, METHOD, 1)
    assert history(planned).expected(runs["ptrw", 1]).rate == costs.Rate(2.0, KIND, 1)
    finish(planned, runs["ptrw", 0].id, 4.0)
    assert history(planned).expected(runs["ptrw", 1]).rate == costs.Rate(4.0, METHOD, 1)
    # Runs of another plan count as the plan's own do; other batches, tasks and models do not.
    other = make("method=gspo", "trainer.steps=20", f"multirun={tmp_path}")
    assert [history_of_none(other).expected(run).rate for run in other.runs.values()] == [costs.Rate(3.0, KIND, 2)]
    for change in ("verl.data.train_batch_size=64", "task=sorting", "model.hidden_size=128"):
        (run,) = make("method=gspo", change, f"multirun={tmp_path}").runs.values()
        assert history_of_none(other, run).expected(run).rate.source == FILE, change


def history_of_none(planned, *runs):
    return History(planned.multirun, {run.id: run for run in runs} or planned.runs, [])


def seconds_of(*words):
    """The seconds of a step that the plan of one run expects, where nothing has been measured."""
    (run,) = make("method=c0_grpo", "cluster=slurm", "model=qwen2_5_0_5b", "task=hh_rlhf", *words).runs.values()
    assert history_of_none(SimpleNamespace(multirun=Path("none")), run).expected(run).rate.source == ARITHMETIC
    return history_of_none(SimpleNamespace(multirun=Path("none")), run).expected(run).rate.seconds


def test_an_unmeasured_step_is_priced_by_method_precision_server_and_evaluation():
    plain = seconds_of()
    assert seconds_of("method=c0_ppo") > plain  # a critic
    read_target = [seconds_of(f"method={name}") for name in ("off_policy", "q_star")]
    assert min(read_target) > plain  # which reads each token, too
    assert seconds_of("method=dpo") < plain  # trains on two of the four responses to each prompt
    assert seconds_of("trainer.eval_every=10", "trainer.eval_samples=16") > plain
    assert seconds_of("model.resources.device_type=H100") < plain
    ray = seconds_of("trainer=verl_ray")  # bfloat16 on devices
    assert ray < seconds_of("trainer=verl_ray", "trainer.dtype=float32")
    assert seconds_of("model=llama_7b", "trainer=verl_ray") > 20


def test_an_unmeasured_model_without_known_sizes_has_a_guess(tmp_path):
    words = ("method=c0_grpo", "seed=0", "task=gsm8k", "model=pretrained", "model.path=some/name")
    (run,) = make(*words, f"multirun={tmp_path}").runs.values()
    assert run.step_seconds is None
    assert History(tmp_path, {run.id: run}, []).expected(run).rate == costs.Rate(60.0, GUESS, 0)


def test_a_broken_summary_or_folder_teaches_nothing(tmp_path):
    planned = frozen(tmp_path)
    first, second, *_ = planned.runs
    finish(planned, first, 0.0)
    finish(planned, second, 1.0)
    (run_folder(tmp_path, second) / "config.yaml").write_text("[]")
    assert (
        history_of_none(make("method=gspo", f"multirun={tmp_path}")).expected(planned.runs[first]).rate.source == FILE
    )
    (run_folder(tmp_path, first) / "summary.json").write_text("{")
    assert History(tmp_path, planned.runs, [first]).expected(planned.runs[first]).rate.source == FILE


def test_storage_is_that_of_done_runs_with_the_model(tmp_path):
    planned = frozen(tmp_path)
    first, *_ = planned.runs
    finish(planned, first, 1.0)
    folder = run_folder(tmp_path, first)
    (folder / "weights").write_bytes(b"w" * 1_000_000)
    assert cost(planned).storage_bytes == pytest.approx(3e6, rel=0.01)


def test_the_storage_of_a_model_of_which_no_run_is_done_is_that_of_its_checkpoints(tmp_path):
    storage = {}
    for model in ("tiny", "qwen2_5_7b", "pretrained"):
        more = [
            "trainer=verl_ray",
            "task=gsm8k",
            f"model={model}",
            *(["model.path=some/name"] * (model == "pretrained")),
        ]
        planned = make("method=c0_grpo", "seed=0", *more[model == "tiny" and 2 :], f"multirun={tmp_path}")
        storage[model] = cost(planned).storage_bytes
    assert storage == {"tiny": 2 * OF_TINY, "qwen2_5_7b": 2 * 3 * 4 * 7_615_616_512, "pretrained": None}


SECONDS = st.lists(st.floats(0, 100), max_size=12)


@given(SECONDS, st.integers(1, 5))
def test_list_scheduling_is_within_its_bounds(seconds, slots):
    found = makespan(seconds, slots)
    longest, total = max(seconds, default=0.0), sum(seconds)
    assert found >= max(longest, total / slots) * (1 - 1e-9)
    assert found <= total / slots + (1 - 1 / slots) * longest + 1e-9


def test_plan_prints_an_object_and_a_screen(tmp_path, capsys):
    planned = frozen(tmp_path)
    finish(planned, next(iter(planned.runs)), 2.0)
    words = ["plan", *SMALL, f"multirun={tmp_path}"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"], found["new"], found["done"]) == (4, 0, 1)
    assert found["device_hours"] == pytest.approx(3 * 20 / 3600)
    assert found["runs"][1] == {
        "id": list(planned.runs)[1],
        "experiment": "adhoc",
        "group": "c0_grpo",
        "factors": {},
        "seed": 1,
        "state": "planned",
    }
    assert {one["source"]: one["runs"] for one in found["step_times"]} == {METHOD: 1, KIND: 2}
    groups = found["experiments"]["adhoc"]["groups"]
    assert groups["c0_grpo"]["states"] == {"done": 1, "planned": 1}
    assert sum(group["device_hours"] for group in groups.values()) == pytest.approx(found["device_hours"])
    assert main(words) == 0
    assert "4 runs, 1 done" in capsys.readouterr().out
    factor = ["experiment.name=screen", "trainer.steps=5,6", f"multirun={tmp_path}"]
    assert main(["plan", *SMALL[:1], *SMALL[2:4], *factor]) == 0
    screen = capsys.readouterr().out
    assert "8 runs, 0 done" in screen and "steps: 5, 6" in screen and len(screen.splitlines()) < 20


@pytest.mark.parametrize("cluster", ["slurm", "ray"])
def test_plan_tells_no_wall_time_where_a_queue_decides(cluster, tmp_path, capsys):
    words = ["plan", *SMALL, f"multirun={tmp_path}", f"cluster={cluster}"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device_hours"] > 0 and (found["wall_seconds"], found["slots"]) == (None, None)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (
        f"CPU-hours, {4 * OF_TINY / 1e6:.1f} MB of storage" in said
        and "wall time" not in said
        and "at a time" not in said
    )
    assert main([*words, "cluster.max_running=2", "--json"]) == 0
    two = json.loads(capsys.readouterr().out)
    assert two["slots"] == 2 and two["wall_seconds"] == pytest.approx(found["device_hours"] * 3600 / 2)
