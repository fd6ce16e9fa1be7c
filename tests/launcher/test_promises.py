"""What `plan` accepts can start: what cannot is refused before anything is written, with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.planning.schema import Promises
from tests.configuration import SHIPPED
from tests.launcher.experiments import make, refused, write_experiment
from tests.trainer_ext.twins import tokenizer_of
from trainer_ext.backends.in_process.initial_model import character_tokenizer, initialise
from trainer_ext.backends.in_process.prompts import tokens_of

ONE = {"A": {"method": "c0_grpo"}}
TWO = {"A": {"method": "c0_grpo"}, "B": {"method": "ptrw"}}
EVAL = (
    "conf/experiment/quickstart.yaml: analysis.primary.metric = eval/reward_mean: no run of this experiment writes it"
)
REFUSED = [
    # requirements
    (
        ["method=q_star", "task=gsm8k", "model=tiny"],
        "conf/task/gsm8k.yaml: task.warm_start = null: must be a mapping of steps, batch_size, lr, random_fraction and "
        "seed, because an embedded model starts from nothing. Fix: choose a model that is trained already",
    ),
    (
        ["experiment=bnto_main", "model.resources.devices=8"],
        "command line: model.resources.devices = 8: must be 0 or 1, because trainer.backend=in_process is one process, "
        "which drives one device. Fix: choose trainer=verl_ray, or set model.resources.devices=1",
    ),
    (["experiment=bnto_main", "model.resources.nodes=2"], "or set model.resources.nodes=1"),
    (
        ["experiment=bnto_main", "model=llama_30b"],
        "model.resources.devices = 8: must be 0 or 1",
    ),
    (
        ["method=q_decode", "task=gsm8k_short", "model=gpt2"],
        "conf/model/gpt2.yaml: model.kind = pretrained: must be embedded, because target=large is built from",
    ),
    (
        ["method=dpo", "task=sorting", "method.dpo_pairs=data"],
        "conf/task/sorting.yaml: task.name = sorting: must be a task with pairs, because dpo_pairs=data learns from "
        "them. Fix: set method.dpo_pairs=group, or write the task's function preference",
    ),
    (
        ["method=c0_grpo", "model=gpt2", "task=gsm8k"],
        "conf/task/gsm8k.yaml: verl.data.max_response_length = 1024: with verl.data.max_prompt_length=512 these are "
        "1536 tokens, and model gpt2 reads at most 1024. Fix: shorten responses or prompts",
    ),
    # metrics
    (
        ["experiment=quickstart", "analysis.primary.metric=analysis/reward_summ_mean"],
        "command line: analysis.primary.metric = analysis/reward_summ_mean: no run of this experiment writes it. "
        "Fix: write analysis/reward_sum_mean",
    ),
    (
        ["experiment=quickstart", "analysis.metrics=[critic/vf_loss]"],
        "command line: analysis.metrics[0] = critic/vf_loss: no run of this experiment writes it; it is written with "
        "method/advantage=gae. Fix: add such a group, or name another metric",
    ),
    (["experiment=quickstart", "trainer.eval_every=0"], f"{EVAL}. Fix: set trainer.eval_every to an integer 1 or more"),
    (
        ["experiment=quickstart", "analysis.primary.metric=eval/win_rate", "trainer.eval_responses=0"],
        "analysis.primary.metric = eval/win_rate: no run of this experiment writes it: judges compare the responses "
        "that evaluations keep. Fix: set trainer.eval_every and trainer.eval_responses to an integer 1 or more",
    ),
    (
        ["experiment=bnto_main", "trainer.eval_samples=8"],
        "trainer.eval_pass = [10]: pass@10 needs 10 responses to a prompt, and trainer.eval_samples is 8. "
        "Fix: set trainer.eval_samples=10",
    ),
    (
        ["experiment=quickstart", "analysis.figures=[{histogram: alfa}]"],
        "analysis.figures[0].histogram = alfa: no run writes such a histogram. Fix: write alpha",
    ),
    (
        ["experiment=quickstart", "analysis.win_rate={against: sft}"],
        "analysis.win_rate.against = sft: must be a group of the experiment: C0, C1, asymmetric_clip, PTRW, q_star",
    ),
    (
        ["experiment=quickstart", "task.learned_reward={model: policy, share: 0.5, epoch: 2}"],
        "it has no epoch; beside model and share it has epochs, lr, batch_size",
    ),
    (
        ["experiment=qstar_main", "task.learned_reward={model: policy, share: 0.5, epochs: 0}"],
        "epochs=0: it must be at least 1",
    ),
    (
        ["method=c0_grpo", "task=gsm8k", "model=qwen2_5_0_5b", "task.learned_reward={model: policy, share: 0.5}"],
        "must be a task with pairs, from which task.learned_reward learns",
    ),
    (
        ["experiment=quickstart", "analysis.primary.metric=qstar/ess_ratio"],
        "the primary metric is compared between all groups, and C0, C1, asymmetric_clip, PTRW do not write it",
    ),
    (
        ["experiment=quickstart", "analysis.time_to=[{baseline_final: 0.9, metric: qstar/ess_ratio}]"],
        "group C0 does not write qstar/ess_ratio",
    ),
    (
        [
            "experiment=quickstart",
            "analysis.hypotheses={X: {claim: a, kind: less, group: q_star, against: C0, metric: qstar/ess_ratio}}",
        ],
        "analysis.hypotheses.X.against = C0: group C0 does not write qstar/ess_ratio",
    ),
    (
        [
            "experiment=quickstart",
            "analysis.hypotheses={X: {claim: a, kind: range, group: C0, metric: dual_game/beta, low: 0}}",
        ],
        "analysis.hypotheses.X.metric = dual_game/beta: group C0 does not write dual_game/beta",
    ),
    (
        ["method=c0_ppo,sft", "experiment.baseline=c0_ppo", "analysis.primary.metric=analysis/reward_sum_mean"],
        "analysis.primary.metric = analysis/reward_sum_mean: it is of drawn responses, and the groups draw them from "
        "different policies (c0_ppo: policy; sft: target, target expert",
    ),
    # Hydra's own words, tasks, prompts
    (["experiment=quickstart", "hydra.foo=1"], "command line: hydra.foo = 1: Hydra refuses this: Could not override"),
    (["method=ptrw", "hydra/launcher=nosuch"], "command line: hydra/launcher = nosuch: Hydra refuses this: In"),
    (
        ["experiment=quickstart", "task.name=sortng"],
        "sorting, tldr, wmt. Fix: write task.name=sorting",
    ),
    (
        ["experiment=quickstart", "verl.data.max_prompt_length=1"],
        "command line: verl.data.max_prompt_length = 1: no train prompt of task expression is so short: the shortest "
        "of 2658 has 3 tokens. Fix: set verl.data.max_prompt_length=3 or more",
    ),
    # sizes and splits, which the run also asks
    (
        ["method=c0_grpo", "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7"],
        "command line: verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 7: does not divide a mini-batch of "
        "64 responses (8 of 32 prompts, times rollout.n=8). Fix: make it a divisor, such as 4",
    ),
    (
        ["method=dpo", "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3"],
        "times 2 of a pair). Fix: make it a divisor and even, because the two responses of a pair stay together, such "
        "as 2",
    ),
    (
        ["method=dpo", "verl.actor_rollout_ref.rollout.n=1"],
        "must be 2 or more, because dpo_pairs=group compares two responses to one prompt. Fix: set it to 2 or more, or "
        "set method.dpo_pairs=data",
    ),
    (
        ["method=c0_grpo", "verl.actor_rollout_ref.rollout.n=1"],
        "command line: verl.actor_rollout_ref.rollout.n = 1: must be 2 or more, because advantage=grpo compares the "
        "responses to a prompt with each other. Fix: set it to 2 or more (8 is usual), or choose method/advantage=raw",
    ),
    (
        ["method=c0_grpo", "method/advantage=verl", "verl.actor_rollout_ref.rollout.n=1"],
        "Fix: set it to 2 or more (8 is usual), or set method.adv_estimator=reinforce_plus_plus",
    ),
    (
        ["method=c0_grpo", "model.heads=3"],
        "command line: model.heads = 3: model.hidden_size=64 does not give each head an even number of dimensions. "
        "Fix: make model.hidden_size a multiple of 2 x model.heads",
    ),
    (
        ["method=c0_ppo", "method.critic_warmup=120"],
        "method.critic_warmup = 120: the critic alone is trained in all of trainer.steps=120, and the policy in none",
    ),
    (
        ["method=c0_grpo", "trainer.eval_every=1", "trainer.split.test=0"],
        "command line: trainer.split.test = 0: the task has no test prompt, which evaluations need. Fix: give the task "
        "more prompts, raise trainer.split.test, or set trainer.eval_every=0",
    ),
    (["experiment=quickstart", "trainer.split.validation=0"], "the task has no validation prompt, which evaluations"),
    (
        ["trainer=verl_ray", "method=c0_grpo", "trainer.ranks=3"],
        "command line: trainer.ranks = 3: a mini-batch of 64 responses (ppo_mini_batch_size=8 times rollout.n=8) "
        "cannot be shared equally. Fix: make it a divisor, such as 2",
    ),
    (
        ["method=c0_grpo", "verl.actor_rollout_ref.actor.optim.override_optimizer_config.momentum=0.9"],
        "the chosen trainer does not read this key (trainer.verl_keys lists the keys that it reads). Fix: remove it, "
        "or set fused, amsgrad or eps below it",
    ),
    # groups and names
    (
        ["method=c0_grpo,ptrw"],
        "command line: experiment.baseline = null: one of the groups, which the others are compared with: c0_grpo, "
        "ptrw. Fix: write experiment.baseline=c0_grpo",
    ),
    (
        ["experiment=quickstart", "experiment.name=bnto_main"],
        "command line: experiment.name = bnto_main: this is the name of conf/experiment/bnto_main.yaml, whose plan and "
        "report lie in its folder. Fix: give this experiment a name of its own",
    ),
    (["method=ptrw", "experiment.name=quickstart"], "this is the name of conf/experiment/quickstart.yaml"),
    # memory
    (
        ["experiment=bnto_main", "model=qwen2_5_7b", "model.resources.devices=1"],
        "251.0 GB while updating "
        "the policy (variance of the gradient 91.4, moments of AdamW 60.9, weights 30.5). Fix: lower "
        "verl.actor_rollout_ref.rollout.max_num_seqs, verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu, "
        "verl.data.max_response_length; or use devices of 251 GB and set model.resources.device_memory_gb=251, or "
        "choose a smaller model",
    ),
    (
        ["experiment=qstar_long", "model.resources.device_memory_gb=30", "experiment.groups.q_star=null"],
        "Fix: lower verl.actor_rollout_ref.rollout.max_num_seqs, "
        "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu, verl.data.max_response_length",
    ),
    (
        ["method=ptrw", "model.hidden_size=4096", "model.intermediate_size=8192", "model.heads=32"],
        "conf/model/tiny.yaml: model.resources.memory_gb = 2: the run needs",
    ),
]


def test_a_value_of_a_chosen_launcher_of_hydras_is_accepted():
    words = ["hydra.launcher.timeout_min=10", "hydra/launcher=submitit_slurm", "hydra.launcher.mem_gb=2"]
    assert make("experiment=quickstart", *words).runs
    (line,) = refused("experiment=quickstart", *words, "hydra.launcher.timeout=10")
    assert line.startswith("command line: hydra.launcher.timeout = 10: Hydra refuses this: Could not override")


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_cannot_start_is_refused(words, said):
    assert any(said in line for line in refused(*words)), refused(*words)


def test_the_experiments_of_optimal_sampling_have_their_expert_from_the_worked_answers():
    assert len(make("experiment=qstar_target").runs) == 12


def test_a_name_that_another_file_has_is_refused_for_this_file_alone(conf):
    write_experiment(conf, ONE, name="thief")
    path = conf / "experiment/thief.yaml"
    path.write_text(path.read_text().replace("name: thief", "name: quickstart"))
    (line,) = refused("experiment=thief", conf=conf)
    assert line.startswith("conf/experiment/thief.yaml: experiment.name = quickstart: this is the name of conf/exp")
    assert make("experiment=quickstart", conf=conf).experiments[0].name == "quickstart"


def test_two_groups_with_the_same_runs_are_refused(conf):
    groups = {"A": {"method": "c0_grpo"}, "B": {"method": "c0_grpo", "overrides": {"method.clip_low": 0.2}}}
    write_experiment(conf, groups, baseline="A")
    (line,) = refused("experiment=bad", conf=conf)
    assert line.startswith("conf/experiment/bad.yaml: experiment.groups.B = c0_grpo: its runs are those of group A")
    groups["B"]["may_equal"] = "C"
    write_experiment(conf, groups, baseline="A")
    (line,) = refused("experiment=bad", conf=conf)
    assert "experiment.groups.B.may_equal = C: must be one of the groups: A, B" in line
    groups["B"]["may_equal"] = "A"
    write_experiment(conf, groups, baseline="A")
    assert len(make("experiment=bad", conf=conf).runs) == 1
    groups["B"] = {"method": "c0_grpo", "overrides": {"method.clip_low": 0.1}}
    write_experiment(conf, groups, baseline="A")
    assert len(make("experiment=bad", conf=conf).runs) == 2


def test_several_groups_of_a_file_need_a_baseline(conf):
    path = conf / "experiment/bad.yaml"
    write_experiment(conf, TWO, baseline="A")
    path.write_text(path.read_text().replace("baseline: A", "baseline: null"))
    (line,) = refused("experiment=bad", conf=conf)
    assert line == (
        "conf/experiment/bad.yaml: experiment.baseline = null: one of the groups, which the others are compared with: "
        "A, B. Fix: write baseline: A"
    )


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
from trainer_ext.tasks import Row, task

@task("mine")
def rows(section):
    return [Row("1>", "1")]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

def demonstration(row, generator, random_fraction):
    return row.ground_truth
"""


