"""What cannot start is refused by the plan with place, key, value, rule and fix; unknown names with what is meant."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml

from launcher import text
from launcher.__main__ import main
from launcher.config import hydra_compose
from launcher.run.folder import RESERVED
from tests.configuration import SHIPPED
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make, refusals, refused, rows, write_experiment
from trainer_ext.application import other_names, verl_tree

COMMAND_LINE = """
method=nosuch
experiment=nosuch
experiment=quickstart method.rho=-1
method.gama=1 experiment=bnto_main
metod.gamma=1
method.gamma=1
method=ptrw method.trust_region=clip
method/trust_regoin=clip
experiment=quickstart method=ptrw
task=gsm8k task.train_path=./nosuch.jsonl
model=qwen2_5_1_5b model.path=docs/nosuch
model=qwen2_5_1_5b model.path=no/such/model
model=qwen2_5_1_5b model.path=README.md
verl.algorithm.adv_estimator=rloo
method=[ptrw,asymmetric_clip]
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
trainer=verl_ray method=c0_grpo trainer.ranks=6 model.parallel.sequence=4
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
trainer=verl_ray verl.actor_rollout_ref.model.lora_alpha=32
trainer=verl_ray verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096
trainer=verl_ray verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.7
trainer=verl_ray verl.actor_rollout_ref.rollout.gpu_memory_utilization=1.5
trainer=verl_ray verl.actor_rollout_ref.rollout.tensor_model_parallel_size=2
verl.actor_rollout_ref.actor.optim.min_lr_ratio=0.1
method=c0_grpo verl.actor_rollout_ref.actor.kl_loss_coef=0.1
verl.algorithm.kl_ctrl.kl_coef=0.01
verl.actor_rollout_ref.actor.use_dynamic_bsz=true
method=q_decode method/control=dual
method=dpo method/sampler=rejection method/target=expert
method=off_policy method.weight_low=20
method=q_star method.target_path=/no/such/model
verl.actor_rollout_ref.actor.optim.betas=[2,3]
verl.actor_rollout_ref.actor.optim.override_optimizer_config.eps=0
trainer.judged={every:1,prompts:5}
trainer.checkpoint_every=1,2
trainer.checkpoint_every=1,2 method.clip_low=0.1,0.2 trainer.steps=4
verl.actor_rollout_ref.actor.optim.optimizer=SGD
verl.actor_rollout_ref.actor.optim.optimizer_impl=mine
method=off_policy method/alpha=entropy
method=rejection method/weights=raw
method=[q_star,off_policy]
method=dpo method/trust_region=clip
method=q_star method.solver=bisection
scale=tiny,full
verl.data.train_batch_sise=1
verl.data.train_batch_size=many
verl.data.shuffle=1
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
trainer.ranks=2
analysis.metrics=a/b,c/d
model.resources.devices=8
method=grpo
model=qwen
lr=1e-4
seeds=0,1
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
method=c0_grpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null
trainer=verl_ray verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null
method=dpo verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3
method=dpo verl.actor_rollout_ref.rollout.n=1
method=c0_grpo verl.actor_rollout_ref.rollout.n=1
method=c0_grpo method/advantage=verl verl.actor_rollout_ref.rollout.n=1
method=c0_grpo model.heads=3
method=c0_ppo method.critic_warmup=120
method=c0_grpo trainer.eval_every=1 trainer.split.test=0
trainer=verl_ray method=c0_grpo trainer.ranks=3
method=c0_grpo verl.actor_rollout_ref.actor.optim.override_optimizer_config.momentum=0.9
method=c0_grpo,ptrw
experiment=quickstart experiment.name=bnto_main
experiment=bnto_main model=qwen2_5_7b model.resources.devices=1
experiment=qstar_long model.resources.device_memory_gb=26 experiment.groups.q_star=null
method=ptrw model.hidden_size=4096 model.intermediate_size=8192 model.heads=32
method=c0_grpo seed=4294967296
method=c0_grpo 'experiment.seeds={start: 4, max: 100000000000, until: decided}'
method=c0_grpo task=reasoning_gym task.seed=9223372036854775808
experiment=quickstart analysis.alpha=2
experiment=quickstart 'analysis.time_to=[{at: x}]'
experiment=quickstart verl.actor_rollout_ref.rollout.temperature=0
experiment=quickstart verl.actor_rollout_ref.rollout.temperature=1e-300
method=ptrw method.sigma=1e155
experiment=quickstart method.loss_agg_mode=foo
method=[dr_grpo,c0_ppo]
experiment=quickstart task=expression,sorting seed=0 'analysis.normalize={expresion: [0, 1], sorting: [0, 1]}'
experiment=quickstart task=expression,sorting seed=0 'analysis.select={tasks: best}'
method=c0_grpo budget.device_hours=0
method=c0_grpo rerun=all
method=c0_grpo rerun=changed accept_code=true
method=c0_grpo model.resources.memory_gb=0
method=c0_grpo model.resources.time=soon
method=c0_grpo experiment.seeds={start:1,max:12,until:decided}
method=c0_grpo experiment.seeds={start:4,max:3,until:decided}
method=c0_grpo experiment.seeds={start:4,maxx:12,until:decided}
method=c0_grpo analysis.sequential={start:4,max:8,until:decided} experiment.seeds=[0,1]
method=c0_grpo experiment.seeds={start:4,batch:4,max:12,until:decided} seed=+5
experiment=bnto_main,quickstart scale=tiny seed=+5
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


