"""What no plan can be made of is refused in one line: where, key, value, rule and fix."""

from __future__ import annotations

import pytest
import yaml

from launcher import validate
from tests.launcher.experiments import make, refused, write_experiment

ONE = {"A": {"method": "c0_grpo"}}
FILE = "conf/experiment/bad.yaml: "
COMMAND_LINE = [
    (
        ["method=nosuch"],
        "command line: method = nosuch: there is no conf/method/nosuch.yaml; available: aggressive",
    ),
    (["experiment=nosuch"], "command line: experiment = nosuch: there is no conf/experiment/nosuch.yaml; available"),
    (["method=bnto_minimal", "method.gamma=x"], "command line: method.gamma = x: must be a number above 0"),
    (["experiment=quickstart", "method.rho=-1"], "command line: method.rho = -1: must be a number above 0"),
    (["method.gama=1", "experiment=bnto_main"], "method.gama = 1: no group's method reads it. Fix: write method.gamma"),
    (["metod.gamma=1"], "metod.gamma = 1: no such key. Fix: write method"),
    (["method.gamma=1"], "no group's method reads it; it is read with method/control=dual"),
    (
        ["method=ptrw", "method.trust_region=clip"],
        "Fix: write method/trust_region=NAME; available: asymmetric_clip, clip",
    ),
    (["method/trust_regoin=clip"], "there is no such configuration group. Fix: write method/trust_region="),
    (["experiment=quickstart", "method=ptrw"], "this experiment's groups choose their own methods"),
    (["task=gsm8k", "task.train_path=./nosuch.jsonl"], "command line: task.train_path = ./nosuch.jsonl: the file"),
    (["model=qwen2_5_1_5b", "model.path=/nosuch/model"], "the file /nosuch/model does not exist"),
    (["verl.algorithm.adv_estimator=rloo"], "the chosen trainer does not read this key"),
    (["verl.trainer.total_epochs=3"], "Fix: set trainer.steps, trainer.checkpoint_every"),
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
    (["method.credit.temporal_decay.gamma=0.9"], "it is read with method/credit=temporal_decay. Fix: add such a group"),
    (
        ["method=temporal_decay", "method.credit.temporal_decay.gama=0.9"],
        "no group's method reads it. Fix: write method.credit.temporal_decay.gamma",
    ),
    (
        ["method=temporal_decay", "method.credit.temporal_decay.gamma=2"],
        "command line: method.credit.temporal_decay.gamma = 2: must be a number above 0 and 1 or less",
    ),
    (["method.credit=[temporal_decay]"], "Fix: write method/credit=NAME; available: gradient_adaptive"),
    (["method=temporal_decay", "method.credit.temporal_decay=3"], "Fix: write method/credit=NAME; available"),
    (
        ["method=sft", "method/credit=[temporal_decay]"],
        "command line: method/credit = [temporal_decay]: must be empty, for loss=sft has no advantages that credit "
        "could weigh. Fix: choose method/credit=[], or another method/loss than sft",
    ),
    (
        ["method=[sft,temporal_decay]"],
        "conf/method/temporal_decay.yaml: method/credit = [temporal_decay]: must be empty, for loss=sft",
    ),
    (
        ["method=[sft,ema]"],
        "conf/method/ema.yaml: method/smoothing = ema: must be none, for loss=sft has no importance ratios. "
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
        "command line: method/target = expert: must be none, for sampler=policy draws from the policy alone. "
        "Fix: choose method/target=none, or another method/sampler than policy",
    ),
    (
        ["method=c0_grpo", "method/weights=raw"],
        "command line: method/weights = raw: must be none, for sampler=policy makes every importance weight 1. "
        "Fix: choose method/weights=none, or another method/sampler than policy",
    ),
    (
        ["method=q_speculative", "method/alpha=snr_max"],
        "command line: method/alpha = snr_max: must be a rule of policy and target alone, for drafting=speculative "
        "reads no reference. Fix: choose one of method/alpha=entropy, ess_balance, ",
    ),
    (
        ["method=q_decode", "method/control=dual"],
        "must be none, for loss=none trains nothing. Fix: choose method/control=",
    ),
    (
        ["method=dpo", "method/sampler=rejection", "method/target=expert"],
        "for loss=dpo pairs responses whether accepted",
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
    (["method=off_policy", "method/alpha=entropy"], "must be none, for sampler=target draws from the target alone"),
    (["method=rejection", "method/weights=raw"], "must be none, for sampler=rejection corrects by what it accepts"),
    (
        ["method=[q_star,off_policy]"],
        "these methods exclude each other: conf/method/q_star.yaml has method/weights=raw and "
        "method/sampler=geometric, conf/method/off_policy.yaml has method/weights=clipped and method/sampler=target. "
        "Fix: remove q_star or off_policy from the list",
    ),
    (
        ["method=dpo", "method/trust_region=clip"],
        "command line: method/trust_region = clip: must be none, for loss=dpo has no importance ratios. "
        "Fix: choose method/trust_region=none, or another method/loss than dpo",
    ),
    (["method=[sft,ptrw]"], "these methods exclude each other: conf/method/sft.yaml has method/trust_region=none"),
    (["method=uniform_alpha", "method.alpha_value=2"], "must be a number 0 or more and 1 or less"),
    (["method=q_star", "method.solver=bisection"], "must be newton; for bisection choose method/alpha=kl_bisection"),
    (["method=q_star", "method.iterations=5"], "it is read with method/alpha=kl_bisection"),
    (["method.ema_beta=0.9"], "no group's method reads it; it is read with method/smoothing=ema"),
    (["scale=tiny,full"], "command line: scale = tiny,full: a sweep has one scale. Fix: choose one"),
    (["scale=nosuch"], "there is no conf/scale/nosuch.yaml; available: full, tiny"),
    (["verl.data.train_batch_sise=1"], "verl's configuration has no such key. Fix: write verl.data.train_batch_size"),
    (["verl.data.train_batch_size=many"], "verl's default is a number (1024), this is a string"),
    (
        ["trainer.stepz=3"],
        "command line: trainer.stepz = 3: no group's configuration reads it. Fix: write trainer.steps",
    ),
    (["trainer.steps=0"], "command line: trainer.steps = 0: must be an integer 1 or more"),
    (["trainer.steps=3.0"], "command line: trainer.steps = 3.0: must be an integer 1 or more"),
    (["verl.data.train_batch_size=64.0"], "verl's default is a whole number (1024). Fix: give a whole number"),
    (["verl.actor_rollout_ref.rollout.n=4.0"], "verl.actor_rollout_ref.rollout.n = 4.0: must be an integer 1 or more"),
    (["verl.actor_rollout_ref.actor.optim.lr=nan"], "optim.lr = nan: nan has no place in an identity"),
    (["verl.nosuch.x=1"], "command line: verl.nosuch = {'x': 1}: verl's configuration has no such key"),
    (["verl=5"], "command line: verl = 5: a value where a mapping stands. Fix: set one of verl.data, "),
    (["analysis=5"], "command line: analysis = 5: a value where a mapping stands"),
    (["analysis.primary=5"], "command line: analysis.primary = 5: a value where a mapping stands"),
    (["model.resources=null"], "command line: model.resources = None: a value where a mapping stands"),
    (["base.overrides=5"], "base.overrides is a list: [KEY=VALUE]"),
    (["multirun=[a]"], "command line: multirun = ['a']: the name of one folder. Fix: write multirun=FOLDER"),
    (["multirun.a=3"], "command line: multirun.a = 3: no such key. Fix: write multirun"),
    (["experiment.groups.A=null"], "command line: experiment.groups.A = None: no such key. Fix: remove it"),
    (["multirun=a,b"], "multirun = ['a', 'b']: this holds for a whole experiment and cannot be swept"),
    (["method=glob(nosuch*)"], "command line: method=glob(nosuch*): this names nothing"),
    (["trainer.steps=range(3,3)"], "command line: trainer.steps=range(3,3): this names nothing"),
    (["model=null"], "command line: model = null: this group needs a choice"),
    (["task=sorting,null"], "command line: task = null: this group needs a choice"),
    (["method/credit=null"], "this group needs a choice. Fix: name one, or write method/credit=[]"),
    (["cluster.name=slurm"], "cluster.name = slurm: must be local; another is chosen by its file, cluster=NAME"),
    (["cluster.slots=2.0"], "command line: cluster.slots = 2.0: must be a number of runs"),
    (["experiment.name=../x"], "command line: experiment.name = '../x': a folder name of up to 100 letters"),
    (["seed=0,0.0"], "command line: seed = 0.0: a seed is an integer from 0 on"),
    (["seed=0,0"], "seed 0 is named twice"),
    (["seed=x"], "a seed is an integer from 0 on"),
    (["seed=-1"], "a seed is an integer from 0 on"),
    (["cluster.slots=0"], "command line: cluster.slots = 0: must be a number of runs, 1 or more, or null"),
    (["cluster.slotz=1"], "command line: cluster.slotz = 1: no such key. Fix: write cluster.slots"),
    (["cluster.retry.lost=x"], "command line: cluster.retry.lost = x: must be a number of times"),
    (["cluster.slots=1,2"], "this holds for a whole experiment and cannot be swept"),
    (["tracking.wandb=loud"], "command line: tracking.wandb = loud: must be one of"),
    (["tracking.wandb=offline,online"], "this holds for a whole experiment and cannot be swept"),
    (["base.config=nosuch"], "verl's configuration does not compose"),
    (["~trainer.steps"], "can be set, not deleted"),
    (["method.gamma=["], "not an override in Hydra's grammar"),
    (["quickstrat"], "command line: quickstrat: no override, KEY=VALUE. Fix: write experiment=quickstart"),
    (
        ["model.resources=3"],
        "command line: model.resources = 3: a value where a mapping stands. Fix: set one of model.",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), COMMAND_LINE, ids=lambda value: str(value)[:40])
def test_a_bad_command_line_is_refused_in_one_line(arguments, message):
    (line,) = refused(*arguments)
    assert message in line


ZIP = {"method.clip_low": [0.1, 0.2], "trainer.steps": [5, 6]}
EXPERIMENTS = [
    ({"groups": {**ONE, "B": None}}, "experiment.groups.B: null drops what another file declares, and none does"),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3]}}},
        "experiment.zip.z = {'trainer.steps': [3]}: a mapping of two keys or more",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3], "method.clip_low": [0.1, 0.2]}}},
        "experiment.zip.z = method.clip_low has 2, trainer.steps has 1: the levels of a zip go together",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3, 3], "method.clip_low": [0.1, 0.1]}}},
        "a combination of levels is named twice",
    ),
    ({"groups": ONE, "zip": [1]}, "experiment.zip = [1]: a list where a mapping stands. Fix: write a mapping"),
    ({"groups": ONE, "zip": {"z": ZIP}, "factors": {"trainer.steps": [3]}}, "two factors, or zips, have this key"),
    (
        {"groups": ONE, "zip": {"z": {**ZIP, "method.gamma": [1, 2]}}},
        "experiment.zip.z.method.gamma = [1, 2]: no group's method reads it",
    ),
    (
        {"groups": ONE, "zip": {"z": {**ZIP, "seed": [1, 2]}}},
        "experiment.zip.z.seed = [1, 2]: this key cannot be a factor",
    ),
    (
        {"groups": ONE, "zip": {"z": {**ZIP, "task": ["sorting", "nosuch"]}}},
        "experiment.zip.z.task = nosuch: there is no conf/task/nosuch.yaml",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [5, 0], "method.clip_low": [0.1, 0.2]}}},
        "experiment.zip.z.trainer.steps = 0: must be an integer 1 or more",
    ),
    ({"groups": ONE, "exclude": {"group": "A"}}, "experiment.exclude = {'group': 'A'}: a mapping where a list stands"),
    ({"groups": ONE, "exclude": [{}]}, "a list of mappings of factors, group or seed"),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.stepz": 5}]},
        "experiment.exclude[0].trainer.stepz = [5]: no factor of this experiment; it has "
        "method.clip_low, trainer.steps, group, seed. Fix: write trainer.steps",
    ),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.steps": 7}]},
        "experiment.exclude[0].trainer.steps = 7: no level of trainer.steps; its levels are 5, 6",
    ),
    ({"groups": ONE, "exclude": [{"group": "B"}]}, "experiment.exclude[0].group = B: no level of group"),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.steps": 5, "method.clip_low": 0.2}]},
        "this exclusion leaves out nothing: no cell has these levels together",
    ),
    ({"groups": ONE, "exclude": [{"group": "A"}]}, "experiment.exclude: the exclusions leave no run"),
    (
        {"groups": {"A": {"method": "nosuch"}}},
        "experiment.groups.A.method = nosuch: there is no conf/method/nosuch.yaml",
    ),
    (
        {"groups": {"A": {"method": ["ptrw", "asymmetric_clip"]}}},
        "these methods exclude each other: conf/method/ptrw.yaml",
    ),
    ({"groups": {"A": {"methud": "ptrw"}}}, "experiment.groups.A.methud: no such key"),
    (
        {"groups": ONE, "factors": {"method.gamma": [1]}},
        "experiment.factors.method.gamma = [1]: no group's method reads",
    ),
    (
        {"groups": ONE, "factors": {"trainer.steps": 3}},
        "experiment.factors.trainer.steps = 3: a list of one level or more",
    ),
    ({"groups": ONE, "factors": {"trainer.steps": [3, 3]}}, "a level is named twice"),
    ({"groups": ONE, "factors": {"method.clip_low": [1, 1.0]}}, "[1, 1.0]: a level is named twice"),
    ({"groups": ONE, "hydra": {"run": {"dir": "x"}}}, "hydra: no such key. Fix: remove it, or use one of seed"),
    ({"groups": ONE, "trianer": {"steps": 3}}, "trianer: no such key. Fix: write trainer"),
    (
        {"groups": ONE, "task": "sorting"},
        "task = sorting: a group's files are chosen among the defaults. Fix: write - override /task: NAME there",
    ),
    ({"groups": ONE, "hypothesis": "bnto"}, "hypothesis = bnto: a group's files are chosen among the defaults"),
    ({"groups": ONE, "multirun": ["a"]}, "conf/experiment/bad.yaml: multirun = ['a']: the name of one folder"),
    ({"groups": ONE, "trainer": None}, "trainer = None: a value where a mapping stands"),
    ({"groups": ONE, "verl": 5}, "verl = 5: a value where a mapping stands. Fix: write a mapping, or remove it"),
    (
        {"groups": {"A": {"method": "c0_grpo", "overrides": {"task": "sorting"}}}},
        "experiment.groups.A.overrides.task = sorting: a value where a mapping stands",
    ),
    ({"groups": ONE, "baseline": ["A"]}, "experiment.baseline = ['A']: the baseline is one of the groups: A"),
    ({"groups": {1: ONE["A"], "1": ONE["A"]}}, "experiment.groups.1: two groups have this name"),
    ({"groups": {"A" * 101: ONE["A"]}}, "a group's name has up to 100 letters"),
    (
        {"groups": {**ONE, "B": {"method": "ptrw", "label": "A"}}},
        "experiment.groups.B.label = 'A': group A has this label",
    ),
    ({"groups": ONE, "defaults": ["bad", "_self_"]}, "the defaults of experiment=bad name each other in a circle"),
    ({"groups": ONE, "factors": {"method": ["ptrw"]}}, "method is not a factor. Fix: declare one group a method"),
    ({"groups": ONE, "factors": {"scale": ["tiny"]}}, "scale is not a factor. Fix: remove it"),
    (
        {"groups": ONE, "factors": {"method/credit": [["nosuch"]]}},
        "experiment.factors.method/credit = nosuch: there is no conf/method/credit/nosuch.yaml",
    ),
    (
        {"groups": ONE, "factors": {"task": [["sorting", "expression"]]}},
        "experiment.factors.task = ['sorting', 'expression']: this group has one choice at a time",
    ),
    (
        {"groups": ONE, "method": {"credit": {"temporal_decay": {"gamma": 0.9}}}},
        "method.credit.temporal_decay = {'gamma': 0.9}: the method does not read it; "
        "it is read with method/credit=temporal_decay",
    ),
    (
        {"groups": {"A": {"method": "q_star", "overrides": {"method/target": "none"}}}},
        "method/target = none: must be a target policy, towards which sampler=geometric draws",
    ),
    (
        {"groups": {"A": {"method": "q_star"}}, "factors": {"method/target": ["none"]}},
        "method/target = none: must be a target policy, towards which sampler=geometric draws",
    ),
    (
        {"groups": {"A": {"method": "q_star", "overrides": {"method/target": "nosuch"}}}},
        "experiment.groups.A.overrides.method/target = nosuch: there is no conf/method/target/nosuch.yaml",
    ),
    (
        {"groups": {"A": {"method": "q_star", "overrides": {"method/taget": "expert"}}}},
        "experiment.groups.A.overrides.method/taget = expert: this is no part of a method. Fix: write method/target",
    ),
    (
        {
            "groups": {"A": {"method": "q_star", "overrides": {"method/weights": "none"}}},
            "factors": {"method/weights": ["raw", "clipped"]},
        },
        "experiment.groups.A.overrides.method/weights = none: a choice that is a factor of the experiment cannot",
    ),
    (
        {"groups": ONE, "method": {"trust_region": "gaussian"}},
        "method.trust_region = gaussian: a part of a method is chosen as a group, not set as a value (the group's "
        "choice is clip). Fix: choose method/trust_region=gaussian",
    ),
    ({"groups": ONE, "scales": {"tinny": {}}}, "experiment.scales.tinny = tinny: there is no conf/scale/tinny.yaml"),
    ({"groups": ONE, "scales": {"full": 3}}, "a mapping of scales to dotted keys and their values"),
    (
        {"groups": ONE, "scales": {"full": {"trainer.stepz": 3}}},
        "experiment.scales.full.trainer.stepz = 3: no group's configuration reads it. Fix: write trainer.steps",
    ),
    ({"groups": ONE, "scales": {"full": {"seed": 3}}}, "experiment.scales.full.seed = 3: no group's configuration"),
    (
        {"groups": ONE, "scales": {"full": {"trainer.steps": 0}}},
        "experiment.scales.full.trainer.steps = 0: must be an integer 1 or more",
    ),
    ({"groups": ONE, "baseline": "B"}, "experiment.baseline = 'B': the baseline is one of the groups: A"),
    ({"groups": ONE, "seeds": [0, 1, 0]}, "experiment.seeds = [0, 1, 0]: seed 0 is named twice"),
    ({"groups": ONE, "seeds": [True]}, "experiment.seeds = True: a seed is an integer from 0 on"),
    ({"groups": ONE, "trainer": {"steps": "x"}}, "trainer.steps = x: must be an integer 1 or more"),
    ({"groups": ONE, "analysys": {"alpha": 0.1}}, "analysys: no such key. Fix: write analysis"),
    ({"groups": ONE, "tracking": None}, "tracking = None: a value where a mapping stands. Fix: write a mapping"),
    ({"groups": ONE, "cluster": {"retry": 3}}, "cluster.retry = 3: a value where a mapping stands. Fix: set one of"),
    ({"groups": ONE, "hypothesis": ["bnto"]}, "Fix: write - override /hypothesis: NAME there"),
    (
        {"groups": {"A": {"method": "ptrw", "overrides": {"model": "gpt2"}}}},
        "experiment.groups.A.overrides.model = gpt2: a value where a mapping stands. Fix: set one of model.resources",
    ),
    (
        {"groups": ONE, "factors": {"verl": [3]}},
        "experiment.factors.verl = 3: a value where a mapping stands. Fix: set one of verl.data",
    ),
    ({"groups": ONE, "trainer": {"stepz": 3}}, "trainer.stepz = 3: no such key. Fix: write trainer.steps"),
    (
        {"groups": ONE, "verl": {"daat": {}}},
        "verl.daat = {}: verl's configuration has no such key. Fix: write verl.data",
    ),
    (
        {"groups": {"A": {"method": "bnto_minimal", "overrides": {"method.rho": -1}}}},
        "experiment.groups.A.overrides.method.rho = -1: must be a number above 0",
    ),
    (
        {"groups": {"A": {"method": "ptrw", "overrides": {"method.rho": 1}}}},
        "experiment.groups.A.overrides.method.rho = 1: no group's method reads it; it is read with method/control=dual",
    ),
]


