"""Plans: counts, the fast path beside Hydra's own composition, command-line sweeps, combined methods, frozen files."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import textwrap

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from analysis.spec import settings
from launcher.application import shape
from launcher.config.identity import SECTIONS
from launcher.planning import freeze
from launcher.planning.plan import Experiment
from launcher.run.folder import read_config, run_folder
from launcher.run.lifecycle import read_state
from launcher.tracking import settings as tracking
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import by_group, levels, make, refused, shipped, write_experiment
from trainer_ext.application.verl_tree import completed, merged

#: By experiment and scale: the number of runs, and the hash over their sorted ids. A change makes all of them new runs.
GOLDEN = json.loads((ROOT / "tests/golden/plan_ids.json").read_text())


def test_each_shipped_experiment_has_its_golden_ids():
    assert sorted(GOLDEN) == shipped("experiment")


@pytest.mark.parametrize("scale", shipped("scale"))
@pytest.mark.parametrize("name", shipped("experiment"))
def test_every_shipped_experiment_plans_at_every_scale(name, scale, planned_once):
    planned = planned_once(name, scale)
    digest = hashlib.sha256("\n".join(sorted(planned.runs)).encode()).hexdigest()[:16]
    assert [len(planned.runs), digest] == GOLDEN[name][scale]
    assert planned.experiments[0].name == name
    (base,) = planned.bases.values()
    for run in planned.runs.values():
        verl = merged(base.tree, run.config["verl"])
        if run.config["method"]["loss"] == "none":
            continue
        # With one update a step the importance ratio is 1, and most variants are GRPO.
        assert verl["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] < verl["data"]["train_batch_size"]
        if scale == "tiny":
            assert run.config["model"]["kind"] == "embedded"
            assert run.config["task"]["name"] in ("expression", *(["sorting"] if name == "qstar_tasks" else []))


@pytest.mark.parametrize("name", shipped("experiment"))
def test_an_experiment_is_headed_by_its_command_its_claim_and_its_cost(name, planned_once):
    head = [line for line in (ROOT / f"conf/experiment/{name}.yaml").read_text().splitlines() if line.startswith("#")]
    assert head[2] == f"# python launch.py -m experiment={name}"
    assert head[3].startswith("# Claim: ") and len(head[3]) > len("# Claim: q*")
    costs = [line for line in head if line.startswith("# Cost: ")]
    full, words = planned_once(name, "full"), f"# Cost: {cost_of(planned_once(name, 'full'))}"
    if full.runs.keys() != planned_once(name, "design").runs.keys():
        design = "scale=design", "trainer=verl_ray"
        more = "cluster=slurm", "model.resources.device_memory_gb=null"  # llama_30b does not fit devices of 80 GB
        words += f"; {' '.join(design)}: {cost_of(make(f'experiment={name}', *design, *more))}"
    assert costs == [f"{words}."]


@pytest.mark.parametrize("policy_alone", ["hf", "vllm"])
def test_all_methods_of_the_main_experiment_plan_with_vllm_and_groups_can_have_other_servers(policy_alone, monkeypatch):
    """As if vLLM were installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json" if name == "vllm" else name))
    of_target = ["off_policy", "sft", "uniform_alpha", "entropy_alpha", "q_star"]
    words = ["experiment=qstar_main", "scale=design", "trainer=verl_ray", "cluster=slurm"]
    if policy_alone == "vllm":
        planned = make(*words, "trainer.rollout=vllm")
        written = (ROOT / "conf/experiment/qstar_main.yaml").read_text()
        assert f"# With trainer.rollout=vllm, the latter take {cost_of(planned).partition(', ')[2]}." in written
    else:
        planned = make(*words, *(f"+experiment.groups.{one}.overrides={{trainer.rollout: vllm}}" for one in of_target))
    assert by_group(planned) == dict.fromkeys((*of_target, "ppo", "rejection", "dpo"), 3)
    for entry in planned.experiments[0].entries:
        rollout = planned.runs[entry.id].config["trainer"]["rollout"]
        assert rollout == ("vllm" if entry.group in of_target else policy_alone)


