"""A command line that no plan can be made of is refused in one line: where, key, value, rule and fix."""

from __future__ import annotations

import re

import pytest

from launcher.planning import schema
from launcher.planning.schema import brief
from launcher.run.folder import RESERVED
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make, refused, write_experiment

LORA = ["verl.actor_rollout_ref.model.lora_rank=8"]
ONE = {"A": {"method": "c0_grpo"}}
COMMAND_LINE = [
    (
        ["method=nosuch"],
        "command line: method = nosuch: there is no conf/method/nosuch.yaml; available: aggressive",
    ),
    (["experiment=nosuch"], "command line: experiment = nosuch: there is no conf/experiment/nosuch.yaml; available"),
    (["method=bnto_minimal", "method.gamma=x"], "command line: method.gamma = x: must be a number above 0"),
    (["experiment=quickstart", "method.rho=-1"], "command line: method.rho = -1: must be a number above 0"),
    (
        ["method.gama=1", "experiment=bnto_main"],
        "method.gama = 1: no group's method reads this key. Fix: write method.gamma",
    ),
    (["metod.gamma=1"], "metod.gamma = 1: no such key. Fix: write method"),
    (["method.gamma=1"], "no group's method reads this key; methods with method/control=dual do"),
    (
        ["method=ptrw", "method.trust_region=clip"],
        "Fix: write method/trust_region=NAME; available: asymmetric_clip, clip",
    ),
    (["method/trust_regoin=clip"], "this configuration group does not exist. Fix: write method/trust_region="),
    (["experiment=quickstart", "method=ptrw"], "this experiment's groups choose their own methods"),
    (["task=gsm8k", "task.train_path=./nosuch.jsonl"], "command line: task.train_path = ./nosuch.jsonl: the file"),
    (["model=qwen2_5_1_5b", "model.path=/nosuch/model"], "the file /nosuch/model does not exist"),
    (["verl.algorithm.adv_estimator=rloo"], "the chosen trainer does not read this key"),
    (
        ["verl.trainer.total_epochs=3"],
        "(trainer.verl_keys lists the keys that it reads). Fix: set trainer.steps",
    ),
    (["method=[ptrw,asymmetric_clip]"], "Fix: remove ptrw or asymmetric_clip from the list"),
    (
        ["method=[amic,gspo]"],
        "these methods exclude each other: conf/method/amic.yaml has method/ratio=sequence_arithmetic, "
        "conf/method/gspo.yaml has method/ratio=sequence_geometric. Fix: remove amic or gspo from the list",
    ),
    (["task=[sorting,expression]"], "Fix: write a,b without brackets to run each in turn"),
    (["task=[]"], "command line: task = []: this group needs a choice"),
    (["method=[]"], "command line: method = []: this group needs a choice"),
    (["method/credit=[nosuch]"], "there is no conf/method/credit/nosuch.yaml; available: gradient_adaptive"),
    (["method.credit.temporal_decay.gamma=0.9"], "methods with method/credit=temporal_decay do. Fix: add such a group"),
    (
        ["method=temporal_decay", "method.credit.temporal_decay.gama=0.9"],
        "no group's method reads this key. Fix: write method.credit.temporal_decay.gamma",
    ),
    (
        ["method=temporal_decay", "method.credit.temporal_decay.gamma=2"],
        "command line: method.credit.temporal_decay.gamma = 2: must be a number above 0 and 1 or less",
    ),
    (["method.credit=[temporal_decay]"], "Fix: write method/credit=NAME; available: gradient_adaptive"),
    (["method=temporal_decay", "method.credit.temporal_decay=3"], "Fix: write method/credit=NAME; available"),
    (
        ["method=sft", "method/credit=[temporal_decay]"],
        "command line: method/credit = [temporal_decay]: must be empty, because loss=sft has no advantages that credit "
        "could weigh. Fix: choose method/credit=[], or another method/loss than sft",
    ),
    (
        ["method=[sft,temporal_decay]"],
        "conf/method/temporal_decay.yaml: method/credit = [temporal_decay]: must be empty, because loss=sft",
    ),
    (
        ["method=[sft,ema]"],
        "conf/method/ema.yaml: method/smoothing = ema: must be none, because loss=sft has no importance ratios. "
        "Fix: choose method/smoothing=none, or another method/loss than sft",
    ),
    (
        ["method=q_star", "method/target=none"],
        "command line: method/target = none: must be a target policy, towards which sampler=geometric draws. Fix: "
        "choose one of method/target=best_of_n, expert, ",
    ),
    (
        ["method=q_star", "method/alpha=none"],
        "must be a rule for alpha, which sampler=geometric needs. Fix: choose one",
    ),
    (
        ["method=c0_grpo", "method/target=expert"],
        "command line: method/target = expert: must be none, because sampler=policy draws from the policy alone. "
        "Fix: choose method/target=none, or another method/sampler than policy",
    ),
    (
        ["method=c0_grpo", "method/weights=raw"],
        "command line: method/weights = raw: must be none, because sampler=policy makes every importance weight 1. "
        "Fix: choose method/weights=none, or another method/sampler than policy",
    ),
    (
        ["method=q_speculative", "method/alpha=snr_max"],
        "command line: method/alpha = snr_max: must be a rule of policy and target alone, because drafting=speculative "
        "reads no reference. Fix: choose one of method/alpha=entropy, ess_balance, ",
    ),
    (
        ["trainer=verl_ray", "method=c0_ppo", "verl.critic.optim.lr=1e-5"],
        "Fix: choose method/advantage=gae; set method.critic_lr_ratio, method.critic_warmup, method.cliprange_value",
    ),
    (
        ["trainer=verl_ray", "method=[q_star]", "method/drafting=adaptive"],
        "command line: method/drafting = adaptive: must be none, because the servers of trainer=verl_ray draw a "
        "token at a time. Fix: choose method/drafting=none, or another trainer than verl_ray",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "model.resources.devices=2", "trainer.ranks=1", "cluster=slurm"],
        "command line: trainer.ranks = 1: each rank has a device of its own, and model.resources asks for 2 (nodes=1 "
        "times devices=2). Fix: set trainer.ranks=null, which is 2",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "trainer.ranks=4", "model.parallel.sequence=3"],
        "command line: model.parallel.sequence = 3: trainer.ranks=4 do not divide into groups of so many",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "trainer.ranks=8", "model.parallel.sequence=8"],
        "command line: model.parallel.sequence = 8: model tiny has 4 heads and 4 of keys and values, which so many "
        "cannot share. Fix: make it a divisor of both, such as 4",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "model.parallel.offload=true"],
        "command line: model.parallel.offload = true: with model.resources.devices=0, all of the run is in the CPU's",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "model.parallel.tensor=2"],
        "command line: model.parallel.tensor = 2: must be 1, because each server of trainer",
    ),
    (
        ["method=c0_grpo", "model.parallel.sequence=2"],
        "command line: model.parallel.sequence = 2: must be 1, because trainer.backend=in_process is one process",
    ),
    (
        ["method=c0_grpo", "model.parallel.rows=2"],
        "must be null, because trainer.backend=in_process reads another key. Fix: choose trainer=verl_ray, "
        "or set verl.actor_rollout_ref.rollout.",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "cluster=local", "trainer.ranks=2", "model.resources.nodes=2"],
        "conf/cluster/local.yaml: cluster.name = local: must be slurm or ray, because trainer=verl_ray needs a Ray "
        "over several nodes. Fix: choose cluster=slurm or cluster=ray, or set model.resources.nodes=1",
    ),
    (
        ["trainer=verl_ray", "method=c0_grpo", "cluster=slurm", "model.resources.nodes=2", "trainer.ranks=1"],
        "command line: trainer.ranks = 1: a mini-batch of 64 responses (ppo_mini_batch_size=8 times "
        "rollout.n=8) cannot be shared equally by ranks of which model.resources.nodes=2 have as many each. Fix: make "
        "it a divisor and a multiple of 2, such as 2",
    ),
    (
        ["trainer=verl_ray", "trainer.rollout=sglang"],
        "trainer.rollout = sglang: must be hf or vllm; sglang is not among them, because it was never run",
    ),
    (
        ["trainer=verl_ray", "trainer.rollout=vllm", "method=q_star", "method/alpha=snr_max"],
        "must be another rule than snr_max, which also reads the reference, because a vLLM server holds policy and "
        "target. Fix: set trainer.rollout=hf, or choose another method/alpha",
    ),
    (
        ["trainer=verl_ray", "trainer.rollout=vllm", "verl.actor_rollout_ref.rollout.top_p=0.9"],
        "Fix: remove it: tokens are drawn from the whole distribution",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.rollout.pipeline_model_parallel_size=2"],
        "Fix: remove it: a server needs all layers in one process",
    ),
    (["trainer=verl_ray", "verl.actor_rollout_ref.rollout.name=vllm"], "Fix: set trainer.rollout"),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.actor.shuffle=true"],
        "Fix: remove it: rows are dealt in the order of the prompts",
    ),
    (
        ["verl.actor_rollout_ref.model.lora_rank=8"],
        "Fix: choose trainer=verl_ray: this trainer has no adapters (LoRA)",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.model.lora_rank=8.5"],
        "command line: verl.actor_rollout_ref.model.lora_rank = 8.5: ",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.model.lora_rank=-1"],
        "verl.actor_rollout_ref.model.lora_rank = -1: must be an integer 0 or more",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.model.target_modules=q_proj"],
        "target_modules = q_proj: must be all-linear, or a list of names of layers, such as [q_proj, v_proj]",
    ),
    (
        ["trainer=verl_ray", *LORA, "verl.actor_rollout_ref.model.target_modules=[q_proj,lm_head]"],
        "target_modules = q_proj,lm_head: the model (llama) has no linear layer lm_head below its head. Fix: use "
        "all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    ),
    (
        ["trainer=verl_ray", "method=c0_ppo", *LORA],
        "command line: verl.actor_rollout_ref.model.lora_rank = 8: must be 0 with method.advantage=gae: adapters are "
        "the policy's alone, and the critic trains all weights. Fix: set it to 0, or choose another method/advantage",
    ),
    (
        ["trainer=verl_ray", "method=rejection", *LORA],
        "verl.actor_rollout_ref.model.lora_rank = 8: must be 0 with method.sampler=rejection",
    ),
    (
        ["trainer=verl_ray", "method=q_decode", *LORA],
        "lora_rank = 8: method.loss=none trains nothing, so that adapters have no effect. Fix: set it to 0",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.model.lora.rank=8"],
        "Fix: set verl.actor_rollout_ref.model.lora_rank, lora_alpha, target_modules",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.actor.strategy=megatron"],
        "strategy = megatron: the chosen trainer does not read this key (trainer.verl_keys lists the keys that it "
        "reads). Fix: remove it: the ranks train with FSDP2 alone; Megatron is not supported",
    ),
    (
        ["trainer=verl_ray", "verl.actor_rollout_ref.rollout.name=sglang"],
        "Fix: set trainer.rollout=hf or trainer.rollout=vllm; SGLang is not supported",
    ),
    (
        ["verl.actor_rollout_ref.actor.use_dynamic_bsz=true"],
        "Fix: set verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    ),
    (
        ["method=q_decode", "method/control=dual"],
        "must be none, because loss=none trains nothing. Fix: choose method/control=",
    ),
    (
        ["method=dpo", "method/sampler=rejection", "method/target=expert"],
        "because loss=dpo pairs responses whether accepted",
    ),
    (["method=off_policy", "method.weight_low=20"], "must be a number 0 or more and 1 or less"),
    (
        ["method=q_star", "method.target_path=/no/such/model"],
        "command line: method.target_path = /no/such/model: the file /no/such/model does not exist",
    ),
    (["task.warm_start.lr=-1"], "command line: task.warm_start.lr = -1: must be a number above 0"),
    (["verl.actor_rollout_ref.actor.optim.betas=[2,3]"], "must be two numbers of 0 or more and below 1"),
    (["verl.actor_rollout_ref.actor.optim.optimizer=SGD"], "must be one of AdamW, Adam"),
    (["verl.actor_rollout_ref.actor.optim.optimizer_impl=mine"], "= mine: must be torch.optim. Fix: give torch.optim"),
    (["verl.actor_rollout_ref.actor.loss_scale_factor=0"], "loss_scale_factor = 0: must be an integer 1 or more"),
    (["method=off_policy", "method/alpha=entropy"], "must be none, because sampler=target draws from the target alone"),
    (["method=rejection", "method/weights=raw"], "must be none, because sampler=rejection corrects by what it accepts"),
    (
        ["method=[q_star,off_policy]"],
        "these methods exclude each other: conf/method/q_star.yaml has method/weights=raw and "
        "method/sampler=geometric, conf/method/off_policy.yaml has method/weights=clipped and method/sampler=target. "
        "Fix: remove q_star or off_policy from the list",
    ),
    (
        ["method=dpo", "method/trust_region=clip"],
        "command line: method/trust_region = clip: must be none, because loss=dpo has no importance ratios. "
        "Fix: choose method/trust_region=none, or another method/loss than dpo",
    ),
    (["method=[sft,ptrw]"], "these methods exclude each other: conf/method/sft.yaml has method/trust_region=none"),
    (["method=uniform_alpha", "method.alpha_value=2"], "must be a number 0 or more and 1 or less"),
    (["method=q_star", "method.solver=bisection"], "must be newton; for bisection choose method/alpha=kl_bisection"),
    (["method=q_star", "method.iterations=5"], "methods with method/alpha=kl_bisection"),
    (["method.ema_beta=0.9"], "no group's method reads this key; methods with method/smoothing=ema do"),
    (
        ["scale=tiny,full"],
        "command line: scale = tiny,full: a launch uses one scale, so it cannot be swept. Fix: choose one",
    ),
    (["scale=nosuch"], "there is no conf/scale/nosuch.yaml; available: design, full, tiny"),
    (["verl.data.train_batch_sise=1"], "verl's configuration has no such key. Fix: write verl.data.train_batch_size"),
    (["verl.data.train_batch_size=many"], "verl's default is a number (1024), this is a string"),
    (
        ["trainer.stepz=3"],
        "command line: trainer.stepz = 3: no group's configuration reads this key. Fix: write trainer.steps",
    ),
    (["trainer.steps=0"], "command line: trainer.steps = 0: must be an integer 1 or more"),
    (["trainer.steps=3.0"], "command line: trainer.steps = 3.0: must be an integer 1 or more"),
    (["verl.data.train_batch_size=64.0"], "verl's default is a whole number (1024). Fix: give a whole number"),
    (["verl.actor_rollout_ref.rollout.n=4.0"], "verl.actor_rollout_ref.rollout.n = 4.0: must be an integer 1 or more"),
    (["verl.actor_rollout_ref.actor.optim.lr=nan"], "optim.lr = nan: nan is not allowed"),
    (["verl.nosuch.x=1"], "command line: verl.nosuch = {'x': 1}: verl's configuration has no such key"),
    (["verl=5"], "command line: verl = 5: must be a mapping. Fix: set one of verl.data, "),
    (["analysis=5"], "command line: analysis = 5: must be a mapping"),
    (["analysis.primary=5"], "command line: analysis.primary = 5: must be a mapping"),
    (["model.resources=null"], "command line: model.resources = null: must be a mapping"),
    (["base.overrides=5"], "base.overrides must be a list such as [KEY=VALUE]"),
    (["multirun=[a]"], "command line: multirun = ['a']: must be the path of one folder. Fix: write multirun=FOLDER"),
    (["multirun.a=3"], "command line: multirun.a = 3: no such key. Fix: write multirun"),
    (["experiment.groups.A=null"], "command line: experiment.groups.A = null: no such key. Fix: remove it"),
    (["multirun=a,b"], "multirun = ['a', 'b']: this key belongs to a whole experiment and cannot be swept"),
    (["method=glob(nosuch*)"], "command line: method=glob(nosuch*): this sweep has no value"),
    (["trainer.steps=range(3,3)"], "command line: trainer.steps=range(3,3): this sweep has no value"),
    (["model=null"], "command line: model = null: this group needs a choice"),
    (["task=sorting,null"], "command line: task = null: this group needs a choice"),
    (["method/credit=null"], "this group needs a choice. Fix: name one, or write method/credit=[]"),
    (["cluster.name=slurm"], "cluster.name = slurm: must be local; choose another scheduler with cluster=NAME"),
    (["cluster.slots=2.0"], "command line: cluster.slots = 2.0: must be a number of runs"),
    (["experiment.name=../x"], "command line: experiment.name = ../x: must be a folder name of up to 100 letters"),
    (["seed=0,0.0"], "command line: seed = 0.0: must be an integer from 0 to 4294967295"),
    (["seed=0,0"], "seed 0 is named twice"),
    (["seed=x"], "command line: seed = x: must be an integer from 0 to 4294967295"),
    (["seed=-1"], "command line: seed = -1: must be an integer from 0 to 4294967295"),
    (["cluster.slots=0"], "command line: cluster.slots = 0: must be a number of runs, 1 or more, or null"),
    (["cluster.slotz=1"], "command line: cluster.slotz = 1: no such key. Fix: write cluster.slots"),
    (["cluster.retry.lost=x"], "command line: cluster.retry.lost = x: must be a number of times"),
    (["cluster.slots=1,2"], "this key belongs to a whole experiment and cannot be swept"),
    (["tracking.wandb=loud"], "command line: tracking.wandb = loud: must be one of"),
    (["tracking.wandb=none,online"], "this key belongs to a whole experiment and cannot be swept"),
    (["base.config=nosuch"], "verl's configuration does not compose"),
    (["~trainer.steps"], "can be set, but not deleted"),
    (["method.gamma=["], "not an override in Hydra's grammar"),
    (
        ["quickstrat"],
        "command line: quickstrat: not an override of the form KEY=VALUE. Fix: write experiment=quickstart",
    ),
    (
        ["model.resources=3"],
        "command line: model.resources = 3: must be a mapping. Fix: set one of model.",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), COMMAND_LINE, ids=lambda value: str(value)[:40])
def test_a_bad_command_line_is_refused_in_one_line(arguments, message):
    (line,) = refused(*arguments)
    assert message in line


MANY = "must be an integer from 0 to 4294967295"
SEEDS = [
    ("seed=9223372036854775808", MANY),
    ("seed=4294967296", MANY),
    ("seed=0,99999999999999999999", MANY),
    ("seed=true", MANY),
    ("seed=1e3", MANY),
    ("experiment.seeds=[18446744073709551616]", MANY),
    (
        "experiment.seeds={start: 4, max: 100000000000, until: decided}",
        "must be an integer 2 or more and 10000 or less",
    ),
    ("task.seed=9223372036854775808", "must be an integer 0 or more and 4294967295 or less"),
]


@pytest.mark.parametrize(("word", "said"), SEEDS, ids=[word for word, _ in SEEDS])
def test_a_seed_that_some_library_cannot_take_is_refused(word, said):
    further = ["task=reasoning_gym"] if word.startswith("task") else []
    assert any(said in line for line in refused("method=c0_grpo", *further, word))


def test_the_largest_seed_is_planned():
    assert make("method=c0_grpo", "seed=4294967295").runs


@pytest.mark.parametrize(
    "name", [*RESERVED, "Archive", "RUNS", ".index", "-x", "a/b", "a b", "..", "a" * 101, "bnto", "é"]
)
def test_an_experiment_cannot_have_the_name_of_another_folder(name):
    (line,) = refused("method=c0_grpo", f"experiment.name='{name}'")
    assert line.startswith(f"command line: experiment.name = {brief(name)}: ") and ". Fix: give" in line


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


def test_every_error_comes_at_once(conf):
    write_experiment(conf, {"A": {"method": "nosuch"}, "B": {"method": "bnto_minimal"}}, seeds=[0, 0], analysys={})
    lines = refused("experiment=bad", "method.gamma=x", "verl.nosuch=1", "task.train_promts=3", conf=conf)
    found = "\n".join(lines)
    for part in (
        "nosuch.yaml",
        "write analysis",
        "named twice",
        "method.gamma = x",
        "verl.nosuch",
        "task.train_promts",
    ):
        assert part in found


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("analysis.alpha=2", "must be a number above 0 and below 1"),
        ("analysis.primry=3", "write analysis.primary"),
        ("analysis.time_to=[{at: x}]", "analysis.time_to[0].at = x: must be a number"),
        ("analysis.metrics=[foo]", "analysis.metrics[0] = foo: must be a metric's key"),
        ("verl.actor_rollout_ref.rollout.n=0", "must be an integer 1 or more"),
        ("verl.actor_rollout_ref.rollout.temperature=0", "must be a number above 0"),
        ("method.loss_agg_mode=foo", "must be one of token-mean"),
    ],
)
def test_values_that_no_run_or_report_could_use_are_refused(override, said):
    assert any(
        line.startswith("command line: ") and said in line for line in refused("experiment=quickstart", override)
    )
