"""`launcher evaluate` and `launcher export`: what a checkpoint is worth, as its run said it, and to other programs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from launcher.__main__ import main
from launcher.files import dump_yaml
from launcher.planning import freeze, planner
from launcher.run.folder import cache_folder, checkpoint_name, checkpoints_folder, read_config, run_folder
from tests.trainer_ext.conftest import CONF, SHORT, MemoryRun, configuration, jsonl
from tests.trainer_ext.twins import write_problems, write_twin
from trainer_ext.application.verl_tree import completed
from trainer_ext.backends import protocol
from trainer_ext.backends.in_process import initial_model
from trainer_ext.train import train

REWARD = "def graded(data_source, solution_str, ground_truth, extra_info):\n    return {}\n"


def data(folder: Path, name: str, prompts: range) -> Path:
    return Path(jsonl(folder / name, *({"prompt": f"{n}+1=", "answer": str(n + 1)} for n in prompts)))


def trained_in(multirun: Path, cache: Path, words: list[str]) -> tuple[Path, MemoryRun]:
    """The folder of a planned run, with its last checkpoint after two steps of training; what training logged."""
    plan = planner.make(CONF.parent, [*words, f"multirun={multirun}"])
    freeze.freeze(plan)
    (run_id,) = plan.runs
    folder = run_folder(multirun, run_id)
    trained = MemoryRun(multirun.with_name("run"), cache)
    train(completed(folder, read_config(folder)), trained)
    newest = trained.latest_checkpoint()
    assert newest is not None
    checkpoints_folder(folder).mkdir()
    newest[1].rename(checkpoints_folder(folder) / checkpoint_name(2))
    return folder, trained


@pytest.mark.train
def test_a_checkpoint_is_evaluated_as_its_run_did_and_on_more_and_other_prompts(tmp_path: Path, capsys) -> None:
    multirun, rewards = tmp_path / "multirun", tmp_path / "rewards.py"
    graded = '{"score": len(solution_str) / 10 + int(ground_truth) / 100, "letters": len(solution_str)}'
    rewards.write_text(REWARD.format(graded))
    train_path, test_path = data(tmp_path, "train.jsonl", range(40)), data(tmp_path, "test.jsonl", range(50, 70))
    twin = write_twin("qwen2", write_problems(tmp_path / "problems.jsonl"), tmp_path / "twin")
    asked = ["task=file", f"task.train_path={train_path}", f"task.test_path={test_path}"]
    asked += [f"task.reward={rewards}:graded", "verl.data.max_response_length=6", "verl.data.max_prompt_length=60"]
    words = ["method=c0_grpo", "model=pretrained", f"model.path={twin}", "seed=0", *asked]
    words += ["trainer.steps=2", "trainer.eval_every=2", "trainer.eval_prompts=3", "trainer.eval_samples=2"]
    words += ["trainer.eval_scores={rouge_l: {}}", "verl.data.train_batch_size=4"]
    folder, trained = trained_in(multirun, cache_folder(multirun), words)
    run_id = folder.name
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
    drawn = [row for row in rows if row["split"] == "test" and row["sample"] is not None]
    for column, metric in (("reward", "eval/reward_mean"), ("bleu", "eval/bleu")):
        assert fmean(row[column] for row in drawn) == pytest.approx(more[metric])
    assert all(row["reward/letters"] == len(row["response"]) for row in rows)
    assert {row["rouge_l"] for row in rows if row["split"] != "test"} == {None}
    kept = json.loads((tmp_path / "more" / "metrics.json").read_text())
    assert kept["metrics"] == more and kept["changes"] == {
        "trainer": {"eval_prompts": 20, "eval_samples": 4, "eval_scores": {"rouge_l": {}, "bleu": {}}}
    }
    other = evaluated(f"task.test_path={data(tmp_path, 'other.jsonl', range(80, 90))}")
    assert other["eval/train_reward_mean"] == own["eval/train_reward_mean"]
    assert other["eval/reward_mean"] > own["eval/reward_mean"]  # larger answers have larger rewards here
    assert sorted(folder.rglob("*")) == before

    def of_folder(model: Path, *more: str) -> int:
        capsys.readouterr()
        return main(["evaluate", str(model), *asked, *more, "--prompts", "3", "--samples", "2", "--json"])

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
    frozen = run_folder(multirun, run_id) / "config.yaml"
    config = read_config(frozen.parent)
    config["trainer"].pop("split")
    frozen.write_text(dump_yaml(config))
    assert "an older version planned it and kept no prompts back" in refused()


@pytest.mark.train
def test_an_exported_run_loads_in_transformers_with_its_trained_weights(tmp_path: Path, cache: Path, capsys) -> None:
    multirun, out = tmp_path / "multirun", tmp_path / "model"
    words = ["method=c0_grpo", "model=tiny", "task=expression", "seed=0", *SHORT[:1], "trainer.steps=2"]
    folder, _ = trained_in(multirun, cache, words)
    run_id, checkpoint = folder.name, checkpoints_folder(folder) / checkpoint_name(2)
    capsys.readouterr()  # what verl printed
    assert main(["export", run_id[:6], str(out), "--multirun", str(multirun), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"folder": str(out), **json.loads((out / "rlsweep.json").read_text())}
    assert (said["run"], said["step"], said["method"], said["model"]) == (run_id, 2, "c0_grpo", "tiny")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    weights = load_file(checkpoint / "weights.safetensors")
    found = dict(model.named_parameters())
    assert found.keys() == weights.keys() and all(torch.equal(found[name], value) for name, value in weights.items())
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "1+2="}], return_tensors="pt", tokenize=True)
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > prompt["input_ids"].shape[1]

    assert main(["export", run_id, str(out), "--multirun", str(multirun)]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    assert main(["export", run_id, str(tmp_path / "b"), "--checkpoint", "1", "--multirun", str(multirun)]) == 2
    assert f"--checkpoint 1: run {run_id} has checkpoints of step 2 only" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"multirun", "model", "run"}  # nothing half-written


def test_a_pretrained_model_with_tied_weights_and_another_type(tmp_path: Path) -> None:
    start, checkpoint, out = tmp_path / "start", tmp_path / "checkpoint", tmp_path / "out"
    tokenizer = initial_model.character_tokenizer()
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        GPT2LMHeadModel(shape).save_pretrained(start)
        trained = GPT2LMHeadModel(shape).eval()
    tokenizer.save_pretrained(start)
    checkpoint.mkdir()
    out.mkdir()
    save_file(dict(trained.named_parameters()), checkpoint / "weights.safetensors")
    config = configuration("model=gpt2", f"model.path={start}")
    protocol.export(config, checkpoint, tmp_path, out, "bfloat16")
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.dtype == torch.bfloat16 and loaded.lm_head.weight is loaded.transformer.wte.weight
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(tokens).logits, trained.to(torch.bfloat16)(tokens).logits)

    save_file({"other": torch.zeros(1)}, checkpoint / "weights.safetensors")
    with pytest.raises(ValueError, match="the checkpoint's parameters are not those of the model"):
        protocol.export(config, checkpoint, tmp_path, out, "bfloat16")