def cost_of(planned):
    """The runs of a plan and what they cost before anything was measured, on the devices that their models ask for."""
    hours = 0.0
    for run in planned.runs.values():
        model = run.config["model"]
        seconds = run.step_seconds if model["seconds_per_step"] is None else model["seconds_per_step"]
        hours += run.config["trainer"]["steps"] * seconds * shape(run.config).units / 3600
    unit = "device-hours" if model["resources"]["devices"] else "CPU-hours"
    return f"{len(planned.runs)} runs, {float(f'{hours:.2g}'):,g} {unit}"


def test_command_line_sweeps_multiply_the_groups_that_read_them():
    planned = make("experiment=quickstart", "method.gamma=0.8,1.2", "seed=0,1,2,3")
    assert by_group(planned) == {"C0": 4, "C1": 8, "asymmetric_clip": 4, "PTRW": 4, "q_star": 4}
    assert planned.experiments[0].factors == {"method.gamma": {"label": "gamma", "levels": [0.8, 1.2]}}
    assert planned.experiments[0].seeds == (0, 1, 2, 3)


def test_an_experiment_over_tasks_takes_task_files_with_paths_of_their_own(conf, tmp_path):
    lines = {
        "wmt": '{{"translation": {{"de": "Hallo {}", "en": "Hello"}}}}\n',
        "tldr": '{{"prompt": "Post {}", "completion": "Short."}}\n',
    }
    for task, line in lines.items():
        (tmp_path / f"{task}.jsonl").write_text("".join(line.format(number) for number in range(40)))
        text = f"defaults: [{task}, _self_]\ntask: {{train_path: {tmp_path}/{task}.jsonl}}\n"
        (conf / f"task/my_{task}.yaml").write_text(f"# @package _global_\n{text}")
    planned = make("experiment=qstar_tasks", "seed=0", "scale.tasks=[my_wmt,my_tldr]", conf=conf)
    read = {(run.config["task"]["name"], run.config["task"]["train_path"]) for run in planned.runs.values()}
    assert read == {(task, f"{tmp_path}/{task}.jsonl") for task in lines}


def test_a_single_value_reaches_just_the_groups_that_read_it_and_fixes_a_factor():
    planned = make("experiment=bnto_grid", "method.gamma=0.9", "seed=0")
    assert by_group(planned) == {"C0": 1, "C1": 24, "C2": 24, "C3": 24}
    gammas = {run.config["method"].get("gamma") for run in planned.runs.values()}
    assert gammas == {None, 0.9}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trainer.steps=3", "trainer.steps=4,5"], [("c0_grpo", 0, {"steps": 4}), ("c0_grpo", 0, {"steps": 5})]),
        (["trainer.steps=4,5", "trainer.steps=3"], [("c0_grpo", 0, {})]),
        (["seed=1,2", "seed=3"], [("c0_grpo", 3, {})]),
        (["model=tiny,tiny"], [("c0_grpo", 0, {"model": "tiny"})]),
        (["method.clip_low=0.1,0.10"], [("c0_grpo", 0, {"clip_low": 0.1})]),
        (["verl.actor_rollout_ref.actor.optim.lr=1,1.0"], [("c0_grpo", 0, {"lr": 1})]),
    ],
)
def test_of_two_words_for_one_key_the_last_counts_and_equal_levels_are_one(words, expected):
    planned = make(*words)
    assert levels(planned) == expected
    steps = {run.config["trainer"]["steps"] for run in planned.runs.values()}
    assert steps >= {level["steps"] for _, _, level in expected if "steps" in level}


def test_configuration_groups_can_be_factors():
    planned = make("experiment=quickstart", "task=expression,sorting", "method/control=none,dual", "seed=0")
    # C1 has the dual control already, so its cells and C0's are the same runs.
    assert by_group(planned) == {"C0": 4, "C1": 4, "asymmetric_clip": 4, "PTRW": 4, "q_star": 4}
    assert len(planned.runs) == 16
    assert set(planned.experiments[0].factors) == {"task", "method/control"}


def test_method_files_combine_by_what_differs_from_the_baseline(conf):
    write_experiment(conf, {"A": {"method": ["ptrw", "bnto_plateau"]}, "B": {"method": "c0_grpo"}})
    planned = make("experiment=bad", conf=conf)
    method = planned.runs[planned.experiments[0].entries[0].id].config["method"]
    assert (method["trust_region"], method["control"], method["decay"]) == ("gaussian", "dual", "plateau")
    assert planned.experiments[0].groups["A"]["method"] == ["ptrw", "bnto_plateau"]


