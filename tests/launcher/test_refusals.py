"""A command line that no plan can be made of is refused in one line: where, key, value, rule and fix."""

from __future__ import annotations

import re

import pytest

from launcher.planning import schema
from launcher.run.folder import RESERVED
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make, refusals, refused, rows, write_experiment

COMMAND_LINE = """
method=nosuch
experiment=nosuch
method=bnto_minimal method.gamma=x
experiment=quickstart method.rho=-1
method.gama=1 experiment=bnto_main
metod.gamma=1
method.gamma=1
method=ptrw method.trust_region=clip
method/trust_regoin=clip
experiment=quickstart method=ptrw
task=gsm8k task.train_path=./nosuch.jsonl
model=qwen2_5_1_5b model.path=/nosuch/model
verl.algorithm.adv_estimator=rloo
verl.trainer.total_epochs=3
method=[ptrw,asymmetric_clip]
method=[amic,gspo]
task=[sorting,expression]
task=[]
method=[]
method/credit=[nosuch]
method.credit.temporal_decay.gamma=0.9
method=temporal_decay method.credit.temporal_decay.gama=0.9
method=temporal_decay method.credit.temporal_decay.gamma=2
method.credit=[temporal_decay]
method=temporal_decay method.credit.temporal_decay=3
method=sft method/credit=[temporal_decay]
method=[sft,temporal_decay]
method=[sft,ema]
method=q_star method/target=none
method=q_star method/alpha=none
method=c0_grpo method/target=expert
method=c0_grpo method/weights=raw
method=q_speculative method/alpha=snr_max
trainer=verl_ray method=c0_ppo verl.critic.optim.lr=1e-5
trainer=verl_ray method=[q_star] method/drafting=adaptive
trainer=verl_ray method=c0_grpo model.resources.devices=2 trainer.ranks=1 cluster=slurm
trainer=verl_ray method=c0_grpo trainer.ranks=4 model.parallel.sequence=3
trainer=verl_ray method=c0_grpo trainer.ranks=8 model.parallel.sequence=8
trainer=verl_ray method=c0_grpo model.parallel.offload=true
trainer=verl_ray method=c0_grpo model.parallel.tensor=2
method=c0_grpo model.parallel.sequence=2
method=c0_grpo model.parallel.rows=2
trainer=verl_ray method=c0_grpo cluster=local trainer.ranks=2 model.resources.nodes=2
trainer=verl_ray method=c0_grpo cluster=slurm model.resources.nodes=2 trainer.ranks=1
trainer=verl_ray trainer.rollout=sglang
trainer=verl_ray trainer.rollout=vllm method=q_star method/alpha=snr_max
trainer=verl_ray trainer.rollout=vllm verl.actor_rollout_ref.rollout.top_p=0.9
trainer=verl_ray verl.actor_rollout_ref.rollout.pipeline_model_parallel_size=2
trainer=verl_ray verl.actor_rollout_ref.rollout.name=vllm
trainer=verl_ray verl.actor_rollout_ref.actor.shuffle=true
verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray verl.actor_rollout_ref.model.lora_rank=8.5
trainer=verl_ray verl.actor_rollout_ref.model.lora_rank=-1
trainer=verl_ray verl.actor_rollout_ref.model.target_modules=q_proj
trainer=verl_ray verl.actor_rollout_ref.model.lora_rank=8 verl.actor_rollout_ref.model.target_modules=[q_proj,lm_head]
trainer=verl_ray method=c0_ppo verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray method=rejection verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray method=q_decode verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray verl.actor_rollout_ref.model.lora.rank=8
trainer=verl_ray verl.actor_rollout_ref.actor.strategy=megatron
trainer=verl_ray verl.actor_rollout_ref.rollout.name=sglang
verl.actor_rollout_ref.actor.use_dynamic_bsz=true
method=q_decode method/control=dual
method=dpo method/sampler=rejection method/target=expert
method=off_policy method.weight_low=20
method=q_star method.target_path=/no/such/model
task.warm_start.lr=-1
verl.actor_rollout_ref.actor.optim.betas=[2,3]
verl.actor_rollout_ref.actor.optim.optimizer=SGD
verl.actor_rollout_ref.actor.optim.optimizer_impl=mine
verl.actor_rollout_ref.actor.loss_scale_factor=0
method=off_policy method/alpha=entropy
method=rejection method/weights=raw
method=[q_star,off_policy]
method=dpo method/trust_region=clip
method=[sft,ptrw]
method=uniform_alpha method.alpha_value=2
method=q_star method.solver=bisection
method=q_star method.iterations=5
method.ema_beta=0.9
scale=tiny,full
scale=nosuch
verl.data.train_batch_sise=1
verl.data.train_batch_size=many
trainer.stepz=3
trainer.steps=0
trainer.steps=3.0
verl.data.train_batch_size=64.0
verl.actor_rollout_ref.rollout.n=4.0
verl.actor_rollout_ref.actor.optim.lr=nan
verl.nosuch.x=1
verl=5
analysis=5
analysis.primary=5
model.resources=null
base.overrides=5
multirun=[a]
multirun.a=3
experiment.groups.A=null
multirun=a,b
method=glob(nosuch*)
trainer.steps=range(3,3)
model=null
task=sorting,null
method/credit=null
cluster.name=slurm
cluster.slots=2.0
experiment.name=../x
seed=0,0.0
seed=0,0
seed=x
seed=-1
cluster.slots=0
cluster.slotz=1
cluster.retry.lost=x
cluster.slots=1,2
tracking.wandb=loud
tracking.wandb=none,online
base.config=nosuch
~trainer.steps
method.gamma=[
quickstrat
model.resources=3
"""