@pytest.mark.parametrize(("experiment", "message"), EXPERIMENTS, ids=lambda value: str(value)[:40])
def test_a_bad_experiment_is_refused_in_one_line_that_names_its_file(conf, experiment, message):
    write_experiment(conf, **experiment)
    (line,) = refused("experiment=bad", conf=conf)
    assert line.startswith(FILE) and message in line


def test_a_bad_method_file_is_named(conf):
    path = conf / "method/control/dual.yaml"
    path.write_text(path.read_text().replace("rho: 0.45", "rho: -0.45"))
    (line,) = refused("method=bnto_minimal", conf=conf)
    assert line.startswith("conf/method/control/dual.yaml: method.rho = -0.45: must be a number above 0")


@pytest.mark.parametrize(
    ("path", "content", "chosen", "header"),
    [
        ("task/mine", {"task": {"name": "mine"}}, "task=mine", "_global_"),
        ("scale/mine", {"trainer": {"steps": 9}}, "scale=mine", "_global_"),
        ("method/trust_region/mine", {"trust_region": "mine"}, "method/trust_region=mine", "method"),
    ],
)
def test_a_file_without_its_header_is_named(conf, path, content, chosen, header):
    (conf / f"{path}.yaml").write_text(yaml.safe_dump(content))
    (line,) = refused(chosen, conf=conf)
    assert line.startswith(f"conf/{path}.yaml: # @package {header}: the file does not begin with its header")