def test_a_sound_task_is_accepted(write_task, conf):
    write_task(GOOD)
    assert make("method=ptrw", "task=mine", conf=conf).runs


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (GOOD.replace("def rows(section):", "def rows(section:"), "line 5", "cannot be used: SyntaxError"),
        (f"import nosuch_module\n{GOOD}", "line 1", "ModuleNotFoundError: No module named 'nosuch_module'"),
        (GOOD.replace('[Row("1>", "1")]', 'section["nosuch"]'), "line 6", "KeyError: 'nosuch'"),
        (GOOD.replace('[Row("1>", "1")]', "[]"), "rows", "the task has no prompts"),
        (GOOD.replace('Row("1>", "1")', 'Row("1>", 1)'), "rows = 1", "the ground_truth of prompt 1 is not text"),
        (
            GOOD.replace('[Row("1>", "1")]', '[Row("1>", "1"), Row("2>", 2)]'),
            "rows = 2",
            "ground_truth of prompt 2 is not",
        ),
        (GOOD.replace('"1")]', '"1", "dev")]'), "rows = dev", "is one of train, validation, test, or None"),
        (GOOD.replace("float(solution_str", "nosuch(solution_str"), "line 9", "NameError"),
        (GOOD.replace("float(solution_str == ground_truth)", '"high"'), "compute_score = high", "is a number"),
        (GOOD.replace("def compute_score", "def score"), "task.name = mine", "missing: compute_score"),
    ],
)
def test_a_task_that_cannot_be_used_is_named_with_its_line(text, key, said, write_task, conf):
    path = write_task(text)
    (line,) = refused("method=ptrw", "task=mine", conf=conf)
    assert line.startswith(f"{path}: {key}: ") or (line.startswith(f"{path}: {key}") and said in line), line
    assert said in line