@pytest.mark.parametrize("name", [RESERVED[0], "Archive", "-x", "a b", "a" * 101, "bnto"])
def test_an_experiment_cannot_have_the_name_of_another_folder(name, worded, tmp_path):
    (line,) = refused("method=c0_grpo", f"experiment.name='{name}'", f"multirun={tmp_path}")
    worded(line)


def test_every_folder_that_the_code_names_beside_the_experiments_is_reserved():
    code = "".join(path.read_text() for room in ("launcher", "analysis") for path in (ROOT / room).rglob("*.py"))
    assert {*re.findall(r'multirun / "(\w+)"', code)} == {*RESERVED}


def test_every_error_comes_at_once(conf, worded):
    write_experiment(conf, {"A": {"method": "nosuch"}, "B": {"method": "bnto_minimal"}}, seeds=[0, 0], analysys={})
    worded(refusals("experiment=bad method.gamma=x verl.nosuch=1 task.train_promts=3", conf))


COLD = "defaults: [q_star, _self_]\nname: cold\ntemperature: 0.5"
#: Keys of an experiment, whose group is A unless they say so.
EXPERIMENTS = """
groups: {A: {method: c0_grpo}, B: null}
zip: {z: {trainer.steps: [3]}}
zip: {z: {trainer.steps: [3], method.clip_low: [0.1, 0.2]}}
zip: {z: {trainer.steps: [3, 3], method.clip_low: [0.1, 0.1]}}
zip: [1]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, factors: {trainer.steps: [3]}
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6], seed: [1, 2]}}
zip: {z: {trainer.steps: [5, 0], method.clip_low: [0.1, 0.2]}}
exclude: {group: A}
exclude: [{}]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, exclude: [{trainer.stepz: 5}]
exclude: [{group: B}]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, exclude: [{trainer.steps: 5, method.clip_low: 0.2}]
exclude: [{group: A}]
groups: {A: {method: nosuch}}
groups: {A: {method: [ptrw, asymmetric_clip]}}
groups: {A: {methud: ptrw}}
factors: {method.gamma: [1]}
factors: {trainer.steps: 3}
factors: {method.clip_low: [1, 1.0]}
hydra: {run: {dir: x}}
task: sorting
multirun: [a]
groups: {A: {method: c0_grpo, overrides: {task: sorting}}}
baseline: [A]
groups: {1: {method: c0_grpo}, '1': {method: c0_grpo}}
groups: {A: {method: c0_grpo}, B: {method: ptrw, label: A}}
defaults: [bad, _self_]
factors: {method: [ptrw]}
factors: {scale: [tiny]}
factors: {method/credit: [[nosuch]]}
method: {credit: {temporal_decay: {gamma: 0.9}}}
groups: {A: {method: q_star, overrides: {method/target: none}}}
groups: {A: {method: q_star, overrides: {method/target: nosuch}}}
groups: {A: {method: q_star, overrides: {method/taget: expert}}}
groups: {A: {method: q_star, overrides: {method/weights: none}}}, factors: {method/weights: [raw, clipped]}
method: {trust_region: gaussian}
scales: {tinny: {}}
scales: {full: 3}
scales: {full: {trainer.stepz: 3}}
scales: {full: {seed: 3}}
scales: {full: {trainer.steps: 0}}
baseline: B
seeds: [0, 1, 0]
seeds: 1
seeds: [true]
analysys: {alpha: 0.1}
tracking: null
cluster: {retry: 3}
factors: {verl: [3]}
trainer: {stepz: 3}
verl: {daat: {}}
groups: {A: {method: bnto_minimal, overrides: {method.rho: -1}}}
groups: {A: {method: c0_grpo}, B: {method: ptrw}}, baseline: null
groups: {A: {method: c0_grpo}, B: {method: c0_grpo, overrides: {method.clip_low: 0.2}}}
groups: {A: {method: c0_grpo}, B: {method: c0_grpo, may_equal: C}}
"""