def test_a_method_files_own_values_are_checked_against_its_parts(conf):
    def write(name, base, **values):
        (conf / f"method/{name}.yaml").write_text(
            yaml.safe_dump({"defaults": [base, "_self_"], "name": name, **values})
        )

    write("hot", "q_star", temperature=0)
    (line,) = refused("method=hot", conf=conf)
    assert line.startswith("conf/method/hot.yaml: method.temperature = 0: must be a number above 0")
    write("half", "q_star", alpha_value=0.5)
    (line,) = refused("method=half", conf=conf)
    assert "conf/method/half.yaml: method.alpha_value = 0.5: the method does not read it; it is read with" in line
    write("cold", "q_star", temperature=0.5)
    (run,) = make("method=[cold,gspo]", conf=conf).runs.values()
    assert run.config["method"]["temperature"] == 0.5
    (line,) = refused("method=[cold,gspo]", "method/sampler=target", "method/alpha=none", conf=conf)
    assert line.startswith("conf/method/cold.yaml: method.temperature = 0.5: the method does not read it")
    # A part named as a value would have the name without what the part brings.
    write("typed", "c0_grpo", sampler="target")
    for chosen in ("typed", "[gspo,typed]"):
        (line,) = refused(f"method={chosen}", conf=conf)
        assert line.startswith("conf/method/typed.yaml: method.sampler = target: a part of a method is chosen")
    (conf / "method/both.yaml").write_text(
        yaml.safe_dump({"defaults": ["sft", {"override smoothing": "ema"}, "_self_"], "name": "both"})
    )
    (line,) = refused("method=both", conf=conf)
    assert line.startswith("conf/method/both.yaml: method/smoothing = ema: must be none, for loss=sft")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a method has every part, and advantage, alpha, "),
        ("5", "In 'method/mine': a file holds a mapping, not int. Fix: "),
        ("[1]", "In 'method/mine': a file holds a mapping, not list. Fix: "),
        ("defaults: [mine]", "the defaults of "),
    ],
)
def test_a_method_file_that_is_none_is_refused(text, said, conf):
    (conf / "method/mine.yaml").write_text(text)
    lines = refused("method=mine", conf=conf)
    assert any(said in line and "mine" in line for line in lines), lines