def test_an_interpolation_follows_each_run(conf):
    write_experiment(conf, {"A": {"method": "c0_grpo"}}, seeds=[3, 4], verl={"data": {"train_batch_size": "${seed}"}})
    planned = make("experiment=bad", conf=conf)
    assert [run.config["verl"]["data"]["train_batch_size"] for run in planned.runs.values()] == [3, 4]


def test_freezing_writes_the_same_bytes_again_and_never_rewrites_a_run(tmp_path):
    arguments = ("experiment=quickstart", "seed=0", f"multirun={tmp_path / 'multirun'}")
    planned = make(*arguments)
    assert not (tmp_path / "multirun").exists()
    freeze.freeze(planned)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in tmp_path.rglob("*") if path.is_file()}
    freeze.freeze(make(*arguments))
    assert before == {p: (p.read_bytes(), p.stat().st_ino) for p in tmp_path.rglob("*") if p.is_file()}


def test_a_list_part_can_be_a_factor_whose_levels_decide_which_keys_exist(conf):
    factors = {"method/credit": [[], "temporal_decay", ["temporal_decay", "gradient_adaptive"]]}
    factors["method.credit.temporal_decay.gamma"] = [0.8, 0.9]
    write_experiment(conf, {"A": {"method": "c0_grpo"}}, factors=factors)
    planned = make("experiment=bad", conf=conf)
    assert len(planned.runs) == 1 + 2 + 2
    levels = ["[]", "[temporal_decay]", "[gradient_adaptive,temporal_decay]"]
    assert planned.experiments[0].factors["method/credit"] == {"label": "credit", "levels": levels}
    assert planned.experiments[0].entries[1].factors == {"credit": "[temporal_decay]", "gamma": 0.8}


def test_combined_methods_take_the_union_of_their_list_parts():
    union = make("method=ema", "method/credit=[gradient_adaptive,temporal_decay]").runs
    assert set(make("method=[conservative,gradient_adaptive]").runs) == set(union)
    assert set(make("method=[amic,ema]").runs) == set(make("method=amic", "method/smoothing=ema").runs)


def slower(conf, name, gamma):
    body = {"name": name, "credit": {"temporal_decay": {"gamma": gamma}}}
    (conf / f"method/{name}.yaml").write_text(yaml.safe_dump({"defaults": ["temporal_decay", "_self_"], **body}))


def test_a_value_below_a_list_part_is_carried_over_or_excludes(conf, worded):
    slower(conf, "slow", 0.8)
    slower(conf, "slower", 0.7)
    (run,) = make("method=[slow,gradient_adaptive]", conf=conf).runs.values()
    shipped = {"schedule": "exponential", "normalize": "mean"}
    assert run.config["method"]["credit"]["temporal_decay"] == {**shipped, "gamma": 0.8}
    worded(refused("method=[slow,slower]", conf=conf))


def requires(conf, part, choice, **fragments):
    path = conf / f"method/{part}/{choice}.yaml"
    path.write_text(f"{path.read_text().split('allowed:')[0]}{yaml.safe_dump({'allowed': fragments})}")


def test_what_two_parts_need_of_a_third_is_judged_apart(conf):
    requires(conf, "loss", "sft", target={"enum": ["expert"], "description": "one"})
    requires(conf, "sampler", "target", target={"not": {"const": "expert"}, "description": "another"})
    for target, failing in (("expert", "another"), ("none", "one")):
        lines = refused("method=sft", f"method/target={target}", conf=conf)
        assert [line for line in lines if f"method/target = {target}: must be {failing}. Fix: " in line] == lines
    requires(conf, "loss", "sft", target={"const": "none", "description": "one"})
    requires(conf, "sampler", "target", target={"const": "high_reward", "description": "another"})
    assert len(refused("method=sft", conf=conf)) == 2


def test_a_groups_overrides_choose_parts():
    planned = make("experiment=qstar_alpha", "seed=0", "scale=tiny")
    runs = {entry.group: planned.runs[entry.id].config["method"] for entry in planned.experiments[0].entries}
    assert {group: method["alpha"] for group, method in runs.items()} == {
        **{f"fixed_0_{digit}": "fixed" for digit in (3, 5, 7)},
        **{name: name for name in ("entropy", "kl_symmetry", "ess_balance", "snr_max")},
    }
    assert [runs[f"fixed_0_{digit}"]["alpha_value"] for digit in (3, 5, 7)] == [0.3, 0.5, 0.7]
    # The command line has the last word; what it leaves unread is said.
    words = ("seed=0", "method/alpha=fixed", "method.alpha_value=0.1", "analysis.figures=[]")
    one = make("experiment=qstar_alpha", *words)
    assert {run.config["method"]["alpha"] for run in one.runs.values()} == {"fixed"}