@pytest.mark.parametrize("text", [*rows(EXPERIMENTS), f"groups: {{{'A' * 101}: {{method: c0_grpo}}}}"])
def test_a_bad_experiment_is_refused_in_one_line_that_names_its_file(conf, text, worded):
    write_experiment(conf, **{"groups": {"A": {"method": "c0_grpo"}}, **yaml.safe_load(f"{{{text}}}")})
    (line,) = refusals("experiment=bad", conf)
    worded(line)


def test_a_clusters_file_begins_with_another_or_names_every_key(conf, worded):
    path = conf / "cluster/mine.yaml"
    path.write_text("defaults: [slurm, _self_]\npartition: gpu\nallowed: {qos: {type: string}}\n")
    cluster = make("cluster=mine", conf=conf).cluster
    assert (cluster["name"], cluster["partition"], "allowed" in cluster) == ("slurm", "gpu", False)
    for written in ("name: local\nslots: 0\n", "name: pbs\n"):
        path.write_text(written)
        worded(refusals("cluster=mine", conf))


GROUPS = "  groups:\n    A: {method: c0_grpo}\n"
BAD = "experiment:\n  name: bad\n" + GROUPS
#: Experiments with a mistake, after the line that names their package.
MISTAKES = [
    "defaults:\n  - task: sorting\n  - _self_\n" + BAD,
    "experiment:\n  name: bad\n" + GROUPS + "baseline: A\n",
    "experiment:\n  name: bad\n" + GROUPS + "    seeds: [0]\n",
    "defaults:\n  - override /task: sortin\n  - _self_\n" + BAD,
    "defaults:\n  - override /method/control: dul\n  - _self_\n" + BAD,
    "defaults:\n  - override /modle: gpt2\n  - _self_\n" + BAD,
    "defaults:\n  - bnto_man\n  - _self_\n" + BAD,
    "experiment:\n  name: bad\n  groups:\n  A: {method: c0_grpo}\n",
    "experiment:\n  name: bad\n  groups:\n    A:\n    method: c0_grpo\n",
    "experiment:\n  name: bad\n " + GROUPS,
    "experiment:\n\tname: bad\n",
    "defaults:\n  - override /hydra/launcher: joblib\n  - _self_\n" + BAD,
    "defaults:\n  - /hydra/job_logging: none\n  - _self_\n" + BAD,
    "steps: 5\n" + BAD,
]


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        *(("experiment/bad", f"# @package _global_\n{text}", "experiment=bad") for text in MISTAKES),
        ("task/mine", "task: {name: mine}", "task=mine"),
        ("method/trust_region/mine", "trust_region: mine", "method/trust_region=mine"),
        ("method/hot", "defaults: [q_star, _self_]\nname: hot\ntemperature: 0", "method=hot"),
        ("method/half", "defaults: [q_star, _self_]\nname: half\nalpha_value: 0.5", "method=half"),
        ("method/cold", COLD, "method=[cold,gspo] method/sampler=target method/alpha=none"),
        # A part named as a value would have the name without what the part brings.
        ("method/typed", "defaults: [c0_grpo, _self_]\nname: typed\nsampler: target", "method=typed"),
        ("method/typed", "defaults: [c0_grpo, _self_]\nname: typed\nsampler: target", "method=[gspo,typed]"),
        ("method/both", "defaults: [sft, {override smoothing: ema}, _self_]\nname: both", "method=both"),
        ("method/mine", "", "method=mine"),
        ("method/mine", "5", "method=mine"),
        ("experiment/bad", "", "experiment=bad"),
        ("experiment/bad", "# @package _global_\nexperiment: {name: bad, groups: {}}", "experiment=bad"),
        ("experiment/bad", "# 1\n# @package _global_\ndefaults:\n  - override /model: tiny", "experiment=bad"),
        ("experiment/bad", "\udcff", "experiment=bad"),
    ],
)
def test_a_bad_file_is_named(conf, path, text, words, worded):
    (conf / f"{path}.yaml").write_bytes(text.encode(errors="surrogateescape"))
    worded(line.replace(str(conf), "conf") for line in refusals(words, conf))