def test_a_fragment_can_speak_of_a_mapping():
    defaults = {
        "some": {"credit": {"a": {"x": 1}}, "allowed": {"credit": {"maxProperties": 1, "description": "small"}}}
    }
    checker = validate.Checker(defaults)
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
    ("text", "said"),
    [
        ("a: {b", "not YAML"),
        ("a:\n\t- b", "line 2, column 1"),
        ("", "# @package _global_: the file does not begin with its header"),
        ("# @package _global_\nexperiment: {name: bad, groups: {}}", "experiment.groups = {}: empty"),
        ("# first\n# @package _global_\ndefaults:\n  - override /model: tiny", "make this the file's first line"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_an_experiment_file_that_is_none_is_refused_in_a_line(text, said, conf):
    path = conf / "experiment/bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    lines = refused("experiment=bad", conf=conf)
    assert any(said in line and "bad.yaml" in line for line in lines), lines


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("analysis.alpha=2", "must be a number above 0 and below 1"),
        ("analysis.primry=3", "write analysis.primary"),
        ("analysis.time_to=[{at: x}]", "a list of thresholds"),
        ("analysis.metrics=[foo]", "a list of metrics' keys"),
        ("verl.actor_rollout_ref.rollout.n=0", "must be an integer 1 or more"),
        ("verl.actor_rollout_ref.rollout.temperature=0", "must be a number above 0"),
        ("method.loss_agg_mode=foo", "must be one of token-mean"),
    ],
)
def test_values_that_no_run_or_report_could_use_are_refused(override, said):
    assert any(
        line.startswith("command line: ") and said in line for line in refused("experiment=quickstart", override)
    )
