"""A file of an experiment or a method that no plan can be made of is refused in one line that names it."""

from __future__ import annotations

import pytest
import yaml

from tests.launcher.experiments import make, refusals, rows, write_experiment

COLD = "defaults: [q_star, _self_]\nname: cold\ntemperature: 0.5"
#: Keys of an experiment, whose group is A unless they say so.
EXPERIMENTS = """
groups: {A: {method: c0_grpo}, B: null}
zip: {z: {trainer.steps: [3]}}
zip: {z: {trainer.steps: [3], method.clip_low: [0.1, 0.2]}}
zip: {z: {trainer.steps: [3, 3], method.clip_low: [0.1, 0.1]}}
zip: [1]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, factors: {trainer.steps: [3]}
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6], method.gamma: [1, 2]}}
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6], seed: [1, 2]}}
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6], task: [sorting, nosuch]}}
zip: {z: {trainer.steps: [5, 0], method.clip_low: [0.1, 0.2]}}
exclude: {group: A}
exclude: [{}]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, exclude: [{trainer.stepz: 5}]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, exclude: [{trainer.steps: 7}]
exclude: [{group: B}]
zip: {z: {method.clip_low: [0.1, 0.2], trainer.steps: [5, 6]}}, exclude: [{trainer.steps: 5, method.clip_low: 0.2}]
exclude: [{group: A}]
groups: {A: {method: nosuch}}
groups: {A: {method: [ptrw, asymmetric_clip]}}
groups: {A: {methud: ptrw}}
factors: {method.gamma: [1]}
factors: {trainer.steps: 3}
factors: {trainer.steps: [3, 3]}
factors: {method.clip_low: [1, 1.0]}
hydra: {run: {dir: x}}
trianer: {steps: 3}
task: sorting
multirun: [a]
verl: 5
groups: {A: {method: c0_grpo, overrides: {task: sorting}}}
baseline: [A]
groups: {1: {method: c0_grpo}, '1': {method: c0_grpo}}
groups: {A: {method: c0_grpo}, B: {method: ptrw, label: A}}
defaults: [bad, _self_]
factors: {method: [ptrw]}
factors: {scale: [tiny]}
factors: {method/credit: [[nosuch]]}
factors: {task: [[sorting, expression]]}
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
hypothesis: [bnto]
groups: {A: {method: ptrw, overrides: {model: gpt2}}}
factors: {verl: [3]}
trainer: {stepz: 3}
verl: {daat: {}}
groups: {A: {method: bnto_minimal, overrides: {method.rho: -1}}}
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
    for text in ("name: local\nslots: 0\n", "name: pbs\n"):
        path.write_text(text)
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
    "hydra:\n  run: {dir: x}\n" + BAD,
    "steps: 5\n" + BAD,
]


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        *(("experiment/bad", f"# @package _global_\n{text}", "experiment=bad") for text in MISTAKES),
        ("task/mine", "task: {name: mine}", "task=mine"),
        ("scale/mine", "trainer: {steps: 9}", "scale=mine"),
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
        ("method/mine", "[1]", "method=mine"),
        ("method/mine", "defaults: [mine]", "method=mine"),
        ("experiment/bad", "a: {b", "experiment=bad"),
        ("experiment/bad", "a:\n\t- b", "experiment=bad"),
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