def test_a_parts_default_that_no_method_may_have_is_named(conf, worded):
    path = conf / "method/control/dual.yaml"
    path.write_text(path.read_text().replace("rho: 0.45", "rho: -0.45"))
    worded(refusals("method=bnto_minimal", conf))


def test_a_method_files_own_value_holds_in_a_list_whose_sampler_reads_it(conf):
    (conf / "method/cold.yaml").write_text(COLD)
    (run,) = make("method=[cold,gspo]", conf=conf).runs.values()
    assert run.config["method"]["temperature"] == 0.5


ONE = {"A": {"method": "c0_grpo"}}


def test_a_value_of_a_chosen_launcher_of_hydras_is_accepted():
    words = ["hydra.launcher.timeout_min=10", "hydra/launcher=submitit_slurm", "hydra.launcher.mem_gb=2"]
    assert make("experiment=quickstart", *words).runs


def test_a_name_that_another_file_has_is_refused_for_this_file_alone(conf, worded):
    write_experiment(conf, ONE, name="thief")
    path = conf / "experiment/thief.yaml"
    path.write_text(path.read_text().replace("name: thief", "name: quickstart"))
    worded(refusals("experiment=thief", conf))
    assert make("experiment=quickstart", conf=conf).experiments[0].name == "quickstart"


@pytest.mark.parametrize(("other", "runs"), [({"may_equal": "A"}, 1), ({"overrides": {"method.clip_low": 0.1}}, 2)])
def test_two_groups_may_have_the_same_runs_if_the_file_says_so(conf, other, runs):
    write_experiment(conf, {**ONE, "B": {"method": "c0_grpo", **other}}, baseline="A")
    assert len(make("experiment=bad", conf=conf).runs) == runs


def test_an_objection_to_some_runs_names_their_group_and_levels_with_a_fix_for_them(conf):
    micro = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    groups = {"GRPO": {"method": "c0_grpo"}, "DPO": {"method": "dpo", "overrides": {}}}
    actor = {"ppo_mini_batch_size": 2, "ppo_micro_batch_size_per_gpu": 3}
    verl = {"data": {"train_batch_size": 5}, "actor_rollout_ref": {"rollout": {"n": 3}, "actor": actor}}
    write_experiment(conf, groups, verl=verl)
    (line,) = refused("experiment=bad", conf=conf)
    assert "(with group=DPO)" in line
    assert line.endswith("such as 2; for this group alone, under experiment.groups.DPO.overrides")
    (line,) = refused("experiment=bad", f"{micro}=2", conf=conf)
    assert "(with group=GRPO)" in line and "not on the command line but under experiment.groups.GRPO" in line
    groups["DPO"]["overrides"] = {micro: 2}
    write_experiment(conf, groups, verl=verl)
    assert make("experiment=bad", conf=conf).runs
    (line,) = refused("experiment=bad", "verl.actor_rollout_ref.rollout.n=3,4,6", conf=conf)
    assert "(with group=GRPO and verl.actor_rollout_ref.rollout.n=4)" in line