@pytest.mark.parametrize("words", rows(COMMAND_LINE))
def test_a_bad_command_line_is_refused_in_one_line(words, worded):
    (line,) = refusals(words)
    worded(line)


VALUES = """
method=c0_grpo seed=9223372036854775808
method=c0_grpo seed=4294967296
method=c0_grpo seed=0,99999999999999999999
method=c0_grpo seed=true
method=c0_grpo seed=1e3
method=c0_grpo experiment.seeds=[18446744073709551616]
method=c0_grpo 'experiment.seeds={start: 4, max: 100000000000, until: decided}'
method=c0_grpo task=reasoning_gym task.seed=9223372036854775808
experiment=quickstart analysis.alpha=2
experiment=quickstart analysis.primry=3
experiment=quickstart 'analysis.time_to=[{at: x}]'
experiment=quickstart analysis.metrics=[foo]
experiment=quickstart verl.actor_rollout_ref.rollout.n=0
experiment=quickstart verl.actor_rollout_ref.rollout.temperature=0
experiment=quickstart method.loss_agg_mode=foo
"""


@pytest.mark.parametrize("words", rows(VALUES))
def test_values_that_no_library_run_or_report_could_use_are_refused(words, worded):
    worded(refusals(words))


def test_the_largest_seed_is_planned():
    assert make("method=c0_grpo", "seed=4294967295").runs


@pytest.mark.parametrize(
    "name", [*RESERVED, "Archive", "RUNS", ".index", "-x", "a/b", "a b", "..", "a" * 101, "bnto", "é"]
)
def test_an_experiment_cannot_have_the_name_of_another_folder(name, worded):
    (line,) = refused("method=c0_grpo", f"experiment.name='{name}'")
    worded(line)


def test_an_experiment_has_no_name_that_differs_from_anothers_in_case_alone(tmp_path):
    (tmp_path / "Mine").mkdir()
    assert make("method=c0_grpo", "experiment.name=Mine", f"multirun={tmp_path}").runs
    for name, other in (("mine", "Mine"), ("QuickStart", "quickstart")):
        (line,) = refused("method=c0_grpo", f"experiment.name={name}", f"multirun={tmp_path}")
        assert f"experiment.name = {name}: " in line and other in line


def test_every_folder_that_the_code_names_beside_the_experiments_is_reserved():
    code = "".join(path.read_text() for room in ("launcher", "analysis") for path in (ROOT / room).rglob("*.py"))
    assert {*re.findall(r'multirun / "(\w+)"', code)} == {*RESERVED}


def test_a_fragment_can_speak_of_a_mapping():
    defaults = {
        "some": {"credit": {"a": {"x": 1}}, "allowed": {"credit": {"maxProperties": 1, "description": "small"}}}
    }
    checker = schema.Checker(defaults)
    assert list(checker.check({"some": {"credit": {"a": {"x": 2}}}})) == []
    (breach,) = checker.check({"some": {"credit": {"a": {"x": 2}, "b": 3}}})
    assert (breach.key, breach.rule) == ("some.credit", "must be small")
    (breach,) = checker.check({"some": {"credit": {"a": {"x": "two"}}}})
    assert breach.key == "some.credit.a.x"


def test_every_error_comes_at_once(conf, worded):
    write_experiment(conf, {"A": {"method": "nosuch"}, "B": {"method": "bnto_minimal"}}, seeds=[0, 0], analysys={})
    worded(refusals("experiment=bad method.gamma=x verl.nosuch=1 task.train_promts=3", conf))