def test_a_scale_wins_over_the_experiment_and_the_command_line_over_both():
    assert steps("experiment=bnto_main") == {2000}
    assert steps("experiment=bnto_main", "scale=tiny") == {80}
    assert steps("experiment=bnto_medium", "scale=tiny") == {300}
    assert steps("experiment=bnto_medium", "scale=tiny", "trainer.steps=9") == {9}
    (run,) = make("scale=tiny", "task=sorting", "model=qwen2_5_1_5b").runs.values()
    assert (run.config["task"]["name"], run.config["model"]["name"]) == ("sorting", "qwen2_5_1_5b")


def steps(*arguments, conf=None):
    return {run.config["trainer"]["steps"] for run in make(*arguments, "seed=0", conf=conf).runs.values()}


def test_what_a_scale_means_for_an_experiment_is_below_its_groups_and_factors(conf):
    scales = {"tiny": {"trainer.steps": 5, "method.rho": 0.2}}
    groups = {"A": {"method": "bnto_minimal"}, "B": {"method": "c0_grpo", "overrides": {"trainer.steps": 6}}}
    write_experiment(conf, groups, scales=scales)
    configs = [run.config for run in make("experiment=bad", "scale=tiny", conf=conf).runs.values()]
    assert {(one["trainer"]["steps"], one["method"].get("rho")) for one in configs} == {(5, 0.2), (6, None)}
    assert steps("experiment=bad", "scale=tiny", "trainer.steps=7,8", conf=conf) == {6, 7, 8}
    assert steps("experiment=bad", conf=conf) == {120, 6}


def test_a_scale_chooses_files_for_an_experiment_below_factors_and_the_command_line(conf):
    scales = {"tiny": {"task": "sorting", "trainer.steps": 5}}
    write_experiment(conf, {"A": {"method": "c0_grpo"}}, scales=scales)

    def found(*words):
        runs = make("experiment=bad", "seed=0", *words, conf=conf).runs.values()
        return [(run.config["task"]["name"], run.config["trainer"]["steps"]) for run in runs]

    assert found("scale=tiny") == [("sorting", 5)]
    assert found() == [("expression", 120)]
    assert found("scale=tiny", "task=expression") == [("expression", 5)]
    assert found("scale=tiny", "task=expression,sorting") == [("expression", 5), ("sorting", 5)]
    write_experiment(conf, {"A": {"method": "c0_grpo"}}, scales={"tiny": {"model": "tinny"}})
    (line,) = refused("experiment=bad", "scale=tiny", conf=conf)
    assert "experiment.scales.tiny.model = tinny" in line and "Fix: use tiny" in line


