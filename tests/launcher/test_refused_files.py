"""A file of an experiment or a method that no plan can be made of is refused in one line that names it."""

from __future__ import annotations

import pytest
import yaml

from tests.launcher.experiments import make, refused, write_experiment

ONE = {"A": {"method": "c0_grpo"}}
FILE = "conf/experiment/bad.yaml: "
ZIP = {"method.clip_low": [0.1, 0.2], "trainer.steps": [5, 6]}
EXPERIMENTS = [
    (
        {"groups": {**ONE, "B": None}},
        "experiment.groups.B: null removes an entry of another file, but no other file has this entry",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3]}}},
        "experiment.zip.z = {'trainer.steps': [3]}: must be a mapping of two keys or more",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3], "method.clip_low": [0.1, 0.2]}}},
        "must have the same number of levels; method.clip_low has 2, trainer.steps has 1",
    ),
    (
        {"groups": ONE, "zip": {"z": {"trainer.steps": [3, 3], "method.clip_low": [0.1, 0.1]}}},
        "a combination of levels is named twice",
    ),
    ({"groups": ONE, "zip": [1]}, "experiment.zip = [1]: must be a mapping, not a list. Fix: write a mapping"),
    ({"groups": ONE, "zip": {"z": ZIP}, "factors": {"trainer.steps": [3]}}, "two factors, or zips, have this key"),
    (
        {"groups": ONE, "zip": {"z": {**ZIP, "method.gamma": [1, 2]}}},
        "experiment.zip.z.method.gamma = [1, 2]: no group's method reads this key",
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
    ({"groups": ONE, "exclude": {"group": "A"}}, "experiment.exclude = {'group': 'A'}: must be a list, not a mapping"),
    ({"groups": ONE, "exclude": [{}]}, "must be a mapping of factors, group or seed to levels"),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.stepz": 5}]},
        "experiment.exclude[0].trainer.stepz = [5]: not a factor of this experiment; it has "
        "method.clip_low, trainer.steps, group, seed. Fix: write trainer.steps",
    ),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.steps": 7}]},
        "experiment.exclude[0].trainer.steps = 7: not a level of trainer.steps; its levels are 5, 6",
    ),
    ({"groups": ONE, "exclude": [{"group": "B"}]}, "experiment.exclude[0].group = B: not a level of group"),
    (
        {"groups": ONE, "zip": {"z": ZIP}, "exclude": [{"trainer.steps": 5, "method.clip_low": 0.2}]},
        "this exclusion removes no run: no cell has these levels together",
    ),
    ({"groups": ONE, "exclude": [{"group": "A"}]}, "experiment.exclude: the exclusions remove every run"),
    (
        {"groups": {"A": {"method": "nosuch"}}},
        "experiment.groups.A.method = nosuch: there is no conf/method/nosuch.yaml",
    ),
    (
        {"groups": {"A": {"method": ["ptrw", "asymmetric_clip"]}}},
        "these methods exclude each other: conf/method/ptrw.yaml",
    ),
    ({"groups": {"A": {"methud": "ptrw"}}}, "methud = ptrw: no such key. Fix: write experiment.groups.A.method"),
    (
        {"groups": ONE, "factors": {"method.gamma": [1]}},
        "experiment.factors.method.gamma = [1]: no group's method reads",
    ),
    (
        {"groups": ONE, "factors": {"trainer.steps": 3}},
        "experiment.factors.trainer.steps = 3: must be a list of one level or more",
    ),
    ({"groups": ONE, "factors": {"trainer.steps": [3, 3]}}, "a level is named twice"),
    ({"groups": ONE, "factors": {"method.clip_low": [1, 1.0]}}, "[1, 1.0]: a level is named twice"),
    ({"groups": ONE, "hydra": {"run": {"dir": "x"}}}, "hydra = {'run': {'dir': 'x'}}: Hydra reads its own settings"),
    ({"groups": ONE, "trianer": {"steps": 3}}, "trianer: no such key. Fix: write trainer"),
    (
        {"groups": ONE, "task": "sorting"},
        "task = sorting: a file of this group must be chosen in the defaults list. "
        "Fix: write - override /task: NAME there",
    ),
    (
        {"groups": ONE, "hypothesis": "bnto"},
        "hypothesis = bnto: a file of this group must be chosen in the defaults list",
    ),
    ({"groups": ONE, "multirun": ["a"]}, "conf/experiment/bad.yaml: multirun = ['a']: must be the path of one folder"),
    ({"groups": ONE, "trainer": None}, "trainer = null: must be a mapping"),
    ({"groups": ONE, "verl": 5}, "verl = 5: must be a mapping. Fix: write a mapping, or remove it"),
    (
        {"groups": {"A": {"method": "c0_grpo", "overrides": {"task": "sorting"}}}},
        "experiment.groups.A.overrides.task = sorting: must be a mapping",
    ),
    ({"groups": ONE, "baseline": ["A"]}, "experiment.baseline = ['A']: must be the name of a group, or null"),
    (
        {"groups": {1: ONE["A"], "1": ONE["A"]}},
        "experiment.groups.1: two groups have this name",
    ),
    ({"groups": {"A" * 101: ONE["A"]}}, "a group's name must have 1 to 100 characters"),
    (
        {"groups": {**ONE, "B": {"method": "ptrw", "label": "A"}}},
        "experiment.groups.B.label = A: group A has the same label",
    ),
    ({"groups": ONE, "defaults": ["bad", "_self_"]}, "the defaults of experiment=bad name each other in a circle"),
    (
        {"groups": ONE, "factors": {"method": ["ptrw"]}},
        "method is not a factor. Fix: declare one group for",
    ),
    ({"groups": ONE, "factors": {"scale": ["tiny"]}}, "scale is not a factor. Fix: remove it"),
    (
        {"groups": ONE, "factors": {"method/credit": [["nosuch"]]}},
        "experiment.factors.method/credit = nosuch: there is no conf/method/credit/nosuch.yaml",
    ),
    (
        {"groups": ONE, "factors": {"task": [["sorting", "expression"]]}},
        "experiment.factors.task = ['sorting', 'expression']: this group takes one choice",
    ),
    (
        {"groups": ONE, "method": {"credit": {"temporal_decay": {"gamma": 0.9}}}},
        "method.credit.temporal_decay = {'gamma': 0.9}: the method does not read this "
        "key; methods with method/credit=temporal_decay",
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
        "experiment.groups.A.overrides.method/taget = expert: this is not a part of a method. Fix: write method/target",
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
    ({"groups": ONE, "scales": {"full": 3}}, "experiment.scales.full = 3: must be a mapping of dotted keys to values"),
    (
        {"groups": ONE, "scales": {"full": {"trainer.stepz": 3}}},
        "experiment.scales.full.trainer.stepz = 3: no group's configuration reads this key. Fix: write trainer.steps",
    ),
    ({"groups": ONE, "scales": {"full": {"seed": 3}}}, "experiment.scales.full.seed = 3: no group's configuration"),
    (
        {"groups": ONE, "scales": {"full": {"trainer.steps": 0}}},
        "experiment.scales.full.trainer.steps = 0: must be an integer 1 or more",
    ),
    ({"groups": ONE, "baseline": "B"}, "experiment.baseline = B: must be one of the groups: A"),
    ({"groups": ONE, "seeds": [0, 1, 0]}, "experiment.seeds = [0, 1, 0]: seed 0 is named twice"),
    ({"groups": ONE, "seeds": 1}, "experiment.seeds = 1: must be a list of one seed or more, such as [0, 1, 2]"),
    ({"groups": ONE, "seeds": [True]}, "experiment.seeds[0] = true: must be an integer from 0 to 4294967295"),
    ({"groups": ONE, "trainer": {"steps": "x"}}, "trainer.steps = x: must be an integer 1 or more"),
    ({"groups": ONE, "analysys": {"alpha": 0.1}}, "analysys: no such key. Fix: write analysis"),
    ({"groups": ONE, "tracking": None}, "tracking = null: must be a mapping. Fix: write a mapping"),
    ({"groups": ONE, "cluster": {"retry": 3}}, "cluster.retry = 3: must be a mapping. Fix: set one of"),
    ({"groups": ONE, "hypothesis": ["bnto"]}, "Fix: write - override /hypothesis: NAME there"),
    (
        {"groups": {"A": {"method": "ptrw", "overrides": {"model": "gpt2"}}}},
        "experiment.groups.A.overrides.model = gpt2: must be a mapping. Fix: set one of model.seconds_per_step",
    ),
    (
        {"groups": ONE, "factors": {"verl": [3]}},
        "experiment.factors.verl = 3: must be a mapping. Fix: set one of verl.data",
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
        "experiment.groups.A.overrides.method.rho = 1: no group's method reads this key; "
        "methods with method/control=dual do",
    ),
]