def test_a_task_without_demonstrations_cannot_teach_a_target_or_an_embedded_model(write_task, conf):
    write_task(GOOD.partition("def demonstration")[0])
    (line,) = refused("method=ptrw", "task=mine", conf=conf)
    assert "task.name = mine: must be a task with demonstrations, which an embedded model is taught before" in line
    lines = refused("method=q_star", "task=mine", "task.warm_start.steps=0", conf=conf)
    assert any("because target=expert is the starting model fine-tuned on them" in line for line in lines)
    assert make("method=ptrw", "task=mine", "task.warm_start.steps=0", conf=conf).runs


def test_local_prompts_of_a_pretrained_model_are_counted_with_its_tokenizer(tmp_path):
    model, data = tmp_path / "model", tmp_path / "train.jsonl"
    character_tokenizer().save_pretrained(model)
    data.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    words = ["method=ptrw", "task=gsm8k", f"task.train_path={data}", "model=qwen2_5_0_5b", f"model.path={model}"]
    lines = refused(*words, "verl.data.max_prompt_length=20")
    assert "no train prompt of task gsm8k is so short: the shortest of 1 has 73 tokens" in lines[0]
    (line,) = refused(*words)
    assert line == (
        f"command line: model.path = {model}: the folder has no config.json, and no *.safetensors or "
        "pytorch_model*.bin. Fix: name a folder that transformers' save_pretrained wrote, of the model and of its "
        "tokenizer"
    )
    initialise({"hidden_size": 64, "intermediate_size": 96, "layers": 1, "heads": 2}, 0, model)
    assert make(*words, "verl.data.max_prompt_length=200", "verl.data.max_response_length=100").runs