@pytest.mark.parametrize("scale", shipped("scale"))
def test_every_model_size_is_compared_on_the_same_samples(scale, planned_once):
    """With fewer samples, a larger model would look worse for its data."""
    planned = planned_once("qstar_scale", scale)
    (base,) = planned.bases.values()
    samples = set()
    for run in planned.runs.values():
        tree = merged(base.tree, run.config["verl"])
        each = tree["data"]["train_batch_size"] * tree["actor_rollout_ref"]["rollout"]["n"]
        mini = tree["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
        samples.add((run.config["trainer"]["steps"] * each, run.config["trainer"]["eval_every"] * each, mini))
    assert len(samples) == 1
    if scale != "tiny":
        ((total, between, _),) = samples
        assert (total, between) == (99_840, 5_120)


def test_a_scale_is_no_part_of_a_runs_identity():
    batch = ("verl.data.train_batch_size=8", "verl.actor_rollout_ref.actor.ppo_mini_batch_size=2")
    plain = ("model=tiny", "task=expression", "trainer.steps=80", *batch)
    assert set(make("method=ptrw", "scale=tiny").runs) == set(make("method=ptrw", *plain).runs)


def test_a_frozen_run_is_whole(tmp_path):
    planned = make("method=bnto_minimal", f"multirun={tmp_path}")
    freeze.freeze(planned)
    (run,) = planned.runs.values()
    folder = run_folder(tmp_path, run.id)
    config = read_config(folder)
    assert list(config) == ["format", "id", "identity", "base", *SECTIONS]
    # What only describes the configuration is left out.
    assert not re.search(r"\b(allowed|writes|requires|architecture):", yaml.safe_dump(config))
    assert read_state(folder).state == "planned"
    whole = completed(folder, config)
    assert whole.verl.actor_rollout_ref.rollout.n == config["verl"]["actor_rollout_ref"]["rollout"]["n"]
    assert OmegaConf.is_missing(whole.verl.actor_rollout_ref.rollout, "name")
    document = json.loads((tmp_path / planned.experiments[0].name / "plan.json").read_text())
    assert document["runs"] == [{"id": run.id, "group": "bnto_minimal", "seed": 0, "factors": {}}]


def test_secrets_of_the_environment_do_not_reach_the_plan(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "hunter2hunter2")
    for key in ("model.name", "tracking.project", "experiment.name"):
        lines = refused("method=ptrw", f"{key}=hunter2hunter2")
        assert [line for line in lines if f"{key.removesuffix('.name')}" in line and "JUDGE_API_KEY" in line]
        assert "hunter2" not in "".join(lines)


def test_the_examples_of_the_documentation_plan_as_it_says(conf):
    first, page = ((ROOT / f"docs/{name}.md").read_text() for name in ("first-sweep", "configuration"))
    (own,) = re.findall(r"```yaml\n(.*?)```", first, flags=re.DOTALL)
    found = re.findall(r"```yaml\n(# @package _global_\n.*?)```\n\n(\d+) runs", page, flags=re.DOTALL)
    assert "24 runs" in first and len(found) == 2
    for block, count in ((own, 24), *found):
        name = yaml.safe_load(block)["experiment"]["name"]
        (conf / f"experiment/{name}.yaml").write_text(block)
        assert len(make(f"experiment={name}", conf=conf).runs) == int(count)
    blocks = map(textwrap.dedent, re.findall(r"^ *```yaml\n(.*?)^ *```", page, flags=re.DOTALL | re.MULTILINE))
    (block,) = [block for block in blocks if block.startswith("# @package analysis")]
    (conf / "hypothesis/mine.yaml").write_text(block)
    assert make("experiment=bnto_main", "+hypothesis=mine", conf=conf).runs


def test_the_defaults_of_the_configuration_are_those_of_the_models():
    planned = make("method=c0_grpo")
    assert settings.settings(planned.experiments[0].analysis) == settings.settings({})
    assert tracking.Settings(**planned.tracking) == tracking.Settings()


def test_a_plan_of_an_earlier_release_is_read():
    """What plan.json holds has not changed since the first release; imported experiments name no methods."""
    entry = {"id": "00" * 8, "group": "A", "seed": 0, "factors": {"rho": 0.3}}
    bare = {"format": 1, "experiment": "old", "command": "python launch.py -m experiment=old", "steps": 4}
    bare |= {"analysis": {"primary": {"metric": "reward"}}, "runs": [entry]}
    declared = {"baseline": "A", "seeds": [0], "groups": {"A": {"label": "A"}}, "factors": {"rho": {"levels": [0.3]}}}
    read = Experiment.model_validate({**bare, **declared, "imported": True})
    assert json.loads(json.dumps(read.document())) == {**bare, **declared}
    assert Experiment.model_validate(bare).baseline is None


def test_a_mapping_that_a_schema_describes_takes_further_keys_one_by_one():
    planned = make("experiment=qstar_main", "cluster=slurm", "task.learned_reward.epochs=2", "seed=0")
    learned = {"model": "microsoft/deberta-v3-large", "share": 0.333, "epochs": 2}
    assert all(run.config["task"]["learned_reward"] == learned for run in planned.runs.values())


def test_only_the_root_names_the_application_and_hydras_own_sweeper_reads_the_root():
    (line,) = refused("experiment=quickstart", "application=mine:Application")
    assert line.startswith("command line: application = mine:Application: no such key. Fix: use one of seed, ")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert compose("config", ["hydra/sweeper=basic", "seed=3"]).seed == 3
