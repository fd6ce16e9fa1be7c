"""What `launcher export` writes is the policy that was trained, as other programs load it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from launcher.__main__ import main
from launcher.planning import freeze, planner
from launcher.run.folder import checkpoint_name, checkpoints_folder, read_config, run_folder
from tests.trainer_ext.conftest import CONF, SHORT, MemoryRun, configuration
from trainer_ext.application.verl_tree import completed
from trainer_ext.backends import protocol
from trainer_ext.backends.in_process import initial_model
from trainer_ext.train import train


@pytest.mark.train
def test_an_exported_run_loads_in_transformers_with_its_trained_weights(tmp_path: Path, cache: Path, capsys) -> None:
    multirun, out = tmp_path / "multirun", tmp_path / "model"
    words = ["method=c0_grpo", "model=tiny", "task=expression", "seed=0", *SHORT[:1], "trainer.steps=2"]
    plan = planner.make(CONF.parent, [*words, f"multirun={multirun}"])
    freeze.freeze(plan)
    (run_id,) = plan.runs
    folder = run_folder(multirun, run_id)
    trained = MemoryRun(tmp_path / "run", cache)
    train(completed(folder, read_config(folder)), trained)
    newest = trained.latest_checkpoint()
    assert newest is not None
    checkpoints_folder(folder).mkdir()
    checkpoint = newest[1].rename(checkpoints_folder(folder) / checkpoint_name(2))

    capsys.readouterr()  # what verl printed
    assert main(["export", run_id[:6], str(out), "--multirun", str(multirun), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"folder": str(out), **json.loads((out / "rlsweep.json").read_text())}
    assert (said["run"], said["step"], said["method"], said["model"]) == (run_id, 2, "c0_grpo", "tiny")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    weights = load_file(checkpoint / "weights.safetensors")
    assert {name: bool((value == weights[name]).all()) for name, value in model.named_parameters()} == dict.fromkeys(
        weights, True
    )
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