def test_the_tokens_of_a_chat_template_count_and_its_refusals_are_named(tmp_path):
    """A run renders every prompt with it before the first step."""
    model, data, tokenizer = tmp_path / "model", tmp_path / "train.jsonl", tokenizer_of("qwen2")
    data.write_text(json.dumps({"prompt": "1 + 1?", "answer": "2"}) + "\n")
    words = ["method=ptrw", "task=file", f"task.train_path={data}", "model=pretrained", f"model.path={model}"]
    words += ["task.reward=exact_match", "trainer.eval_every=0"]
    tokenizer.save_pretrained(model)
    messages = [{"role": "user", "content": "1 + 1?"}]
    bare, whole = len(tokenizer.encode("1 + 1?")), len(tokens_of(tokenizer, messages))
    assert whole > bare
    lines = refused(*words, f"verl.data.max_prompt_length={bare}")
    assert f"the shortest of 1 has {whole} tokens. Fix: set verl.data.max_prompt_length={whole} or more" in lines[0]
    (model / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    lines = refused(*words, "task.system_prompt=Count.")
    assert lines[0] == (
        f"command line: model.path = {model}: the model's chat template refuses the messages of task file: "
        "TemplateError: System role not supported. Fix: set task.system_prompt=null if the template reads no system "
        "message, or choose another model"
    )
    assert not any("chat template" in line for line in refused(*words))
    given = "verl.actor_rollout_ref.model.custom_chat_template='{{ messages[0].content }}{{ messages[0].content }}'"
    twice = len(tokenizer.encode("1 + 1?1 + 1?"))
    lines = refused(*words, given, f"verl.data.max_prompt_length={bare}")
    assert f"the shortest of 1 has {twice} tokens" in lines[0]


def test_a_target_with_other_tokens_than_the_policy_is_refused(tmp_path):
    initialise({"hidden_size": 64, "intermediate_size": 96, "layers": 1, "heads": 2}, 0, tmp_path)
    words = ["method=q_star", "task=sorting", f"method.target_path={tmp_path}"]
    assert make(*words).runs
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": 120}))
    (line,) = refused(*words)
    assert f"method.target_path = {tmp_path}: the target has 120 tokens and model tiny has 99, but" in line


SCORE = """
def graded(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth), "level": extra_info["level"]}
"""


@pytest.fixture
def own(tmp_path):
    """Words that choose prompts and a reward of the user's own."""
    (tmp_path / "rewards.py").write_text(SCORE)
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": "1?", "answer": "2", "level": 3}) + "\n")
    reward = f"task.reward={tmp_path}/rewards.py:graded"
    model = ["model=pretrained", "model.path=of/somebody"]
    return tmp_path, ["method=ptrw", "task=file", f"task.train_path={tmp_path}/own.jsonl", reward, *model]


def test_a_reward_of_a_file_brings_its_metrics(own):
    _, words = own
    assert make(*words, "analysis.primary.metric=reward/level").runs
    (line,) = refused(*words, "analysis.primary.metric=reward/levl")
    said = "analysis.primary.metric = reward/levl: no run of this experiment writes it. Fix: write reward/level"
    assert said in line


def test_evaluations_have_the_numbers_of_a_reward_too(own):
    folder, words = own
    lines = [{"prompt": f"{n}?", "answer": "2", "level": 3} for n in range(40)]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = "analysis.primary.metric=eval/reward/level"
    assert make(*words, asked, "trainer.eval_every=1").runs
    (line,) = refused(*words, asked, "trainer.eval_every=0")
    assert line.endswith("no run of this experiment writes it. Fix: set trainer.eval_every to an integer 1 or more")


def test_a_reward_that_does_not_return_is_refused(own):
    folder, words = own
    (folder / "rewards.py").write_text("import time\n\n\ndef graded(*_):\n    time.sleep(60)\n")
    (line,) = refused(*words, "task.reward_timeout_s=0.1")
    said = "first prompt's own answer fails: it did not return within task.reward_timeout_s=0.1 seconds. "
    assert said + "Fix: correct the function, or raise task.reward_timeout_s" in line
    (line,) = refused(*words, "task.reward_timeout_s=0")
    assert "task.reward_timeout_s = 0: must be seconds above 0" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("task.reward=rewards.py:graded", "task.reward = rewards.py:graded: the file "),
        ("task.reward=exact", "did you mean exact_match?. Fix: use a known reward, or name a function as FILE.py"),
        ("task.prompt=question", "own.jsonl, line 1: task.prompt=question, which it does not have; it has prompt, "),
        ("task.train_path=own.json", "task.train_path = own.json: must be the path of a .jsonl or .parquet file"),
        ("task.train_path=nosuch.jsonl", "task.train_path = nosuch.jsonl: the file nosuch.jsonl does not exist"),
        ("method=q_star", "task.worked_answer = null: must be the column of a worked answer"),
        ("model=tiny", "task.warm_start = null: must be a mapping"),
    ],
)
def test_own_data_that_cannot_be_used_are_named(own, change, said):
    _, words = own
    kept = [word for word in words if word.partition("=")[0] != change.partition("=")[0]]
    assert any(said in line for line in refused(*kept, change))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (SCORE.replace('level"]', 'levels"]'), "line 3", "cannot be used: KeyError: 'levels'"),
        (SCORE.replace("return {", "return {,"), "line 3", "cannot be used: SyntaxError"),
        (
            SCORE.replace("score", "points"),
            "graded",
            "the mapping has no key score, which is the reward; it has points",
        ),
        (SCORE.replace("extra_info[", "str(extra_info)["), "line 3", "TypeError"),
    ],
)
def test_a_reward_that_fails_is_named_with_its_line(own, text, key, said):
    folder, words = own
    (folder / "broken.py").write_text(text)
    (line,) = refused(*words, f"task.reward={folder}/broken.py:graded")
    assert line.startswith(f"{folder}/broken.py: {key}") and said in line, line