def test_a_launch_without_a_file_has_a_name_of_its_own_whatever_its_seeds():
    def name(*words: str) -> str:
        return make(*words).experiments[0].name

    both = ("method=c0_grpo,ptrw", "experiment.baseline=c0_grpo")
    assert name("method=ptrw") == "adhoc-ptrw"
    assert name(*both) == name(*both, "seed=0,1", "multirun=elsewhere") == "adhoc-c0_grpo-ptrw"
    other = name(*both, "task=sorting")
    assert other == name("task=sorting", *both, "seed=5") != name(*both, "trainer.steps=5")
    assert other.startswith("adhoc-c0_grpo-ptrw-") and len(other) == len("adhoc-c0_grpo-ptrw-") + 6
    assert name("method=ptrw", "experiment.name=mine") == "mine"


# ---------------------------------------------------------------- tasks of the user


@pytest.fixture
def write_task(new_tasks, conf):
    """Writes a task's module as docs/extending.md says, with a file in conf/task."""

    def write(text: str) -> Path:
        path = new_tasks / "mine.py"
        path.write_text(text)
        shipped = (conf / "task/sorting.yaml").read_text()
        (conf / "task/mine.yaml").write_text(shipped.replace("name: sorting", "name: mine"))
        return path

    return write


GOOD = """
from trainer_ext.scoring.tasks import Row, task

@task("mine")
def rows(section):
    return [Row("1>", "1")]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

def demonstration(row, generator, random_fraction):
    return row.ground_truth
"""


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("def rows(section):", "def rows(section:"),
        GOOD.replace('[Row("1>", "1")]', 'section["nosuch"]'),
        GOOD.replace('[Row("1>", "1")]', "[]"),
        GOOD.replace('[Row("1>", "1")]', '[Row("1>", "1"), Row("2>", 2)]'),
        GOOD.replace('"1")]', '"1", "dev")]'),
        GOOD.replace("float(solution_str", "nosuch(solution_str"),
        GOOD.replace("float(solution_str == ground_truth)", '"high"'),
        GOOD.replace("def compute_score", "def score"),
        GOOD.partition("def demonstration")[0],
    ],
    ids=range(9),
)
def test_a_task_that_cannot_be_used_is_named_with_its_line(text, write_task, conf, worded):
    write_task(text)
    (line,) = refusals("method=ptrw task=mine", conf)
    worded(line)


def test_a_task_without_demonstrations_cannot_teach_a_target(write_task, conf, worded):
    write_task(GOOD.partition("def demonstration")[0])
    worded(refusals("method=q_star task=mine task.warm_start.steps=0", conf))
    assert make("method=ptrw", "task=mine", "task.warm_start.steps=0", conf=conf).runs


SCORE = """
def graded(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth), "level": extra_info["level"]}
"""


@pytest.fixture
def own(tmp_path):
    """Words that choose prompts and a reward of the user's own."""
    (tmp_path / "rewards.py").write_text(SCORE)
    lines = [{"prompt": f"{n}?", "answer": "2", "level": 3} for n in range(40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = f"task=file task.train_path={tmp_path}/own.jsonl task.reward={tmp_path}/rewards.py:graded"
    return f"method=ptrw {task} model=pretrained model.path=of/somebody"


@pytest.mark.parametrize(
    "words", ["analysis.primary.metric=reward/level", "analysis.primary.metric=eval/reward/level trainer.eval_every=1"]
)
def test_a_reward_of_a_file_brings_its_metrics(own, words):
    assert make(*f"{own} {words}".split()).runs


@pytest.mark.parametrize(
    "change",
    [
        "analysis.primary.metric=reward/levl",
        "analysis.primary.metric=eval/reward/level trainer.eval_every=0",
        "task.reward_timeout_s=0",
        "task.reward=rewards.py:graded",
        "task.reward=exact",
        "task.reward=bleu task.answer=null",
        "task.answer=null trainer.eval_scores={rouge_l:{}}",
        "task.prompt=question",
        "task.train_path=own.json",
        "method=q_star",
        "model=tiny",
    ],
)
def test_own_data_and_rewards_that_cannot_be_used_are_named(own, change, worded):
    changed = {word.partition("=")[0] for word in change.split()}
    kept = [word for word in own.split() if word.partition("=")[0] not in changed]
    worded(refusals(" ".join([*kept, change])))


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (SCORE.replace('level"]', 'levels"]'), ""),
        (SCORE.replace("return {", "return {,"), ""),
        (SCORE.replace("score", "points"), ""),
        ("import time\n\n\ndef graded(*_):\n    time.sleep(60)\n", "task.reward_timeout_s=0.1"),
    ],
    ids=["key", "syntax", "score", "time"],
)
def test_a_reward_that_fails_is_named_with_its_line(own, tmp_path, text, more, worded):
    (tmp_path / "rewards.py").write_text(text)
    (line,) = refusals(f"{own} {more}")
    worded(line)