@pytest.mark.parametrize(("experiment", "message"), EXPERIMENTS, ids=lambda value: str(value)[:40])
def test_a_bad_experiment_is_refused_in_one_line_that_names_its_file(conf, experiment, message):
    write_experiment(conf, **experiment)
    (line,) = refused("experiment=bad", conf=conf)
    assert line.startswith(FILE) and message in line


def test_a_clusters_file_begins_with_another_or_names_every_key(conf):
    path = conf / "cluster/mine.yaml"
    path.write_text("defaults: [slurm, _self_]\npartition: gpu\nallowed: {qos: {type: string}}\n")
    cluster = make("cluster=mine", conf=conf).cluster
    assert (cluster["name"], cluster["partition"], "allowed" in cluster) == ("slurm", "gpu", False)
    path.write_text("name: local\nslots: 0\n")
    lines = refused("cluster=mine", conf=conf)
    assert all(line.startswith("conf/cluster/mine.yaml: cluster.") for line in lines)
    for part in (
        "cluster.slots = 0: must be a number of runs",
        "cluster.retry: a value is required. Fix: give a mapping",
    ):
        assert [line for line in lines if part in line]
    path.write_text("name: pbs\n")
    (line,) = refused("cluster=mine", conf=conf)
    assert line.startswith("conf/cluster/mine.yaml: cluster.name = pbs: must be one of local, ray, slurm")


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
    assert "conf/method/half.yaml: method.alpha_value = 0.5: the method does not read this key; methods with" in line
    write("cold", "q_star", temperature=0.5)
    (run,) = make("method=[cold,gspo]", conf=conf).runs.values()
    assert run.config["method"]["temperature"] == 0.5
    (line,) = refused("method=[cold,gspo]", "method/sampler=target", "method/alpha=none", conf=conf)
    assert line.startswith("conf/method/cold.yaml: method.temperature = 0.5: the method does not read this key")
    # A part named as a value would have the name without what the part brings.
    write("typed", "c0_grpo", sampler="target")
    for chosen in ("typed", "[gspo,typed]"):
        (line,) = refused(f"method={chosen}", conf=conf)
        assert line.startswith("conf/method/typed.yaml: method.sampler = target: a part of a method is chosen")
    (conf / "method/both.yaml").write_text(
        yaml.safe_dump({"defaults": ["sft", {"override smoothing": "ema"}, "_self_"], "name": "both"})
    )
    (line,) = refused("method=both", conf=conf)
    assert line.startswith("conf/method/both.yaml: method/smoothing = ema: must be none, because loss=sft")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a method needs every part; missing: advantage, alpha, "),
        ("5", "In 'method/mine': a file must hold a mapping, not int. Fix: "),
        ("[1]", "In 'method/mine': a file must hold a mapping, not list. Fix: "),
        ("defaults: [mine]", "the defaults of "),
    ],
)
def test_a_method_file_that_is_none_is_refused(text, said, conf):
    (conf / "method/mine.yaml").write_text(text)
    lines = refused("method=mine", conf=conf)
    assert any(said in line and "mine" in line for line in lines), lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {b", "not YAML"),
        ("a:\n\t- b", "line 2, column 1"),
        ("", "# @package _global_: the file does not begin with its header"),
        (
            "# @package _global_\nexperiment: {name: bad, groups: {}}",
            "experiment.groups = {}: must name at least one group",
        ),
        ("# first\n# @package _global_\ndefaults:\n  - override /model: tiny", "make this the file's first line"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_an_experiment_file_that_is_none_is_refused_in_a_line(text, said, conf):
    path = conf / "experiment/bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    lines = refused("experiment=bad", conf=conf)
    assert any(said in line and "bad.yaml" in line for line in lines), lines