def test_the_content_of_a_reward_and_that_of_the_prompts_is_part_of_a_run(own):
    folder, words = own
    (before,) = make(*words).runs
    (folder / "rewards.py").write_text(SCORE + "\n\ndef other():\n    return 0\n")
    assert list(make(*words).runs) != [before]
    (folder / "rewards.py").write_text(SCORE)
    assert list(make(*words).runs) == [before]
    (folder / "own.jsonl").write_text(json.dumps({"prompt": "1?", "answer": "3", "level": 3}) + "\n")
    assert list(make(*words).runs) != [before]


# ---------------------------------------------------------------- what files declare


def test_every_method_declares_a_metric_of_each_of_its_parts():
    for method in ("c0_grpo", "bnto_minimal", "q_star", "c0_ppo", "dpo", "all_variants"):
        tree = SHIPPED.compose([f"method={method}"])
        assert "actor/grad_norm" in Promises.of(tree.files).metrics


def test_a_later_file_drops_a_requirement_with_null(conf):
    text = "# @package _global_\ndefaults: [in_process, _self_]\ntrainer: {requires: {model.resources.devices: null}}\n"
    (conf / "trainer/several.yaml").write_text(text)
    words = ("method=ptrw", "model.resources.devices=4")
    assert refused(*words, conf=conf)
    assert make(*words, "trainer=several", conf=conf).runs
    assert refused(*words, "trainer=several", "model.resources.nodes=2", conf=conf)


def test_what_only_describes_the_configuration_is_not_frozen():
    for run in make("experiment=quickstart").runs.values():
        assert not {"writes", "requires", "architecture", "allowed"} & {*run.config["method"], *run.config["trainer"]}
        assert not {"requires", "architecture"} & set(run.config["model"])