# ---------------------------------------------------------------- what files declare


def test_a_later_file_drops_a_requirement_with_null(conf):
    text = "# @package _global_\ndefaults: [in_process, _self_]\ntrainer: {requires: {model.resources.devices: null}}\n"
    (conf / "trainer/several.yaml").write_text(text)
    words = ("method=ptrw", "model.resources.devices=4")
    assert refused(*words, conf=conf)
    assert make(*words, "trainer=several", conf=conf).runs
    assert refused(*words, "trainer=several", "model.resources.nodes=2", conf=conf)


def test_overrides_of_a_group_can_be_set_on_the_command_line():
    words = ["experiment=quickstart", "experiment.groups.C0.overrides={trainer.steps: 5}"]
    planned = make(*words)
    steps = {entry.group: planned.runs[entry.id].config["trainer"]["steps"] for entry in planned.experiments[0].entries}
    assert steps["C0"] == 5 and steps["C1"] != 5
    assert any("experiment.groups.C9.overrides" in line for line in refused(words[0], words[1].replace("C0", "C9")))


def test_one_cause_in_several_files_is_said_once():
    lines = refused("experiment=qstar_scale", "scale=design")
    assert len([line for line in lines if "model.resources.devices = 8: " in line]) == 1
    assert len({line.partition(": ")[2] for line in lines}) == len(lines)


@pytest.mark.parametrize("words", [["-m", "experiment=quickstart"], ["experiment=quickstart", "-m"]])
def test_plan_takes_the_flag_that_launch_py_takes(words, capsys, tmp_path):
    assert main(["plan", *words, f"multirun={tmp_path}", "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert "quickstart: 2 seeds detect only very large differences in eval/reward_mean (final) of " in said
    assert re.search(r"sd or more with 80% power.*\. 6 seeds would detect [0-9.]+ sd\. \(sd: ", said)


@pytest.mark.parametrize(
    ("number", "said"), [(0.0, "0.00"), (0.00014, "less than 0.01"), (0.01, "0.01"), (2.5, "2.50")]
)
def test_hours_have_two_decimals(number, said):
    assert text.hours(number) == said


def test_a_line_on_a_terminal_breaks_between_words(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "20")
    words = "several words, model.resources.devices=8 and a-long-one-with-hyphens"
    text.say(words, terminal := Terminal())
    assert terminal.getvalue().split() == words.split() and terminal.getvalue().count("\n") > 2


def test_a_file_that_cannot_be_read_does_not_spoil_the_others(conf):
    (conf / "experiment/bad.yaml").write_text("experiment:\n\tname: bad\n")
    assert make("experiment=quickstart", "experiment.name=mine", conf=conf).runs


@pytest.mark.parametrize("group", other_names.OPTIONS)
def test_the_files_that_aliases_name_are_there(group):
    options = SHIPPED.options(group)
    assert set(other_names.OPTIONS[group].values()) <= set(options)
    assert not set(other_names.OPTIONS[group]) & set(options)


def test_the_keys_that_other_names_stand_for_are_there():
    tree = SHIPPED.compose([]).tree
    verl = verl_tree.compose("ppo_trainer").tree
    for name, key in other_names.KEYS.items():
        assert hydra_compose.lookup({**tree, "verl": verl}, key)[0], key
        assert not hydra_compose.lookup(tree, name)[0], name
