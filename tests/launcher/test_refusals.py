"""A command line that no plan can be made of is refused in one line: where, key, value, rule and fix."""

from __future__ import annotations

import re

import pytest

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
method=[ptrw,asymmetric_clip]
method=[amic,gspo]
task=[sorting,expression]
task=[]
method/credit=[nosuch]
method.credit.temporal_decay.gamma=0.9
method=temporal_decay method.credit.temporal_decay.gamma=2
method.credit=[temporal_decay]
method=temporal_decay method.credit.temporal_decay=3
method=sft method/credit=[temporal_decay]
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
trainer=verl_ray verl.actor_rollout_ref.model.lora_rank=8.5
trainer=verl_ray verl.actor_rollout_ref.model.target_modules=q_proj
trainer=verl_ray verl.actor_rollout_ref.model.lora_rank=8 verl.actor_rollout_ref.model.target_modules=[q_proj,lm_head]
trainer=verl_ray method=c0_ppo verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray method=rejection verl.actor_rollout_ref.model.lora_rank=8
trainer=verl_ray method=q_decode verl.actor_rollout_ref.model.lora_rank=8
verl.actor_rollout_ref.actor.use_dynamic_bsz=true
method=q_decode method/control=dual
method=dpo method/sampler=rejection method/target=expert
method=off_policy method.weight_low=20
method=q_star method.target_path=/no/such/model
verl.actor_rollout_ref.actor.optim.betas=[2,3]
verl.actor_rollout_ref.actor.optim.optimizer=SGD
verl.actor_rollout_ref.actor.optim.optimizer_impl=mine
method=off_policy method/alpha=entropy
method=rejection method/weights=raw
method=[q_star,off_policy]
method=dpo method/trust_region=clip
method=[sft,ptrw]
method=q_star method.solver=bisection
scale=tiny,full
scale=nosuch
verl.data.train_batch_sise=1
verl.data.train_batch_size=many
verl.data.shuffle=1
verl.trainer.project_name=1
trainer.stepz=3
trainer.steps=0
verl.data.train_batch_size=64.0
verl.actor_rollout_ref.actor.optim.lr=nan
verl.nosuch.x=1
verl=5
analysis=5
base.overrides=5
multirun=[a]
multirun.a=3
experiment.groups.A=null
method=glob(nosuch*)
model=null
cluster.name=slurm
experiment.name=../x
seed=0,0.0
seed=0,0
seed=-1
cluster.slots=0
cluster.slotz=1
cluster.retry.lost=x
tracking.wandb=loud
base.config=nosuch
~trainer.steps
method.gamma=[
quickstrat
model.resources=3
policy.optim.lr=3
analysis.primary.metric=reward_mean
analysis.primary.metric=reward_sum_meen
experiment.seeds=0,1,2
seed=[0,1]
'groups.C1.overrides={a: 1}'
cluster.partition=main
cluster.address=auto
trainer.ranks=2
cluster.partition=a,b
analysis.metrics=a/b,c/d
model.resources.devices=8
method=grpo
model=qwen
lr=1e-4
seeds=0,1
steps=10
cluster.gres=gpu:1
experiment=conf/experiment/bnto_main.yaml
verl.trainer.n_gpus_per_node=8
"""


@pytest.mark.parametrize("words", rows(COMMAND_LINE))
def test_a_bad_command_line_is_refused_in_one_line(words, worded):
    (line,) = refusals(words)
    worded(line)


#: What is sound by itself, and cannot start, or cannot be used by a library, a run or a report.
VALUES = """
method=q_star task=gsm8k model=tiny
experiment=bnto_main model.resources.devices=8
experiment=bnto_main model.resources.nodes=2
experiment=bnto_main model=llama_30b
method=q_decode task=gsm8k_short model=gpt2
method=dpo task=sorting method.dpo_pairs=data
method=c0_grpo model=gpt2 task=gsm8k
experiment=quickstart analysis.primary.metric=analysis/reward_summ_mean
experiment=quickstart analysis.metrics=[critic/vf_loss]
experiment=quickstart trainer.eval_every=0
experiment=quickstart analysis.primary.metric=eval/win_rate trainer.eval_responses=0
experiment=bnto_main trainer.eval_samples=8
experiment=quickstart 'analysis.figures=[{histogram: alfa}]'
experiment=quickstart 'analysis.win_rate={against: sft}'
experiment=quickstart 'task.learned_reward={model: policy, share: 0.5, epoch: 2}'
experiment=qstar_main 'task.learned_reward={model: policy, share: 0.5, epochs: 0}'
method=c0_grpo task=gsm8k model=qwen2_5_0_5b 'task.learned_reward={model: policy, share: 0.5}'
experiment=quickstart analysis.primary.metric=qstar/ess_ratio
experiment=quickstart 'analysis.time_to=[{baseline_final: 0.9, metric: qstar/ess_ratio}]'
experiment=quickstart \
'analysis.hypotheses={X: {claim: a, kind: less, group: q_star, against: C0, metric: qstar/ess_ratio}}'
experiment=quickstart 'analysis.hypotheses={X: {claim: a, kind: range, group: C0, metric: dual_game/beta, low: 0}}'
method=c0_ppo,sft experiment.baseline=c0_ppo analysis.primary.metric=analysis/reward_sum_mean
experiment=quickstart task.name=sortng
experiment=quickstart verl.data.max_prompt_length=1
method=c0_grpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7
method=dpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3
method=dpo verl.actor_rollout_ref.rollout.n=1
method=c0_grpo verl.actor_rollout_ref.rollout.n=1
method=c0_grpo method/advantage=verl verl.actor_rollout_ref.rollout.n=1
method=c0_grpo model.heads=3
method=c0_ppo method.critic_warmup=120
method=c0_grpo trainer.eval_every=1 trainer.split.test=0
experiment=quickstart trainer.split.validation=0
trainer=verl_ray method=c0_grpo trainer.ranks=3
method=c0_grpo verl.actor_rollout_ref.actor.optim.override_optimizer_config.momentum=0.9
method=c0_grpo,ptrw
experiment=quickstart experiment.name=bnto_main
method=ptrw experiment.name=quickstart
experiment=bnto_main model=qwen2_5_7b model.resources.devices=1
experiment=qstar_long model.resources.device_memory_gb=26 experiment.groups.q_star=null
method=ptrw model.hidden_size=4096 model.intermediate_size=8192 model.heads=32
method=c0_grpo seed=4294967296
method=c0_grpo 'experiment.seeds={start: 4, max: 100000000000, until: decided}'
method=c0_grpo task=reasoning_gym task.seed=9223372036854775808
experiment=quickstart analysis.alpha=2
experiment=quickstart analysis.primry=3
experiment=quickstart 'analysis.time_to=[{at: x}]'
experiment=quickstart verl.actor_rollout_ref.rollout.temperature=0
experiment=quickstart method.loss_agg_mode=foo
method=[dr_grpo,c0_ppo]
experiment=quickstart task=expression,sorting seed=0 'analysis.normalize={expresion: [0, 1], sorting: [0, 1]}'
experiment=quickstart task=expression,sorting seed=0 'analysis.normalize={expression: [0, 1]}'
experiment=quickstart task=expression,sorting seed=0 'analysis.select={tasks: best}'
method=c0_grpo budget.device_hours=0
method=c0_grpo rerun=all
method=c0_grpo accept_code=1
method=c0_grpo rerun=changed accept_code=true
method=c0_grpo model.resources.cpus=half
method=c0_grpo model.resources.memory_gb=0
method=c0_grpo model.resources.time=soon
method=c0_grpo experiment.seeds={start:1,max:12,until:decided}
method=c0_grpo experiment.seeds={start:4,max:3,until:decided}
method=c0_grpo experiment.seeds={start:4,maxx:12,until:decided}
method=c0_grpo analysis.sequential={start:4,max:8,until:decided} experiment.seeds=[0,1]
method=c0_grpo experiment.seeds={start:4,batch:4,max:12,until:decided} seed=+5
experiment=bnto_main,quickstart scale=tiny seed=+5
experiment=qstar_mvp hypothesis=[bnto,qstar_quick]
experiment=bnto_main scale=tiny experiment.groups.C3=null
experiment=bnto_main scale=tiny analysis.hypotheses.H1_no_collapse.kind=rnage
experiment=bnto_main scale=tiny analysis.hypotheses.H1_wH.metric=wH_per_token
experiment=bnto_main scale=tiny analysis.hypotheses.H1_wH=null
experiment=bnto_main scale=tiny analysis.hypotheses.H9=null
experiment=bnto_main scale=tiny hypothesis=bnto,bnto_gate
experiment=bnto_main scale=tiny +hypothesis=bntoo
method=ptrw scale=tiny hypothesis=bnto_gate
method=ptrw scale=tiny analysis.hypotheses=[]
method=ptrw scale=tiny analysis.figures=[{pareto:[actor/lr,actor/grad_norm]}]
method=ptrw scale=tiny analysis.primary.summary=time_to
experiment=bnto_main scale=tiny analysis.time_to=[{metric:reward,at:1}]
"""


@pytest.mark.parametrize("words", rows(VALUES))
def test_values_that_no_library_run_or_report_could_use_are_refused(words, worded):
    worded(refusals(words))


def test_the_largest_seed_is_planned():
    assert make("method=c0_grpo", "seed=4294967295").runs


@pytest.mark.parametrize(
    "name", [*RESERVED, "Archive", "RUNS", ".index", "-x", "a/b", "a b", "..", "a" * 101, "bnto", "é"]
)
def test_an_experiment_cannot_have_the_name_of_another_folder(name, worded, tmp_path):
    (line,) = refused("method=c0_grpo", f"experiment.name='{name}'", f"multirun={tmp_path}")
    worded(line)


def test_every_folder_that_the_code_names_beside_the_experiments_is_reserved():
    code = "".join(path.read_text() for room in ("launcher", "analysis") for path in (ROOT / room).rglob("*.py"))
    assert {*re.findall(r'multirun / "(\w+)"', code)} == {*RESERVED}


def test_every_error_comes_at_once(conf, worded):
    write_experiment(conf, {"A": {"method": "nosuch"}, "B": {"method": "bnto_minimal"}}, seeds=[0, 0], analysys={})
    worded(refusals("experiment=bad method.gamma=x verl.nosuch=1 task.train_promts=3", conf))
