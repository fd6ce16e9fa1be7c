"""`launcher evaluate`: a checkpoint is evaluated after its run as the run evaluated it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launcher.__main__ import main
from launcher.planning import freeze, planner
from launcher.run.folder import cache_folder, checkpoint_name, checkpoints_folder, read_config, run_folder
from tests.trainer_ext.conftest import CONF, MemoryRun
from tests.trainer_ext.twins import write_problems, write_twin
from trainer_ext.application.verl_tree import completed
from trainer_ext.train import train

REWARD = "def graded(data_source, solution_str, ground_truth, extra_info):\n    return {}\n"


def data(folder: Path, name: str, prompts: range) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in prompts))
    return path


@pytest.mark.train
def test_a_checkpoint_is_evaluated_as_its_run_did_and_on_more_and_other_prompts(tmp_path: Path, capsys) -> None:
    multirun, rewards = tmp_path / "multirun", tmp_path / "rewards.py"
    graded = '{"score": len(solution_str) / 10 + int(ground_truth) / 100, "letters": len(solution_str)}'
    rewards.write_text(REWARD.format(graded))
    train_path, test_path = data(tmp_path, "train.jsonl", range(40)), data(tmp_path, "test.jsonl", range(50, 70))
    twin = write_twin("qwen2", write_problems(tmp_path / "problems.jsonl"), tmp_path / "twin")
    words = ["method=c0_grpo", "model=pretrained", f"model.path={twin}", "task=file", "seed=0"]
    words += [f"task.train_path={train_path}", f"task.test_path={test_path}", f"task.reward={rewards}:graded"]
    words += ["trainer.steps=2", "trainer.eval_every=2", "trainer.eval_prompts=3", "trainer.eval_samples=2"]
    words += ["trainer.eval_scores={rouge_l: {}}"]
    words += ["verl.data.train_batch_size=4", "verl.data.max_response_length=6", "verl.data.max_prompt_length=60"]
    plan = planner.make(CONF.parent, [*words, f"multirun={multirun}"])
    freeze.freeze(plan)
    (run_id,) = plan.runs
    folder = run_folder(multirun, run_id)
    trained = MemoryRun(tmp_path / "run", cache_folder(multirun))
    train(completed(folder, read_config(folder)), trained)
    newest = trained.latest_checkpoint()
    assert newest is not None
    checkpoints_folder(folder).mkdir()
    newest[1].rename(checkpoints_folder(folder) / checkpoint_name(2))
    before = sorted(folder.rglob("*"))

    def evaluated(*more: str) -> dict[str, float]:
        capsys.readouterr()
        assert main(["evaluate", run_id[:8], *more, "--json", "--multirun", str(multirun)]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["run"], said["step"], said["task"]) == (run_id, 2, "file")
        return dict(said["metrics"])

    own = evaluated()
    assert own == {key: trained.lines[-1][key] for key in own} and {"eval/reward/letters", "eval/rouge_l"} <= set(own)
    further = "trainer.eval_scores.bleu={}"
    more = evaluated("--prompts", "20", "--samples", "4", further, "--to", str(tmp_path / "more"))
    assert "eval/pass@4" in more and more["eval/reward_mean"] != own["eval/reward_mean"]
    rows = pq.read_table(tmp_path / "more" / "answers.parquet").to_pylist()
    assert len([row for row in rows if row["split"] == "test"]) == 20 * 5
    test = [row["reward"] for row in rows if row["split"] == "test" and row["sample"] is not None]
    assert sum(test) / len(test) == pytest.approx(more["eval/reward_mean"])
    assert all(row["reward/letters"] == len(row["response"]) for row in rows)
    kept = json.loads((tmp_path / "more" / "metrics.json").read_text())
    assert kept["metrics"] == more and kept["changes"] == {
        "trainer": {"eval_prompts": 20, "eval_samples": 4, "eval_scores": {"rouge_l": {}, "bleu": {}}}
    }
    drawn = [row for row in rows if row["split"] == "test" and row["sample"] is not None]
    assert sum(row["bleu"] for row in drawn) / len(drawn) == pytest.approx(more["eval/bleu"])
    assert {row["rouge_l"] for row in rows if row["split"] != "test"} == {None}

    other = evaluated(f"task.test_path={data(tmp_path, 'other.jsonl', range(80, 90))}")
    assert other["eval/train_reward_mean"] == own["eval/train_reward_mean"]
    assert other["eval/reward_mean"] > own["eval/reward_mean"]  # larger answers have larger rewards here
    assert sorted(folder.rglob("*")) == before

    def of_folder(model: Path, *more: str) -> int:
        capsys.readouterr()
        own = [
            "task=file",
            f"task.train_path={train_path}",
            f"task.test_path={test_path}",
            f"task.reward={rewards}:graded",
        ]
        own += ["verl.data.max_response_length=6", "verl.data.max_prompt_length=60"]
        return main(["evaluate", str(model), *own, *more, "--prompts", "3", "--samples", "2", "--json"])

    assert main(["export", run_id, str(tmp_path / "exported"), "--multirun", str(multirun)]) == 0
    assert of_folder(tmp_path / "exported") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["folder"], found["task"]) == (str(tmp_path / "exported"), "file")
    greedy = "eval/greedy_reward_mean"  # drawn responses depend on the step
    assert found["metrics"][greedy] == own[greedy]
    assert of_folder(tmp_path / "exported", "task.rewrd=bleu") == 2
    assert "task.reward" in capsys.readouterr().err
    assert of_folder(tmp_path / "exported", "--checkpoint", "1") == 2
    assert "is a model, not a run. Fix: remove --checkpoint" in capsys.readouterr().err
    assert main(["evaluate", str(twin)]) == 2
    assert "Fix: add task=NAME" in capsys.readouterr().err

    def refused(*more: str) -> str:
        capsys.readouterr()
        assert main(["evaluate", run_id, *more, "--multirun", str(multirun)]) == 2
        return str(capsys.readouterr().err)

    assert "--prompts 0: must be 1 or more" in refused("--prompts", "0")
    assert f"must be KEY=VALUE with a key of run {run_id}'s task" in refused("task.tst_path=x.jsonl")
    assert "Fix: write task.test_path=VALUE" in refused("task.tst_path=x.jsonl")
    assert "with a key of run" in refused("verl.data.train_batch_size=3")
    assert "write rouge_l" in refused("trainer.eval_scores.rouge_k={}")
    assert "has checkpoints of step 2 only" in refused("--checkpoint", "1")
    assert "none.jsonl" in refused(f"task.test_path={tmp_path}/none.jsonl")
    assert "it exists and is not an empty folder" in refused("--to", str(tmp_path / "more"))
    (tmp_path / "failing.py").write_text(REWARD.format("1 / len(solution_str) * 'no number'"))
    assert "the reward of task file failed: TypeError" in refused(f"task.reward={tmp_path}/failing.py:graded")
